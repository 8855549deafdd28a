"""Exact losses of one layer of linear attention: one quadratic form for all heads, and special cases of papers."""
