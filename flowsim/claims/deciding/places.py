"""The place of a point in a comparison, as a time or in words."""

import numpy as np

from flowsim.claims.claim import Claim
from flowsim.claims.evidence import Case


def place_of(index: tuple[int, ...], shape: tuple[int, ...], case: Case, claim: Claim, later: float) -> float | str:
    """The time, or the number of the point, and the number of the entry if the row has several.

    **Arguments:**

    - index: the row, and the entry in it.
    - shape: the shape of the comparison.
    - case: the solve.
    - claim: the claim.
    - later: the time from the start to t = 0 of the solve.
    """
    place = _point(index[0], shape[0], case, claim, later)
    if len(shape) == 1:
        return place
    return f"{place if isinstance(place, str) else f't = {place:.4g}'}, entry {index[1] + 1} of {shape[1]}"


def _point(row: int, length: int, case: Case, claim: Claim, later: float) -> float | str:
    """The time or the number of a point. A claim along the flow may have points after the times."""
    times = case.padded.t.size
    if case.has_times(claim, length) or (claim.along_flow and row < times < length):
        return later + float(np.asarray(case.padded.t)[row])
    if claim.along_flow and length > times:
        row, length = row - times, length - times
    return f"point {row + 1} of {length}" if length > 1 else "one point"
