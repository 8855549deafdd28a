"""Where in a comparison a point is, in words or as a time."""

from flowsim.claims.claim import Claim
from flowsim.claims.evidence import Case


def place_of(index: tuple[int, ...], shape: tuple[int, ...], case: Case, claim: Claim, later: float) -> float | str:
    """A time, or the number of a point, and which of several entries there."""
    place = _point(index[0], shape[0], case, claim, later)
    if len(shape) == 1:
        return place
    return f"{place if isinstance(place, str) else f't = {place:.4g}'}, entry {index[1] + 1} of {shape[1]}"


def _point(row: int, length: int, case: Case, claim: Claim, later: float) -> float | str:
    """A time, or the number of a point; points of a claim along the flow may follow the times."""
    times = case.padded.t.size
    if case.has_times(claim, length) or (claim.along_flow and row < times < length):
        return later + float(case.padded.t[row])
    if claim.along_flow and length > times:
        row, length = row - times, length - times
    return f"point {row + 1} of {length}" if length > 1 else "one point"
