"""Gradient flow: trajectories, solvers and stopping rules. The only package that imports diffrax."""
