"""Parts shared by gatmiry2024's statements of gradient dominance, |grad L|^2 >= c L^{(2L-1)/L} above a threshold."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from flowsim._core.types import Scalar, Series
from flowsim.claims.claim import Comparison
from flowsim.claims.statements import dominance_floor, gradient_dominance, sharp_dominance
from flowsim.flow.trajectory import Trajectory
from flowsim.papers.gatmiry2024 import landscape_problems as problems
from flowsim.papers.gatmiry2024.setting import (
    Loss,
    Points,
    compared,
    delta_power,
    dominance_factor,
    dominance_power,
    loops,
)

_BISECTIONS = 100
# Decimal logarithms of the smallest and the largest epsilon searched, such that no round value is in the middle of an
# interval, where its last digit would decide.
SMALLEST, LARGEST = -30.3, 10.1


def crossing(increasing, values: Series, largest: float) -> tuple[Series, Series]:
    """Two adjacent numbers for each value: the function is at most the value at the first and above it at the second.

    Bisects logarithms from 10^-30.3 to 10^largest; where the function never exceeds the value, both are 10^largest.
    """

    def halve(_, interval):
        low, high = interval
        middle = (low + high) / 2
        below = increasing(10.0**middle) <= values
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    start = jnp.full_like(values, SMALLEST), jnp.full_like(values, largest)
    low, high = jax.lax.fori_loop(0, _BISECTIONS, halve, start)
    beyond = increasing(jnp.full_like(values, 10.0**largest)) <= values
    return jnp.where(beyond, 10.0**largest, 10.0**low), 10.0**high


PRINTED_CONSTANT = 1 / 16

DOMINANCE = (
    problems.EASY,
    problems.SHORT,
    problems.RANDOM,
    problems.OVERSHOT,
    problems.INFINITE,
    problems.WIDE,
    problems.WIDE_LONG,
    problems.WIDE_DEEP,
    problems.CROWDED,
    problems.ANISOTROPIC,
)
DOMINANCE_OF_LONG_CONTEXTS = (
    problems.EASY,
    problems.ONE_DIMENSION,
    problems.INFINITE,
    problems.WIDE,
    problems.WIDE_LONG,
    problems.WIDE_DEEP,
    problems.CROWDED,
)
STEPS = (  # for the steps of the proofs, judged at drawn points
    problems.VERY_LONG,
    problems.WIDE_LONG,
    problems.VERY_LONG_ANISOTROPIC,
    problems.SMALL_COVARIANCE,
    problems.INFINITE,
    problems.EASY,
)

HOELDER = (
    "Hoelder's inequality between the sums of powers 4L-2 and 2L of d numbers costs d^{-(L-1)/L}; Lemma A.10 writes "
    "d^{-(L-1)/(2L-1)} and then drops the factor."
)
SMALL_COVARIANCE = (
    "The statement drops the condition Sigma* = I of Theorem 3.4 and fails without it: the squared gradient in A "
    "carries Sigma* twice, so at Sigma* = 0.01 I it is 10^-4 of that at I, while the loss is the same. "
)
WITH_COVARIANCE = (
    "Covers every Sigma*, through its least eigenvalue lambda_d: grad_A L = Sigma*^{1/2} G Sigma*^{1/2}, where G is "
    "the gradient at covariance I. "
)
REFUTED = (
    "Fails for large d, at every n and in the limit: at A = a I and n = inf, |grad L|^2 = 4 L^2 d^{-(L-1)/L} "
    "L^{(2L-1)/L}, less than printed where d^{(L-1)/L} > 64 L^2 (d > 65536 for two loops). Without a condition on n it "
    "also fails at one loop: for n > d >> sqrt(n) the minimum itself, where grad L = 0, is above the threshold."
)


def appendix_threshold(loss: Loss) -> Scalar:
    """The threshold 2 (4 delta)^{2L} = 16 L d 16^L / sqrt(n). **Source:** gatmiry2024, Theorems 3.3, A.11 and A.12."""
    return 2.0 * 16.0 ** loops(loss) * delta_power(loss)


def dominates(loss: Loss, points: Points, constant: ArrayLike, threshold: Scalar) -> Comparison:
    """|grad L|^2 against c L^{(2L-1)/L} at points where L is at least the threshold."""
    comparison = gradient_dominance(points.grad_norm_sq, points.loss, constant, dominance_power(loss), threshold)
    return compared(comparison, points)


def sharp_constants(loss: Loss, trajectory: Trajectory, threshold: Scalar) -> dict[str, Array]:
    """The paper's constant and power, the sharp constant along the flow above the threshold, that of long contexts, the
    threshold, the largest loss at which the inequality fails, and the minimum.
    """
    sides = trajectory.grad_norm_sq, trajectory.loss
    power, L = dominance_power(loss), loops(loss)
    return {
        "constant": jnp.asarray(PRINTED_CONSTANT),
        "power": jnp.asarray(power),
        "sharp_constant": sharp_dominance(*sides, power, threshold),
        "limit_constant": 4.0 * L**2 * dominance_factor(loss),
        "threshold": threshold,
        "fails_at_and_below": dominance_floor(*sides, PRINTED_CONSTANT, power),
        "minimum": loss.minimum,
    }
