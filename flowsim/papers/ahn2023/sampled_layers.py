"""The setting of what ahn2023 says of layers with B over all matrices, where the loss is known by prompts alone.

Sampling errors never vanish, so that equations are stated as bounds on how far their sides are apart. Nothing bounds
the way that a flow on prompts still has to go, so that limits are left open.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from flowsim.claims.claim import Comparison, at_most
from flowsim.claims.hypotheses import Hypothesis, hypothesis, unmet
from flowsim.losses import AbstractPopulationLoss, MonteCarloLoss
from flowsim.models import MultiLayerAttention


def sampled_layers(loss: AbstractPopulationLoss) -> Hypothesis | None:
    """The setting of Theorem 5, with a loss that is known by prompts alone."""
    fits = isinstance(loss, MonteCarloLoss) and loss.exact is None and loss.task.weights == "inverse-covariance"
    return None if fits else unmet("a loss by prompts alone, w ~ N(0, Sigma^-1)")


def moving(loss: MonteCarloLoss, start: MultiLayerAttention) -> list[Hypothesis]:
    """Layers with matrices B_i."""
    return [hypothesis("matrices B_i", 0.0 if start.B is None else float(start.B.shape[0]), ">=", 1.0)]


def of_layers_with_B(compare: Callable[[Any, Any], Comparison]) -> Callable[[Any, Any], Comparison]:
    """The comparison, which promises nothing of layers without B."""

    @functools.wraps(compare)
    def promised(loss: Any, trajectory: Any) -> Comparison:
        if trajectory.models.B is None:
            return at_most(jnp.zeros(1), 1.0, promised=False)
        return compare(loss, trajectory)

    return promised
