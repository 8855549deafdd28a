"""Where flows come to rest: the points at which they end, and the plateaus on the way."""
