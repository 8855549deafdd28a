"""Strict settings for every test: float64, no silent broadcasting or promotion, nothing random between runs."""

import hypothesis
import jax
import matplotlib
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
matplotlib.use("Agg")

hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, database=None, max_examples=25)
hypothesis.settings.load_profile("repeatable")


@pytest.fixture(autouse=True, scope="module")
def programs_of_one_file():
    """Forget compiled programs after each file: each holds memory maps, of which Linux gives a process 65,530."""
    yield
    jax.clear_caches()
