"""How a verdict is decided: the sides with their errors, at the output times, between them and after the end."""
