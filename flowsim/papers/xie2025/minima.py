"""Least risks of heads, stationary points and convexity of the risk of xie2025, by both routes.

The normal equations in exact moments give the least risks. They are compared with the closed forms, and with the risks
of the weights that are said to reach them.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim.claims.claim import Comparison, at_least
from flowsim.claims.statements import joined
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import MultiHeadLoss
from flowsim.losses.one_layer.head_risk import HeadRisk
from flowsim.models import FactoredMultiHeadAttention, GradientDescentStep, MultiHeadAttention
from flowsim.papers.xie2025 import exact
from flowsim.papers.xie2025.setting import STEPS, label_energy, reached, risks, same, slope_of_parts, slopes
from flowsim.tasks import LinearRegression

Task = LinearRegression


def at_rest(task: Task, *models: MultiHeadAttention | FactoredMultiHeadAttention) -> Comparison:
    """The gradient at each model, in all its weights and by both routes, against zero."""
    return joined([same(task, slopes(task, model), 0.0, slope_of_parts(task, model)) for model in models])


def midpoint(task: Task, one: FactoredMultiHeadAttention, other: FactoredMultiHeadAttention) -> Comparison:
    """The statement that R midway between the weights of two models is at least the mean of R at both."""
    middle = jax.tree.map(lambda a, b: (a + b) / 2, one, other)
    ends = (risks(task, one) + risks(task, other)) / 2
    return at_least(risks(task, middle), ends, size=label_energy(task))


def mirrored(model: MultiHeadAttention) -> tuple[FactoredMultiHeadAttention, FactoredMultiHeadAttention]:
    """Two factored models of a model's heads, with W^K = W^P = I and with W^Q and W^V of either sign.

    Both predict as the model does, because the signs cancel in the products of b and A.
    """
    H, rows, _ = model.A.shape
    identity = jnp.broadcast_to(jnp.eye(rows), (H, rows, rows))
    W_V = jnp.zeros((H, rows, rows)).at[:, -1].set(model.b)
    signs = (
        FactoredMultiHeadAttention(identity, s * model.A, s * W_V, identity, model.w, trainable=model.trainable)
        for s in (1.0, -1.0)
    )
    one, other = signs
    return one, other


Descent = Callable[[Task], Float[Array, " n"]]

SAME = 1e-9  # relative difference below which two risks count as equal
ANY_STEP = (
    "The paper does not give the step size of its baseline. Judged at eta = 0.5 and at 1, that of Theorem 4's proof."
)
BEST_STEP = "The paper does not give the step size of its baseline: here it is that of least risk."


def optimum_constants(loss: MultiHeadLoss, trajectory: Trajectory) -> dict[str, Array]:
    """The best step size, the risk of that step, and the cost of a guess that is off by one."""
    risk = loss.risk
    return {"step size": risk.step_size, "risk of gradient descent": risk.descent_risk, "gap": risk.gap}


def least(task: Task, w: np.ndarray | None = None, bias: float = 0.0) -> Array:
    """The least risk of any number of heads with the guess w^T x_q + bias, by the normal equations; w is (d,)."""
    guess = np.zeros(task.dimension) if w is None else w
    return exact.floats(exact.least(exact.moments(task), guess, bias))


def least_with_trained_guess(task: Task) -> Array:
    """The least risk of any number of heads and any guess w^T x_q, by the normal equations."""
    return exact.floats(exact.least_with_trained_guess(exact.moments(task)))


def descent_step(task: Task, eta: float | Array) -> GradientDescentStep:
    """One step of gradient descent from w*."""
    return GradientDescentStep(eta, HeadRisk(task).prior_mean)


def descent_risks(task: Task) -> Float[Array, " n"]:
    """The risk of one step from w* with each step size of `STEPS`, by both routes."""
    return jnp.concatenate([risks(task, descent_step(task, eta)) for eta in STEPS])


def best_descent_risks(task: Task) -> Float[Array, "3"]:
    """The risk of one step with eta* = C/(C+d+1) from w*: as stated, and by both routes."""
    risk = HeadRisk(task)
    return jnp.append(risks(task, descent_step(task, risk.step_size)), risk.descent_risk)


def same_forms(task: Task, model: MultiHeadAttention, known: exact.Moments, w: np.ndarray) -> list[Comparison]:
    """The statement that a model has the forms of the normal equations; none if C is infinite: they are not unique."""
    if np.isinf(float(task.context_length)):
        return []
    found, expected = exact.symmetric_forms(model)[:-1], exact.solution(known, w)[:-1]
    size = jnp.max(jnp.abs(exact.floats(expected)))
    return [same(task, exact.floats(found).reshape(-1), exact.floats(expected).reshape(-1), size)]


def same_gaps(
    task: Task, like: MultiHeadAttention, bound: Array, expected: Array | float, descent: Float[Array, " n"]
) -> Comparison:
    """The least risk with the guess of ``like`` minus each risk of gradient descent, against what is expected.

    The least risk comes from `MultiHeadLoss`, from its weights by both routes, and from the normal equations (bound).
    """
    _, found = reached(task, like)
    gaps = jnp.append(found, bound)[None] - descent[:, None]
    missed = jnp.sum((HeadRisk(task).prior_mean - like.w) ** 2) + like.bias**2
    return same(task, gaps.reshape(-1), expected, task.dimension + missed)
