"""xie2025, section 1: what no number of heads can do."""

import jax.numpy as jnp

from flowsim.claims.claim import Comparison, Relation, at_least
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import MultiHeadLoss
from flowsim.papers.paper import Section
from flowsim.papers.xie2025 import exact, problems, spaces
from flowsim.papers.xie2025.conditions import (
    MODELS,
    all_of,
    few_coordinates,
    finite_context,
    heads_on_isotropic,
    prior_mean,
    promised_where,
)

SECTION = Section("xie2025", *MODELS)


@SECTION.claim(
    "sec-1.heads",
    "section 1, contribution 1",
    "for w* != 0 and at finite C no number of heads with y_q = 0 predicts as one step of gradient descent from w* does",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=all_of(prior_mean, finite_context, few_coordinates),
    problems=problems.FINITE,
    spaces=spaces.FINITE,
    note="The text says that heads cannot in general replicate the step. For every eta the least mean squared "
    "difference is 2 |w*|^2/(d C + 2). It vanishes as C -> infinity, where one head predicts as gradient descent does.",
)
@promised_where(few_coordinates)
def distance_to_descent(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """min E (f - f_GD)^2 over any number of heads with y_q = 0, against zero.

    f_GD is a head, with weight eta, plus w*^T x_q. The minimum is therefore |w*|^2 min_N E (<G, N> - 1)^2; it is taken
    from the normal equations and in closed form.
    """
    known, missed = exact.moments(loss.task), jnp.sum(loss.risk.prior_mean**2)
    (N,) = exact.solved(known, known.first[None])
    found = jnp.stack([exact.floats(1 - (N * known.first).sum()), loss.risk.gap])
    return at_least(missed * found, 0.0, size=missed)
