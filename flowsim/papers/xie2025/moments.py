"""The moments of G and the parts of the risk of xie2025, and comparisons of the paper's equations for them.

G is the mean of z z^T over the context's tokens z = (x, y), M is the mean of G, and M_w is its mean given w-hat = w.
One side of a comparison is the paper's formula, with the closed forms of the risk for the moments that it leaves open.
The other side is exact.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim.claims.claim import Comparison
from flowsim.losses import MultiHeadLoss
from flowsim.losses.one_layer.head_risk import HeadRisk
from flowsim.papers.xie2025 import exact
from flowsim.papers.xie2025.setting import same
from flowsim.tasks import LinearRegression

Square = Float[Array, "rows rows"]
Task = LinearRegression
Moment = Callable[[HeadRisk, Square], Square]

_DRAWN = 8

# What the paper overlooks in appendices A.2 and A.3.
SHARED_WEIGHTS = (
    "All tokens of a prompt share one w-hat. Given w-hat, the moments of different tokens multiply, but their means "
    "over w-hat do not. The paper multiplies the means, which is wrong at every C > 1 and in the limit."
)


def mean_tokens(w: Float[Array, " d"]) -> Square:
    """The mean M of z z^T by (22), [I w*; w*^T |w*|^2 + d]."""
    upper = jnp.concatenate([jnp.eye(w.size), w[:, None]], axis=1)
    return jnp.concatenate([upper, jnp.append(w, w @ w + w.size)[None]])


def shared(w: Float[Array, " d"]) -> Float[Array, "d rows rows"]:
    """The matrices N_i of (25) for i = 1, .., d: [0 e_i; e_i^T 2 w*_i]."""
    d = w.size
    units = jnp.eye(d)
    N = jnp.zeros((d, d + 1, d + 1)).at[:, :d, d].set(units).at[:, d, :d].set(units)
    return N.at[:, d, d].set(2 * w)


def outer_square(M: Square) -> Float[Array, "rows rows rows rows"]:
    """The products M_mn M_pq of the entries of a matrix."""
    return jnp.einsum("mn,pq->mnpq", M, M)


def second_moment(risk: HeadRisk, N: Square) -> Square:
    """E[<G, N> G] as half the derivative of the closed form of E <G, N>^2."""
    return jax.grad(lambda N: risk.pairing(risk.form(N), risk.form(N)))(N) / 2


def weighted_moments(risk: HeadRisk) -> Float[Array, "d rows rows"]:
    """E[w-hat_i G] by the closed forms, as the derivative of w*_i E <G, N> + 2 p_i(N) in N."""

    def paired(N: Square) -> Float[Array, " d"]:
        form = risk.form(N)
        return risk.prior_mean * risk.mean(form) + 2 * form.p

    d = risk.task.dimension
    return jax.jacobian(paired)(jnp.zeros((d + 1, d + 1)))


def derivative(risk: HeadRisk, N: Square, moment: Moment) -> Float[Array, "d rows rows"]:
    """grad L_i = 2 (E[<G, N> G] - w*_i M - N_i) at N for i <= d, with ``moment`` for E[<G, N> G]."""
    w = risk.prior_mean
    return 2 * (moment(risk, N)[None] - w[:, None, None] * mean_tokens(w)[None] - shared(w))


def drawn(d: int) -> Float[np.ndarray, "count rows rows"]:
    """Drawn symmetric matrices with integer entries."""
    numbers = np.random.default_rng(0).integers(-3, 4, size=(_DRAWN, d + 1, d + 1))
    return (numbers + np.swapaxes(numbers, 1, 2)).astype(float)


# Comparisons


def same_entries(task: Task, left: Array, right: Array) -> Comparison:
    """The statement left = right, entry by entry, relative to the largest entry."""
    return same(task, left.reshape(-1), right.reshape(-1), jnp.max(jnp.abs(right)))


def same_moment(task: Task, stated: Moment) -> Comparison:
    """A formula for E[<G, N> G] against the exact moment, at drawn N."""
    N = drawn(task.dimension)
    left = jax.vmap(lambda N: stated(HeadRisk(task), N))(jnp.asarray(N))
    return same_entries(task, left, exact.floats(exact.moments(task).paired(exact.rationals(N))))


def same_second_moments(loss: MultiHeadLoss, stated: Float[Array, "rows rows rows rows"]) -> Comparison:
    """A formula for E[G_mn G_pq] against the exact moments."""
    return same_entries(loss.task, stated, exact.floats(exact.moments(loss.task).second))


def same_slopes(task: Task, stated: Callable[[HeadRisk, Square], Float[Array, "d rows rows"]]) -> Comparison:
    """A formula for the derivatives of L_1, .., L_d against those of the exact E(<G, N> - w-hat_i)^2, by JAX."""
    known, N, d = exact.moments(task).rounded, jnp.asarray(drawn(task.dimension)), task.dimension
    of_all = lambda N: jnp.stack([known.component(N, i) for i in range(d)])
    return same_entries(task, jax.vmap(lambda N: stated(HeadRisk(task), N))(N), jax.vmap(jax.jacobian(of_all))(N))
