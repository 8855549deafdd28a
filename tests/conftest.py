"""Strict settings for every test: float64, no silent broadcasting or promotion, nothing random between runs."""

import hypothesis
import jax
import matplotlib

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
matplotlib.use("Agg")

hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, database=None, max_examples=25)
hypothesis.settings.load_profile("repeatable")
