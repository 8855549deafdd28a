"""Parts shared by gatmiry2024's statements on the minimiser, and on gradient dominance above a threshold.

The minimiser is that of Theorems 3.2 and A.8, with the distance of A_opt from Sigma*^-1 and u_opt = 0. Gradient
dominance is |grad L|^2 >= c L^{(2L-1)/L}.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from flowsim._core.types import Scalar, Series
from flowsim.claims.claim import Comparison, at_least, at_most
from flowsim.claims.statements import dominance_floor, gradient_dominance, sharp_dominance
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LoopedLoss
from flowsim.models import LoopedAttention
from flowsim.papers.gatmiry2024.setting import (
    Loss,
    Points,
    compared,
    delta,
    delta_power,
    dimension_root,
    dominance_factor,
    dominance_power,
    loops,
    whitened,
)

_MOST_LOOPS_WITH_BIAS = 2  # beyond this the exact loss with u is slow to build


def _from_identity(loss: Loss) -> Series:
    """|A_opt^{1/2} Sigma* A_opt^{1/2} - I|, as one entry."""
    best = jax.tree.map(lambda leaf: leaf[None] if eqx.is_array(leaf) else leaf, loss.minimizer)
    return jnp.max(jnp.abs(whitened(loss, best) - 1.0), axis=1)


@eqx.filter_jit
def minimum_below(loss: Loss) -> Comparison:
    """min L <= d 4^L delta^{2L}; nothing is promised at n = inf, where both are zero."""
    bound = loss.task.dimension * 4.0 ** loops(loss) * delta_power(loss)
    return at_most(loss.minimum[None], bound[None], promised=jnp.isfinite(loss.task.context_length))


@eqx.filter_jit
def within(loss: Loss, factor: float) -> Comparison:
    """(1 - e) Sigma*^-1 <= A_opt <= (1 + e) Sigma*^-1 with e = factor delta d^{1/(2L)}, both halves in one number;
    nothing is promised at n = inf, where both are equalities.
    """
    bound = factor * delta(loss) * dimension_root(loss)
    return at_most(_from_identity(loss), bound[None], promised=jnp.isfinite(loss.task.context_length))


def bias_is_zero(loss: Loss) -> Comparison:
    """u_opt = 0: L(A_opt, u) - L(A_opt, 0) > 0 at u along the axes and at drawn u.

    Compared only up to L = 2, where the exact loss with u is quick to build; the difference is the mean of a square at
    every L.
    """
    d = loss.task.dimension
    if not isinstance(loss, LoopedLoss) or loops(loss) > _MOST_LOOPS_WITH_BIAS:
        return at_least(jnp.zeros(1), 0.0, promised=False)
    whole = LoopedLoss(loss.task, loops(loss), symmetric=False)
    u = jnp.concatenate([jnp.eye(d), jax.random.normal(jax.random.key(0), (8, d))])
    added = jax.vmap(lambda u: whole(LoopedAttention(loss.minimizer.A, u, loops=loops(loss))))(u) - loss.minimum
    return at_least(added, 0.0, size=jnp.sum((u @ loss.root) ** 2, axis=1))


def minimiser_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The distance |A_opt' - I|, the c of Theorem 3.2, and d/n, the order of the distance."""
    return {
        "distance": _from_identity(loss)[0],
        "c": 8.0 * delta(loss) * dimension_root(loss),
        "order": loss.task.dimension / loss.task.context_length,
    }


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
