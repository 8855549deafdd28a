"""The minimiser of gatmiry2024's loss in Theorems 3.2 and A.8: the distance of A_opt from Sigma*^-1, and u_opt = 0."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from flowsim._core.types import Series
from flowsim.claims.claim import Comparison, at_least, at_most
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LoopedLoss
from flowsim.models import LoopedAttention
from flowsim.papers.gatmiry2024 import landscape_problems as problems
from flowsim.papers.gatmiry2024.setting import Loss, delta, delta_power, dimension_root, loops, whitened

_MOST_LOOPS_WITH_BIAS = 2  # beyond this the exact loss with u is slow to build

OPTIMUM = (
    problems.EASY,
    problems.ONE_LOOP,
    problems.ONE_DIMENSION,
    problems.ANISOTROPIC,
    problems.VERY_LONG_ANISOTROPIC,
    problems.WIDE_LONG,
    problems.SHORT,
)


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
