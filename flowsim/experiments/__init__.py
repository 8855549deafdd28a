"""Many problems at once: audits, sweeps, searches."""
