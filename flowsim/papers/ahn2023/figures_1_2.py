"""ahn2023's Figures 1 and 2, section 5.3: a flow of three layers without B.

What a figure shows at the end of training is judged at the limit. How far the limit is from the end of the flow is
bounded by `basin.way_to_go` or by the trajectory itself; where neither gives a bound, the statement stays open.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim._core.types import Scalar
from flowsim.claims.claim import Comparison, Relation, equal
from flowsim.flow.trajectory import Trajectory
from flowsim.papers.ahn2023 import spaces
from flowsim.papers.ahn2023.basin import way_to_go
from flowsim.papers.ahn2023.figures import distance_to_go, distance_to_identity, loss_to_go, preconditioned
from flowsim.papers.ahn2023.multi_layer import Loss, best_scalars
from flowsim.papers.ahn2023.multi_layer_problems import TRAINED
from flowsim.papers.ahn2023.settings import LAYERED, layers_with_inverse_weights
from flowsim.papers.paper import Section

SECTION = Section("ahn2023", *LAYERED)


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


@SECTION.claim(
    "figure-1.preconditioner",
    "Figure 1 (a)-(c), blue",
    "Dist(Sigma^{1/2} A_i Sigma^{1/2}, I) -> 0 from Gaussian starts",
    relation=Relation.IDENTITY,
    along_flow=True,
    setting=layers_with_inverse_weights,
    problems=TRAINED,
    spaces=spaces.SECTION_5,
    constants=flow_constants,
    note="Along gradient flow in symmetric matrices; the paper uses L-BFGS.",
)
def preconditioner(loss: Loss, trajectory: Trajectory) -> Comparison:
    """Dist(Sigma^{1/2} A_i Sigma^{1/2}, I) at the end against 0."""
    primed, way = _end(loss, trajectory)
    return equal(distance_to_identity(primed), 0.0, 1.0, allowance=distance_to_go(primed, way))


@SECTION.claim(
    "figure-1.plain",
    "Figure 1 (a)-(c), red",
    "Dist(A_i, I) remains constant",
    relation=Relation.IDENTITY,
    along_flow=True,
    setting=layers_with_inverse_weights,
    problems=TRAINED,
    spaces=spaces.SECTION_5,
    constants=flow_constants,
)
def stays_constant(loss: Loss, trajectory: Trajectory) -> Comparison:
    """Dist(A_i, I) for all t against its value at the start."""
    distances = distance_to_identity(trajectory.models.A)
    return equal(distances, distances[:1], 1.0)


@SECTION.claim(
    "figure-1.plain",
    "Figure 1 (a)-(c), red",
    "Dist(A_i, I) -> Dist(Sigma^-1, I), which is not zero",
    relation=Relation.IDENTITY,
    along_flow=True,
    setting=layers_with_inverse_weights,
    problems=TRAINED,
    spaces=spaces.SECTION_5,
    form="corrected",
    constants=flow_constants,
    note="It changes along the flow; its limit is not zero, which distinguishes the end from plain gradient descent.",
)
def tends_to_inverse(loss: Loss, trajectory: Trajectory) -> Comparison:
    """Dist(A_i, I) at the end against Dist(Sigma^-1, I)."""
    end, expected = trajectory.end.A, distance_to_identity(jnp.linalg.inv(loss.task.covariance))
    allowance = distance_to_go(end, way_to_go(loss, trajectory))
    return equal(distance_to_identity(end), expected, 1.0, allowance=allowance)


@SECTION.claim(
    "figure-1.loss",
    "Figure 1 (d)",
    "The loss converges to 0",
    relation=Relation.IDENTITY,
    along_flow=True,
    setting=layers_with_inverse_weights,
    problems=TRAINED,
    spaces=spaces.SECTION_5,
    constants=flow_constants,
    note='The text says "an almost 0 value". The minimum over S is 0.1336 for d = 5, n = 20, k = 3, which is 2.7 per '
    "cent of 5, the loss of predicting 0.",
)
def loss_tends_to_zero(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The loss at the end against 0, relative to that of predicting 0."""
    return equal(
        trajectory.loss[-1:],
        0.0,
        float(loss.task.dimension),
        allowance=loss_to_go(trajectory, way_to_go(loss, trajectory)),
    )


@SECTION.claim(
    "figure-1.loss",
    "Figure 1 (d)",
    "The loss converges to its minimum over S, which is positive",
    relation=Relation.IDENTITY,
    along_flow=True,
    setting=layers_with_inverse_weights,
    problems=TRAINED,
    spaces=spaces.SECTION_5,
    form="corrected",
    constants=flow_constants,
)
def loss_tends_to_minimum(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The loss at the end against its minimum over S."""
    return equal(
        trajectory.loss[-1:], loss.minimum, loss.minimum, allowance=loss_to_go(trajectory, way_to_go(loss, trajectory))
    )


@SECTION.claim(
    "figure-2",
    "Figure 2",
    "Sigma^{1/2} A_i Sigma^{1/2} -> a_i I at the stationary point of Theorem 4, in an order that the start decides",
    relation=Relation.IDENTITY,
    along_flow=True,
    setting=layers_with_inverse_weights,
    problems=TRAINED,
    spaces=spaces.SECTION_5,
    constants=flow_constants,
)
def learned_matrices(loss: Loss, trajectory: Trajectory) -> Comparison:
    """Sigma^{1/2} A_i Sigma^{1/2} at the end against a_i I, with the best scalars in the order that was reached."""
    primed, way = _end(loss, trajectory)
    ranks = jnp.argsort(jnp.argsort(jnp.trace(primed, axis1=1, axis2=2)))
    reached = jnp.sort(best_scalars(loss))[ranks]
    off = primed - reached[:, None, None] * jnp.eye(loss.task.dimension)[None]
    sizes = jnp.linalg.norm(primed, axis=(1, 2))
    return equal(jnp.linalg.norm(off, axis=(1, 2)), 0.0, sizes, allowance=way)
