"""Both sides of xie2025's equations about the moments of G and the parts of the risk, at drawn matrices.

G is the mean of z z^T over the context's tokens z = (x, y), M its mean, and M_w its mean given w-hat = w. One side is
what the paper writes, with the closed forms of the risk where it leaves a moment open; the other one is exact.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim._core.types import Scalar
from flowsim.claims.claim import Comparison
from flowsim.claims.statements import joined
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import MultiHeadLoss
from flowsim.losses.head_risk import HeadRisk
from flowsim.models import FactoredMultiHeadAttention, MultiHeadAttention
from flowsim.papers.xie2025 import exact, prompts
from flowsim.papers.xie2025.setting import counted, drawn_heads, risks, same
from flowsim.tasks import LinearRegression

Square = Float[Array, "rows rows"]
Task = LinearRegression
Moment = Callable[[HeadRisk, Square], Square]

_DRAWN = 8
_ZERO = 1e-10


def mean_tokens(w: Float[Array, " d"]) -> Square:
    """M of (22): [I w*; w*^T |w*|^2 + d]."""
    upper = jnp.concatenate([jnp.eye(w.size), w[:, None]], axis=1)
    return jnp.concatenate([upper, jnp.append(w, w @ w + w.size)[None]])


def shared(w: Float[Array, " d"]) -> Float[Array, "d rows rows"]:
    """N of (25) for each i: [0 e_i; e_i^T 2 w*_i]."""
    d = w.size
    units = jnp.eye(d)
    N = jnp.zeros((d, d + 1, d + 1)).at[:, :d, d].set(units).at[:, d, :d].set(units)
    return N.at[:, d, d].set(2 * w)


def second_moment(risk: HeadRisk, N: Square) -> Square:
    """E[<G, N> G], half the derivative of the closed form of E <G, N>^2."""
    return jax.grad(lambda N: risk.pairing(risk.form(N), risk.form(N)))(N) / 2


def of_context(risk: HeadRisk, C: Scalar | float) -> HeadRisk:
    """The risk with another context length."""
    task = risk.task
    return HeadRisk(LinearRegression(task.covariance, C, prior_mean=risk.prior_mean))


def drawn(d: int) -> Float[np.ndarray, "count rows rows"]:
    """Many symmetric matrices of whole numbers."""
    numbers = np.random.default_rng(0).integers(-3, 4, size=(_DRAWN, d + 1, d + 1))
    return (numbers + np.swapaxes(numbers, 1, 2)).astype(float)


def _entries(task: Task, left: Array, right: Array) -> Comparison:
    """left = right, entry by entry, of the size of the largest entry."""
    return same(task, left.reshape(-1), right.reshape(-1), jnp.max(jnp.abs(right)))


def _on_drawn(task: Task, stated: Moment) -> Comparison:
    """A formula for E[<G, N> G] against the exact moment, at drawn N."""
    N = drawn(task.dimension)
    left = jax.vmap(lambda N: stated(HeadRisk(task), N))(jnp.asarray(N))
    return _entries(task, left, exact.floats(exact.moments(task).paired(exact.rationals(N))))


def eq_21(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(21) against E[w-hat_i G]."""
    w = loss.risk.prior_mean
    d, units = w.size, jnp.eye(w.size)
    outer = w[:, None] * w[None] + units
    printed = jnp.zeros((d, d + 1, d + 1)).at[:, :d, :d].set(w[:, None, None] * units[None])
    printed = printed.at[:, :d, d].set(outer).at[:, d, :d].set(outer).at[:, d, d].set(w * (w @ w + d + 2))
    return _entries(loss.task, printed, exact.floats(exact.moments(loss.task).mixed))


def _as_in_24(risk: HeadRisk, N: Square) -> Square:
    """<M, N> M."""
    M = mean_tokens(risk.prior_mean)
    return jnp.sum(M * N) * M


def _as_in_24_shared(risk: HeadRisk, N: Square) -> Square:
    """<M, N> M + 2 S [0 p; p^T d pi] S^T for N = S^-T [P p; p^T pi] S^-1 and S = [I 0; w*^T 1]."""
    d = risk.task.dimension
    S = jnp.eye(d + 1).at[d, :d].set(risk.prior_mean)
    lifted = S.T @ N @ S
    p, pi = lifted[:d, d], lifted[d, d]
    spread = jnp.zeros((d + 1, d + 1)).at[:d, d].set(p).at[d, :d].set(p).at[d, d].set(d * pi)
    return _as_in_24(risk, N) + 2 * S @ spread @ S.T


def eq_24(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """<M, N> M against E[<G, N> G]."""
    return _on_drawn(loss.task, _as_in_24)


def eq_24_shared(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """<M, N> M + 2 S [0 p; p^T d pi] S^T against E[<G, N> G] in the limit, for N = S^-T [P p; p^T pi] S^-1."""
    return _on_drawn(loss.task, _as_in_24_shared)


def _own_token(risk: HeadRisk, N: Square) -> Square:
    """E[(z^T N z) z z^T] of one token: the second moment of a context of one."""
    return second_moment(of_context(risk, 1.0), N)


def _shared_weights(risk: HeadRisk, N: Square) -> Square:
    """The mean over w-hat of <M_w, N> M_w: the second moment in the limit of a long context."""
    return second_moment(of_context(risk, jnp.inf), N)


def _as_in_27(risk: HeadRisk, N: Square) -> Square:
    """(27) as printed, contracted with N."""
    inverse_C = 1 / risk.task.context_length
    return (1 - inverse_C) * _as_in_24(risk, N) + inverse_C * _own_token(risk, N)


def _as_in_27_shared(risk: HeadRisk, N: Square) -> Square:
    """(27) with the mean over w-hat of M_w M_w in place of the product of the means."""
    inverse_C = 1 / risk.task.context_length
    return (1 - inverse_C) * _shared_weights(risk, N) + inverse_C * _own_token(risk, N)


def eq_27(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(27) against E[<G, N> G]."""
    return _on_drawn(loss.task, _as_in_27)


def eq_27_shared(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(27) with M_w M_w averaged over w-hat, against E[<G, N> G]."""
    return _on_drawn(loss.task, _as_in_27_shared)


def _slopes(task: Task, stated: Callable[[HeadRisk, Square], Float[Array, "d rows rows"]]) -> Comparison:
    """A formula for the derivatives of L_1, .., L_d against those that JAX takes of the exact E(<G, N> - w-hat_i)^2."""
    known, N, d = exact.moments(task).rounded, jnp.asarray(drawn(task.dimension)), task.dimension
    of_all = lambda N: jnp.stack([known.component(N, i) for i in range(d)])
    return _entries(task, jax.vmap(lambda N: stated(HeadRisk(task), N))(N), jax.vmap(jax.jacobian(of_all))(N))


def _derivative(risk: HeadRisk, N: Square, moment: Moment) -> Float[Array, "d rows rows"]:
    """2 (E[<G, N> G] - w*_i M - N_i), i <= d, with a formula for the moment."""
    w = risk.prior_mean
    return 2 * (moment(risk, N)[None] - w[:, None, None] * mean_tokens(w)[None] - shared(w))


def eq_29(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(29), whose U_i is the contraction of (27), against the derivatives of L_1, .., L_d."""
    return _slopes(loss.task, lambda risk, N: _derivative(risk, N, _as_in_27))


def eq_29_shared(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(29) with the moments of a shared w-hat, against the derivatives of L_1, .., L_d."""
    return _slopes(loss.task, lambda risk, N: _derivative(risk, N, _as_in_27_shared))


def separated(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(18) at drawn heads: sum L_i(M_i) + E(1 + <G, M_{d+1}>)^2 E y_q^2 against the risk, by both routes."""
    model, task = trajectory.start.reduced(), loss.task
    pairs = []
    for seed in (1, 2):
        heads = drawn_heads(task.dimension, model.b.shape[0], seed)
        moved = MultiHeadAttention(heads.b, heads.A, model.w, model.bias, trainable=model.trainable)
        whole = risks(task, moved)
        pairs.append(same(task, jnp.sum(loss.risk.separated(moved)), whole, whole[0]))
    return joined(pairs)


# Further equations of the proofs


def literal_risk(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(17), by both routes, against the mean over prompts of (6)'s squared error, at two drawn heads by W^K, W^Q, W^V,
    W^P with a guess and a bias.
    """
    task, rows = loss.task, loss.task.dimension + 1
    rng = np.random.default_rng([3, rows])
    W_K, W_Q, W_V, W_P = rng.standard_normal((4, 2, rows, rows)) / 2
    model = FactoredMultiHeadAttention(W_K, W_Q, W_V, W_P, rng.standard_normal(rows - 1), 0.7)
    literal = prompts.mean_squared_error(task, model)
    return same(task, risks(task, model), literal, literal)


def weighted_moments(risk: HeadRisk) -> Float[Array, "d rows rows"]:
    """E[w-hat_i G] by the closed forms: the derivative of w*_i E <G, N> + 2 p_i(N)."""

    def paired(N: Square) -> Float[Array, " d"]:
        form = risk.form(N)
        return risk.prior_mean * risk.mean(form) + 2 * form.p

    d = risk.task.dimension
    return jax.jacobian(paired)(jnp.zeros((d + 1, d + 1)))


def eq_19(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """2 E[<G, N> G] - 2 E[w-hat_i G] against the derivatives of L_1, .., L_d."""
    return _slopes(loss.task, lambda risk, N: 2 * (second_moment(risk, N)[None] - weighted_moments(risk)))


def eq_20(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """2 y_q^2 E[(1 + <G, N>) G] against the derivative of L_{d+1}, for y_q = 1.7."""
    task, y_q = loss.task, 1.7
    known, N, d = exact.moments(task).rounded, jnp.asarray(drawn(task.dimension)), task.dimension
    mean = jax.grad(lambda N: loss.risk.mean(loss.risk.form(N)))(jnp.zeros((d + 1, d + 1)))
    stated = lambda N: 2 * y_q**2 * (second_moment(loss.risk, N) + mean)
    part = lambda N: y_q**2 * ((known.paired(N) * N).sum() + 2 * (N * known.first).sum() + 1)
    return _entries(task, jax.vmap(stated)(N), jax.vmap(jax.grad(part))(N))


def eq_22(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(22) against E G."""
    return _entries(loss.task, mean_tokens(loss.risk.prior_mean), exact.floats(exact.moments(loss.task).first))


def _second_moments(loss: MultiHeadLoss, stated: Float[Array, "rows rows rows rows"]) -> Comparison:
    """A formula for E[G_mn G_pq] against the exact moments."""
    return _entries(loss.task, stated, exact.floats(exact.moments(loss.task).second))


def _outer(M: Square) -> Float[Array, "rows rows rows rows"]:
    return jnp.einsum("mn,pq->mnpq", M, M)


def eq_23(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """M_mn M_pq against E[G_mn G_pq]."""
    return _second_moments(loss, _outer(mean_tokens(loss.risk.prior_mean)))


def eq_23_shared(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """E[(M_w)_mn (M_w)_pq] against E[G_mn G_pq]."""
    return _second_moments(loss, prompts.moments(loss.risk.prior_mean, 0.0).second)


def eq_28(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """M_mn M_pq + (T_mnpq - M_mn M_pq)/C against E[G_mn G_pq]."""
    w, C = loss.risk.prior_mean, loss.task.context_length
    means = _outer(mean_tokens(w))
    return _second_moments(loss, means + (prompts.moments(w, 1.0).second - means) / C)


def eq_28_shared(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(28) with E[(M_w)_mn (M_w)_pq] in place of M_mn M_pq, against E[G_mn G_pq]."""
    w, C = loss.risk.prior_mean, loss.task.context_length
    means, own = (prompts.moments(w, inverse_C).second for inverse_C in (0.0, 1.0))
    return _second_moments(loss, means + (own - means) / C)


def eq_25(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(2 <M, N> - 2 w*_i) M - 2 N_i against the derivatives of L_1, .., L_d."""
    return _slopes(loss.task, lambda risk, N: _derivative(risk, N, _as_in_24))


def eq_25_shared(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(25) with the corrected (24), against the derivatives of L_1, .., L_d."""
    return _slopes(loss.task, lambda risk, N: _derivative(risk, N, _as_in_24_shared))


def _slopes_at_labels(task: Task) -> Float[Array, "routes d"]:
    """The size of the derivative of each L_i at M_i = e_{d+1} e_i^T, by both routes, over that of its first term."""
    known, risk, d = exact.moments(task).rounded, HeadRisk(task), task.dimension
    index = jnp.arange(d)
    N = jnp.zeros((d, d + 1, d + 1)).at[index, d, index].set(1.0)
    closed = 2 * (jax.vmap(lambda N: second_moment(risk, N))(N) - weighted_moments(risk))
    exactly = jax.vmap(jax.grad(known.component))(N, index)
    sizes = jnp.max(jnp.abs(jnp.stack([exactly, closed])), axis=(2, 3))
    return sizes / jnp.max(jnp.abs(2 * known.paired(N)), axis=(1, 2))[None]


def no_zero_slope(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """For how many i the derivative of L_i is zero at M_i = e_{d+1} e_i^T."""
    return counted(jnp.all(_slopes_at_labels(loss.task) < _ZERO, axis=0))


def zero_slope(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The derivative of each L_i at M_i = e_{d+1} e_i^T against zero."""
    return same(loss.task, _slopes_at_labels(loss.task).reshape(-1), 0.0, 1.0)
