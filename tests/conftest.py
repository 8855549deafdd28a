"""Strict settings for every test: float64, no silent broadcasting or promotion, nothing random between runs.

Nearly all of the suite's time is compiling, so both workers share the command line's compile cache.
"""

import collections
import os

import hypothesis
import matplotlib
import pytest

from flowsim._core.compiler import prepare_compiler

LONG = ("test_scenarios.py", "test_gpu_benchmark.py", "test_devices.py", "test_ablation.py")

matplotlib.use("Agg")

hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, database=None, max_examples=25)
hypothesis.settings.load_profile("repeatable")


def pytest_configure():
    """JAX's settings, the cache's before it is imported; and errors that nothing foresaw come up."""
    os.environ["FLOWSIM_TRACEBACK"] = "1"
    # XLA compiles a program in parts, on all cores. With a worker for each core, one part takes an eighth less.
    flags, name = os.environ.get("XLA_FLAGS", ""), "--xla_cpu_parallel_codegen_split_count"
    if name not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {name}=1".strip()
    prepare_compiler()
    import jax

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.hookimpl(trylast=True)  # when tests that nobody asked for are gone
def pytest_collection_modifyitems(items):
    """Files of many tests first, and before them long files of few: at the end no worker waits long for the other."""
    count = collections.Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path.name not in LONG, -count[item.path], item.path))


@pytest.fixture(autouse=True, scope="module")
def programs_of_one_file():
    """Forget compiled programs after each file: each holds memory maps, of which Linux gives a process 65,530."""
    import jax

    yield
    jax.clear_caches()


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The claims of which certificates are tried."""
    from flowsim.experiments.certification import attempts, kept

    found: list[str] = []

    def certified(claim, *given, **how):
        found.append(claim.id)
        return attempts.certified(claim, *given, **how)

    monkeypatch.setattr(kept, "certified", certified)
    return found
