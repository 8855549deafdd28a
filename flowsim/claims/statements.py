"""Statements that many papers make: conserved quantities, signs, and inequalities between the gradient and the loss."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from flowsim.claims.claim import Comparison, at_least, equal
from flowsim.flow.trajectory import Trajectory


def rounded(comparison: Comparison, conditioning: Float[Array, ""]) -> Comparison:
    """The comparison with its ``scale`` multiplied by a condition number. Rounding errors are relative to the
    scale.
    """
    return eqx.tree_at(lambda c: c.scale, comparison, comparison.scale * conditioning)


def joined(comparisons: list[Comparison]) -> Comparison:
    """One comparison that has the rows of several comparisons, one after the other."""
    return jax.tree.map(lambda *series: jnp.concatenate(series), *comparisons)


def conserved(value: Float[Array, "T ..."], size: Float[Array, "..."]) -> Comparison:
    """The statement value(t) = value(0), with margins relative to ``size``."""
    return equal(value, value[0], size)


def stays_positive(value: Float[Array, "..."], size: Float[Array, "..."]) -> Comparison:
    """The statement value(t) > 0, with margins relative to ``size``."""
    return at_least(value, jnp.zeros(()), size=size)


def polyak_lojasiewicz(trajectory: Trajectory, mu: Float[Array, ""]) -> Comparison:
    """The statement |grad L|^2 >= mu (L - min L) at every output time at which L > min L."""
    return at_least(trajectory.grad_norm_sq, mu * trajectory.excess, promised=trajectory.excess > 0)


def sharp_constant(trajectory: Trajectory) -> Float[Array, ""]:
    """The largest mu for which |grad L|^2 >= mu (L - min L) along a trajectory, which is the smallest ratio of
    |grad L|^2 to L - min L.
    """
    excess = trajectory.excess
    ratios = trajectory.grad_norm_sq / jnp.where(excess > 0, excess, 1.0)
    return jnp.min(jnp.where(excess > 0, ratios, jnp.inf))


def gradient_dominance(
    grad_norm_sq: Float[Array, " T"], loss: Float[Array, " T"], constant: ArrayLike, power: float, threshold: ArrayLike
) -> Comparison:
    """The statement |grad L|^2 >= c L^p at every point with L >= threshold, where L is the loss, not its excess.

    A looped transformer with n loops has p = (2n - 1)/n.

    **Arguments:**

    - grad_norm_sq, loss: (T,) at any points, on a trajectory or elsewhere.
    - constant: c.
    - power: p.
    - threshold: the loss below which the statement asserts nothing.
    """
    return at_least(grad_norm_sq, jnp.asarray(constant) * loss**power, promised=loss >= threshold)


def sharp_dominance(
    grad_norm_sq: Float[Array, " T"], loss: Float[Array, " T"], power: float, threshold: ArrayLike
) -> Float[Array, ""]:
    """The largest c for which |grad L|^2 >= c L^p at all points with L >= threshold; infinite if there is no such
    point.
    """
    promised = (loss >= threshold) & (loss > 0)
    return jnp.min(jnp.where(promised, grad_norm_sq / jnp.where(promised, loss, 1.0) ** power, jnp.inf))


def dominance_floor(
    grad_norm_sq: Float[Array, " T"], loss: Float[Array, " T"], constant: ArrayLike, power: float
) -> Float[Array, ""]:
    """The largest loss at which |grad L|^2 < c L^p; zero if there is no such point.

    If the minimum of L is positive the inequality fails near it, since the gradient vanishes there and L does not.
    """
    return jnp.max(jnp.where(grad_norm_sq < jnp.asarray(constant) * loss**power, loss, 0.0), initial=0.0)
