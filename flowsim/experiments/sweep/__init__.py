"""Sweeps: flows over a grid of problems and starts."""
