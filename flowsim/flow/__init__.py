"""Gradient flow: the path, the solvers, what is recorded. The only place that imports diffrax."""
