"""Both sides of what gatmiry2024 says of the landscape: the minimum and its place, gradient dominance, and that a small
loss means a small distance.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, PyTree

from flowsim.claims.claim import Comparison, at_least, at_most
from flowsim.claims.hypotheses import Hypothesis, hypothesis
from flowsim.claims.inequalities import dominance_floor, gradient_dominance, sharp_dominance
from flowsim.claims.statements import joined
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LoopedLoss
from flowsim.models import LoopedAttention
from flowsim.papers.gatmiry2024.setting import (
    Loss,
    Points,
    Scalar,
    Series,
    compared,
    delta,
    delta_power,
    dimension_loss,
    dimension_root,
    dominance_factor,
    dominance_power,
    everywhere,
    loops,
    of_loss,
    whitened,
)

_DOMINANCE = 1 / 16
_BISECTIONS = 100
_SMALLEST, _LARGEST = -30.0, 10.0  # decimal logarithms of the smallest and the largest epsilon looked for
_MOST_LOOPS_WITH_BIAS = 2  # beyond which the exact loss with u is slow to make


# Theorems 3.2 and A.8: the minimum and the minimiser


@of_loss
def minimum_bounded(loss: Loss) -> Comparison:
    """L(A_opt, u_opt) against d (2 delta)^{2L} = 8 L d^2 2^{2L} / sqrt(n)."""
    bound = loss.task.dimension * 4.0 ** loops(loss) * delta_power(loss)
    return at_most(loss.minimum[None], bound[None], promised=jnp.isfinite(loss.task.context_length))


def minimum_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The minimum, the bound on it, and d (d/n)^L, the order it has."""
    n, d, L = loss.task.context_length, loss.task.dimension, loops(loss)
    return {"minimum": loss.minimum, "bound": d * 4.0**L * delta_power(loss), "order": d * (d / n) ** L}


def _from_identity(loss: Loss) -> Series:
    """|A_opt^{1/2} Sigma* A_opt^{1/2} - I|, one number."""
    best = jax.tree.map(lambda leaf: leaf[None] if eqx.is_array(leaf) else leaf, loss.minimizer)
    return jnp.max(jnp.abs(whitened(loss, best) - 1.0), axis=1)


def _within(loss: Loss, factor: float) -> Comparison:
    """(1 - e) Sigma*^-1 <= A_opt <= (1 + e) Sigma*^-1 with e = factor delta d^{1/(2L)}, both halves in one number; at
    n = inf both are equalities.
    """
    bound = factor * delta(loss) * dimension_root(loss)
    return at_most(_from_identity(loss), bound[None], promised=jnp.isfinite(loss.task.context_length))


def bias_is_zero(loss: Loss) -> Comparison:
    """L(A_opt, u) - L(A_opt, 0) > 0, at u along the axes and drawn.

    Compared where the exact loss with u is quick to make, up to L = 2; it is the mean of a square at every L.
    """
    d = loss.task.dimension
    if not isinstance(loss, LoopedLoss) or loops(loss) > _MOST_LOOPS_WITH_BIAS:
        return at_least(jnp.zeros(1), 0.0, promised=False)
    whole = LoopedLoss(loss.task, loops(loss), symmetric=False)
    u = jnp.concatenate([jnp.eye(d), jax.random.normal(jax.random.key(0), (8, d))])
    added = jax.vmap(lambda u: whole(LoopedAttention(loss.minimizer.A, u, loops=loops(loss))))(u) - whole.minimum
    return at_least(added, 0.0, size=jnp.sum((u @ loss.root) ** 2, axis=1))


_within_eight = of_loss(lambda loss: _within(loss, 8.0))
_within_four = of_loss(lambda loss: _within(loss, 4.0))


def minimiser_bounded(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The distance of A_opt from Sigma*^-1 against 8 delta d^{1/(2L)}, and u_opt = 0."""
    return joined([_within_eight(loss, trajectory), bias_is_zero(loss)])


def optimum(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The three parts of Theorem A.8, with 4 delta d^{1/(2L)} as well as 8."""
    parts = [minimum_bounded, _within_four, _within_eight]
    return joined([*(part(loss, trajectory) for part in parts), bias_is_zero(loss)])


def minimiser_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """|A_opt' - I|, the c of Theorem 3.2, and d/n, the order that the distance has."""
    return {
        "distance": _from_identity(loss)[0],
        "c": 8.0 * delta(loss) * dimension_root(loss),
        "order": loss.task.dimension / loss.task.context_length,
    }


# Theorems 3.4 and A.11, Lemma A.10: gradient dominance


def printed_threshold(loss: Loss) -> Scalar:
    """16 L d 4^L / sqrt(n). **Source:** gatmiry2024, Theorem 3.4."""
    return 2.0 * 4.0 ** loops(loss) * delta_power(loss)


def appendix_threshold(loss: Loss) -> Scalar:
    """2 (4 delta)^{2L} = 16 L d 16^L / sqrt(n). **Source:** gatmiry2024, Theorems 3.3, A.11 and A.12."""
    return 2.0 * 16.0 ** loops(loss) * delta_power(loss)


def _dominates(loss: Loss, points: Points, constant: ArrayLike, threshold: Scalar) -> Comparison:
    comparison = gradient_dominance(points.grad_norm_sq, points.loss, constant, dominance_power(loss), threshold)
    return compared(comparison, points)


def dominance(loss: Loss, trajectory: Trajectory) -> Comparison:
    """|grad L|^2 against L^{(2L-1)/L}/16, where L >= 16 L d 4^L / sqrt(n)."""
    return _dominates(loss, everywhere(loss, trajectory), _DOMINANCE, printed_threshold(loss))


def dominance_with_dimension(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The same with the d^{-(L-1)/L} of Hoelder's inequality."""
    constant = _DOMINANCE * dimension_loss(loss)
    return _dominates(loss, everywhere(loss, trajectory), constant, printed_threshold(loss))


def appendix_dominance(loss: Loss, trajectory: Trajectory) -> Comparison:
    """|grad L|^2 against L^{(2L-1)/L}/16, where L >= 2 (4 delta)^{2L}."""
    return _dominates(loss, everywhere(loss, trajectory), _DOMINANCE, appendix_threshold(loss))


def appendix_dominance_with_dimension(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The same with the lambda_d^2 of Sigma* and the d^{-(L-1)/L} of Hoelder's inequality."""
    constant = _DOMINANCE * dominance_factor(loss)
    return _dominates(loss, everywhere(loss, trajectory), constant, appendix_threshold(loss))


def _dominance_constants(loss: Loss, trajectory: Trajectory, threshold: Scalar) -> dict[str, Array]:
    sides = trajectory.grad_norm_sq, trajectory.loss
    power, L = dominance_power(loss), loops(loss)
    return {
        "constant": jnp.asarray(_DOMINANCE),
        "power": jnp.asarray(power),
        "sharp_constant": sharp_dominance(*sides, power, threshold),
        "limit_constant": 4.0 * L**2 * dominance_factor(loss),
        "threshold": threshold,
        "fails_at_and_below": dominance_floor(*sides, _DOMINANCE, power),
        "minimum": loss.minimum,
    }


def dominance_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The paper's constant, the sharp one along the flow, that of long contexts, 4 L^2 lambda_d^2 d^{-(L-1)/L},
    attained at multiples of I where Sigma* is one; the threshold, and the largest loss along the flow at which the
    inequality fails.
    """
    return _dominance_constants(loss, trajectory, printed_threshold(loss))


def appendix_dominance_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The same with the threshold of the appendix."""
    return _dominance_constants(loss, trajectory, appendix_threshold(loss))


def epsilons(loss: Loss, losses: Series) -> tuple[Series, Bool[Array, " T"]]:
    """The largest epsilon <= 1 with epsilon^{2L} + d delta^{2L} (epsilon + 2)^{2L} <= L, and whether it is at least
    8 delta d^{3/(4L)}.
    """
    power, noise = 2 * loops(loss), loss.task.dimension * delta_power(loss)
    epsilon, _ = _crossing(lambda e: e**power + noise * (e + 2.0) ** power, losses, 0.0)
    smallest = 8.0 * delta(loss) * float(loss.task.dimension) ** (3 / (4 * loops(loss)))
    return epsilon, (epsilon >= smallest) & (epsilon > 10.0 ** (_SMALLEST + 1))


def _crossing(increasing, values: Series, largest: float) -> tuple[Series, Series]:
    """Two numbers at which an increasing function is at most each value and above it, by bisection of their logarithms
    from 10^-30 to 10^largest, which is both where it does not get above.
    """

    def halve(_, interval):
        low, high = interval
        middle = (low + high) / 2
        below = increasing(10.0**middle) <= values
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    start = jnp.full_like(values, _SMALLEST), jnp.full_like(values, largest)
    low, high = jax.lax.fori_loop(0, _BISECTIONS, halve, start)
    beyond = increasing(jnp.full_like(values, 10.0**largest)) <= values
    return jnp.where(beyond, 10.0**largest, 10.0**low), 10.0**high


def _epsilon_dominance(loss: Loss, trajectory: Trajectory, constant: ArrayLike) -> Comparison:
    """|grad L|^2 against c epsilon^{4L-2} with the largest epsilon that a point allows."""
    points = everywhere(loss, trajectory)
    epsilon, promised = epsilons(loss, points.loss)
    comparison = at_least(points.grad_norm_sq, constant * epsilon ** (4 * loops(loss) - 2), promised=promised)
    return compared(comparison, points)


def epsilon_dominance(loss: Loss, trajectory: Trajectory) -> Comparison:
    """|grad L|^2 against epsilon^{4L-2}/4, where L >= epsilon^{2L} + d delta^{2L} (epsilon + 2)^{2L}."""
    return _epsilon_dominance(loss, trajectory, 1 / 4)


def epsilon_dominance_with_dimension(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The same with the lambda_d^2 of Sigma* and the d^{-(L-1)/L} of Hoelder's inequality."""
    return _epsilon_dominance(loss, trajectory, dominance_factor(loss) / 4)


def small_delta(loss: Loss, start: PyTree) -> list[Hypothesis]:
    """4 d delta^{4L-2} <= 1."""
    value = 4.0 * loss.task.dimension * delta(loss) ** (4 * loops(loss) - 2)
    return [hypothesis("4 d delta^(4L-2) <= 1", value, "<=", 1.0)]


def epsilon_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The printed constant, the sharp one at all points compared, and that of long contexts, 4 L^2 lambda_d^2
    d^{-(L-1)/L}.
    """
    points = everywhere(loss, trajectory)
    epsilon, promised = epsilons(loss, points.loss)
    ratio = points.grad_norm_sq / jnp.where(promised, epsilon, 1.0) ** (4 * loops(loss) - 2)
    return {
        "constant": jnp.asarray(1 / 4),
        "sharp_constant": jnp.min(jnp.where(promised, ratio, jnp.inf)),
        "limit_constant": 4.0 * loops(loss) ** 2 * dominance_factor(loss),
    }


# Theorem 4.4 and Lemma A.9: a small loss is close to the optimum


def proximity_factor(loss: Loss) -> float:
    """c = 4 + 16 d^{1/(2L)}. **Source:** gatmiry2024, Theorem 4.4."""
    return 4.0 + 16.0 * dimension_root(loss)


def proximity(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The distance of A from A_opt against c epsilon, epsilon > 4 delta the least that L <= epsilon^{2L}/2 allows."""
    points = everywhere(loss, trajectory)
    epsilon = jnp.maximum((2.0 * points.loss) ** (1 / (2 * loops(loss))), 4.0 * delta(loss))
    bound = proximity_factor(loss) * epsilon
    return compared(at_most(points.deviation, bound, promised=bound > 0), points)


def proximity_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """c, the sharp one at all points compared with L > 0, and how long a context must be for 1 - c epsilon > 0."""
    points = everywhere(loss, trajectory)
    epsilon = (2.0 * points.loss) ** (1 / (2 * loops(loss)))
    known = epsilon > 4.0 * delta(loss)
    ratio = points.deviation / jnp.where(known, epsilon, 1.0)
    needed = 8.0 * loops(loss) * loss.task.dimension * (4.0 * proximity_factor(loss)) ** (2 * loops(loss))
    return {
        "c": jnp.asarray(proximity_factor(loss)),
        "sharp_c": jnp.max(jnp.where(known, ratio, -jnp.inf)),
        "context_length_needed": jnp.asarray(float(needed) ** 2),
    }


def appendix_proximity(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The distance of A from A_opt against 4 epsilon + 16 delta d^{1/(2L)}, with the least epsilon > 2 delta for which
    L <= epsilon^{2L} - delta^{2L} (epsilon + 2)^{2L}.
    """
    points, power = everywhere(loss, trajectory), 2 * loops(loss)
    # It is epsilon^{2L} times an increasing function, which is positive from an epsilon > 2 delta on if delta < 1.
    room = lambda e: e**power * (1.0 - delta_power(loss) * (1.0 + 2.0 / e) ** power)
    _, epsilon = _crossing(room, points.loss, _LARGEST)
    bound = 4.0 * epsilon + 16.0 * delta(loss) * dimension_root(loss)
    promised = (room(epsilon) >= points.loss) & (points.loss > 0) & (epsilon > 10.0 ** (_SMALLEST + 1))
    return compared(at_most(points.deviation, bound, promised=promised), points)
