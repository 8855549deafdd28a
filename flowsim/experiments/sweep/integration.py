"""The cells of a sweep: which are integrated together, and what is found of each."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PyTree

from flowsim import initialization
from flowsim._core.types import Scalar
from flowsim.claims.evidence import padded
from flowsim.claims.rates import decayed
from flowsim.experiments.sweep.records import MapRecord, record
from flowsim.flow.arrowhead.batch import (
    CONVERGED,
    ESCAPED,
    STATUSES,
    Ends,
    Flows,
    Least,
    Scales,
    Summary,
    crossing,
    integrate,
    scales_of,
)
from flowsim.flow.systems import norm_sq
from flowsim.flow.trajectory import Trajectory
from flowsim.losses.arrowhead import AbstractArrowhead, Arrowhead
from flowsim.models import LinearAttention
from flowsim.papers.zhang2023.conditions import TracedPromises, traced_promises
from flowsim.problem import Problem, ProblemSpec
from flowsim.problem.architectures.linear_attention import LINEAR_ATTENTION
from flowsim.problem.init_table import InitTable
from flowsim.problem.specification import StopTable
from flowsim.problem.task_tables import TaskTable

_LANE_ENTRIES = 2**15
_FEWEST_LANES, _MOST_LANES = 8, 128


@dataclasses.dataclass(frozen=True)
class CellBatch:
    """Cells that are integrated together: their places in the grid, in lanes of one dimension.

    dimension: d of the largest, rounded up to one that is compiled, None where the cell, a single one, has no arrowhead
    and is integrated by `gradient_flow`; lanes: how many cells the program is compiled for, spare ones repeat the last.
    """

    cells: tuple[int, ...]
    dimension: int | None = None
    lanes: int = 1


class _Task(NamedTuple):
    """A task's loss with the arrowhead of its flows, as NumPy arrays."""

    loss: PyTree
    arrowhead: PyTree


def plan(specs: Sequence[ProblemSpec], mesh: Mesh | None) -> list[CellBatch]:
    """The batches of a sweep: each cell is in one, and a sweep has the same ones on every machine.

    Cells of similar dimension are together, in the order of how long their flows take, as a batch takes as long as its
    slowest cell.

    **Raises:** `ValueError` where the mathematics does not allow a value.
    """
    alone: list[int] = []
    classes: dict[int, list[tuple[float, int]]] = {}
    slowest: dict[tuple, float] = {}
    batched: dict[tuple, bool] = {}
    for index, spec in enumerate(specs):
        d = spec.task.size
        law = spec.task.covariance_law
        kind = (_without_numbers(spec.init), d, spec.flow.solver, law and law.family, spec.model, spec.loss)
        of_loss = (spec.task, spec.model, spec.loss)
        if kind not in batched or of_loss not in slowest:
            problem = spec.build(mesh=mesh)
            structure = problem.loss.arrowhead(problem.start)
            batched[kind] = spec.flow.solver == "auto" and isinstance(structure, Arrowhead)
            slowest[of_loss] = _slowest_rate(problem)
        if batched[kind]:
            classes.setdefault(_rounded_up(d), []).append((slowest[of_loss], index))
        else:
            alone.append(index)
    batches = []
    for dimension, members in sorted(classes.items()):
        cells = [index for _, index in sorted(members)]
        count = math.ceil(len(cells) / np.clip(_LANE_ENTRIES // dimension**2, 1, _MOST_LANES))
        share = math.ceil(len(cells) / count)
        lanes = max(_FEWEST_LANES, 1 << (share - 1).bit_length())
        batches += [CellBatch(tuple(cells[i : i + share]), dimension, lanes) for i in range(0, len(cells), share)]
    return batches + [CellBatch((index,)) for index in alone]


def together(batches: Sequence[CellBatch], most: int) -> list[list[int]]:
    """The places of batches that are integrated at once, each by a device of its own: at most so many, of one shape."""
    groups: list[list[int]] = []
    for place, batch in enumerate(batches):
        like = batches[groups[-1][0]] if groups else None
        same = like is not None and (like.dimension, like.lanes) == (batch.dimension, batch.lanes)
        if same and batch.dimension is not None and len(groups[-1]) < most:
            groups[-1].append(place)
        else:
            groups.append([place])
    return groups


def run(batches: Sequence[CellBatch], cells: Sequence[ProblemSpec], mesh: Mesh | None) -> list[MapRecord]:
    """Integrate batches of one shape, of cells whose problems are given: everything found, one row for each cell.

    Every device of a mesh takes a batch, by the program of a device alone, so that the bytes are the same; or all share
    the samples of a cell that has any.
    """
    members = [[cells[index] for index in batch.cells] for batch in batches]
    if batches[0].dimension is None:
        return [_run_alone(members[0][0], mesh)]
    devices = [None] * len(batches) if mesh is None else mesh.devices.flat
    # All are begun before the first is waited for.
    begun = [
        _start_batch(batch, specs, device) for batch, specs, device in zip(batches, members, devices, strict=False)
    ]
    finished = [record(*jax.tree.map(np.asarray, one)) for one in begun]
    return [
        {name: values[: len(specs)] for name, values in found.items()}
        for specs, found in zip(members, finished, strict=True)
    ]


def _start_batch(
    batch: CellBatch, specs: Sequence[ProblemSpec], device: Any
) -> tuple[Summary, TracedPromises, Scales, Array]:
    """What is recorded of a batch, while its device may still be at work."""
    assert batch.dimension is not None, "these cells have one"
    lanes = [*specs, *[specs[-1]] * (batch.lanes - len(specs))]
    flows, promises = _prepared(lanes, batch.dimension)
    ends = _ends(lanes)
    summary, _, scales = integrate(*jax.device_put((flows, ends), device))
    return summary, promises, scales, ends.rtol


def _without_numbers(table: InitTable) -> InitTable:
    """What starts have in common that one program makes."""
    common = {name: like for name, like in {"scale": 1.0, "seed": 0}.items() if getattr(table, name) is not None}
    return msgspec.structs.replace(table, **common)


def _rounded_up(d: int) -> int:
    """The least of 4, 6, 8, 12, 16, 24, ... that is at least d: few programs serve all dimensions."""
    power = 1 << (max(d, 4) - 1).bit_length()
    return 3 * power // 4 if power > 4 and d <= 3 * power // 4 else power


def _slowest_rate(problem: Problem) -> float:
    """About the rate at which a flow ends, rounded so that it orders the cells on every machine alike; 0 for a model
    whose cells are in no batch.
    """
    if not isinstance(problem.start, LinearAttention):
        return 0.0
    arrowhead = _arrowhead(problem.loss, problem.task.dimension)
    return round(float(jnp.log10(jnp.min(arrowhead.curvature) * scales_of(arrowhead).weights ** 2)), 3)


def _arrowhead(loss: Any, d: int) -> AbstractArrowhead:
    """The arrowhead of a loss, which is the same for all weights that have one."""
    arrowhead = loss.arrowhead(initialization.zeros(d))
    assert arrowhead is not None
    return arrowhead


@functools.lru_cache(maxsize=256)
def _task(table: TaskTable) -> _Task:
    loss = ProblemSpec(table, init=InitTable(kind="zeros")).build().loss
    return jax.tree.map(np.asarray, _Task(loss, _arrowhead(loss, table.size)))


def _ends(specs: Sequence[ProblemSpec]) -> Ends:
    rows = []
    for flow in (spec.flow for spec in specs):
        stop = (0.0, 0.0) if flow.stop is None else (flow.stop.excess, flow.stop.grad_norm)
        rows.append((flow.t1 or math.inf, flow.times[-1] if flow.times else 0.0, *stop, flow.rtol))
    return Ends(*jnp.asarray(np.asarray(rows).T))


def _prepared(specs: Sequence[ProblemSpec], dimension: int) -> tuple[Flows, TracedPromises]:
    """The flows of cells in lanes of one dimension, and what is promised of them."""
    lanes = len(specs)
    groups: dict[tuple[InitTable, int, Any], list[int]] = {}
    for lane, spec in enumerate(specs):
        kind = jax.tree.structure(_task(spec.task))
        groups.setdefault((_without_numbers(spec.init), spec.task.size, kind), []).append(lane)
    # A padded weight is zero and stays so; its curvature need only be positive on the diagonal.
    curvature, drive = np.tile(np.eye(dimension), (lanes, 1, 1)), np.zeros((lanes, dimension))
    U, u = np.zeros((lanes, dimension, dimension)), np.zeros(lanes)
    rows: list[Any] = [None] * lanes
    for (table, d, _), members in groups.items():
        chosen = [specs[lane] for lane in members + members[-1:] * (lanes - len(members))]
        tasks = jax.tree.map(lambda *leaves: np.stack(leaves), *[_task(spec.task) for spec in chosen])
        scales = np.asarray([1.0 if spec.init.scale is None else spec.init.scale for spec in chosen])
        seeds = np.asarray([spec.init.seed or 0 for spec in chosen])
        found = jax.tree.map(np.asarray, _starts(table, d, tasks, scales, seeds))
        for place, lane in enumerate(members):
            (own_U, own_u), rows[lane] = jax.tree.map(lambda leaf, place=place: leaf[place], found)
            U[lane, :d, :d], u[lane] = own_U, own_u
            curvature[lane, :d, :d] = tasks.arrowhead.curvature[place]
            drive[lane, :d] = tasks.arrowhead.drive[place]
    promises = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
    return Flows(*(jnp.asarray(array) for array in (curvature, drive, U, u))), promises


@functools.partial(jax.jit, static_argnums=(0, 1))
def _starts(table: InitTable, d: int, tasks: _Task, scales: Float[Array, " n"], seeds: Int[Array, " n"]):
    """States in the eigenbasis, and what is promised of them."""

    def one(task, scale, seed):
        start = LINEAR_ATTENTION.start_with(table, d, scale, seed)
        return task.arrowhead.state(start), traced_promises(task.loss, start)

    return jax.vmap(one)(tasks, scales, seeds)


def _run_alone(spec: ProblemSpec, mesh: Mesh | None) -> MapRecord:
    """A cell without arrowhead, by `gradient_flow`."""
    problem = spec.build(mesh=mesh)
    scales = _scales(problem)
    run = _to_its_end(problem, scales)
    summary = _summary(padded(run), scales.excess)._replace(
        status=jnp.asarray(STATUSES.index(run.status)),
        steps=jnp.asarray(run.certificates.steps),
        rejected_steps=jnp.asarray(run.certificates.rejected_steps),
    )
    if bool(norm_sq(eqx.filter_jit(problem.loss.gradient)(_weights_zero(problem)))):
        # The weights zero are no saddle to come near to.
        summary = summary._replace(closest=Least(jnp.asarray(jnp.inf), jnp.zeros(())))
    promises = _promises_alone(problem.loss, problem.start)
    one = jax.tree.map(lambda leaf: np.asarray(leaf)[None], (summary, promises, scales))
    return record(*one, rtol=np.asarray([spec.flow.rtol]))


def _scales(problem: Problem) -> Scales:
    """The natural scales of any loss; without arrowhead its gradient has none."""
    if isinstance(problem.start, LinearAttention):
        return scales_of(_arrowhead(problem.loss, problem.task.dimension))
    excess = eqx.filter_jit(problem.loss.excess)(_weights_zero(problem))
    return Scales(excess, jnp.sqrt(norm_sq(problem.minimizer)), jnp.asarray(jnp.inf))


def _weights_zero(problem: Problem) -> PyTree:
    return jax.tree.map(jnp.zeros_like, problem.start)


def _to_its_end(problem: Problem, scales: Scales) -> Trajectory:
    """The trajectory, with the stops of `Ends`."""
    stop = problem.spec.flow.stop
    if stop is None:
        return problem.run()
    loss, start = problem.loss, problem.start
    slope = jnp.sqrt(norm_sq(loss.gradient(start)))
    excess = stop.excess * min(1.0, float(scales.excess / loss.excess(start)))
    nearer = StopTable(excess, stop.grad_norm * min(1.0, float(scales.gradient / slope)))
    flow = msgspec.structs.replace(problem.spec.flow, stop=nearer)
    return dataclasses.replace(problem, spec=msgspec.structs.replace(problem.spec, flow=flow)).run()


@eqx.filter_jit
def _promises_alone(loss: PyTree, start: PyTree) -> TracedPromises:
    return traced_promises(loss, start)


@eqx.filter_jit
def _summary(trajectory: Trajectory, saddle: Scalar) -> Summary:
    """The same of a trajectory at its output times, but for how the solver fared."""
    t, excess, slopes = trajectory.t, trajectory.excess, trajectory.grad_norm_sq
    models = trajectory.models
    u = sign = jnp.full_like(t, jnp.nan)
    if isinstance(models, LinearAttention):
        u, U = models.u_minus1, jnp.sqrt(jnp.sum(models.U11**2, axis=(1, 2)))
        sign = u / U
    norms = jax.vmap(norm_sq)(models)

    def least(values: Array) -> Least:
        index = jnp.nanargmin(jnp.where(jnp.isfinite(values), values, jnp.inf))
        return Least(values[index], t[index])

    return Summary(
        status=jnp.asarray(0),
        t=t[-1],
        excess=excess[-1],
        grad_norm_sq=slopes[-1],
        norm_sq=norms[-1],
        excess_start=excess[0],
        norm_sq_start=norms[0],
        largest_grad_norm_sq=jnp.max(slopes),
        dissipated=trajectory.dissipated[-1],
        escape_time=crossing(t, excess, slopes, ESCAPED * saddle),
        convergence_time=crossing(t, excess, slopes, CONVERGED * excess[0]),
        pl=least(jnp.where(excess > 0, slopes / excess, jnp.inf)),
        rate=least(jnp.where(t > 0, decayed(trajectory) / t, jnp.inf)),
        u=least(u),
        sign=least(sign),
        closest=least(norms),
        energy_defect=jnp.max(jnp.abs(excess[0] - excess - trajectory.dissipated)),
        steps=jnp.asarray(0),
        rejected_steps=jnp.asarray(0),
    )
