"""Ball arithmetic: enclosures of the values of functions, which are numbers with proved bounds on their errors."""
