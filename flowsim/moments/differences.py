"""Differences of a function of two arguments, computed through products, roots and angles without cancellation."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

Numbers = Float[Array, "..."]


class Differences(NamedTuple):
    """A function f at (u, v), with its differences when u moves to u', v to v', or both.

    Every field has a small error relative to its own size. Products, roots and angles of functions in this form
    have this form again: every rule is an identity in which no terms cancel where the differences are small.

    **Fields:**

    - value: f(u, v).
    - first: f(u', v) - f(u, v).
    - second: f(u, v') - f(u, v).
    - mixed: f(u', v') - f(u', v) - f(u, v') + f(u, v).
    """

    value: Numbers
    first: Numbers
    second: Numbers
    mixed: Numbers

    @property
    def corners(self) -> tuple[Numbers, Numbers, Numbers]:
        """f(u', v), f(u, v') and f(u', v')."""
        return self.value + self.first, self.value + self.second, self.value + self.first + self.second + self.mixed


def product(f: Differences, g: Differences) -> Differences:
    """The `Differences` of f g."""
    _, _, g_both = g.corners
    return Differences(
        f.value * g.value,
        f.first * (g.value + g.first) + f.value * g.first,
        f.second * (g.value + g.second) + f.value * g.second,
        f.value * g.mixed + f.mixed * g_both + f.first * (g.second + g.mixed) + f.second * (g.first + g.mixed),
    )


def root(f: Differences) -> Differences:
    """The `Differences` of sqrt(f), for f positive at (u, v), (u', v), (u, v') and (u', v')."""
    s = jnp.sqrt(f.value)
    s_first, s_second, s_both = (jnp.sqrt(corner) for corner in f.corners)
    first, second = f.first / (s_first + s), f.second / (s_second + s)
    return Differences(s, first, second, (f.mixed - 2 * first * second) / (s_both + s_first + second))


def angle(y: Differences, x: Differences) -> Differences:
    """The `Differences` of atan2(y, x), if they are less than pi.

    Let z = x + i y. The difference ``first`` is the argument of z(u', v) conj z(u, v). The difference ``mixed`` is
    the argument of z(u', v') z(u, v) conj p with p = z(u', v) z(u, v'), where z(u', v') z(u, v) = p + z(u, v)
    mixed(z) - first(z) second(z).
    """
    (x_first, x_second, _), (y_first, y_second, _) = x.corners, y.corners
    p_x, p_y = x_first * x_second - y_first * y_second, x_first * y_second + y_first * x_second
    q_x = x.value * x.mixed - y.value * y.mixed - x.first * x.second + y.first * y.second
    q_y = x.value * y.mixed + y.value * x.mixed - x.first * y.second - y.first * x.second
    return Differences(
        jnp.arctan2(y.value, x.value),
        jnp.arctan2(y.first * x.value - x.first * y.value, x_first * x.value + y_first * y.value),
        jnp.arctan2(y.second * x.value - x.second * y.value, x_second * x.value + y_second * y.value),
        jnp.arctan2(q_y * p_x - q_x * p_y, p_x**2 + p_y**2 + q_x * p_x + q_y * p_y),
    )
