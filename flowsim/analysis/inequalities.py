"""Inequalities between the gradient and the excess."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim.analysis.base import Comparison, at_least
from flowsim.trajectory import Trajectory


def polyak_lojasiewicz(trajectory: Trajectory, mu: Float[Array, ""]) -> Comparison:
    """|grad L|^2 >= mu (L - min L) at every output time with a positive excess."""
    return at_least(trajectory.grad_norm_sq, mu * trajectory.excess, promised=trajectory.excess > 0)


def sharp_constant(trajectory: Trajectory) -> Float[Array, ""]:
    """The largest mu for which |grad L|^2 >= mu (L - min L) along a trajectory: its smallest ratio."""
    excess = trajectory.excess
    ratios = trajectory.grad_norm_sq / jnp.where(excess > 0, excess, 1.0)
    return jnp.min(jnp.where(excess > 0, ratios, jnp.inf))
