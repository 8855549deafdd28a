"""How a verdict is decided: both sides with their errors, between the times, and in balls; and confidence bands."""
