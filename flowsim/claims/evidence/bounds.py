"""Bounds on both sides of a comparison from ball arithmetic, in float64."""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float

from flowsim._core.balls.centred import middles
from flowsim._core.balls.enclosure import lower, truth, upper
from flowsim._core.balls.operations import Balls, is_balls

NOTHING = 1e-28  # of the larger side: a slack this small counts as zero


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Bounds on the parts of a `Comparison` in some rows. Each array is (rows,) or (rows, entries).

    **Fields:**

    - low, high: a lower and an upper bound on the slack.
    - possible, certain: where the statement may assert something, and where it certainly does.
    - allowance, scale: upper bounds on these parts.
    - size: a lower bound on this part.
    - difference: the middle of the ball of value - bound.
    - zero: where the slack is exactly zero.
    - jumps: the operations in the comparison through which its sides may jump from one time to the next.
    """

    low: Float[np.ndarray, "*points"]
    high: Float[np.ndarray, "*points"]
    possible: Bool[np.ndarray, "*points"]
    certain: Bool[np.ndarray, "*points"]
    allowance: Float[np.ndarray, "*points"]
    scale: Float[np.ndarray, "*points"]
    size: Float[np.ndarray, "*points"]
    difference: Float[np.ndarray, "*points"]
    zero: Bool[np.ndarray, "*points"]
    jumps: tuple[str, ...]


def bounds_of(
    slack: Balls,
    promised: Balls,
    allowance: Balls,
    scale: Balls,
    size: Balls,
    difference: Balls,
    jumps: tuple[str, ...],
) -> Bounds:
    """The bounds that the parts of a comparison in balls give.

    **Arguments:**

    - slack, promised, allowance, scale, size: as in `Comparison`, in balls.
    - difference: value - bound, in balls.
    - jumps: as in `Bounds`.
    """
    shape = slack.shape[:1] + ((-1,) if slack.ndim > 1 else ())
    shape = shape or (1,)
    possible, certain = truth(promised)
    most = np.where(_zero(allowance), 0.0, upper(allowance)) if is_balls(allowance) else allowance
    largest = upper(scale) if is_balls(scale) else scale
    inline = lambda part: np.asarray(part).reshape(shape)
    return Bounds(
        low=inline(lower(slack)),
        high=inline(upper(slack)),
        possible=inline(possible),
        certain=inline(certain),
        allowance=inline(most),
        scale=inline(largest),
        size=inline(lower(size) if is_balls(size) else size),
        difference=inline(np.asarray(middles(difference), dtype=float) if is_balls(difference) else difference),
        zero=inline(_vanishes(slack, largest)),
        jumps=jumps,
    )


def _vanishes(slack: Balls, scale: np.ndarray) -> np.ndarray:
    """Where a slack is zero to far more digits than any input has: its ball contains 0 with a radius of at most
    1e-28 scale.
    """
    small = lambda ball, size: bool(ball.is_finite() and ball.contains(0)) and float(ball.rad()) <= NOTHING * size
    return np.vectorize(small, otypes=[bool])(slack, np.where(np.isfinite(scale), scale, 0.0))


def _zero(slack: Balls) -> np.ndarray:
    return np.vectorize(lambda ball: bool(ball.is_zero()), otypes=[bool])(slack)
