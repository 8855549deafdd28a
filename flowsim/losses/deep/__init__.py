"""Exact losses of looped and multi-layer transformers, and their minima."""
