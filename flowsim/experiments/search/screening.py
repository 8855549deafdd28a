"""Compute the margins of a claim at many points. Points of one shape share a compiled program if JAX can trace
their problems.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jaxtyping import Array, Bool, PyTree

from flowsim._core.types import Scalar, Values
from flowsim.claims.claim import Claim
from flowsim.claims.evidence import padded
from flowsim.claims.evidence.comparing import compared, of_one_flow, refuse_without_sides
from flowsim.claims.hypotheses import Hypothesis
from flowsim.claims.spaces import Each, Real, Space, Whole
from flowsim.experiments.margins import Seen, error_of, room, seen, traced_start
from flowsim.experiments.search.clock import Clock
from flowsim.experiments.search.points import Point
from flowsim.flow.gradient_flow import gradient_flow, start_alone
from flowsim.flow.solvers.dense.kernel import can_go_in_lockstep
from flowsim.flow.solvers.rows import traced_flow
from flowsim.flow.systems import ArrowheadSystem, loss_system
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import AbstractPopulationLoss
from flowsim.losses.arrowhead import Arrowhead
from flowsim.losses.sampled.monte_carlo import prepared
from flowsim.problem import AbstractSpec, Problem, spec_of

LANES = 32
_FEW, _SOME = 8, 16  # points in a batch that are evaluated alone, with and without a flow
FLOW_RTOL = 1e-7
_TRACED = ("context_length", "seed", "rotation_seed")


class Margin(NamedTuple):
    """The margin of a claim at a point.

    **Fields:**

    - margin: the least ratio of the signed slack to the size of the bound. Infinite if the statement says nothing
      about the problem. NaN if the ratio could not be computed, or if a hypothesis is not met and the screen was
      created without ``beyond``.
    - factor: the factor by which a lower bound can be multiplied, or an upper bound divided, so that the statement
      still holds.
    - clear: whether the statement fails by more than the errors.
    - unmet: the hypotheses that are not met.
    - distance: the sum of the distances of the unmet hypotheses from being met (`_distance`).
    """

    margin: float
    factor: float
    clear: bool
    unmet: tuple[str, ...] = ()
    distance: float = 0.0

    @property
    def objective(self) -> float:
        """The number that a search minimizes: the margin, or a large number for a point that cannot be a
        counterexample.
        """
        if self.unmet:
            return 1e12 * (1 + self.distance)
        return self.margin if math.isfinite(self.margin) else 1e9


class Screen:
    """Computes a claim's margins at points of its spaces. They are estimates and not verdicts.

    **Arguments:**

    - claim: the claim.
    - spaces: the spaces of the points.
    - longest: the time limit in seconds for a flow that is integrated alone, or None.
    - beyond: whether to compute the margins also where hypotheses are not met.
    """

    def __init__(self, claim: Claim, spaces: Sequence[Space], longest: float | None = None, *, beyond: bool = False):
        self.claim, self.spaces, self._longest, self._beyond = claim, tuple(spaces), longest, beyond
        self._programs: dict[Hashable, _Program | None] = {}

    def margins(self, points: Sequence[Point]) -> list[Margin]:
        """The margin at each point."""
        return [margin for _, margin in self.look(points)]

    def look(self, points: Sequence[Point], clock: Clock | None = None) -> list[tuple[Point, Margin]]:
        """The points with their margins, in order. If the time runs out, only the points evaluated by then are
        returned, but at least one.
        """
        found: dict[int, Margin] = {}
        groups: dict[Hashable, list[int]] = {}
        for index, point in enumerate(points):
            groups.setdefault(_kind(self.spaces[point.space], point), []).append(index)

        def is_up() -> bool:
            return bool(found) and clock is not None and clock.is_up("looking at problems")

        for members in groups.values():
            if is_up():
                break
            chosen = [points[index] for index in members]
            program = self._program(chosen[0])
            margins = program.margins(chosen) if program else [None] * len(chosen)
            found |= {index: m for index, m in zip(members, margins, strict=True) if m is not None}
            for index in members:
                if index not in found and not is_up():
                    found[index] = self.alone(points[index])
        return [(points[index], found[index]) for index in sorted(found)]

    def lanes(self, point: Point) -> int:
        """How many points with the shapes of this point form a batch. They are fewer if each point is evaluated
        alone.
        """
        if self._program(point):
            return LANES
        return _FEW if self.claim.along_flow else _SOME

    def gradient(self, point: Point) -> tuple[float, dict[str, np.ndarray]] | None:
        """The margin, and for each axis of traced numbers its derivative; None if JAX cannot trace the problem."""
        program = self._program(point)
        return program.gradient(point) if program else None

    def alone(self, point: Point) -> Margin:
        """The margin at one point, from its own problem and flow, at the tolerances of a search."""
        failures = ValueError, ArithmeticError, MemoryError, jax.errors.JaxRuntimeError
        try:
            loss, start, run = built(self.spaces[point.space], point.values, self._longest)
        except failures as error:
            return _nowhere(str(error))
        try:
            if foreign := self.claim.foreign(loss, start):
                return _nowhere(foreign.name)
            unmet = _unmet(self.claim.hypotheses(loss, start))
            if unmet[0] and not self._beyond:
                return Margin(math.nan, math.nan, False, *unmet)
            trajectory = run(True) if self.claim.along_flow else start_alone(loss, start)
            if not trajectory.status.finished:
                return Margin(math.nan, math.nan, False, *unmet)
            comparison = compared(self.claim, loss, padded(trajectory))
        except failures as error:
            refuse_without_sides(self.claim, loss, start)
            return _nowhere(str(error))
        left = room(jax.tree.map(jnp.asarray, comparison), error_of(self.claim))
        return Margin(float(left.margin), float(left.factor), bool(left.clear), *unmet)

    def _program(self, point: Point) -> "_Program | None":
        """The program for all points that differ from this point only in numbers, and not in the shapes of arrays.
        None if the problem, or its flow, cannot be traced.
        """
        space = self.spaces[point.space]
        kind = _kind(space, point)
        if kind not in self._programs:
            program = None
            with contextlib.suppress(ValueError, TypeError, IndexError, AttributeError, NotImplementedError):
                loss, start, _ = built(space, point.values)
                arrowhead = isinstance(loss.arrowhead(start), Arrowhead)
                if not self.claim.along_flow or arrowhead or can_go_in_lockstep(loss, start):
                    foreign = self.claim.foreign(loss, start)
                    program = _Program(self.claim, space, point, foreign, arrowhead, self._beyond)
            # Set last, since threads may read it at the same time.
            self._programs[kind] = program
        return self._programs[kind]


class _Program:
    """A compiled program that computes the margin from the numbers of a problem. The shapes of its arrays and all
    values that are not numbers are fixed.

    **Arguments:**

    - claim: the claim.
    - space: the space of the points.
    - point: a point with the fixed values.
    - foreign: why the claim does not cover these problems, or None.
    - arrowhead: whether the loss has an arrowhead.
    - beyond: as for `Screen`.
    """

    def __init__(
        self,
        claim: Claim,
        space: Space,
        point: Point,
        foreign: Hypothesis | None,
        arrowhead: bool,
        beyond: bool,
    ):
        self._claim, self._space, self._arrowhead, self._beyond = claim, space, arrowhead, beyond
        self._names = tuple(name for name in space.axes if _is_traced(space, name))
        self._fixed = {name: value for name, value in point.values.items() if name not in self._names}
        self._hypotheses: list[str] = []
        self._foreign = foreign
        self._spec = None if space.make else spec_of(space.tables(point.values))
        self._many = jax.jit(jax.vmap(self._one))
        if self._foreign is None:
            self._many(self._stacked([point]))  # raises if it cannot be traced

    def margins(self, points: Sequence[Point]) -> list[Margin | None]:
        """The margin at each point. None if a flow without an arrowhead did not come near the minimum: it may end
        somewhere else, and must be integrated alone.
        """
        if self._foreign is not None:
            return [_nowhere(self._foreign.name)] * len(points)
        found: list[Margin | None] = []
        for first in range(0, len(points), LANES):
            chosen = points[first : first + LANES]
            looked, finished = jax.tree.map(np.asarray, self._many(self._stacked(chosen)))
            found += [self._margin(looked, finished, lane) for lane in range(len(chosen))]
        return found

    def gradient(self, point: Point) -> tuple[float, dict[str, np.ndarray]]:
        """The margin, and its derivatives with respect to the traced numbers of each axis. Seeds have no
        derivative.
        """
        numbers = jax.tree.map(lambda leaf: leaf[0], self._stacked([point]))
        free = {name: numbers[name] for name in self._names if not name.endswith("seed")}
        if not free:
            return math.nan, {}
        margin, slopes = _slopes(self._margin_of, free, numbers)
        return float(margin), jax.tree.map(np.asarray, slopes)

    def _margin(self, looked: Seen, finished: np.ndarray, lane: int) -> Margin | None:
        parts = zip(self._hypotheses, looked.values, looked.bounds, looked.met, strict=True)
        sides = [(name, float(a[lane]), float(b[lane]), bool(met[lane])) for name, a, b, met in parts]
        unmet = _unmet([Hypothesis(n, a, "", b, met) for n, a, b, met in sides])
        if unmet[0] and not self._beyond:
            return Margin(math.nan, math.nan, False, *unmet)
        left = looked.room
        if finished[lane]:
            return Margin(float(left.margin[lane]), float(left.factor[lane]), bool(left.clear[lane]), *unmet)
        return Margin(math.nan, float(left.factor[lane]), False, *unmet) if self._arrowhead else None

    def _stacked(self, points: Sequence[Point]) -> dict[str, Array]:
        """The traced numbers of points by name, with one lane for each point on the first axis. Spare lanes repeat
        the last point.
        """
        lanes = [*points, *[points[-1]] * (LANES - len(points))]
        return {
            name: jnp.asarray([lane.values[name] for lane in lanes], dtype=int if name.endswith("seed") else float)
            for name in self._names
        }

    def _margin_of(self, free: Mapping[str, Array], numbers: Mapping[str, Array]) -> Scalar:
        looked, finished = self._one({**numbers, **free})
        return jnp.where(finished, looked.room.margin, jnp.nan)

    def _one(self, numbers: Mapping[str, Array]) -> tuple[Seen, Bool[Array, ""]]:
        """The margin and the hypotheses of one problem, and whether its flow came near the minimum, which is always
        true for claims about the start.
        """
        loss, start = self._problem(numbers)
        self._hypotheses = [condition.name for condition in self._claim.hypotheses(loss, start)]
        if self._claim.along_flow:
            minimum = loss(start) - loss.excess(start)
            system = ArrowheadSystem(loss.structure, minimum) if self._arrowhead else loss_system(loss, start)
            run, finished = traced_flow(system, start, minimum, FLOW_RTOL)
        else:
            run, finished = traced_start(loss, start), jnp.asarray(True)
        compare = lambda *read: of_one_flow(self._claim, self._claim.compare(*read))
        return seen(dataclasses.replace(self._claim, compare=compare), loss, start, run), finished

    def _problem(self, numbers: Mapping[str, Array]) -> tuple[Any, PyTree]:
        if self._space.make is not None:
            return self._space.make(**self._fixed, **numbers)
        assert self._spec is not None, "a space without a function has a problem"
        problem = with_numbers(self._spec, numbers).build()
        return problem.loss, problem.start


@functools.partial(jax.jit, static_argnums=0)
def _slopes(margin: Callable[..., Scalar], free: PyTree, numbers: PyTree) -> tuple[Scalar, PyTree]:
    # Forward mode, since a flow is a loop of unknown length.
    return margin(free, numbers), jax.jacfwd(margin)(free, numbers)


def built(
    space: Space, values: Values, longest: float | None = None
) -> tuple[AbstractPopulationLoss, PyTree, Callable[[bool], Trajectory]]:
    """Build the problem at a point of a space.

    **Arguments:**

    - space: the space.
    - values: the value of each axis.
    - longest: the time limit in seconds for a rough flow, or None.

    **Returns:** the loss, the start, and a function that integrates the flow. If its argument is True, the
    tolerance is that of a search, else that of a verdict.

    **Raises:** `ValueError` if these values do not give a problem.
    """
    if space.make is not None:
        loss, start = space.make(**values)
        loss = prepared(loss, start)

        def run_made(rough: bool) -> Trajectory:
            if rough:
                return gradient_flow(loss, start, rtol=FLOW_RTOL, budget_seconds=longest)
            return gradient_flow(loss, start)

        return loss, start, run_made
    problem = spec_of(space.tables(values)).build().prepared()

    def run(rough: bool) -> Trajectory:
        return (_roughly(problem, longest) if rough else problem).run()

    return problem.loss, problem.start, run


def _roughly(problem: Problem, longest: float | None) -> Problem:
    flow = problem.spec.flow
    return problem.with_flow(msgspec.structs.replace(flow, rtol=max(flow.rtol, FLOW_RTOL), budget_seconds=longest))


def with_numbers(spec: AbstractSpec, numbers: Values) -> AbstractSpec:
    """Replace numbers in some fields of a problem that was checked. The new numbers are not checked and may be
    traced.
    """

    def replaced(table: Any, path: Sequence[str], value: Any) -> Any:
        inner = replaced(getattr(table, path[0]), path[1:], value) if path[1:] else value
        return msgspec.structs.replace(table, **{path[0]: inner})

    for name, value in numbers.items():
        spec = replaced(spec, name.split("."), value)
    return spec


def _is_traced(space: Space, name: str) -> bool:
    axis, last = space.axes[name], name.rpartition(".")[2]
    if name in space.shaping or name == "init.rank":
        return False
    if isinstance(axis, Whole):
        return last in _TRACED or space.make is not None
    return isinstance(axis, Real | Each)


def _kind(space: Space, point: Point) -> Hashable:
    """The key of the program for a point: its space, and all values that are fixed in the program."""
    return point.space, tuple(
        (name, repr(v)) for name, v in sorted(point.values.items()) if not _is_traced(space, name)
    )


def _nowhere(reason: str) -> Margin:
    return Margin(math.nan, math.nan, False, (reason,), 1e3)


def _unmet(hypotheses: Sequence[Hypothesis]) -> tuple[tuple[str, ...], float]:
    """The names of the hypotheses that are not met, and their total distance from being met."""
    missed = [condition for condition in hypotheses if not condition.met]
    return tuple(condition.name for condition in missed), sum(map(_distance, missed), 0.0)


def _distance(condition: Hypothesis) -> float:
    """How far an unmet hypothesis is from being met: |log(value/bound)| if both sides are positive, otherwise
    |value - bound|/max(|value|, |bound|, 1). At most 100, also if a side is not finite.
    """
    a, b = float(condition.value), float(condition.bound)
    if not (math.isfinite(a) and math.isfinite(b)):
        return 100.0
    if a > 0 and b > 0:
        return min(abs(math.log(a / b)), 100.0)
    return min(abs(a - b) / max(abs(a), abs(b), 1.0), 100.0)
