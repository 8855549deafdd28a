"""Both sides of xie2025's statements about stationary points and convexity, for the risk by both routes."""

import jax
import jax.numpy as jnp
import numpy as np

from flowsim.claims.claim import Comparison, at_least, at_most, equal
from flowsim.claims.statements import joined, rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import MultiHeadLoss
from flowsim.losses.head_risk import HeadRisk
from flowsim.models import FactoredMultiHeadAttention, GradientDescentStep, MultiHeadAttention
from flowsim.papers.xie2025 import exact
from flowsim.papers.xie2025.setting import (
    STEPS,
    counted,
    descent_heads,
    drawn_heads,
    gradient,
    label_energy,
    reached,
    risks,
    same,
    slope_of_parts,
    slopes,
    zero_heads,
)
from flowsim.tasks import LinearRegression

Task = LinearRegression

_AT_REST = 1e-10
_DRAWN = 8


def _step_from_zero(d: int) -> MultiHeadAttention:
    """b = (0, 1) and A = [I 0; 0 0] with y_q = 0: a step of gradient descent from 0, of size 1."""
    step = GradientDescentStep(1.0, jnp.zeros(d)).reduced()
    return MultiHeadAttention(step.b, step.A)


def no_stationary_point(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """Whether the gradient at one step from 0 is zero, by both routes."""
    task, best = loss.task, _step_from_zero(loss.task.dimension)
    return counted(jnp.all(slopes(task, best) <= _AT_REST * slope_of_parts(task, best)))


def least_in_the_limit(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The risk of one step from 0, and its gradient, against zero."""
    task, best = loss.task, _step_from_zero(loss.task.dimension)
    pairs = [same(task, risks(task, best), 0.0, label_energy(task))]
    return joined([*pairs, _at_rest(task, best)])


def _at_rest(task: Task, *models: MultiHeadAttention | FactoredMultiHeadAttention) -> Comparison:
    """The gradient at some models, in all their weights and by both routes, against zero."""
    return joined([same(task, slopes(task, model), 0.0, slope_of_parts(task, model)) for model in models])


def _descent(task: Task, eta: float | jax.Array) -> FactoredMultiHeadAttention:
    return descent_heads(HeadRisk(task).prior_mean, eta)


def any_step_at_rest(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The gradient in W^K, W^Q, W^V, W^P and w at one step from w*, for eta = 0.5 and 1."""
    return _at_rest(loss.task, *(_descent(loss.task, eta) for eta in STEPS))


def unit_step_at_rest(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The gradient in W^K, W^Q, W^V, W^P and w at one step from w*, for eta = 1."""
    return _at_rest(loss.task, _descent(loss.task, 1.0))


def best_step_at_rest(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The gradient in W^K, W^Q, W^V, W^P and w at one step from w*, for eta = C/(C+d+1)."""
    return _at_rest(loss.task, _descent(loss.task, loss.risk.step_size))


def residual_gradient(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """C |grad R| at the unit step, at C and at 100 C, by both routes."""
    task, model = loss.task, _descent(loss.task, 1.0)
    sizes = []
    for factor in (1.0, 100.0):
        C = factor * task.context_length
        sizes.append(C * slopes(LinearRegression(task.covariance, C, prior_mean=loss.risk.prior_mean), model))
    left, right = jnp.concatenate(sizes), jnp.tile(sizes[1][::-1], 2)
    return rounded(equal(left, right, right), 100 * jnp.asarray((task.dimension + 1.0) ** 2))


def _midpoint(task: Task, one: FactoredMultiHeadAttention, other: FactoredMultiHeadAttention) -> Comparison:
    """R at the middle of two models' weights above the mean of R at both."""
    middle = jax.tree.map(lambda a, b: (a + b) / 2, one, other)
    ends = (risks(task, one) + risks(task, other)) / 2
    return at_least(risks(task, middle), ends, size=label_energy(task))


def _mirrored(model: MultiHeadAttention) -> tuple[FactoredMultiHeadAttention, FactoredMultiHeadAttention]:
    """W^K = W^P = I and +-(W^Q, W^V) that make a model's heads: products of two, so that both predict as it does."""
    H, rows, _ = model.A.shape
    identity = jnp.broadcast_to(jnp.eye(rows), (H, rows, rows))
    W_V = jnp.zeros((H, rows, rows)).at[:, -1].set(model.b)
    signs = (
        FactoredMultiHeadAttention(identity, s * model.A, s * W_V, identity, model.w, trainable=model.trainable)
        for s in (1.0, -1.0)
    )
    one, other = signs
    return one, other


def not_convex(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """`_midpoint` for the best weights of one and of d + 1 heads with y_q = 0."""
    task, d = loss.task, loss.task.dimension
    return joined([_midpoint(task, *_mirrored(reached(task, zero_heads(d, H))[0])) for H in (1, d + 1)])


def not_convex_with_guess(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """`_midpoint` for one step of gradient descent from w*, with the same w."""
    step = GradientDescentStep(loss.risk.step_size, loss.risk.prior_mean).reduced()
    return _midpoint(loss.task, *_mirrored(step))


# Appendices A.4 and B.3


def positive_mean(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(u, v)^T E G (u, v) against |u + v w*|^2 + d v^2, at drawn u and v."""
    task, w = loss.task, loss.risk.prior_mean
    d = task.dimension
    z = np.random.default_rng(4).integers(-3, 4, size=(_DRAWN, d + 1)).astype(float)
    M = exact.floats(exact.moments(task).first)
    left = jnp.einsum("km,mn,kn->k", z, M, z)
    right = jnp.sum((z[:, :d] + z[:, d:] * w[None]) ** 2, axis=1) + d * z[:, d] ** 2
    return same(task, left, right, label_energy(task) * jnp.sum(z**2, axis=1))


def convex_in_forms(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """L_1 at the middle of two drawn matrices below the mean of L_1 at both."""
    known = exact.moments(loss.task)
    normals = np.random.default_rng(5).integers(-3, 4, size=(_DRAWN, 2, *known.first.shape))
    sides = []
    for one, other in (tuple(map(exact.rationals, pair)) for pair in normals):
        ends = (known.component(one, 0) + known.component(other, 0)) / 2
        sides.append([known.component((one + other) / 2, 0), ends])
    middle, ends = exact.floats(np.asarray(sides, dtype=object)).T
    return at_most(middle, ends)


def sum_of_parts(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """sum_j E t_j^2, which is what exact moments give, against the closed form at drawn weights of y_q-LSA."""
    task = loss.task
    found = jnp.stack([risks(task, drawn_heads(task.dimension, 1, seed, trainable=True)) for seed in (6, 7)])
    return same(task, found[:, 0], found[:, 1], found[:, 1])


def listed_derivatives(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The derivatives by b, a_1, .., a_{d+1} and v as they are listed, with exact moments, against those that JAX takes
    of the closed form, at drawn weights of y_q-LSA.
    """
    task = loss.task
    model = drawn_heads(task.dimension, 1, 8, trainable=True)
    found = exact.gradient(exact.moments(task), model).reduced()
    expected = gradient(loss.risk, model).reduced()
    pairs = []
    for one, other in ((found.b, expected.b), (found.A, expected.A), (found.w, expected.w)):
        pairs.append(same(task, one.reshape(-1), other.reshape(-1), jnp.max(jnp.abs(other))))
    return joined(pairs)


def squared_row(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """C (C - 1) + C (d + 2) against E |sum_i x_i[j] x_i|^2, j = 1, .., d."""
    task, d = loss.task, loss.task.dimension
    C, second = float(task.context_length), exact.moments(task).second
    found = exact.floats(np.asarray([sum(second[j, m, j, m] for m in range(d)) for j in range(d)], dtype=object))
    return same(task, C**2 * found, C * (C - 1) + C * (d + 2), C**2 * (d + 2.0))


def squared_map(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """C (C + 1) w_j w + C |w|^2 e_j against E[w^T (sum_i x_i x_i[j]) (sum_k x_k x_k^T) w] at a drawn w."""
    task, d = loss.task, loss.task.dimension
    C, second = float(task.context_length), exact.moments(task).second[:d, :d, :d, :d]
    w = np.random.default_rng(9).integers(1, 5, size=d)
    found = exact.floats(np.einsum("jabc,a,c->jb", second, w, w))
    stated = C * (C + 1) * np.multiply.outer(w, w) + C * float(w @ w) * np.eye(d)
    return same(task, C**2 * found.reshape(-1), stated.reshape(-1), float(np.max(stated)))
