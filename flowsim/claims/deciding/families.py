"""Verdicts on families of problems: on statements about each member, a limit, a power of the parameter, or a
probability.

A limit is extrapolated from the members in order (`flowsim.claims.limits.extrapolated`).
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # `scipy.stats` loads when it is first used; it takes half a second
from jaxtyping import Array, PyTree

from flowsim._core import checks
from flowsim._core.progress import progress_bar
from flowsim._core.text import value_text
from flowsim._core.types import Options
from flowsim.claims.claim import Claim, Comparison, Likely, Trend, at_least
from flowsim.claims.deciding.between import followed
from flowsim.claims.deciding.judging import judge_or_note
from flowsim.claims.deciding.verdict import Judgement, Verdict, Verdicts
from flowsim.claims.evidence import Evidence
from flowsim.claims.evidence.comparing import evaluated
from flowsim.claims.limits import extrapolated
from flowsim.flow.gradient_flow import gradient_flow
from flowsim.losses import AbstractPopulationLoss
from flowsim.problem import AbstractSpec, spec_of, toml

_BEYOND = 2.0  # times the interval: what lies further off is violated
_CONFIDENCE = 0.99  # of the interval for a probability
_SAME = 1e-9  # of its size: two limits that differ by less differ by rounding
_TRUE = Judgement.HOLDS, Judgement.VACUOUS
_TINY = float(np.finfo(float).tiny)

Member = tuple[AbstractPopulationLoss, PyTree]


class Measured(NamedTuple):
    """A number for each member of a family, in order, and its error; or the reason why they are not known."""

    values: np.ndarray
    errors: np.ndarray
    reason: str = ""


class Family:
    """Problems that differ in one parameter, and verdicts on statements about all of them, or about a limit along
    them::

        def make(scale):
            return loss, Diagonal(u=jnp.full(3, scale), v=jnp.full(3, scale))

        family = flowsim.Family(make, {"scale": np.geomspace(1e-2, 1e-8, 7)})
        print(family.judge(claim))

    A claim that returns an ordinary comparison is judged at every member. One that returns `tends_to` or
    `power_law` is judged along the values of the parameter, in their order; its verdict rests on extrapolation, and
    says so. One that returns `with_probability` is judged over the members as independent draws.

    Each flow is solved once and cached. If all members share one loss object, their programs are compiled once.

    **Arguments:**

    - make: a function (NAME=value) -> (loss, start), where NAME is the parameter; or a problem (`ProblemSpec`).
    - over: {NAME: values}, the values of the parameter, at least two. For a problem NAME is the dotted name of a
      field.
    - how: arguments of `gradient_flow`, if ``make`` is a function.

    **Raises:** `ValueError` on several parameters, or on fewer than two different values.
    """

    def __init__(self, make: Callable[..., Member] | AbstractSpec, over: Mapping[str, Iterable[Any]], **how: Any):
        if not isinstance(over, Mapping) or len(over) != 1:
            came = f"it has {len(over)}" if isinstance(over, Mapping) else f"it is {over!r:.60}"
            checks.refuse("over", "one parameter with its values", came)
        ((self.name, values),) = over.items()
        if not isinstance(values, Iterable):
            checks.refuse(self.name, "at least two values, all different", f"it is {values!r:.80}")
        self.values = [np.asarray(value).item() if checks.is_number(value) else value for value in values]
        if len(self.values) < 2 or len({*map(str, self.values)}) < len(self.values):
            checks.refuse(self.name, "at least two values, all different", f"they are {self.values!r:.80}")
        self._make, self._how = make, how
        self._members: dict[int, Evidence] = {}

    def judge(self, claims: Claim | Iterable[Claim], *, progress: bool = False) -> Verdicts:
        """Judge claims over the family, in order.

        **Arguments:** claims: one claim or several; progress: whether to show a progress bar.
        """
        chosen = [claims] if isinstance(claims, Claim) else [*claims]
        with progress_bar("members", len(self.values) * len(chosen), unit="member", shown=progress) as bar:
            return Verdicts(self._judged(claim, bar.update) for claim in chosen)

    def measured(self, claim: Claim) -> Measured:
        """The number that a claim returns for each member, with its error: the ``value`` in `tends_to` or
        `power_law`.

        **Raises:** `ValueError` if the claim returns something else.
        """
        form = self._form(claim)
        if not isinstance(form, Trend):
            checks.refuse(claim.id, "a trend, as flowsim.tends_to returns", "it is another statement")
        return self._numbers(claim, form, lambda: None)[0]

    def evidence(self, place: int) -> Evidence:
        """The flow of one member with its repetitions. It is solved at the first call.

        **Arguments:** place: the number of the member, from 0.
        """
        if place not in self._members:
            value = self.values[place]
            if isinstance(self._make, AbstractSpec):
                tables = toml.parse(self._make.to_toml())
                toml.assign(tables, self.name, value)
                problem = spec_of(tables).build().prepared()
                if problem.is_descent:
                    checks.refuse("flow.descent", "left out of a family: its members are flows", "it is given")
                self._members[place] = Evidence(problem.loss, problem.run())
            else:
                made = self._make(**{self.name: value})
                if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], AbstractPopulationLoss)):
                    came = f"at {self.label(place)} it gives {made!r:.60}"
                    checks.refuse("make", "a function that returns (loss, start), with an AbstractPopulationLoss", came)
                loss, start = made
                self._members[place] = Evidence(loss, gradient_flow(loss, start, **self._how))
        return self._members[place]

    def label(self, place: int) -> str:
        """The parameter of one member as a text, such as ``scale = 0.001``."""
        return f"{self.name} = {value_text(self.values[place])}"

    @property
    def window(self) -> str:
        """The range of the parameter as a text, such as ``scale = 0.01 to 1e-08``."""
        return f"{self.label(0)} to {value_text(self.values[-1])}"

    def _judged(self, claim: Claim, tick: Callable[[], object]) -> Verdict:
        form = self._form(claim)
        if isinstance(form, Trend):
            numbers, verdicts = self._numbers(claim, form, tick)
            return self._of_trend(claim, form, numbers, verdicts)
        single, verdicts = _alone(claim) if isinstance(form, Likely) else claim, []
        for place in range(len(self.values)):
            verdicts.append(judge_or_note(single, self.evidence(place)))
            tick()
        return self._likely(claim, form.probability, verdicts) if isinstance(form, Likely) else self._all(verdicts)

    def _form(self, claim: Claim, place: int = 0) -> Trend | Likely | None:
        """The field ``family`` of a claim's comparison at one member: what it states of the family as a whole, or
        None.

        **Raises:** `ValueError` if the claim is about descents, or if its limit, power or accuracy is not a valid
        number.
        """
        evidence = self.evidence(place)
        if claim.of_descent:
            checks.refuse(claim.id, "a claim about the flow", "it is about gradient descent")
        if claim.foreign(evidence.stated, evidence.trajectory.start):
            return None
        found = evaluated(claim, claim.compare, evidence.stated, evidence.cases[0].padded)
        form = found.family if isinstance(found, Comparison) else None
        if isinstance(form, Trend):
            if not math.isfinite(form.expected):
                checks.refuse(f"the limit or power of {claim.id}", "finite", f"it is {float(form.expected):g}")
            if not 0 < float(form.within) < math.inf:
                checks.refuse(f"within of {claim.id}", "positive and finite", f"it is {float(form.within):g}")
        return form

    def _refuse_another(self, claim: Claim, form: Trend, place: int) -> None:
        """Raise `ValueError` if a claim states another limit or power at a member than at the first one."""
        other, own = self._form(claim, place), lambda one: f"{float(one.expected):.8g} within {float(one.within):.8g}"
        if not isinstance(other, Trend) or other.kind != form.kind:
            checks.refuse(claim.id, "the same statement at all members", f"it is another one at {self.label(place)}")
        pairs = ((form.expected, other.expected), (form.within, other.within))
        if any(abs(one - two) > _SAME * (abs(one) + form.within) for one, two in pairs):
            came = f"it is {own(form)} at {self.label(0)} and {own(other)} at {self.label(place)}"
            checks.refuse(f"the limit or power of {claim.id}", "the same for all members", came)

    def _numbers(self, claim: Claim, form: Trend, tick: Callable[[], object]) -> tuple[Measured, list[Verdict]]:
        """For each member, the number whose trend a claim states and its error; also the verdicts from which
        `_number` finds them.

        If a verdict is not "holds", its reason replaces the numbers, and later members are not judged.
        """
        values, errors, verdicts = [], [], []
        least = float(form.within) if form.kind == "limit" else _TINY
        for place in range(len(self.values)):
            if place and not claim.foreign(self.evidence(place).stated, self.evidence(place).trajectory.start):
                self._refuse_another(claim, form, place)
            verdict, value, error = _number(claim, self.evidence(place), least)
            verdicts.append(verdict)
            tick()
            if verdict.verdict is not Judgement.HOLDS:
                reason = f"At {self.label(place)} its value is {verdict.verdict}. {verdict.note}"
                return Measured(np.zeros(0), np.zeros(0), reason), verdicts
            values.append(value)
            errors.append(error)
        return Measured(np.asarray(values), np.asarray(errors)), verdicts

    def _of_trend(self, claim: Claim, form: Trend, numbers: Measured, verdicts: list[Verdict]) -> Verdict:
        last, expected, within = verdicts[-1], float(form.expected), float(form.within)
        said = functools.partial(
            dataclasses.replace, last, margin=None, where=self._towards, floor=None, tightness=None
        )
        noted = lambda *parts: " ".join(part for part in (claim.note, *parts) if part)
        if numbers.reason:
            judgement = last.verdict if last.verdict is Judgement.NOT_APPLICABLE else Judgement.UNRESOLVED
            return said(verdict=judgement, note=noted(numbers.reason))
        constants: dict[str, float] = {}
        reason, bounded, series, errors = "", True, numbers.values, numbers.errors
        if form.kind != "limit":
            reason = self._why_no_power(series)
            if not reason:
                logs = np.log(np.asarray(self.values, dtype=float))
                heights, thick = np.log(series), -np.log1p(-errors / series)
                factors = np.exp(heights - expected * logs)
                constants = {"least_factor": float(np.min(factors)), "largest_factor": float(np.max(factors))}
                bounded = not isinstance(extrapolated(heights - expected * logs, thick), str)
                series = np.diff(heights) / np.diff(logs)
                errors = (thick[1:] + thick[:-1]) / np.abs(np.diff(logs))
        found = reason or extrapolated(series, errors)
        if isinstance(found, str):
            return said(verdict=Judgement.UNRESOLVED, constants=constants, note=noted(found))
        slack = found.centre - expected
        if form.kind in ("above", "below"):
            # As s -> 0, s^p is O(s^q) if p > q; as s -> infinity, if p < q.
            slack *= 1 if (form.kind == "above") == self._tends_to_zero else -1
        else:
            slack = -abs(slack)
        judgement, why = _compared(slack, found.radius, within, bounded)
        rests = f"By extrapolation from {self.window}: {found.centre:.8g} +- {found.radius:.1e}."
        return said(
            verdict=judgement,
            margin=slack / within,
            floor=found.radius / within,
            constants=constants | {"extrapolated": found.centre, "radius": found.radius},
            note=noted(rests, why),
        )

    @property
    def _towards(self) -> str:
        return f"{self.name} -> {value_text(self.values[-1])}"

    @property
    def _tends_to_zero(self) -> bool:
        return float(self.values[-1]) < float(self.values[0])

    def _why_no_power(self, series: np.ndarray) -> str:
        """Why a power of the parameter cannot be fitted; empty if it can."""
        if not all(map(checks.is_number, self.values)):
            return f"The values of {self.name} must be numbers."
        steps = np.diff(np.asarray(self.values, dtype=float))
        if not (np.all(steps > 0) or np.all(steps < 0)) or min(map(float, self.values)) <= 0:
            return f"The values of {self.name} must be positive, and increase or decrease."
        return "" if np.all(series > 0) else "The numbers of the members must be positive."

    def _all(self, verdicts: Sequence[Verdict]) -> Verdict:
        """The verdict on a statement about each member: the worst verdict of all members and, if there are several,
        the one with the least margin.
        """
        order = (Judgement.VIOLATED, Judgement.UNRESOLVED, Judgement.HOLDS, Judgement.VACUOUS, Judgement.NOT_APPLICABLE)
        worst = next(one for one in order if any(verdict.verdict is one for verdict in verdicts))
        places = [place for place, verdict in enumerate(verdicts) if verdict.verdict is worst]
        place = min(places, key=lambda place: _margin(verdicts[place]))
        verdict, counted = verdicts[place], sum(one.verdict is not Judgement.NOT_APPLICABLE for one in verdicts)
        number = f"at {len(places)} of" if worst in order[:2] else "at each of"
        note = f"{worst.capitalize()} {number} {counted} members, {self.window}." if counted else verdict.note
        where = self.label(place) if verdict.where is None else f"{self.label(place)}, {verdict.where_text()}"
        reason = verdict.note if worst in order[:2] else ""
        return dataclasses.replace(verdict, where=where, note=f"{note} {reason}".strip(), **_shortest(verdicts, worst))

    def _likely(self, claim: Claim, probability: float, verdicts: Sequence[Verdict]) -> Verdict:
        """The verdict on a probability. It is estimated from the draws for which the claim holds, with exact
        (Clopper-Pearson) confidence intervals; unresolved draws widen the interval.
        """
        drawn = [one for one in verdicts if one.verdict is not Judgement.NOT_APPLICABLE]
        if not drawn:
            return self._all(verdicts)
        fails = sum(one.verdict is Judgement.VIOLATED for one in drawn)
        holds = sum(one.verdict in _TRUE for one in drawn)
        count = len(drawn)
        low = scipy.stats.binomtest(holds, count).proportion_ci(_CONFIDENCE).low
        high = scipy.stats.binomtest(count - fails, count).proportion_ci(_CONFIDENCE).high
        decided = Judgement.HOLDS if low >= probability else Judgement.UNRESOLVED
        judgement = Judgement.VIOLATED if high < probability else decided
        centre = (low + high) / 2
        counts = f"It holds for {holds}, is violated for {fails} and unresolved for {count - holds - fails} of {count}"
        note = f"{counts} draws: the probability is {low:.3g} to {high:.3g}, at {_CONFIDENCE:.0%} confidence."
        return dataclasses.replace(
            drawn[0],
            verdict=judgement,
            margin=centre - probability,
            where=f"{count} draws",
            floor=(high - low) / 2,
            tightness=None,
            constants={"probability_low": float(low), "probability_high": float(high)},
            note=f"{claim.note} {note}".strip(),
            **_shortest(drawn, judgement),
        )


def _shortest(verdicts: Sequence[Verdict], judgement: Judgement) -> Options:
    """The fields ``until`` and ``cut`` of a verdict on a family; None and False unless it is "holds" or "vacuous".

    ``until`` is the least time up to which the statement was judged, over the members at which it holds; ``cut`` is
    whether a run was cut at one of these members.
    """
    counted = [one for one in verdicts if one.verdict in _TRUE] if judgement in _TRUE else []
    times = [one.until for one in counted if one.until is not None]
    return {"until": min(times, default=None), "cut": any(one.cut for one in counted)}


def _alone(claim: Claim) -> Claim:
    """The claim to judge at a single draw, made from a claim about a probability."""
    return dataclasses.replace(claim, compare=lambda *read: dataclasses.replace(claim.compare(*read), family=None))


def _above(claim: Claim, lower: float, size: float) -> Claim:
    """The claim that the number whose trend another claim states is at least ``lower``, with margins relative to
    ``size``.

    ``lower`` and ``size`` are arguments of the compiled program, so that one program serves all members.
    """
    compare = jax.tree_util.Partial(_exceeds, claim.compare, jnp.asarray(lower), jnp.asarray(size))
    return dataclasses.replace(claim, compare=compare)


def _exceeds(compare: Callable[..., Comparison], lower: Array, size: Array, *read: object) -> Comparison:
    trend = compare(*read)
    return at_least(trend.value, lower, size=size, allowance=trend.allowance)


def _number(claim: Claim, evidence: Evidence, least: float) -> tuple[Verdict, float, float]:
    """The number whose trend a claim states, for one member, and its error.

    Both are computed from the margin and the floor in the verdict on the claim that the number exceeds a lower
    number.

    **Arguments:** claim; evidence: of the member; least: the absolute accuracy that suffices for a small number.

    **Returns:** the verdict, the number, and its error (infinite if it is not known).
    """
    rough = _above(claim, 0.0, 1.0)
    (case, *_), _ = followed(rough, evidence)
    value = float(case.panel.compared(rough, evidence.stated, case.padded).value[0])
    if not math.isfinite(value):
        return judge_or_note(rough, evidence), value, math.inf
    size = max(abs(value), least)
    verdict = judge_or_note(_above(claim, value - size, size), evidence)
    if verdict.margin is None or verdict.floor is None:
        return verdict, value, math.inf
    return verdict, value + (verdict.margin - 1) * size, verdict.floor * size


def _compared(slack: float, radius: float, within: float, bounded: bool) -> tuple[Judgement, str]:
    """The judgement on a limit or a power, and the reason if it is unresolved.

    **Arguments:**

    - slack: for a one-sided bound, by how much the power satisfies it; otherwise minus the distance from the stated
      limit or power.
    - radius: the error of the slack.
    - within: the accuracy that is needed; a smaller difference violates nothing.
    - bounded: for a power, whether the number divided by the stated power of the parameter converges.
    """
    if slack > radius:
        return Judgement.HOLDS, ""
    # Extrapolation bounds nothing: a ladder whose steps are nearly periods of an oscillation does not see it.
    if slack < -max(_BEYOND * radius, within):
        return Judgement.VIOLATED, ""
    if slack < -radius:
        how = "extend the range of the parameter" if slack < -within else f"it is less than {within:g}"
        return Judgement.UNRESOLVED, f"The difference is too small to be decided: {how}."
    if radius > within:
        return Judgement.UNRESOLVED, f"Its error is larger than {within:g}: extend the range of the parameter."
    if not bounded:
        return Judgement.UNRESOLVED, "Divided by the power it does not converge: a logarithm may be missing."
    return Judgement.HOLDS, ""


def _margin(verdict: Verdict) -> float:
    return math.inf if verdict.margin is None else verdict.margin
