"""What ahn2023's statements assume: the settings of its parts, and the hypotheses that they share."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import PyTree

from flowsim.claims.hypotheses import Hypothesis, agrees, finite_context, hypothesis
from flowsim.losses import AbstractPopulationLoss, MaskedAttentionLoss

Hypotheses = Callable[[Any, Any], list[Hypothesis]]


def masked_layer(loss: AbstractPopulationLoss) -> Hypothesis | None:
    """The setting of section 4: one layer under the parametrisation (7)."""
    fits = isinstance(loss, MaskedAttentionLoss)
    return None if fits else agrees("one masked linear attention layer", 0.0, 1.0)


def isotropic(loss: MaskedAttentionLoss, start: PyTree) -> list[Hypothesis]:
    """Sigma = I."""
    return [agrees("Sigma = I", jnp.linalg.norm(loss.task.covariance - jnp.eye(loss.task.dimension)), 0.0)]


def diagonal(loss: MaskedAttentionLoss, start: PyTree) -> list[Hypothesis]:
    """Sigma = Lambda."""
    Sigma = loss.task.covariance
    off = jnp.linalg.norm(Sigma - jnp.diag(jnp.diagonal(Sigma)))
    return [agrees("Sigma diagonal", off, 0.0, jnp.linalg.norm(Sigma))]


def two_dimensions(loss: MaskedAttentionLoss, start: PyTree) -> list[Hypothesis]:
    """d >= 2."""
    return [hypothesis("d >= 2", float(loss.task.dimension), ">=", 2.0)]


def of_finite_context(hypotheses: Hypotheses) -> Hypotheses:
    """The hypotheses, and that of a finite context."""
    return lambda loss, start: [*hypotheses(loss, start), *finite_context(loss, start)]
