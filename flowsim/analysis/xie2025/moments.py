"""Both sides of xie2025's equations about the moments of G and the parts of the risk, at drawn matrices.

G is the mean of z z^T over the context's tokens z = (x, y), M its mean, and M_w its mean given w-hat = w.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim.analysis.base import Comparison, equal
from flowsim.analysis.statements import of_task, rounded
from flowsim.losses import MultiHeadLoss
from flowsim.losses.head_risk import HeadRisk
from flowsim.tasks import LinearRegression
from flowsim.trajectory import Trajectory

Square = Float[Array, "rows rows"]
Scalar = Float[Array, ""]
Task = LinearRegression

_DRAWN = 8


def mean_tokens(risk: HeadRisk) -> Square:
    """M of (22): [I w*; w*^T |w*|^2 + d]."""
    w = risk.prior_mean
    upper = jnp.concatenate([jnp.eye(w.size), w[:, None]], axis=1)
    return jnp.concatenate([upper, jnp.append(w, w @ w + w.size)[None]])


def second_moment(risk: HeadRisk, N: Square) -> Square:
    """E[<G, N> G], half the derivative of E <G, N>^2."""
    return jax.grad(lambda N: risk.pairing(risk.form(N), risk.form(N)))(N) / 2


def weighted_moments(risk: HeadRisk) -> Float[Array, "d rows rows"]:
    """E[w-hat_i G]: w*_i E G + E[eps_i G], the derivative of w*_i E <G, N> + 2 p_i(N)."""

    def paired(N: Square) -> Float[Array, " d"]:
        form = risk.form(N)
        return risk.prior_mean * risk.mean(form) + 2 * form.p

    d = risk.task.dimension
    return jax.jacobian(paired)(jnp.zeros((d + 1, d + 1)))


def of_context(risk: HeadRisk, C: Scalar | float) -> HeadRisk:
    """The risk with another context length."""
    task = risk.task
    return HeadRisk(LinearRegression(task.covariance, C, prior_mean=risk.prior_mean))


def drawn(d: int) -> Float[Array, "count rows rows"]:
    """Many symmetric matrices."""
    normals = np.random.default_rng(0).standard_normal((_DRAWN, d + 1, d + 1))
    return jnp.asarray(normals + np.swapaxes(normals, 1, 2))


def on_drawn(task: Task, printed, true) -> Comparison:
    """printed(risk, N) = true(risk, N), entry by entry at drawn matrices, of the size of the largest entry."""
    risk = HeadRisk(task)
    sides = (
        jax.vmap(lambda N, side=side: side(risk, N).reshape(-1))(drawn(task.dimension)) for side in (printed, true)
    )
    left, right = sides
    size = jnp.broadcast_to(jnp.max(jnp.abs(right), axis=1, keepdims=True), right.shape)
    comparison = equal(left.reshape(-1), right.reshape(-1), size.reshape(-1))
    return rounded(comparison, jnp.asarray((task.dimension + 1.0) ** 2))


@of_task
def eq_21(task: Task) -> Comparison:
    """(21) against E[w-hat_i G]."""
    d = task.dimension

    def printed(risk: HeadRisk, N: Square) -> Array:
        w = risk.prior_mean
        M = mean_tokens(risk)[None] * w[:, None, None]
        units = jnp.eye(d)
        M = M.at[:, :d, d].add(units).at[:, d, :d].add(units).at[:, d, d].add(2 * w)
        return jnp.einsum("imn,mn->i", M, N)

    return on_drawn(task, printed, lambda risk, N: jnp.einsum("imn,mn->i", weighted_moments(risk), N))


@of_task
def eq_24(task: Task) -> Comparison:
    """<M, N> M against E[<G, N> G]."""
    return on_drawn(task, lambda risk, N: jnp.sum(mean_tokens(risk) * N) * mean_tokens(risk), second_moment)


@of_task
def eq_24_shared(task: Task) -> Comparison:
    """<M, N> M + 2 S [0 p; p^T d pi] S^T against E[<G, N> G] in the limit, for N = S^-T [P p; p^T pi] S^-1."""
    d = task.dimension

    def corrected(risk: HeadRisk, N: Square) -> Square:
        M, form = mean_tokens(risk), risk.form(N)
        S = jnp.eye(d + 1).at[d, :d].set(risk.prior_mean)
        spread = jnp.zeros((d + 1, d + 1)).at[:d, d].set(form.p).at[d, :d].set(form.p).at[d, d].set(d * form.pi)
        return jnp.sum(M * N) * M + 2 * S @ spread @ S.T

    return on_drawn(task, corrected, second_moment)


def _own_token(risk: HeadRisk, N: Square) -> Square:
    """E[(z^T N z) z z^T] of one token: the second moment of a context of one."""
    return second_moment(of_context(risk, 1.0), N)


def _as_in_27(risk: HeadRisk, N: Square) -> Square:
    """(27) as printed, contracted with N."""
    M, inverse_C = mean_tokens(risk), 1 / risk.task.context_length
    return (1 - inverse_C) * jnp.sum(M * N) * M + inverse_C * _own_token(risk, N)


def _with_shared_weights(risk: HeadRisk, N: Square) -> Square:
    """(27) with the mean over w-hat of M_w M_w in place of the product of the means."""
    inverse_C = 1 / risk.task.context_length
    return (1 - inverse_C) * second_moment(of_context(risk, jnp.inf), N) + inverse_C * _own_token(risk, N)


@of_task
def eq_27(task: Task) -> Comparison:
    """(27) against E[<G, N> G]."""
    return on_drawn(task, _as_in_27, second_moment)


@of_task
def eq_27_shared(task: Task) -> Comparison:
    """(27) with M_w M_w averaged over w-hat, against E[<G, N> G]."""
    return on_drawn(task, _with_shared_weights, second_moment)


def _eq_29(task: Task, moment) -> Comparison:
    """2 (moment of N - E[w-hat_i G]) against the derivative of L_i at N, for i = 1."""

    def derivative(risk: HeadRisk, N: Square) -> Square:
        part = lambda N: _component(risk, N, 0)
        return jax.grad(part)(N)

    return on_drawn(task, lambda risk, N: 2 * moment(risk, N) - 2 * weighted_moments(risk)[0], derivative)


@of_task
def eq_29(task: Task) -> Comparison:
    """(29), whose U_i is the contraction of (27), against the derivative of L_1."""
    return _eq_29(task, _as_in_27)


@of_task
def eq_29_shared(task: Task) -> Comparison:
    """(29) with the moments of a shared w-hat, against the derivative of L_1."""
    return _eq_29(task, _with_shared_weights)


def _component(risk: HeadRisk, N: Square, i: int) -> Scalar:
    """L_i(N) = E(<G, N> - w-hat_i)^2 by the forms."""
    form, w = risk.form(N), risk.prior_mean[i]
    return risk.pairing(form, form) - 2 * (2 * form.p[i] + w * risk.mean(form)) + 1 + w**2


def separated(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(18) at drawn heads: sum L_i(M_i) + E(1 + <G, M_{d+1}>)^2 E y_q^2 against the risk."""
    model, risk = trajectory.start.reduced(), loss.risk
    d, H = risk.task.dimension, model.b.shape[0]
    rng = np.random.default_rng(1)
    draws = [
        (jnp.asarray(rng.standard_normal((H, d + 1))), jnp.asarray(rng.standard_normal(model.A.shape))) for _ in "ab"
    ]
    sides = []
    for b, A in draws:
        moved = type(model)(b, A, model.w, model.bias, trainable=model.trainable)
        parts = risk.separated(moved)
        sides.append((jnp.sum(parts), risk(moved)))
    left, right = (jnp.stack(side) for side in zip(*sides, strict=True))
    return rounded(equal(left, right, right), jnp.asarray((d + 1.0) ** 2))
