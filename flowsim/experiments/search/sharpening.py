"""The best constant of a bound over a family of problems, and how it grows."""

import dataclasses
import math
import os
import pathlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from flowsim._core.checks import refuse
from flowsim._core.documents import plain, versions, write_json
from flowsim._core.numbers import value_text
from flowsim._core.progress import progress_bar
from flowsim._core.types import Document, Values
from flowsim.claims import Claim, Relation, Verdict, judge_on
from flowsim.claims.claim import citation
from flowsim.claims.spaces import Axis, Real, Space, Whole
from flowsim.experiments.search.counterexample import evidence_of_point
from flowsim.experiments.search.descent import descend
from flowsim.experiments.search.points import Point, Sampler
from flowsim.experiments.search.refutation import refuse_excluded, restrict_spaces
from flowsim.experiments.search.screening import Margin, Screen
from flowsim.problem import AbstractSpec, spec_of

_VALUES = 6  # of a parameter, at which the best factor is looked for
_FEWEST, _BENT = 3, 0.02  # values of a power law, and the share of their variance that it may miss
_MIDDLE = 3  # dimensions, loops, layers, heads, where these are not the parameter


@dataclasses.dataclass(frozen=True)
class Growth:
    """How the best factor depends on one parameter: the least over all others, at some of its values.

    slope: of its logarithm by that of the parameter, NaN where there are too few values or they are on no line.
    """

    name: str
    values: tuple[float, ...]
    factors: tuple[float, ...]

    @property
    def slope(self) -> float:
        """The power of the parameter that the factor goes with."""
        x, y = np.asarray(self.values, dtype=float), np.asarray(self.factors)
        usable = (x > 0) & (y > 0) & np.isfinite(y)
        if np.sum(usable) < _FEWEST:
            return math.nan
        (slope, _), residuals, *_ = np.polyfit(np.log(x[usable]), np.log(y[usable]), 1, full=True)
        straight = np.sum(residuals) <= _BENT * np.sum((np.log(y[usable]) - np.mean(np.log(y[usable]))) ** 2)
        return float(slope) if straight else math.nan


@dataclasses.dataclass(frozen=True)
class Sharpening:
    """The best constant of a claim over a family.

    factor: what the bound may be multiplied by (divided by, for an upper bound), so that the statement still holds at
    every problem that was looked at; below 1 it fails at one; values, problem, verdict: of the instance that attains
    it; growth: by parameter; problems: how many were looked at, hypotheses met.
    """

    claim: Claim
    factor: float
    values: Values
    problem: AbstractSpec | None
    verdict: Verdict
    growth: tuple[Growth, ...]
    problems: int
    seconds: float

    def __str__(self) -> str:
        where = ", ".join(f"{name} = {value_text(value)}" for name, value in self.values.items())
        lines = [
            f"{self.claim.id} [{self.claim.form}]: the bound may be sharpened by a factor of {self.factor:.6g} over "
            f"{self.problems} problems, attained at {where} ({self.verdict.verdict} there)."
        ]
        for name, value in self.verdict.constants.items():
            if f"sharp_{name}" in self.verdict.constants:
                sharp = self.verdict.constants[f"sharp_{name}"]
                lines.append(f"  {name} there: {value:.6g}, and {sharp:.6g} would hold")
        for growth in self.growth:
            pairs = zip(growth.values, growth.factors, strict=True)
            lines.append(
                f"  {growth.name}: {', '.join(f'{factor:.4g} at {value:.4g}' for value, factor in pairs)}"
                f"{'' if math.isnan(growth.slope) else f' (power {growth.slope + 0.0:.2f})'}"
            )
        return "\n".join(lines)

    def document(self) -> Document:
        """sharpening.json."""
        return plain(
            {
                "id": self.claim.id,
                "form": self.claim.form,
                "statement": self.claim.statement,
                "factor": self.factor,
                "values": self.values,
                "problem": self.problem,
                "verdict": citation(self.verdict),
                "constants": self.verdict.constants,
                "growth": [dataclasses.asdict(growth) | {"slope": growth.slope} for growth in self.growth],
                "problems": self.problems,
                "versions": versions(),
            }
        )

    def save(self, folder: str | os.PathLike) -> None:
        """Write sharpening.json."""
        write_json(pathlib.Path(folder) / "sharpening.json", self.document())


def sharpen(
    claim: Claim,
    *,
    over: Mapping[str, Axis] | None = None,
    budget: int | float = 600,
    seed: int = 0,
    progress: bool = False,
) -> Sharpening:
    """The best constant of a claim's bound over the problems of its spaces that meet its hypotheses.

    The least factor is looked for at some values of each parameter in turn, with the numbers of all others free, then
    anywhere.

    **Arguments:** as for `refute`; over: also says which parameters the growth is shown for, by default all that are
    numbers.

    **Raises:** `ValueError` on an identity, which has no constant, where no bound is positive, or as `refute` does.
    """
    if claim.relation is Relation.IDENTITY:
        refuse(f"the claim {claim.id}", "an inequality, whose constant can be sharpened", "it is an identity")
    family = _Family(claim, restrict_spaces(claim, over or {}), seed, budget)
    parameters = {name: axis for name, axis in family.parameters.items() if not over or name in over}
    with progress_bar(claim.id, round(budget), unit="s", shown=progress) as bar:
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in parameters}
        for name, axis in parameters.items():
            for value in _grid(axis):
                if family.goes_on():
                    found[name].append((float(value), family.least_at(name, value)))
                    bar.update(max(0, min(round(family.seconds), round(budget)) - bar.n))
        while family.goes_on():
            family.look_anywhere()
            bar.update(max(0, min(round(family.seconds), round(budget)) - bar.n))
    growth = []
    for name, pairs in found.items():
        if known := [pair for pair in pairs if math.isfinite(pair[1])]:
            values, factors = zip(*known, strict=True)
            growth.append(Growth(name, values, factors))
    return family.result(tuple(growth))


class _Family:
    """The problems of some spaces, and the least factor that was seen among them."""

    def __init__(self, claim: Claim, spaces: Sequence[Space], seed: int, budget: int | float):
        self._claim, self._spaces, self._seed, self._budget = claim, spaces, seed, budget
        self._screen, self._begin = Screen(claim, spaces), time.monotonic()
        self._anywhere = [Sampler(space, place, seed) for place, space in enumerate(spaces)]
        self._best: tuple[float, Point] | None = None
        self._excluded: Counter[str] = Counter()
        self._problems = self._met = self._looks = 0

    @property
    def seconds(self) -> float:
        """Spent."""
        return time.monotonic() - self._begin

    def goes_on(self) -> bool:
        """Whether there is time for more; the first look is always taken."""
        return not self._problems or self.seconds < self._budget

    @property
    def parameters(self) -> dict[str, Axis]:
        """The axes that are numbers of a scale of their own, as wide as in any space; those last that ask for another
        program at each value.
        """
        widest: dict[str, Axis] = {}
        cheap: set[str] = set()
        for space in self._spaces:
            for name, axis in space.axes.items():
                if isinstance(axis, Whole | Real) and "seed" not in name:
                    known = widest.get(name, axis)
                    assert isinstance(known, Whole | Real)
                    ends = {"low": min(known.low, axis.low), "high": max(known.high, axis.high)}
                    widest[name] = dataclasses.replace(axis, **ends)
                    cheap |= {name} - {*space.shaping, "init.rank"}
        return dict(sorted(widest.items(), key=lambda item: item[0] not in cheap))

    def least_at(self, name: str, value: int | float) -> float:
        """The least factor at one value of a parameter, over the numbers of all others at shapes of middle size."""
        found = []
        for place, space in enumerate(self._spaces):
            if name not in space.axes or not space.axes[name].holds(value):
                continue
            fixed: dict[str, int | float] = {
                shape: min(max(_MIDDLE, axis.low), axis.high) for shape, axis in _shapes(space).items()
            }
            fixed[name] = value
            if isinstance(rank := space.axes.get("init.rank"), Whole) and name != "init.rank":
                fixed["init.rank"] = min(rank.high, space.dimension(fixed))
            ends = {key: _only(space.axes[key], at) for key, at in fixed.items()}
            found.append(self._look(Sampler(space.over(ends), place, self._seed)))
        return min(found, default=math.inf)

    def look_anywhere(self) -> None:
        """One more batch of a space, at its next shape."""
        self._look(self._anywhere[self._looks % len(self._anywhere)])
        self._looks += 1

    def _look(self, sampler: Sampler) -> float:
        """The least factor of a batch, and of a descent from the best of it."""
        fewest = self._screen.lanes(Sampler(sampler.space, sampler.place, self._seed).draw(2).points[0])
        batch = sampler.draw(fewest)
        margins = self._screen.margins(batch.points)
        sampler.learn(batch, [_objective(margin) for margin in margins])
        found = self._noted(batch.points, margins)
        if found is None:
            return math.inf
        lower = descend(self._screen, found[1], sampler.space)
        further = self._noted(lower, self._screen.margins(lower))
        return min(found[0], further[0] if further else math.inf)

    def _noted(self, points: Sequence[Point], margins: Sequence[Margin]) -> tuple[float, Point] | None:
        self._problems += len(points)
        self._met += sum(not margin.unmet for margin in margins)
        self._excluded.update(name for margin in margins for name in margin.unmet)
        usable = [(margin.factor, point) for margin, point in zip(margins, points, strict=True) if _usable(margin)]
        if not usable:
            return None
        least = min(usable, key=lambda pair: pair[0])
        if self._best is None or least[0] < self._best[0]:
            self._best = least
        return least

    def result(self, growth: tuple[Growth, ...]) -> Sharpening:
        """The least factor, with the verdict on the instance that attains it."""
        if not self._met:
            refuse_excluded(self._claim, self._excluded, self._problems)
        if self._best is None:
            refuse(
                f"the claim {self._claim.id}",
                "one that bounds a positive side by a positive one",
                "it nowhere does here",
            )
        factor, point = self._best
        space = self._spaces[point.space]
        verdict = judge_on(self._claim, evidence_of_point(self._claim, space, point.values))
        problem = None if space.make else spec_of(space.tables(point.values))
        values = dict(point.values)
        return Sharpening(self._claim, factor, values, problem, verdict, growth, self._met, self.seconds)


def _shapes(space: Space) -> dict[str, Whole]:
    return {name: axis for name, axis in space.axes.items() if name in space.shaping and isinstance(axis, Whole)}


def _only(axis: Axis, value: int | float) -> Axis:
    """The axis at one value, so that what is compiled for it still serves."""
    return Whole(int(value), int(value)) if isinstance(axis, Whole) else Real(float(value), float(value))


def _grid(axis: Axis) -> list[int | float]:
    """Values of a parameter from end to end."""
    assert isinstance(axis, Whole | Real), "parameters are numbers"
    between = np.geomspace if axis.geometric else np.linspace
    values = between(float(axis.low), float(axis.high), _VALUES).tolist()
    return sorted({min(round(value), axis.high) for value in values}) if isinstance(axis, Whole) else values


def _usable(margin: Margin) -> bool:
    return not margin.unmet and math.isfinite(margin.factor) and not math.isnan(margin.margin)


def _objective(margin: Margin) -> float:
    return margin.factor if _usable(margin) else margin.objective + 1e9
