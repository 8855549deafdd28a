"""ahn2023's section 5.1: for two layers on isotropic data, some diagonal matrices are optimal.

The matrices carry the sign of `MultiLayerLoss`, A_i = -(the paper's), which changes no statement here.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim.claims.claim import Comparison, Relation, equal
from flowsim.claims.statements import rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.papers.ahn2023 import spaces
from flowsim.papers.ahn2023.multi_layer import Loss, basis, cancellation, landscape_constants, many_starts
from flowsim.papers.ahn2023.multi_layer_problems import ISOTROPIC
from flowsim.papers.ahn2023.settings import LAYERED, layers_with_inverse_weights, two_isotropic_layers
from flowsim.papers.paper import Section

SECTION = Section("ahn2023", *LAYERED)


def diagonals(loss: Loss) -> Float[Array, "d d d"]:
    """A basis of the diagonal matrices."""
    return jax.vmap(jnp.diag)(jnp.eye(loss.task.dimension))


def _lowest(excess: Float[Array, " n"]) -> Float[Array, " 1"]:
    return jnp.nanmin(excess)[None]


@SECTION.claim(
    "theorem-3",
    "Theorem 3",
    "For two layers and Sigma = I some diagonal A_0, A_1 minimise f over symmetric matrices",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=ISOTROPIC,
    spaces=spaces.ISOTROPIC_LAYERS,
    hypotheses=two_isotropic_layers,
    constants=landscape_constants,
    note="The least loss from 16 starts over symmetric pairs against that from 16 starts over diagonal pairs. The "
    "indices of the products in the proof run sometimes from 1 to 2 and sometimes from 0 to 1.",
)
def theorem_3(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The lowest loss from many starts over all matrices of the space against that over diagonal ones."""
    everywhere, diagonal = (_lowest(many_starts(loss, units)) for units in (basis(loss), diagonals(loss)))
    return rounded(equal(everywhere, diagonal, loss.minimum), cancellation(loss))


@SECTION.claim(
    "theorem-3.multiples",
    "Theorem 3",
    "For k = 2 and Sigma = I two different multiples of I, in either order, minimise f over symmetric matrices",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=ISOTROPIC,
    spaces=spaces.ISOTROPIC_LAYERS,
    form="corrected",
    hypotheses=two_isotropic_layers,
    constants=landscape_constants,
    note="Sharper than the theorem, but found by minimisation from 16 starts, not proved: the step sizes differ "
    "between layers, not between coordinates.",
)
def theorem_3_multiples(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The lowest loss from many starts over all matrices, against that of the best multiples of I."""
    return rounded(equal(_lowest(many_starts(loss, basis(loss))), 0.0, loss.minimum), cancellation(loss))
