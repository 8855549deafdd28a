"""Heads of least risk: in closed form for d or more heads, else by a minimisation over one number."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix
from jaxtyping import Array, Float

from flowsim._core.types import Scalar
from flowsim.losses.one_layer.head_risk import Forms, HeadRisk
from flowsim.models import MultiHeadAttention

_ANGLES = 512


class Found(NamedTuple):
    """The forms of least risk for a number of heads, and (fewest, d+1) orthonormal vectors b_h of heads that have these
    forms.
    """

    forms: Forms
    b: Float[Array, "fewest rows"]


@eqx.filter_jit
def least(risk: HeadRisk, reduced: MultiHeadAttention, right: bool) -> tuple[MultiHeadAttention, Scalar]:
    """The heads of least risk with the number of heads and the guess of a model, and their risk.

    **Arguments:** reduced: the model; right: whether its guess is known to be exact: w = w*, and no bias.
    """
    H, d = reduced.b.shape[0], risk.task.dimension
    if right:
        found = Found(risk.best(reduced.w), jnp.eye(1, d + 1, d))
    elif d <= H:
        found = Found(risk.best(reduced.w), jnp.eye(d, d + 1))
    else:
        found = limited(risk.prior_mean - reduced.w, reduced.bias, 1 / risk.task.context_length, H)
    return _heads(risk, reduced, found), risk.bound(reduced) + risk.above(reduced, found.forms)


def _heads(risk: HeadRisk, reduced: MultiHeadAttention, found: Found) -> MultiHeadAttention:
    """Heads with the number of heads and the guess of a model, whose matrices M_i have the given symmetric parts N.

    With P the projection on the b_h, M = P N (2 I - P) is such a matrix, as P N P + P N (I - P) + (I - P) N P = N.
    """
    H, d = reduced.b.shape[0], risk.task.dimension
    b = found.b
    beyond = 2 * jnp.eye(d + 1) - b.T @ b
    A = jnp.einsum("hm,imn->hni", b, found.forms.matrices() @ beyond[None])
    # From M_i + w_i M_{d+1} back to M_i, and from tokens (x, eps^T x) back to (x, y).
    A = A.at[:, :, :d].add(-A[:, :, d:] * reduced.w[None, None, :])
    shift = jnp.eye(d + 1).at[:d, d].set(-risk.prior_mean)
    b, A = b @ shift.T, shift[None] @ A
    others = H - b.shape[0]
    b, A = jnp.pad(b, ((0, others), (0, 0))), jnp.pad(A, ((0, others), (0, 0), (0, 0)))
    return MultiHeadAttention(b, A, reduced.w, reduced.bias, trainable=reduced.trainable)


def limited(delta: Float[Array, " d"], bias: Scalar, inverse_C: Scalar, heads: int) -> Found:
    """The forms N_1, .., N_d and M_{d+1} of least risk in a family of forms that H < d heads can make.

    The symmetric parts of matrices sum_h b_h (a_i^h)^T are the quadratic forms that vanish on the complement of the
    b_h. In the family the complement is {(x, -tau u^T x)} with x in a space of dimension m = d + 1 - H that contains
    u = delta/|delta|. Given the tilt tau, the best forms solve a linear system of three unknowns, and tau minimises a
    function of one variable. Searches over all b_h and A_h from random starts never ended lower.

    **Arguments:**

    - delta: w* - w, the error of the guess, (d,).
    - bias: of the guess.
    - inverse_C: 1/C.
    - heads: H.
    """
    d = delta.shape[0]
    norm = jnp.linalg.norm(delta)
    safe = jnp.where(norm > 0, norm, 1.0)
    u = jnp.where(norm > 0, delta / safe, jnp.eye(d)[0])
    basis = jnp.linalg.qr(jnp.concatenate([u[:, None], jnp.eye(d)], axis=1))[0][:, :d]
    basis = basis * jnp.where(basis[:, 0] @ u < 0, -1.0, 1.0)
    risk = lambda angle: _risk(jnp.tan(angle), norm, bias, inverse_C, d, heads)
    angles = jnp.linspace(-jnp.pi / 2, jnp.pi / 2, _ANGLES + 1, endpoint=False)[1:]
    nearest = angles[jnp.argmin(jax.lax.map(risk, angles))]
    newton = optimistix.Newton(1e-12, 1e-14)
    refined = optimistix.root_find(lambda angle, _: jax.grad(risk)(angle), newton, nearest, throw=False).value
    better = risk(refined) <= risk(nearest)
    tau = jnp.tan(jnp.where(better, refined, nearest))
    return _at(tau, norm, basis, inverse_C, heads)


def _system(tau: Scalar, inverse_C: Scalar, d: int, heads: int) -> tuple[Float[Array, "3 3"], Float[Array, "3"]]:
    """The quadratic form E <G, N>^2 in the three unknowns of a form, and its trace E <G, N>.

    The unknowns are c, the entry of p along u, and pi, where P + pi I is c I outside the complement.
    """
    m, kappa = d + 1 - heads, 1 + (d + 1) * inverse_C
    trace = jnp.stack([jnp.asarray(heads - 1.0), 2 * tau, m - tau**2])
    mixed, last = 2 * tau * (1 - tau**2), m - 1 + (1 - tau**2) ** 2
    squares = jnp.zeros((3, 3)).at[0, 0].set(heads - 1.0).at[1, 1].set(4 * tau**2).at[2, 2].set(last)
    squares = squares.at[1, 2].set(mixed).at[2, 1].set(mixed)
    # With one head there is no c.
    alone = jnp.zeros(3).at[0].set(1.0 if heads == 1 else 0.0)
    diagonal = jnp.stack([jnp.zeros(()), 4 * kappa, 2 * d * kappa]) + alone
    return jnp.outer(trace, trace) + 2 * inverse_C * squares + jnp.diag(diagonal), trace


def _solved(
    tau: Scalar, norm: Scalar, inverse_C: Scalar, d: int, heads: int
) -> tuple[Float[Array, "2 3"], Float[Array, "2 3"]]:
    """The linear terms and the unknowns of the form along u and of the form of the bias."""
    system, trace = _system(tau, inverse_C, d, heads)
    linear = jnp.stack([norm * trace + jnp.zeros(3).at[1].set(2.0), -trace])
    return linear, jnp.linalg.solve(system, linear.T).T


def _others(tau: Scalar, inverse_C: Scalar, d: int, heads: int) -> tuple[Scalar, Scalar]:
    """2 p_i of the coordinates inside and outside the complement, except u."""
    kappa = 1 + (d + 1) * inverse_C
    return 1 / (kappa + tau**2 * inverse_C), 1 / kappa


def _risk(tau: Scalar, norm: Scalar, bias: Scalar, inverse_C: Scalar, d: int, heads: int) -> Scalar:
    """The least risk at a tilt, without terms that do not depend on the tilt."""
    linear, unknowns = _solved(tau, norm, inverse_C, d, heads)
    within, _ = _others(tau, inverse_C, d, heads)
    gains = jnp.sum(linear * unknowns, axis=1)
    return -gains[0] - bias**2 * gains[1] - (d - heads) * within


def _at(tau: Scalar, norm: Scalar, basis: Float[Array, "d d"], inverse_C: Scalar, heads: int) -> Found:
    """The best forms at a tilt, in the coordinates in which u is the first column of the basis."""
    d = basis.shape[0]
    m = d + 1 - heads
    _, unknowns = _solved(tau, norm, inverse_C, d, heads)
    within, beyond = _others(tau, inverse_C, d, heads)
    p = jnp.where(jnp.arange(d) < m, within, beyond) / 2
    inside = jnp.arange(d) < m
    first = jnp.eye(d)[0]

    def along(unknown: Float[Array, "3"]) -> Forms:
        c, entry, pi = unknown
        shifted = jnp.diag(jnp.where(inside, pi, c)) + (2 * tau * entry - pi * tau**2) * jnp.outer(first, first)
        return Forms(shifted, entry * first, pi)

    def other(i: Array) -> Forms:
        here = jnp.eye(d)[i]
        tilted = jnp.where(i < m, tau * p[i], 0.0) * jnp.outer(here, first)
        return Forms(tilted + tilted.T, p[i] * here, jnp.zeros(()))

    rest = jax.vmap(other)(jnp.arange(1, d))
    ends = jax.vmap(along)(unknowns)
    forms = jax.tree.map(lambda end, others: jnp.concatenate([end[:1], others, end[1:]]), ends, rest)
    # Back to the coordinates of the query and of the covariates.
    turned = Forms(basis @ forms.shifted @ basis.T, forms.p @ basis.T, forms.pi)
    mix = lambda leaf: jnp.concatenate([jnp.tensordot(basis, leaf[:d], 1), leaf[d:]])
    tilt = jnp.append(tau * basis[:, 0], 1.0) / jnp.sqrt(1 + tau**2)
    b = jnp.concatenate([tilt[None], jnp.pad(basis[:, m:].T, ((0, 0), (0, 1)))])
    return Found(jax.tree.map(mix, turned), b)
