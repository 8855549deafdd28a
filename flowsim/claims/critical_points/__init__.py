"""Critical points of a loss along a flow: where it ends, and the plateaus that it passes."""
