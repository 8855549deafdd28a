"""Bisection for where an increasing function takes a value, to find gatmiry2024's smallest and largest epsilon."""

import jax
import jax.numpy as jnp

from flowsim._core.types import Series

_BISECTIONS = 100
# Decimal logarithms of the smallest and the largest epsilon searched, such that no round value is in the middle of an
# interval, where its last digit would decide.
SMALLEST, LARGEST = -30.3, 10.1


def crossing(increasing, values: Series, largest: float) -> tuple[Series, Series]:
    """Two adjacent numbers for each value: the function is at most the value at the first and above it at the second.

    Bisects logarithms from 10^-30.3 to 10^largest; where the function never exceeds the value, both are 10^largest.
    """

    def halve(_, interval):
        low, high = interval
        middle = (low + high) / 2
        below = increasing(10.0**middle) <= values
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    start = jnp.full_like(values, SMALLEST), jnp.full_like(values, largest)
    low, high = jax.lax.fori_loop(0, _BISECTIONS, halve, start)
    beyond = increasing(jnp.full_like(values, 10.0**largest)) <= values
    return jnp.where(beyond, 10.0**largest, 10.0**low), 10.0**high
