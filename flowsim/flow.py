"""Gradient flow: integrate d(model)/dt = -grad L(model), and say how accurately."""

import dataclasses
import itertools
import os
import time
from collections.abc import Iterable

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import lineax
import numpy as np
import optimistix
from jaxtyping import Array, ArrayLike, Float, PyTree
from tqdm import tqdm

from flowsim import _checks, _hosts
from flowsim._arguments import check_arguments, check_model
from flowsim._newton import ORDER, STAGES, radau_step
from flowsim._recording import Chunk, ChunkStore, join, trajectory, truncate
from flowsim._schedule import Stop as Stop
from flowsim._schedule import first_stop, output_times, percent
from flowsim._systems import (
    AbstractSystem,
    ArrowheadSystem,
    Record,
    identity,
    loss_system,
    mesh_of,
    norm_sq,
    prepared,
    system_of,
)
from flowsim.losses import AbstractPopulationLoss, MonteCarloLoss
from flowsim.trajectory import Settings, Status, Trajectory

Scalar = Float[Array, ""]

_FIRST_OUTPUT = 1e-2  # of the start's timescale
_MAX_STEPS = {"arrowhead": 20_000, "implicit": 20_000, "explicit": 2_000_000}  # a chunk
_DENSE_LIMIT = 512  # weights, above which the Newton matrix is not formed
_SNAPSHOT_BYTES = 2**28
_CHUNK_ENTRIES = 2**17
_CHUNK_OUTPUTS = 32
_REST = 10.0  # rtol, the relative gradient of an explicit flow that is at rest


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
    budget_seconds: float | None = None,
    checkpoint: str | os.PathLike | None = None,
    progress: bool = False,
) -> Trajectory:
    """Integrate the gradient flow of a population loss from a model.

    d theta/dt = -grad L(theta), together with the dissipated energy int |grad L|^2.

    **Arguments:** loss: the population loss; model: the start, an Equinox module whose float64 arrays flow; times:
    extra output times, positive and increasing; t1: where to end, default at a stop, though not before the last of
    ``times``; rtol: relative error of a step; atol: absolute error of a step in the units of the weights, default
    rtol times the start's largest weight, so that a start near a saddle leaves it at the right time; solver: "auto"
    takes the structured Newton where the loss has an arrowhead, "explicit" (Tsit5) where it is a `MonteCarloLoss`, and
    "implicit" (Kvaerno5 with Newton) elsewhere; stop: relative thresholds, for a `MonteCarloLoss` of the gradient alone
    and not below ten rtol with the explicit solver; points_per_decade: logarithmic output times,
    default 24 or as many as keep the weights under 256 MiB, 0 for ``times`` alone; budget_seconds: wall-clock limit,
    looked at after every chunk; checkpoint: a folder that keeps finished chunks, from which the same call goes on
    bit for bit; progress: show a bar.

    **Returns:** a `Trajectory`; what went wrong in the solve, if anything, is in its ``status``.

    **Raises:** `ValueError` on bad arguments.
    """
    stop = Stop() if stop is None else stop
    if isinstance(loss, MonteCarloLoss):
        # The weights that suit the samples best have less loss on these than any others, the best for all included.
        stop = dataclasses.replace(stop, excess=0.0)
        if solver != "implicit" and stop.grad_norm > 0:
            # Where stability limits the steps of an explicit solver, its errors keep the gradient at a few rtol.
            stop = dataclasses.replace(stop, grad_norm=max(stop.grad_norm, min(_REST * rtol, 0.5)))
    requested = check_arguments(model, times, t1, rtol, solver, points_per_decade, budget_seconds)
    system, method = system_of(prepared(loss, model), model, solver)
    record, *scalars = _prepare(system, model)
    state = record.state
    speed, timescale = (float(value) for value in scalars)
    first = _at_rest(record, np.zeros(1))
    largest = max((float(np.max(np.abs(leaf))) for leaf in jax.tree.leaves(state) if leaf.size), default=0.0)
    # A start at zero has no size of its own: its first move gives one.
    atol = rtol * (largest or speed * timescale) if atol is None else float(_checks.positive("atol", atol))
    settings = Settings(method, rtol, atol)

    if not np.isfinite(speed):
        return trajectory(system, first, Status.NONFINITE, settings)
    if speed == 0:
        outputs = np.unique(np.concatenate([[0.0], requested, [] if t1 is None else [t1]]))
        return trajectory(system, _at_rest(record, outputs), Status.STATIONARY, settings)

    entries = sum(leaf.size for leaf in jax.tree.leaves(state))
    if points_per_decade is None:
        points_per_decade = int(np.clip(_SNAPSHOT_BYTES / (8 * 12 * entries), 1, 24))
    chunk_size = int(np.clip(_CHUNK_ENTRIES / entries, 1, _CHUNK_OUTPUTS))
    outputs = output_times(_FIRST_OUTPUT * timescale, points_per_decade, requested, t1)
    mesh = mesh_of(loss)
    asked_for = (state, requested, t1, points_per_decade, dataclasses.asdict(settings))
    store = ChunkStore(checkpoint, (identity(system), *asked_for), mesh)
    earliest_stop = requested[-1] if requested.size else 0.0

    begin = time.monotonic()
    chunks: list[Chunk] = [first]
    status = None
    with tqdm(total=100, desc="gradient flow", unit="%", disable=not progress, delay=2, leave=False) as bar:
        while status is None:
            asked = np.asarray(list(itertools.islice(outputs, chunk_size)))
            if not asked.size:
                status = Status.HORIZON if t1 is None and points_per_decade else Status.TIME
                break
            index = len(chunks) - 1
            chunk = store.load(index, first.record)
            fresh = chunk is None
            if chunk is None:
                chunk = _advance(system, chunks[-1], asked, chunk_size, settings, timescale)
                store.save(index, chunk)
            chunks.append(chunk)
            status = chunk.failure
            if status is None and t1 is None and points_per_decade:
                length, status = first_stop(chunks, stop, earliest_stop)
                chunks[-1] = truncate(chunk, length)
            # Chunks from the disk are free: every call gets on by one at least.
            if status is None and fresh and budget_seconds is not None:
                spent = _hosts.by_first(mesh, lambda: time.monotonic() - begin)
                status = Status.BUDGET if spent > budget_seconds else None
            if status is None:
                bar.update(max(0, percent(chunks, stop, t1) - bar.n))
    return trajectory(system, join(chunks), status, settings)


def start_alone(loss: AbstractPopulationLoss, model: PyTree) -> Trajectory:
    """The trajectory of a flow at t = 0 alone, for statements that need no more of it; nothing is integrated."""
    system, method = system_of(prepared(loss, model), model, "auto")
    record, *_ = _prepare(system, model)
    return trajectory(system, _at_rest(record, np.zeros(1)), Status.TIME, Settings(method, 0.0, 0.0))


def gradient_descent(loss: AbstractPopulationLoss, model: PyTree, step_size: float, steps: int) -> Trajectory:
    """Explicit gradient descent, theta <- theta - eta grad L(theta), to set beside a flow.

    **Arguments:** loss, model: as for `gradient_flow`; step_size: eta > 0; steps: how many, at least 1.

    **Returns:** a `Trajectory` at t = eta k for at most about 200 k, with ``dissipated`` the sum of eta |grad L|^2, so
    that ``energy_defect`` is what the finite step costs. Its status is nonfinite where it diverges.

    **Raises:** `ValueError` on bad arguments.
    """
    check_model(model)
    eta = _checks.positive("step_size", step_size)
    if steps < 1:
        _checks.fail("steps", "at least 1", f"it is {steps}")
    counts = np.unique(np.concatenate([[0], np.round(np.geomspace(1, steps, 200))]).astype(int))
    system = loss_system(prepared(loss, model), model)
    states, dissipated = _descend(system, system.encode(model), eta, jnp.asarray(np.diff(counts)))
    record = _records(system, states)
    finite = np.isfinite(record.loss) & np.isfinite(record.grad_norm_sq) & np.isfinite(dissipated)
    length = counts.size if finite.all() else int(np.argmin(finite))
    run = Chunk(counts * float(eta), record, np.asarray(dissipated), np.asarray([steps, 0]), None)
    status = Status.DESCENT if finite.all() else Status.NONFINITE
    return trajectory(system, truncate(run, length), status, Settings("gradient-descent", 0.0, 0.0))


def reduced_flow(
    loss: AbstractPopulationLoss, model: PyTree, times: ArrayLike | Iterable[float], rtol: float = 1e-12
) -> Trajectory:
    """The arrowhead flow by its exact reduction to d + 2 equations: a second route to the same trajectory.

    Off the diagonal U_ij(t) = U_ij(0) exp(-a_ij s(t)) with s = int u^2, which leaves the diagonal, u and s. They are
    integrated explicitly (Dopri8), so that neither the equations nor the solver are those of `gradient_flow`.

    **Raises:** `ValueError` where the flow has no arrowhead, or on bad times.
    """
    arrowhead = loss.arrowhead(model)
    if arrowhead is None:
        _checks.fail("model", "one from which the flow has an arrowhead (u12 = u21 = 0)", "it is not")
    outputs = np.append(0.0, _checks.increasing_times("times", times))
    system = ArrowheadSystem(arrowhead, loss.minimum)
    U0, u0 = system.encode(model)
    atol = rtol * float(jnp.maximum(jnp.abs(u0), jnp.max(jnp.abs(U0))))
    solution = _solve_reduced(arrowhead, U0, u0, jnp.asarray(outputs), rtol, atol)
    if solution.result != diffrax.RESULTS.successful or solution.ys is None:
        raise RuntimeError(f"the reduced flow could not be integrated: {solution.result}")
    shaft, u, clock, dissipated = solution.ys
    off = U0 * (1 - jnp.eye(shaft.shape[1]))
    U = jax.vmap(lambda s, d: off * jnp.exp(-arrowhead.curvature * s) + jnp.diag(d))(clock, shaft)
    steps = np.asarray([solution.stats["num_accepted_steps"], solution.stats["num_rejected_steps"]])
    run = Chunk(np.asarray(solution.ts), _records(system, (U, u)), np.asarray(dissipated), steps, None)
    return trajectory(system, run, Status.TIME, Settings("reduced", rtol, atol))


class _StepEnd(diffrax.AbstractLocalInterpolation):
    """A step whose end is returned without rounding; every output time is the end of a step."""

    t0: Scalar
    t1: Scalar
    y0: PyTree
    y1: PyTree

    def evaluate(self, t0, t1=None, left=True):
        weight = (t0 - self.t0) / (self.t1 - self.t0)
        between = lambda a, b: jnp.where(t0 == self.t1, b, a + weight * (b - a))
        return jax.tree.map(between, self.y0, self.y1)


class _ArrowheadRadau(diffrax.AbstractAdaptiveSolver):
    """Radau IIA with the structured Newton of `_newton`, reporting its error in units of the tolerance."""

    rtol: Scalar
    atol: Scalar
    term_structure = diffrax.ODETerm
    interpolation_cls = _StepEnd

    def order(self, terms):
        return ORDER

    def error_order(self, terms):
        return STAGES + 1

    def init(self, terms, t0, t1, y0, args):
        return None

    def func(self, terms, t0, y0, args):
        return terms.vf(t0, y0, args)

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        state, dissipated = y0
        # Newton's error is about the square of its last correction.
        outcome = radau_step(args.arrowhead, state, jnp.asarray(t1 - t0), jnp.sqrt(self.rtol) / 100)
        error = jnp.where(outcome.converged, outcome.error / self.rtol, jnp.inf)
        y1 = (outcome.state, dissipated + outcome.dissipated)
        y_error = ((jnp.zeros_like(state[0]), error), jnp.zeros_like(dissipated))
        return y1, y_error, {"y0": y0, "y1": y1}, None, diffrax.RESULTS.successful


def _field(t, y, system):
    slope = system.field(y[0])
    return slope, norm_sq(slope)


@eqx.filter_jit
def _integrate(system, y, t0, ts, rtol, atol, timescale, method):
    """One chunk: the record and dissipated energy at ``ts``, each the end of a step, and how the solver fared."""
    largest_step = jnp.maximum(ts[0] - t0, 0)
    smallest_step = 1e-13 * jnp.maximum(t0, timescale)
    if method == "arrowhead":
        solver = _ArrowheadRadau(rtol, atol)
        inner = diffrax.PIDController(0.0, 1.0, norm=optimistix.max_norm, dtmin=smallest_step, force_dtmin=False)
        first_step = jnp.minimum(largest_step, jnp.maximum(t0, timescale) / 10)
    else:
        inner = diffrax.PIDController(rtol, atol, norm=optimistix.max_norm, dtmin=smallest_step, force_dtmin=False)
        first_step = None
        if method == "implicit":
            small = sum(leaf.size for leaf in jax.tree.leaves(y)) <= _DENSE_LIMIT
            linear = lineax.AutoLinearSolver(well_posed=True) if small else lineax.GMRES(rtol / 10, atol / 10)
            newton = diffrax.with_stepsize_controller_tols(optimistix.Newton)(linear_solver=linear)
            solver = diffrax.Kvaerno5(root_finder=newton)
        else:
            solver = diffrax.Tsit5()
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(_field),
        solver,
        t0,
        ts[-1],
        first_step,
        y,
        system,
        saveat=diffrax.SaveAt(ts=ts),
        stepsize_controller=diffrax.ClipStepSizeController(inner, step_ts=ts),
        adjoint=diffrax.ForwardMode(),
        max_steps=_MAX_STEPS[method],
        throw=False,
    )
    assert solution.ys is not None
    states, dissipated = solution.ys
    return jax.lax.map(system.record, states), dissipated, solution.result, solution.stats


@eqx.filter_jit
def _solve_reduced(arrowhead, U0, u0, ts, rtol, atol):
    a, b = arrowhead.curvature, arrowhead.drive
    shaft_curvature = jnp.diagonal(a)
    squares = (U0 * (1 - jnp.eye(b.shape[0]))) ** 2

    def field(t, y, args):
        shaft, u, clock, _ = y
        decayed = squares * jnp.exp(-2 * a * clock)
        shaft_slope = -(u**2) * shaft_curvature * shaft + u * b
        slope = jnp.sum(b * shaft) - u * (jnp.sum(shaft_curvature * shaft**2) + jnp.sum(a * decayed))
        grad_norm_sq = jnp.sum(shaft_slope**2) + slope**2 + u**4 * jnp.sum(a**2 * decayed)
        return shaft_slope, slope, u**2, grad_norm_sq

    controller = diffrax.PIDController(rtol, atol, norm=optimistix.max_norm)
    return diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Dopri8(),
        ts[0],
        ts[-1],
        None,
        (jnp.diagonal(U0), u0, jnp.zeros(()), jnp.zeros(())),
        saveat=diffrax.SaveAt(ts=ts),
        stepsize_controller=diffrax.ClipStepSizeController(controller, step_ts=ts),
        adjoint=diffrax.ForwardMode(),
        max_steps=_MAX_STEPS["explicit"],
        throw=False,
    )


@eqx.filter_jit
def _descend(system, state, eta, counts):
    def one(_, carry):
        state, dissipated = carry
        slope = system.field(state)
        return jax.tree.map(lambda x, dx: x + eta * dx, state, slope), dissipated + eta * norm_sq(slope)

    def segment(carry, count):
        carry = jax.lax.fori_loop(0, count, one, carry)
        return carry, carry

    start = (state, jnp.zeros(()))
    _, rest = jax.lax.scan(segment, start, counts)
    return jax.tree.map(lambda first, later: jnp.concatenate([first[None], later]), start, rest)


@eqx.filter_jit
def _prepare(system: AbstractSystem, model: PyTree) -> tuple[Record, Scalar, Scalar]:
    """The record of a start, its |grad L|, and the time in which that changes, |g|/|H g|."""
    state = system.encode(model)
    field = system.field(state)
    _, change = jax.jvp(system.field, (state,), (field,))
    speed, bend = jnp.sqrt(norm_sq(field)), jnp.sqrt(norm_sq(change))
    return system.record(state), speed, jnp.where(bend > 0, speed / bend, 1 / speed)


@eqx.filter_jit
def _record_all(system, states):
    return jax.lax.map(system.record, states)


def _records(system: AbstractSystem, states: PyTree):
    return jax.tree.map(np.asarray, _record_all(system, states))


def _at_rest(record: Record, t: np.ndarray) -> Chunk:
    """A chunk that stays where it is."""
    still = jax.tree.map(lambda leaf: np.repeat(np.asarray(leaf)[None], t.size, axis=0), record)
    return Chunk(t, still, np.zeros(t.size), np.zeros(2, dtype=int), None)


def _advance(system, before: Chunk, asked, chunk_size: int, settings: Settings, timescale: float) -> Chunk:
    """Integrate from the end of a chunk over the asked output times; what was reached before a failure is kept."""
    state = jax.tree.map(lambda leaf: jnp.asarray(leaf[-1]), before.record.state)
    y = (state, jnp.asarray(before.dissipated[-1]))
    # Padded to the one shape that is compiled.
    ts = jnp.asarray(np.concatenate([asked, np.full(chunk_size - asked.size, asked[-1])]))
    t0, rtol, atol, scale = jnp.asarray([before.t[-1], settings.rtol, settings.atol, timescale])
    record, dissipated, result, stats = _integrate(system, y, t0, ts, rtol, atol, scale, settings.solver)
    record, dissipated = jax.tree.map(np.asarray, (record, dissipated))
    good = np.isfinite(dissipated) & np.isfinite(record.grad_norm_sq) & np.isfinite(record.loss)
    good = good[: asked.size]
    reached = asked.size if good.all() else int(np.argmin(good))
    steps = np.asarray([stats["num_accepted_steps"], stats["num_rejected_steps"]])
    failure = None
    if result != diffrax.RESULTS.successful or reached < asked.size:
        if result == diffrax.RESULTS.max_steps_reached:
            failure = Status.STEPS
        elif result != diffrax.RESULTS.successful and _field_is_finite_near(
            system, jax.tree.map(lambda x: x[reached - 1], record.state) if reached else state
        ):
            failure = Status.NEWTON
        else:
            failure = Status.NONFINITE
    return truncate(Chunk(asked, record, dissipated, steps, failure), reached)


def _field_is_finite_near(system, state) -> bool:
    """Whether the field is finite at a state and a little ahead of it."""
    slope = system.field(state)
    ahead = [jax.tree.map(lambda x, dx, h=h: x + h * dx, state, slope) for h in (0.0, 1e-9, 1e-6, 1e-3)]
    return all(bool(jnp.isfinite(norm_sq(system.field(point)))) for point in ahead)
