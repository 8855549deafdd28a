"""Searches over the problems that a claim speaks of: for one that breaks it, and for its best constant."""

