"""Least margins in continuous time: where, between its output times, a flow has to be looked at more closely.

A statement for all t is compared at output times. Its margin is least at one of them or beside one: where it has a
local minimum, where the statement begins or ceases to promise something, or at either end of the run.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

Series = Float[np.ndarray, " T"]
Promised = Bool[np.ndarray, " T"]

_INSIDE = 7  # further times in an interval between two output times
_ROUNDS = 8
_AT_ONCE = 2  # brackets
_SAME = 1e-9  # of a time: a step between two that are closer is lost in rounding
_RESOLUTION = 1e-10  # of a margin, or of the bound where the margin is less


class Bracket(NamedTuple):
    """Output times, by their numbers, between which the margin may be lower than at any of them.

    vertex: a time at which it is expected to be least; bottom: the least value expected.
    """

    low: int
    high: int
    vertex: float
    bottom: float


def follow(
    margins: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]],
) -> tuple[Float[np.ndarray, " more"], float]:
    """Further times at which a margin is least, and how much lower it may still be between any times.

    **Arguments:** margins: further times -> all times, increasing, the margin there and where anything is promised.
    """
    further, least = np.zeros(0), 0.0
    for _ in range(_ROUNDS):
        t, margin, promised = margins(further)
        if not promised.any() or not np.all(np.isfinite(margin[promised])):
            return further, 0.0
        least = float(np.min(margin[promised]))
        lower = [one for one in brackets(t, margin, promised) if one.bottom < least - _RESOLUTION * (1 + abs(least))]
        if not lower:
            break
        more = _apart(np.concatenate([times_within(t, one) for one in lower[:_AT_ONCE]]), t)
        if not more.size:
            break
        further = np.union1d(further, more)
    bottoms = [one.bottom for one in brackets(t, margin, promised)]
    return further, max(0.0, least - min(bottoms, default=least))


def brackets(t: Series, margin: Series, promised: Promised) -> list[Bracket]:
    """Every bracket, the lowest first."""
    found = []
    last = t.size - 1
    for k in np.flatnonzero(promised).tolist():
        before, after = k > 0 and promised[k - 1], k < last and promised[k + 1]
        if before and after:
            if margin[k - 1] >= margin[k] <= margin[k + 1]:
                found.append(_parabola(t, margin, k - 1, k, k + 1, (k - 1, k + 1)))
        elif before or after:
            inner, outer = (k + 1, k - 1) if after else (k - 1, k + 1)
            if margin[k] > margin[inner]:
                continue
            if 0 <= outer <= last:
                slope = (margin[k] - margin[inner]) / (t[k] - t[inner])
                bottom = float(margin[k] + slope * (t[outer] - t[k]))
                found.append(Bracket(min(k, outer), max(k, outer), float(t[k]), bottom))
            else:
                beyond = 2 * inner - k
                if 0 <= beyond <= last and promised[beyond]:
                    low, high = min(k, beyond), max(k, beyond)
                    found.append(_parabola(t, margin, low, inner, high, (min(k, inner), max(k, inner))))
    return sorted(found, key=lambda bracket: bracket.bottom)


def times_within(t: Series, bracket: Bracket) -> Float[np.ndarray, " more"]:
    """Times inside of a bracket, evenly in each of its intervals, and the vertex."""
    inner = np.linspace(0, 1, _INSIDE + 2)[1:-1]
    times = [t[k] + inner * (t[k + 1] - t[k]) for k in range(bracket.low, bracket.high)]
    return np.append(np.concatenate(times), bracket.vertex)


def _apart(further: Float[np.ndarray, " more"], t: Series) -> Float[np.ndarray, " fewer"]:
    """Those of further times, increasing, that are no rounding of one another or of the times that there are."""
    kept = t
    for time in further:
        if np.min(np.abs(kept - time)) > _SAME * time:
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
            vertex, bottom = (float(root), float(value)) if value < bottom else (vertex, bottom)
    return Bracket(low, high, vertex, bottom)
