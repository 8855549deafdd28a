"""Steps of the reduced arrowhead flow, whose weights off the diagonal are functions of one clock.

With s = int u^2 they are U_ij(t) = U_ij(0) exp(-a_ij s(t)), so that they enter through their moments
sum_{i != j} a_ij^k U_ij(0)^2 exp(-2 a_ij s) alone: the state is the diagonal of U, u and s.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from flowsim._core.types import Scalar
from flowsim.flow.solvers.collocation import DAMPING, ESTIMATE_WEIGHT, STAGES, radau_tableau, solve_small
from flowsim.losses.arrowhead import Arrowhead, State

Stages = Float[Array, " stages"]
Moments = Float[Array, "moments *stages"]

_MOMENTS = 6
# With six moments the Taylor series over a shift of the clock by this much of it is exact to 1e-13.
_NEAR = 2e-3
_NEWTON_ITERATIONS, _CHORD_ITERATIONS = 10, 6
_CHORD_SHARE = 1e-3  # of the tolerance of a step
_BLOCK = 4096


class Reduced(NamedTuple):
    """What stays the same along a flow; weights are a_ij^k U_ij(0)^2 by rows, zero on the diagonal."""

    curvature: Float[Array, "rows entries"]
    weights: Float[Array, "rows moments entries"]
    shaft_curvature: Float[Array, " d"]
    drive: Float[Array, " d"]


class Point(NamedTuple):
    """Diagonal of U, u and the clock; with stages leading, or without."""

    shaft: Float[Array, "*stages d"]
    u: Float[Array, "*stages"]
    clock: Float[Array, "*stages"]


class Seen(NamedTuple):
    """Moments, excess and squared gradient norm of points; without stages, or with them last."""

    moments: Moments
    excess: Float[Array, "*stages"]
    grad_norm_sq: Float[Array, "*stages"]


class Step(NamedTuple):
    """The stages of a step, the last of which is its end; the energy dissipated in it, an estimate of the largest
    error over the largest weight, and whether Newton's method converged.
    """

    stages: Point
    seen: Seen
    dissipated: Scalar
    error: Scalar
    converged: Bool[Array, ""]


def reduce(arrowhead: Arrowhead, start: State) -> tuple[Reduced, Point, Seen]:
    """A flow in this form, and its start."""
    U, u = start
    a, d = arrowhead.curvature, arrowhead.drive.shape[0]
    # Small matrices in one go, large ones a row at a time: the exponentials of a row stay in the cache.
    rows = (1, d * d) if d * d <= _BLOCK else (d, d)
    squares = jnp.where(jnp.eye(d, dtype=bool), 0.0, U * U)
    weights = jnp.stack([(a**k * squares).reshape(rows) for k in range(_MOMENTS)], axis=1)
    reduced = Reduced(a.reshape(rows), weights, jnp.diagonal(a), arrowhead.drive)
    point = Point(jnp.diagonal(U), u, jnp.zeros(()))
    one = jax.tree.map(lambda x: x[None], point)
    seen = _look(reduced, one, _moments(reduced, one.clock))
    return reduced, point, jax.tree.map(lambda x: x[..., 0], seen)


def end_of(step: Step) -> tuple[Point, Seen]:
    """Where a step ends."""
    return jax.tree.map(lambda x: x[-1], step.stages), jax.tree.map(lambda x: x[..., -1], step.seen)


def _moments(reduced: Reduced, clock: Stages) -> Moments:
    def row(parts):
        curvature, weights = parts
        return weights @ jnp.exp(-2 * curvature[:, None] * clock[None, :])

    return jnp.sum(jax.lax.map(row, (reduced.curvature, reduced.weights)), axis=0)


def _shifted(moments: Moments, shift: Stages) -> Moments:
    """The moments at a clock that is a little later, by their Taylor series."""
    total = term = moments
    for k in range(1, _MOMENTS):
        term = jnp.concatenate([term[1:] * (-2 / k * shift)[None, :], jnp.zeros_like(term[:1])])
        total = total + term
    return total


def _look(reduced: Reduced, points: Point, moments: Moments) -> Seen:
    u, shaft, g = points.u, points.shaft, reduced.shaft_curvature
    residual = u[:, None] * shaft - (reduced.drive / g)[None, :]
    pull = residual * g[None, :]
    excess = (u**2 * moments[1] + jnp.sum(pull * residual, axis=1)) / 2
    slope = -u * moments[1] - jnp.sum(pull * shaft, axis=1)
    return Seen(moments, excess, slope**2 + u**2 * jnp.sum(pull**2, axis=1) + u**4 * moments[2])


def step(reduced: Reduced, start: Point, seen: Seen, guess: Stages, size: Scalar, rtol: Scalar) -> Step:
    """One step of Radau IIA (order 9) of the given size.

    Newton's method runs on the stage values of u from ``guess``: exponentials are evaluated until the clock is nearly
    right; from there on the moments are shifted by their Taylor series, and the Newton matrix is kept.
    """
    _, matrix, differences = radau_tableau()
    A, inverse = jnp.asarray(matrix), jnp.asarray(np.linalg.inv(matrix))
    hA = size * A
    g, b = reduced.shaft_curvature, reduced.drive
    d = b.shape[0]
    fastest = jnp.max(reduced.curvature)
    # At most the largest weight, as the largest entry off the diagonal is not known.
    squares = seen.moments[0]
    # Guarded, so that the derivative at zero is not NaN.
    spread = jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1.0)), 0.0) / d
    largest = jnp.maximum(jnp.maximum(jnp.max(jnp.abs(start.shaft)), jnp.abs(start.u)), spread)

    def stages(u: Stages, columns: int) -> tuple[Point, Array]:
        """The points with these values of u, and how their diagonals answer to a change of their slopes."""
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
        moments = _moments(reduced, points.clock)
        pull = b[None, :] - 2 * u[:, None] * g[None, :] * points.shaft
        rate = moments[1] + jnp.sum(g[None, :] * points.shaft**2, axis=1)
        bend = jnp.sum(pull[:, None, :] * response * pull[None, :, :], axis=2)
        bend = bend - jnp.diag(rate) + 4 * hA * (u * moments[2])[:, None] * u[None, :]
        jacobian = jnp.eye(STAGES) - hA @ bend
        change = correction(points, moments, jacobian)
        shift = jnp.abs(hA @ (u * change * 2))
        wander = jnp.max(jnp.minimum(shift / points.clock, fastest * shift))
        return u - change, wander, (points.clock, moments, jacobian, jnp.max(jnp.abs(change))), iterations + 1

    def far(carry):
        _, wander, _, iterations = carry
        return (wander > _NEAR) & (iterations < _NEWTON_ITERATIONS)

    blank = (jnp.zeros(STAGES), jnp.zeros((_MOMENTS, STAGES)), jnp.zeros((STAGES, STAGES)), jnp.zeros(()))
    begin = (guess, jnp.asarray(jnp.inf), blank, jnp.asarray(0))
    u, wander, (clock, moments, jacobian, change), _ = jax.lax.while_loop(far, newton, begin)

    def chord(carry):
        u, before, _, iterations = carry
        points, _ = stages(u, 0)
        change = correction(points, _shifted(moments, points.clock - clock), jacobian)
        now = jnp.max(jnp.abs(change))
        # The corrections fall by a constant factor, so that this is the next one.
        return u - change, now, now * now / jnp.where(before > 0, before, 1.0), iterations + 1

    def rough(carry):
        _, _, left, iterations = carry
        return (left > _CHORD_SHARE * rtol * largest) & (iterations < _CHORD_ITERATIONS)

    u, _, left, _ = jax.lax.while_loop(rough, chord, (u, change, jnp.asarray(jnp.inf), jnp.asarray(0)))
    converged = (left <= _CHORD_SHARE * rtol * largest) & (wander <= _NEAR)
    points, _ = stages(u, 0)
    there = _look(reduced, points, _shifted(moments, points.clock - clock))

    # The estimate is that of `radau_step`, with the slopes of u from its stage values.
    slopes = inverse @ (u - start.u) / size
    shaft_slopes = u[:, None] * (b[None, :] - u[:, None] * g[None, :] * points.shaft)
    start_rate = seen.moments[1] + jnp.sum(g * start.shaft**2)
    start_slope = b @ start.shaft - start.u * start_rate
    start_shaft_slopes = start.u * (b - start.u * g * start.shaft)
    rule = ESTIMATE_WEIGHT * size * jnp.asarray(differences)
    estimate = (rule[0] * start_slope + rule[1:] @ slopes) / (1 + DAMPING * size * start_rate)
    shaft_estimate = rule[0] * start_shaft_slopes + rule[1:] @ shaft_slopes
    shaft_estimate = shaft_estimate / (1 + DAMPING * size * start.u**2 * g)
    error = jnp.maximum(jnp.abs(estimate), jnp.max(jnp.abs(shaft_estimate)))
    largest = jnp.maximum(largest, jnp.maximum(jnp.abs(u[-1]), jnp.max(jnp.abs(points.shaft[-1]))))
    return Step(points, there, size * (A[-1] @ there.grad_norm_sq), error / largest, converged)
