"""ahn2023's section 6: Theorem 5, on layers with B.

S is {A_i = a_i Sigma^-1, B_i = b_i I}. `residual_stream` computes the gradients over all matrices at points of S.
"""

import jax.numpy as jnp

from flowsim.claims.claim import Comparison, Relation, at_least, equal
from flowsim.flow.trajectory import Trajectory
from flowsim.papers.ahn2023 import spaces
from flowsim.papers.ahn2023.multi_layer import Loss
from flowsim.papers.ahn2023.multi_layer_problems import LARGE, PAPER, PAPER_B, WITH_B
from flowsim.papers.ahn2023.residual_stream import NOTE, norms_squared, slopes, where_known, within_reach
from flowsim.papers.ahn2023.scalars import local_minima, lowest, minima_constants, on_the_set
from flowsim.papers.ahn2023.settings import LAYERED, layers_with_inverse_weights, several_layers
from flowsim.papers.paper import Section

SECTION = Section("ahn2023", *LAYERED)

_BY_ALL = NOTE.format("theorem-5.all-matrices")


@SECTION.claim(
    "theorem-5",
    "Theorem 5, (14)",
    "inf over S of sum_i |grad_{A_i} f|_F^2 + |grad_{B_i} f|_F^2 is 0",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=WITH_B,
    spaces=spaces.RESIDUAL_STREAM,
    hypotheses=within_reach,
    constants=minima_constants,
    note="Judged at the best scalars that a search finds. " + _BY_ALL,
)
@where_known
def theorem_5(loss: Loss) -> Comparison:
    """The sum of (14) over all matrices at the best scalars, relative to that at zero weights."""
    best = lowest(loss)
    squares = norms_squared(slopes(loss, jnp.stack([best, jnp.zeros_like(best)])))
    return equal(squares[:1], 0.0, squares[1:])


@SECTION.claim(
    "theorem-5.local-minima",
    "Theorem 5",
    "With B the loss on S has local minima above the lowest",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=(PAPER_B, PAPER, LARGE),
    spaces=spaces.SEVERAL_LAYERS,
    form="corrected",
    hypotheses=several_layers,
    constants=minima_constants,
    note="Without B every local minimum on S is a global one. Descent can also run off to infinity, with a_i -> 0 at "
    "a fixed a_i b_i: such a layer moves the covariates but not the labels.",
)
def other_minima(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The highest local minimum found on S against the lowest."""
    found, least = local_minima(loss), on_the_set(loss).minimum
    return at_least(jnp.max(jnp.where(found.proper, found.values, least))[None], least, size=least)
