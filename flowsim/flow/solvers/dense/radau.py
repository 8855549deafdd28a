"""Radau IIA for the flow of any loss, with Newton's method in the eigenbasis of a Hessian that is kept for many
steps.

The Jacobian of a gradient flow is symmetric. In its eigenbasis, and for every step size, the equations of the s
stages decouple into one system of s equations for each direction. Hence a new step size costs nothing, and one
decomposition serves many steps, until Newton's method slows down. With many weights only the stiffest directions
are kept (`curvature.py`).
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
from flowsim.flow.solvers.dense.curvature import NUDGE, Curvature, Weights, renewed, unknown

Stages = Float[Array, "stages n"]

_EPS = float(jnp.finfo(jnp.float64).eps)
_LEAST_RTOL = 64 * _EPS  # of a weight
SMALLEST_ERROR = 1e-280  # of a weight: squares of smaller numbers underflow
_SHARE = 0.03  # of the tolerance: the error that Newton's method may leave
_ITERATIONS = 12
_DIVERGING = 0.9  # the contraction at which a Newton iteration is given up
_SLOW = 0.3  # the contraction after which the Hessian is computed again
_UNKNOWN = 0.5  # the assumed contraction of the first iteration
_FELT = 8.0  # times the rounding of a field: a smaller field is rounding
_DRIFT = 1e3  # times the tolerance: the drift by rounding in a step after which a weight is frozen
_MIDDLE = 2  # the stage at which the Hessian is computed


class Kept(NamedTuple):
    """The data that one step passes to the next.

    **Fields:**

    - slope: the field at the start of the next step.
    - begin, length, points: the start time of the last step, its length, and the weights at 0 and its nodes.
    - curvature: the eigenvectors of the last Hessian.
    - slow: whether Newton's method has become slow, so that the Hessian is to be computed again.
    - fields: the number of evaluations of the field so far. A column of a Hessian counts as one.
    """

    slope: Weights
    begin: Scalar
    length: Scalar
    points: Float[Array, "nodes n"]
    curvature: Curvature
    slow: Bool[Array, ""]
    fields: Int[Array, ""]


class _Newton(NamedTuple):
    """The state of a Newton iteration.

    **Fields:**

    - increments: the weights at the stages minus those at the start of the step.
    - correction, size: the last correction of the increments, and its size in units of the tolerance.
    - slopes: the field at the stages before the last correction.
    - ratio, contraction: the ratio of the sizes of the last two corrections, and the estimated contraction.
    - count: the number of corrections.
    - standing: whether the iteration continues, has converged or has failed.
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
    """An attempt of Newton's method with one Hessian.

    **Fields:**

    - newton, curvature: the state of the iteration, and the eigenvectors of the Hessian.
    - computed: whether the Hessian was computed in this step.
    - renew: whether the next attempt must compute the Hessian again.
    - fields: the number of evaluations of the field so far.
    """

    newton: _Newton
    curvature: Curvature
    computed: Bool[Array, ""]
    renew: Bool[Array, ""]
    fields: Int[Array, ""]


class DenseRadau(AbstractRadau):
    """Radau IIA of order 9 on (weights, dissipated energy). The error of a step is in units of the tolerance.

    The tolerance of a weight is rtol times its size, plus atol, plus the rounding of its field over the step. The
    size is the current absolute value of the weight or, if larger, the smaller of its entry in ``sizes`` and the
    current largest weight of its array. In directions in which the flow leaves a saddle errors grow. So there only
    the current absolute values count.

    **Fields:**

    - rtol, atol: the relative and the absolute tolerance.
    - sizes: the sizes of the weights at the start of the flow.
    - renewal: the cost of a Hessian, in evaluations of the field.
    - columns: the number of columns of the Hessian to compute at once.
    - directions: the number of eigenvectors to keep: all, or those of the largest eigenvalues.
    """

    rtol: Scalar
    atol: Scalar
    sizes: PyTree
    renewal: Int[Array, ""]
    columns: int = eqx.field(static=True)
    directions: int = eqx.field(static=True)

    def init(self, terms, t0, t1, y0, args):
        """The data for the first step. They hold no Hessian yet, so that the step computes one."""
        field, y = _flat(terms, t0, y0, args)
        points = jnp.broadcast_to(y, (STAGES + 1, y.size))
        nothing = unknown(field, y, self.directions)
        return Kept(field(y), jnp.asarray(t0), jnp.asarray(t1 - t0), points, nothing, jnp.asarray(True), jnp.asarray(0))

    def within(self, terms, t0, t1, y0, y1, args, kept: Kept) -> Kept:
        """The data for a step that begins at t0, y0 and ends before t1. The flow is known to be at y1 at t1."""
        field, start = _flat(terms, t0, y0, args)
        _, end = _flat(terms, t1, y1, args)
        slope, points = field(start), hermite(start, field(start), end, field(end), t1 - t0)
        return kept._replace(slope=slope, begin=t0, length=t1 - t0, points=points)

    @eqx.filter_jit  # diffrax traces a step five times
    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        """Make one step. Its error is in units of the tolerance, and infinite if Newton's method failed."""
        field, y = _flat(terms, t0, y0, args)
        _, unravel = ravel_pytree(y0[0])
        length, kept = jnp.asarray(t1 - t0), solver_state
        nodes, matrix, _ = radau_tableau()
        A = jnp.asarray(matrix)
        moves = self._moves(kept, y, length)
        done, curvature, fields = self._newton(moves, field, y, kept, t0, length, A, jnp.asarray(nodes))
        split, join, rates = curvature.split, curvature.join, curvature.rates
        # The field at the end of the iteration, extrapolated from its last evaluation.
        slopes = done.slopes + join(split(done.correction) * rates[None]) * moves[None]
        points = jnp.concatenate([y[None], y[None] + done.increments])
        end = points[-1]
        error = self._error(curvature, points, jnp.concatenate([(kept.slope * moves)[None], slopes]), length)
        converged = done.standing == _CONVERGED
        error = jnp.where(converged & jnp.isfinite(error), error, jnp.inf)
        # At rest the field is rounding, which would accumulate over a long time.
        felt = jnp.where(jnp.abs(slopes) > _FELT * curvature.noise(jnp.abs(y))[None], slopes, 0.0)
        dissipated = y0[1] + length * (A[-1] @ jnp.sum(felt**2, axis=1))
        slow = (done.contraction > _SLOW) | ~converged
        kept = Kept(field(end), jnp.asarray(t0), length, points, curvature, slow, fields + 1)
        y1 = (unravel(end), dissipated)
        return y1, error, {"y0": y0, "y1": y1}, kept, diffrax.RESULTS.successful

    @staticmethod
    def hessian(weights: int, directions: int) -> tuple[int, int]:
        """The cost of a Hessian in evaluations of the field, and the approximate number of operations that its
        eigenvectors take.
        """
        if directions == weights:
            return weights, 10 * weights**3
        return 2 * directions, 10 * directions**3 + 6 * weights * directions**2

    def _error(self, curvature: Curvature, points: Array, slopes: Array, length: Scalar) -> Scalar:
        """The error of a step in units of the tolerance, from the weights and the field at 0 and the nodes."""
        _, _, differences = radau_tableau()
        rule, start, end = ESTIMATE_WEIGHT * length * jnp.asarray(differences), points[0], points[-1]
        damping = 1 + DAMPING * length * jnp.abs(curvature.rates)
        parts = curvature.split(rule @ slopes) / damping
        noise = curvature.noise(jnp.maximum(jnp.abs(start), jnp.abs(end)))
        rounding = curvature.spread(ESTIMATE_WEIGHT * length * noise, damping)
        errors = jnp.abs(curvature.join(parts)) / (self._tolerance(start, end) + rounding)
        leaving = self._leaving(curvature, start, end) + jnp.abs(curvature.basis.T) @ rounding
        return jnp.maximum(jnp.max(errors), jnp.max(jnp.abs(parts[: leaving.size]) / leaving))

    def _tolerance(self, start: Weights, end: Weights) -> Weights:
        now, given = jnp.maximum(jnp.abs(start), jnp.abs(end)), jax.tree.leaves(self.sizes)
        parts = jnp.split(now, np.cumsum([leaf.size for leaf in given])[:-1])
        at_least = [jnp.minimum(jnp.ravel(a), jnp.max(b, initial=0.0)) for a, b in zip(given, parts, strict=True)]
        sizes = jnp.maximum(now, jnp.concatenate(at_least))
        return jnp.maximum(self.rtol, _LEAST_RTOL) * sizes + self.atol + SMALLEST_ERROR

    def _leaving(self, curvature: Curvature, start: Weights, end: Weights) -> Float[Array, " k"]:
        """The tolerance of the component along each eigenvector, from the current absolute values of the weights.
        It is infinite unless the eigenvalue is positive. Only then do errors along the eigenvector grow.
        """
        sizes = jnp.abs(curvature.basis.T) @ jnp.maximum(jnp.abs(start), jnp.abs(end))
        tolerance = jnp.maximum(self.rtol, _LEAST_RTOL) * sizes + self.atol + SMALLEST_ERROR
        return jnp.where(curvature.eigenvalues > 0, tolerance, jnp.inf)

    def _moves(self, kept: Kept, y: Weights, length: Scalar) -> Weights:
        """A mask that is 1 for weights that move in a step and 0 for weights that are held constant.

        A weight is held constant if its field consists of rounding only, and the step is so long that the rounding
        would move the weight by far more than its tolerance.
        """
        noise = kept.curvature.noise(y)
        still = (jnp.abs(kept.slope) <= _FELT * noise) & (length * noise > _DRIFT * self._tolerance(y, y))
        return jnp.where(still, 0.0, 1.0)

    def _newton(self, moves, field, y, kept, t0, length, A, nodes) -> tuple[_Newton, Curvature, Int[Array, ""]]:
        fields = lambda points: jax.vmap(field)(points) * moves[None]
        guess = lagrange((t0 - kept.begin + length * nodes) / kept.length) @ kept.points - y[None]
        # For weights that no longer move, extrapolation would amplify rounding.
        rounding = kept.length * kept.curvature.noise(y)
        moved = jnp.abs(kept.points[-1] - kept.points[0]) > self._tolerance(kept.points[0], kept.points[-1]) + rounding
        guess = jnp.where(moved[None], guess, 0.0) * moves[None]

        def iterate(now: _Newton, curvature: Curvature, noise: Weights) -> _Newton:
            slopes = fields(y[None] + now.increments)
            residual = length * (A @ slopes) - now.increments
            # The residual of a converged iteration: rounding of the field over the step and of the weights.
            rounding = length * noise + NUDGE * jnp.abs(y + now.increments[-1])
            at_rounding = jnp.all(jnp.abs(residual) <= rounding[None])
            rates = curvature.rates
            system = [[-length * A[i, j] * rates + float(i == j) for j in range(STAGES)] for i in range(STAGES)]
            right = curvature.split(residual)
            parts = jnp.stack(solve_small(system, [right[i] for i in range(STAGES)]))
            correction = curvature.join(parts) * moves[None]
            increments = now.increments + correction
            ends = y, y + increments[-1]
            # A weight whose equation holds to rounding has converged.
            left_over = jnp.where(jnp.abs(residual) <= rounding[None], 0.0, jnp.abs(correction))
            leaving = self._leaving(curvature, *ends) + jnp.abs(curvature.basis.T) @ rounding / _SHARE
            of_weights = left_over / self._tolerance(*ends)[None]
            size = jnp.maximum(jnp.max(of_weights), jnp.max(jnp.abs(parts[:, : leaving.size]) / leaving[None]))
            first = now.count == 0
            ratio = jnp.where(first, 0.0, size / now.size)
            # Good and bad iterations alternate, so that their geometric mean measures the contraction.
            contraction = jnp.where(now.count > 1, jnp.sqrt(ratio * now.ratio), ratio)
            expected = jnp.where(first, _UNKNOWN, contraction)
            left = expected / (1 - expected) * size
            converged = ((expected < 1) & (left <= _SHARE)) | at_rounding
            # The remaining iterations would not suffice.
            hopeless = left * expected ** (_ITERATIONS - 2 - now.count) > _SHARE
            known = now.count > 1
            failed = ~converged & ((known & ((expected >= _DIVERGING) | hopeless)) | ~jnp.isfinite(size))
            standing = jnp.where(failed, _FAILED, jnp.where(converged, _CONVERGED, _GOING))
            return _Newton(increments, correction, size, slopes, ratio, contraction, now.count + 1, standing)

        none, zero = jnp.zeros_like(guess), jnp.zeros(())
        start = _Newton(guess, none, zero, none, zero, zero, jnp.asarray(0), jnp.asarray(_GOING))

        def attempt(before: _Attempt) -> _Attempt:
            curvature = renewed(field, before.renew, y + guess[_MIDDLE], before.curvature, self.columns)
            going = lambda now: now.standing == _GOING
            noise = curvature.noise(y)
            newton = jax.lax.while_loop(going, lambda now: iterate(now, curvature, noise), start)
            computed = before.computed | before.renew
            work = STAGES * newton.count + jnp.where(before.renew, self.renewal, 0)
            again = (newton.standing == _FAILED) & ~computed
            return _Attempt(newton, curvature, computed, again, before.fields + work)

        # First with the kept curvature, then with the one of this step.
        unfinished = lambda now: now.renew | (now.newton.standing == _GOING)
        origin = _Attempt(start, kept.curvature, jnp.asarray(False), kept.slow, kept.fields)
        done = jax.lax.while_loop(unfinished, attempt, origin)
        return done.newton, done.curvature, done.fields


def hermite(start: Weights, slope: Weights, end: Weights, slope_end: Weights, length: Scalar) -> Float[Array, "k n"]:
    """The cubic Hermite interpolant of a step, at 0 and the nodes, from the weights and the field at both ends."""
    x = jnp.asarray(NODES)[:, None]
    ends = (1 + 2 * x) * (1 - x) ** 2 * start[None] + x**2 * (3 - 2 * x) * end[None]
    return ends + length * x * (1 - x) * ((1 - x) * slope[None] - x * slope_end[None])


def _flat(terms: diffrax.AbstractTerm, t: Any, y: PyTree, args: PyTree):
    """The field as a function of one vector of all weights, and the vector at y."""
    state, dissipated = y
    vector, unravel = ravel_pytree(state)
    return lambda x: ravel_pytree(terms.vf(t, (unravel(x), dissipated), args)[0])[0], vector
