"""Ball arithmetic: numbers with proved bounds on their errors, and functions evaluated on such numbers."""
