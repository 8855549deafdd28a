"""What ahn2023's figures plot, Dist(M, I) and Sigma^{1/2} A_i Sigma^{1/2}, and how much it may still change."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim.flow.trajectory import Trajectory
from flowsim.papers.ahn2023.multi_layer import Loss


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

    Dist(M, I) is the sine of the angle between M and I. The angle changes by at most arcsin(way/|M|_F), and
    arcsin x <= pi x/2.
    """
    return jnp.pi / 2 * way / jnp.linalg.norm(matrices, axis=(-2, -1))


def loss_to_go(trajectory: Trajectory, way: Float[Array, ""]) -> Float[Array, " 1"]:
    """How much the loss can still fall: at most |grad| times the remaining path, along which |grad| decreases."""
    return jnp.sqrt(trajectory.grad_norm_sq[-1:]) * way
