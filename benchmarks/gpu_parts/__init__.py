"""The parts of `benchmarks/gpu.py`, each a generator of measures."""
