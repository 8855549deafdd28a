"""Points of a claim's spaces, and which are looked at next."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import optuna

from flowsim._core.types import Tables, Values
from flowsim.claims.spaces import Axis, Choice, Each, Real, Space, Whole

_MANY = 10**9  # from which on whole numbers are drawn as real ones and rounded

_SIZES = 4  # values of an axis that changes shapes, in the first round
_MOST_SHAPES = 24  # in a round
_RANK = "init.rank"


@dataclasses.dataclass(frozen=True)
class Point:
    """A problem of a space: its place among a claim's spaces, and the value of each axis."""

    space: int
    values: Values


class Sampler:
    """Which points of one space are looked at next: Optuna's tree-structured Parzen estimator, in batches of one shape.

    Shapes take turns, small ones first, so that a program that was compiled is used for a whole batch. What is drawn
    depends on the seed and on the batches before, and on nothing else.
    """

    def __init__(self, space: Space, place: int, seed: int):
        self.space, self.place, self._seed = space, place, seed
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed))
        self._batches = 0

    def draw(self, count: int) -> "PointBatch":
        """The next points."""
        seed = [self._seed, self.place, self._batches]
        rng = np.random.default_rng(seed)
        fixed = self._shape(rng)
        self._batches += 1
        trials, points = [], []
        # Half of them anywhere, so that what is far from all that was found is not forgotten.
        for sampler, half in (
            (optuna.samplers.RandomSampler, count // 2),
            (optuna.samplers.TPESampler, count - count // 2),
        ):
            self._study.sampler = sampler(seed=int(rng.integers(2**31)))
            for _ in range(half):
                trials.append(self._study.ask())
                points.append(Point(self.place, fixed | self._values(trials[-1], fixed)))
        return PointBatch(points, trials)

    def learn(self, batch: "PointBatch", objectives: Sequence[float]) -> None:
        """Take note of what was found at the points of a batch; less is better."""
        for trial, objective in zip(batch.trials, objectives, strict=True):
            self._study.tell(trial, float(np.clip(objective, -1e300, 1e300)))

    def _shape(self, rng: np.random.Generator) -> dict[str, Any]:
        """The values of the axes that change shapes: a grid in the first round, drawn later."""
        names = [name for name in self.space.axes if name in (*self.space.shaping, _RANK)]
        axes = [self.space.axes[name] for name in names]
        grid = [dict(zip(names, values, strict=True)) for values in itertools.product(*map(_few, axes))]
        grid = [shape for shape in grid if shape.get(_RANK, 1) <= self.space.dimension(shape)][:_MOST_SHAPES]
        turn, round_ = self._batches % len(grid), self._batches // len(grid)
        if round_ == 0:
            return grid[turn]
        drawn = {name: _drawn(axis, rng) for name, axis in zip(names, axes, strict=True)}
        if _RANK in drawn:
            drawn[_RANK] = min(drawn[_RANK], self.space.dimension(drawn))
        return drawn

    def _values(self, trial: optuna.Trial, fixed: Tables) -> dict[str, Any]:
        d = self.space.dimension(fixed)
        free = {name: axis for name, axis in self.space.axes.items() if name not in fixed}
        return {name: _suggested(trial, name, axis, d) for name, axis in free.items()}


@dataclasses.dataclass(frozen=True)
class PointBatch:
    """Points that are looked at together, with what Optuna knows them by."""

    points: list[Point]
    trials: list[optuna.Trial]


def _few(axis: Axis) -> list[Any]:
    """Small values of an axis first, over its whole range."""
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


def _suggested(trial: optuna.Trial, name: str, axis: Axis, d: int) -> Any:
    if isinstance(axis, Each):
        return [_suggested(trial, f"{name}[{i}]", axis.of, d) for i in range(d)]
    if isinstance(axis, Choice):
        return axis.values[trial.suggest_categorical(name, list(range(len(axis.values))))]
    if isinstance(axis, Real):
        return trial.suggest_float(name, axis.low, axis.high, log=axis.geometric)
    if axis.high < _MANY:
        return trial.suggest_int(name, axis.low, axis.high, log=axis.geometric)
    # Every power of ten counts alike.
    exponent = trial.suggest_float(name, math.log10(max(axis.low, 1)), math.log10(axis.high))
    return min(max(round(10**exponent), axis.low), axis.high)
