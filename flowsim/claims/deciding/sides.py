"""The judgement on a comparison whose slack has a known error: at each of its points, and as a whole."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from flowsim.claims.claim import Comparison, Judgement
from flowsim.claims.evidence.comparing import WORST_RESOLUTION, size_of

Points = Float[np.ndarray, "*points"]
Mask = Bool[np.ndarray, "*points"]


_LADDER_SAFETY = 4.0
LEAST_ERROR = 1e-290  # smaller numbers have no known relative accuracy


class Errors(NamedTuple):
    """The errors of a slack.

    **Fields:**

    - rounding: as it was measured.
    - solver: from the difference of two solves.
    - rest: all others.
    - combines: whether the slack at one time reads the flow at several, as an integral does.
    """

    rounding: Points
    solver: Points
    rest: Points
    combines: bool = False

    @property
    def unrounded(self) -> Points:
        """All errors except rounding."""
        return self.solver + self.rest


def solver_error(rough: Any, fine: Any, scale: Any, counts: Any, rtol: float) -> Points:
    """The error of the slack on the fine solve, from its difference to the rough solve.

    The error is relative to the scale and does not decrease in time, since two solves can agree by chance at one time.
    It is at least the tolerance of the solver.

    **Arguments:**

    - rough, fine: the difference of the two sides on each solve.
    - scale: the size of the larger side.
    - counts: where either solve promises anything.
    - rtol: the tolerance of the fine solve.
    """
    scale = np.maximum(scale, np.finfo(float).tiny)
    with np.errstate(invalid="ignore"):
        apart = np.abs(rough - fine) / scale
    # A side that promises nothing, or is infinite, has no error to compare.
    apart = np.where(counts & ~np.isnan(apart), apart, 0.0)
    return (_LADDER_SAFETY * np.maximum.accumulate(apart) + rtol) * scale + LEAST_ERROR


@dataclasses.dataclass(frozen=True)
class Sides:
    """A comparison as NumPy arrays, with the errors of its slack.

    **Fields:**

    - slack, error, allowance: the signed difference of the two sides, its error, and what is allowed for.
    - size: what a margin is relative to.
    - possible, certain: where the statement may promise something, and where it does.
    - tie: where the sides are equal exactly.
    - identity: where the statement is an equality.
    - tightness: the ratio of the sides.
    """

    slack: Points
    error: Points
    allowance: Points
    size: Points
    possible: Mask
    certain: Mask
    tie: Mask
    identity: Mask
    tightness: Points

    @staticmethod
    def of(ours: Comparison) -> "Sides":
        """The sides of a comparison without errors."""
        promised: Any = np.asarray(ours.promised)
        return Sides(
            slack=np.asarray(ours.slack),
            error=np.zeros(promised.shape),
            allowance=np.asarray(ours.allowance),
            size=size_of(ours),
            possible=promised,
            certain=promised,
            tie=np.zeros(promised.shape, dtype=bool),
            identity=np.asarray(ours.identity),
            tightness=np.asarray(ours.tightness),
        )

    @property
    def fails(self) -> Mask:
        """Where the statement fails by more than the error."""
        with np.errstate(invalid="ignore"):
            return self.certain & (self.slack + self.allowance < -self.error)

    @property
    def stands(self) -> Mask:
        """Where the statement holds by more than the error, or promises nothing. An identity stands if it agrees to
        within the error.
        """
        with np.errstate(invalid="ignore"):
            known = self.error + self.allowance <= WORST_RESOLUTION * self.size
            agrees = known & (np.abs(self.slack) <= self.error + self.allowance)
            exceeds = (self.slack - self.allowance > self.error) | self.tie
            return ~self.possible | np.where(self.identity, agrees, exceeds)

    def without(self, rows: slice | np.ndarray) -> "Sides":
        """The sides, with nothing promised in some rows."""
        possible, certain = self.possible.copy(), self.certain.copy()
        possible[rows] = certain[rows] = False
        return dataclasses.replace(self, possible=possible, certain=certain)

    @property
    def nearness(self) -> Points:
        """The slack over its error where something may be promised: the lower, the closer to deciding the verdict."""
        with np.errstate(invalid="ignore", divide="ignore"):
            room = np.abs(self.slack) - self.allowance
            return np.where(self.possible, np.where(self.error > 0, room / self.error, np.inf), np.inf)

    @property
    def worst(self) -> tuple[int, ...]:
        """The point of the least margin. If the statement fails, the point of the clearest failure."""
        fails = self.fails
        with np.errstate(invalid="ignore"):
            clear = (self.slack + self.allowance + self.error) / self.size
            margin = np.where(np.isinf(self.slack), self.slack, self.slack / self.size)
        values = np.where(fails, clear, np.inf) if fails.any() else np.where(self.possible, margin, np.inf)
        return tuple(int(place) for place in np.unravel_index(np.nanargmin(values), values.shape))

    @property
    def judgement(self) -> Judgement:
        """Violated if any point fails, vacuous if nothing is promised, holds if every point stands."""
        if self.fails.any():
            return Judgement.VIOLATED
        if not self.possible.any():
            return Judgement.VACUOUS
        return Judgement.HOLDS if self.stands.all() else Judgement.UNRESOLVED
