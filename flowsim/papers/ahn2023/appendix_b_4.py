"""ahn2023's appendix B.4: the order of the layers, Lemma 8, and what section 7 concludes about the minima.

The matrices carry the sign of `MultiLayerLoss`, A_i = -(the paper's), which changes no statement here.
"""

import itertools

import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim.claims.claim import Comparison, Relation, at_least, equal
from flowsim.claims.statements import rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.papers.ahn2023 import spaces
from flowsim.papers.ahn2023.multi_layer import Loss, cancellation, drawn_matrices, drawn_scalars, losses_at, many_starts
from flowsim.papers.ahn2023.multi_layer_problems import DEEP, STATIC
from flowsim.papers.ahn2023.settings import LAYERED, layers_with_inverse_weights, several_layers
from flowsim.papers.paper import Section

SECTION = Section("ahn2023", *LAYERED)


def multiples(loss: Loss) -> Float[Array, "1 d d"]:
    """A basis of the multiples of I."""
    return jnp.eye(loss.task.dimension)[None]


def _permuted(loss: Loss, matrices: Float[Array, "n k d d"]) -> Float[Array, "n orders"]:
    """The loss in every order of the layers, the given one first."""
    orders = itertools.permutations(range(loss.layers))
    return jnp.stack([losses_at(loss, matrices[:, jnp.array(order)]) for order in orders], axis=1)


@SECTION.claim(
    "lemma-8",
    "Lemma 8",
    "On S the loss does not depend on the order of the layers",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=(*STATIC, DEEP),
    spaces=spaces.LAYERS,
)
def lemma_8(loss: Loss, trajectory: Trajectory) -> Comparison:
    """f at points of S in every order of the layers against the first order."""
    points = drawn_scalars(loss)[:, :, None, None] * jnp.eye(loss.task.dimension)[None, None]
    values = _permuted(loss, points)
    first, values = jnp.repeat(values[:, 0], values.shape[1]), values.reshape(-1)
    return rounded(equal(values, first, values), cancellation(loss))


@SECTION.claim(
    "lemma-8.general",
    "Lemma 8 beyond S",
    "At drawn matrices off S the loss does depend on the order of the layers",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=STATIC,
    spaces=spaces.LAYERS,
    form="corrected",
    hypotheses=several_layers,
    note="This is why the lemma needs S.",
)
def lemma_8_general(loss: Loss, trajectory: Trajectory) -> Comparison:
    """How much f changes with the order of drawn matrices that are not multiples of Sigma^-1, against 0."""
    values = _permuted(loss, drawn_matrices(loss, 1))
    change = jnp.max(values, axis=1) - jnp.min(values, axis=1)
    return rounded(at_least(change, 0.0, size=jnp.max(values, axis=1)), jnp.max(jnp.max(values, axis=1) / change))


@SECTION.claim(
    "theorem-4.on-the-set",
    "section 7, after Lemma 8",
    "On S every start ends at the least loss: the local minima are the k! orders of one choice of different a_i",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=(*STATIC, DEEP),
    spaces=spaces.LAYERS,
    form="corrected",
    note="At a critical point with different a_i, prod (1 - a_i x) is orthogonal to all x p of degree at most k, "
    "which is true for one choice only. A critical point with two equal a_i is a strict saddle: moving them apart "
    "lowers the loss by s^2 E tr W^2 prod. Judged from 16 starts.",
)
def every_start_on_the_set(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The loss that each of many starts reaches over S against that of the best scalars."""
    return rounded(equal(many_starts(loss, multiples(loss)), 0.0, loss.minimum), cancellation(loss))
