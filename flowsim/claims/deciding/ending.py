"""Whether a statement reads the end of a flow as if it were the limit, and allows for the way that is still to go."""

import contextlib
import dataclasses

import jax
import numpy as np

from flowsim.claims.claim import Claim, Comparison
from flowsim.claims.deciding.sides import Sides
from flowsim.claims.evidence import Case, Evidence
from flowsim.flow.trajectory import Status
from flowsim.losses.sampled.monte_carlo import MonteCarloLoss

_MOVES = 4.0  # times its error
_LATE = (
    "The flow leaves a saddle so late that its time from the start is not known to the time in which it then moves: "
    "only what reads no times, of a loss that is no estimate, can be judged."
)
_LATE_TWICE = "The flow leaves more than one saddle so late that its times there cannot be told apart."


def reads_the_end(claim: Claim, evidence: Evidence, case: Case) -> tuple[bool, bool, bool]:
    """Whether a statement reads the end of the flow other than as one of its times; whether what it allows for is
    derived from that; and whether it is another one when the flow goes on. One that reads the end as one of many times,
    as a least value does, reads it if it is.
    """
    loss = evidence.stated
    ours = case.panel.compared(claim, loss, case.padded)
    length, count = ours.slack.shape[0], case.run.t.size
    repeated = case.padded.t.size - count
    elsewhere = iter(case.ending_elsewhere)

    def changed(other: Comparison) -> np.ndarray:
        return np.asarray(_differs(ours, other).reshape(length, -1).any(axis=1))

    try:
        spoilt = case.panel.compared(claim, loss, next(elsewhere))
        # Of each series along the flow it is the last entry alone that reads it.
        reads, differs = bool(np.sum(changed(spoilt)) > length // case.padded.t.size), False
    except ValueError:
        # Weights that are no numbers are refused by what is made of them.
        return True, True, False
    for one in elsewhere if not reads else ():
        # Elsewhere a size may be negative, which is refused.
        with contextlib.suppress(ValueError):
            if _reads(changed(case.panel.compared(claim, loss, one)), count, repeated):
                reads = differs = not _is_so_later(claim, evidence)
                break
    # A number that is the same without the end is not derived from it; where no way is known yet, one that is has none.
    mine, without = (one.allowance[ours.promised] for one in (ours, spoilt))
    return reads, bool(np.any(np.isinf(mine))) or not np.array_equal(mine, without), differs


def _differs(ours: Comparison, other: Comparison) -> np.ndarray:
    """Where one comparison promises what the other does not, or both something else."""
    same = (ours.slack == other.slack) | (np.isnan(ours.slack) & np.isnan(other.slack)) | ~ours.promised
    return np.asarray(~same | (ours.promised != other.promised))


def _reads(changed: np.ndarray, count: int, repeated: int) -> bool:
    """Whether what changes with an end that is repeated so often is more than series along a flow of so many times."""
    # Of a series those entries read the end that repeat it; it may have several a time, in a row.
    edges = np.flatnonzero(np.diff(np.concatenate([[False], changed, [False]])))
    begin, many = edges[::2], edges[1::2] - edges[::2]
    return not np.all((many == repeated) | (many % repeated == 0) & (begin == many // repeated * count))


def _is_so_later(claim: Claim, evidence: Evidence) -> bool:
    """Whether each entry of an inequality has the same sign when the flow goes on, or of an identity does not move; not
    known of a flow that was cut, as what comes may come later than one looks.
    """
    status = evidence.trajectory.status
    if status is Status.STATIONARY:
        return True
    if status not in (Status.EXCESS, Status.GRAD_NORM) or evidence.prolonged is None:
        return False
    now, later = _now_and_later(claim, evidence, evidence.prolonged)
    if now.slack.shape != later.slack.shape:
        return False
    alike = np.where(now.identity, now.slack == later.slack, (now.slack >= 0) == (later.slack >= 0))
    return bool(np.all(alike | ~now.promised))


def allows_for_a_while(claim: Claim, evidence: Evidence, sides: Sides) -> bool:
    """Whether a statement about the limit changes by no more than it allows for when the flow goes on."""
    if evidence.prolonged is None:
        # Where no solver gets further, as at a kink, nothing is known of what comes.
        return evidence.trajectory.status is Status.STATIONARY
    now, later = (one.slack for one in _now_and_later(claim, evidence, evidence.prolonged))
    rows = slice(now.shape[0])
    if now.shape != later.shape or now.shape != sides.slack[rows].shape:
        return False
    moved = np.abs(later - now) > (sides.allowance + _MOVES * sides.error)[rows]
    return not np.any(moved & sides.possible[rows])


def _now_and_later(claim: Claim, evidence: Evidence, prolonged: Case) -> list[Comparison]:
    """The comparison on the flow as it is, and as it is when it goes on; of a series up to its end now."""
    cases = evidence.cases[0], prolonged
    found = [case.panel.compared(claim, evidence.stated, case.padded) for case in cases]
    lengths = zip(found, cases, strict=True)
    if all(one.slack.shape[0] == case.padded.t.size for one, case in lengths):
        count = cases[0].run.t.size
        found = [jax.tree.map(lambda side: side[:count], one) for one in found]
    return found


def depends_on_the_times(claim: Claim, evidence: Evidence) -> bool:
    """Whether a statement is another one of the same weights at other times, as an integral is."""
    case = evidence.cases[0]
    ours = case.panel.compared(claim, evidence.stated, case.padded)
    try:
        other = case.panel.compared(claim, evidence.stated, case.at_other_times)
    except ValueError:
        # As a size may be negative then, which is refused.
        return True
    return bool(_differs(ours, other).any())


def too_late(claim: Claim, evidence: Evidence) -> str:
    """Why a statement cannot be judged of a flow that leaves a saddle late; empty where it can."""
    if not evidence.late:
        return ""
    if not np.all(np.diff(np.asarray(evidence.trajectory.t)) > 0):
        return _LATE_TWICE
    return _LATE if isinstance(evidence.loss, MonteCarloLoss) or _reads_the_time(claim, evidence) else ""


def _reads_the_time(claim: Claim, evidence: Evidence) -> bool:
    """Whether a statement asks for a time, or is another one at other times or at times from the start, as their sign
    may matter.
    """
    if evidence.times_of(claim) or depends_on_the_times(claim, evidence):
        return True
    case = evidence.cases[0]
    from_start = jax.device_put(np.maximum(np.asarray(case.padded.t) + evidence.steepest, 0.0))
    padded = dataclasses.replace(case.padded, t=from_start)
    ours, other = (case.panel.compared(claim, evidence.stated, run) for run in (case.padded, padded))
    return bool(_differs(ours, other).any())


def depends_on_others(claim: Claim, evidence: Evidence) -> bool:
    """Whether a series along a flow reads at some times what the flow is at others, besides its start and its end."""
    case = evidence.cases[0]
    count = case.run.t.size
    ours = case.panel.compared(claim, evidence.stated, case.padded)
    rows = np.arange(0, count - 1, 2)
    for other in case.with_others:
        # A size may turn negative, which is refused.
        with contextlib.suppress(ValueError):
            changed = case.panel.compared(claim, evidence.stated, other)
            if not np.array_equal(ours.slack[rows], changed.slack[rows], equal_nan=True):
                return True
    return False


def is_in_order(claim: Claim, evidence: Evidence) -> bool:
    """Whether a series along a flow whose end is repeated ends by what it repeats, and is not reversed, say."""
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
