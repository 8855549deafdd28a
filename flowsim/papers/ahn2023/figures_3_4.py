"""ahn2023's Figures 3 and 4, section 6.1, on the set S alone: layers with B at their best scalars.

By prompts, along a flow of all matrices, they are judged in `figures_3_4_training`.
"""

import jax.numpy as jnp

from flowsim.claims.claim import Comparison, Relation, at_least, equal
from flowsim.claims.statements import rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.papers.ahn2023 import spaces
from flowsim.papers.ahn2023.multi_layer import Loss
from flowsim.papers.ahn2023.multi_layer_problems import PAPER_B
from flowsim.papers.ahn2023.scalars import local_minima, lowest, minima_constants, on_the_set
from flowsim.papers.ahn2023.settings import LAYERED, layers_with_inverse_weights
from flowsim.papers.paper import Section

SECTION = Section("ahn2023", *LAYERED)

_ON_S = "On S alone: with general B the loss of three layers has no exact form here, and is left to Monte Carlo."
_CONDITIONING = 1e3  # of sums of positive terms whose factors cancel


@SECTION.claim(
    "figure-3.loss",
    "Figure 3 (c)",
    "The loss converges to 0",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=(PAPER_B,),
    spaces=spaces.SECTION_6,
    constants=minima_constants,
    note=_ON_S + " The least loss found on S is 0.0393 for d = 5, n = 10, k = 3, against 0.5794 without B.",
)
def loss_tends_to_zero(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The least loss known on S against 0, relative to that of predicting 0."""
    return equal(on_the_set(loss).minimum[None], 0.0, float(loss.task.dimension))


@SECTION.claim(
    "figure-4",
    "Figure 4",
    "A_0, A_1, A_2 have increasing magnitude",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=(PAPER_B,),
    spaces=spaces.SECTION_6,
    constants=minima_constants,
    note=_ON_S + " Judged at the best scalars.",
)
def increasing(loss: Loss, trajectory: Trajectory) -> Comparison:
    """a_i < a_{i+1} at the best scalars."""
    a = lowest(loss)[: loss.layers]
    return rounded(at_least(a[1:], a[:-1]), jnp.asarray(_CONDITIONING))


@SECTION.claim(
    "figure-4.elsewhere",
    "Figure 4",
    "At some local minimum on S A_0, A_1, A_2 do not have increasing magnitude",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=(PAPER_B,),
    spaces=spaces.SECTION_6,
    form="corrected",
    constants=minima_constants,
    note=_ON_S + " Whether they increase depends on where training ends.",
)
def not_increasing_elsewhere(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The largest a_i - a_{i+1} at any local minimum found, against 0."""
    found = local_minima(loss)
    a = found.points[:, : loss.layers]
    falls = jnp.where(found.proper, jnp.max(a[:, :-1] - a[:, 1:], axis=1), -jnp.inf)
    return rounded(at_least(jnp.max(falls)[None], 0.0, size=jnp.max(a)), jnp.asarray(_CONDITIONING))
