"""Stationary points and convexity of the risk of xie2025, by both routes."""

import jax
import jax.numpy as jnp

from flowsim.claims.claim import Comparison, at_least
from flowsim.claims.statements import joined
from flowsim.models import FactoredMultiHeadAttention, MultiHeadAttention
from flowsim.papers.xie2025.setting import label_energy, risks, same, slope_of_parts, slopes
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
