"""Statements after the end of a run: whether the allowance of a statement about the limit covers the rest of the
flow, and whether a statement for all t still holds.
"""

import contextlib
import dataclasses

import equinox as eqx
import flint
import jax
import numpy as np

from flowsim._core.balls.operations import balls
from flowsim.claims.claim import Claim, Comparison
from flowsim.claims.deciding.sides import Sides
from flowsim.claims.evidence import Case, Evidence
from flowsim.claims.evidence.comparing import WORST_RESOLUTION
from flowsim.claims.evidence.enclosing import COSTLY, Enclosed, OpenError
from flowsim.flow.trajectory import Status, Trajectory
from flowsim.losses.sampled.monte_carlo import MonteCarloLoss

_LATEST = 1e300
_DECADES, _LAST, _FURTHER = 18, 290, 8  # decades of time after the end: one by one, then in eights up to the last
_MOVES = 4.0  # sides that change by more than this many times their error have changed
_TENFOLD = 10.0
_ALIKE = 0.5, 2.5  # of the growth in the tenfold time before
_NOT_NOTHING = 1e-3  # of the weights
_LATE = (
    "The flow leaves a saddle so late that float64 cannot resolve the drop in times from the start. "
    "Only statements without times can be judged here, and only for an exact loss."
)


def reads_the_end(claim: Claim, evidence: Evidence, case: Case) -> tuple[bool, bool, bool]:
    """How a statement depends on the end of the flow, as three truth values.

    1. Whether it uses the end of the flow in a special role, and not only as one of many times. A least value over
    the flow counts only if it is attained at the end.
    2. Whether its allowance depends on the end.
    3. Whether the statement changes when the flow is continued.
    """
    if case.is_row_by_row(claim):
        return False, False, False
    loss = evidence.stated
    ours = case.panel.compared(claim, loss, case.padded)
    length, count = ours.slack.shape[0], case.run.t.size
    repeated = case.padded.t.size - count
    ends = iter(case.with_other_ends)

    def changed(other: Comparison) -> np.ndarray:
        return np.asarray(_differs(ours, other).reshape(length, -1).any(axis=1))

    try:
        with_nan = case.panel.compared(claim, loss, next(ends))
        # A series along the flow changes in its last row only.
        reads, differs = bool(np.sum(changed(with_nan)) > length // case.padded.t.size), False
    except ValueError:
        # The comparison refuses weights that are NaN, so that it reads them.
        return True, True, False
    for one in ends if not reads else ():
        # With other ends a size may be negative, which is refused.
        with contextlib.suppress(ValueError):
            if _reads(changed(case.panel.compared(claim, loss, one)), count, repeated):
                reads = differs = not _is_so_later(claim, evidence)
                break
    # An allowance that stays the same for another end does not depend on it. An infinite one does: the bound on the
    # remaining length is not computed yet.
    allowed, without = (one.allowance[ours.promised] for one in (ours, with_nan))
    return reads, bool(np.any(np.isinf(allowed))) or not np.array_equal(allowed, without), differs


def _differs(ours: Comparison, other: Comparison) -> np.ndarray:
    """Where only one of two comparisons asserts something, or both do and their slacks differ."""
    same = (ours.slack == other.slack) | (np.isnan(ours.slack) & np.isnan(other.slack)) | ~ours.promised
    return np.asarray(~same | (ours.promised != other.promised))


def _reads(changed: np.ndarray, count: int, repeated: int) -> bool:
    """Whether a comparison has changed anywhere but in the rows of series that repeat the end of the flow.

    **Arguments:**

    - changed: which entries of the comparison have changed.
    - count: the number of output times.
    - repeated: the number of copies of the end that follow the output times.
    """
    # A series may have several entries for each time, one after the other.
    edges = np.flatnonzero(np.diff(np.concatenate([[False], changed, [False]])))
    begin, many = edges[::2], edges[1::2] - edges[::2]
    return not np.all((many == repeated) | (many % repeated == 0) & (begin == many // repeated * count))


def _is_so_later(claim: Claim, evidence: Evidence) -> bool:
    """Whether the statement stays the same when the flow is continued: no inequality changes its sign, and no
    identity changes its slack.

    False for a flow that was cut, since later changes may lie beyond any continuation.
    """
    status = evidence.trajectory.status
    if status is Status.STATIONARY:
        return True
    if status not in (Status.EXCESS, Status.GRAD_NORM) or evidence.prolonged is None:
        return False
    now, later = _now_and_later(claim, evidence, evidence.prolonged)
    if now.slack.shape != later.slack.shape:
        return False
    same = np.where(now.identity, now.slack == later.slack, (now.slack >= 0) == (later.slack >= 0))
    return bool(np.all(same | ~now.promised))


def allows_for_a_while(claim: Claim, evidence: Evidence, case: Case, sides: Sides) -> bool:
    """Whether the slack of a statement about the limit changes by at most its allowance, up to numerical errors,
    when the flow is continued.

    **Arguments:** claim; evidence; case: the solve on which the sides are known; sides.
    """
    if evidence.prolonged is None:
        # A solver that cannot continue, as at a kink, says nothing about later times.
        return evidence.trajectory.status is Status.STATIONARY
    now, later = (one.slack for one in _now_and_later(claim, evidence, evidence.prolonged))
    # What is allowed for a limit is the distance from where the flow was continued to.
    now = now if case.tail is None else case.panel.compared(claim, evidence.stated, case.padded).slack[: now.shape[0]]
    rows = slice(now.shape[0])
    if now.shape != later.shape or now.shape != sides.slack[rows].shape:
        return False
    moved = np.abs(later - now) > (sides.allowance + _MOVES * sides.error)[rows]
    return not np.any(moved & sides.possible[rows])


def _now_and_later(claim: Claim, evidence: Evidence, prolonged: Case) -> list[Comparison]:
    """The comparison on the flow, and the comparison on its continuation.

    Of a comparison with a row for each time, only the rows up to the end of the flow are returned.
    """
    cases = evidence.cases[0], prolonged
    found = [case.panel.compared(claim, evidence.stated, case.padded) for case in cases]
    lengths = zip(found, cases, strict=True)
    if all(one.slack.shape[0] == case.padded.t.size for one, case in lengths):
        count = cases[0].run.t.size
        found = [jax.tree.map(lambda side: side[:count], one) for one in found]
    return found


def depends_on_the_times(claim: Claim, evidence: Evidence) -> bool:
    """Whether a statement changes if the same weights are reached at other times, as an integral over time does."""
    case = evidence.cases[0]
    ours = case.panel.compared(claim, evidence.stated, case.padded)
    try:
        other = case.panel.compared(claim, evidence.stated, case.at_other_times)
    except ValueError:
        # A size may be negative then, which is refused.
        return True
    return bool(_differs(ours, other).any())


def too_late(claim: Claim, evidence: Evidence) -> str:
    """The reason why a statement cannot be judged on a flow that leaves a saddle late; empty if it can."""
    if not evidence.late:
        return ""
    return _LATE if isinstance(evidence.loss, MonteCarloLoss) or _reads_the_time(claim, evidence) else ""


def _reads_the_time(claim: Claim, evidence: Evidence) -> bool:
    """Whether a statement evaluates the flow at a time, or changes with the times of the rows or their origin."""
    if evidence.times_of(claim) or depends_on_the_times(claim, evidence):
        return True
    case = evidence.cases[0]
    from_start = jax.device_put(evidence.clock.since_start(np.asarray(case.padded.t)))
    padded = dataclasses.replace(case.padded, t=from_start)
    ours, other = (case.panel.compared(claim, evidence.stated, run) for run in (case.padded, padded))
    return bool(_differs(ours, other).any())


def depends_on_others(claim: Claim, evidence: Evidence) -> bool:
    """Whether a series along a flow depends, at some time, on times other than that time, the start and the end."""
    case = evidence.cases[0]
    if case.is_row_by_row(claim):
        return False
    count = case.run.t.size
    ours = case.panel.compared(claim, evidence.stated, case.padded)
    rows = np.arange(0, count - 1, 2)
    for other in case.with_others:
        # A size may be negative then, which is refused.
        with contextlib.suppress(ValueError):
            changed = case.panel.compared(claim, evidence.stated, other)
            if not np.array_equal(ours.slack[rows], changed.slack[rows], equal_nan=True):
                return True
    return False


def is_in_order(claim: Claim, evidence: Evidence) -> bool:
    """Whether the rows of a comparison follow the order of the times. This is tested on the rows of the repeated
    end, which must be last and equal.
    """
    case = evidence.cases[0]
    ours = case.panel.compared(claim, evidence.stated, case.padded)
    times = case.padded.t.size
    if ours.slack.shape[0] < times:
        return True
    repeated = slice(case.run.t.size + 1, times)
    return all(
        np.array_equal(side[repeated], np.broadcast_to(side[times - 1], side[repeated].shape), equal_nan=True)
        for side in (ours.slack, ours.promised)
    )


def growing(run: Trajectory) -> str:
    """The message for weights that grow until the end like the logarithm or a low power of the time; empty for
    other weights.

    Weights do so if the infimum of the loss is at infinity.
    """
    t = np.asarray(run.t)
    rows = np.searchsorted(t, t[-1] / _TENFOLD ** np.arange(4))
    if not np.all(np.diff([*rows, 0]) < 0):
        return ""
    leaves = [np.asarray(leaf)[rows] for leaf in jax.tree.leaves(eqx.filter(run.models, eqx.is_inexact_array))]
    norms = np.sqrt(sum(np.sum(leaf.reshape(4, -1) ** 2, axis=1) for leaf in leaves))
    growth = norms[:-1] - norms[1:]
    slower, faster = _ALIKE
    alike = np.all((growth[:-1] > slower * growth[1:]) & (growth[:-1] < faster * growth[1:]))
    if not (alike and growth[0] > _NOT_NOTHING * norms[0]):
        return ""
    return (
        f"The weights seem to diverge: their norm grew from {norms[1]:.3g} to {norms[0]:.3g} in the last tenfold of "
        "the time, and about as much before. The loss still has a limit: if its infimum is declared, take "
        "flow.loss[-1:] with allowance=flow.excess[-1:]."
    )


def carried_on(claim: Claim, case: Case, sides: Sides) -> bool:
    """Whether a statement for all t also holds after the end of a solve, for all weights that the flow may still
    reach.
    """
    settled, at_rest = case.settled, case.status is Status.STATIONARY
    if sides.slack.shape[0] != case.padded.t.size:
        return False
    enclosed = settled.enclosed.exact if at_rest else settled.enclosed
    return holds_beyond(claim, enclosed, settled.remaining + case.end_error, sides, at_rest=at_rest)


def holds_beyond(claim: Claim, enclosed: Enclosed, radius: float, sides: Sides, *, at_rest: bool = False) -> bool:
    """Whether a statement holds at all times after the end of a run, for any weights within a radius of the end.

    **Arguments:**

    - claim: the claim.
    - enclosed: the run in balls.
    - radius: the largest distance of later weights from the end.
    - sides: the sides of the claim on the run.
    - at_rest: whether the flow rests at its start. Then all times after the start are tested.
    """
    last = enclosed.run.t.size - 1
    end = float(np.asarray(enclosed.run.t)[-1]) or 1.0
    ends = end * 10.0 ** np.append(np.arange(_DECADES), np.arange(_DECADES, _LAST, _FURTHER))
    ends = ends[ends < _LATEST]
    if at_rest:
        # A flow at rest has no times between the start and the end.
        ends = np.concatenate([[0.0], end * 10.0 ** np.arange(-_DECADES, 0), ends])
    spans = balls((ends[:-1] + ends[1:]) / 2, (ends[1:] - ends[:-1]) / 2)
    t = np.append(spans, np.asarray([flint.arb("inf")], dtype=object))
    try:
        bounds = enclosed.beyond(claim, t, radius, COSTLY)
    except OpenError:
        return False
    if bounds.low.shape[0] != t.size + 2 or bounds.jumps:
        return False
    later = slice(2, None)
    # The size at each later time; for a statement without sizes, its scale at the end.
    size = np.where(bounds.size[1] > 0, bounds.size[later], sides.size[last])
    largest = np.maximum(np.abs(bounds.low), np.abs(bounds.high)) + bounds.allowance
    agrees = largest[later] <= WORST_RESOLUTION * size
    exceeds = (bounds.low - bounds.allowance >= 0) | bounds.zero
    identity = sides.identity[last]
    return bool(np.all(~bounds.possible[later] | np.where(identity, agrees, exceeds[later])))
