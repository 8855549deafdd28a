"""Whether a statement reads the end of a flow as if it were the limit, and allows for the way that is still to go."""

import numpy as np

from flowsim.claims.claim import Claim, Comparison
from flowsim.claims.deciding.sides import Sides
from flowsim.claims.evidence import Case, Evidence
from flowsim.flow.trajectory import Status

_MOVES = 4.0  # times its error


def reads_the_end(claim: Claim, evidence: Evidence, case: Case) -> tuple[bool, bool]:
    """Whether a statement reads the end of the flow other than as one of its times, and whether what it allows for is
    derived from that. One that reads it as one of many, as a least value does, reads it if that matters later on.
    """
    loss = evidence.stated
    ours = case.panel.compared(claim, loss, case.padded)
    length, count = ours.slack.shape[0], case.run.t.size
    repeated = case.padded.t.size - count
    last, *elsewhere = case.ending_elsewhere

    def changed(other: Comparison) -> np.ndarray:
        same = (ours.slack == other.slack) | (np.isnan(ours.slack) & np.isnan(other.slack)) | ~ours.promised
        alike = np.asarray(same & (ours.promised == other.promised)).reshape(length, -1)
        return np.asarray(~alike.all(axis=1))

    try:
        spoilt = case.panel.compared(claim, loss, last)
        # Of each series along the flow it is the last entry alone that reads it.
        reads = bool(np.sum(changed(spoilt)) > length // case.padded.t.size)
        if not reads and any(
            _reads(changed(case.panel.compared(claim, loss, one)), count, repeated) for one in elsewhere
        ):
            reads = not _is_so_later(claim, evidence)
    except ValueError:
        # Weights that are no numbers are refused by what is made of them.
        return True, True
    # A number that is the same without the end is not derived from it; where no way is known yet, one that is has none.
    mine, without = (one.allowance[ours.promised] for one in (ours, spoilt))
    return reads, bool(np.any(np.isinf(mine))) or not np.array_equal(mine, without)


def _reads(changed: np.ndarray, count: int, repeated: int) -> bool:
    """Whether what changes with an end that is repeated so often is more than series along a flow of so many times."""
    # Of a series those entries read the end that repeat it; it may have several a time, in a row.
    edges = np.flatnonzero(np.diff(np.concatenate([[False], changed, [False]])))
    begin, many = edges[::2], edges[1::2] - edges[::2]
    return not np.all((many == repeated) | (many % repeated == 0) & (begin == many // repeated * count))


def _is_so_later(claim: Claim, evidence: Evidence) -> bool:
    """Whether each entry of an inequality has the same sign when the flow goes on, or of an identity does not move."""
    if evidence.prolonged is None:
        return evidence.trajectory.status is Status.STATIONARY
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
    if not now.shape == later.shape == sides.slack.shape:
        return True
    moved = np.abs(later - now) > sides.allowance + _MOVES * sides.error
    return not np.any(moved & sides.possible)


def _now_and_later(claim: Claim, evidence: Evidence, prolonged: Case) -> list[Comparison]:
    """The comparison on the flow as it is, and as it is when it goes on."""
    cases = evidence.cases[0].settled, prolonged
    return [case.panel.compared(claim, evidence.stated, case.padded) for case in cases]
