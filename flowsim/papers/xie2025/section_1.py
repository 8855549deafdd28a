"""xie2025, section 1: what no number of heads can do."""

import jax.numpy as jnp

from flowsim.claims.claim import Comparison, at_least
from flowsim.claims.declaring import Section
from flowsim.losses import MultiHeadLoss
from flowsim.papers.xie2025 import exact, problems, spaces
from flowsim.papers.xie2025.conditions import MODELS, few_coordinates, finite_context, heads_on_isotropic, prior_mean

SECTION = Section(
    "xie2025",
    *MODELS,
    setting=heads_on_isotropic,
    hypotheses=(prior_mean, finite_context),
    needs=few_coordinates,
    problems=problems.FINITE,
    spaces=spaces.FINITE,
)


@SECTION.claim("sec-1.heads", "section 1, contribution 1")
def distance_to_descent(loss: MultiHeadLoss) -> Comparison:
    r"""for $w_\star \ne 0$ and at finite $C$ no number of heads with $y_q = 0$ predicts as one step of gradient descent
    from $w_\star$ does

    The text says that heads cannot in general replicate the step. For every eta the least mean squared difference is 2
    |w*|^2/(d C + 2). It vanishes as C -> infinity, where one head predicts as gradient descent does.
    """
    known, missed = exact.moments(loss.task), jnp.sum(loss.risk.prior_mean**2)
    (N,) = exact.solved(known, known.first[None])
    found = jnp.stack([exact.floats(1 - (N * known.first).sum()), loss.risk.gap])
    return at_least(missed * found, 0.0, size=missed)
