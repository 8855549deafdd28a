"""How a verdict is decided: both sides with their errors, at the output times, between them and after the end."""
