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
    """The gradient at some models, in all their weights and by both routes, against zero."""
    return joined([same(task, slopes(task, model), 0.0, slope_of_parts(task, model)) for model in models])


def midpoint(task: Task, one: FactoredMultiHeadAttention, other: FactoredMultiHeadAttention) -> Comparison:
    """R at the middle of two models' weights above the mean of R at both."""
    middle = jax.tree.map(lambda a, b: (a + b) / 2, one, other)
    ends = (risks(task, one) + risks(task, other)) / 2
    return at_least(risks(task, middle), ends, size=label_energy(task))


def mirrored(model: MultiHeadAttention) -> tuple[FactoredMultiHeadAttention, FactoredMultiHeadAttention]:
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
