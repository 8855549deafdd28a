"""Radau IIA for the flow of any loss, with Newton's method in the eigenbasis of a Hessian that is kept.

The Jacobian of a gradient flow is symmetric. In its eigenbasis the equations of the stages fall apart into one system
of s equations a direction, for every step size: a new size costs nothing, and one decomposition serves many steps,
until Newton's method slows down.

Of many weights few directions are stiff, as a rule. Then the eigenvectors of the largest eigenvalues alone are kept,
and all that is beside them has one rate in Newton's method.

**Source:** Halko, Martinsson and Tropp, Finding structure with randomness (2011), for the eigenvectors.
"""

from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from flowsim._core.types import Scalar
from flowsim.flow.solvers.collocation import (
    DAMPING,
    ESTIMATE_WEIGHT,
    NODES,
    STAGES,
    AbstractRadau,
    lagrange,
    radau_tableau,
    solve_small,
)

Weights = Float[Array, " n"]
Stages = Float[Array, "stages n"]

_EPS = float(jnp.finfo(jnp.float64).eps)
_LEAST_RTOL = 64 * _EPS  # of a weight
SMALLEST_ERROR = 1e-280  # of a weight: squares of what is smaller are zero
_SHARE = 0.03  # of the tolerance, that Newton's method may leave
_ITERATIONS = 12
_DIVERGING = 0.9  # the contraction of a Newton iteration that is given up
_SLOW = 0.3  # and of one after which the Hessian is computed again
_UNKNOWN = 0.5  # the contraction that a first iteration is taken to have
_MIDDLE = 2  # the stage at which the Hessian is computed
_NUDGE = 4 * _EPS
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

    def noise(self, y: Weights) -> Weights:
        """How far rounding moves the field at y, where weights may have become smaller than they were."""
        terms = _terms(self.eigenvalues, self.basis, self.rest, y)
        larger = jnp.where(self.terms > 0, terms / jnp.where(self.terms > 0, self.terms, 1.0), 1.0)
        # What rounding does has no derivative.
        return jax.lax.stop_gradient(self.moved * larger)


class Kept(NamedTuple):
    """What one step leaves to the next: the field where it begins; the last step, by where it began, its length, and
    its points at 0 and the nodes; the curvature, and whether Newton's method has become slow with it; and how many
    fields were computed so far, a column of a Hessian being one.
    """

    slope: Weights
    begin: Scalar
    length: Scalar
    points: Float[Array, "nodes n"]
    curvature: Curvature
    slow: Bool[Array, ""]
    fields: Int[Array, ""]


class _Newton(NamedTuple):
    """An iteration: the stages less the start, the last correction and its size, the field at the stages before it, how
    much smaller than the one before it was and the contraction that shows, how often the stages were corrected, and how
    the iteration stands.
    """

    increments: Stages
    correction: Stages
    size: Scalar
    slopes: Stages
    ratio: Scalar
    contraction: Scalar
    count: Int[Array, ""]
    standing: Int[Array, ""]


_GOING, _CONVERGED, _FAILED = range(3)


class _Attempt(NamedTuple):
    """Newton's method with one curvature, whether that was computed in this step, and whether it is to be; and how many
    fields were computed so far.
    """

    newton: _Newton
    curvature: Curvature
    computed: Bool[Array, ""]
    renew: Bool[Array, ""]
    fields: Int[Array, ""]


class DenseRadau(AbstractRadau):
    """Radau IIA of order 9 on all weights, whose error is in units of the tolerance.

    The tolerance of a weight is rtol of its size plus atol, beside the rounding of its field. Its size is at least the
    given one, or the largest of its array if that is smaller now; but in the directions in which the flow leaves a
    saddle, where errors grow, it is what it is now. The state is (weights, energy dissipated).

    sizes: of the weights at least; renewal: what a Hessian counts for, in fields; columns: how many of it are computed
    at once; directions: how many eigenvectors of it are kept, all of them or those of the largest eigenvalues.
    """

    rtol: Scalar
    atol: Scalar
    sizes: PyTree
    renewal: Int[Array, ""]
    columns: int = eqx.field(static=True)
    directions: int = eqx.field(static=True)

    def init(self, terms, t0, t1, y0, args):
        """What the first step begins with: no Hessian yet, so that it computes one."""
        field, y = _flat(terms, t0, y0, args)
        points = jnp.broadcast_to(y, (STAGES + 1, y.size))
        none = jnp.zeros_like(y)
        k = self.directions
        unknown = Curvature(jnp.zeros(k), jnp.zeros((y.size, k)), jnp.zeros(()), none, none)
        return Kept(field(y), jnp.asarray(t0), jnp.asarray(t1 - t0), points, unknown, jnp.asarray(True), jnp.asarray(0))

    def within(self, terms, t0, t1, y0, y1, args, kept: Kept) -> Kept:
        """What is known of the steps that begin at t0 and end before t1, where the flow is at y1."""
        field, start = _flat(terms, t0, y0, args)
        _, end = _flat(terms, t1, y1, args)
        slope, points = field(start), hermite(start, field(start), end, field(end), t1 - t0)
        return kept._replace(slope=slope, begin=t0, length=t1 - t0, points=points)

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        """One step, its error in units of the tolerance, infinite where Newton's method failed."""
        field, y = _flat(terms, t0, y0, args)
        _, unravel = ravel_pytree(y0[0])
        length, kept = jnp.asarray(t1 - t0), solver_state
        nodes, matrix, _ = radau_tableau()
        A = jnp.asarray(matrix)
        done, curvature, fields = self._newton(jax.vmap(field), field, y, kept, t0, length, A, jnp.asarray(nodes))
        split, join, rates = curvature.split, curvature.join, curvature.rates
        # The field where the iteration ended, not where it last looked.
        slopes = done.slopes + join(split(done.correction) * rates[None])
        points = jnp.concatenate([y[None], y[None] + done.increments])
        end = points[-1]
        error = self._error(curvature, points, jnp.concatenate([kept.slope[None], slopes]), length)
        converged = done.standing == _CONVERGED
        error = jnp.where(converged & jnp.isfinite(error), error, jnp.inf)
        dissipated = y0[1] + length * (A[-1] @ jnp.sum(slopes**2, axis=1))
        slow = (done.contraction > _SLOW) | ~converged
        kept = Kept(field(end), jnp.asarray(t0), length, points, curvature, slow, fields + 1)
        y1 = (unravel(end), dissipated)
        return y1, error, {"y0": y0, "y1": y1}, kept, diffrax.RESULTS.successful

    @staticmethod
    def hessian(weights: int, directions: int) -> tuple[int, int]:
        """How many fields a Hessian takes, and about how many operations what is made of it."""
        if directions == weights:
            return weights, 10 * weights**3
        return 2 * directions, 10 * directions**3 + 6 * weights * directions**2

    def _error(self, curvature: Curvature, points: Array, slopes: Array, length: Scalar) -> Scalar:
        """The error of a step, by its points at 0 and the nodes and the field there, in units of the tolerance."""
        _, _, differences = radau_tableau()
        rule, start, end = ESTIMATE_WEIGHT * length * jnp.asarray(differences), points[0], points[-1]
        parts = curvature.split(rule @ slopes) / (1 + DAMPING * length * jnp.abs(curvature.rates))
        rounding = ESTIMATE_WEIGHT * length * curvature.noise(jnp.maximum(jnp.abs(start), jnp.abs(end)))
        errors = jnp.abs(curvature.join(parts)) / (self._tolerance(start, end) + rounding)
        leaving = self._leaving(curvature, start, end) + jnp.abs(curvature.basis.T) @ rounding
        return jnp.maximum(jnp.max(errors), jnp.max(jnp.abs(parts[: leaving.size]) / leaving))

    def _tolerance(self, start: Weights, end: Weights) -> Weights:
        now, given = jnp.maximum(jnp.abs(start), jnp.abs(end)), jax.tree.leaves(self.sizes)
        parts = jnp.split(now, np.cumsum([leaf.size for leaf in given])[:-1])
        at_least = [jnp.minimum(jnp.ravel(a), jnp.max(b, initial=0.0)) for a, b in zip(given, parts, strict=True)]
        sizes = jnp.maximum(now, jnp.concatenate(at_least))
        return jnp.maximum(self.rtol, _LEAST_RTOL) * sizes + self.atol + SMALLEST_ERROR

    def _leaving(self, curvature: Curvature, start: Weights, end: Weights) -> Weights:
        """The tolerance along eigenvectors, of the weights as they are, where errors along them grow; else infinite."""
        sizes = jnp.abs(curvature.basis.T) @ jnp.maximum(jnp.abs(start), jnp.abs(end))
        tolerance = jnp.maximum(self.rtol, _LEAST_RTOL) * sizes + self.atol + SMALLEST_ERROR
        return jnp.where(curvature.eigenvalues > 0, tolerance, jnp.inf)

    def _newton(self, fields, field, y, kept, t0, length, A, nodes) -> tuple[_Newton, Curvature, Int[Array, ""]]:
        guess = lagrange((t0 - kept.begin + length * nodes) / kept.length) @ kept.points - y[None]
        # Extrapolated, what no longer moves would be rounding, many times over.
        rounding = kept.length * kept.curvature.noise(y)
        moves = jnp.abs(kept.points[-1] - kept.points[0]) > self._tolerance(kept.points[0], kept.points[-1]) + rounding
        guess = jnp.where(moves[None], guess, 0.0)

        def iterate(now: _Newton, curvature: Curvature, noise: Weights) -> _Newton:
            slopes = fields(y[None] + now.increments)
            residual = length * (A @ slopes) - now.increments
            # What is left is rounding, of the field over the step and of the weights.
            rounding = length * noise + _NUDGE * jnp.abs(y + now.increments[-1])
            at_rounding = jnp.all(jnp.abs(residual) <= rounding[None])
            rates = curvature.rates
            system = [[-length * A[i, j] * rates + float(i == j) for j in range(STAGES)] for i in range(STAGES)]
            right = curvature.split(residual)
            parts = jnp.stack(solve_small(system, [right[i] for i in range(STAGES)]))
            correction = curvature.join(parts)
            increments = now.increments + correction
            ends = y, y + increments[-1]
            # A weight whose equation holds to rounding is as good as it gets.
            left_over = jnp.where(jnp.abs(residual) <= rounding[None], 0.0, jnp.abs(correction))
            leaving = self._leaving(curvature, *ends) + jnp.abs(curvature.basis.T) @ rounding / _SHARE
            of_weights = left_over / self._tolerance(*ends)[None]
            size = jnp.maximum(jnp.max(of_weights), jnp.max(jnp.abs(parts[:, : leaving.size]) / leaving[None]))
            first = now.count == 0
            ratio = jnp.where(first, 0.0, size / now.size)
            # A good iteration and a bad one take turns: their geometric mean tells what they come to.
            contraction = jnp.where(now.count > 1, jnp.sqrt(ratio * now.ratio), ratio)
            expected = jnp.where(first, _UNKNOWN, contraction)
            left = expected / (1 - expected) * size
            converged = ((expected < 1) & (left <= _SHARE)) | at_rounding
            # With what is left of the iterations it would not get there.
            hopeless = left * expected ** (_ITERATIONS - 2 - now.count) > _SHARE
            known = now.count > 1
            failed = ~converged & ((known & ((expected >= _DIVERGING) | hopeless)) | ~jnp.isfinite(size))
            standing = jnp.where(failed, _FAILED, jnp.where(converged, _CONVERGED, _GOING))
            return _Newton(increments, correction, size, slopes, ratio, contraction, now.count + 1, standing)

        none, zero = jnp.zeros_like(guess), jnp.zeros(())
        start = _Newton(guess, none, zero, none, zero, zero, jnp.asarray(0), jnp.asarray(_GOING))

        def attempt(before: _Attempt) -> _Attempt:
            curvature = _renewed(field, before.renew, y + guess[_MIDDLE], before.curvature, self.columns)
            going = lambda now: now.standing == _GOING
            noise = curvature.noise(y)
            newton = jax.lax.while_loop(going, lambda now: iterate(now, curvature, noise), start)
            computed = before.computed | before.renew
            work = STAGES * newton.count + jnp.where(before.renew, self.renewal, 0)
            again = (newton.standing == _FAILED) & ~computed
            return _Attempt(newton, curvature, computed, again, before.fields + work)

        # With an old curvature first, and where that does not do, with its own.
        unfinished = lambda now: now.renew | (now.newton.standing == _GOING)
        origin = _Attempt(start, kept.curvature, jnp.asarray(False), kept.slow, kept.fields)
        done = jax.lax.while_loop(unfinished, attempt, origin)
        return done.newton, done.curvature, done.fields


def hermite(start: Weights, slope: Weights, end: Weights, slope_end: Weights, length: Scalar) -> Float[Array, "k n"]:
    """The cubic through both ends of a step with the field there, at 0 and the nodes."""
    x = jnp.asarray(NODES)[:, None]
    ends = (1 + 2 * x) * (1 - x) ** 2 * start[None] + x**2 * (3 - 2 * x) * end[None]
    return ends + length * x * (1 - x) * ((1 - x) * slope[None] - x * slope_end[None])


def _flat(terms: diffrax.AbstractTerm, t: Any, y: PyTree, args: Any):
    """The field as a function of one vector, and the vector."""
    state, dissipated = y
    vector, unravel = ravel_pytree(state)
    return lambda x: ravel_pytree(terms.vf(t, (unravel(x), dissipated), args)[0])[0], vector


def _renewed(field, renew: Bool[Array, ""], y: Weights, kept: Curvature, columns: int) -> Curvature:
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
    so that large ones do not round small ones: each block is shifted by a number of its own, which leaves its
    eigenvectors as they are.
    """
    jacobian = (jacobian + jacobian.T) / 2
    largest = jnp.max(jnp.abs(jacobian))
    blocks = _blocks(jnp.abs(jacobian) > _EPS * largest)
    shifts = largest * (_GOLDEN * blocks.astype(float) % 1.0)
    eigenvalues, basis = jnp.linalg.eigh(jacobian + jnp.diag(shifts))
    of = jnp.argmax(jnp.abs(basis), axis=0)
    return eigenvalues - shifts[of], jnp.where(blocks[:, None] == blocks[of][None], basis, 0.0)


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
    signs = jnp.asarray(1.0 - 2.0 * (np.arange(n) % 2))
    slopes = jax.vmap(field)(y[None] * (1 + _NUDGE * jnp.stack([0 * signs, signs, -signs])))
    moved = jnp.max(jnp.abs(slopes[1:] - slopes[:1]), axis=0)
    return Curvature(eigenvalues, basis, rest, moved, _terms(eigenvalues, basis, rest, y))


def _terms(eigenvalues: Float[Array, " k"], basis: Float[Array, "n k"], rest: Scalar, y: Weights) -> Weights:
    """A bound of |J| |y|, J the Jacobian: what the field adds up, where it is linear."""
    sizes, largest = jnp.abs(basis), jnp.abs(y)
    along = sizes @ (jnp.abs(eigenvalues) * (sizes.T @ largest))
    return along if basis.shape[0] == basis.shape[1] else along + jnp.abs(rest) * largest
