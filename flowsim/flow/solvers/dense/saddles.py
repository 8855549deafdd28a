"""Tests whether a flow with a small gradient is at a saddle that it leaves, or at a minimum.

At a saddle of second order the Hessian has a negative eigenvalue. Losses with products of three or more factors
also have saddles of higher order. A flow leaves them along tiny weights, at a rate that is zero or below the
rounding of large weights. But some points nearby have less loss. A search for such points makes a few descent steps
from random nearby points, displaced in directions in which the Hessian is zero up to rounding. If no descent ends
lower than the descent from the point itself, the point is taken to be a minimum.

With many weights the Hessian is only computed on two Krylov spaces. One is spanned from the gradient, which turns
into the direction in which a flow leaves, and the other from a random vector. A positive Ritz value of the Jacobian
of the field is a lower bound on an eigenvalue, so it shows a saddle. The nearby points then differ from the point
in tiny weights only, and the descent steps are along the gradient.

**Source:** Golub and Van Loan, Matrix Computations (2013), section 10.1, for Ritz values of the Lanczos process.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from flowsim._core.types import Scalar
from flowsim.flow.systems import AbstractSystem, leads_away, norm

_EPS = float(jnp.finfo(jnp.float64).eps)
_DISTANCES = (1e-1, 1e-2, 1e-3)  # of the largest weight: the distances of nearby points
_DRAWS = 8  # of each kind, and as many in the opposite directions
_TINY = 1e-3  # of the largest weight: smaller weights may grow alone
_FLAT = 1e-8  # of the largest curvature: a direction with less is flat
_STEPS = 10  # of descent
_ROUNDING = 64  # eps of the loss
_LESS = 1e-12  # of the decrease of the loss: the least difference that counts
_SPENT = 1e3 * _EPS  # of a product: the largest remainder outside of a Krylov space that is invariant
_KRYLOV, _KRYLOV_ENTRIES = 64, 2**24  # at most, vectors of a Krylov space, and numbers of all of them


@eqx.filter_jit
def leaves(system: AbstractSystem, state: PyTree, start: PyTree, still: Bool[Array, ""]) -> Bool[Array, ""]:
    """Whether a flow with a small gradient leaves a state, by the eigenvalues of the Hessian or a descent to less
    loss. Weights that are zero and stay zero do not count.

    **Arguments:**

    - system: the flow.
    - state: the state to test.
    - start: the state at t = 0.
    - still: whether the gradient consists of rounding and is therefore taken as zero in `leads_away`.
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
        """The least loss on a descent from a displaced point. ``damping``, relative to the largest curvature, is
        added to the curvatures and so limits the steps.
        """

        def down(x, _):
            along = basis.T @ (slope_of(x) * moves) / (jnp.abs(rates) + damping * steepest)
            x = x + basis @ along
            return x, system.record(unravel(x)).loss

        _, losses = jax.lax.scan(down, point + size * displacement, None, _STEPS)
        return jnp.nanmin(losses, initial=jnp.inf)

    def gain(distance: Scalar) -> Scalar:
        one = lambda displacement: lowest(distance * displacement, distance)
        return _gain(jax.lax.map(one, displacements, batch_size=min(displacements.shape[0], system.columns)))

    return away | _is_lower(system, state, start, jax.lax.map(gain, jnp.asarray(_DISTANCES)))


@eqx.filter_jit
def leaves_in_krylov(system: AbstractSystem, state: PyTree, start: PyTree, still: Bool[Array, ""]) -> Bool[Array, ""]:
    """Whether a flow with a small gradient leaves a state, for many weights. The Hessian is tested on Krylov
    spaces, and a descent begins at points displaced in tiny weights.

    **Arguments:** as for `leaves`.
    """
    point, unravel = ravel_pytree(state)
    slope_of = lambda x: ravel_pytree(system.field(unravel(x)))[0]
    slope = slope_of(point)
    moves = ((point != 0) | (slope != 0)).astype(float)
    product = lambda vector: moves * jax.jvp(slope_of, (point,), (moves * vector,))[1]
    count = int(np.clip(_KRYLOV_ENTRIES // point.size, 2, _KRYLOV))

    def away(first: Float[Array, " n"]) -> tuple[Bool[Array, ""], Scalar]:
        rates, basis = _ritz(product, moves * first, count)
        return leads_away(rates, basis, point, jnp.where(still, 0.0, slope)), jnp.max(jnp.abs(rates))

    draws = jax.random.normal(jax.random.key(0), (_DRAWS, point.size))
    (along_slope, steepest), (at_random, of_random) = away(slope), away(draws[0])
    steepest = jnp.maximum(steepest, of_random)
    directions = draws * (moves * _is_tiny(point).astype(float))[None]
    displacements = jnp.concatenate([jnp.zeros((1, point.size)), directions, -directions])
    size = jnp.max(jnp.abs(point))

    def lowest(displacement: Float[Array, " n"]) -> Scalar:
        """The least loss on a descent from a displaced point."""

        def down(x, _):
            x = x + moves * slope_of(x) / steepest
            return x, system.record(unravel(x)).loss

        _, losses = jax.lax.scan(down, point + size * displacement, None, _STEPS)
        return jnp.nanmin(losses, initial=jnp.inf)

    # One after the other, in the memory of one field.
    gain = lambda distance: _gain(jax.lax.map(lambda one: lowest(distance * one), displacements))
    return along_slope | at_random | _is_lower(system, state, start, jax.lax.map(gain, jnp.asarray(_DISTANCES)))


def _gain(losses: Float[Array, " points"]) -> Scalar:
    """The first loss minus the least of all losses."""
    return losses[0] - jnp.nanmin(losses)


def _is_lower(
    system: AbstractSystem, state: PyTree, start: PyTree, gains: Float[Array, " distances"]
) -> Bool[Array, ""]:
    """Whether one of the gains in loss is larger than rounding of the loss, and larger than 1e-12 times the
    decrease of the loss since the start. A flow near a minimum may still gain less than that.
    """
    first, now = system.record(start).loss, system.record(state).loss
    return jnp.max(gains) > jnp.maximum(_ROUNDING * _EPS * jnp.abs(now), _LESS * jnp.abs(first - now))


def _ritz(
    product: Callable[[Array], Array], first: Float[Array, " n"], count: int
) -> tuple[Float[Array, " count"], Float[Array, "n count"]]:
    """Ritz values and Ritz vectors (in columns) of a symmetric matrix on a Krylov space. If the space has less than
    ``count`` dimensions, the other values and vectors are zero.

    **Arguments:** product: multiplies a vector by the matrix; first: the vector that spans the Krylov space; count:
    the number of Ritz values.
    """

    def unit(vector: Array) -> Array:
        size = norm(vector)
        return vector / jnp.where(size > 0, size, 1.0)

    def extend(row: Int[Array, ""], both: tuple[Array, Array]) -> tuple[Array, Array]:
        basis, products = both
        # Twice, so that rounding leaves them orthogonal.
        beside = unit(products[row - 1])
        for _ in range(2):
            beside = beside - (basis @ beside) @ basis
        vector = jnp.where(norm(beside) > _SPENT, unit(beside), 0.0)
        return basis.at[row].set(vector), products.at[row].set(product(vector))

    zero = jnp.zeros((count, first.size))
    start = zero.at[0].set(unit(first)), zero.at[0].set(product(unit(first)))
    basis, products = jax.lax.fori_loop(1, count, extend, start)
    projected = products @ basis.T
    rates, rotation = jnp.linalg.eigh((projected + projected.T) / 2)
    return rates, basis.T @ rotation


def may_creep(rates: Array, basis: Array, weights: Array, slope: Array) -> Bool[Array, ""]:
    """Whether an eigenvector of a nearly zero eigenvalue lies mostly in tiny weights that move. Only the test
    `leaves` can then decide whether the flow is at a saddle.

    **Arguments:** as for `leads_away`.
    """
    moves = (_is_tiny(weights) & ((weights != 0) | (slope != 0))).astype(float)
    flat = jnp.abs(rates) <= _FLAT * jnp.max(jnp.abs(rates))
    return jnp.any(flat & (moves @ basis**2 > 0.5))


def _is_tiny(weights: Array) -> Bool[Array, " n"]:
    return jnp.abs(weights) < _TINY * jnp.max(jnp.abs(weights))


def _displacements(point: Array, moves: Array, rates: Array, basis: Array) -> Float[Array, "draws n"]:
    """Random displacements of the weights, (draws, n): some in all weights that move, some in tiny weights only.
    The negative of each is included. Components along eigenvectors with curvature are damped.

    **Arguments:** point: the weights; moves: 1 for weights that move, else 0; rates, basis: as for `leads_away`.
    """
    draws = jax.random.normal(jax.random.key(0), (_DRAWS, point.size))
    flat = jnp.minimum(1.0, _FLAT * jnp.max(jnp.abs(rates)) / jnp.maximum(jnp.abs(rates), jnp.finfo(float).tiny))
    of = jnp.concatenate([draws * moves[None], draws * (moves * _is_tiny(point).astype(float))[None]])
    directions = (of @ basis * flat[None]) @ basis.T
    return jnp.concatenate([directions, -directions])
