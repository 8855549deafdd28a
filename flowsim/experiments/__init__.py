"""Experiments on many problems: audits, sweeps and searches."""
