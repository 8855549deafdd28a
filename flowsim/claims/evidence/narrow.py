"""Events between two output times of a run: a range in which a claim asserts something is entered and left, a
margin has a narrow dip, or the loss has a wall or a pit.

Balls contain all weights from one time to the next. A time interval in which they do not exclude an event is halved
repeatedly, and its middle is evaluated. Events narrower than the shortest intervals are not found.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from flowsim._core.balls.enclosure import lower, upper
from flowsim.claims.claim import Claim, Comparison
from flowsim.claims.evidence.case import AT_ONCE, SPANS, Case
from flowsim.claims.evidence.comparing import WORST_RESOLUTION
from flowsim.claims.evidence.enclosing import CHEAP, COSTLY, OpenError
from flowsim.claims.evidence.moving import ROUNDING
from flowsim.flow.trajectory import Status
from flowsim.losses import AbstractPopulationLoss

Times = Float[np.ndarray, " spans"]
Asked = Float[np.ndarray, " asked"]
More = Float[np.ndarray, " more"]
Mask = Bool[np.ndarray, " spans"]

_HALVINGS, _OF_FEW = 12, 28  # the number of halvings, and the number while few spans are left
_OF_IDENTITIES = 10  # halvings for identities, which balls nearly always leave open
_MOST = 64  # spans that are halved
_FOUND = 4  # times that are returned
_ROUNDS = 3
_STEEPER = 4.0  # times |grad|^2 at both neighbours: a larger or smaller gradient is an anomaly
_FLATTER = 2.0  # the weight of a gradient that may be too small, in units of the loss being off by its limit
_OFF = 0.02  # of the change of the loss over a step: a larger deviation within the step is an anomaly


class Found(NamedTuple):
    """What ball arithmetic shows about several time intervals.

    **Fields:**

    - may: (spans,) whether an event is possible in the interval.
    - is_there: (spans,) whether there is an event at its middle.
    - much: (spans,) how large the event may be; intervals with larger values are searched first.
    """

    may: Mask
    is_there: Mask
    much: Times


def hidden_events(claim: Claim, loss: AbstractPopulationLoss, case: Case, asked: Asked) -> More:
    """Times between the output times of a run at which a claim must be checked too.

    At these times an inequality fails, or the claim asserts something although it asserts nothing at both
    neighbouring output times.

    **Arguments:**

    - claim: the claim.
    - loss: the loss.
    - case: the solve.
    - asked: the times at which the claim evaluates the flow.
    """
    times = np.zeros(0)
    for _ in range(_ROUNDS):
        # See `stepped_over`.
        finer = case.at(np.union1d(asked, times))
        found = _hidden_events(claim, finer, finer.panel.compared(claim, loss, finer.padded))
        if not found.size:
            break
        times = np.union1d(times, found)
    return times


def _hidden_events(claim: Claim, case: Case, ours: Comparison) -> More:
    count = case.run.t.size
    identity = bool(ours.identity.all())
    # An identity is not known better.
    enough = -WORST_RESOLUTION * float(np.max(ours.reference, initial=0.0)) if identity else 0.0
    if _stays(case) or ours.slack.shape[0] < case.padded.t.size or _fails_anyway(claim, case, ours, enough):
        return np.zeros(0)
    promised = _anywhere(np.asarray(ours.promised)[:count].reshape(count, -1))
    promised_nearby = promised[:-1] | promised[1:]

    def look(left: np.ndarray, low: Times, high: Times) -> Found:
        bounds = case.within(low, high).between(claim, CHEAP)
        times = SPANS
        if bounds.low.shape[0] != times + ours.slack.shape[0] - case.padded.t.size:
            raise OpenError("it has no row for each time")
        rows = lambda side: np.asarray(side)[:times].reshape(times, -1)
        least, most = rows(bounds.low - bounds.allowance), rows(bounds.high + bounds.allowance)
        possible, certain = rows(bounds.possible), rows(bounds.certain)
        below = np.where(possible, -least / rows(bounds.scale), -np.inf).max(axis=1, initial=-np.inf)
        fails, may_fail = _anywhere(certain & (most < enough)), _anywhere(possible & ~(least >= enough))
        middles, spans = slice(1, low.size + 1), slice(AT_ONCE + 1, AT_ONCE + 1 + low.size)
        new = ~promised_nearby[left]
        return Found(
            may=may_fail[spans] | new & _anywhere(possible)[spans],
            is_there=fails[middles] | new & _anywhere(certain)[middles],
            much=below[spans],
        )

    return _found_between(case, look, thorough=not identity)


def _fails_anyway(claim: Claim, case: Case, ours: Comparison, enough: float) -> bool:
    """Whether slack + allowance < enough at an output time, so that no failure between the times has to be found.

    Balls have to confirm this if they can be computed.
    """
    count = case.run.t.size
    gap = np.where(ours.promised, ours.slack + ours.allowance, np.inf)[:count].reshape(count, -1)
    gap = gap.min(axis=1, initial=np.inf)
    if not np.any(gap < enough):
        return False
    row = int(np.argmin(gap))
    rows = np.unique([0, row, count - 1])
    try:
        bounds = case.enclosed.compared(claim, rows, COSTLY)
    except OpenError:
        return True
    there = np.searchsorted(rows, row)
    return bool(np.any(bounds.certain[there] & (bounds.high[there] + bounds.allowance[there] < enough)))


def _stays(case: Case) -> bool:
    return case.run.t.size == 1 or case.status is Status.STATIONARY


def _anywhere(points: Bool[np.ndarray, "rows entries"]) -> Bool[np.ndarray, " rows"]:
    return np.asarray(points.any(axis=1))


def stepped_over(case: Case) -> float | None:
    """A time between the output times of a run at which the loss or its gradient is far from what both neighbours
    suggest; None if there is no such time.

    The loss is compared with its interpolation, and |grad L| with its values at both neighbours.
    """
    finer, times = case, np.zeros(0)
    steep = np.asarray(case.run.grad_norm_sq)
    steepest, least = _steepest(steep), _least(steep)
    for _ in range(_ROUNDS):
        found = _off_course(finer, _STEEPER)
        if not found.size:
            return None
        # The interpolation is less accurate than the solve, so that suspicious times are solved for.
        times = np.union1d(times, found)
        finer = case.at(times)
        there = np.asarray(finer.run.grad_norm_sq)[np.searchsorted(np.asarray(finer.run.t), times)]
        # A flow that meets a wall rests in front of it, or is on its slope, at such a time.
        strange = (there > _STEEPER * steepest[_left(case, times)]) | (_STEEPER * there < least[_left(case, times)])
        if strange.any():
            return float(times[np.argmax(strange)])
    # For stiff weights a cubic reaches points with large gradients, but with similar losses.
    found = _off_course(finer, np.inf)
    return float(found[0]) if found.size else None


def _steepest(steep: Float[np.ndarray, " rows"]) -> Float[np.ndarray, " steps"]:
    """For each step, the larger |grad L|^2 at its two ends, plus the rounding error."""
    return np.maximum(steep[:-1], steep[1:]) + ROUNDING * np.max(steep)


def _least(steep: Float[np.ndarray, " rows"]) -> Float[np.ndarray, " steps"]:
    """For each step, the smaller |grad L|^2 at its two ends, minus the rounding error."""
    return np.minimum(steep[:-1], steep[1:]) - ROUNDING * np.max(steep)


def _left(case: Case, times: More) -> Int[np.ndarray, " more"]:
    return np.searchsorted(np.asarray(case.run.t), times) - 1


def _off_course(case: Case, steeper: float) -> More:
    """Times within steps at which the loss or its gradient is far from what the ends of the step suggest.

    There the loss differs from its interpolation by more than 2% of its change over the step, or |grad L|^2 is more
    than ``steeper`` times its larger value at the ends, or less than 1/``steeper`` of its smaller value there.
    """
    if _stays(case):
        return np.zeros(0)
    try:
        # A loss that cancels has only rounding left in float64.
        losses, steep = ((lower(one) + upper(one)) / 2 for one in case.enclosed.exact.records(COSTLY))
    except OpenError:
        return np.zeros(0)
    exact = dataclasses.replace(case.run, loss=jax.device_put(losses), grad_norm_sq=jax.device_put(steep))
    course = dataclasses.replace(case.course, run=exact)
    room = _OFF * np.abs(np.diff(losses)) + ROUNDING * np.abs(losses[:-1])
    steepest, least = steeper * _steepest(steep), _least(steep) / steeper

    def look(left: np.ndarray, low: Times, high: Times) -> Found:
        loss, slope = case.within(low, high).records(CHEAP)
        (_, first), (lowest, highest), (last, _) = (course.loss(t) for t in (low, (low + high) / 2, high))
        middles, spans = slice(1, low.size + 1), slice(AT_ONCE + 1, AT_ONCE + 1 + low.size)
        above, below = lower(loss[middles]) - highest, lowest - upper(loss[middles])
        over, under = upper(loss[spans]) - first, last - lower(loss[spans])
        much = np.maximum(np.maximum(over, under) / room[left], upper(slope[spans]) / steepest[left])
        much = np.where(lower(slope[spans]) < least[left], np.maximum(much, _FLATTER), much)
        off = (np.maximum(above, below) > room[left]) | (lower(slope[middles]) > steepest[left])
        off |= upper(slope[middles]) < least[left]
        return Found(~(much <= 1), off, much)

    return _found_between(case, look)


def _found_between(case: Case, look: Callable[[np.ndarray, Times, Times], Found], *, thorough: bool = True) -> More:
    """Times, at most four, at which an event was found. Each is the middle of a time interval.

    The first intervals are the steps of the run. Intervals in which an event is possible are halved until one is
    found.

    **Arguments:**

    - case: the solve.
    - look: (the row before each interval, the intervals' left ends, their right ends) -> `Found`.
    - thorough: whether to halve intervals 12 times, and up to 28 times while few are left, instead of 10 times.
    """
    t, last = np.asarray(case.run.t), min(case.at_rest, case.run.t.size - 1)
    if not last:
        return np.zeros(0)
    left, low, high = np.arange(last), t[:last], t[1 : last + 1]
    for halvings in range(_OF_FEW):
        if halvings > (_HALVINGS if thorough else _OF_IDENTITIES) and (low.size > AT_ONCE or not thorough):
            break
        parts = [slice(begin, begin + AT_ONCE) for begin in range(0, low.size, AT_ONCE)]
        try:
            looks = [look(left[part], low[part], high[part]) for part in parts]
        except OpenError:
            break
        found = Found(*(np.concatenate(one) for one in zip(*looks, strict=True)))
        chosen = np.flatnonzero(found.is_there if found.is_there.any() else found.may)
        chosen = np.sort(chosen[np.argsort(-np.nan_to_num(found.much[chosen], nan=-np.inf), kind="stable")[:_MOST]])
        middle = (low + high)[chosen] / 2
        if found.is_there.any():
            return middle[:_FOUND]
        if not chosen.size:
            break
        left = np.append(left[chosen], left[chosen])
        low, high = np.append(low[chosen], middle), np.append(middle, high[chosen])
    return np.zeros(0)
