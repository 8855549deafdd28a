"""Experiments: runs of one problem, audits, sweeps, searches, ablations and certificates."""
