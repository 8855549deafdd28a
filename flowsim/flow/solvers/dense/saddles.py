"""Whether a flow with a small gradient leaves its place.

At a saddle of second order the Hessian has an unstable direction. At a saddle of higher order, such as a product of
three or more factors has, tiny weights grow at a rate that is zero or below the rounding of large weights. But some
points nearby have less loss. They are searched for: from random nearby points, in directions in which the Hessian is
zero to rounding, a few descent steps are taken. If all of them end as high as those from the point itself, the point is
taken for a minimum.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from flowsim._core.types import Scalar
from flowsim.flow.systems import AbstractSystem, leads_away

_EPS = float(jnp.finfo(jnp.float64).eps)
_DISTANCES = (1e-1, 1e-2, 1e-3)  # of the largest weight: the distances of nearby points
_DRAWS = 8  # of each kind, and as many in the opposite directions
_TINY = 1e-3  # of the largest weight: smaller weights may grow alone
_FLAT = 1e-8  # of the largest curvature: a direction with less is flat
_STEPS = 10  # of descent
_ROUNDING = 64  # eps of the loss
_LESS = 1e-12  # of the decrease of the loss: the least difference that counts


@eqx.filter_jit
def leaves(system: AbstractSystem, state: PyTree, start: PyTree, still: Bool[Array, ""]) -> Bool[Array, ""]:
    """Whether a flow with a small gradient leaves a state. Weights that are zero and stay so do not count.

    **Arguments:**

    - system: the flow.
    - state: the state.
    - start: the state at t = 0.
    - still: whether the gradient is rounding, so that it explains no curvature.
    """
    point, unravel = ravel_pytree(state)
    slope_of = lambda x: ravel_pytree(system.field(unravel(x)))[0]
    slopes, jacobian = jax.vmap(lambda column: jax.jvp(slope_of, (point,), (column,)))(jnp.eye(point.size))
    moves = ((point != 0) | (slopes[0] != 0)).astype(float)
    rates, basis = jnp.linalg.eigh((jacobian + jacobian.T) / 2 * jnp.outer(moves, moves))
    away = leads_away(rates, basis, point, jnp.where(still, 0.0, slopes[0]))
    size = jnp.maximum(jnp.max(jnp.abs(point)), jnp.max(jnp.abs(ravel_pytree(start)[0])))
    displacements = jnp.concatenate([jnp.zeros((1, point.size)), _displacements(point, moves, rates, basis)])
    steepest = jnp.max(jnp.abs(rates))

    def lowest(displacement: Float[Array, " n"], damping: Scalar) -> Scalar:
        """The least loss on a descent path. The damping, relative to the largest curvature, bounds its steps."""

        def down(x, _):
            along = basis.T @ (slope_of(x) * moves) / (jnp.abs(rates) + damping * steepest)
            x = x + basis @ along
            return x, system.record(unravel(x)).loss

        _, losses = jax.lax.scan(down, point + size * displacement, None, _STEPS)
        return jnp.nanmin(losses, initial=jnp.inf)

    def gain(distance: Scalar) -> Scalar:
        one = lambda displacement: lowest(distance * displacement, distance)
        found = jax.lax.map(one, displacements, batch_size=min(displacements.shape[0], system.columns))
        return found[0] - jnp.nanmin(found)

    gains = jax.lax.map(gain, jnp.asarray(_DISTANCES))
    first, now = system.record(start).loss, system.record(state).loss
    return away | (jnp.max(gains) > jnp.maximum(_ROUNDING * _EPS * jnp.abs(now), _LESS * jnp.abs(first - now)))


def may_creep(rates: Array, basis: Array, weights: Array, slope: Array) -> Bool[Array, ""]:
    """Whether tiny weights move in flat directions, so that `leaves` must be tested.

    **Arguments:** as for `leads_away`.
    """
    moves = (_is_tiny(weights) & ((weights != 0) | (slope != 0))).astype(float)
    flat = jnp.abs(rates) <= _FLAT * jnp.max(jnp.abs(rates))
    return jnp.any(flat & (moves @ basis**2 > 0.5))


def _is_tiny(weights: Array) -> Bool[Array, " n"]:
    return jnp.abs(weights) < _TINY * jnp.max(jnp.abs(weights))


def _displacements(point: Array, moves: Array, rates: Array, basis: Array) -> Float[Array, "draws n"]:
    """Random directions in all weights that move, and in the tiny ones only, damped where the loss is not flat."""
    draws = jax.random.normal(jax.random.key(0), (_DRAWS, point.size))
    flat = jnp.minimum(1.0, _FLAT * jnp.max(jnp.abs(rates)) / jnp.maximum(jnp.abs(rates), jnp.finfo(float).tiny))
    of = jnp.concatenate([draws * moves[None], draws * (moves * _is_tiny(point).astype(float))[None]])
    directions = (of @ basis * flat[None]) @ basis.T
    return jnp.concatenate([directions, -directions])
