"""Integration of the gradient flow d(model)/dt = -grad L(model), with certificates of its accuracy."""

import dataclasses
import functools
import os
import time
from collections.abc import Iterable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, PyTree

from flowsim._core import checks
from flowsim._core import hosts as hosts
from flowsim._core.compiler import forget_programs
from flowsim._core.progress import progress_bar
from flowsim._core.types import Scalar
from flowsim.flow.course import Course, changes, next_chunk, steps_in_turns
from flowsim.flow.recording import Chunk, ChunkStore, check_model, chunk_of, join, records, trajectory, truncate
from flowsim.flow.schedule import HORIZON_DECADES, RESTING, StopSearch, percent
from flowsim.flow.schedule import Stop as Stop
from flowsim.flow.solvers.clock import since_last_origin
from flowsim.flow.solvers.dense.kernel import STEPS_PER_DECADE
from flowsim.flow.solvers.dense.saddles import leaves, leaves_in_krylov
from flowsim.flow.solvers.integration import DENSE_LIMIT, Asked, solve_reduced
from flowsim.flow.solvers.kinks import rows_before_kink
from flowsim.flow.solvers.lockstep import FIRST_STEP
from flowsim.flow.solvers.step_size import own_sizes
from flowsim.flow.systems import (
    AbstractSystem,
    ArrowheadSystem,
    LossSystem,
    Record,
    ReducedSystem,
    is_rounding,
    pace,
    reduced_where_large,
    system_of,
)
from flowsim.flow.trajectory import Settings, Status, Trajectory
from flowsim.losses import AbstractPopulationLoss
from flowsim.losses.sampled.monte_carlo import MonteCarloLoss, prepared

_HEADWAY = 0.1  # of the time, that a run has to cover within this number of steps
_MAX_STEPS = {"arrowhead": 20_000, "implicit": 20_000, "explicit": 2_000_000, "in-turns": 2_000_000}
_SNAPSHOT_BYTES = 2**28
_CHUNK_ENTRIES = {"arrowhead": 2**17, "implicit": 2**15, "explicit": 2**17}
_CHUNK_STEPS = {"arrowhead": (16, 256), "implicit": (8, 256), "explicit": (16, 256)}
_WEIGHTS_WITH_STEPS = 2**13  # of a flow all of whose steps are kept
SOLVERS = ("auto", "implicit", "explicit")
_EPS = float(np.finfo(float).eps)
_REST = 10.0  # rtol, the relative gradient of an explicit flow that is at rest


@checks.refuse_leaks("loss")
def gradient_flow(
    loss: AbstractPopulationLoss,
    model: PyTree,
    *,
    times: ArrayLike | Iterable[float] = (),
    t1: float | None = None,
    rtol: float = 1e-9,
    atol: float | None = None,
    solver: str = "auto",
    stop: Stop | None = None,
    points_per_decade: int | None = None,
    steps_per_decade: int | None = None,
    budget_seconds: float | None = None,
    checkpoint: str | os.PathLike | None = None,
    progress: bool = False,
) -> Trajectory:
    """Integrate the gradient flow of a population loss from a model.

    The flow is d theta/dt = -grad L(theta). The dissipated energy int |grad L|^2 is integrated with it.

    **Arguments:**

    - loss: the population loss.
    - model: the start, an Equinox module whose float64 arrays flow.
    - times: output times in addition to the ends of steps, positive and increasing. They change neither the steps
      nor the end of the flow.
    - t1: the time of the end. By default the flow ends at a stop, but not before the last of ``times``.
    - rtol: the relative error of a step, for each weight. It is relative to the current size of the weight or, if
      larger, to its scale at the start: the largest value in its array, or its own value if that is far smaller. In
      directions in which the flow leaves a saddle only the current size counts. The rounding error of the field is
      allowed in addition.
    - atol: an absolute error of a step that is allowed in addition, in the units of the weights, default 0.
    - solver: "implicit" (Radau IIA of order 9), "explicit" (Tsit5, or a stabilized method for long steps) or
      "auto". "auto" chooses a structured Newton method if the Hessian is an arrowhead, and "implicit" for an exact
      loss with at most 256 weights. Otherwise it alternates between "explicit" and "implicit", and uses the solver
      that advances further in time for each evaluation of the field.
    - stop: relative thresholds that end the flow. For a `MonteCarloLoss` only the threshold for the gradient norm
      is used. This threshold is raised to 10 rtol if necessary, unless the solver is "implicit".
    - points_per_decade: the least number of steps in a decade of time that are recorded as output times. Default
      12, or fewer if the weights would take more than 256 MiB. With 0 only ``times`` and t1 are recorded, and
      without t1 the flow ends at the last of ``times``.
    - steps_per_decade: the least number of steps in a decade of time, default points_per_decade.
    - budget_seconds: a limit on the wall-clock time, checked after every chunk of steps.
    - checkpoint: a folder for finished chunks. The same call resumes from it, with bitwise equal results.
    - progress: whether to show a progress bar.

    **Returns:** a `Trajectory`. Its ``status`` says how the flow ended, and whether the solver failed.

    **Raises:** `ValueError` on bad arguments.
    """
    forget_programs()
    stop = Stop() if stop is None else stop
    if isinstance(loss, MonteCarloLoss):
        # The weights that suit the samples best have less loss on these than any others, the best for all included.
        stop = dataclasses.replace(stop, excess=0.0)
        if solver != "implicit" and stop.grad_norm > 0:
            # The steps of an explicit solver are limited by stability, and its errors keep the gradient at a few rtol.
            # With alternating solvers the flow ends at the same gradient, whichever solver is in use.
            stop = dataclasses.replace(stop, grad_norm=max(stop.grad_norm, min(_REST * rtol, 0.5)))
    requested = _check_arguments(model, times, t1, rtol, solver, points_per_decade, steps_per_decade, budget_seconds)
    model = jax.tree.map(_typed, model)
    system, method = system_of(prepared(loss, model), model, solver)
    system = reduced_where_large(system, model)
    record, sizes, *scalars = _prepare(system, model)
    state = record.state
    speed, timescale = (float(value) for value in scalars)
    first = _at_rest(record, np.zeros(1))
    atol = 0.0 if atol is None else float(checks.positive("atol", atol))
    settings = Settings(method, rtol, atol, with_steps=points_per_decade != 0)

    if not np.isfinite(speed):
        return trajectory(system, first, Status.NONFINITE, settings)
    if speed == 0:
        outputs = np.unique(np.concatenate([[0.0], requested, [] if t1 is None else [t1]]))
        status = Status.STATIONARY if system.rests(state) else Status.LOST
        return trajectory(system, _at_rest(record, outputs), status, settings)

    entries = system.entries(state)
    if points_per_decade is None:
        points_per_decade = int(np.clip(_SNAPSHOT_BYTES / (8 * 12 * entries), 1, STEPS_PER_DECADE))
    first_step = FIRST_STEP * timescale
    stops = t1 is None and points_per_decade > 0
    horizon = first_step * 10.0**HORIZON_DECADES if stops else 0.0
    last = t1 if t1 is not None else max([horizon, *requested[-1:]])
    least_steps = points_per_decade if steps_per_decade is None else steps_per_decade
    growth = 10 ** (1 / least_steps) - 1 if least_steps else 1.0
    if method == "in-turns":
        chunk_steps = steps_in_turns(entries)
    else:
        chunk_steps = {method: int(np.clip(_CHUNK_ENTRIES[method] / _weights(state), *_CHUNK_STEPS[method]))}
    number = lambda value: jax.device_put(np.asarray(value))
    asked = Asked(number(float(rtol)), number(atol), sizes, *map(number, (growth, timescale, 0)))
    courses = [
        Course(
            system,
            state,
            name,
            asked,
            np.union1d(requested, [last]),
            first_step,
            points_per_decade,
            steps=count,
            keeps_steps=points_per_decade > 0 and entries <= _WEIGHTS_WITH_STEPS,
        )
        for name, count in chunk_steps.items()
    ]
    mesh = loss.mesh if isinstance(loss, MonteCarloLoss) else None
    asked_for = (state, requested, t1, points_per_decade, least_steps, dataclasses.asdict(settings))
    store = ChunkStore(checkpoint, (_identity(system), *asked_for), mesh)
    earliest = requested[-1] if requested.size else 0.0
    is_sampled = isinstance(loss, MonteCarloLoss)
    rests, leaves_it = functools.partial(_rests, system), functools.partial(_leaves, system, is_sampled, state)
    search = StopSearch(stop if stops else None, first, earliest, rests, leaves_it)

    begin = time.monotonic()
    chunks: list[Chunk] = [first]
    status, steps, mark = None, 0, 0.0
    with progress_bar("gradient flow", 100, unit="%", shown=progress) as bar:
        while status is None:
            index = len(chunks) - 1
            chunk = store.load(index, first.record)
            fresh = chunk is None
            if chunk is None:
                chunk = next_chunk(courses, chunks, search.ending())
                store.save(index, chunk)
            chunks.append(chunk)
            steps += int(np.sum(chunk.steps))
            if chunk.t.size and chunk.t[-1] > (1 + _HEADWAY) * mark:
                steps, mark = 0, chunk.t[-1]
            # A flow that has met a stop is finished even if the solver failed later.
            length, status = search.first(chunk)
            chunks[-1] = truncate(chunk, length)
            if status is None:
                status = chunk.failure or (Status.STEPS if steps >= _MAX_STEPS[method] else None)
            if status is None and chunk.t[-1] >= last:
                status = Status.HORIZON if stops else Status.TIME
            # Chunks from the disk cost nothing, so that every call computes at least one.
            if status is None and fresh and budget_seconds is not None:
                spent = hosts.by_first(mesh, lambda: time.monotonic() - begin)
                status = Status.BUDGET if spent > budget_seconds else None
            # It reads all chunks.
            if progress and status is None:
                bar.update(max(0, percent(chunks, stop, t1) - bar.n))
    run = join(chunks)
    if status in (Status.NEWTON, Status.STEPS):
        t = since_last_origin(run.origins, run.since)
        before = rows_before_kink(system, t, lambda row: jax.tree.map(lambda leaf: leaf[row], run.record.state))
        if before is not None:
            run, status = truncate(run, before), Status.KINK
    return trajectory(system, run, status, dataclasses.replace(settings, changes=changes(chunks)))


def _check_arguments(
    model: PyTree,
    times: ArrayLike | Iterable[float],
    t1: float | None,
    rtol: float,
    solver: str,
    points_per_decade: int | None,
    steps_per_decade: int | None,
    budget_seconds: float | None,
) -> np.ndarray:
    """Refuse invalid arguments of `gradient_flow`. Return the requested times as an array."""
    check_model(model)
    requested = checks.increasing_times("times", times)
    if t1 is not None:
        t1 = checks.time("t1", float(checks.positive("t1", t1)))
        if requested.size and requested[-1] > t1:
            checks.refuse("times", f"no later than t1 = {t1:g}", f"the last is {requested[-1]:g}")
    if not 1e-14 <= rtol < 1:
        checks.refuse("rtol", "at least 1e-14 and below 1", f"it is {rtol}")
    if solver not in SOLVERS:
        checks.refuse("solver", f"one of {', '.join(SOLVERS)}", f'it is "{solver}"{checks.nearest(solver, SOLVERS)}')
    for name, count in (("points_per_decade", points_per_decade), ("steps_per_decade", steps_per_decade)):
        if count is not None and count < 0:
            checks.refuse(name, "at least 0", f"it is {count}")
    if points_per_decade == 0 and not requested.size and t1 is None:
        checks.refuse("points_per_decade", "positive where neither times nor t1 is given", "it is 0")
    if budget_seconds is not None:
        checks.positive("budget_seconds", budget_seconds)
    return requested


def _typed(leaf: PyTree) -> PyTree:
    """Give a weakly typed array, which JAX makes of a Python number, a definite type. Other leaves are unchanged.

    Later states of a flow have definite types. A weak type at the start would compile all programs twice.
    """
    return jax.device_put(np.asarray(leaf)) if checks.is_concrete(leaf) and getattr(leaf, "weak_type", False) else leaf


def _identity(system: AbstractSystem) -> AbstractSystem:
    """The system that identifies a flow in checkpoints. It leaves out devices and blocks of samples, which change
    results by rounding only.
    """
    if isinstance(system, LossSystem) and isinstance(system.loss, MonteCarloLoss):
        return LossSystem(system.loss.undrawn(), system.fixed)
    return system


def start_alone(loss: AbstractPopulationLoss, model: PyTree) -> Trajectory:
    """The trajectory of a flow with the single output time t = 0, for statements about the start. Nothing is
    integrated.
    """
    system, method = system_of(prepared(loss, model), model, "auto")
    record, *_ = _prepare(system, model)
    return trajectory(system, _at_rest(record, np.zeros(1)), Status.TIME, Settings(method, 0.0, 0.0))


def reduced_flow(
    loss: AbstractPopulationLoss, model: PyTree, times: ArrayLike | Iterable[float], rtol: float = 1e-12
) -> Trajectory:
    """Integrate the flow of a loss with an arrowhead by its exact reduction to d + 2 equations, to check
    `gradient_flow`.

    Let U, u and a be as in `AbstractArrowhead`. Off the diagonal, U_ij(t) = U_ij(0) exp(-a_ij s(t)), where
    s = int u^2 dt. So only the diagonal of U, u and s are integrated. The solver is explicit (Dopri8), so that both the
    equations and the solver differ from those of `gradient_flow`.

    **Arguments:**

    - loss, model: as for `gradient_flow`.
    - times: the output times after 0, positive and increasing.
    - rtol: the relative error of a step.

    **Returns:** a `Trajectory` at 0 and ``times``.

    **Raises:** `ValueError` if the flow has no arrowhead, or on bad times; `RuntimeError` if the integration fails.
    """
    arrowhead = loss.arrowhead(model)
    if arrowhead is None:
        checks.refuse("model", "one whose flow has an arrowhead (u12 = u21 = 0)", "its flow has none")
    outputs = np.append(0.0, checks.increasing_times("times", times))
    system = ArrowheadSystem(arrowhead, loss.minimum)
    U0, u0 = system.encode(model)
    atol = rtol * float(jnp.maximum(jnp.abs(u0), jnp.max(jnp.abs(U0))))
    (shaft, u, clock, dissipated), steps = solve_reduced(arrowhead, (U0, u0), jnp.asarray(outputs), rtol, atol)
    off = U0 * (1 - jnp.eye(shaft.shape[1]))
    U = jax.vmap(lambda s, d: off * jnp.exp(-arrowhead.curvature * s) + jnp.diag(d))(clock, shaft)
    run = chunk_of(outputs, records(system, (U, u)), np.asarray(dissipated), np.asarray(steps))
    return trajectory(system, run, Status.TIME, Settings("reduced", rtol, atol))


@eqx.filter_jit
def _prepare(system: AbstractSystem, model: PyTree) -> tuple[Record, PyTree, Scalar, Scalar]:
    """Return what a solver needs at the start of a flow from ``model``.

    **Returns:** the record of the start; the size of each weight, to which its error is relative; |grad L|; and the
    timescale of `pace`.
    """
    state = system.encode(model)
    speed, timescale = pace(system, state)
    return system.record(state), own_sizes(state, speed * timescale), speed, timescale


_is_rounding = eqx.filter_jit(is_rounding)


def _rests(system: AbstractSystem, state: PyTree, largest: float) -> bool:
    """Whether the gradient consists of rounding, or is below the rounding of ``largest``, the largest |grad L| so
    far.
    """
    if bool(_is_rounding(system, state)):
        return True
    is_known = not isinstance(system, ReducedSystem) and _weights(state) <= DENSE_LIMIT
    return is_known and float(_speed(system, state)) <= RESTING * _EPS * largest


def _leaves(system: AbstractSystem, sampled: bool, start: PyTree, state: PyTree, still: bool) -> bool:
    """Whether a flow with a small gradient leaves a state, as at a saddle. False for sampled losses and reduced
    flows, which are not tested.

    **Arguments:** start: the state at t = 0; still: whether the gradient consists of rounding.
    """
    if sampled or isinstance(system, ReducedSystem):
        return False
    if _weights(state) > DENSE_LIMIT:
        return bool(leaves_in_krylov(system, state, start, jnp.asarray(still)))
    return bool(leaves(system, state, start, jnp.asarray(still)))


@eqx.filter_jit
def _speed(system: AbstractSystem, state: PyTree) -> Scalar:
    return system.speed(state)


def _weights(state: PyTree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(state))


def _at_rest(record: Record, t: np.ndarray) -> Chunk:
    still = jax.tree.map(lambda leaf: np.repeat(np.asarray(leaf)[None], t.size, axis=0), record)
    return chunk_of(t, still, np.zeros(t.size), np.zeros(2, dtype=int))
