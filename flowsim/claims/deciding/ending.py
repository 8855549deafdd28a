"""Whether a statement reads the end of a flow as if it were the limit, and allows for the way that is still to go."""

import numpy as np

from flowsim.claims.claim import Claim
from flowsim.claims.deciding.sides import Sides
from flowsim.claims.evidence import Case, Evidence
from flowsim.losses import AbstractPopulationLoss

_MOVES = 4.0  # times its error


def reads_the_end(claim: Claim, loss: AbstractPopulationLoss, case: Case) -> tuple[bool, bool]:
    """Whether a statement reads the end of the flow other than as one of its times, and whether what it allows for is
    derived from that.
    """
    ours = case.panel.compared(claim, loss, case.padded)
    length, count = ours.slack.shape[0], case.run.t.size
    repeated = case.padded.t.size - count
    try:
        spoilt, *others = (case.panel.compared(claim, loss, one) for one in case.ending_elsewhere)
    except ValueError:
        # Weights that are no numbers are refused by what is made of them.
        return True, True
    reads = False
    for other in (spoilt, *others):
        same = (ours.slack == other.slack) | (np.isnan(ours.slack) & np.isnan(other.slack)) | ~ours.promised
        changed = ~(same & (ours.promised == other.promised)).reshape(length, -1).all(axis=1)
        # Of a series along the flow those entries read the end that repeat it; it may have several a time, in a row.
        edges = np.flatnonzero(np.diff(np.concatenate([[False], changed, [False]])))
        begin, many = edges[::2], edges[1::2] - edges[::2]
        several = begin == many // repeated * count
        reads |= not np.all((many == repeated) | (many % repeated == 0) & several)
    # A number that is the same without the end is not derived from it; where no way is known yet, one that is has none.
    mine, without = (one.allowance[ours.promised] for one in (ours, spoilt))
    return reads, bool(np.any(np.isinf(mine))) or not np.array_equal(mine, without)


def allows_for_a_while(claim: Claim, evidence: Evidence, sides: Sides) -> bool:
    """Whether a statement about the limit changes by no more than it allows for when the flow goes on."""
    if evidence.prolonged is None:
        # The flow is at rest, or no solver gets further.
        return True
    now, later = (
        case.panel.compared(claim, evidence.stated, case.padded).slack
        for case in (evidence.cases[0].settled, evidence.prolonged)
    )
    if not now.shape == later.shape == sides.slack.shape:
        return True
    moved = np.abs(later - now) > sides.allowance + _MOVES * sides.error
    return not np.any(moved & sides.possible)
