"""A flow with an arrowhead as one pure function of its start: batched by vmap, differentiated by jvp.

It keeps the ends of its steps, up to a fixed number. A search looks at many problems through it; verdicts are given on
`gradient_flow` alone.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from flowsim._core.types import Scalar
from flowsim.flow.arrowhead.batch import FIRST_STEP, GROWTH, LARGEST_FACTOR, LEAST_FACTOR, SAFETY, guess, scales_of
from flowsim.flow.arrowhead.newton import STAGES
from flowsim.flow.arrowhead.reduced import Point, Seen, end_of, reduce, step
from flowsim.flow.trajectory import Trajectory, uncertified
from flowsim.losses.arrowhead import Arrowhead, State

_LENGTH = 256
_REJECTED = 256
_STOP = 1e-12  # of the excess


class _Row(NamedTuple):
    """What is kept of the end of a step."""

    t: Scalar
    point: Point
    excess: Scalar
    grad_norm_sq: Scalar
    dissipated: Scalar


class _Carry(NamedTuple):
    """Where a flow is, the size of its next step, u at the nodes of the last one and its size, and what is kept."""

    row: _Row
    seen: Seen
    size: Scalar
    last_u: Float[Array, " nodes"]
    last_size: Scalar
    rows: _Row
    count: Int[Array, ""]
    rejected: Int[Array, ""]

    @property
    def point(self) -> Point:
        """Where the flow is."""
        return self.row.point


def traced_flow(arrowhead: Arrowhead, start: State, minimum: Scalar, rtol: float) -> tuple[Trajectory, Bool[Array, ""]]:
    """The flow until its excess is 1e-12 of that at the start or the saddle, the smaller, and whether it got there.

    The end is repeated up to a fixed length, so that every flow has the same shapes.
    """
    reduced, point, seen = reduce(arrowhead, start)
    field = arrowhead.field(start)
    _, change = jax.jvp(arrowhead.field, (start,), (field,))
    speed, bend = _norm(field), _norm(change)
    first = FIRST_STEP * jnp.where(bend > 0, speed / jnp.where(bend > 0, bend, 1.0), 1 / speed)
    least_excess = _STOP * jnp.minimum(seen.excess, scales_of(arrowhead).excess)
    zero = jnp.zeros(())
    row = _Row(zero, point, seen.excess, seen.grad_norm_sq, zero)
    rows = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (_LENGTH, *leaf.shape)), row)
    count = jnp.asarray(0)
    begin = _Carry(row, seen, first, jnp.full(STAGES + 1, point.u), first, rows, count, count)

    def going(carry: _Carry) -> Bool[Array, ""]:
        moving = (carry.row.excess > least_excess) & jnp.isfinite(carry.row.excess)
        return moving & (carry.count < _LENGTH - 1) & (carry.rejected < _REJECTED)

    def advance(carry: _Carry) -> _Carry:
        size = carry.size
        outcome = step(reduced, carry.point, carry.seen, guess(carry, size), size, jnp.asarray(rtol))
        error = jnp.where(outcome.converged & jnp.isfinite(outcome.error), outcome.error / rtol, jnp.inf)
        accepted = error <= 1
        largest_factor = jnp.where(accepted, LARGEST_FACTOR, 1.0)
        following = size * jnp.clip(SAFETY * error ** (-1 / (STAGES + 1)), LEAST_FACTOR, largest_factor)
        point, seen = end_of(outcome)
        t = carry.row.t + size
        row = _Row(t, point, seen.excess, seen.grad_norm_sq, carry.row.dissipated + outcome.dissipated)
        # Every row from here on, so that the end is repeated.
        later = jnp.arange(_LENGTH) > carry.count
        rows = jax.tree.map(
            lambda kept, new: jnp.where(later.reshape(-1, *[1] * new.ndim), new[None], kept), carry.rows, row
        )
        last_u = jnp.append(carry.point.u, outcome.stages.u)
        size_next = jnp.minimum(following, GROWTH * t)
        on = _Carry(row, seen, size_next, last_u, size, rows, carry.count + 1, carry.rejected)
        again = carry._replace(size=following, rejected=carry.rejected + 1)
        return jax.tree.map(lambda a, b: jnp.where(accepted, a, b), on, again)

    end = jax.lax.while_loop(going, advance, begin)
    U0, u0 = start
    off = U0 * (1 - jnp.eye(U0.shape[0]))

    def model(point: Point):
        return arrowhead.model((off * jnp.exp(-arrowhead.curvature * point.clock) + jnp.diag(point.shaft), point.u))

    rows = end.rows
    models = jax.vmap(model)(rows.point)
    run = uncertified(rows.t, models, minimum + rows.excess, rows.excess, rows.grad_norm_sq, rows.dissipated)
    return run, end.row.excess <= least_excess


def _norm(tree: State) -> Scalar:
    U, u = tree
    return jnp.sqrt(jnp.sum(U**2) + u**2)
