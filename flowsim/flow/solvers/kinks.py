"""Kinks that a flow cannot cross: the gradient jumps there, and the field points back from either side."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from flowsim._core.types import Scalar
from flowsim.flow.systems import AbstractSystem, norm_sq

BEFORE = 1e-5  # of the time of a kink, how long before it a flow that meets it ends
_EPS = float(np.finfo(float).eps)
_NEAR = 10.0 ** np.arange(-13, -4)  # of the time, how far from where a flow ends its field is looked at
_LOCAL = 1e-2  # of the way to the end, within which a flow that drops there is as good as straight
_JUMPS = 1e-6  # of the field, by which it changes at a kink at least
_NOISE = 1e3  # roundings of the field, which at rest is nothing else
_GROWS = 3.0  # times, by which what changes at a kink grows with ten times the distance at most


def rows_before_kink(system: AbstractSystem, t: np.ndarray, state: Callable[[int], PyTree]) -> int | None:
    """How many rows of a run come before a kink at its end, by `BEFORE` at least; None where it ends at none, or has no
    such row after the start.

    **Arguments:** t: (T,) its times; state: the number of a row -> the state there.
    """
    count = int(np.sum(t <= (1 - BEFORE) * t[-1]))
    if count > 1 and meets_kink(system, state(count - 1), state(-1), (float(t[count - 1]), float(t[-1]))):
        return count
    return None


def meets_kink(system: AbstractSystem, before: PyTree, end: PyTree, times: tuple[float, float]) -> bool:
    """Whether the field jumps where a solver gave up: it changes within a short distance of the way that it came, and
    hardly more within ten times that, as no smooth field does.

    **Arguments:** before, end: states on that way, the last one there; times: of these.
    """
    first, last = times
    near = _NEAR * last / (last - first)
    near = near[near <= _LOCAL]
    if near.size < 2:
        return False
    distances = np.concatenate([near, -near])
    before, end = jax.device_put((before, end))
    changes, speed, rounding = _changes(system, before, end, jnp.asarray(distances))
    near, further = np.asarray(changes).reshape(2, -1)[:, :-1], np.asarray(changes).reshape(2, -1)[:, 1:]
    least = max(_JUMPS * float(speed), _NOISE * float(rounding))
    return bool(np.any((near > least) & (further < _GROWS * near)))


@eqx.filter_jit
def _changes(
    system: AbstractSystem, before: PyTree, end: PyTree, distances: Float[Array, " h"]
) -> tuple[Float[Array, " h"], Scalar, Scalar]:
    """How much the field differs at distances from a state, in units of the way to it; how large it is before it; and
    how much changes of the weights in their last places make of it, there or before, but for those that cross a kink.
    """
    slope, way = system.field(end), jax.tree.map(jnp.subtract, end, before)

    def change(h):
        there = system.field(jax.tree.map(lambda x, dx: x + h * dx, end, way))
        return jnp.sqrt(norm_sq(jax.tree.map(jnp.subtract, there, slope)))

    def rounding(state):
        here, nudges = system.field(state), jnp.arange(1.0, 9.0) * _EPS

        def nudged(share):
            there = system.field(jax.tree.map(lambda x: x * (1 + share), state))
            return jnp.sqrt(norm_sq(jax.tree.map(jnp.subtract, there, here)))

        return jnp.quantile(jax.lax.map(nudged, jnp.concatenate([nudges, -nudges])), 0.25)

    noise = jnp.maximum(rounding(before), rounding(end))
    return jax.lax.map(change, distances), jnp.sqrt(norm_sq(system.field(before))), noise
