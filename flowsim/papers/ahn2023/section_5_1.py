"""ahn2023's section 5.1: for two layers on isotropic data, some diagonal matrices are optimal.

The matrices carry the sign of `MultiLayerLoss`, A_i = -(the paper's), which changes no statement here.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim.claims.claim import Comparison, equal
from flowsim.claims.declaring import Section
from flowsim.claims.statements import rounded
from flowsim.papers.ahn2023 import spaces
from flowsim.papers.ahn2023.multi_layer import Loss, basis, cancellation, landscape_constants, many_starts
from flowsim.papers.ahn2023.multi_layer_problems import ISOTROPIC
from flowsim.papers.ahn2023.settings import LAYERED, layers_with_inverse_weights, two_isotropic_layers


def diagonals(loss: Loss) -> Float[Array, "d d d"]:
    """A basis of the diagonal matrices."""
    return jax.vmap(jnp.diag)(jnp.eye(loss.task.dimension))


def _lowest(excess: Float[Array, " n"]) -> Float[Array, " 1"]:
    return jnp.nanmin(excess)[None]


SECTION = Section(
    "ahn2023",
    *LAYERED,
    setting=layers_with_inverse_weights,
    hypotheses=two_isotropic_layers,
    problems=ISOTROPIC,
    spaces=spaces.ISOTROPIC_LAYERS,
)


@SECTION.claim("theorem-3", "Theorem 3", constants=landscape_constants)
def theorem_3(loss: Loss) -> Comparison:
    r"""For two layers and $\Sigma = I$ some diagonal $A_0$, $A_1$ minimise $f$ over symmetric matrices

    The least loss from 16 starts over symmetric pairs against that from 16 starts over diagonal pairs. The indices of
    the products in the proof run sometimes from 1 to 2 and sometimes from 0 to 1.
    """
    everywhere, diagonal = (_lowest(many_starts(loss, units)) for units in (basis(loss), diagonals(loss)))
    return rounded(equal(everywhere, diagonal, loss.minimum), cancellation(loss))


@SECTION.claim("theorem-3.multiples", "Theorem 3", form="corrected", constants=landscape_constants)
def theorem_3_multiples(loss: Loss) -> Comparison:
    r"""For $k = 2$ and $\Sigma = I$ two different multiples of $I$, in either order, minimise $f$ over symmetric
    matrices

    Sharper than the theorem, but found by minimisation from 16 starts, not proved: the step sizes differ between
    layers, not between coordinates.
    """
    return rounded(equal(_lowest(many_starts(loss, basis(loss))), 0.0, loss.minimum), cancellation(loss))
