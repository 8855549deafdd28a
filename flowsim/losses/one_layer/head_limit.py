"""The heads of least risk for a given number of heads.

They are known in closed form for d or more heads, and otherwise found by a minimisation over one number.
"""

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
    """The quadratic forms of least risk for a number of heads.

    **Fields:** forms: the forms; b: orthonormal vectors b_h of the fewest heads that have these forms, (fewest,
    d+1).
    """

    forms: Forms
    b: Float[Array, "fewest rows"]


@eqx.filter_jit
def least(risk: HeadRisk, reduced: MultiHeadAttention, right: bool) -> tuple[MultiHeadAttention, Scalar]:
    """The heads of least risk for the guess and the number of heads of a model, and their risk.

    **Arguments:** risk: the `HeadRisk` for Lambda = Sigma_w = I; reduced: the model; right: whether the guess is
    known to be exact, that is w = w* and bias = 0.
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
    """Heads whose forms are N_i, given by ``found``, with the number of heads and the guess of ``reduced``.

    Let P be the projection on the span of the b_h. The matrix M = P N_i (2 I - P) has the symmetric part N_i,
    because N_i = P N_i P + P N_i (I - P) + (I - P) N_i P. The heads follow from these matrices by going back from
    the coordinates of `HeadRisk` to those of the model.
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
    """The forms N_1, .., N_d and M_{d+1} of least risk in a family of forms that H < d heads can have.

    For given b_h, the symmetric parts of the matrices sum_h b_h (a_i^h)^T are the quadratic forms that vanish on
    the orthogonal complement of the b_h. In the family this complement is {(x, -tau u^T x): x in V}, where V is a
    space of dimension m = d + 1 - H that contains u = delta/|delta|. For each tilt tau the best forms solve a
    linear system with three unknowns. The best tau minimises a function of one variable. It is not proved that the
    family contains the best forms, but searches over all b_h and A_h from random starts never found a smaller risk.

    **Arguments:**

    - delta: w* - w, the error of the guess, (d,).
    - bias: the bias of the guess.
    - inverse_C: 1/C for C examples.
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
    """E <G, N>^2 and E <G, N> as functions of the three unknowns of a form N = [P p; p^T pi].

    The unknowns are c, the entry of p along u, and pi. On the orthogonal complement of V, P + pi I equals c I.

    **Returns:** the matrix of the quadratic form E <G, N>^2, and the vector of the linear form E <G, N>.
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
    """The best unknowns of two forms at a tilt: the form N along u and the form M_{d+1} of the bias.

    **Returns:** the linear terms of the risk in the unknowns, and the unknowns, one row for each form.
    """
    system, trace = _system(tau, inverse_C, d, heads)
    linear = jnp.stack([norm * trace + jnp.zeros(3).at[1].set(2.0), -trace])
    return linear, jnp.linalg.solve(system, linear.T).T


def _others(tau: Scalar, inverse_C: Scalar, d: int, heads: int) -> tuple[Scalar, Scalar]:
    """The best values of 2 p_i for coordinates i inside V, except u, and outside V."""
    kappa = 1 + (d + 1) * inverse_C
    return 1 / (kappa + tau**2 * inverse_C), 1 / kappa


def _risk(tau: Scalar, norm: Scalar, bias: Scalar, inverse_C: Scalar, d: int, heads: int) -> Scalar:
    """The least risk at a tilt tau, up to terms that do not depend on tau."""
    linear, unknowns = _solved(tau, norm, inverse_C, d, heads)
    within, _ = _others(tau, inverse_C, d, heads)
    gains = jnp.sum(linear * unknowns, axis=1)
    return -gains[0] - bias**2 * gains[1] - (d - heads) * within


def _at(tau: Scalar, norm: Scalar, basis: Float[Array, "d d"], inverse_C: Scalar, heads: int) -> Found:
    """The best forms at a tilt tau, and their b_h.

    **Arguments:** norm: |delta|; basis: (d, d) orthogonal, with u as its first column. The first d + 1 - H columns
    span V.
    """
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
