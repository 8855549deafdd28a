"""The best constant of a bound over a family of problems, and its growth with each parameter."""

import contextlib
import dataclasses
import itertools
import math
import os
import pathlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from flowsim._core.checks import refuse
from flowsim._core.documents import plain, versions, write_json
from flowsim._core.files import at_work_in
from flowsim._core.text import LINE, cut, value_text
from flowsim._core.types import Document, Values
from flowsim.claims import Claim, Verdict, judge_on
from flowsim.claims.deciding.verdict import citation
from flowsim.claims.evidence.comparing import of_one_flow
from flowsim.claims.evidence.series import padded
from flowsim.claims.spaces import Axis, Real, Space, Whole
from flowsim.experiments.executors import Executor
from flowsim.experiments.search.batches import Seen, rows_of, seen_of
from flowsim.experiments.search.clock import Clock
from flowsim.experiments.search.counterexample import evidence_of_point
from flowsim.experiments.search.descent import descend
from flowsim.experiments.search.kept import KeptUnits
from flowsim.experiments.search.points import Known, Point, Sampler, remembered, restrict_spaces
from flowsim.experiments.search.refutation import refuse_excluded
from flowsim.experiments.search.screening import Margin, Screen, built
from flowsim.experiments.search.units import Look, SpacePlace, known_by, results_of
from flowsim.flow.gradient_flow import start_alone
from flowsim.losses.sampled.monte_carlo import stated
from flowsim.problem import AbstractSpec, spec_of

_VALUES = 6  # of a parameter, at which the best factor is searched
_FEWEST, _BENT = 3, 0.02  # values for a power law, and the unexplained share of the variance
_MIDDLE = 3  # dimensions, loops, layers, heads, if they are not the parameter


@dataclasses.dataclass(frozen=True)
class Growth:
    """The best factor of a bound as a function of one parameter.

    **Fields:** name: the parameter; values: some of its values; factors: the least factor found at each of these
    values.
    """

    name: str
    values: tuple[float, ...]
    factors: tuple[float, ...]

    @property
    def slope(self) -> float:
        """The exponent of a power law in the parameter; NaN if there are too few values, or if the factors follow
        no power law.
        """
        x, y = np.asarray(self.values, dtype=float), np.asarray(self.factors)
        usable = (x > 0) & (y > 0) & np.isfinite(y)
        if np.sum(usable) < _FEWEST:
            return math.nan
        (slope, _), residuals, *_ = np.polyfit(np.log(x[usable]), np.log(y[usable]), 1, full=True)
        straight = np.sum(residuals) <= _BENT * np.sum((np.log(y[usable]) - np.mean(np.log(y[usable]))) ** 2)
        return float(slope) if straight else math.nan


@dataclasses.dataclass(frozen=True)
class Sharpening:
    """The best constant of a claim over a family of problems.

    **Fields:**

    - claim: the claim.
    - factor: the largest factor by which a lower bound can be multiplied, or an upper bound divided, so that the
      statement holds at every problem that was tried. If the factor is below 1, the statement fails at one of these
      problems.
    - values, problem, verdict: the problem that attains the factor, and the verdict there.
    - growth: the best factor as a function of each parameter.
    - problems: how many of the problems that were tried meet the hypotheses.
    - seconds: the time spent.
    - everywhere: whether problems with all numbers free were tried. If not, the time ended before.
    """

    claim: Claim
    factor: float
    values: Values
    problem: AbstractSpec | None
    verdict: Verdict
    growth: tuple[Growth, ...]
    problems: int
    seconds: float
    everywhere: bool

    def __str__(self) -> str:
        where = ", ".join(f"{name} = {value_text(value)}" for name, value in self.values.items())
        lines = [
            f"{self.claim.id} [{self.claim.form}]: the bound may be sharpened by a factor of {self.factor:.6g} over "
            f"{self.problems} problems, attained at {where} ({self.verdict.verdict} there).",
            f"  {cut(self.claim.text, LINE)}",
        ]
        if not self.everywhere:
            lines.append("  Only the values below were tried, and elsewhere the factor may be less: give it more time.")
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
        """The contents of sharpening.json."""
        return plain(
            {
                "id": self.claim.id,
                "form": self.claim.form,
                "statement": self.claim.text,
                "factor": self.factor,
                "values": self.values,
                "problem": self.problem,
                "verdict": citation(self.verdict),
                "constants": self.verdict.constants,
                "growth": [dataclasses.asdict(growth) | {"slope": growth.slope} for growth in self.growth],
                "problems": self.problems,
                "everywhere": self.everywhere,
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
    problems: int | None = None,
    seed: int = 0,
    out: str | os.PathLike | None = None,
    progress: bool = False,
    executor: Executor | None = None,
) -> Sharpening:
    """The best constant of a claim's bound over the problems of its spaces that meet its hypotheses.

    The least factor is searched at some values of each parameter in turn, with all other numbers free and middle
    sizes of arrays, and then over all problems.

    **Arguments:** as for `refute`, except that

    - over: also selects the parameters whose growth is reported, default all numbers.
    - budget: does not include the verdict on the best problem.
    - out: a folder for sharpening.json and for search.json, from which the same search resumes.

    **Raises:** `ValueError` on an identity, which has no constant, if no bound is positive, or as `refute`.
    """
    clock, over = Clock(budget, problems), over or {}
    folder, spaces = None if out is None else pathlib.Path(out), restrict_spaces(claim, over)
    if _equates(claim, spaces[0], seed):
        refuse(f"the claim {claim.id}", "an inequality, whose constant can be sharpened", "it is an identity")
    workers = None
    if executor is not None:
        workers = executor, SpacePlace.of(claim, over, clock.longest), look_and_descend
    with contextlib.ExitStack() as stack:
        if folder is not None:
            stack.enter_context(at_work_in(folder, "search"))
        stack.enter_context(clock.shown(claim.id, progress))
        # With the parameters of the growth, which come first.
        what = f"constant, over {', '.join(over) or 'all'}"
        family = _Family(claim, spaces, seed, clock, KeptUnits(folder, what, claim, spaces, seed, clock))
        found: dict[str, dict[float, float]] = {}
        everywhere = False
        for units in (family.at_values(list(over)), family.anywhere()):
            for unit, least in family.evaluated(units, workers):
                everywhere |= unit.parameter is None
                if unit.parameter is not None and math.isfinite(least):
                    name, value = unit.parameter
                    factors = found.setdefault(name, {})
                    factors[value] = min(least, factors.get(value, math.inf))
            if not family.continues():
                break
        growth = (Growth(name, *zip(*sorted(factors.items()), strict=True)) for name, factors in found.items())
        result = family.result(tuple(growth), everywhere)
        if folder is not None:
            result.save(folder)
        return result


def _equates(claim: Claim, space: Space, seed: int) -> bool:
    """Whether a claim is an identity at the start of a problem of the space."""
    with contextlib.suppress(ValueError):
        loss, start, _ = built(space, Sampler(space, 0, seed).draw(0, 1)[0].values)
        sides = claim.compare(stated(loss), padded(start_alone(loss, start)))
        return bool(jnp.all(of_one_flow(claim, sides).identity))
    return False


class FamilyUnit(NamedTuple):
    """A batch of points to draw from one space, and the results on which the draw depends.

    **Fields:**

    - place: the index of the space.
    - batch: the number of the batch in this space.
    - seed: the seed of the search.
    - known: points with their objectives.
    - ends: narrower axes that replace those of the space.
    - parameter: the name and the value of the parameter that is fixed, or None if all numbers are free.
    """

    place: int
    batch: int
    seed: int
    known: list[Known]
    ends: dict[str, Axis]
    parameter: tuple[str, float] | None


def look_and_descend(screen: Screen, unit: FamilyUnit, clock: Clock) -> tuple[Seen, Seen]:
    """The points of a batch with their margins, and those of a descent from the best of them.

    **Arguments:**

    - screen: computes the margins of the claim.
    - unit: the batch.
    - clock: the budget.
    """
    space = screen.spaces[unit.place].over(unit.ends)
    sampler = Sampler(space, unit.place, unit.seed)
    count, begin = screen.lanes(sampler.draw(unit.batch, 1)[0]), clock.seconds
    seen = screen.look(sampler.draw(unit.batch, count, unit.known), clock)
    best = _best(seen)
    # If programs are not compiled yet, a descent takes about as long as a batch.
    if best is None or clock.is_up("going downhill", clock.seconds - begin):
        return seen, []
    return seen, screen.look(descend(screen, best[1], clock, space), clock)


def _best(seen: Seen) -> tuple[float, Point] | None:
    """The least factor and its point, or None if no factor was computed where the hypotheses are met."""
    usable = [(margin.factor, point) for point, margin in seen if _usable(margin)]
    return min(usable, key=lambda pair: pair[0], default=None)


class _Family:
    """The state of a search for the least factor over some spaces."""

    def __init__(self, claim: Claim, spaces: Sequence[Space], seed: int, clock: Clock, units: KeptUnits):
        self._claim, self._spaces, self._seed, self._clock, self._units = claim, spaces, seed, clock, units
        self._screen = Screen(claim, spaces, clock.longest)
        self._best: tuple[float, Point] | None = None
        self._excluded: Counter[str] = Counter()
        self._problems = self._met = 0
        self._known: list[list[Known]] = []

    def continues(self) -> bool:
        """Whether there is time for another batch. The first one is always computed."""
        return not self._problems or not self._clock.has_ended(self._problems)

    @property
    def parameters(self) -> dict[str, Axis]:
        """The numeric axes without seeds, each with the widest range of any space. Sizes of arrays, for which each
        value needs another program, come last.
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

    def evaluated(
        self, units: Iterator[FamilyUnit], workers: tuple[Executor, SpacePlace, Look] | None
    ) -> Iterator[tuple[FamilyUnit, float]]:
        """Compute batches, those of an earlier run first, and yield each with the least factor found in it."""
        taken = 0
        while len(self._units.done) < len(self._units.earlier) and (unit := next(units, None)) is not None:
            kept = self._units.earlier[len(self._units.done)]
            yield unit, self._noted(seen_of(kept["seen"]), seen_of(kept["below"]))
            taken += 1
            # Batches of an earlier run take no time, but they count as problems.
            if self._clock.problems is not None and not self.continues():
                return
        if taken and not self.continues():
            return
        here = lambda unit: look_and_descend(self._screen, unit, self._clock)
        for unit, found in results_of(lambda: next(units, None), here, workers, self._clock, self.continues, taken):
            yield unit, self._noted(*found)

    def at_values(self, names: Sequence[str]) -> Iterator[FamilyUnit]:
        """Batches at some values of each parameter, with middle values for all other sizes of arrays.

        **Arguments:** names: the parameters, all if empty.
        """
        for name, axis in self.parameters.items():
            if names and name not in names:
                continue
            for value, (place, space) in itertools.product(_grid(axis), enumerate(self._spaces)):
                if name in space.axes and space.axes[name].holds(value):
                    ends = _middle(space, name, value)
                    yield FamilyUnit(place, 0, self._seed, [], ends, (name, float(value)))

    def anywhere(self) -> Iterator[FamilyUnit]:
        """An endless series of batches with all numbers free. Spaces take turns, and so do the shapes of each
        space.
        """
        self._known.clear()
        for number in itertools.count():
            place, batch = number % len(self._spaces), number // len(self._spaces)
            of_space = [one for known in self._known[: known_by(number)] for one in known if one[0].space == place]
            yield FamilyUnit(place, batch, self._seed, remembered(of_space), {}, None)

    def _noted(self, seen: Seen, below: Seen) -> float:
        """Record the margins of a batch and of its descent, and return the least factor of both, or infinity."""
        both = [*seen, *below]
        self._problems += len(both)
        self._met += sum(not margin.unmet for _, margin in both)
        self._excluded.update(name for _, margin in both for name in margin.unmet)
        self._known.append([(point, _objective(margin)) for point, margin in seen])
        self._units.add({"seen": rows_of(seen), "below": rows_of(below)})
        least = _best(both)
        if least is None:
            return math.inf
        if self._best is None or least[0] < self._best[0]:
            self._best = least
        return least[0]

    def result(self, growth: tuple[Growth, ...], everywhere: bool) -> Sharpening:
        """The result of the search, with the verdict on the problem that attains the least factor."""
        if not self._met:
            refuse_excluded(self._claim, self._excluded, self._problems)
        if self._best is None:
            refuse(
                f"the claim {self._claim.id}",
                "one that bounds a positive side by a positive one",
                "no bound here is positive",
            )
        self._clock.tell("judging the best")
        factor, point = self._best
        space = self._spaces[point.space]
        verdict = judge_on(self._claim, evidence_of_point(self._claim, space, point.values))
        problem = None if space.make else spec_of(space.tables(point.values))
        values = dict(point.values)
        seconds = self._clock.seconds
        return Sharpening(self._claim, factor, values, problem, verdict, growth, self._met, seconds, everywhere)


def _middle(space: Space, name: str, value: int | float) -> dict[str, Axis]:
    """Axes that narrow a space to one value of a parameter, and to middle values of all other sizes of arrays."""
    fixed: dict[str, int | float] = {
        shape: min(max(_MIDDLE, axis.low), axis.high) for shape, axis in _shapes(space).items()
    }
    fixed[name] = value
    if isinstance(rank := space.axes.get("init.rank"), Whole) and name != "init.rank":
        fixed["init.rank"] = min(rank.high, space.dimension(fixed))
    return {key: _only(space.axes[key], at) for key, at in fixed.items()}


def _shapes(space: Space) -> dict[str, Whole]:
    return {name: axis for name, axis in space.axes.items() if name in space.shaping and isinstance(axis, Whole)}


def _only(axis: Axis, value: int | float) -> Axis:
    """An axis of the same type with a single value, so that compiled programs can be used again."""
    return Whole(int(value), int(value)) if isinstance(axis, Whole) else Real(float(value), float(value))


def _grid(axis: Axis) -> list[int | float]:
    assert isinstance(axis, Whole | Real), "parameters are numbers"
    between = np.geomspace if axis.geometric else np.linspace
    values = between(float(axis.low), float(axis.high), _VALUES).tolist()
    return sorted({min(round(value), axis.high) for value in values}) if isinstance(axis, Whole) else values


def _usable(margin: Margin) -> bool:
    return not margin.unmet and math.isfinite(margin.factor) and not math.isnan(margin.margin)


def _objective(margin: Margin) -> float:
    return margin.factor if _usable(margin) else margin.objective + 1e9
