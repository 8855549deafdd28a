"""Both sides of xie2025's statements about stationary points and convexity, for the risk by both routes."""

import jax
import jax.numpy as jnp

from flowsim.analysis.base import Comparison, at_least, equal
from flowsim.analysis.statements import joined, rounded
from flowsim.analysis.xie2025.setting import (
    STEPS,
    counted,
    descent_heads,
    label_energy,
    reached,
    risks,
    same,
    slope_of_parts,
    slopes,
    zero_heads,
)
from flowsim.losses import MultiHeadLoss
from flowsim.losses.head_risk import HeadRisk
from flowsim.models import FactoredMultiHeadAttention, GradientDescentStep, MultiHeadAttention
from flowsim.tasks import LinearRegression
from flowsim.trajectory import Trajectory

Task = LinearRegression

_AT_REST = 1e-10


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
