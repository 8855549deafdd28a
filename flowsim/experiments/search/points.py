"""Points of a claim's spaces, and the order in which they are tried."""

import dataclasses
import heapq
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import optuna

from flowsim._core.checks import refuse
from flowsim._core.documents import plain
from flowsim._core.types import Document, Values
from flowsim.claims import Claim
from flowsim.claims.spaces import Axis, Choice, Each, Real, Space, Whole

_MANY = 10**9  # larger integers are drawn as real numbers and rounded

_SIZES = 4  # values of an axis that changes shapes, in the first round
_MOST_SHAPES = 24  # in a round
_RANK = "init.rank"
_BEST, _LATEST = 64, 64  # points from which the sampler learns; the cost of a draw grows with them


@dataclasses.dataclass(frozen=True)
class Point:
    """A problem of a space.

    **Fields:** space: the index of the space; values: the value of each axis.
    """

    space: int
    values: Values


Known = tuple[Point, float]  # a point and its objective; less is better


def restrict_spaces(claim: Claim, over: Mapping[str, Axis]) -> tuple[Space, ...]:
    """The spaces of a claim that have all axes in ``over``, with these axes replaced by those of ``over``.

    **Raises:** `ProblemError` if there is no such space, or if the claim is about gradient descent.
    """
    if claim.of_descent:
        refuse(f"the claim {claim.id}", "one about the flow, as problems are of flows", "it is about gradient descent")
    if not claim.spaces:
        refuse(f"the claim {claim.id}", "one with a space of problems to search", "it declares none")
    for name in over:
        known = sorted({axis for space in claim.spaces for axis in space.axes})
        if name not in known:
            refuse("--over", f"over an axis of {claim.id} ({', '.join(known)})", f'it is over "{name}"')
    spaces = tuple(space.over(over) for space in claim.spaces if set(over) <= set(space.axes))
    if not spaces:
        refuse("--over", f"over axes that one space of {claim.id} has together", f"it is over {', '.join(over)}")
    return spaces


@dataclasses.dataclass(frozen=True)
class Sampler:
    """Draws points of one space by Optuna's tree-structured Parzen estimator, in batches of points with the same
    shapes.

    Shapes take turns, small ones first, so that a compiled program is used for a whole batch. The draws depend only
    on the seed, the batch and the known points.

    **Arguments:**

    - space: the space.
    - place: the index of the space.
    - seed: the seed.
    """

    space: Space
    place: int
    seed: int

    def draw(self, batch: int, count: int, known: Sequence[Known] = ()) -> list[Point]:
        """The points of a batch.

        **Arguments:**

        - batch: the number of the batch in this space.
        - count: the number of points.
        - known: points of this space with their objectives.
        """
        rng = np.random.default_rng([self.seed, self.place, batch])
        fixed = self._shape(batch, rng)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study()
        study.add_trials([self._trial(*one) for one in known])
        seeds = rng.integers(2**31, size=2)
        # Half of them are drawn uniformly, so that points far from the known ones are tried too.
        samplers = optuna.samplers.RandomSampler(int(seeds[0])), optuna.samplers.TPESampler(seed=int(seeds[1]))
        points = []
        d, free = self.space.dimension(fixed), self._free
        asked = _joined(_distributions(name, axis, d) for name, axis in free.items())
        for number in range(count):
            study.sampler = samplers[number % 2]
            drawn = study.ask(asked).params
            values = {name: _value(name, axis, drawn, d) for name, axis in free.items()}
            points.append(Point(self.place, fixed | values))
        return points

    def _shape(self, batch: int, rng: np.random.Generator) -> Document:
        """The values of the axes that change shapes, for one batch: on a grid in the first round of batches, at
        random later.
        """
        names = self._shaping
        axes = [self.space.axes[name] for name in names]
        grid = [dict(zip(names, values, strict=True)) for values in itertools.product(*map(_few, axes))]
        grid = [shape for shape in grid if shape.get(_RANK, 1) <= self.space.dimension(shape)][:_MOST_SHAPES]
        turn, round_ = batch % len(grid), batch // len(grid)
        if round_ == 0:
            return grid[turn]
        drawn = {name: _drawn(axis, rng) for name, axis in zip(names, axes, strict=True)}
        if _RANK in drawn:
            drawn[_RANK] = min(drawn[_RANK], self.space.dimension(drawn))
        return drawn

    @property
    def _shaping(self) -> list[str]:
        return [name for name in self.space.axes if name in (*self.space.shaping, _RANK)]

    @property
    def _free(self) -> dict[str, Axis]:
        return {name: axis for name, axis in self.space.axes.items() if name not in self._shaping}

    def _trial(self, point: Point, objective: float) -> optuna.trial.FrozenTrial:
        d, free = self.space.dimension(point.values), self._free
        return optuna.trial.create_trial(
            params=_joined(_parts(name, axis, point.values[name]) for name, axis in free.items()),
            distributions=_joined(_distributions(name, axis, d) for name, axis in free.items()),
            value=float(np.clip(objective, -1e300, 1e300)),
        )


def remembered(known: Sequence[Known]) -> list[Known]:
    """The known points with the least objectives and the latest ones, in their order. The sampler learns from these
    alone.
    """
    best = heapq.nsmallest(_BEST, range(len(known)), key=lambda index: known[index][1])
    chosen = {*best, *range(len(known))[-_LATEST:]}
    return [known[index] for index in sorted(chosen)]


def _few(axis: Axis) -> list[Any]:
    """A few values over the whole range of an axis, small ones first. For an axis that is a list: all values."""
    if isinstance(axis, Choice):
        return list(axis.values)
    assert isinstance(axis, Whole), "shapes are whole numbers"
    ends = np.geomspace(max(axis.low, 1), max(axis.high, 1), _SIZES)
    return sorted({axis.low, axis.high, *(round(value) for value in ends)})


def _drawn(axis: Axis, rng: np.random.Generator) -> Any:
    if isinstance(axis, Choice):
        return axis.values[rng.integers(len(axis.values))]
    assert isinstance(axis, Whole), "shapes are whole numbers"
    return int(rng.integers(axis.low, axis.high + 1))


def _joined(parts: Iterable[Values]) -> Document:
    return dict(item for part in parts for item in part.items())


def _distributions(name: str, axis: Axis, d: int) -> dict[str, optuna.distributions.BaseDistribution]:
    """Optuna's distributions of the numbers of an axis, by their names in Optuna. A vector has d numbers."""
    if isinstance(axis, Each):
        return _joined(_distributions(f"{name}[{i}]", axis.of, d) for i in range(d))
    if isinstance(axis, Choice):
        return {name: optuna.distributions.CategoricalDistribution(range(len(axis.values)))}
    if isinstance(axis, Real):
        return {name: optuna.distributions.FloatDistribution(axis.low, axis.high, log=axis.geometric)}
    if axis.high < _MANY:
        return {name: optuna.distributions.IntDistribution(axis.low, axis.high, log=axis.geometric)}
    # Uniform in the logarithm.
    return {name: optuna.distributions.FloatDistribution(math.log10(max(axis.low, 1)), math.log10(axis.high))}


def _parts(name: str, axis: Axis, value: Any) -> Document:
    """The value of an axis as parameters of Optuna."""
    if isinstance(axis, Each):
        return _joined(_parts(f"{name}[{i}]", axis.of, one) for i, one in enumerate(value))
    if isinstance(axis, Choice):
        return {name: plain(axis.values).index(plain(value))}  # the value may come from a file
    return {name: math.log10(max(value, 1)) if isinstance(axis, Whole) and axis.high >= _MANY else value}


def _value(name: str, axis: Axis, parts: Values, d: int) -> Any:
    """The value of an axis from parameters of Optuna; the inverse of `_parts`."""
    if isinstance(axis, Each):
        return [_value(f"{name}[{i}]", axis.of, parts, d) for i in range(d)]
    if isinstance(axis, Choice):
        return axis.values[parts[name]]
    if isinstance(axis, Whole) and axis.high >= _MANY:
        return min(max(round(10 ** parts[name]), axis.low), axis.high)
    return parts[name]
