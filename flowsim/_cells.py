"""The cells of a sweep: which are integrated together, and what is found of each."""

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from flowsim import initialization
from flowsim._batch import CONVERGED, ESCAPED, STATUSES, Ends, Least, Summary, crossing, integrate
from flowsim._systems import norm_sq
from flowsim.analysis.rates import decayed
from flowsim.losses.arrowhead import Arrowhead
from flowsim.problem import InitTable, Problem, ProblemSpec, TaskTable
from flowsim.trajectory import Status, Trajectory

Scalar = Float[Array, ""]

OUTCOMES = ("global-minimum", "saddle", "other-critical-point", "unfinished", "undecided", "failed")
MARGINS = {"lemma-5.4.pl": "margin_pl", "lemma-5.4.rate": "margin_rate", "lemma-a.5": "margin_u_lower_bound",
           "lemma-a.4": "margin_u_positive"}  # fmt: skip
_NUMBERS = (
    "t_end", "excess_start", "excess_saddle", "excess_end", "grad_norm_end", "weights_norm_end", "escape_time",
    "convergence_time", "guaranteed_time", "mu", "u_lower_bound", "sharp_mu_pl", "sharp_mu_rate", "smallest_u",
    *MARGINS.values(), *(f"{name}_time" for name in MARGINS.values()), "smallest_margin", "smallest_margin_time",
    "closest_to_saddle", "energy_defect",
)  # fmt: skip
_WORDS = {"outcome": OUTCOMES, "status": tuple(STATUSES), "smallest_margin_name": ("", *MARGINS)}
DTYPES = (
    {"condition_met": np.dtype(bool), "assumption_met": np.dtype(bool)}
    | {name: np.dtype(f"<U{max(map(len, words))}") for name, words in _WORDS.items()}
    | {name: np.dtype(float) for name in _NUMBERS}
    | {"steps": np.dtype(int), "rejected_steps": np.dtype(int)}
)
Record = dict[str, np.ndarray]

_AT_MINIMUM = 1e-6  # of the excess at the saddle
_AT_REST = 1e-8  # of the largest gradient norm
_AT_SADDLE = 1e-3  # of the weights' norm at the minimum
_LANE_ENTRIES = 2**15
_MOST_LANES = 128


@dataclasses.dataclass(frozen=True)
class Batch:
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


class _Promises(NamedTuple):
    """What zhang2023 assumes and promises of a start: see `_promises`."""

    assumption: initialization.AssumptionValues
    scale: Scalar
    mu: Scalar
    u_lower_bound_sq: Scalar


def _promises(loss: PyTree, start: PyTree) -> _Promises:
    """All that is particular to zhang2023's flows with a fixed covariance."""
    return _Promises(
        initialization.assumption_values(loss.task, start),
        initialization.scale_value(loss.task, start),
        initialization.pl_constant(loss.task, start),
        initialization.u_lower_bound_sq(loss.task, start),
    )


def plan(specs: Sequence[ProblemSpec]) -> list[Batch]:
    """The batches of a sweep: each cell is in one, and a sweep has the same ones on every machine.

    Cells of similar dimension are together, in the order of how long their flows take, as a batch takes as long as its
    slowest cell.

    **Raises:** `ValueError` where the mathematics does not allow a value.
    """
    alone: list[int] = []
    classes: dict[int, list[tuple[float, int]]] = {}
    slowest: dict[TaskTable, float] = {}
    batched: dict[tuple, bool] = {}
    for index, spec in enumerate(specs):
        d = spec.task.size
        kind = (_without_numbers(spec.init), d, spec.flow.solver)
        if kind not in batched or spec.task not in slowest:
            problem = spec.build()
            batched[kind] = spec.flow.solver == "auto" and problem.loss.arrowhead(problem.start) is not None
            slowest[spec.task] = _slowest_rate(problem)
        if batched[kind]:
            classes.setdefault(_rounded_up(d), []).append((slowest[spec.task], index))
        else:
            alone.append(index)
    batches = []
    for dimension, members in sorted(classes.items()):
        cells = [index for _, index in sorted(members)]
        count = math.ceil(len(cells) / np.clip(_LANE_ENTRIES // dimension**2, 1, _MOST_LANES))
        lanes = math.ceil(len(cells) / count)
        batches += [Batch(tuple(cells[i : i + lanes]), dimension, lanes) for i in range(0, len(cells), lanes)]
    return batches + [Batch((index,)) for index in alone]


def run(batch: Batch, specs: Sequence[ProblemSpec]) -> Record:
    """Integrate the cells of a batch, whose problems are given; everything found, a row a cell."""
    if batch.dimension is None:
        return _run_alone(specs[0])
    spare = [specs[-1]] * (batch.lanes - len(specs))
    arrowheads, states, promises = _prepared([*specs, *spare], batch.dimension)
    ends = [_ends(spec) for spec in [*specs, *spare]]
    rtol = np.asarray([end.rtol for end in ends])
    summary = integrate(arrowheads, states, jax.tree.map(lambda *x: np.stack(x), *ends))
    minimum = _norm_at_minimum(arrowheads.drive, arrowheads.curvature)
    record = _record(jax.tree.map(np.asarray, summary), promises, minimum, rtol)
    return {name: values[: len(specs)] for name, values in record.items()}


def _without_numbers(table: InitTable) -> InitTable:
    """What starts have in common that one program makes."""
    common = {name: like for name, like in {"scale": 1.0, "seed": 0}.items() if getattr(table, name) is not None}
    return msgspec.structs.replace(table, **common)


def _rounded_up(d: int) -> int:
    """The least of 1, 2, 3, 4, 6, 8, 12, ... that is at least d: few programs serve all dimensions."""
    power = 1 << (d - 1).bit_length()
    return 3 * power // 4 if d <= 3 * power // 4 and power >= 4 else power


def _slowest_rate(problem: Problem) -> float:
    """About the rate at which a flow ends, rounded so that it orders the cells on every machine alike."""
    arrowhead = _arrowhead(problem.loss, problem.task.dimension)
    squared = np.linalg.norm(np.asarray(arrowhead.drive / jnp.diagonal(arrowhead.curvature)))
    return round(float(np.log10(np.min(np.asarray(arrowhead.curvature)) * squared)), 3)


def _arrowhead(loss: Any, d: int) -> Arrowhead:
    """The arrowhead of a loss, which is the same for all weights that have one."""
    arrowhead = loss.arrowhead(initialization.zeros(d))
    assert arrowhead is not None
    return arrowhead


@functools.lru_cache(maxsize=256)
def _task(table: TaskTable) -> _Task:
    loss = ProblemSpec(table, init=InitTable(kind="zeros")).build().loss
    return jax.tree.map(np.asarray, _Task(loss, _arrowhead(loss, table.size)))


def _ends(spec: ProblemSpec) -> Ends:
    flow = spec.flow
    stop = (flow.stop.excess, flow.stop.grad_norm) if flow.stop is not None else (0.0, 0.0)
    return Ends(*map(np.float64, (flow.t1 or np.inf, flow.times[-1] if flow.times else 0.0, *stop, flow.rtol)))


def _prepared(specs: Sequence[ProblemSpec], dimension: int) -> tuple[Arrowhead, tuple, _Promises]:
    """Arrowheads and starts of cells in lanes of one dimension, and what is promised of them."""
    lanes = len(specs)
    groups: dict[tuple[InitTable, int], list[int]] = {}
    for lane, spec in enumerate(specs):
        groups.setdefault((_without_numbers(spec.init), spec.task.size), []).append(lane)
    # A padded weight is zero and stays so; its curvature need only be positive on the diagonal.
    arrowheads = Arrowhead(
        np.tile(np.eye(dimension), (lanes, 1, 1)),
        np.zeros((lanes, dimension)),
        np.tile(np.eye(dimension), (lanes, 1, 1)),
    )  # fmt: skip
    U, u = np.zeros((lanes, dimension, dimension)), np.zeros(lanes)
    rows: list[Any] = [None] * lanes
    for (table, d), members in groups.items():
        chosen = [specs[lane] for lane in members + members[-1:] * (lanes - len(members))]
        tasks = jax.tree.map(lambda *leaves: np.stack(leaves), *[_task(spec.task) for spec in chosen])
        scales = np.asarray([1.0 if spec.init.scale is None else spec.init.scale for spec in chosen])
        seeds = np.asarray([spec.init.seed or 0 for spec in chosen])
        found = jax.tree.map(np.asarray, _starts(table, d, tasks, scales, seeds))
        for place, lane in enumerate(members):
            (own_U, own_u), rows[lane] = jax.tree.map(lambda leaf, place=place: leaf[place], found)
            U[lane, :d, :d], u[lane] = own_U, own_u
            arrowheads.curvature[lane, :d, :d] = tasks.arrowhead.curvature[place]
            arrowheads.drive[lane, :d] = tasks.arrowhead.drive[place]
    return arrowheads, (U, u), jax.tree.map(lambda *leaves: np.stack(leaves), *rows)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _starts(table: InitTable, d: int, tasks: _Task, scales: Float[Array, " n"], seeds: Int[Array, " n"]):
    """States in the eigenbasis, and what is promised of them."""

    def one(task, scale, seed):
        start = table.start_with(d, scale, seed)
        return task.arrowhead.state(start), _promises(task.loss, start)

    return jax.vmap(one)(tasks, scales, seeds)


def _run_alone(spec: ProblemSpec) -> Record:
    """A cell without arrowhead, by `gradient_flow`."""
    problem = spec.build()
    trajectory = problem.run()
    arrowhead = _arrowhead(problem.loss, problem.task.dimension)
    saddle = problem.loss.excess(initialization.zeros(problem.task.dimension))
    summary = jax.tree.map(lambda leaf: np.asarray(leaf)[None], _summary(trajectory, saddle))
    promises = jax.tree.map(lambda leaf: np.asarray(leaf)[None], _promises_alone(problem.loss, problem.start))
    rtol = np.asarray([spec.flow.rtol])
    return _record(summary, promises, _norm_at_minimum(arrowhead.drive[None], arrowhead.curvature[None]), rtol)


@eqx.filter_jit
def _promises_alone(loss: PyTree, start: PyTree) -> _Promises:
    return _promises(loss, start)


def _norm_at_minimum(drive: Float[Array, "n d"], curvature: Float[Array, "n d d"]) -> np.ndarray:
    """Norm of the weights at the balanced minimum: u U = diag(b_i/a_ii), |U|_F = u."""
    product = np.asarray(drive) / np.diagonal(np.asarray(curvature), axis1=1, axis2=2)
    return np.sqrt(2 * np.linalg.norm(product, axis=1))


def _summary(trajectory: Trajectory, saddle: Scalar) -> Summary:
    """The same of a trajectory at its output times."""
    t, excess, slopes = trajectory.t, trajectory.excess, trajectory.grad_norm_sq
    u, U = trajectory.models.u_minus1, jnp.sqrt(jnp.sum(trajectory.models.U11**2, axis=(1, 2)))
    norms = jax.vmap(norm_sq)(trajectory.models)

    def least(values: Array) -> Least:
        index = jnp.nanargmin(jnp.where(jnp.isfinite(values), values, jnp.inf))
        return Least(values[index], t[index])

    return Summary(
        status=jnp.asarray(STATUSES.index(trajectory.status)),
        t=t[-1],
        excess=excess[-1],
        grad_norm_sq=slopes[-1],
        norm_sq=norms[-1],
        dissipated=trajectory.dissipated[-1],
        excess_start=excess[0],
        excess_saddle=saddle,
        largest_grad_norm_sq=jnp.max(slopes),
        norm_sq_start=norms[0],
        escape_time=crossing(t, excess, slopes, ESCAPED * saddle),
        convergence_time=crossing(t, excess, slopes, CONVERGED * excess[0]),
        pl=least(jnp.where(excess > 0, slopes / excess, jnp.inf)),
        rate=least(jnp.where(t > 0, decayed(trajectory) / t, jnp.inf)),
        u=least(u),
        sign=least(u / U),
        closest=least(norms),
        energy_defect=jnp.max(jnp.abs(excess[0] - excess - trajectory.dissipated)),
        steps=jnp.asarray(trajectory.certificates.steps),
        rejected_steps=jnp.asarray(trajectory.certificates.rejected_steps),
    )


def _record(summary: Any, promises: Any, minimum: np.ndarray, rtol: np.ndarray) -> Record:
    """Everything that a map holds of cells, which lead every array."""
    met = [
        (
            initialization.scale_hypothesis(float(scale)).met,
            all(part.met for part in initialization.AssumptionValues(*map(float, parts)).hypotheses()),
        )
        for scale, *parts in zip(promises.scale, *promises.assumption, strict=True)
    ]
    condition, assumption = np.asarray(met).T
    mu = promises.mu
    bound = np.sqrt(np.where(promises.u_lower_bound_sq > 0, promises.u_lower_bound_sq, np.nan))
    promised = np.where(mu > 0, mu, np.nan)
    margins = {
        "margin_pl": (summary.pl.value / promised - 1, summary.pl.t),
        "margin_rate": (summary.rate.value / promised - 1, summary.rate.t),
        "margin_u_lower_bound": (summary.u.value / bound - 1, summary.u.t),
        "margin_u_positive": (summary.sign.value, summary.sign.t),
    }
    values = np.stack([np.where(np.isfinite(value), value, np.nan) for value, _ in margins.values()])
    times = np.stack([t for _, t in margins.values()])
    # Lemma A.4 bounds by zero, so that its margin is not comparable: it counts where it is none.
    counted = np.isfinite(values) & np.stack([*np.ones((3, mu.size), dtype=bool), values[3] <= 0])
    known = np.any(counted, axis=0)
    smallest = np.argmin(np.where(counted, values, np.inf), axis=0)[None]
    pick = lambda rows: np.where(known, np.take_along_axis(rows, smallest, axis=0)[0], np.nan)
    guaranteed = np.where(condition & assumption & (mu > 0), np.log(1 / CONVERGED) / promised, np.inf)
    start_size = np.sqrt(np.minimum(summary.norm_sq_start, minimum**2))
    closest = np.sqrt(summary.closest.value) / np.where(start_size > 0, start_size, 1.0)
    record = {
        "condition_met": condition,
        "assumption_met": assumption,
        "outcome": _outcome(summary, minimum, closest, rtol),
        "status": np.asarray([STATUSES[code].value for code in summary.status]),
        "smallest_margin_name": np.where(known, np.asarray(tuple(MARGINS))[smallest[0]], ""),
        "t_end": summary.t,
        "excess_start": summary.excess_start,
        "excess_saddle": summary.excess_saddle,
        "excess_end": summary.excess,
        "grad_norm_end": np.sqrt(summary.grad_norm_sq),
        "weights_norm_end": np.sqrt(summary.norm_sq),
        "escape_time": summary.escape_time,
        "convergence_time": summary.convergence_time,
        "guaranteed_time": guaranteed,
        "mu": mu,
        "u_lower_bound": bound,
        "sharp_mu_pl": summary.pl.value,
        "sharp_mu_rate": summary.rate.value,
        "smallest_u": summary.u.value,
        **{name: row for name, row in zip(margins, values, strict=True)},
        **{f"{name}_time": np.where(np.isfinite(row), t, np.nan) for name, row, t in zip(margins, values, times, strict=True)},
        "smallest_margin": pick(values),
        "smallest_margin_time": pick(times),
        "closest_to_saddle": closest,
        "energy_defect": summary.energy_defect / np.maximum(summary.dissipated, np.finfo(float).tiny),
        "steps": summary.steps,
        "rejected_steps": summary.rejected_steps,
    }
    return {name: record[name].astype(dtype) for name, dtype in DTYPES.items()}


def _outcome(summary: Any, minimum: np.ndarray, closest: np.ndarray, rtol: np.ndarray) -> np.ndarray:
    """Where the flow ended: docs/maps.md says each in words."""
    finished = np.asarray([STATUSES[code].finished for code in summary.status])
    stopped = np.asarray([STATUSES[code] in (Status.GRAD_NORM, Status.STATIONARY) for code in summary.status])
    at_rest = stopped | (summary.grad_norm_sq <= _AT_REST**2 * summary.largest_grad_norm_sq)
    at_minimum = summary.excess <= _AT_MINIMUM * summary.excess_saddle
    at_zero = np.sqrt(summary.norm_sq) <= _AT_SADDLE * minimum
    # On the saddle's stable set errors of size rtol grow as fast as the flow falls: they decide once it is this close.
    undecided = closest <= np.sqrt(rtol)
    conditions = [~finished, at_rest & ~at_minimum & at_zero, undecided, at_minimum, at_rest]
    names = ["failed", "saddle", "undecided", "global-minimum", "other-critical-point"]
    return np.select(conditions, names, "unfinished")
