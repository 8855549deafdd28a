"""Ball arithmetic: values of functions with a proved bound of their error."""
