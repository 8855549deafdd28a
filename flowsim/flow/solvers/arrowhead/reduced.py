"""Implicit steps of an arrowhead flow in its reduction: the diagonal of U, u and the clock s = int u^2 dt.

The weights off the diagonal are functions of the clock, U_ij(t) = U_ij(0) exp(-a_ij s(t)). They enter the flow only
through their moments, F_k = sum_{i != j} a_ij^k U_ij(0)^2 exp(-2 a_ij s).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from flowsim._core.types import Scalar
from flowsim.flow.solvers.arrowhead.newton import rounding
from flowsim.flow.solvers.collocation import DAMPING, ESTIMATE_WEIGHT, STAGES, after, radau_tableau, solve_small
from flowsim.losses.arrowhead import Arrowhead, State
from flowsim.losses.reduction import Moments, Point, Reduction, Seen
from flowsim.moments.decays import MOMENTS, DecaySums

Stages = Float[Array, " stages"]

# With this many moments their Taylor series is exact to 1e-13 for a relative shift of the clock of this size.
_NEAR = 2e-3
_NEWTON_ITERATIONS, _CHORD_ITERATIONS = 10, 6
_CHORD_SHARE = 1e-3  # of the tolerance of a step


class Step(NamedTuple):
    """The result of a step.

    **Fields:**

    - stages: the points at the stages of the step, the last of which is its end.
    - seen: the moments, excess and |grad L|^2 at the stages.
    - dissipated: the energy dissipated in the step.
    - error: the largest error estimate of u and the diagonal, less the rounding errors of their velocities over the
      step, divided by the largest weight.
    - converged: whether Newton's method converged.
    """

    stages: Point
    seen: Seen
    dissipated: Scalar
    error: Scalar
    converged: Bool[Array, ""]


def reduce(arrowhead: Arrowhead, start: State) -> tuple[Reduction, Point]:
    """The reduction of the arrowhead flow from a start (U, u), with exact sums for the moments; and its first point."""
    U, u = start
    a, d = arrowhead.curvature, arrowhead.drive.shape[0]
    squares = jnp.where(jnp.eye(d, dtype=bool), 0.0, U * U)
    sums = DecaySums.exact(a, squares)
    reduction = Reduction(sums, jnp.diagonal(a), arrowhead.drive, jnp.max(a), jnp.min(a))
    return reduction, Point(jnp.diagonal(U), u, jnp.zeros(()))


class Kept(NamedTuple):
    """The data that one step passes to the next.

    **Fields:** seen: the moments, excess and |grad L|^2 at the end of the last step; last_u, last_length: u at 0
    and the nodes of the last step, and its length.
    """

    seen: Seen
    last_u: Float[Array, " nodes"]
    last_length: Scalar

    def guess(self, point: Point, length: Scalar) -> Stages:
        """A guess of u at the stages of the next step, extrapolated from the last step. If u kept its sign in the
        last step, log |u| is extrapolated.

        **Arguments:** point: the start of the next step; length: its length.
        """
        basis = after(length, self.last_length)
        one_sign = jnp.all(self.last_u * point.u > 0)
        logarithms = basis @ jnp.log(jnp.where(one_sign, jnp.abs(self.last_u), 1.0))
        return jnp.where(one_sign, jnp.sign(point.u) * jnp.exp(logarithms), basis @ self.last_u)


def before_first_step(point: Point, seen: Seen, length: Scalar) -> Kept:
    """The data for the first step, which has the given length and begins at ``point``."""
    return Kept(seen, jnp.full(STAGES + 1, point.u), length)


def end_of(step: Step) -> tuple[Point, Seen]:
    """The point at the end of a step, and the moments, excess and |grad L|^2 there."""
    return jax.tree.map(lambda x: x[-1], step.stages), jax.tree.map(lambda x: x[..., -1], step.seen)


def _shifted(moments: Moments, shift: Stages) -> Moments:
    """The moments after the clock has moved by ``shift`` at each stage, by their Taylor series for small shifts."""
    total = term = moments
    for k in range(1, MOMENTS):
        term = jnp.concatenate([term[1:] * (-2 / k * shift)[None, :], jnp.zeros_like(term[:1])])
        total = total + term
    return total


def step(reduction: Reduction, start: Point, seen: Seen, guess: Stages, size: Scalar, rtol: Scalar) -> Step:
    """Make one step of Radau IIA (order 9).

    Newton's method runs on the stage values of u. The exponentials in the moments are evaluated until the clock is
    nearly right. Then the iteration continues with the last Newton matrix, and shifts the moments by their Taylor
    series. If the velocities consist of rounding, u and the diagonal stay constant, as in `radau_step`.

    **Arguments:**

    - reduction: the flow.
    - start, seen: the point at the start of the step, and the moments, excess and |grad L|^2 there.
    - guess: a guess of u at the stages.
    - size: the length of the step.
    - rtol: the relative tolerance.
    """
    _, matrix, differences = radau_tableau()
    A, inverse = jnp.asarray(matrix), jnp.asarray(np.linalg.inv(matrix))
    hA = size * A
    g, b = reduction.curvature, reduction.drive
    d = b.shape[0]
    # The largest entry off the diagonal is not known. This is at most the largest weight.
    squares = seen.moments[0]
    # The guard keeps the derivative at zero from being NaN.
    spread = jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1.0)), 0.0) / d
    largest = jnp.maximum(jnp.maximum(jnp.max(jnp.abs(start.shaft)), jnp.abs(start.u)), spread)
    start_rate = seen.moments[1] + jnp.sum(g * start.shaft**2)
    start_slope = b @ start.shaft - start.u * start_rate
    start_shaft_slopes = start.u * (b - start.u * g * start.shaft)
    rounded = rounding(d) * (jnp.abs(b) @ jnp.abs(start.shaft) + jnp.abs(start.u) * start_rate)
    shaft_rounded = rounding(0) * jnp.abs(start.u) * (jnp.abs(b) + jnp.abs(start.u * g * start.shaft))
    rests = jnp.all(jnp.abs(start_shaft_slopes) <= shaft_rounded) & (jnp.abs(start_slope) <= rounded)

    def stages(u: Stages, columns: int) -> tuple[Point, Array]:
        """The points at the stages, given u there; and the derivatives of the diagonals of U at the stages with
        respect to a velocity that is added at each of the first ``columns`` stages.
        """
        rates = hA * (u**2)[None, :]
        system = [[rates[i, j] * g[None, :] + float(i == j) for j in range(STAGES)] for i in range(STAGES)]
        first = start.shaft[None, None, :] + (hA @ u)[:, None, None] * b[None, None, :]
        rest = jnp.broadcast_to(hA[:, :columns, None], (STAGES, columns, d))
        right = jnp.concatenate([first, rest], axis=1)
        solution = jnp.stack(solve_small(system, [right[i] for i in range(STAGES)]))
        return Point(solution[:, 0], u, start.clock + jnp.sum(rates, axis=1)), solution[:, 1:]

    def correction(points: Point, moments: Moments, jacobian: Array) -> Stages:
        u, shaft = points.u, points.shaft
        rate = moments[1] + jnp.sum(g[None, :] * shaft**2, axis=1)
        value = u - start.u - hA @ (shaft @ b - u * rate)
        rows = [[jacobian[i, j] for j in range(STAGES)] for i in range(STAGES)]
        return jnp.stack(solve_small(rows, [value[i] for i in range(STAGES)]))

    def newton(carry):
        u, _, _, iterations = carry
        points, response = stages(u, STAGES)
        moments = reduction.sums(points.clock)
        pull = b[None, :] - 2 * u[:, None] * g[None, :] * points.shaft
        rate = moments[1] + jnp.sum(g[None, :] * points.shaft**2, axis=1)
        bend = jnp.sum(pull[:, None, :] * response * pull[None, :, :], axis=2)
        bend = bend - jnp.diag(rate) + 4 * hA * (u * moments[2])[:, None] * u[None, :]
        jacobian = jnp.eye(STAGES) - hA @ bend
        change = correction(points, moments, jacobian)
        shift = jnp.abs(hA @ (u * change * 2))
        # At u = 0 the clock has not started.
        begun = jnp.where(points.clock > 0, points.clock, jnp.inf)
        relative = jnp.where(points.clock > 0, shift / begun, jnp.inf)
        wander = jnp.max(jnp.minimum(relative, reduction.fastest * shift))
        change = jnp.where(rests, u - start.u, change)
        return u - change, wander, (points.clock, moments, jacobian, jnp.max(jnp.abs(change))), iterations + 1

    def far(carry):
        _, wander, _, iterations = carry
        return (wander > _NEAR) & (iterations < _NEWTON_ITERATIONS)

    blank = (jnp.zeros(STAGES), jnp.zeros((MOMENTS, STAGES)), jnp.zeros((STAGES, STAGES)), jnp.zeros(()))
    begin = (guess, jnp.asarray(jnp.inf), blank, jnp.asarray(0))
    u, wander, (clock, moments, jacobian, change), _ = jax.lax.while_loop(far, newton, begin)

    def chord(carry):
        u, before, _, iterations = carry
        points, _ = stages(u, 0)
        change = correction(points, _shifted(moments, points.clock - clock), jacobian)
        now = jnp.max(jnp.abs(change))
        # The corrections decrease by a constant factor, so that this estimates the next one.
        return u - change, now, now * now / jnp.where(before > 0, before, 1.0), iterations + 1

    def rough(carry):
        _, _, left, iterations = carry
        return (left > _CHORD_SHARE * rtol * largest) & (iterations < _CHORD_ITERATIONS)

    u, _, left, _ = jax.lax.while_loop(rough, chord, (u, change, jnp.asarray(jnp.inf), jnp.asarray(0)))
    converged = (left <= _CHORD_SHARE * rtol * largest) & (wander <= _NEAR)
    u, converged = jnp.where(rests, start.u, u), converged | rests
    points, _ = stages(u, 0)
    points = points._replace(shaft=jnp.where(rests, start.shaft[None, :], points.shaft))
    there = reduction.look(points, _shifted(moments, points.clock - clock))

    # As in `radau_step`, with the slopes of u from its stage values.
    slopes = inverse @ (u - start.u) / size
    shaft_slopes = u[:, None] * (b[None, :] - u[:, None] * g[None, :] * points.shaft)
    rule = ESTIMATE_WEIGHT * size * jnp.asarray(differences)
    estimate = jnp.abs(rule[0] * start_slope + rule[1:] @ slopes)
    shaft_estimate = jnp.abs(rule[0] * start_shaft_slopes + rule[1:] @ shaft_slopes)
    estimate = jnp.maximum(estimate - ESTIMATE_WEIGHT * size * rounded, 0.0) / (1 + DAMPING * size * start_rate)
    shaft_estimate = jnp.maximum(shaft_estimate - ESTIMATE_WEIGHT * size * shaft_rounded, 0.0)
    error = jnp.maximum(estimate, jnp.max(shaft_estimate / (1 + DAMPING * size * start.u**2 * g)))
    largest = jnp.maximum(largest, jnp.maximum(jnp.abs(u[-1]), jnp.max(jnp.abs(points.shaft[-1]))))
    dissipated = jnp.where(rests, 0.0, size * (A[-1] @ there.grad_norm_sq))
    return Step(points, there, dissipated, error / largest, converged)
