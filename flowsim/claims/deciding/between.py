"""Least margins in continuous time: where, between its output times, a flow has to be looked at more closely.

A statement for all t is compared at output times. Its margin is least at one of them or beside one: where it has a
local minimum, at either end of the run, or where the statement begins or ceases to promise something.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from flowsim.claims.claim import Claim, Comparison, relative
from flowsim.claims.deciding.measuring import rounding_error
from flowsim.claims.evidence import Case, Evidence
from flowsim.claims.evidence.narrow import unseen
from flowsim.losses import AbstractPopulationLoss

Series = Float[np.ndarray, " T"]
Margins = Float[np.ndarray, "T entries"]
Promised = Bool[np.ndarray, "T entries"]

_INSIDE = 7  # further times in an interval between two output times
_ROUNDS = 12
_ENTRIES = 64  # with the least margins, of which each is followed
_AT_ONCE = 2  # brackets of each kind
_DEEPER = 2.0  # times what a parabola falls below the least of its points: by how much more a margin may fall
_SAME = 1e-9  # of a time: a step between two that are closer is lost in rounding
_RESOLUTION = 1e-10  # of a margin, or of the bound where the margin is less
_NOTHING = np.zeros(0)
_INFINITE = 1e3  # times the largest margin, in place of one that is
_TIE = 1e-14  # of the bound: sides that are equal at the start


class Bracket(NamedTuple):
    """Output times, by their numbers, between which the margin may be lower than at any of them.

    vertex: a time at which it is expected to be least; bottom: the least value that it may have.
    """

    low: int
    high: int
    vertex: float
    bottom: float


def followed(claim: Claim, evidence: Evidence) -> tuple[tuple[Case, Case, Case], float]:
    """The three solves with the times that the claim asks for and those between the run's at which the margin may be
    least, and how much lower it may still be between any times.
    """
    if not claim.along_flow:
        return (evidence.alone, evidence.alone, evidence.alone), 0.0
    first = evidence.cases[0]
    ours = first.panel.compared(claim, evidence.stated, first.padded)
    asked = np.zeros(0)
    # Until its time is an output, flow.at(t) is NaN, and a comparison with NaN is false.
    if not (ours.promised.all() and np.all(np.isfinite(ours.slack))):
        asked = evidence.asked(claim)
    further, beneath = unseen(claim, evidence.stated, first, asked), 0.0
    if not ours.identity.all():
        noise = functools.partial(np.interp, xp=np.asarray(first.run.t), fp=_noise(claim, first, ours))
        further, beneath = follow(functools.partial(_margins, claim, evidence.stated, first, asked), noise, further)
    rough, fine, finest = (case.at(np.union1d(asked, further)) for case in evidence.cases)
    return (rough, fine, finest), beneath


def _noise(claim: Claim, case: Case, ours: Comparison) -> Series:
    """How far the margins of a comparison are off by rounding at each time; nothing of one at other points."""
    count = case.run.t.size
    if ours.slack.shape[0] < case.padded.t.size:
        return np.zeros(count)
    noise = np.where(ours.promised, relative(rounding_error(claim, case, ours), ours.reference), 0.0)
    return np.nan_to_num(np.max(noise[:count].reshape(count, -1), axis=1))


def _margins(
    claim: Claim, loss: AbstractPopulationLoss, case: Case, asked: np.ndarray, further: np.ndarray
) -> tuple[Series, Margins, Promised]:
    """Times, the margins at each and where they are promised; of a comparison at other points nothing."""
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
    """Further times at which a margin is least, and how much lower it may still be between any times.

    **Arguments:** margins: further times -> all times, increasing, the margins there and where they are promised;
    noise: times -> how far margins are off at them, below which nothing is followed; known: further times that are
    looked at whatever the margins say.
    """
    least, further = 0.0, known
    for _ in range(_ROUNDS):
        t, margin, promised = _finite(*margins(further))
        if not promised.any() or not np.all(np.isfinite(margin[promised])):
            return further, 0.0
        least = float(np.min(margin[promised]))
        enough = least - _RESOLUTION * (1 + abs(least)) - noise(t)
        kinds = dips(t, margin, promised), switches(t, margin, promised)
        lower = [one for found in kinds for one in _lower(found, enough)[:_AT_ONCE]]
        more = _apart(np.concatenate([times_within(t, one) for one in lower]), t) if lower else np.zeros(0)
        if not more.size:
            break
        beside = further[_beside(t, margin, promised, lower, further)]
        further = np.unique(np.concatenate([known, beside, more]))
    t, margin, promised = _finite(*margins(further))
    brackets = [*dips(t, margin, promised), *switches(t, margin, promised)]
    bottoms = [one.bottom + np.max(noise(t[one.low : one.high + 1])) for one in brackets]
    return further, max(0.0, least - float(min(bottoms, default=least)))


def _finite(t: Series, margin: Margins, promised: Promised) -> tuple[Series, Margins, Promised]:
    """The margins with those that are infinite as large as any other."""
    largest = np.max(np.abs(margin), where=np.isfinite(margin), initial=1.0)
    return t, np.where(margin == np.inf, _INFINITE * largest, margin), promised


def _lower(found: list[Bracket], enough: Series) -> list[Bracket]:
    return [one for one in found if one.bottom < np.min(enough[one.low : one.high + 1])]


def dips(t: Series, margin: Margins, promised: Promised) -> list[Bracket]:
    """Where the least promised margin has a local minimum, or that of an entry, the lowest bracket first."""
    inside = np.where(promised, margin, np.inf)
    found = _dips(t, np.min(inside, axis=1, initial=np.inf), np.asarray(promised.any(axis=1)))
    if margin.shape[1] > 1:
        for entry in np.argsort(np.min(inside, axis=0), kind="stable")[:_ENTRIES]:
            found += _dips(t, inside[:, entry], promised[:, entry])
    # The least margin is that of an entry.
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
    """Between which times an entry begins or ceases to promise something, the lowest bracket first. The margin where
    nothing is promised yet, or no longer, bounds what it may be at the switch.
    """
    found = []
    for k in np.flatnonzero(_switching(promised).any(axis=1)).tolist():
        here = np.flatnonzero(_switching(promised)[k])
        outside = np.where(promised[k, here], margin[k + 1, here], margin[k, here])
        if k == 0 and t.size > 2:
            # What is equal at the start, and promised after it, is as near to equal as anybody likes at once; and what
            # is divided by t there, or said of t > 0 alone, is what it comes to.
            slope = (margin[2, here] - margin[1, here]) / (t[2] - t[1])
            near = np.isnan(outside) | (t[1] <= _SAME * t[-1])
            outside = np.where(near, margin[1, here] - slope * (t[1] - t[0]), outside)
            outside = np.where(np.abs(outside) <= _TIE, np.inf, outside)
        bottom = float(np.min(np.where(np.isnan(outside), -np.inf, outside)))
        found.append(Bracket(k, k + 1, float(t[k] + t[k + 1]) / 2, bottom))
    return sorted(found, key=lambda bracket: bracket.bottom)


def _switching(promised: Promised) -> Bool[np.ndarray, "steps entries"]:
    """Between which times each entry switches."""
    return np.logical_xor(promised[:-1], promised[1:])


def times_within(t: Series, bracket: Bracket) -> Float[np.ndarray, " more"]:
    """Times inside of a bracket, evenly in each of its intervals, and the vertex."""
    inner = np.linspace(0, 1, _INSIDE + 2)[1:-1]
    times = [t[k] + inner * (t[k + 1] - t[k]) for k in range(bracket.low, bracket.high)]
    return np.append(np.concatenate(times), bracket.vertex)


def _beside(
    t: Series,
    margin: Margins,
    promised: Promised,
    brackets: list[Bracket],
    further: Float[np.ndarray, " more"],
) -> Bool[np.ndarray, " more"]:
    """Which further times are of use: those where the margin is least, those at brackets, and their neighbours."""
    least = np.min(np.where(promised, margin, np.inf), axis=1, initial=np.inf)
    switching = np.flatnonzero(_switching(promised).any(axis=1))
    rows = {int(np.argmin(least)), *switching.tolist(), *(switching + 1).tolist()}
    rows |= {row for one in brackets for row in range(one.low, one.high + 1)}
    near = {row + step for row in rows for step in (-1, 0, 1)}
    kept = np.asarray([t[row] for row in near if 0 <= row < t.size])
    return np.isin(further, kept)


def _apart(further: Float[np.ndarray, " more"], t: Series) -> Float[np.ndarray, " fewer"]:
    """Those of further times, increasing, that are no rounding of one another or of the times that there are."""
    kept = t
    for time in np.sort(further):
        if np.min(np.abs(kept - time)) > _SAME * abs(time):
            kept = np.append(kept, time)
    return np.sort(kept[t.size :])


def _parabola(t: Series, margin: Series, i: int, j: int, k: int, within: tuple[int, int]) -> Bracket:
    """The bracket between two times by the parabola through three."""
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
