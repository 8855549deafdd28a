"""Integrate cells of a sweep with any loss: flows of one structure in lockstep, all others one by one."""

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jaxtyping import Array, Bool, PyTree

from flowsim._core.types import Scalar
from flowsim.claims.evidence import padded
from flowsim.claims.rates import decayed
from flowsim.experiments.sweep.judged import Asked, Judged, chosen, record_of_claims
from flowsim.experiments.sweep.records import AT_MINIMUM, MapRecord, record
from flowsim.flow.recording import uncertified
from flowsim.flow.solvers.dense.kernel import MOST_WEIGHTS, DenseKernel, can_go_in_lockstep
from flowsim.flow.solvers.lockstep import follow
from flowsim.flow.solvers.rows import trajectory_of
from flowsim.flow.solvers.summary import (
    CONVERGED,
    ESCAPED,
    STATUSES,
    UNDECIDED,
    Ends,
    Least,
    Scales,
    Summarizing,
    Summary,
    crossing,
    pl_ratio,
    scales_of,
)
from flowsim.flow.solvers.threads import blas_in_one_thread, cores
from flowsim.flow.systems import loss_system, norm_sq
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import AbstractPopulationLoss, MinimumKind
from flowsim.problem import AbstractSpec, Problem
from flowsim.problem.base import StopTable
from flowsim.problem.own.problem import still_holds

Group = TypeVar("Group")
Result = TypeVar("Result")

_CELLS, _GPU_CELLS = 64, 2048  # at most, in a batch
_LANES = 8  # on a CPU; with more, flows wait longer for the slowest, and their Hessians leave the cache
_FEWEST_LANES = 4
_FLAT = 1e-10  # of the largest curvature


def suits_lockstep(problem: Problem) -> bool:
    """Whether the flow of a problem can be integrated in lockstep with others of its structure.

    It can if the loss is exact, the model has few enough weights, the solver is not explicit, and ``atol`` is not
    given. Flows for the arrowhead solver are excluded.
    """
    flow, loss, start = problem.spec.flow, problem.loss, problem.start
    arrowhead = loss.arrowhead(start) is not None and flow.solver == "auto"
    return can_go_in_lockstep(loss, start) and not (arrowhead or flow.solver == "explicit" or flow.atol)


def run(specs: Sequence[AbstractSpec], ends: Ends, mesh: Mesh | None, asked: Asked) -> MapRecord:
    """Integrate cells. A flow that lockstep does not finish is integrated alone, as by ``flowsim run``.

    **Arguments:**

    - specs: the problems of the cells.
    - ends: the conditions that end each flow, with the cells on the first axis.
    - mesh: devices that share samples.
    - asked: what is recorded.

    **Returns:** the columns of the map, with one row for each cell.
    """
    problems = [spec.build(mesh=mesh) for spec in specs]
    judged = chosen(asked.claims, problems, asked.curves, asked.portrait)
    found: list[MapRecord | None] = [None] * len(problems)
    groups = [group for members in _of_one_program(problems) for group in _groups(members)]

    def of_group(group: tuple[list[int], int]) -> list[MapRecord | None]:
        places, lanes = group
        return _together([problems[place] for place in places], _at(ends, np.asarray(places)), lanes, judged)

    for (places, _), records in zip(groups, at_once(of_group, groups), strict=True):
        for place, one in zip(places, records, strict=True):
            found[place] = one
    rows = []
    for spec, problem, row in zip(specs, problems, found, strict=True):
        if row is None:
            row = alone(problem if still_holds(problem) else spec.build(mesh=mesh), judged)
        rows.append(row)
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


def _groups(members: list[int]) -> list[tuple[list[int], int]]:
    """Split problems of one program into groups that are integrated in lockstep.

    **Arguments:** members: the indices of the problems.

    **Returns:** the indices in each group, and the number of lanes of its program. There are no groups if there are
    too few problems to be worth a compilation.
    """
    if len(members) < _FEWEST_LANES:
        return []
    lanes = min(most_lanes(), 1 << (len(members) - 1).bit_length())
    return [(members[first : first + lanes], lanes) for first in range(0, len(members), lanes)]


def at_once(function: Callable[[Group], Result], groups: Sequence[Group]) -> list[Result]:
    """The results of a function for groups of flows, computed in one thread for each core."""

    def in_float64(group: Group) -> Result:
        # `jax.enable_x64` is set for each thread separately.
        with jax.enable_x64(True):
            return function(group)

    pool = ThreadPoolExecutor(cores())
    try:
        with blas_in_one_thread():
            return list(pool.map(in_float64, groups))
    finally:
        pool.shutdown(cancel_futures=True)


def _of_one_program(problems: Sequence[Problem]) -> list[list[int]]:
    """Group the indices of problems that one program can integrate: they have the same functions, and arrays of the
    same shapes. Problems that cannot be integrated in lockstep are left out.
    """
    groups: list[tuple[PyTree, list[int]]] = []
    for place, problem in enumerate(problems):
        if not (suits_lockstep(problem) and still_holds(problem)):
            continue
        shapes = jax.tree.map(_shape, (problem.loss, problem.start))
        for shapes_there, members in groups:
            if eqx.tree_equal(shapes, shapes_there) is True:
                members.append(place)
                break
        else:
            groups.append((shapes, [place]))
    return [members for _, members in groups]


def _shape(leaf: PyTree) -> PyTree:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if eqx.is_array(leaf) else leaf


def _at(tree: PyTree, places: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[places], tree)


def most_cells() -> int:
    """The largest number of cells in a batch."""
    return _CELLS if jax.default_backend() == "cpu" else _GPU_CELLS


def most_lanes() -> int:
    """The number of flows that one program integrates at once. A CPU runs several programs, one in each thread."""
    return _LANES if jax.default_backend() == "cpu" else most_cells()


def _together(problems: Sequence[Problem], ends: Ends, lanes: int, judged: Judged) -> list[MapRecord | None]:
    """Integrate problems of one program in lockstep.

    **Arguments:**

    - problems: the problems.
    - ends: the conditions that end each flow.
    - lanes: the number of flows that the program integrates. If there are fewer problems, the last one is repeated.
    - judged: the claims.

    **Returns:** the record of each problem, or None if its flow must be integrated alone.
    """
    padded = [*problems, *[problems[-1]] * (lanes - len(problems))]
    stack = lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0]
    losses, starts = jax.tree.map(stack, *[(problem.loss, problem.start) for problem in padded])
    fill = [(0, lanes - len(problems))]
    ends = jax.tree.map(lambda leaf: jnp.asarray(np.pad(leaf, fill, mode="edge")), ends)
    summary, scales, models, runs, whole, subtracted = integrate(losses, starts, ends)
    found = record(*jax.tree.map(np.asarray, (summary, scales, ends.rtol)))
    found |= record_of_claims(judged, losses, starts, runs, subtracted)
    found |= {name: np.asarray(values) for name, values in problems[0].observed(models).items()}
    known = [code != UNDECIDED and STATUSES[code].finished for code in np.asarray(summary.status)] & np.asarray(whole)
    return [_at(found, slice(lane, lane + 1)) if known[lane] else None for lane in range(len(problems))]


@eqx.filter_jit
def integrate(losses: PyTree, starts: PyTree, ends: Ends) -> tuple[Summary, Scales, PyTree, Trajectory, Array, Array]:
    """Integrate flows in lockstep. All arrays have one flow (lane) for each index of the first axis.

    **Arguments:**

    - losses: the losses.
    - starts: the models at t = 0.
    - ends: the conditions that end each flow.

    **Returns:** the summaries, the natural scales, the models at the end, the trajectories, whether all steps were
    recorded, and the minima that were subtracted from the losses to compute the excess.
    """

    def one(loss: AbstractPopulationLoss, start: PyTree, ends: Ends):
        system = loss_system(loss, start)
        kernel, scales = DenseKernel.of(system, system.encode(start), ends.rtol), natural_scales(loss, start)
        subtracted = _subtracted(loss, start)
        observer = Summarizing(ends, scales, kernel.timescale, subtracted, arrowhead=False)
        summary, view, seen = follow(kernel, observer, observer.last)
        models = eqx.filter_vmap(system.decode)(seen.rows.point)
        run = trajectory_of(seen.rows, models, loss(start) - seen.rows.excess[0])
        if loss.minimum_kind is MinimumKind.UNKNOWN:  # the excess is not, so that the loss does not follow from it
            run = dataclasses.replace(run, loss=eqx.filter_vmap(loss)(models))
        return _from_saddle(summary, loss, start), scales, system.decode(view.point), run, seen.whole, subtracted

    return eqx.filter_vmap(one)(losses, starts, ends)


def natural_scales(loss: AbstractPopulationLoss, start: PyTree) -> Scales:
    """The natural scales of any loss. Without an arrowhead the scale of the gradient is unknown and set to
    infinity.
    """
    # A loss inspects the numbers of a start to find an arrowhead, so that they must not be traced.
    plain = jax.tree.map(lambda leaf: np.zeros(leaf.shape) if eqx.is_inexact_array(leaf) else leaf, start)
    if arrowhead := loss.arrowhead(plain):
        return scales_of(arrowhead)
    zero = _weights_zero(start)
    # Zero weights may not be a valid model, or may be the minimum.
    at_zero = loss.excess(zero)
    at_zero = jnp.where(at_zero > 0, at_zero, loss.excess(start))
    best = loss.least_model()
    return Scales(at_zero, jnp.zeros(()) if best is None else jnp.sqrt(norm_sq(best)), jnp.asarray(jnp.inf))


def _weights_zero(start: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.zeros_like(leaf) if eqx.is_inexact_array(leaf) else leaf, start)


def _from_saddle(summary: Summary, loss: AbstractPopulationLoss, start: PyTree) -> Summary:
    """The summary, in which the closest distance to zero weights is infinite unless zero weights are a saddle."""
    zero = _weights_zero(start)
    at_saddle = norm_sq(eqx.filter(loss.gradient(zero), eqx.is_inexact_array)) == 0
    if loss.minimum_kind is not MinimumKind.UNKNOWN:
        at_saddle &= ~(loss.excess(zero) <= AT_MINIMUM * loss.excess(start))
    elif sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(zero, eqx.is_inexact_array))) <= MOST_WEIGHTS:
        at_saddle &= ~_curves_up(loss, zero)
    closest = jnp.where(at_saddle, summary.closest.value, jnp.inf)
    return summary._replace(closest=Least(closest, jnp.where(at_saddle, summary.closest.t, 0.0)))


def _curves_up(loss: AbstractPopulationLoss, model: PyTree) -> Bool[Array, ""]:
    """Whether the Hessian at a model is positive definite by more than rounding."""
    weights, rest = eqx.partition(model, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(weights)
    slope = lambda flat: ravel_pytree(eqx.filter(loss.gradient(eqx.combine(unravel(flat), rest)), eqx.is_array))[0]
    # One direction after the other, as a sampled loss needs memory for each.
    hessian = jax.lax.map(lambda way: jax.jvp(slope, (flat,), (way,))[1], jnp.eye(flat.size))
    curvatures = jnp.linalg.eigvalsh((hessian + hessian.T) / 2)
    return curvatures[0] > _FLAT * jnp.max(jnp.abs(curvatures))


def alone(problem: Problem, judged: Judged) -> MapRecord:
    """The record of one cell, whose flow is integrated alone."""
    problem = problem.prepared()
    loss, start = problem.loss, problem.start
    scales = eqx.filter_jit(natural_scales)(loss, start)
    run = _to_its_end(problem, scales)
    # The excess of an arrowhead is not a difference.
    subtracted = jnp.zeros(()) if run.settings.solver == "arrowhead" else _subtracted(loss, start)
    seen = padded(run)
    summary = _summary(seen, loss, start, scales.excess, subtracted)._replace(
        status=jnp.asarray(STATUSES.index(run.status)),
        steps=jnp.asarray(run.certificates.steps),
        rejected_steps=jnp.asarray(run.certificates.rejected_steps),
    )
    series = (seen.t, seen.models, seen.loss, seen.excess, seen.grad_norm_sq, seen.dissipated)
    one = jax.tree.map(_lane, (loss, start, uncertified(*series), subtracted))
    lane = jax.tree.map(lambda leaf: np.asarray(leaf)[None], (summary, scales))
    observed = {name: np.asarray(values[-1:]) for name, values in problem.observed(run.models).items()}
    return record(*lane, rtol=np.asarray([problem.spec.flow.rtol])) | record_of_claims(judged, *one) | observed


def _lane(leaf: PyTree) -> PyTree:
    return leaf[None] if eqx.is_array(leaf) else leaf


def _to_its_end(problem: Problem, scales: Scales) -> Trajectory:
    """Integrate a flow with the stopping rules of `Ends`, which are relative to the natural scales if these are
    smaller than the values at the start.
    """
    stop = problem.spec.flow.stop
    if stop is None:
        return problem.run()
    loss, start = problem.loss, problem.start
    slope = jnp.sqrt(norm_sq(loss.gradient(start)))
    # A start at or below the given minimum has no share.
    shares = (scales.excess / loss.excess(start), scales.gradient / slope)
    nearer = [float(share) if 0 < share < 1 else 1.0 for share in shares]
    nearer = StopTable(stop.excess * nearer[0], stop.grad_norm * nearer[1])
    return problem.with_flow(msgspec.structs.replace(problem.spec.flow, stop=nearer)).run()


def _subtracted(loss: AbstractPopulationLoss, start: PyTree) -> Scalar:
    """The minimum that is subtracted from the loss to compute its excess. It is 0 if no minimum is known."""
    subtracted = loss(start) - loss.excess(start)
    return jnp.where(jnp.isfinite(subtracted), subtracted, 0.0)


@eqx.filter_jit
def _summary(
    trajectory: Trajectory, loss: AbstractPopulationLoss, start: PyTree, saddle: Scalar, subtracted: Scalar
) -> Summary:
    """The summary of a trajectory, computed from its output times. The status and the numbers of steps are set by
    the caller.

    **Arguments:**

    - trajectory: the trajectory.
    - loss, start: its loss and its model at t = 0.
    - saddle: the excess at zero weights.
    - subtracted: the minimum that was subtracted from the loss to compute the excess, or 0.
    """
    t, excess, slopes = trajectory.t, trajectory.excess, trajectory.grad_norm_sq
    norms = jax.vmap(norm_sq)(eqx.filter(trajectory.models, eqx.is_inexact_array))

    def least(values: Array) -> Least:
        index = jnp.nanargmin(jnp.where(jnp.isfinite(values), values, jnp.inf))
        return Least(values[index], t[index])

    found = Summary(
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
        pl=least(pl_ratio(excess, slopes, subtracted)),
        rate=least(jnp.where(t > 0, decayed(trajectory) / t, jnp.inf)),
        closest=least(norms),
        energy_defect=jnp.max(jnp.abs(excess[0] - excess - trajectory.dissipated)),
        steps=jnp.asarray(0),
        rejected_steps=jnp.asarray(0),
    )
    return _from_saddle(found, loss, start)
