"""The setting of ahn2023's statements on layers with B over all matrices, whose loss is known only by sampling.

Sampling errors never vanish, so equations are stated as bounds on the difference of their sides. Nothing bounds how far
a flow on sampled prompts is from its limit, so statements about limits stay open.
"""

from flowsim.claims.hypotheses import Hypothesis, hypothesis, unmet
from flowsim.losses import AbstractPopulationLoss, MonteCarloLoss
from flowsim.models import MultiLayerAttention


def sampled_layers(loss: AbstractPopulationLoss) -> Hypothesis | None:
    """The setting of Theorem 5, with a Monte Carlo loss that has no exact form."""
    fits = isinstance(loss, MonteCarloLoss) and loss.exact is None and loss.task.weights == "inverse-covariance"
    return None if fits else unmet("a loss by prompts alone, w ~ N(0, Sigma^-1)")


def moving(loss: MonteCarloLoss, start: MultiLayerAttention) -> list[Hypothesis]:
    """The layers have matrices B_i."""
    return [hypothesis("matrices B_i", 0.0 if start.B is None else float(start.B.shape[0]), ">=", 1.0)]
