"""A statement on a problem that was drawn, with what is true of it and what judges it."""

import dataclasses
from collections.abc import Callable

from flowsim import Claim
from flowsim.claims import Verdict


@dataclasses.dataclass(frozen=True)
class Drawn:
    """problem: its name or number; judge: claim -> the verdict; fails, expected: as for `base.Stated`."""

    problem: int | str
    claim: Claim
    judge: Callable[[Claim], Verdict]
    fails: float | None
    expected: bool
