"""Find the least margin of a statement in continuous time, by further times at which the statement is compared.

A statement for all t is compared at output times. Between them its margin can be lower in three places: near a
local minimum, near either end of the run, and where the statement starts or stops asserting something.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from flowsim.claims.claim import Claim, Comparison, relative
from flowsim.claims.deciding.measuring import rounding_error
from flowsim.claims.evidence import Case, Evidence
from flowsim.claims.evidence.narrow import hidden_events
from flowsim.losses import AbstractPopulationLoss

Series = Float[np.ndarray, " T"]
Margins = Float[np.ndarray, "T entries"]
Promised = Bool[np.ndarray, "T entries"]

_INSIDE = 7  # further times in an interval between two output times
_ROUNDS = 12
_ENTRIES = 64  # entries of a row that are followed, those with the least margins
_AT_ONCE = 2  # brackets of each kind in one round
_DEEPER = 2.0  # a margin may fall this many times as far below its least point as the parabola does
_SAME = 1e-9  # of a time: closer times differ by rounding only
_RESOLUTION = 1e-10  # of a margin, or of the bound if that is larger
_NOTHING = np.zeros(0)
_INFINITE = 1e3  # of the largest finite margin, in place of an infinite one
_TIE = 1e-14  # of the bound: sides this close at the start count as equal


class Bracket(NamedTuple):
    """A time interval in which the margin may be lower than at the output times.

    **Fields:**

    - low, high: the rows of the output times at the ends of the interval.
    - vertex: the time at which the margin is expected to be least.
    - bottom: the least value that the margin may have.
    """

    low: int
    high: int
    vertex: float
    bottom: float


def followed(claim: Claim, evidence: Evidence) -> tuple[tuple[Case, Case, Case], float]:
    """The three solves with further times, and a bound on how much lower a margin may be between times than at
    them.

    The further times are those at which the claim evaluates the flow, and those at which a margin may be least.
    """
    if not claim.along_flow:
        return (evidence.alone, evidence.alone, evidence.alone), 0.0
    first = evidence.cases[0]
    ours = first.panel.compared(claim, evidence.stated, first.padded)
    asked = np.zeros(0)
    # Until its time is an output, flow.at(t) is NaN, and a comparison with NaN is false.
    if not (ours.promised.all() and np.all(np.isfinite(ours.slack))):
        asked = evidence.asked(claim)
    further, beneath = hidden_events(claim, evidence.stated, first, asked), 0.0
    if not ours.identity.all():
        known = functools.cache(lambda: _noise(claim, first, ours))
        noise = lambda t: np.interp(t, np.asarray(first.run.t), known())
        further, beneath = follow(functools.partial(_margins, claim, evidence.stated, first, asked), noise, further)
    rough, fine, finest = (case.at(np.union1d(asked, further)) for case in evidence.cases)
    return (rough, fine, finest), beneath


def _noise(claim: Claim, case: Case, ours: Comparison) -> Series:
    """The rounding error of the margin of a comparison at each time, the largest of all entries. Zero if the rows
    of the comparison are not times.
    """
    count = case.run.t.size
    if ours.slack.shape[0] < case.padded.t.size:
        return np.zeros(count)
    noise = np.where(ours.promised, relative(rounding_error(claim, case, ours), ours.reference), 0.0)
    return np.nan_to_num(np.max(noise[:count].reshape(count, -1), axis=1))


def _margins(
    claim: Claim, loss: AbstractPopulationLoss, case: Case, asked: np.ndarray, further: np.ndarray
) -> tuple[Series, Margins, Promised]:
    """The output times of a solve with ``further`` times added, the margins at these times, and where the statement
    asserts anything.

    All three are empty if the rows of the comparison are not times.
    """
    case = case.at(np.union1d(asked, further))
    ours, count = case.panel.compared(claim, loss, case.padded), case.run.t.size
    if ours.slack.shape[0] < case.padded.t.size:
        return np.zeros(0), np.zeros((0, 1)), np.zeros((0, 1), dtype=bool)
    rows = lambda side: np.asarray(side)[:count].reshape(count, -1)
    # Where a flow is at rest its margins are rounding.
    promised = rows(ours.promised) & (np.arange(count) < case.at_rest)[:, None]
    return np.asarray(case.run.t), rows(ours.margin), promised


def follow(
    margins: Callable[[np.ndarray], tuple[Series, Margins, Promised]],
    noise: Callable[[Series], Series] = np.zeros_like,
    known: Series = _NOTHING,
) -> tuple[Float[np.ndarray, " more"], float]:
    """Find the times at which a margin is least, and a bound on how much lower it may be between all times.

    **Arguments:**

    - margins: further times -> all times, increasing; the margins at each; where the statement asserts anything.
    - noise: times -> the errors of the margins at these times. Where a margin can be lower by less than its error,
      no times are added.
    - known: further times that are always included.

    **Returns:** the further times, and the bound.
    """
    least, further = 0.0, known
    for _ in range(_ROUNDS):
        t, margin, promised = _finite(*margins(further))
        if not promised.any() or not np.all(np.isfinite(margin[promised])):
            return further, 0.0
        least = float(np.min(margin[promised]))
        enough = np.full(t.size, least - _RESOLUTION * (1 + abs(least)))
        kinds = [_lower(found, enough) for found in (dips(t, margin, promised), switches(t, margin, promised))]
        if any(kinds):
            # The noise, which is never below zero, takes more comparisons.
            enough = enough - noise(t)
        lower = [one for found in kinds for one in _lower(found, enough)[:_AT_ONCE]]
        more = _apart(np.concatenate([times_within(t, one) for one in lower]), t) if lower else np.zeros(0)
        if not more.size:
            break
        near = further[_useful(t, margin, promised, lower, further)]
        further = np.unique(np.concatenate([known, near, more]))
    t, margin, promised = _finite(*margins(further))
    brackets = _lower([*dips(t, margin, promised), *switches(t, margin, promised)], np.full(t.size, least))
    bottoms = [one.bottom + np.max(noise(t[one.low : one.high + 1])) for one in brackets]
    return further, max(0.0, least - float(min(bottoms, default=least)))


def _finite(t: Series, margin: Margins, promised: Promised) -> tuple[Series, Margins, Promised]:
    """The three arguments, with infinite margins replaced by a large finite number."""
    largest = np.max(np.abs(margin), where=np.isfinite(margin), initial=1.0)
    return t, np.where(margin == np.inf, _INFINITE * largest, margin), promised


def _lower(found: list[Bracket], enough: Series) -> list[Bracket]:
    return [one for one in found if one.bottom < np.min(enough[one.low : one.high + 1])]


def dips(t: Series, margin: Margins, promised: Promised) -> list[Bracket]:
    """Brackets around local minima in time, lowest first: of the least margin over all entries, and of the margin
    of each entry.
    """
    inside = np.where(promised, margin, np.inf)
    found = _dips(t, np.min(inside, axis=1, initial=np.inf), np.asarray(promised.any(axis=1)))
    if margin.shape[1] > 1:
        for entry in np.argsort(np.min(inside, axis=0), kind="stable")[:_ENTRIES]:
            found += _dips(t, inside[:, entry], promised[:, entry])
    # The least margin is the margin of some entry, so that a bracket can occur twice.
    return sorted(dict.fromkeys(found), key=lambda bracket: bracket.bottom)


def _dips(t: Series, least: Series, anything: Bool[np.ndarray, " T"]) -> list[Bracket]:
    found = []
    last = t.size - 1
    for k in np.flatnonzero(anything).tolist():
        before, after = k > 0 and anything[k - 1], k < last and anything[k + 1]
        if before and after:
            if least[k - 1] >= least[k] <= least[k + 1]:
                found.append(_parabola(t, least, k - 1, k, k + 1, (k - 1, k + 1)))
        elif (after and k == 0) or (before and k == last):
            inner = k + 1 if after else k - 1
            beyond = 2 * inner - k
            if least[k] <= least[inner] and 0 <= beyond <= last and anything[beyond]:
                low, high = min(k, beyond), max(k, beyond)
                found.append(_parabola(t, least, low, inner, high, (min(k, inner), max(k, inner))))
    return found


def switches(t: Series, margin: Margins, promised: Promised) -> list[Bracket]:
    """Brackets of the steps in which an entry starts or stops asserting something, lowest first.

    At one end of a step of this kind the entry asserts nothing. The margin at that end bounds the margin at the
    switch.
    """
    found = []
    for k in np.flatnonzero(_switching(promised).any(axis=1)).tolist():
        here = np.flatnonzero(_switching(promised)[k])
        outside = np.where(promised[k, here], margin[k + 1, here], margin[k, here])
        if k == 0 and t.size > 2:
            # Sides that are equal at the start and promised after it have margins near zero right after the start. A
            # statement for t > 0, or one divided by t, has its limit there.
            slope = (margin[2, here] - margin[1, here]) / (t[2] - t[1])
            near = np.isnan(outside) | (t[1] <= _SAME * t[-1])
            outside = np.where(near, margin[1, here] - slope * (t[1] - t[0]), outside)
            outside = np.where(np.abs(outside) <= _TIE, np.inf, outside)
        bottom = float(np.min(np.where(np.isnan(outside), -np.inf, outside)))
        found.append(Bracket(k, k + 1, float(t[k] + t[k + 1]) / 2, bottom))
    return sorted(found, key=lambda bracket: bracket.bottom)


def _switching(promised: Promised) -> Bool[np.ndarray, "steps entries"]:
    return np.logical_xor(promised[:-1], promised[1:])


def times_within(t: Series, bracket: Bracket) -> Float[np.ndarray, " more"]:
    """Times inside a bracket: evenly spaced ones in each of its steps, and its vertex."""
    inner = np.linspace(0, 1, _INSIDE + 2)[1:-1]
    times = [t[k] + inner * (t[k + 1] - t[k]) for k in range(bracket.low, bracket.high)]
    return np.append(np.concatenate(times), bracket.vertex)


def _useful(
    t: Series,
    margin: Margins,
    promised: Promised,
    brackets: list[Bracket],
    further: Float[np.ndarray, " more"],
) -> Bool[np.ndarray, " more"]:
    """Which of the further times are useful: the one with the least margin, those in brackets and at switches, and
    their neighbours.
    """
    least = np.min(np.where(promised, margin, np.inf), axis=1, initial=np.inf)
    switching = np.flatnonzero(_switching(promised).any(axis=1))
    rows = {int(np.argmin(least)), *switching.tolist(), *(switching + 1).tolist()}
    rows |= {row for one in brackets for row in range(one.low, one.high + 1)}
    near = {row + step for row in rows for step in (-1, 0, 1)}
    kept = np.asarray([t[row] for row in near if 0 <= row < t.size])
    return np.isin(further, kept)


def _apart(further: Float[np.ndarray, " more"], t: Series) -> Float[np.ndarray, " fewer"]:
    """The further times, increasing, without those that agree up to rounding with one another or with one of the
    times t.
    """
    kept = t
    for time in np.sort(further):
        if np.min(np.abs(kept - time)) > _SAME * abs(time):
            kept = np.append(kept, time)
    return np.sort(kept[t.size :])


def _parabola(t: Series, margin: Series, i: int, j: int, k: int, within: tuple[int, int]) -> Bracket:
    """The bracket between the two rows ``within``, from the parabola through the margins in rows i, j and k."""
    low, high = within
    first, second = (margin[j] - margin[i]) / (t[j] - t[i]), (margin[k] - margin[j]) / (t[k] - t[j])
    curvature = (second - first) / (t[k] - t[i])
    lesser = low if margin[low] <= margin[high] else high
    ends = [(float(t[m]), float(margin[m])) for m in (lesser, j) if low <= m <= high]
    vertex, bottom = min(ends, key=lambda end: end[1])
    if curvature > 0:
        root = (t[i] + t[j]) / 2 - first / (2 * curvature)
        if t[low] < root < t[high]:
            value = margin[i] + first * (root - t[i]) + curvature * (root - t[i]) * (root - t[j])
            if value < bottom:
                vertex, bottom = float(root), float(value - _DEEPER * (bottom - value))
    return Bracket(low, high, vertex, bottom)
