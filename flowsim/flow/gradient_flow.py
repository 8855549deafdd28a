"""Gradient flow: integrate d(model)/dt = -grad L(model), and say how accurately."""

import dataclasses
import functools
import itertools
import os
import time
from collections.abc import Iterable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, PyTree
from tqdm import tqdm

from flowsim._core import checks
from flowsim._core import hosts as hosts
from flowsim._core.types import Scalar
from flowsim.flow.arguments import check_arguments, check_model
from flowsim.flow.integration import integrate, solve_reduced
from flowsim.flow.recording import Chunk, ChunkStore, Role, chunk_of, join, trajectory, truncate
from flowsim.flow.schedule import Grid, StopSearch, output_times, percent
from flowsim.flow.schedule import Stop as Stop
from flowsim.flow.systems import (
    AbstractSystem,
    ArrowheadSystem,
    Record,
    identity,
    loss_system,
    norm_sq,
    system_of,
)
from flowsim.flow.trajectory import Settings, Status, Trajectory
from flowsim.losses import AbstractPopulationLoss

_FIRST_OUTPUT = 1e-2  # of the start's timescale
_MAX_STEPS = {"arrowhead": 20_000, "implicit": 20_000, "explicit": 2_000_000}  # between two output times
_SNAPSHOT_BYTES = 2**28
_CHUNK_ENTRIES = 2**17
_CHUNK_OUTPUTS = 32
_CHUNK_STEPS = (16, 512)
_WEIGHTS_WITH_STEPS = 2**13  # of a flow whose accepted steps are kept beside its output times
_MOVED = 0.01  # how far the weights move, relative to their norm, between kept steps of an explicit flow
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
    if loss.sampled:
        # The weights that suit the samples best have less loss on these than any others, the best for all included.
        stop = dataclasses.replace(stop, excess=0.0)
        if solver != "implicit" and stop.grad_norm > 0:
            # Where stability limits the steps of an explicit solver, its errors keep the gradient at a few rtol.
            stop = dataclasses.replace(stop, grad_norm=max(stop.grad_norm, min(_REST * rtol, 0.5)))
    requested = check_arguments(model, times, t1, rtol, solver, points_per_decade, budget_seconds)
    system, method = system_of(loss.prepared(model), model, solver)
    record, *scalars = _prepare(system, model)
    state = record.state
    speed, timescale = (float(value) for value in scalars)
    first = _at_rest(record, np.zeros(1))
    largest = max((float(np.max(np.abs(leaf))) for leaf in jax.tree.leaves(state) if leaf.size), default=0.0)
    # A start at zero has no size of its own: its first move gives one.
    atol = rtol * (largest or speed * timescale) if atol is None else float(checks.positive("atol", atol))
    settings = Settings(method, rtol, atol)

    if not np.isfinite(speed):
        return trajectory(system, first, Status.NONFINITE, settings)
    if speed == 0:
        outputs = np.unique(np.concatenate([[0.0], requested, [] if t1 is None else [t1]]))
        return trajectory(system, _at_rest(record, outputs), Status.STATIONARY, settings)

    entries = sum(leaf.size for leaf in jax.tree.leaves(state))
    if points_per_decade is None:
        points_per_decade = int(np.clip(_SNAPSHOT_BYTES / (8 * 12 * entries), 1, 24))
    run = _Run(
        system,
        settings,
        timescale,
        Grid(_FIRST_OUTPUT * timescale, points_per_decade),
        outputs=int(np.clip(_CHUNK_ENTRIES / entries, 1, _CHUNK_OUTPUTS)),
        steps=int(np.clip(_CHUNK_ENTRIES / entries, *_CHUNK_STEPS)),
        keeps_steps=points_per_decade > 0 and entries <= _WEIGHTS_WITH_STEPS,
    )
    outputs = output_times(run.grid.first, points_per_decade, requested, t1)
    mesh = loss.devices()
    asked_for = (state, requested, t1, points_per_decade, dataclasses.asdict(settings))
    store = ChunkStore(checkpoint, (identity(system), *asked_for), mesh)
    stops = t1 is None and points_per_decade > 0
    search = StopSearch(stop, first, requested[-1] if requested.size else 0.0)

    begin = time.monotonic()
    chunks: list[Chunk] = [first]
    waiting: list[float] = []
    status, steps = None, 0
    with tqdm(total=100, desc="gradient flow", unit="%", disable=not progress, delay=2, leave=False) as bar:
        while status is None:
            waiting += itertools.islice(outputs, run.outputs - len(waiting))
            if not waiting:
                status = Status.HORIZON if stops else Status.TIME
                break
            index = len(chunks) - 1
            chunk = store.load(index, first.record)
            fresh = chunk is None
            if chunk is None:
                chunk = run.advance(chunks[-1], waiting)
                store.save(index, chunk)
            chunks.append(chunk)
            ahead = [t for t in waiting if not chunk.t.size or t > chunk.t[-1]]
            steps = int(np.sum(chunk.steps)) + (steps if len(ahead) == len(waiting) else 0)
            waiting = ahead
            # A flow that has met its stop is finished, whatever the solver does after it.
            if stops:
                length, status = search.first(chunk, functools.partial(_rests, system))
                chunks[-1] = truncate(chunk, length)
            if status is None:
                status = chunk.failure or (Status.STEPS if steps >= _MAX_STEPS[method] else None)
            # Chunks from the disk are free: every call gets on by one at least.
            if status is None and fresh and budget_seconds is not None:
                spent = hosts.by_first(mesh, lambda: time.monotonic() - begin)
                status = Status.BUDGET if spent > budget_seconds else None
            if status is None:
                bar.update(max(0, percent(chunks, stop, t1) - bar.n))
    return trajectory(system, join(chunks), status, settings)


def start_alone(loss: AbstractPopulationLoss, model: PyTree) -> Trajectory:
    """The trajectory of a flow at t = 0 alone, for statements that need no more of it; nothing is integrated."""
    system, method = system_of(loss.prepared(model), model, "auto")
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
    eta = checks.positive("step_size", step_size)
    if steps < 1:
        checks.refuse("steps", "at least 1", f"it is {steps}")
    counts = np.unique(np.concatenate([[0], np.round(np.geomspace(1, steps, 200))]).astype(int))
    system = loss_system(loss.prepared(model), model)
    states, dissipated = _descend(system, system.encode(model), eta, jnp.asarray(np.diff(counts)))
    record = _records(system, states)
    finite = np.isfinite(record.loss) & np.isfinite(record.grad_norm_sq) & np.isfinite(dissipated)
    length = counts.size if finite.all() else int(np.argmin(finite))
    run = chunk_of(counts * float(eta), record, np.asarray(dissipated), np.asarray([steps, 0]))
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
        checks.refuse("model", "one from which the flow has an arrowhead (u12 = u21 = 0)", "it is not")
    outputs = np.append(0.0, checks.increasing_times("times", times))
    system = ArrowheadSystem(arrowhead, loss.minimum)
    U0, u0 = system.encode(model)
    atol = rtol * float(jnp.maximum(jnp.abs(u0), jnp.max(jnp.abs(U0))))
    (shaft, u, clock, dissipated), steps = solve_reduced(arrowhead, (U0, u0), jnp.asarray(outputs), rtol, atol)
    off = U0 * (1 - jnp.eye(shaft.shape[1]))
    U = jax.vmap(lambda s, d: off * jnp.exp(-arrowhead.curvature * s) + jnp.diag(d))(clock, shaft)
    run = chunk_of(outputs, _records(system, (U, u)), np.asarray(dissipated), np.asarray(steps))
    return trajectory(system, run, Status.TIME, Settings("reduced", rtol, atol))


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


def _rests(system: AbstractSystem, state: PyTree, largest: float) -> bool:
    """Whether nothing of the field is left but rounding: each entry is below what a change of the weights in their
    last place makes of it, or it shrinks and is below rounding of the largest gradient.
    """
    return bool(_is_rounding(system, state, jnp.asarray(largest)))


@eqx.filter_jit
def _is_rounding(system: AbstractSystem, state: PyTree, largest: Scalar) -> Bool[Array, ""]:
    eps = float(jnp.finfo(jnp.float64).eps)
    field, change = jax.jvp(system.field, (state,), (system.field(state),))
    moved = [system.field(jax.tree.map(lambda x, m=m: x * (1 + m), state)) for m in (4 * eps, -4 * eps)]

    def still(slope, change, *moved):
        noise = jnp.maximum(*[jnp.abs(there - slope) for there in moved])
        shrinks = (slope * change <= 0) & (jnp.abs(slope) <= eps * largest)
        return jnp.all((jnp.abs(slope) <= 8 * noise) | shrinks)

    return jnp.all(jnp.stack(jax.tree.leaves(jax.tree.map(still, field, change, *moved))))


@eqx.filter_jit
def _record_all(system, states):
    return jax.lax.map(system.record, states)


@eqx.filter_jit
def _record_some(system, states, rows, count):
    """The records of the first ``count`` of some rows; what follows them is not computed."""
    at = lambda row: jax.tree.map(lambda leaf: leaf[row], states)
    blank = jax.tree.map(lambda x: jnp.zeros((rows.size, *x.shape)), jax.eval_shape(system.record, at(0)))

    def one(i, records):
        return jax.tree.map(lambda all, new: all.at[i].set(new), records, system.record(at(rows[i])))

    return jax.lax.fori_loop(0, count, one, blank)


def _records(system: AbstractSystem, states: PyTree):
    return jax.tree.map(np.asarray, _record_all(system, states))


def _at_rest(record: Record, t: np.ndarray) -> Chunk:
    """A chunk that stays where it is."""
    still = jax.tree.map(lambda leaf: np.repeat(np.asarray(leaf)[None], t.size, axis=0), record)
    return chunk_of(t, still, np.zeros(t.size), np.zeros(2, dtype=int))


@dataclasses.dataclass(frozen=True)
class _Run:
    """How the chunks of a flow are integrated: at most so many outputs and steps in each."""

    system: AbstractSystem
    settings: Settings
    timescale: float
    grid: Grid
    outputs: int
    steps: int
    keeps_steps: bool

    def advance(self, before: Chunk, asked: list[float]) -> Chunk:
        """Integrate from the end of a chunk towards the asked times; what was reached before a failure is kept."""
        state = jax.tree.map(lambda leaf: jnp.asarray(leaf[-1]), before.record.state)
        y = (state, jnp.asarray(before.dissipated[-1]))
        # Padded to the one shape that is compiled.
        ts = jnp.asarray(asked + asked[-1:] * (self.outputs - len(asked)))
        step, gap = before.next_step or self.grid.first, asked[0] - before.t[-1]
        # A step is cut at an output time that it reaches; one that ends just short of it leaves a step too small.
        step = 2 * gap if np.isclose(step, gap) else step
        numbers = jnp.asarray([before.t[-1], step, self.settings.rtol, self.settings.atol, self.timescale])
        done = integrate(self.system, y, ts, numbers, self.settings.solver, self.steps)
        count = int(done.accepted)
        t, dissipated = np.asarray(done.t)[:count], np.asarray(done.dissipated)[:count]
        states = jax.tree.map(np.asarray, done.states)
        rows = self._kept(t, states, state, asked)
        padded = jnp.asarray(np.concatenate([rows, np.zeros(self.steps - rows.size, dtype=int)]))
        records = _record_some(self.system, done.states, padded, jnp.asarray(rows.size))
        record = jax.tree.map(lambda leaf: np.asarray(leaf)[: rows.size], records)
        lengths = np.diff(t, prepend=before.t[-1])
        # The mean of |grad|^2 over a step: what a picture does not show counts too.
        means = np.maximum.accumulate(np.diff(dissipated, prepend=before.dissipated[-1]) / lengths)[rows]
        chunk = Chunk(
            t[rows],
            record,
            dissipated[rows],
            roles=self._roles(t[rows], asked),
            largest=np.maximum(np.maximum.accumulate(record.grad_norm_sq), means),
            steps=np.asarray([count, done.rejected]),
            next_step=float(np.max(lengths[-2:], initial=0.0)),
            failure=None,
        )
        finite = np.isfinite(chunk.dissipated) & np.isfinite(record.grad_norm_sq) & np.isfinite(record.loss)
        if not finite.all():
            return dataclasses.replace(truncate(chunk, int(np.argmin(finite))), failure=Status.NONFINITE)
        if done.successful or (done.full and count):
            return chunk
        last = jax.tree.map(lambda leaf: jnp.asarray(leaf[count - 1]), states) if count else state
        finite_field = _field_is_finite_near(self.system, last)
        return dataclasses.replace(chunk, failure=Status.NEWTON if finite_field else Status.NONFINITE)

    def _kept(self, t: np.ndarray, states: PyTree, start: PyTree, asked: list[float]) -> np.ndarray:
        """Which accepted steps are recorded: those that end at an output time, the last one to go on from, and where
        steps are kept all of an implicit method; of an explicit one, whose steps stability limits, those that move.
        """
        chosen = np.isin(t, asked)
        chosen[-1:] = True
        if self.keeps_steps and self.settings.solver != "explicit":
            chosen[:] = True
        elif self.keeps_steps:
            flat = np.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(states)], axis=1)
            last = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(start)])
            for row in range(t.size):
                if chosen[row] or np.linalg.norm(flat[row] - last) > _MOVED * np.linalg.norm(last):
                    chosen[row], last = True, flat[row]
        return np.flatnonzero(chosen)

    def _roles(self, t: np.ndarray, asked: list[float]) -> np.ndarray:
        wanted = np.where(np.isin(t, asked) | self.keeps_steps, Role.WANTED, Role.TO_GO_ON)
        return np.where(self.grid.holds(t), Role.REGULAR, wanted)


def _field_is_finite_near(system, state) -> bool:
    """Whether the field is finite at a state and a little ahead of it."""
    slope = system.field(state)
    ahead = [jax.tree.map(lambda x, dx, h=h: x + h * dx, state, slope) for h in (0.0, 1e-9, 1e-6, 1e-3)]
    return all(bool(jnp.isfinite(norm_sq(system.field(point)))) for point in ahead)
