"""Decide from the errors of a comparison whether a statement holds, at each of its points and as a whole."""

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float

from flowsim.claims.claim import Comparison, relative
from flowsim.claims.deciding.verdict import Judgement
from flowsim.claims.evidence.comparing import WORST_RESOLUTION

Points = Float[Array | np.ndarray, "*points"]
Mask = Bool[Array | np.ndarray, "*points"]

_LADDER_SAFETY = 4.0
LEAST_ERROR = 1e-290  # what is smaller is known to no relative accuracy
not_finite = np.errstate(invalid="ignore", divide="ignore", over="ignore")
"""A decorator for what compares sides: a verdict says which of them is not finite, and NumPy need not warn."""


class Errors(NamedTuple):
    """The errors of a slack, in the shape of the slack.

    **Fields:**

    - rounding: the measured rounding error.
    - solver: the error of the solver, from the difference of two solves.
    - rest: the sum of all other errors.
    - combines: whether the slack at one time depends on the flow at several times, as an integral does.
    - asked: as in `Sides`.
    """

    rounding: Points
    solver: Points
    rest: Points
    combines: bool = False
    asked: float = WORST_RESOLUTION

    @property
    def unrounded(self) -> Points:
        """All errors except rounding."""
        return self.solver + self.rest

    @property
    def measured(self) -> Points:
        """The sum of all errors."""
        return self.unrounded + self.rounding


def solver_error(rough: Points, fine: Points, scale: Points, counts: Mask, rtol: float) -> Points:
    """The error of value - bound on the fine solve, from its difference to value - bound on the rough solve.

    The error is relative to the scale and does not decrease in time, since two solves can agree by chance at one
    time. It is at least the tolerance of the solver.

    **Arguments:**

    - rough, fine: value - bound on each solve.
    - scale: the size of the larger side.
    - counts: where the statement asserts anything on at least one of the solves.
    - rtol: the tolerance of the fine solve.
    """
    scale = np.maximum(scale, np.finfo(float).tiny)
    apart = np.abs(rough - fine) / scale
    # No accuracy is required where the statement asserts nothing or a side is infinite.
    apart = np.where(counts & ~np.isnan(apart), apart, 0.0)
    return (_LADDER_SAFETY * np.maximum.accumulate(apart) + rtol) * scale + LEAST_ERROR


@dataclasses.dataclass(frozen=True)
class Sides:
    """A comparison and the error of its slack, which decide where the statement holds and where it fails.

    **Fields:**

    - slack: by how much the statement is satisfied, negative where it fails.
    - error: the error of the slack.
    - allowance: the allowance of the claim, as in `Comparison`.
    - size: the number by which a margin is divided.
    - possible, certain: where the statement may assert something, and where it certainly does.
    - tie: where the sides are exactly equal.
    - identity: where the statement is an equality.
    - tightness: the ratio of the sides.
    - asked: the relative accuracy that is required of a limit. The sides of an identity may differ by its
      allowance, but at most by this accuracy, or by the error if the error is larger.
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
    asked: float = WORST_RESOLUTION

    @staticmethod
    def of(ours: Comparison, error: Points, asked: float = WORST_RESOLUTION) -> "Sides":
        """The sides of a comparison whose slack has a given error, with no exact ties."""
        return Sides(
            slack=ours.slack,
            error=error,
            allowance=ours.allowance,
            size=ours.reference,
            possible=ours.promised,
            certain=ours.promised,
            tie=np.zeros(ours.promised.shape, dtype=bool),
            identity=ours.identity,
            tightness=ours.tightness,
            asked=asked,
        )

    @property
    def margin(self) -> Points:
        """slack/size. The allowance is not added: a verdict counts it in its floor."""
        return relative(self.slack, self.size)

    @property
    def fails(self) -> Mask:
        """Where the statement certainly asserts something and fails by more than the allowance and the error."""
        return self.certain & (self.slack + self.allowance < -self.error)

    @property
    def stands(self) -> Mask:
        """Where the statement holds for certain, or asserts nothing.

        An inequality holds for certain if slack - allowance > error, or if its sides are exactly equal. An identity
        does if its sides agree to within the error and the accepted part of the allowance, and these are small
        relative to the size.
        """
        known = self.error + self.allowance <= WORST_RESOLUTION * self.size
        granted = np.minimum(self.allowance, np.maximum(self.error, self.asked * self.size))
        agrees = known & (np.abs(self.slack) <= self.error + granted)
        exceeds = (self.slack - self.allowance > self.error) | self.tie
        return ~self.possible | np.where(self.identity, agrees, exceeds)

    def without(self, rows: slice | np.ndarray) -> "Sides":
        """These sides, changed so that the statement asserts nothing in the given rows."""
        possible, certain = self.possible.copy(), self.certain.copy()
        possible[rows] = certain[rows] = False
        return dataclasses.replace(self, possible=possible, certain=certain)

    @property
    def nearness(self) -> Points:
        """(|slack| - allowance)/error, infinite where the statement certainly asserts nothing. It is least where
        the verdict is least clear.
        """
        room = np.abs(self.slack) - self.allowance
        return np.where(self.possible, np.where(self.error > 0, room / self.error, np.inf), np.inf)

    @property
    def worst(self) -> tuple[int, ...]:
        """The index of the point with the least margin or, if the statement fails, of the clearest failure."""
        fails = self.fails
        clear = (self.slack + self.allowance + self.error) / self.size
        values = np.where(fails, clear, np.inf) if fails.any() else np.where(self.possible, self.margin, np.inf)
        return tuple(int(place) for place in np.unravel_index(np.nanargmin(values), values.shape))

    @property
    def judgement(self) -> Judgement:
        """The judgement on the statement as a whole.

        It is violated if it fails at any point, vacuous if it asserts nothing at any point, holds if all points are
        in `stands`, and else unresolved.
        """
        if self.fails.any():
            return Judgement.VIOLATED
        if not self.possible.any():
            return Judgement.VACUOUS
        return Judgement.HOLDS if self.stands.all() else Judgement.UNRESOLVED
