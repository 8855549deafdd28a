"""Compiled programs are found again by a second process, and errors are raised from there as from an empty cache."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

import flowsim
from flowsim._core import compiler
from flowsim._core.compiler import prepare_compiler

SCRIPT = """
import collections, sys
from flowsim._core.compiler import prepare_compiler
prepare_compiler()
import jax
jax.config.update("jax_enable_x64", True)
counts = collections.Counter()
jax.monitoring.register_event_listener(lambda name, **_: counts.update([name.rpartition("/")[2]]))
import jax.numpy as jnp
import equinox as eqx
import flowsim

class Weight(eqx.Module):
    w: jax.Array

def error(call):
    try:
        call()
    except Exception as found:
        return f"{type(found).__name__}: {found}"

loss = flowsim.FunctionLoss(lambda model: 0.5 * (model.w - 1.0) ** 2, minimum=0.0)
start = Weight(jnp.asarray(3.0))
run = flowsim.gradient_flow(loss, start, times=[1.0])
print(error(lambda: flowsim.gradient_flow(loss, start, times=[2.0, 1.0])))
print(error(lambda: flowsim.gradient_flow(loss, Weight(jnp.asarray(jnp.nan)))))
print(error(lambda: flowsim.FunctionLoss(lambda model: model.w[None])(start)))
pole = flowsim.FunctionLoss(lambda model: -jnp.log(model.w - 2.0), minimum=None)
print(flowsim.gradient_flow(pole, Weight(jnp.asarray(1.0)), t1=1.0).status)
print(repr(float(run.excess[-1])))
print(counts["cache_hits"], counts["cache_misses"], file=sys.stderr)
"""


@pytest.mark.slow
def test_errors_are_raised_from_a_warm_cache_as_from_an_empty_one(tmp_path):
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    cold, warm = (
        subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    )
    assert cold.stdout == warm.stdout
    increasing, finite, scalar, status, _ = cold.stdout.splitlines()
    assert increasing.startswith("ProblemError: times must be strictly increasing")
    assert finite.startswith("ProblemError: model.w must be finite")
    assert scalar.startswith("ProblemError: function must be scalar-valued")
    assert status == "nonfinite"
    (cold_hits, cold_misses), (warm_hits, warm_misses) = (map(int, run.stderr.split()) for run in (cold, warm))
    assert cold_misses > 5 * cold_hits
    assert warm_misses == 0
    assert warm_hits == cold_hits + cold_misses


@pytest.mark.parametrize("given", ["--xla_cpu_use_fusion_emitters=true --xla_dump_to=/nowhere", "options.txt"])
def test_the_compiler_keeps_the_options_that_a_user_gave(monkeypatch, given):
    monkeypatch.setenv("XLA_FLAGS", given)
    prepare_compiler()
    assert os.environ["XLA_FLAGS"] == given


def test_the_compiler_is_given_no_option_that_another_version_may_not_know(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.12.0.1")
    prepare_compiler()
    assert os.environ["XLA_FLAGS"] == ""


def test_preparing_the_compiler_twice_is_preparing_it_once(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.10.1")
    prepare_compiler()
    once = os.environ["XLA_FLAGS"]
    prepare_compiler()
    assert os.environ["XLA_FLAGS"] == once == "--xla_cpu_use_fusion_emitters=false"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts memory maps")
@pytest.mark.parametrize("most", [10, 10**9])
def test_programs_are_forgotten_before_their_memory_maps_end_the_process(tmp_path, monkeypatch, most):
    """A flow and a verdict look first; a process that is far from the limit keeps its programs."""
    limit = tmp_path / "max_map_count"
    limit.write_text(f"{most}\n")
    monkeypatch.setattr(compiler, "_MOST_MAPS", limit)
    loss = flowsim.FunctionLoss(lambda w: jnp.sum(w**2), minimum=0.0)
    claim = flowsim.Claim("decays", "notes", "the loss decays", lambda loss, flow: flowsim.at_most(flow.excess, 1.0))
    forgotten = []
    monkeypatch.setattr(jax, "clear_caches", lambda: forgotten.append(True))
    flow = flowsim.gradient_flow(loss, jnp.ones(2), t1=1.0)
    for look in (
        lambda: flowsim.gradient_flow(loss, jnp.ones(2), t1=1.0),
        lambda: flowsim.judge(claim, loss, flow),
    ):
        forgotten.clear()
        monkeypatch.setattr(compiler, "_counted", 0.0)
        look()
        assert bool(forgotten) is (most == 10)
