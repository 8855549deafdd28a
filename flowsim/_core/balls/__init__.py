"""Ball arithmetic: what is found of a function with a proved error."""
