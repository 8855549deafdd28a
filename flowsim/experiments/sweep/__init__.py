"""Sweeps: what becomes of a flow over a grid of problems and starts."""
