"""Quantities that a flow conserves, and signs that it keeps."""

import jax.numpy as jnp
from jaxtyping import Array

from flowsim.analysis.base import Comparison, at_least, equal


def conserved(value: Array, size: Array) -> Comparison:
    """value(t) = value(0), relative to ``size``."""
    return equal(value, value[0], size)


def stays_positive(value: Array, size: Array) -> Comparison:
    """value(t) > 0, relative to ``size``."""
    return at_least(value, jnp.zeros(()), size=size)
