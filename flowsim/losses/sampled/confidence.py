"""Confidence intervals for means of independent draws, and the heaviness of the tail of the draws."""

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
    """The quantile t of Student's law with count - 1 degrees of freedom at which P(|T| <= t) = level."""
    # By the lower tail, so that levels near 1 keep their digits.
    return -float(scipy.special.stdtrit(count - 1, (1 - level) / 2))


def bonferroni_quantile(confidence: float, points: int, count: int) -> float:
    """The quantile of Student's law with which several intervals hold simultaneously, by Bonferroni's correction.

    **Arguments:**

    - confidence: the confidence of all intervals together, between 0 and 1.
    - points: the number of intervals.
    - count: the number of groups over which each mean is taken.
    """
    return student_quantile(1 - (1 - confidence) / max(points, 1), count)


class Tail(NamedTuple):
    """The heaviness of the tail of nonnegative draws.

    **Fields:** share: the fraction of the mean that comes from the largest 1% of the draws; shape: the Pareto shape
    k of the tail. If k > 0, moments of order 1/k and above are infinite. An exponential tail has k = 0.
    """

    share: float
    shape: float


def tail(values: Float[np.ndarray, " samples"]) -> Tail:
    """Estimate the heaviness of the tail from a sample of nonnegative numbers."""
    ordered = np.sort(np.asarray(values))
    total, largest = np.sum(ordered), ordered[-max(1, int(LARGEST * ordered.size)) :]
    share = float(np.sum(largest) / total) if total > 0 else 0.0
    count = min(ordered.size // 5, int(3 * np.sqrt(ordered.size)))
    excesses = ordered[-count:] - ordered[-count - 1]
    # Squared errors that only differ by rounding have no tail.
    return Tail(share, pareto_shape(np.where(excesses > _ROUNDING * ordered[-1], excesses, 0.0)))


def pareto_shape(excesses: Float[np.ndarray, " samples"]) -> float:
    """Estimate the shape k of a generalised Pareto law from excesses over a threshold, given in increasing order.

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
    """Half the width of the confidence interval for the mean over groups.

    **Arguments:**

    - values: one value or array for each group, with the groups on the first axis. They are independent and nearly
      Gaussian.
    - level: the confidence level, between 0 and 1.
    """
    groups = values.shape[0]
    return np.asarray(student_quantile(level, groups) * np.std(values, axis=0, ddof=1) / np.sqrt(groups))
