"""Both sides of what ahn2023's Figures 1 and 2 say of training: a flow of three layers without B.

What a figure says of the end of training is said of the limit. How far it may be from the end of the flow is proved, by
`basin.way_to_go` or for the trajectory itself; where nothing bounds it the statement is left open.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim._core.types import Scalar
from flowsim.claims.claim import Comparison, equal
from flowsim.flow.trajectory import Trajectory
from flowsim.papers.ahn2023.basin import way_to_go
from flowsim.papers.ahn2023.multi_layer import Loss, best_scalars


def distance_to_identity(matrices: Float[Array, "... d d"]) -> Float[Array, "..."]:
    """Dist(M, I) = min_alpha |M - alpha I|_F/|M|_F, with alpha = tr(M)/d.

    **Source:** ahn2023, section 5.3.
    """
    d = matrices.shape[-1]
    alpha = jnp.trace(matrices, axis1=-2, axis2=-1) / d
    off = matrices - alpha[..., None, None] * jnp.broadcast_to(jnp.eye(d), matrices.shape)
    return jnp.linalg.norm(off, axis=(-2, -1)) / jnp.linalg.norm(matrices, axis=(-2, -1))


def preconditioned(loss: Loss, A: Float[Array, "... d d"]) -> Float[Array, "... d d"]:
    """Sigma^{1/2} A_i Sigma^{1/2}."""
    return loss.root @ A @ loss.root


def distance_to_go(matrices: Float[Array, "... d d"], way: Float[Array, ""]) -> Float[Array, "..."]:
    """How much Dist(M, I) may change while M moves by at most ``way``.

    It is the sine of the angle between M and I, which changes by arcsin(way/|M|_F) at most, and arcsin x <= pi x/2.
    """
    return jnp.pi / 2 * way / jnp.linalg.norm(matrices, axis=(-2, -1))


def _end(loss: Loss, trajectory: Trajectory) -> tuple[Float[Array, "k d d"], Scalar]:
    """A'_i at the end, and how far they still have to go."""
    return preconditioned(loss, trajectory.end.A), jnp.linalg.norm(loss.task.covariance, 2) * way_to_go(
        loss, trajectory
    )


def preconditioner(loss: Loss, trajectory: Trajectory) -> Comparison:
    """Dist(Sigma^{1/2} A_i Sigma^{1/2}, I) at the end against 0."""
    primed, way = _end(loss, trajectory)
    return equal(distance_to_identity(primed), 0.0, 1.0, allowance=distance_to_go(primed, way))


def stays_constant(loss: Loss, trajectory: Trajectory) -> Comparison:
    """Dist(A_i, I) for all t against its value at the start."""
    distances = distance_to_identity(trajectory.models.A)
    return equal(distances.reshape(-1), jnp.tile(distances[0], distances.shape[0]), 1.0)


def tends_to_inverse(loss: Loss, trajectory: Trajectory) -> Comparison:
    """Dist(A_i, I) at the end against Dist(Sigma^-1, I)."""
    end, expected = trajectory.end.A, distance_to_identity(jnp.linalg.inv(loss.task.covariance))
    allowance = distance_to_go(end, way_to_go(loss, trajectory))
    return equal(distance_to_identity(end), expected, 1.0, allowance=allowance)


def loss_to_go(trajectory: Trajectory, way: Float[Array, ""]) -> Float[Array, " 1"]:
    """How much the loss can still fall: |grad| falls along the way that is still to go."""
    return jnp.sqrt(trajectory.grad_norm_sq[-1:]) * way


def loss_tends_to_zero(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The loss at the end against 0, relative to that of predicting 0."""
    return equal(
        trajectory.loss[-1:],
        0.0,
        float(loss.task.dimension),
        allowance=loss_to_go(trajectory, way_to_go(loss, trajectory)),
    )


def loss_tends_to_minimum(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The loss at the end against the least one on S."""
    return equal(
        trajectory.loss[-1:], loss.minimum, loss.minimum, allowance=loss_to_go(trajectory, way_to_go(loss, trajectory))
    )


def learned_matrices(loss: Loss, trajectory: Trajectory) -> Comparison:
    """Sigma^{1/2} A_i Sigma^{1/2} at the end against a_i I, with the best scalars in the order that was reached."""
    primed, way = _end(loss, trajectory)
    ranks = jnp.argsort(jnp.argsort(jnp.trace(primed, axis1=1, axis2=2)))
    reached = jnp.sort(best_scalars(loss))[ranks]
    off = primed - reached[:, None, None] * jnp.eye(loss.task.dimension)[None]
    sizes = jnp.linalg.norm(primed, axis=(1, 2))
    return equal(jnp.linalg.norm(off, axis=(1, 2)), 0.0, sizes, allowance=way)


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
