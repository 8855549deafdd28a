"""ahn2023's Figures 1 and 2, section 5.3: a flow of three layers without B.

What a figure shows at the end of training is judged at the limit. How far the limit is from the end of the flow is
bounded by `basin.way_to_go` or by the trajectory itself; where neither gives a bound, the statement stays open.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim._core.types import Scalar
from flowsim.claims.claim import Comparison, equal
from flowsim.claims.declaring import Section
from flowsim.flow.trajectory import Trajectory
from flowsim.papers.ahn2023 import spaces
from flowsim.papers.ahn2023.basin import way_to_go
from flowsim.papers.ahn2023.figures import distance_to_go, distance_to_identity, loss_to_go, preconditioned
from flowsim.papers.ahn2023.multi_layer import Loss, best_scalars
from flowsim.papers.ahn2023.multi_layer_problems import TRAINED
from flowsim.papers.ahn2023.settings import LAYERED, layers_with_inverse_weights


def flow_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The loss and the mean eigenvalues of A'_i at the end, Dist(A_i, I) at both ends and Dist(Sigma^-1, I)."""
    primed = preconditioned(loss, trajectory.end.A)
    means = jnp.trace(primed, axis1=1, axis2=2) / loss.task.dimension
    before, after = (distance_to_identity(model.A) for model in (trajectory.start, trajectory.end))
    named = {
        "loss_end": trajectory.loss[-1],
        "dist_inverse": distance_to_identity(jnp.linalg.inv(loss.task.covariance)),
    }
    for i in range(loss.layers):
        named |= {f"a_{i}": means[i], f"dist_start_{i}": before[i], f"dist_end_{i}": after[i]}
    return named


def _end(loss: Loss, trajectory: Trajectory) -> tuple[Float[Array, "k d d"], Scalar]:
    """A'_i at the end, and a bound on how far they still move."""
    return preconditioned(loss, trajectory.end.A), jnp.linalg.norm(loss.task.covariance, 2) * way_to_go(
        loss, trajectory
    )


SECTION = Section("ahn2023", *LAYERED, setting=layers_with_inverse_weights, problems=TRAINED, spaces=spaces.SECTION_5)


@SECTION.claim("figure-1.preconditioner", "Figure 1 (a)-(c), blue", constants=flow_constants)
def preconditioner(loss: Loss, flow: Trajectory) -> Comparison:
    r"""$\operatorname{Dist}(\Sigma^{1/2} A_i \Sigma^{1/2}, I) \to 0$ from Gaussian starts

    Along gradient flow in symmetric matrices; the paper uses L-BFGS.
    """
    primed, way = _end(loss, flow)
    return equal(distance_to_identity(primed), 0.0, 1.0, allowance=distance_to_go(primed, way))


@SECTION.claim("figure-1.plain", "Figure 1 (a)-(c), red", constants=flow_constants)
def stays_constant(flow: Trajectory) -> Comparison:
    r"""$\operatorname{Dist}(A_i, I)$ remains constant"""
    distances = distance_to_identity(flow.models.A)
    return equal(distances, distances[:1], 1.0)


@SECTION.corrected(stays_constant, constants=flow_constants)
def tends_to_inverse(loss: Loss, flow: Trajectory) -> Comparison:
    r"""$\operatorname{Dist}(A_i, I) \to \operatorname{Dist}(\Sigma^{-1}, I)$, which is not zero

    It changes along the flow; its limit is not zero, which distinguishes the end from plain gradient descent.
    """
    end, expected = flow.end.A, distance_to_identity(jnp.linalg.inv(loss.task.covariance))
    allowance = distance_to_go(end, way_to_go(loss, flow))
    return equal(distance_to_identity(end), expected, 1.0, allowance=allowance)


@SECTION.claim("figure-1.loss", "Figure 1 (d)", constants=flow_constants)
def loss_tends_to_zero(loss: Loss, flow: Trajectory) -> Comparison:
    """The loss converges to $0$

    The text says "an almost 0 value". The minimum over S is 0.1336 for d = 5, n = 20, k = 3, which is 2.7 per cent of
    5, the loss of predicting 0.
    """
    return equal(
        flow.loss[-1:],
        0.0,
        float(loss.task.dimension),
        allowance=loss_to_go(flow, way_to_go(loss, flow)),
    )


@SECTION.corrected(loss_tends_to_zero, constants=flow_constants)
def loss_tends_to_minimum(loss: Loss, flow: Trajectory) -> Comparison:
    r"""The loss converges to its minimum over $\mathcal{S}$, which is positive"""
    return equal(flow.loss[-1:], loss.minimum, loss.minimum, allowance=loss_to_go(flow, way_to_go(loss, flow)))


@SECTION.claim("figure-2", "Figure 2", constants=flow_constants)
def learned_matrices(loss: Loss, flow: Trajectory) -> Comparison:
    r"""$\Sigma^{1/2} A_i \Sigma^{1/2} \to a_i I$ at the stationary point of Theorem 4, in an order that the start
    decides
    """
    primed, way = _end(loss, flow)
    ranks = jnp.argsort(jnp.argsort(jnp.trace(primed, axis1=1, axis2=2)))
    reached = jnp.sort(best_scalars(loss))[ranks]
    off = primed - reached[:, None, None] * jnp.eye(loss.task.dimension)[None]
    sizes = jnp.linalg.norm(primed, axis=(1, 2))
    return equal(jnp.linalg.norm(off, axis=(1, 2)), 0.0, sizes, allowance=way)
