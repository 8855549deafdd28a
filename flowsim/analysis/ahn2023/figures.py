"""Both sides of what ahn2023's Figures 1 and 2 say of training: a flow of three layers without B."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim.analysis.ahn2023.multi_layer import Loss, best_primed, best_scalars, hessian_on_the_space
from flowsim.analysis.base import Comparison, equal
from flowsim.trajectory import Trajectory

Scalar = Float[Array, ""]

_SPARE = 2.0  # how much flatter the loss may be on the way than at its minimum


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


def _to_go(loss: Loss, trajectory: Trajectory) -> Scalar:
    """How far the end is at most from the minimum in A', from |grad| and the smallest curvature there."""
    inverse = jnp.linalg.inv(loss.root)
    slope = jnp.linalg.norm(inverse @ loss.gradient(trajectory.end).A @ inverse)
    return _SPARE * slope / jnp.linalg.eigvalsh(hessian_on_the_space(loss, best_primed(loss)))[0]


def _end(loss: Loss, trajectory: Trajectory) -> tuple[Array, Float[Array, " k"], Scalar]:
    """A'_i at the end, their norms and how far they still have to go."""
    primed = preconditioned(loss, trajectory.end.A)
    return primed, jnp.linalg.norm(primed, axis=(1, 2)), _to_go(loss, trajectory)


def preconditioner(loss: Loss, trajectory: Trajectory) -> Comparison:
    """Dist(Sigma^{1/2} A_i Sigma^{1/2}, I) at the end against 0."""
    primed, sizes, to_go = _end(loss, trajectory)
    return equal(distance_to_identity(primed), 0.0, 1.0, allowance=to_go / sizes)


def stays_constant(loss: Loss, trajectory: Trajectory) -> Comparison:
    """Dist(A_i, I) for all t against its value at the start."""
    distances = distance_to_identity(trajectory.models.A)
    return equal(distances.reshape(-1), jnp.tile(distances[0], distances.shape[0]), 1.0)


def tends_to_inverse(loss: Loss, trajectory: Trajectory) -> Comparison:
    """Dist(A_i, I) at the end against Dist(Sigma^-1, I)."""
    _, sizes, to_go = _end(loss, trajectory)
    inverse = jnp.linalg.inv(loss.task.covariance)
    # Dist moves by at most twice what the matrix moves, relative to the matrix.
    allowance = 2 * jnp.linalg.norm(inverse, 2) * to_go / jnp.linalg.norm(trajectory.end.A, axis=(1, 2))
    return equal(distance_to_identity(trajectory.end.A), distance_to_identity(inverse), 1.0, allowance=allowance)


def loss_tends_to_zero(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The loss at the end against 0, relative to that of predicting 0."""
    return equal(trajectory.loss[-1:], 0.0, float(loss.task.dimension))


def loss_tends_to_minimum(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The loss at the end against the least one on S."""
    curvature = jnp.linalg.eigvalsh(hessian_on_the_space(loss, best_primed(loss)))[-1]
    allowance = curvature * _to_go(loss, trajectory) ** 2
    return equal(trajectory.loss[-1:], loss.minimum, loss.minimum, allowance=allowance)


def learned_matrices(loss: Loss, trajectory: Trajectory) -> Comparison:
    """Sigma^{1/2} A_i Sigma^{1/2} at the end against a_i I, with the best scalars in the order that was reached."""
    primed, sizes, to_go = _end(loss, trajectory)
    ranks = jnp.argsort(jnp.argsort(jnp.trace(primed, axis1=1, axis2=2)))
    reached = jnp.sort(best_scalars(loss))[ranks]
    off = primed - reached[:, None, None] * jnp.eye(loss.task.dimension)[None]
    return equal(jnp.linalg.norm(off, axis=(1, 2)), 0.0, sizes, allowance=to_go)


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
