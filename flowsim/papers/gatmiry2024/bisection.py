"""Where an increasing function takes a value, as gatmiry2024's smallest and largest epsilon are found."""

import jax
import jax.numpy as jnp

from flowsim._core.types import Series

_BISECTIONS = 100
SMALLEST, LARGEST = -30.0, 10.0  # decimal logarithms of the smallest and the largest epsilon looked for


def crossing(increasing, values: Series, largest: float) -> tuple[Series, Series]:
    """Two numbers at which an increasing function is at most each value and above it, by bisection of their logarithms
    from 10^-30 to 10^largest, which is both where it does not get above.
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
