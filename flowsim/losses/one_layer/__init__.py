"""Exact losses of one layer of linear attention: for heads of any kind, and for the special cases of papers."""
