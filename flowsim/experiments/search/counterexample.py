"""A counterexample: confirmed by verdicts, simplified, and written to files."""

import dataclasses
import math
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from flowsim._core.documents import plain, versions, write_json
from flowsim._core.files import write_whole
from flowsim._core.latex import escaped, latex, number_in_latex
from flowsim._core.text import number_text
from flowsim._core.types import Document, Values
from flowsim.claims import Claim, Evidence, Judgement, Verdict, judge_on
from flowsim.claims.deciding.between import followed
from flowsim.claims.deciding.sides import Sides, not_finite
from flowsim.claims.deciding.verdict import citation
from flowsim.claims.evidence.comparing import compared
from flowsim.claims.spaces import Choice, Each, Real, Space, Whole
from flowsim.experiments.search.clock import Clock
from flowsim.experiments.search.points import Point
from flowsim.experiments.search.screening import Screen, built
from flowsim.flow.gradient_flow import gradient_flow, start_alone
from flowsim.problem import AbstractSpec, spec_of, toml

_MOVED = 1e-6  # relative, of every number in a neighbouring problem
_KEPT = 1e-3  # of the bound: a simpler counterexample must fail by this, or by half of the former margin
_PASSES = 3
_OTHER_BASIS = 12345
_SEED = "seed"
_DOING = "simplifying the counterexample"


@dataclasses.dataclass(frozen=True)
class Counterexample:
    """A problem that meets a claim's hypotheses and violates the claim.

    **Fields:**

    - claim: the claim.
    - values: the value of each axis of the space in which it was found.
    - problem: the problem as in a problem file, None for a space given by a function.
    - verdict: the verdict on the problem.
    - value, bound: the two sides where the statement fails most.
    - routes: verdicts of other computations by their names, each "violated" too.
    - evidence: the flow, or the start alone, with its repetitions.
    """

    claim: Claim
    values: Values
    problem: AbstractSpec | None
    verdict: Verdict
    value: float
    bound: float
    routes: Mapping[str, Verdict]
    evidence: Evidence

    @property
    def erratum(self) -> str:
        """Two sentences that could stand in an erratum."""
        return self._erratum(self.claim.text, self.where, str, str)

    @property
    def erratum_in_latex(self) -> str:
        """The two sentences of `erratum` in LaTeX."""
        written = {escaped(name): escaped(toml.write_value(value)) for name, value in self.values.items()}
        where = ", ".join(rf"\texttt{{{name}}} = {value}" for name, value in written.items())
        return self._erratum(latex(self.claim.statement), where, escaped, number_in_latex)

    def _erratum(self, statement: str, where: str, text: Callable[[str], str], number: Callable[[str], str]) -> str:
        """The two sentences of an erratum in some format.

        **Arguments:**

        - statement, where: the statement and the values of the problem, in this format.
        - text, number: functions that convert a text or the text of a number to this format.
        """
        place = (
            f"{self.claim.source} as printed" if self.claim.form == "printed" else f"{self.claim.source}, corrected,"
        )
        margin, floor = abs(self.verdict.margin or math.nan), self.verdict.floor
        return (
            f"{text(place)} ({statement}) fails at {where}. There, at {text(self.verdict.where_text())}, its two sides "
            f"are {number(f'{self.value:.10g}')} and {number(f'{self.bound:.10g}')}, so that it misses by "
            f"{number(number_text(margin))} of its bound, where the numerical error is at most "
            f"{number(number_text(floor, '.1g'))}."
        )

    @property
    def where(self) -> str:
        """The values of the axes, which distinguish the problem from the others in its space, in one line."""
        return ", ".join(f"{name} = {toml.write_value(value)}" for name, value in self.values.items())

    def save(self, folder: str | os.PathLike) -> None:
        """Write counterexample.json, erratum.txt, erratum.tex and, if a file can describe the problem,
        counterexample.toml.

        The folder is created if it does not exist.
        """
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if self.problem is not None:
            text = self.problem.to_toml()
            write_whole(folder / "counterexample.toml", lambda file: file.write(text.encode()))
        write_whole(folder / "erratum.txt", lambda file: file.write(f"{self.erratum}\n".encode()))
        write_whole(folder / "erratum.tex", lambda file: file.write(f"{self.erratum_in_latex}\n".encode()))
        write_json(folder / "counterexample.json", self.document())

    def document(self) -> Document:
        """The contents of counterexample.json."""
        return plain(
            {
                "id": self.claim.id,
                "form": self.claim.form,
                "statement": self.claim.text,
                "values": self.values,
                "problem": self.problem,
                "verdict": self.verdict,
                "value": self.value,
                "bound": self.bound,
                "routes": {name: citation(verdict) for name, verdict in self.routes.items()},
                "erratum": self.erratum,
                "versions": versions(),
            }
        )


def confirmed(screen: Screen, point: Point) -> Counterexample | str:
    """Judge a point by several computations.

    **Returns:** the counterexample if all verdicts are "violated"; otherwise a text that describes the first other
    verdict, or says why the point gives no problem.
    """
    claim, space = screen.claim, screen.spaces[point.space]
    try:
        evidence = evidence_of_point(claim, space, point.values)
    except ValueError as error:
        return f"there is no such problem: {error}."
    verdict = judge_on(claim, evidence)
    if verdict.verdict is not Judgement.VIOLATED:
        return f"{verdict.verdict}. {verdict.note}".strip()
    routes = {}
    for name, other in _routes(claim, space, point.values, evidence):
        routes[name] = judge_on(claim, other)
        if routes[name].verdict is not Judgement.VIOLATED:
            return f"violated, but {routes[name].verdict} by another route ({name}). {routes[name].note}".strip()
    value, bound = _worst_sides(claim, evidence)
    problem = None if space.make else spec_of(space.tables(point.values))
    return Counterexample(claim, dict(point.values), problem, verdict, value, bound, routes, evidence)


def evidence_of_point(claim: Claim, space: Space, values: Values) -> Evidence:
    """The evidence for a claim at a point of a space.

    **Arguments:**

    - claim: the claim.
    - space: the space.
    - values: the value of each axis.

    **Raises:** `ValueError` if these values do not give a problem.
    """
    loss, start, run = built(space, values)
    return Evidence(loss, run(False) if claim.along_flow else start_alone(loss, start))


def _routes(claim: Claim, space: Space, values: Values, evidence: Evidence) -> Iterator[tuple[str, Evidence]]:
    """The names and the evidence of other computations of a verdict: by another solver, for neighbouring problems,
    and in another basis. They show that a counterexample is not a coincidence.
    """
    if claim.along_flow and evidence.trajectory.settings.solver == "arrowhead":
        yield "all weights by a general implicit solver", _by_another_solver(evidence)
    for name, amount in (("numbers larger by 1e-6", 1 + _MOVED), ("numbers smaller by 1e-6", 1 - _MOVED)):
        moved = _moved(space, values, amount)
        if moved != values:
            yield name, evidence_of_point(claim, space, moved)
    covariance = space.problem.get("task", {}).get("covariance")
    if not claim.along_flow and isinstance(covariance, Mapping) and "rotation_seed" in covariance:
        name = "task.covariance.rotation_seed"
        turned = dataclasses.replace(space, axes={**space.axes, name: Whole(0, 2**32 - 1)})
        yield "the covariance in another basis", evidence_of_point(claim, turned, {**values, name: _OTHER_BASIS})


def _by_another_solver(evidence: Evidence) -> Evidence:
    run = evidence.trajectory
    # At the same times, since another solver may reach a time limit first.
    again = gradient_flow(
        evidence.loss, run.start, times=run.t[1:], rtol=run.settings.rtol, solver="implicit", points_per_decade=0
    )
    return Evidence(evidence.loss, again)


def _moved(space: Space, values: Values, amount: float) -> Document:
    """The values with every number of a continuous axis multiplied by ``amount``, and then clipped to the axis."""

    def move(axis: Real, value: float) -> float:
        return float(np.clip(value * amount, axis.low, axis.high))

    moved = dict(values)
    for name, axis in space.axes.items():
        if isinstance(axis, Real):
            moved[name] = move(axis, values[name])
        elif isinstance(axis, Each):
            moved[name] = [move(axis.of, value) for value in values[name]]
    return moved


@not_finite
def _worst_sides(claim: Claim, evidence: Evidence) -> tuple[float, float]:
    """The two sides of the claim where it fails most."""
    (rough, fine, _), _ = followed(claim, evidence)
    case = fine if claim.along_flow else rough
    comparison = compared(claim, evidence.stated, case.padded)
    worst = Sides.of(comparison, np.zeros(comparison.slack.shape)).worst
    return float(comparison.value[worst]), float(comparison.bound[worst])


def shrunk(screen: Screen, point: Point, clock: Clock, spare: float) -> tuple[Point, bool]:
    """Simplify a point, so that the claim still fails clearly.

    Sizes of arrays become as small, lengths as short and numbers as round as possible. One axis after the other
    takes the first value, simplest first, at which the claim fails by at least a thousandth of its bound, or by
    half of its former margin if that is less.

    **Arguments:**

    - screen: computes the margins of the claim.
    - point: the point.
    - clock: the budget.
    - spare: the seconds of the budget that must be left.

    **Returns:** the simplified point, and whether the time sufficed.
    """
    if clock.is_up(_DOING, spare):
        return point, False
    found = screen.margins([point])[0]
    most = -min(_KEPT, abs(found.margin) * 0.5)

    def fails(candidate: Point) -> bool:
        if clock.is_up(_DOING, spare):
            return False
        margin = screen.margins([candidate])[0]
        return not margin.unmet and margin.clear and margin.margin <= most

    space = screen.spaces[point.space]
    for _ in range(_PASSES):
        before = dict(point.values)
        for name in sorted(space.axes, key=lambda name: name not in (*space.shaping, "init.rank")):
            point = next(filter(fails, _simpler(space, point, name)), point)
        if point.values == before:
            break
    return point, not clock.is_up(_DOING, spare)


def _simpler(space: Space, point: Point, name: str) -> Iterator[Point]:
    """Copies of a point with simpler values of one axis, simplest first. If the dimension changes, vectors and
    ranks are fitted to it.
    """
    axis, value = space.axes[name], point.values[name]
    # No seed is simpler than another, except for the first.
    simpler = [0] if name.endswith(_SEED) and value and axis.holds(0) else _values(axis, value)
    for simple in simpler:
        values = {**point.values, name: simple}
        d = space.dimension(values)
        for other, kind in space.axes.items():
            if isinstance(kind, Each):
                values[other] = [*values[other], *[values[other][-1]] * d][:d]
        if "init.rank" in values:
            values["init.rank"] = min(values["init.rank"], d)
        yield Point(point.space, values)


def _values(axis: Any, value: Any) -> Iterator[Any]:
    if isinstance(axis, Choice):
        yield from axis.values[: axis.values.index(value)]
    elif isinstance(axis, Whole):
        yield from _whole(axis.low, value)
    elif isinstance(axis, Real):
        yield from _round(axis, value)
    else:
        yield from ([simple] * len(value) for simple in _round(axis.of, value[0]))
        yield from ([simple, *[0.0] * (len(value) - 1)] for simple in _round(axis.of, value[0]) if axis.of.holds(0.0))
        for digits in (1, 2):
            rounded = [float(f"{x:.{digits}g}") for x in value]
            if rounded != list(value) and axis.holds(rounded):
                yield rounded


def _whole(low: int, value: int) -> Iterator[int]:
    """Integers to try instead of a value: first up to ten from ``low`` upwards, then 1, 2 and 5 times powers of ten
    below the value, then the value rounded to one and two digits.
    """
    yield from range(low, min(value, low + 10))
    steps = (m * 10**k for k in range(1, 31) for m in (1, 2, 5))
    yield from (step for step in steps if low + 10 <= step < value)
    yield from dict.fromkeys(
        round_ for digits in (1, 2) if low <= (round_ := int(float(f"{value:.{digits}g}"))) != value
    )


def _round(axis: Real, value: float) -> Iterator[float]:
    """Rounder numbers on an axis: 1 and 0, the powers of ten between 1 and the value, then the value rounded to one
    and two digits.
    """
    sign, exponent = (1 if value > 0 else -1), round(math.log10(abs(value))) if value else 0
    powers = (sign * 10.0 ** (k if exponent > 0 else -k) for k in range(1, abs(exponent) + 1))
    for simple in (1.0, 0.0, *powers, float(f"{value:.1g}"), float(f"{value:.2g}")):
        if simple == value:
            return
        if axis.holds(simple):
            yield simple
