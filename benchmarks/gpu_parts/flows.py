"""Many flows at once: with an arrowhead, of any loss in lockstep, and of a sampled loss."""

import functools
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import general_flows
from benchmarks.fixed_covariance import RTOL
from benchmarks.gpu_parts.fields import looped
from benchmarks.gpu_parts.rows import CPU_LANES, Measures, Row, cores, first_call, on_gpu, timed
from benchmarks.sweep import D, axes, problem
from flowsim import MonteCarloLoss, gradient_flow
from flowsim.experiments.sweep import any_loss, arrowheads
from flowsim.experiments.sweep.axes import GridAxis
from flowsim.experiments.sweep.maps import specs, sweep
from flowsim.flow.solvers.summary import STATUSES, Ends, Summary
from flowsim.initialization import deep

SEEDS = 250
CPU_ARROWHEADS = 128  # lanes of a batch on a CPU, as a sweep has them


def arrowhead_flows(lanes: int) -> tuple[arrowheads.Flows, Ends]:
    """Flows from balanced random starts, 250 seeds at scales geometric over four decades."""
    seeds = min(SEEDS, lanes)
    tables, bound = problem()
    cells: list[Any] = list(specs(tables, tuple(GridAxis.of(name, values) for name, values in axes(1, seeds).items())))
    flows, _ = arrowheads.prepared(cells, D)
    # The starts are proportional to their scale, which is 1e-4 of the bound here.
    place = np.arange(lanes) % seeds
    growth = jnp.asarray(np.geomspace(1.0, 5e3, -(-lanes // seeds))[np.arange(lanes) // seeds])
    of_lanes = jax.tree.map(lambda leaf: leaf[place], flows)
    flows = of_lanes._replace(U=of_lanes.U * growth[:, None, None], u=of_lanes.u * growth)
    return flows, _ends(lanes, float(tables["flow"]["t1"]), 0.0, 0.0, RTOL)


def _ends(lanes: int, t1: float, excess: float, grad_norm: float, rtol: float) -> Ends:
    return Ends(*[jnp.full(lanes, number) for number in (t1, 0.0, excess, grad_norm, rtol)])


def _in_groups(integrate: Callable[..., Any], given: Any, lanes: int, most: int) -> Callable[[], Any]:
    """A run of all lanes, on a CPU in groups shared by its threads."""
    if on_gpu():
        return lambda: integrate(*given)
    size = min(most, lanes)
    cut = lambda first: jax.tree.map(lambda leaf: leaf[first : first + size] if eqx.is_array(leaf) else leaf, given)
    groups = [cut(first) for first in range(0, lanes, size)]
    return lambda: any_loss.at_once(lambda group: jax.block_until_ready(integrate(*group)), groups)


def _counted(run: Callable[[], Any], lanes: int, full: bool) -> Row:
    """The time of a flow, with its steps and how many flows were finished."""
    first, found = first_call(run)
    seconds = min(first, timed(run, 1.0)) if full and first < 20 else first
    found = found if isinstance(found, list) else [found]
    summaries: list[Summary] = [one[0] for one in found]
    codes = np.concatenate([np.asarray(summary.status) for summary in summaries])
    steps = np.concatenate([np.asarray(summary.steps + summary.rejected_steps) for summary in summaries])
    finished = sum(code >= 0 and STATUSES[code].finished for code in codes)
    peak = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0) / 2**30
    note = f"{lanes} flows, {finished} finished, steps {steps.mean():.0f} on average and at most {steps.max()}, "
    note += f"first call {first:.1f} s" + (f", peak {peak:.2g} GiB" if peak else "")
    return Row("", seconds / lanes, "flow", note=note)


def measures(full: bool) -> Measures:
    """Flows with an arrowhead, from the arrays alone and as a whole sweep."""
    counts = (10**5, 1024) if full and on_gpu() else (2 * CPU_ARROWHEADS * cores(),) if full else (8,)
    for lanes in counts:
        name = "arrowhead, d = 16" if lanes == counts[0] else f"arrowhead, d = 16, {lanes} lanes"
        yield name, functools.partial(_arrowheads, lanes, full)
    scales, seeds = (100, 200) if full and on_gpu() else (10, 100) if full else (2, 4)
    yield "flowsim sweep, d = 16, files and all", functools.partial(_sweep, scales, seeds)


def _arrowheads(lanes: int, full: bool) -> Row:
    run = _in_groups(arrowheads.integrate, arrowhead_flows(lanes), lanes, CPU_ARROWHEADS)
    return _counted(run, lanes, full)


def _sweep(scales: int, seeds: int) -> Row:
    tables, _ = problem()

    def run() -> Any:
        with tempfile.TemporaryDirectory() as folder:
            return sweep(tables, axes(scales, seeds), out=pathlib.Path(folder) / "map")

    first, found = first_call(run)
    again, _ = first_call(run) if first < 30 else (first, None)
    outcomes = ", ".join(sorted(set(found["outcome"].flat)))
    return Row(
        "",
        again / found["outcome"].size,
        "flow",
        note=f"{found['outcome'].size} cells, first {first:.1f} s, {outcomes}",
    )


GENERAL: dict[str, tuple[Callable[[], tuple[Any, Any]], int]] = {
    "three factors, 3 weights": (lambda: general_flows.factors(3, 0.1, 0), 10**5),
    "looped, L = 3, d = 5, 30 weights": (lambda: general_flows.layers("looped"), 10**4),
    "4 heads, merged, d = 4, 68 weights": (lambda: general_flows.merged(4, 4, 1e-3), 10**3),
}


def general(full: bool) -> Measures:
    """Flows of any loss in lockstep, from random starts; on a GPU many lanes first, and then fewer."""
    for name, (_, most) in GENERAL.items():
        lanes = most if full and on_gpu() else 2 * CPU_LANES * cores() if full else 4
        yield name, functools.partial(_general, name, lanes, full)
        if not full:
            return
    if on_gpu():
        for name in list(GENERAL)[:2]:
            yield f"{name}, 1000 lanes", functools.partial(_general, name, 10**3, full)


def lanes_like(loss: Any, start: Any, lanes: int) -> tuple[Any, Any, Ends]:
    """What `any_loss.integrate` takes of random starts like one."""
    rng = np.random.default_rng(0)
    size = lambda leaf: np.sqrt(np.mean(np.square(leaf)))
    draw = lambda leaf: jnp.asarray(size(leaf) * rng.standard_normal((lanes, *leaf.shape)))
    starts = jax.tree.map(lambda leaf: draw(leaf) if eqx.is_inexact_array(leaf) else leaf, start)
    repeat = lambda leaf: jnp.broadcast_to(leaf, (lanes, *leaf.shape)) if eqx.is_array(leaf) else leaf
    ends = _ends(lanes, np.inf, 1e-12, 1e-10, general_flows.SWEEP_RTOL)
    return jax.tree.map(repeat, loss), starts, ends


def _general(name: str, lanes: int, full: bool) -> Row:
    loss, start = GENERAL[name][0]()
    return _counted(_in_groups(any_loss.integrate, lanes_like(loss, start, lanes), lanes, CPU_LANES), lanes, full)


def sampled(full: bool) -> Measures:
    """The flow of a sampled loss: three loops at d = 5, by prompts' covariances."""
    samples = 10**6 if full else 2**10
    for solver in ("explicit", "auto") if full else ("explicit",):
        yield f"sampled flow, three loops, d = 5, solver {solver}", functools.partial(_sampled, solver, samples, full)


def _sampled(solver: str, samples: int, full: bool) -> Row:
    case = looped(5)
    samples = samples if on_gpu() or not full else samples // 100
    preparing, loss = first_call(lambda: MonteCarloLoss(case.task, samples, method="covariances").prepared(case.model))
    start = eqx.tree_at(lambda model: model.A, case.model, jnp.asarray(deep.symmetric(0.1, 5, seed=0)))
    run = lambda: gradient_flow(loss, start, t1=1.0 if full else 0.1, rtol=1e-6, solver=solver, points_per_decade=0)
    first, flow = first_call(run)
    seconds = timed(run, 1.0) if full and first < 20 else first
    fields = flow.certificates.steps + flow.certificates.rejected_steps
    note = f"{samples} samples, block {loss.block}, prepared in {preparing:.1f} s, {flow.status}, {fields} steps, "
    return Row("", seconds / samples, "flow and sample", note=note + f"first call {first:.1f} s, warm {seconds:.2f} s")
