"""The curvature of a flow of any weights: eigenvalues and eigenvectors of its field's Jacobian, which is symmetric.

Of many weights few directions are stiff, as a rule. Then the eigenvectors of the largest eigenvalues alone are kept,
and all that is beside them has one rate.

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
NUDGE = 4 * _EPS  # of a weight, that its rounding may be
_ENTRIES, _MOST_AT_ONCE = 2**24, 1024  # of the Hessians, and how many of them, that a GPU computes at once
_GOLDEN = 0.6180339887498949  # whose multiples are far from each other, whole numbers aside


class Curvature(NamedTuple):
    """Eigenvalues of the field's Jacobian, their eigenvectors by columns, and one rate for all directions beside these;
    how far rounding of the weights moved the field where they were computed, and the size of the terms that it rounded
    there.
    """

    eigenvalues: Float[Array, " k"]
    basis: Float[Array, "n k"]
    rest: Scalar
    moved: Weights
    terms: Weights

    @property
    def rates(self) -> Float[Array, " parts"]:
        """The rate of each part of a vector."""
        n, k = self.basis.shape
        return self.eigenvalues if k == n else jnp.append(self.eigenvalues, jnp.broadcast_to(self.rest, n))

    def split(self, vectors: Float[Array, "... n"]) -> Float[Array, "... parts"]:
        """Vectors along the eigenvectors, and what of them is beside these."""
        n, k = self.basis.shape
        along = vectors @ self.basis
        return along if k == n else jnp.concatenate([along, vectors - along @ self.basis.T], axis=-1)

    def join(self, parts: Float[Array, "... parts"]) -> Float[Array, "... n"]:
        """The vectors with these parts."""
        n, k = self.basis.shape
        along = parts[..., :k] @ self.basis.T
        return along if k == n else along + parts[..., k:]

    def spread(self, sizes: Weights, damping: Float[Array, " parts"]) -> Weights:
        """How large a vector of such sizes may be when each part of it is damped."""
        n, k = self.basis.shape
        absolute = jnp.abs(self.basis)
        along = absolute @ (absolute.T @ sizes / damping[:k])
        return along if k == n else along + sizes / damping[k:]

    def noise(self, y: Weights) -> Weights:
        """How far rounding moves the field at y, where weights may have become smaller than they were."""
        terms = _terms(self.eigenvalues, self.basis, self.rest, y)
        larger = jnp.where(self.terms > 0, terms / jnp.where(self.terms > 0, self.terms, 1.0), 1.0)
        # What rounding does has no derivative.
        return jax.lax.stop_gradient(self.moved * larger)


def renewed(field, renew: Bool[Array, ""], y: Weights, kept: Curvature, columns: int) -> Curvature:
    """The curvature at y where it is to be renewed, else the kept one. It changes no solution, so that derivatives pass
    it by. Of flows in lockstep, those that renew it do so a few at a time: vmap would make all of them pay.
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
        renewing = jnp.argsort(~given[1])  # these first

        size = _at_once(lanes, given[2].shape[1])

        def some(place, found):
            rows = jax.lax.dynamic_slice_in_dim(renewing, place * size, size)
            numbers, renew, y, kept = jax.tree.map(lambda leaf: leaf[rows], (*given[:3], found))
            there = jax.vmap(lambda numbers, y: _curvature(eqx.combine(numbers, rest), y, directions, columns))(
                numbers, y
            )
            # The last of them may have lanes that are not to be renewed.
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
    """How many curvatures are computed at once: a CPU keeps one in its caches, a GPU is slow unless there are many."""
    return 1 if jax.default_backend() == "cpu" else min(lanes, int(np.clip(_ENTRIES // weights**2, 1, _MOST_AT_ONCE)))


def _eigenvectors(jacobian: Float[Array, "n n"]) -> tuple[Weights, Float[Array, "n n"]]:
    """Eigenvalues and eigenvectors of the symmetric part. Weights that have nothing to do with each other share none,
    so that large ones do not round small ones: each block is in units of its largest entry, and shifted by a number of
    its own, which leaves its eigenvectors as they are.
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
    """The blocks that a symmetric relation falls apart into: of each index the least one that it is linked to."""
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
        eigenvalues, basis = _eigenvectors(along(jnp.eye(n)))
    else:
        # The Jacobian turns random vectors towards the directions in which it is largest.
        random = jax.random.rademacher(jax.random.key(0), (directions, n), dtype=y.dtype)
        span, _ = jnp.linalg.qr(along(random).T)
        projected = along(span.T) @ span
        eigenvalues, rotation = jnp.linalg.eigh((projected + projected.T) / 2)
        basis = span @ rotation
    # Beside them the field is taken to fall half as fast as in the slowest of them.
    rest = -jnp.min(jnp.abs(eigenvalues)) / 2
    return Curvature(eigenvalues, basis, rest, _moved(field, y), _terms(eigenvalues, basis, rest, y))


def unknown(field, y: Weights, directions: int) -> Curvature:
    """What is known of the curvature at y before it is computed: how far rounding moves the field."""
    none = jnp.zeros_like(y)
    return Curvature(jnp.zeros(directions), jnp.zeros((y.size, directions)), jnp.zeros(()), _moved(field, y), none)


def _moved(field, y: Weights) -> Weights:
    """How far rounding of the weights moves the field."""
    signs = jnp.asarray(1.0 - 2.0 * (np.arange(y.size) % 2))
    slopes = jax.vmap(field)(y[None] * (1 + NUDGE * jnp.stack([0 * signs, signs, -signs])))
    return jnp.max(jnp.abs(slopes[1:] - slopes[:1]), axis=0)


def _terms(eigenvalues: Float[Array, " k"], basis: Float[Array, "n k"], rest: Scalar, y: Weights) -> Weights:
    """A bound of |J| |y|, J the Jacobian: what the field adds up, where it is linear."""
    sizes, largest = jnp.abs(basis), jnp.abs(y)
    along = sizes @ (jnp.abs(eigenvalues) * (sizes.T @ largest))
    return along if basis.shape[0] == basis.shape[1] else along + jnp.abs(rest) * largest
