"""The integration of a flow in chunks, by one solver or by an explicit and an implicit solver in turn.

A chunk holds the recorded states at the ends of its steps and at requested times between them. A flow with both
solvers uses the solver that advances further in time for each evaluation of the field.
"""

import dataclasses
import functools
import itertools
import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from flowsim.flow.recording import Chunk, Role, truncate
from flowsim.flow.solvers.clock import origin_moves
from flowsim.flow.solvers.dense.kernel import STEPS_PER_DECADE
from flowsim.flow.solvers.dense.radau import DenseRadau
from flowsim.flow.solvers.integration import (
    ALWAYS_WHOLE,
    DENSE_LIMIT,
    MATRIX_FREE_FIELDS,
    NEVER,
    Asked,
    Ending,
    Method,
    between,
    integrate,
    more_directions,
)
from flowsim.flow.solvers.lockstep import FIRST_STEP
from flowsim.flow.solvers.step_size import ANEW
from flowsim.flow.systems import AbstractSystem, Record, norm_sq, pace
from flowsim.flow.trajectory import SAME, Status

_AT_ONCE, _MANY_AT_ONCE = 32, 1024  # requested times that one program computes
_NOT_RECORDED = -1
_FIELDS_A_STEP = 25  # evaluations of the field in an implicit step, without those for a Hessian
_FEW, _FEW_OF_A_WEIGHT = 2e5, 50.0  # operations: a field takes at least as long as these, also for each weight
_WORTH = 4.0  # an implicit method is tried if the explicit one needs this many times its work
_ENTRIES = 2**20  # numbers in the states of a chunk
_PADDING = 2**17  # weights, up to which records are padded to one shape
_NOTICED = 1e-9  # of the dissipated energy: a step that adds less adds rounding
_NEAR = 1 / 16  # of a step: a requested time this close to its end may be replaced by it
_MOVED = 0.01  # of the norm of the weights: how far they move between two kept steps of an explicit flow


@dataclasses.dataclass(frozen=True)
class Course:
    """The settings with which one solver integrates a flow in chunks.

    **Fields:**

    - system: the flow in its coordinates.
    - start: the state at time 0.
    - solver: the name of the solver, as in `Method`.
    - asked: the tolerances and limits of its steps.
    - requested: the requested times from the start of the flow, increasing. The last requested time ends the run.
    - first_step: the length of the first step.
    - points_per_decade: the least number of recorded steps in a decade of time, 0 to record requested times only.
    - steps: the largest number of steps in a chunk.
    - keeps_steps: whether more steps than ``points_per_decade`` are recorded, as `_roles` says.
    """

    system: AbstractSystem
    start: PyTree
    solver: str
    asked: Asked
    requested: np.ndarray
    first_step: float
    points_per_decade: int
    steps: int
    keeps_steps: bool

    @np.errstate(invalid="ignore", over="ignore")  # a flow may become infinite
    def advance(self, before: Chunk, ending: Ending) -> Chunk:
        """Integrate the next chunk of the flow. If the solver fails, the chunk keeps the states reached before.

        If steps become too short relative to the time because the flow is fast, the chunk ends, and the next one
        counts time from there.

        **Arguments:** before: the last chunk; ending: the conditions under which the chunk may end early.
        """
        if before.anew:
            origin, t0, wanted = float(before.t[-1]), 0.0, 0.0
        else:
            origin, t0, wanted = float(before.origins[-1]), float(before.since[-1]), before.wanted
        last = float(self.requested[-1]) - origin
        y0 = (jax.tree.map(lambda leaf: leaf[-1], before.record.state), before.dissipated[-1])
        times = (t0, last, min(before.next_step or self.first_step, last - t0))
        begin, plan = jax.device_put(y0), self._plan(before)
        its_ending = ending._replace(earliest=ending.earliest - origin)
        done = integrate(self.system, begin, times, plan.asked, its_ending, plan.method, self.steps)
        kept, reached = plan.method.directions or before.directions, slice(int(done.accepted))
        since, y = np.asarray(done.t)[reached], _rows((done.states, done.dissipated), reached)
        # The remaining time may be shorter than the shortest step.
        ends = np.append(t0, since)
        arrived = ends[-1] >= last
        stuck = done.stuck and not arrived
        timescale = self._faster(_rows(_after(y0, y), -1), float(ends[-1]), plan) if stuck else 0.0
        if timescale and not since.size:
            again = dataclasses.replace(before, anew=True, timescale=timescale, next_step=FIRST_STEP * timescale)
            return self.advance(again, ending)
        roles = self._roles(t0, since, y, y0, wanted)
        if (done.ended or timescale) and self.points_per_decade:
            roles[-1] = Role.REGULAR
        steps = _Points(ends, origin + ends, _after(y0, y), np.append(_NOT_RECORDED, roles))
        lengths = np.diff(ends)
        means = np.diff(steps.y[1]) / lengths
        further, found = self._between(origin, steps, plan)
        points = jax.tree.map(lambda *parts: np.concatenate(parts), steps, further)
        order = np.flatnonzero(points.roles > _NOT_RECORDED)
        points = _rows(points, order[np.argsort(points.since[order], kind="stable")])
        record = self._records(points.y[0])
        at_steps = np.where(points.roles == Role.REGULAR, record.grad_norm_sq, 0.0)
        # The mean of |grad|^2 over a step also counts peaks between two recorded rows.
        over_steps = np.append(0.0, np.maximum.accumulate(means))[np.searchsorted(since, points.since, side="right")]
        chunk = Chunk(
            points.t,
            record,
            points.y[1],
            since=points.since,
            origins=np.full(points.t.size, origin),
            roles=points.roles,
            largest=np.maximum(np.maximum.accumulate(at_steps), over_steps),
            steps=np.asarray([since.size, int(done.rejected)]),
            fields=int(done.fields),
            next_step=FIRST_STEP * timescale or float(np.max(lengths[-2:], initial=0.0)),
            wanted=max([wanted, *points.since[points.roles > Role.TO_GO_ON][-1:]]),
            timescale=timescale or before.timescale,
            anew=timescale > 0,
            directions=more_directions(self._weights, kept) if done.too_few else kept,
            failure=None,
        )
        known = chunk.dissipated, chunk.largest, record.grad_norm_sq, record.loss
        finite = np.all(np.isfinite(known), axis=0)
        if not finite.all():
            return dataclasses.replace(truncate(chunk, int(np.argmin(finite))), failure=Status.NONFINITE)
        if (done.finished or chunk.anew or arrived) and found:
            return chunk
        finite_field = _field_is_finite_near(self.system, jax.device_put(_rows(steps.y[0], -1)))
        return dataclasses.replace(chunk, failure=Status.NEWTON if finite_field else Status.NONFINITE)

    def directions(self, before: Chunk) -> int:
        """The number of eigenvectors of the Hessian that an implicit method would keep in the next chunk."""
        return before.directions or more_directions(self._weights, 0)

    def is_promising(self, before: Chunk, pace: float) -> bool:
        """Whether an implicit method, at its longest steps, would need less than a quarter of the evaluations of
        the field that the explicit method needs, while time grows by a factor e.

        **Arguments:** before: the last chunk; pace: the time that the explicit method advances for each evaluation.
        """
        fields = before.reached / pace / _WORTH * math.log(10) / STEPS_PER_DECADE  # that a step may take
        directions = self.directions(before)
        if directions > DENSE_LIMIT:
            return bool(fields > MATRIX_FREE_FIELDS)
        columns, _ = DenseRadau.hessian(self._weights, directions)
        # The algebra of a Hessian counts too, but to know what for takes longer than some flows.
        if fields <= _FIELDS_A_STEP + columns / 2:
            return False
        return bool(fields > _FIELDS_A_STEP + float(self._plan(before).asked.renewal) / 2)

    @property
    def _weights(self) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(self.start))

    @functools.cached_property
    def _operations(self) -> float:
        """The approximate number of operations of one evaluation of the field, including the overhead of a call."""
        counts = _field.lower(self.system, self.start).lowered.cost_analysis() or {}
        return float(counts.get("flops", 0.0)) + _FEW + _FEW_OF_A_WEIGHT * self._weights

    def _faster(self, y: PyTree, since: float, plan: "_Plan") -> float:
        """The time |g|/|H g| in which the gradient changes at ``y``, if the flow is so fast that steps became too
        short. Zero if the gradient changes slowly: then the flow is at a kink, where no step is short enough.
        """
        timescale = float(_pace(self.system, jax.device_put(y[0]))[1])
        return timescale if timescale < ANEW * max(since, float(plan.asked.timescale)) else 0.0

    def _plan(self, before: Chunk) -> "_Plan":
        """The method for the chunk after ``before``, and its settings."""
        asked = self.asked._replace(timescale=jnp.array(before.timescale)) if before.timescale else self.asked
        if self.solver != "implicit":
            return _Plan(Method(self.solver), asked)
        directions = self.directions(before)
        if directions > DENSE_LIMIT:
            return _Plan(Method(self.solver, directions), asked)
        columns, operations = DenseRadau.hessian(self._weights, directions)
        # For few weights the columns dominate, and counting operations takes longer than some flows.
        renewal = columns if self._weights <= ALWAYS_WHOLE else columns + round(operations / self._operations)
        return _Plan(Method(self.solver, directions), asked._replace(renewal=jnp.array(renewal)))

    def _between(self, origin: float, steps: "_Points", plan: "_Plan") -> tuple["_Points", bool]:
        """The points of the flow at the requested times inside steps, and whether all could be computed.

        If a requested time equals the end of a step up to rounding, the result has no point for it. Instead that
        end becomes an output in ``steps``.
        """
        t, asked = steps.since, self.requested - origin
        # Steps may be shorter than the rounding of the time.
        near = np.minimum(SAME * t, _NEAR * np.append(np.inf, np.diff(t)))
        near[:-1] = np.minimum(near[:-1], near[1:])
        within = (asked > t[0]) & (asked <= t[-1] + near[-1])
        times, asked = self.requested[within], asked[within]
        end = np.searchsorted(t + near, asked)
        same = np.abs(t[end] - asked) <= near[end]
        t[end[same]], steps.t[end[same]] = asked[same], times[same]
        steps.roles[end[same]] = np.maximum(steps.roles[end[same]], Role.WANTED)
        times, asked, end = times[~same], asked[~same], end[~same]
        found, parts = True, [_rows(steps.y, slice(0))]
        at_once = _AT_ONCE if asked.size < _MANY_AT_ONCE else _MANY_AT_ONCE
        for place in range(0, asked.size, at_once):
            rows = np.arange(place, min(place + at_once, asked.size))
            # Padded to the one shape that is compiled.
            rows = np.append(rows, np.full(at_once - rows.size, rows[-1]))
            spans = np.stack([t[end - 1], asked, t[end]], axis=1)[rows]
            both = (_rows(steps.y, end[rows] - 1), _rows(steps.y, end[rows]))
            there, good = between(self.system, jax.device_put(both), jax.device_put(spans), plan.asked, plan.method)
            count = min(at_once, asked.size - place)
            there = jax.tree.map(np.array, _rows(there, slice(count)))
            for row in np.flatnonzero(~np.asarray(good)[:count]):
                found = self._in_several_steps(there, int(row), _rows(both[0], row), spans[row, :2], plan) and found
            parts.append(there)
        y = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
        return _Points(asked, times, y, np.full(asked.size, int(Role.WANTED))), found

    def _in_several_steps(self, there: PyTree, row: int, begin: PyTree, times: np.ndarray, plan: "_Plan") -> bool:
        """Integrate from times[0] to times[1] in several steps, after one step has failed, and write the result to
        a row of ``there``. Return whether this succeeded.
        """
        t0, t = (float(time) for time in times)
        y = jax.device_put(begin)
        done = integrate(self.system, y, (t0, t, (t - t0) / 2), plan.asked, NEVER, plan.method, self.steps)
        last = int(done.accepted) - 1
        if last < 0 or np.asarray(done.t)[last] != t:
            return False
        for leaf, new in zip(jax.tree.leaves(there), jax.tree.leaves((done.states, done.dissipated)), strict=True):
            leaf[row] = np.asarray(new)[last]
        return True

    def _records(self, states: PyTree) -> Record:
        """The records of states with time on the first axis, padded to one of a few shapes to compile few programs."""
        count = jax.tree.leaves(states)[0].shape[0]
        rows = max(count, min(self.steps, _PADDING // self._weights))
        spare = 2 ** (rows - 1).bit_length() - count
        pad = lambda leaf: jax.device_put(np.concatenate([leaf, np.zeros((spare, *leaf.shape[1:]))]))
        return _rows(_record_some(self.system, jax.tree.map(pad, states), np.asarray(count)), slice(count))

    def _roles(self, begin: float, t: np.ndarray, y: PyTree, y0: PyTree, wanted: float) -> np.ndarray:
        """The `Role` of the end of each step, or -1 if it is not recorded. The last end starts the next chunk.

        If ``keeps_steps`` holds and the solver is not explicit, all ends are outputs. Otherwise outputs are the
        ends that lie 1/points_per_decade decades after the last output, the ends of steps with an extremum of
        |grad|^2, and, if ``keeps_steps`` holds, the ends at which the weights have moved enough since the last
        output.
        """
        chosen = np.full(t.size, _NOT_RECORDED)
        chosen[-1:] = Role.TO_GO_ON
        if not (self.points_per_decade and t.size):
            return chosen
        if self.keeps_steps and self.solver != "explicit":
            chosen[:] = Role.REGULAR
            return chosen
        ratio = 10 ** (1 / self.points_per_decade)
        flat = np.concatenate([leaf.reshape(t.size, -1) for leaf in jax.tree.leaves(y[0])], axis=1)
        here = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(y0[0])])
        turns = _turns(np.append(y0[1], y[1]), np.append(begin, t))
        far = _MOVED * np.linalg.norm(here)
        for row in range(t.size):
            if turns[row] or t[row] >= ratio * wanted or (self.keeps_steps and np.linalg.norm(flat[row] - here) > far):
                chosen[row], here, wanted = Role.REGULAR, flat[row], t[row]
                far = _MOVED * np.linalg.norm(here)
        return chosen


def _turns(dissipated: np.ndarray, t: np.ndarray) -> np.ndarray:
    """For each step, whether the mean of |grad|^2 over it is larger than over both neighbouring steps, or smaller
    than over both. Steps whose dissipated energy is near rounding do not count.
    """
    gained = np.diff(dissipated)
    change = np.diff(gained / np.diff(t))
    turns = np.zeros(gained.size, dtype=bool)
    turns[1:-1] = change[:-1] * change[1:] < 0
    return turns & (gained > _NOTICED * dissipated[1:])


def steps_in_turns(weights: int) -> dict[str, int]:
    """The number of steps in a chunk of each solver, for a flow that alternates between solvers. Implicit chunks
    are short, since each of their steps may need a Hessian.
    """
    return {"explicit": min(48 + weights // 2, max(_ENTRIES // weights, 16)), "implicit": 16}


def next_chunk(courses: list[Course], chunks: list[Chunk], ending: Ending) -> Chunk:
    """Integrate the next chunk of a flow, by its only solver or by the solver whose turn it is. If the implicit
    solver fails, the explicit one makes the chunk.

    **Arguments:**

    - courses: the settings of the only solver, or of the explicit and the implicit one.
    - chunks: all chunks so far.
    - ending: the conditions under which the chunk may end early.
    """
    turn = _next_turn(chunks, courses[1]) if len(courses) > 1 else 0
    chunk = courses[turn % 2].advance(chunks[-1], ending)
    if turn % 2 == 1 and chunk.failure is Status.NEWTON:
        turn += 1
        chunk = courses[0].advance(chunks[-1], ending)
    return dataclasses.replace(chunk, turn=turn)


def changes(chunks: list[Chunk]) -> tuple[float, ...]:
    """The times at which the solver changed. A time occurs twice if the new solver failed there at once."""
    pairs = itertools.pairwise(chunks)
    return tuple(float(before.t[-1]) for before, after in pairs for _ in range(after.turn - before.turn))


def _next_turn(chunks: list[Chunk], implicit: Course) -> int:
    """The number of changes of the solver before the next chunk: even if it is explicit, odd if it is implicit.

    A flow begins with the explicit solver. It changes to the implicit one if `Course.is_promising` holds. It keeps
    the implicit solver while each chunk advances at least as far in time, for each evaluation of the field, as the
    last explicit chunk did, or while more eigenvectors of the Hessian may achieve that. Otherwise, as for models
    with kinks, it returns to the explicit solver, at least until this has used as many evaluations as all chunks
    before. So failed attempts at most double the cost. The decision depends on finished chunks only. So a run that
    is resumed from a checkpoint decides in the same way.
    """
    turn = chunks[-1].turn
    length = sum(chunk.turn == turn for chunk in chunks[1:])
    if length == 0:
        return turn
    fields, since = (np.asarray([getattr(chunk, name) for chunk in chunks]) for name in ("fields", "reached"))
    moves = origin_moves(np.asarray([chunk.origins[-1] for chunk in chunks]), since)
    # Time is linear here, since steps limited by stability have a constant length.
    pace = (since[1:] - np.where(moves, 0.0, since[:-1])) / fields[1:]
    explicit = pace[-1] if turn % 2 == 0 else pace[-length - 1]
    promising = implicit.is_promising(chunks[-1], explicit)
    if turn % 2 == 0:
        over = promising and fields[-length:].sum() >= fields[:-length].sum()
    else:
        more = promising and chunks[-1].directions > implicit.directions(chunks[-2])
        over = pace[-1] < explicit and not more
    return turn + int(over)


class _Plan(NamedTuple):
    """The method for a chunk, and its settings."""

    method: Method
    asked: Asked


class _Points(NamedTuple):
    """Points of a flow: times since the origin and from the start, (weights, dissipated energy), and roles."""

    since: np.ndarray
    t: np.ndarray
    y: PyTree
    roles: np.ndarray


def _rows(tree: PyTree, rows: int | np.integer | slice | np.ndarray) -> PyTree:
    return jax.tree.map(lambda leaf: np.asarray(leaf)[rows], tree)


_pace = eqx.filter_jit(pace)


@eqx.filter_jit
def _field(system: AbstractSystem, state: PyTree) -> PyTree:
    return system.field(state)


def _after(first: PyTree, rest: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf, more: np.concatenate([np.asarray(leaf)[None], more]), first, rest)


def _field_is_finite_near(system: AbstractSystem, state: PyTree) -> bool:
    slope = system.field(state)
    ahead = [jax.tree.map(lambda x, dx, h=h: x + h * dx, state, slope) for h in (0.0, 1e-9, 1e-6, 1e-3)]
    return all(bool(jnp.isfinite(norm_sq(system.field(point)))) for point in ahead)


@eqx.filter_jit
def _record_some(system, states, count):
    """The records of the first ``count`` states, followed by zeros for the other states."""
    at = lambda row: jax.tree.map(lambda leaf: leaf[row], states)
    rows = jax.tree.leaves(states)[0].shape[0]
    blank = jax.tree.map(lambda x: jnp.zeros((rows, *x.shape)), jax.eval_shape(system.record, at(0)))

    def one(i, records):
        return jax.tree.map(lambda all, new: all.at[i].set(new), records, system.record(at(i)))

    return jax.lax.fori_loop(0, count, one, blank)
