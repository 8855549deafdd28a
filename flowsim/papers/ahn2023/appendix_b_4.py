"""ahn2023's appendix B.4: the order of the layers, Lemma 8, and what section 7 concludes about the minima.

The matrices carry the sign of `MultiLayerLoss`, A_i = -(the paper's), which changes no statement here.
"""

import itertools

import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim.claims.claim import Comparison, at_least, equal
from flowsim.claims.declaring import Section
from flowsim.claims.statements import rounded
from flowsim.papers.ahn2023 import spaces
from flowsim.papers.ahn2023.multi_layer import Loss, cancellation, drawn_matrices, drawn_scalars, losses_at, many_starts
from flowsim.papers.ahn2023.problems import DEEP, STATIC
from flowsim.papers.ahn2023.settings import LAYERED, layers_with_inverse_weights, several_layers


def multiples(loss: Loss) -> Float[Array, "1 d d"]:
    """A basis of the multiples of I."""
    return jnp.eye(loss.task.dimension)[None]


def _permuted(loss: Loss, matrices: Float[Array, "n k d d"]) -> Float[Array, "n orders"]:
    """The loss in every order of the layers, the given one first."""
    orders = itertools.permutations(range(loss.layers))
    return jnp.stack([losses_at(loss, matrices[:, jnp.array(order)]) for order in orders], axis=1)


SECTION = Section("ahn2023", *LAYERED, setting=layers_with_inverse_weights)
ON_LAYERS = SECTION.on((*STATIC, DEEP), spaces.LAYERS)


@ON_LAYERS.claim("lemma-8", "Lemma 8")
def lemma_8(loss: Loss) -> Comparison:
    r"""On $\mathcal{S}$ the loss does not depend on the order of the layers"""
    points = drawn_scalars(loss)[:, :, None, None] * jnp.eye(loss.task.dimension)[None, None]
    values = _permuted(loss, points)
    first, values = jnp.repeat(values[:, 0], values.shape[1]), values.reshape(-1)
    return rounded(equal(values, first, values), cancellation(loss))


@SECTION.on(STATIC, spaces.LAYERS).claim(
    "lemma-8.general", "Lemma 8 beyond S", form="corrected", hypotheses=several_layers
)
def lemma_8_general(loss: Loss) -> Comparison:
    r"""At drawn matrices off $\mathcal{S}$ the loss does depend on the order of the layers

    This is why the lemma needs S.
    """
    values = _permuted(loss, drawn_matrices(loss, 1))
    change = jnp.max(values, axis=1) - jnp.min(values, axis=1)
    return rounded(at_least(change, 0.0, size=jnp.max(values, axis=1)), jnp.max(jnp.max(values, axis=1) / change))


@ON_LAYERS.claim("theorem-4.on-the-set", "section 7, after Lemma 8", form="corrected")
def every_start_on_the_set(loss: Loss) -> Comparison:
    r"""On $\mathcal{S}$ every start ends at the least loss: the local minima are the $k!$ orders of one choice of
    different $a_i$

    At a critical point with different a_i, prod (1 - a_i x) is orthogonal to all x p of degree at most k, which is true
    for one choice only. A critical point with two equal a_i is a strict saddle: moving them apart lowers the loss by
    s^2 E tr W^2 prod. Judged from 16 starts.
    """
    return rounded(equal(many_starts(loss, multiples(loss)), 0.0, loss.minimum), cancellation(loss))
