"""Structured Newton's method for the implicit steps of arrowhead flows.

A step of a collocation method solves for the weights at its stages, a matrix U and a number u (see
`flowsim.losses.arrowhead`). Given u at the stages, U follows in
closed form. Off the diagonal, U_ij decays as exp(-a_ij s) with the clock s = int u^2 dt. On the diagonal, the stage
values of each entry solve a small linear system. So Newton's method runs on the stage values of u only. This is the
block elimination of the arrowhead.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim.flow.solvers.collocation import DAMPING, ESTIMATE_WEIGHT, STAGES, radau_tableau, solve_small
from flowsim.losses.arrowhead import AbstractArrowhead, State

_MAX_ITERATIONS = 12
_EPS = float(np.finfo(float).eps)
_BLOCK = 4096


def rounding(count: int) -> float:
    """A bound on the rounding error of a sum of ``count`` terms, relative to the sum of their absolute values."""
    return (8 + count) * _EPS


class Step(NamedTuple):
    """The result of a step.

    **Fields:**

    - state: U and u at the end of the step.
    - dissipated: the energy dissipated in the step.
    - error: the largest error estimate of a weight, less the rounding error of its velocity over the step, divided
      by the largest weight.
    - converged: whether Newton's method converged.
    """

    state: State
    dissipated: Float[Array, ""]
    error: Float[Array, ""]
    converged: Float[Array, ""]


@eqx.filter_jit  # diffrax traces a step four times
def radau_step(arrowhead: AbstractArrowhead, state: State, step: Float[Array, ""], tolerance: Float[Array, ""]) -> Step:
    """Make one step of Radau IIA (order 9) on an arrowhead flow, by the structured Newton's method.

    If the velocities of u and of the diagonal of U all consist of rounding, u and the diagonal stay constant.
    Otherwise rounding would accumulate over a long time.

    **Arguments:**

    - arrowhead: the structure of the flow.
    - state: U and u at the start of the step.
    - step: the length of the step.
    - tolerance: Newton's method stops when its last correction of u, relative to the largest weight, is at most
      this.
    """
    _, matrix, differences = radau_tableau()
    A = jnp.asarray(matrix)
    U, u_start = state
    a, b = arrowhead.curvature, arrowhead.drive
    on_diagonal = jnp.eye(b.shape[0], dtype=bool)
    shaft = jnp.diagonal(U)
    shaft_curvature = jnp.diagonal(a)
    squares = jnp.where(on_diagonal, 0.0, U * U)
    size = jnp.maximum(jnp.abs(u_start), jnp.max(jnp.abs(U)))

    start_rate = jnp.sum(a * U * U)
    start_slope = jnp.sum(b * shaft) - u_start * start_rate
    start_shaft_slope = -(u_start**2) * shaft_curvature * shaft + u_start * b
    rounded = rounding(b.size) * (jnp.sum(jnp.abs(b * shaft)) + jnp.abs(u_start) * start_rate)
    shaft_rounded = rounding(0) * (u_start**2 * shaft_curvature * jnp.abs(shaft) + jnp.abs(u_start * b))
    rests = jnp.all(jnp.abs(start_shaft_slope) <= shaft_rounded) & (jnp.abs(start_slope) <= rounded)

    # Small matrices all at once, large ones row by row, so that the exponentials stay in the cache.
    rows = a.reshape(1, -1) if a.size <= _BLOCK else a
    weights = (a * squares).reshape(rows.shape)

    def moments(clock):
        """The sums over i != j of a_ij^k U_ij^2 for k = 1 and 2 (rows) at each stage (columns). Both use the same
        exponentials.
        """

        def block(row):
            curvature, weight = row
            decay = jnp.exp(-2 * curvature[:, None] * clock[None, :])
            return jnp.stack([weight, weight * curvature]) @ decay

        return jnp.sum(jax.lax.map(block, (rows, weights)), axis=0)

    @jax.custom_jvp
    def first_moment(clock):
        return moments(clock)[0]

    @first_moment.defjvp
    def first_moment_jvp(primals, tangents):
        first, second = moments(*primals)
        return first, -2 * second * tangents[0]

    def stages(u):
        """The diagonal entries of U (s, d) and the clock (s,) at the s stages, given u there."""
        rates = step * u**2
        system = [[A[i, j] * rates[j] * shaft_curvature + float(i == j) for j in range(STAGES)] for i in range(STAGES)]
        sources = step * (A @ u)
        entries = solve_small(system, [shaft + b * sources[i] for i in range(STAGES)])
        return jnp.stack(entries), A @ rates

    def slope(u, entries, off_shaft):
        return entries @ b - u * (off_shaft + entries**2 @ shaft_curvature)

    def residual(u):
        entries, clock = stages(u)
        value = u - u_start - step * (A @ slope(u, entries, first_moment(clock)))
        return value, value

    def iterate(carry):
        u, _, iterations = carry
        jacobian, value = jax.jacfwd(residual, has_aux=True)(u)
        rows = [[jacobian[i, j] for j in range(STAGES)] for i in range(STAGES)]
        correction = jnp.stack(solve_small(rows, [value[i] for i in range(STAGES)]))
        return u - correction, jnp.max(jnp.abs(correction)), iterations + 1

    def unconverged(carry):
        _, correction, iterations = carry
        return (correction > tolerance * size) & (iterations < _MAX_ITERATIONS)

    begin = (jnp.full(STAGES, u_start), jnp.where(rests, 0.0, jnp.inf), 0)
    u, correction, _ = jax.lax.while_loop(unconverged, iterate, begin)
    entries, clock = stages(u)
    entries = jnp.where(rests, shaft[None, :], entries)
    first, second = moments(clock)
    slopes = jnp.where(rests, 0.0, slope(u, entries, first))
    shaft_slopes = u[:, None] * b[None, :] - (u**2)[:, None] * shaft_curvature[None, :] * entries
    shaft_slopes = jnp.where(rests, 0.0, shaft_slopes)
    grad_norm_sq = slopes**2 + jnp.sum(shaft_slopes**2, axis=1) + u**4 * second
    state_end = (jnp.where(on_diagonal, jnp.diag(entries[-1]), U * jnp.exp(-a * clock[-1])), u[-1])
    dissipated = step * (A[-1] @ grad_norm_sq)

    # The rows of stiff weights are divided by 1 + w h |J| as in Hairer and Wanner (IV.8.20). Otherwise the estimate
    # does not vanish for components that decayed long ago.
    rule = ESTIMATE_WEIGHT * step * differences
    shaft_estimate = jnp.abs(rule[0] * start_shaft_slope + rule[1:] @ shaft_slopes)
    estimate = jnp.abs(rule[0] * start_slope + rule[1:] @ slopes)
    shaft_estimate = jnp.maximum(shaft_estimate - ESTIMATE_WEIGHT * step * shaft_rounded, 0.0)
    estimate = jnp.maximum(estimate - ESTIMATE_WEIGHT * step * rounded, 0.0)
    shaft_estimate = shaft_estimate / (1 + DAMPING * step * u_start**2 * shaft_curvature)
    estimate = estimate / (1 + DAMPING * step * start_rate)
    size = jnp.maximum(size, jnp.maximum(jnp.abs(u[-1]), jnp.max(jnp.abs(entries[-1]))))
    error = jnp.maximum(estimate, jnp.max(shaft_estimate)) / size
    return Step(state_end, dissipated, error, correction <= tolerance * size)
