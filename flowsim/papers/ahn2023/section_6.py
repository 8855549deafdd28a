"""ahn2023's section 6: Theorem 5, on layers with B.

S is {A_i = a_i Sigma^-1, B_i = b_i I}. `residual_stream` computes the gradients over all matrices at points of S.
"""

import jax.numpy as jnp

from flowsim.claims.claim import Comparison, at_least, equal
from flowsim.claims.declaring import Section
from flowsim.papers.ahn2023 import spaces
from flowsim.papers.ahn2023.multi_layer import Loss
from flowsim.papers.ahn2023.multi_layer_problems import LARGE, PAPER, PAPER_B, WITH_B
from flowsim.papers.ahn2023.residual_stream import NOTE, norms_squared, slopes, where_known, within_reach
from flowsim.papers.ahn2023.scalars import local_minima, lowest, minima_constants, on_the_set
from flowsim.papers.ahn2023.settings import LAYERED, layers_with_inverse_weights, several_layers

_BY_ALL = NOTE.format("theorem-5.all-matrices")


SECTION = Section("ahn2023", *LAYERED, setting=layers_with_inverse_weights)


@SECTION.claim(
    "theorem-5",
    "Theorem 5, (14)",
    hypotheses=within_reach,
    problems=WITH_B,
    spaces=spaces.RESIDUAL_STREAM,
    constants=minima_constants,
    note="Judged at the best scalars that a search finds. " + _BY_ALL,
)
@where_known
def theorem_5(loss: Loss) -> Comparison:
    r"""$\inf$ over $\mathcal{S}$ of $\sum_i \lVert \nabla_{A_i} f \rVert_F^2 + \lVert \nabla_{B_i} f
    \rVert_F^2$ is $0$
    """
    best = lowest(loss)
    squares = norms_squared(slopes(loss, jnp.stack([best, jnp.zeros_like(best)])))
    return equal(squares[:1], 0.0, squares[1:])


@SECTION.claim(
    "theorem-5.local-minima",
    "Theorem 5",
    form="corrected",
    hypotheses=several_layers,
    problems=(PAPER_B, PAPER, LARGE),
    spaces=spaces.SEVERAL_LAYERS,
    constants=minima_constants,
)
def other_minima(loss: Loss) -> Comparison:
    r"""With $B$ the loss on $\mathcal{S}$ has local minima above the lowest

    Without B every local minimum on S is a global one. Descent can also run off to infinity, with a_i -> 0 at a fixed
    a_i b_i: such a layer moves the covariates but not the labels.
    """
    found, least = local_minima(loss), on_the_set(loss).minimum
    return at_least(jnp.max(jnp.where(found.proper, found.values, least))[None], least, size=least)
