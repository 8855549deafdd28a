"""ahn2023's Figures 3 and 4, section 6.1: a flow of layers with B over all matrices, on sampled prompts.

Nothing bounds how far such a flow is from its limit, so statements about limits stay open.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim.claims.claim import Comparison, at_least, at_most, equal
from flowsim.claims.declaring import Section
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import MonteCarloLoss
from flowsim.models import MultiLayerAttention
from flowsim.papers.ahn2023 import spaces
from flowsim.papers.ahn2023.figures import distance_to_go, distance_to_identity, loss_to_go
from flowsim.papers.ahn2023.multi_layer_problems import SAMPLED
from flowsim.papers.ahn2023.sampled_layers import moving, sampled_layers

Layers = Float[Array, "... d d"]

_NOTE = (
    "Along gradient flow of an average over drawn prompts from a Gaussian start; the paper runs L-BFGS 5 times. "
    "The first problem has the paper's d = 5, n = 10, k = 3 and Sigma, for which samples do not determine the loss. "
    "They do for the others, with d = 3, n = 100, k = 2 (A_0 and A_1 alone)."
)
_LIMIT = " Nothing bounds how far such a flow is from its limit."
_SEEN = " Weaker than what the figure says of the limit, but decided at a finite time."

_TRAINED = 2000.0  # the last time of the problems of two layers


def ends(loss: MonteCarloLoss, trajectory: Trajectory) -> dict[str, Array]:
    """The loss and Dist(B_i, I) at both ends, and |A_i|_F at the end; empty without B."""
    if trajectory.models.B is None:
        return {}
    distances = distance_to_identity(trajectory.models.B)
    named = {"loss_start": trajectory.loss[0], "loss_end": trajectory.loss[-1]}
    for i, size in enumerate(jnp.linalg.norm(trajectory.end.A, axis=(1, 2))):
        named[f"size_{i}"] = size
    for i in range(distances.shape[1]):
        named |= {f"dist_start_{i}": distances[0, i], f"dist_end_{i}": distances[-1, i]}
    return named


SECTION = Section(
    "ahn2023", MultiLayerAttention, setting=sampled_layers, needs=moving, problems=SAMPLED, spaces=spaces.SAMPLED
)


@SECTION.claim("figure-3.training.loss", "Figure 3 (c)", constants=ends, note=_NOTE + _LIMIT)
def loss_tends_to_zero(loss: MonteCarloLoss, flow: Trajectory) -> Comparison:
    """The loss converges to $0$"""
    allowance = loss_to_go(flow, jnp.asarray(flow.way_to_go))
    return equal(flow.loss[-1:], 0.0, float(loss.task.dimension), allowance=allowance)


@SECTION.claim("figure-3.training.B", "section 6.1, Figure 3 (a), (b)", constants=ends, note=_NOTE + _LIMIT)
def moves_to_identity(flow: Trajectory) -> Comparison:
    r"""$\operatorname{Dist}(B_i, I) \to 0$ from Gaussian starts"""
    B, way = flow.end.B, jnp.asarray(flow.way_to_go)
    return equal(distance_to_identity(B), 0.0, 1.0, allowance=distance_to_go(B, way))


@SECTION.corrected(moves_to_identity, constants=ends, note=_NOTE + _SEEN)
def nearer_to_identity(loss: MonteCarloLoss, flow: Trajectory) -> Comparison:
    r"""$\operatorname{Dist}(B_i, I)$ is smaller at $t = 2000$ than at its Gaussian start"""
    return at_most(*(distance_to_identity(model.B) for model in (flow.at(_TRAINED), flow.start)))


def _primed(loss: MonteCarloLoss, A: Layers) -> Layers:
    """Sigma^{1/2} A_i Sigma^{1/2}."""
    values, vectors = jnp.linalg.eigh(loss.task.covariance)
    root = (vectors * jnp.sqrt(values)[None]) @ vectors.T
    return root @ A @ root


@SECTION.claim("figure-3.training.A", "section 6.1, Figure 3 (d)-(f), blue", constants=ends, note=_NOTE + _LIMIT)
def preconditions(loss: MonteCarloLoss, flow: Trajectory) -> Comparison:
    r"""$\operatorname{Dist}(\Sigma^{1/2} A_i \Sigma^{1/2}, I) \to 0$ from Gaussian starts"""
    primed = _primed(loss, flow.end.A)
    way = jnp.linalg.norm(loss.task.covariance, 2) * flow.way_to_go
    return equal(distance_to_identity(primed), 0.0, 1.0, allowance=distance_to_go(primed, way))


@SECTION.corrected(preconditions, constants=ends, note=_NOTE + _SEEN)
def better_preconditioned(loss: MonteCarloLoss, flow: Trajectory) -> Comparison:
    r"""$\operatorname{Dist}(\Sigma^{1/2} A_i \Sigma^{1/2}, I)$ is smaller at $t = 2000$ than at its Gaussian start"""
    models = flow.at(_TRAINED), flow.start
    return at_most(*(distance_to_identity(_primed(loss, model.A)) for model in models))


@SECTION.claim(
    "figure-4.training",
    "section 6.1, Figure 4 (c)-(e)",
    constants=ends,
    note=_NOTE + " The end of training is t = 2000, which the first problem does not reach.",
)
def increasing(flow: Trajectory) -> Comparison:
    r"""At the end of training $\lVert A_0 \rVert_F < \lVert A_1 \rVert_F < \lVert A_2 \rVert_F$"""
    sizes = jnp.linalg.norm(flow.at(_TRAINED).A, axis=(1, 2))
    return at_least(sizes[1:], sizes[:-1])
