"""What a GPU would be given, lowered for CUDA on this CPU: no callbacks to the host, no float32, no open shapes."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import fixed_covariance, general_flows
from benchmarks.gpu_parts import fields, flows
from flowsim.experiments.sweep import any_loss, arrowheads
from flowsim.experiments.sweep import integration as integration_of_cells
from flowsim.experiments.sweep.axes import GridAxis
from flowsim.experiments.sweep.maps import specs
from flowsim.flow.solvers import integration
from flowsim.flow.systems import system_of
from flowsim.losses.sampled.monte_carlo import prepared

pytestmark = pytest.mark.slow


def lowered(function: Callable[..., Any], *arguments: Any) -> str:
    """The program for CUDA of a function of these arguments."""
    arrays, rest = eqx.partition(arguments, eqx.is_array)
    program = jax.jit(lambda arrays: eqx.filter(function(*eqx.combine(arrays, rest)), eqx.is_array))
    return jax.export.export(program, platforms=("cuda",))(arrays).mlir_module()


def faults(program: str) -> list[str]:
    """What a program has that is slow or wrong on a GPU."""
    calls = re.findall(r"custom_call @([\w.]+)", program)
    found = [f"calls {name}" for name in calls if not name.startswith(("cusolver_", "cu_"))]
    found += [f"has {kind}" for kind in ("f32", "f16", "bf16") if re.search(rf"[x<]{kind}[>,]", program)]
    return found + (["has an open shape"] if re.search(r"tensor<[^>]*\?", program) else [])


def stretch(loss: Any, start: Any, solver: str) -> str:
    """A stretch of `gradient_flow`."""
    system, method = system_of(prepared(loss, start), start, solver)
    y = (system.encode(start), jnp.zeros(()))
    rtol, atol, growth, timescale, renewal = (jnp.asarray(number) for number in (1e-9, 1e-12, 0.2, 1.0, 0))
    asked = integration.Asked(rtol, atol, y[0], growth, timescale, renewal)
    how = integration.Method(method, sum(leaf.size for leaf in jax.tree.leaves(y[0])))

    def integrate(system, y, times, asked, never):
        return tuple(inspect.unwrap(integration._integrate)(system, y, times, asked, never, how, 64)[:6])

    return lowered(integrate, system, y, jnp.asarray([0.0, 1.0, 1e-3]), asked, integration.NEVER)


@pytest.mark.parametrize("make", [lambda: fields.one_layer(3), lambda: fields.looped(3), lambda: fields.softmax(3)])
@pytest.mark.parametrize("kept", [True, False])
def test_the_field_of_a_sampled_loss(make, kept):
    case = make()
    loss = fields.prepared(case, 1024, 128)
    loss = loss if kept else loss._with(draws=None)
    assert faults(lowered(lambda loss, model: loss.gradient(model), loss, case.model)) == []


def test_flows_with_an_arrowhead_in_lanes():
    assert faults(lowered(inspect.unwrap(arrowheads.integrate), *flows.arrowhead_flows(8))) == []


def test_flows_of_any_loss_in_lockstep():
    given = flows.lanes_like(*general_flows.layers("looped"), 8)
    assert faults(lowered(inspect.unwrap(any_loss.integrate), *given)) == []


@pytest.mark.parametrize("solver", ["auto", "explicit", "implicit"])
def test_a_stretch_of_a_flow(solver):
    loss, start, _ = fixed_covariance.problem(3)
    assert faults(stretch(loss, start, solver)) == []


def test_what_is_slow_on_a_gpu_is_found():
    x = jnp.ones(3)
    with pytest.raises(ValueError, match="different from the lowering platform cuda"):
        lowered(lambda x: jax.pure_callback(np.asarray, jax.ShapeDtypeStruct(x.shape, x.dtype), x), x)
    assert faults(lowered(lambda x: jnp.sum(x.astype(jnp.float32)).astype(float), x)) == ["has f32"]
    open_length = jax.ShapeDtypeStruct(jax.export.symbolic_shape("n"), float)
    program = jax.export.export(jax.jit(lambda x: x + 1.0), platforms=("cuda",))(open_length)
    assert "has an open shape" in faults(program.mlir_module())


@pytest.mark.long
def test_memory_grows_with_the_lanes_and_not_faster():
    """A GPU has tens of thousands of lanes: 80 KiB each, at d = 16, with the
    ends of its steps that claims are compared on, are 7.6 GiB for 10^5."""
    sizes = []
    for lanes in (8, 16):
        compiled = arrowheads.integrate.lower(*flows.arrowhead_flows(lanes)).compile()
        analysis = compiled.memory_analysis()
        assert analysis is not None
        sizes.append(analysis.temp_size_in_bytes)
    a_lane = (sizes[1] - sizes[0]) / 8
    assert 0 < a_lane < 80 * 1024


def test_a_sweep_on_a_gpu_has_larger_batches(monkeypatch):
    tables = {"task": {"context_length": 10, "covariance": "identity", "dimension": 3}, "init": {"scale": 0.3}}
    cells = list(specs(tables, (GridAxis.of("init.seed", range(200)),)))
    assert len(integration_of_cells.plan(cells, None)) == 2
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert [len(batch.cells) for batch in integration_of_cells.plan(cells, None)] == [200]
