"""The curvature of a flow: eigenvalues and eigenvectors of the Jacobian of its field, which is symmetric.

With many weights, usually few directions are stiff. Then only the eigenvectors of the eigenvalues of largest
absolute value are computed, and one rate is used for all other directions.

**Source:** Halko, Martinsson and Tropp, Finding structure with randomness (2011), for the eigenvectors.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from flowsim._core.types import Scalar

Weights = Float[Array, " n"]

_EPS = float(jnp.finfo(jnp.float64).eps)
NUDGE = 4 * _EPS  # of a weight: its rounding
_HALF = 2.0**-26  # of the terms of a field, half of their digits: rounding changes it by less, a kink by more
_ENTRIES, _MOST_AT_ONCE = 2**24, 1024  # numbers in the Hessians, and their number, that a GPU computes at once
_GOLDEN = 0.6180339887498949  # its multiples are far apart modulo 1


class Curvature(NamedTuple):
    """Eigenvalues and eigenvectors of the Jacobian of the field at some weights, and the rounding of the field
    there.

    **Fields:**

    - eigenvalues, basis: (k,) eigenvalues, and (n, k) eigenvectors in columns, for k of the n directions.
    - rest: one rate for all other directions.
    - moved: (n,) the change of the field by rounding of the weights.
    - terms: (n,) the size of the terms of which the field is the sum.
    """

    eigenvalues: Float[Array, " k"]
    basis: Float[Array, "n k"]
    rest: Scalar
    moved: Weights
    terms: Weights

    @property
    def rates(self) -> Float[Array, " parts"]:
        """The rate (eigenvalue of the Jacobian) of each part that `split` returns."""
        n, k = self.basis.shape
        return self.eigenvalues if k == n else jnp.append(self.eigenvalues, jnp.broadcast_to(self.rest, n))

    def split(self, vectors: Float[Array, "... n"]) -> Float[Array, "... parts"]:
        """The parts of vectors: k components along the eigenvectors and, if k < n, the n entries of the remainder."""
        n, k = self.basis.shape
        along = vectors @ self.basis
        return along if k == n else jnp.concatenate([along, vectors - along @ self.basis.T], axis=-1)

    def join(self, parts: Float[Array, "... parts"]) -> Float[Array, "... n"]:
        """The vectors with given parts, the inverse of `split`."""
        n, k = self.basis.shape
        along = parts[..., :k] @ self.basis.T
        return along if k == n else along + parts[..., k:]

    def spread(self, sizes: Weights, damping: Float[Array, " parts"]) -> Weights:
        """A bound on the entries of sum_p v_p / d_p, for every vector v with parts v_p and entries at most
        ``sizes``.

        **Arguments:** sizes: (n,) bounds on the absolute entries of v; damping: the divisor d_p of each part.
        """
        n, k = self.basis.shape
        absolute = jnp.abs(self.basis)
        along = absolute @ (absolute.T @ sizes / damping[:k])
        return along if k == n else along + sizes / damping[k:]

    def noise(self, y: Weights) -> Weights:
        """The change of the field by rounding of the weights y. It is ``moved``, computed at other weights, scaled
        to y.
        """
        terms = _terms(self.eigenvalues, self.basis, self.rest, y)
        larger = jnp.where(self.terms > 0, terms / jnp.where(self.terms > 0, self.terms, 1.0), 1.0)
        # Rounding has no derivative.
        return jax.lax.stop_gradient(self.moved * larger)


def renewed(field, renew: Bool[Array, ""], y: Weights, kept: Curvature, columns: int) -> Curvature:
    """The curvature at y if ``renew`` is true, else ``kept``.

    Derivatives of the result are zero, since the solution of a step does not depend on the curvature. For flows in
    lockstep, new curvatures are computed for a few flows at a time. A plain vmap would compute them for all flows.

    **Arguments:**

    - field: the velocity as a function of the weights.
    - renew: whether to compute the curvature again.
    - y: the weights.
    - kept: the last curvature.
    - columns: the number of columns of the Hessian to compute at once.
    """
    field = eqx.filter_closure_convert(field, y)
    numbers, rest = eqx.partition(field, eqx.is_array)
    directions = kept.eigenvalues.size

    @jax.custom_batching.custom_vmap
    def choose(numbers, renew, y, kept):
        return jax.lax.cond(renew, lambda: _curvature(eqx.combine(numbers, rest), y, directions, columns), lambda: kept)

    @choose.def_vmap
    def _(lanes, batched, *given):
        in_lanes = lambda leaf, already: leaf if already else jnp.broadcast_to(leaf, (lanes, *leaf.shape))
        given = jax.tree.map(in_lanes, given, tuple(batched))
        renewing = jnp.argsort(~given[1])  # those to be renewed first

        size = _at_once(lanes, given[2].shape[1])

        def some(place, found):
            rows = jax.lax.dynamic_slice_in_dim(renewing, place * size, size)
            numbers, renew, y, kept = jax.tree.map(lambda leaf: leaf[rows], (*given[:3], found))
            there = jax.vmap(lambda numbers, y: _curvature(eqx.combine(numbers, rest), y, directions, columns))(
                numbers, y
            )
            # The last batch may contain lanes that are not to be renewed.
            chosen = jax.tree.map(
                lambda new, old: jnp.where(renew.reshape(-1, *[1] * (new.ndim - 1)), new, old), there, kept
            )
            return jax.tree.map(lambda all, new: all.at[rows].set(new), found, chosen)

        found = jax.lax.fori_loop(0, -(-jnp.sum(given[1]) // size), some, given[3])
        return found, jax.tree.map(lambda _: True, found)

    @jax.custom_jvp
    def constant(*given):
        return choose(*given)

    @constant.defjvp
    def _(given, _):
        found = constant(*given)
        return found, jax.tree.map(jnp.zeros_like, found)

    return constant(numbers, renew, y, kept)


def _at_once(lanes: int, weights: int) -> int:
    """The number of curvatures to compute at once: one on a CPU, so that it fits into the caches, and many on a
    GPU.
    """
    return 1 if jax.default_backend() == "cpu" else min(lanes, int(np.clip(_ENTRIES // weights**2, 1, _MOST_AT_ONCE)))


def eigenvectors(jacobian: Float[Array, "n n"]) -> tuple[Weights, Float[Array, "n n"]]:
    """Eigenvalues and eigenvectors, in columns, of the symmetric part of a matrix.

    Blocks that are not coupled share no eigenvector, so that the rounding of large entries does not affect small
    entries. For this, each block is divided by its largest entry and shifted by a different multiple of the
    identity, which leaves its eigenvectors unchanged.
    """
    jacobian = (jacobian + jacobian.T) / 2
    sizes = jnp.sqrt(jnp.max(jnp.abs(jacobian), axis=1))
    blocks = _blocks(jnp.abs(jacobian) > _EPS * sizes[:, None] * sizes[None])
    units = jax.ops.segment_max(sizes, blocks, sizes.size)[blocks]
    units = jnp.where(units > 0, units, 1.0)
    alone = jnp.where(blocks[:, None] == blocks[None], jacobian / jnp.outer(units, units), 0.0)
    shifts = _GOLDEN * blocks.astype(float) % 1.0
    eigenvalues, basis = jnp.linalg.eigh(alone + jnp.diag(shifts))
    of = jnp.argmax(jnp.abs(basis), axis=0)
    eigenvalues = (eigenvalues - shifts[of]) * units[of] ** 2
    return eigenvalues, jnp.where(blocks[:, None] == blocks[of][None], basis, 0.0)


def _blocks(coupled: Bool[Array, "n n"]) -> Int[Array, " n"]:
    """The connected components of a graph with a symmetric adjacency matrix: for each index, the least index in its
    component.
    """
    start = jnp.arange(coupled.shape[0])

    def spread(both):
        now, _ = both
        least = jnp.minimum(now, jnp.min(jnp.where(coupled, now[None], now.size), axis=1))
        return least[least], now

    return jax.lax.while_loop(lambda both: jnp.any(both[0] != both[1]), spread, (start, start - 1))[0]


def _curvature(field, y: Weights, directions: int, columns: int) -> Curvature:
    n = y.size

    def along(vectors: Float[Array, "k n"]) -> Float[Array, "k n"]:
        column = lambda direction: jax.jvp(field, (y,), (direction,))[1]
        return jax.lax.map(column, vectors, batch_size=min(vectors.shape[0], columns))

    if directions == n:
        eigenvalues, basis = eigenvectors(along(jnp.eye(n)))
    else:
        # The Jacobian turns random vectors towards its dominant eigenvectors.
        random = jax.random.rademacher(jax.random.key(0), (directions, n), dtype=y.dtype)
        span, _ = jnp.linalg.qr(along(random).T)
        projected = along(span.T) @ span
        eigenvalues, rotation = jnp.linalg.eigh((projected + projected.T) / 2)
        basis = span @ rotation
    # All other directions are assumed to decay half as fast as the slowest of these.
    rest = -jnp.min(jnp.abs(eigenvalues)) / 2
    moved, terms = _moved(field, y), _terms(eigenvalues, basis, rest, y)
    return Curvature(eigenvalues, basis, rest, jnp.where(moved <= _HALF * terms, moved, 0.0), terms)


def unknown(field, y: Weights, directions: int) -> Curvature:
    """A curvature that is zero except for ``moved``, to begin with before any Hessian is computed."""
    none = jnp.zeros_like(y)
    return Curvature(jnp.zeros(directions), jnp.zeros((y.size, directions)), jnp.zeros(()), _moved(field, y), none)


def _moved(field, y: Weights) -> Weights:
    """(n,) the change of the field by rounding of the weights y."""
    signs = jnp.asarray(1.0 - 2.0 * (np.arange(y.size) % 2))
    slopes = jax.vmap(field)(y[None] * (1 + NUDGE * jnp.stack([0 * signs, signs, -signs])))
    return jnp.max(jnp.abs(slopes[1:] - slopes[:1]), axis=0)


def _terms(eigenvalues: Float[Array, " k"], basis: Float[Array, "n k"], rest: Scalar, y: Weights) -> Weights:
    """(n,) a bound on |J| |y|, where J is the Jacobian: the size of the terms whose sum is a linear field."""
    sizes, largest = jnp.abs(basis), jnp.abs(y)
    along = sizes @ (jnp.abs(eigenvalues) * (sizes.T @ largest))
    return along if basis.shape[0] == basis.shape[1] else along + jnp.abs(rest) * largest
