"""Least risks of heads, and the risk of one step of gradient descent from w*, which xie2025 compares with one another.

Least risks are those of the normal equations in exact moments. They are compared with the closed forms, and with the
risks, by both routes, of the weights that are said to have them.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim.claims.claim import Comparison
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import MultiHeadLoss
from flowsim.losses.one_layer.head_risk import HeadRisk
from flowsim.models import GradientDescentStep, MultiHeadAttention
from flowsim.papers.xie2025 import exact
from flowsim.papers.xie2025.setting import STEPS, reached, risks, same
from flowsim.tasks import LinearRegression

Task = LinearRegression
Descent = Callable[[Task], Float[Array, " n"]]

SAME = 1e-9  # relative, of risks that cannot be told apart
ANY_STEP = (
    "The paper does not say which step size its baseline has: judged at eta = 0.5 and at 1, that of Theorem 4's proof."
)


def optimum_constants(loss: MultiHeadLoss, trajectory: Trajectory) -> dict[str, Array]:
    """The best step, its risk, and what a guess that is off by one costs."""
    risk = loss.risk
    return {"step size": risk.step_size, "risk of gradient descent": risk.descent_risk, "gap": risk.gap}


def least(task: Task, w: np.ndarray | None = None, bias: float = 0.0) -> Array:
    """The least risk of any number of heads with the guess w^T x_q + bias, by the normal equations."""
    guess = np.zeros(task.dimension) if w is None else w
    return exact.floats(exact.least(exact.moments(task), guess, bias))


def least_with_trained_guess(task: Task) -> Array:
    """The least risk of any number of heads and any guess w^T x_q, by the normal equations."""
    return exact.floats(exact.least_with_trained_guess(exact.moments(task)))


def descent_step(task: Task, eta: float | Array) -> GradientDescentStep:
    """One step of gradient descent from w*."""
    return GradientDescentStep(eta, HeadRisk(task).prior_mean)


def descent_risks(task: Task) -> Float[Array, " n"]:
    """The risk of one step from w* with some step sizes, by both routes."""
    return jnp.concatenate([risks(task, descent_step(task, eta)) for eta in STEPS])


def best_descent_risks(task: Task) -> Float[Array, "3"]:
    """The risk of one step with eta* = C/(C+d+1) from w*: as stated, and by both routes."""
    risk = HeadRisk(task)
    return jnp.append(risks(task, descent_step(task, risk.step_size)), risk.descent_risk)


def same_forms(task: Task, model: MultiHeadAttention, known: exact.Moments, w: np.ndarray) -> list[Comparison]:
    """That the forms of a model are those of the normal equations, which determine them where C is finite."""
    if np.isinf(float(task.context_length)):
        return []
    found, expected = exact.symmetric_forms(model)[:-1], exact.solution(known, w)[:-1]
    size = jnp.max(jnp.abs(exact.floats(expected)))
    return [same(task, exact.floats(found).reshape(-1), exact.floats(expected).reshape(-1), size)]


def same_gaps(
    task: Task, like: MultiHeadAttention, bound: Array, expected: Array | float, descent: Float[Array, " n"]
) -> Comparison:
    """The least risk with a guess, as stated, by its weights and by the normal equations, less gradient descent's,
    against what is expected.
    """
    _, found = reached(task, like)
    gaps = jnp.append(found, bound)[None] - descent[:, None]
    missed = jnp.sum((HeadRisk(task).prior_mean - like.w) ** 2) + like.bias**2
    return same(task, gaps.reshape(-1), expected, task.dimension + missed)
