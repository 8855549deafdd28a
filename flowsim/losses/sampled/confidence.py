"""Confidence in means of independent draws: Student's quantiles, and the weight of the largest draws."""

import functools
from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Float

LARGEST = 0.01  # the fraction of the draws whose share of the mean is reported
_ROUNDING = 1e-9
HEAVIEST_SHAPE = 0.5  # a law of a larger shape has no variance, and its means have no interval


@functools.cache
def student_quantile(level: float, count: int) -> float:
    """The t with P(|T| <= t) = level for Student's law with count - 1 degrees of freedom."""
    # By the lower tail, so that levels near 1 keep their digits.
    return -float(scipy.special.stdtrit(count - 1, (1 - level) / 2))


def bonferroni_quantile(confidence: float, points: int, count: int) -> float:
    """The t with which intervals at several points hold simultaneously with the given confidence.

    **Arguments:**

    - confidence: between 0 and 1.
    - points: the number of intervals.
    - count: the number of groups in each mean.
    """
    return student_quantile(1 - (1 - confidence) / max(points, 1), count)


class Tail(NamedTuple):
    """The tail of nonnegative draws.

    **Fields:** share: the part of the mean that the largest 1% carry; shape: the Pareto shape k of the tail. Moments of
    order 1/k and above are infinite. An exponential tail has k = 0.
    """

    share: float
    shape: float


def tail(values: Float[np.ndarray, " samples"]) -> Tail:
    """The tail of a sample of nonnegative numbers."""
    ordered = np.sort(np.asarray(values))
    total, largest = np.sum(ordered), ordered[-max(1, int(LARGEST * ordered.size)) :]
    share = float(np.sum(largest) / total) if total > 0 else 0.0
    count = min(ordered.size // 5, int(3 * np.sqrt(ordered.size)))
    excesses = ordered[-count:] - ordered[-count - 1]
    # Squared errors that only differ by rounding have no tail.
    return Tail(share, pareto_shape(np.where(excesses > _ROUNDING * ordered[-1], excesses, 0.0)))


def pareto_shape(excesses: Float[np.ndarray, " samples"]) -> float:
    """The shape k of a generalised Pareto law, from the excesses over a threshold in increasing order.

    **Source:** Zhang and Stephens, A new and efficient estimation method for the generalized Pareto distribution,
    Technometrics 51 (2009).
    """
    n = excesses.size
    if n < 5 or excesses[-1] <= 0:
        return 0.0
    count = 30 + int(np.sqrt(n))
    quartile = excesses[max(int(n / 4 + 0.5) - 1, 0)]
    steps = 1 - np.sqrt(count / (np.arange(1, count + 1) - 0.5))
    scales = 1 / excesses[-1] + steps / (3 * max(quartile, 1e-12 * excesses[-1]))
    shapes = np.mean(np.log1p(-scales[:, None] * excesses[None, :]), axis=1)
    likelihood = n * (np.log(-scales / shapes) - shapes - 1)
    weights = np.exp(likelihood - np.max(likelihood))
    scale = np.sum(scales * weights) / np.sum(weights)
    return float(np.mean(np.log1p(-scale * excesses)))


def half_width(values: Float[np.ndarray, "groups ..."], level: float) -> np.ndarray:
    """Half the width of the confidence interval for a mean.

    **Arguments:**

    - values: one for each group, independent and nearly Gaussian, with the groups on the first axis.
    - level: the confidence level, between 0 and 1.
    """
    groups = values.shape[0]
    return np.asarray(student_quantile(level, groups) * np.std(values, axis=0, ddof=1) / np.sqrt(groups))
