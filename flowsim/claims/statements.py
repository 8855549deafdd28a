"""Statements of kinds that many papers make: about a task alone, several at once, and of what a flow conserves."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim.claims.claim import Comparison, at_least, equal


def rounded(comparison: Comparison, conditioning: Float[Array, ""]) -> Comparison:
    """The comparison with rounding errors that many times larger than its terms' own."""
    return eqx.tree_at(lambda c: c.scale, comparison, comparison.scale * conditioning)


def joined(comparisons: list[Comparison]) -> Comparison:
    """Comparisons one after the other."""
    return jax.tree.map(lambda *series: jnp.concatenate(series), *comparisons)


def conserved(value: Array, size: Array) -> Comparison:
    """value(t) = value(0), relative to ``size``."""
    return equal(value, value[0], size)


def stays_positive(value: Array, size: Array) -> Comparison:
    """value(t) > 0, relative to ``size``."""
    return at_least(value, jnp.zeros(()), size=size)
