"""The setting of xie2025, the hypotheses of its statements, and the conditions under which they can be judged."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import PyTree

from flowsim.claims import hypotheses
from flowsim.claims.claim import Comparison
from flowsim.claims.hypotheses import Hypothesis, agrees, hypothesis, unmet
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import AbstractPopulationLoss, MultiHeadLoss
from flowsim.models import FactoredMultiHeadAttention, LinearTransformerBlock, MultiHeadAttention
from flowsim.papers.xie2025 import exact

Compare = Callable[[MultiHeadLoss, Trajectory], Comparison]
Conditions = Callable[[MultiHeadLoss, PyTree], list[Hypothesis]]

MODELS = (MultiHeadAttention, FactoredMultiHeadAttention, LinearTransformerBlock)


def heads_on_isotropic(loss: AbstractPopulationLoss) -> Hypothesis | None:
    """None in the setting of the paper, heads with a guess and w-hat ~ N(w*, I); elsewhere the unmet hypothesis."""
    fits = isinstance(loss, MultiHeadLoss)
    return None if fits else unmet("heads with a guess, on prompts with w-hat ~ N(w*, I)")


def infinite_context(loss: MultiHeadLoss, start: PyTree) -> list[Hypothesis]:
    """C is infinite."""
    return [hypothesis("1/C <= 0", 1 / loss.task.context_length, "<=", 0.0)]


def finite_context(loss: MultiHeadLoss, start: PyTree) -> list[Hypothesis]:
    """C is finite."""
    return [hypothesis("1/C > 0", 1 / loss.task.context_length, ">", 0.0)]


def prior_mean(loss: MultiHeadLoss, start: PyTree) -> list[Hypothesis]:
    """w* is not zero."""
    return [hypothesis("|w*| > 0", jnp.linalg.norm(loss.risk.prior_mean), ">", 0.0)]


def zero_prior_mean(loss: MultiHeadLoss, start: PyTree) -> list[Hypothesis]:
    """w* is zero."""
    return [agrees("|w*|", jnp.linalg.norm(loss.risk.prior_mean), 0.0)]


def independent_guess(loss: MultiHeadLoss, start: PyTree) -> list[Hypothesis]:
    """y_q does not depend on x_q."""
    model = start.reduced()
    size = 1.0 if model.trainable else jnp.linalg.norm(model.w)
    return [agrees("|w| of the guess w^T x_q + bias", size, 0.0)]


# What judging needs


def few_coordinates(loss: MultiHeadLoss, start: PyTree) -> list[Hypothesis]:
    """d is small enough that the moments can be written out."""
    name = f"d at most {exact.MOST_COORDINATES}, so that moments can be written out"
    return [hypothesis(name, float(loss.task.dimension), "<=", float(exact.MOST_COORDINATES))]


def drawable(loss: MultiHeadLoss, start: PyTree) -> list[Hypothesis]:
    """The prompts on which a claim is judged fit into memory."""
    return hypotheses.finite_context(loss, start)
