"""Kinks that a flow cannot cross: surfaces at which the gradient jumps and the field points back from both sides."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from flowsim._core.types import Scalar
from flowsim.flow.systems import AbstractSystem, norm_sq

BEFORE = 1e-5  # of the time of a kink: how long before it the flow is cut, at least
_CUTS = BEFORE, 1e-4, 1e-3  # a flow that slides along a kink for a while is cut before it slides
_EPS = float(np.finfo(float).eps)
_NEAR = 10.0 ** np.arange(-13, -4)  # of the time: distances from the end of a flow at which its field is evaluated
_LOCAL = 1e-2  # of the path to the end: within this part a flow is nearly straight
_JUMPS = 1e-6  # of the field: its least change at a kink
_NOISE = 1e3  # times its rounding: a field at rest is smaller
_GROWS = 3.0  # the largest factor by which the change at a kink grows if the distance grows by ten


def rows_before_kink(system: AbstractSystem, t: np.ndarray, state: Callable[[int], PyTree]) -> int | None:
    """The number of rows of a run that lie safely before a kink at its end. Their times are at most 1 - `BEFORE`
    times the time of the kink. None if the run does not end at a kink, or if only the start is safely before the
    kink.

    **Arguments:**

    - system: the flow.
    - t: (T,) the times of the rows.
    - state: maps the number of a row to the state there.
    """
    for cut in _CUTS:
        count = int(np.sum(t <= (1 - cut) * t[-1]))
        if count > 1 and meets_kink(system, state(count - 1), state(-1), (float(t[count - 1]), float(t[-1]))):
            return count
    return None


def meets_kink(system: AbstractSystem, before: PyTree, end: PyTree, times: tuple[float, float]) -> bool:
    """Whether the field jumps where a solver failed.

    The field is evaluated at short distances along the path. If it changes at one of these distances, and by less
    than three times as much at ten times the distance, it jumps. A smooth field would change in proportion.

    **Arguments:**

    - system: the flow.
    - before, end: a state on the path, and the state where the solver failed.
    - times: the times of both states.
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
    """Changes of the field near the end of a path.

    **Arguments:** before, end: two states; distances: (h,) signed distances from ``end``, in units of end - before.

    **Returns:** (h,) the norm of the change of the field at each distance; the norm of the field at ``before``; and
    the rounding error of the field. To find this error, the last digits of the weights are changed in several ways.
    The lower quartile of the changes of the field is taken, so that changes across a kink do not count.
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
