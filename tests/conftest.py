"""Strict settings for every test: float64, no silent broadcasting or promotion, nothing random between runs.

Nearly all of the suite's time is compiling, so both workers share the command line's compile cache.
"""

import os

import hypothesis
import matplotlib
import pytest

from flowsim._core.compiler import prepare_compiler

matplotlib.use("Agg")

hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, database=None, max_examples=25)
hypothesis.settings.load_profile("repeatable")


def pytest_configure():
    """JAX's settings, the cache's before it is imported; and errors that nothing foresaw come up."""
    os.environ["FLOWSIM_TRACEBACK"] = "1"
    prepare_compiler()
    import jax

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture(autouse=True, scope="module")
def programs_of_one_file():
    """Forget compiled programs after each file: each holds memory maps, of which Linux gives a process 65,530."""
    import jax

    yield
    jax.clear_caches()
