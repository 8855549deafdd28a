"""The settings of ahn2023's sections, and hypotheses that several statements share."""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import PyTree

from flowsim.claims.declaring import Section
from flowsim.claims.hypotheses import Hypothesis, agrees, hypothesis, unmet
from flowsim.losses import AbstractPopulationLoss, MaskedAttentionLoss, MonteCarloLoss, MultiLayerLoss
from flowsim.models import DiagonalLayers, MaskedAttention, MultiLayerAttention, ScalarLayers

Hypotheses = Callable[[Any, Any], list[Hypothesis]]

LAYERED = (MultiLayerAttention, ScalarLayers, DiagonalLayers)  # the models of the statements on several layers


def masked_layer(loss: AbstractPopulationLoss) -> Hypothesis | None:
    """None if the loss is in the setting of section 4, one layer with (7); otherwise the unmet hypothesis."""
    fits = isinstance(loss, MaskedAttentionLoss)
    return None if fits else unmet("one masked linear attention layer")


SINGLE_LAYER = functools.partial(Section, "ahn2023", MaskedAttention, setting=masked_layer)


def isotropic(loss: MaskedAttentionLoss, start: PyTree) -> list[Hypothesis]:
    """The hypothesis Sigma = I."""
    return [agrees("Sigma = I", jnp.linalg.norm(loss.task.covariance - jnp.eye(loss.task.dimension)), 0.0)]


def diagonal(loss: MaskedAttentionLoss, start: PyTree) -> list[Hypothesis]:
    """The hypothesis that Sigma is diagonal."""
    Sigma = loss.task.covariance
    off = jnp.linalg.norm(Sigma - jnp.diag(jnp.diagonal(Sigma)))
    return [agrees("Sigma diagonal", off, 0.0, jnp.linalg.norm(Sigma))]


def two_dimensions(loss: MaskedAttentionLoss, start: PyTree) -> list[Hypothesis]:
    """The hypothesis d >= 2."""
    return [hypothesis("d >= 2", float(loss.task.dimension), ">=", 2.0)]


def layers_with_inverse_weights(loss: AbstractPopulationLoss) -> Hypothesis | None:
    """None if the loss is in the setting of Theorem 4 and Lemma 8: untied layers and w ~ N(0, Sigma^-1).

    Otherwise the unmet hypothesis.
    """
    fits = isinstance(loss, MultiLayerLoss) and loss.task.weights == "inverse-covariance"
    return None if fits else unmet("untied layers, w ~ N(0, Sigma^-1)")


LAYERS = functools.partial(Section, "ahn2023", *LAYERED, setting=layers_with_inverse_weights)


def two_isotropic_layers(loss: MultiLayerLoss, start: MultiLayerAttention) -> list[Hypothesis]:
    """The hypotheses of Theorem 3: k = 2 and Sigma = I. Then N(0, I) and N(0, Sigma^-1) are the same law of w."""
    off = jnp.max(jnp.abs(loss.task.covariance - jnp.eye(loss.task.dimension)))
    return [agrees("k = 2", float(loss.layers), 2.0), agrees("|Sigma - I| = 0", off, 0.0)]


def several_layers(loss: MultiLayerLoss, start: MultiLayerAttention) -> list[Hypothesis]:
    """The hypothesis that there are at least two layers, so that layers can be exchanged."""
    return [hypothesis("k >= 2", float(loss.layers), ">=", 2.0)]


def anisotropic(loss: MultiLayerLoss, start: MultiLayerAttention) -> list[Hypothesis]:
    """The hypothesis that Sigma is not a multiple of I."""
    values = jnp.linalg.eigvalsh(loss.task.covariance)
    return [hypothesis("condition of Sigma > 1.000001", values[-1] / values[0], ">", 1 + 1e-6)]


def sampled_layers(loss: AbstractPopulationLoss) -> Hypothesis | None:
    """None if the loss is a Monte Carlo loss without an exact form, with w ~ N(0, Sigma^-1) as in Theorem 5.

    Otherwise the unmet hypothesis.
    """
    fits = isinstance(loss, MonteCarloLoss) and loss.exact is None and loss.task.weights == "inverse-covariance"
    return None if fits else unmet("a loss by prompts alone, w ~ N(0, Sigma^-1)")


def moving(loss: MonteCarloLoss, start: MultiLayerAttention) -> list[Hypothesis]:
    """The hypothesis that the layers have matrices B_i."""
    return [hypothesis("matrices B_i", 0.0 if start.B is None else float(start.B.shape[0]), ">=", 1.0)]
