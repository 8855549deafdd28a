"""Many arrowhead flows at once, each reduced to a summary while it is integrated.

Nothing that is kept grows with the number of steps: least values, the times of events, and where the flow is.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from flowsim._core.types import Scalar
from flowsim.flow.arrowhead.newton import STAGES
from flowsim.flow.arrowhead.reduced import NODES, Point, Seen, end_of, reduce, step
from flowsim.flow.schedule import HORIZON_DECADES, Stop
from flowsim.flow.trajectory import Status
from flowsim.losses.arrowhead import CLEARLY, AbstractArrowhead, Arrowhead, State

Nodes = Float[Array, " nodes"]

STEPS_PER_DECADE = 8  # of time, at least
ESCAPED = 0.99  # of the excess at the saddle
CONVERGED = 1e-6  # of the excess at the start
STATUSES = tuple(Status)
_CODE = {status: index for index, status in enumerate(STATUSES)}
_RUNNING = -1
FIRST_STEP = 1e-2  # of the start's timescale
GROWTH = 10 ** (1 / STEPS_PER_DECADE) - 1
_MAX_STEPS = 20_000
_SMALLEST_STEP = 1e-13
SAFETY, LEAST_FACTOR, LARGEST_FACTOR = 0.9, 0.2, 10.0


class Ends(NamedTuple):
    """What ends a flow: t1, or where that is infinite the relative stops, from the time ``earliest`` on.

    Here the excess is relative to the smaller of those at the start and at the saddle, and the gradient norm to the
    smaller of the largest seen and that of `Scales`: from a huge start no flow ends on its way.
    """

    t1: Scalar
    earliest: Scalar
    stop_excess: Scalar
    stop_grad_norm: Scalar
    rtol: Scalar


class Least(NamedTuple):
    """The least value that a quantity had, and when."""

    value: Scalar
    t: Scalar


class Scales(NamedTuple):
    """The natural scales of a loss.

    excess: of the weights zero, the saddle; weights: norm at the balanced minimum, where u U = diag(b_i/a_ii) and
    |U|_F = u; gradient: |b| u there.
    """

    excess: Scalar
    weights: Scalar
    gradient: Scalar


def scales_of(arrowhead: AbstractArrowhead) -> Scales:
    """The natural scales of a loss with an arrowhead."""
    b = arrowhead.drive
    product = b / jnp.diagonal(arrowhead.curvature)
    squared = jnp.linalg.norm(product)
    return Scales(b @ product / 2, jnp.sqrt(2 * squared), jnp.linalg.norm(b) * jnp.sqrt(squared))


class Summary(NamedTuple):
    """What is kept of a flow.

    status: index into `STATUSES`; t, excess, grad_norm_sq, norm_sq: at its end, the last of the weights;
    excess_start, norm_sq_start: at time 0; largest_grad_norm_sq: along the flow; dissipated: int |grad L|^2;
    escape_time: when the excess first is at most `ESCAPED` times that at the saddle; convergence_time: when it first is
    at most `CONVERGED` times that at the start, both infinite where it never is; pl: |grad|^2 / excess; rate:
    log(excess(0)/excess(t)) / t for t > 0; u: u_{-1}; sign: u_{-1} / |U|_F; closest: squared norm of the weights;
    energy_defect: largest |excess(0) - excess - dissipated|; steps, rejected_steps: of the solver.
    """

    status: Int[Array, ""]
    t: Scalar
    excess: Scalar
    grad_norm_sq: Scalar
    norm_sq: Scalar
    excess_start: Scalar
    norm_sq_start: Scalar
    largest_grad_norm_sq: Scalar
    dissipated: Scalar
    escape_time: Scalar
    convergence_time: Scalar
    pl: Least
    rate: Least
    u: Least
    sign: Least
    closest: Least
    energy_defect: Scalar
    steps: Int[Array, ""]
    rejected_steps: Int[Array, ""]


class _Carry(NamedTuple):
    """Where a flow is, the size of its next step, u at the nodes of the last one and the size of that."""

    point: Point
    seen: Seen
    size: Scalar
    last_u: Nodes
    last_size: Scalar
    summary: Summary


class Flows(NamedTuple):
    """Flows with lanes leading: coefficients of their arrowheads, and starts in the eigenbasis."""

    curvature: Float[Array, "lanes d d"]
    drive: Float[Array, "lanes d"]
    U: Float[Array, "lanes d d"]
    u: Float[Array, " lanes"]


@jax.jit
def integrate(flows: Flows, ends: Ends) -> tuple[Summary, Point, Scales]:
    """Integrate a batch of flows in lockstep: their summaries, where they end, and their natural scales."""

    def one(flow: Flows, ends: Ends) -> tuple[Summary, Point, Scales]:
        arrowhead = Arrowhead(flow.curvature, flow.drive, jnp.eye(flow.drive.shape[0]))
        return _integrate(arrowhead, (flow.U, flow.u), ends)

    return jax.vmap(one)(flows, ends)


def _integrate(arrowhead: Arrowhead, start: State, ends: Ends) -> tuple[Summary, Point, Scales]:
    reduced, point, seen = reduce(arrowhead, start)
    scales = scales_of(arrowhead)
    field = arrowhead.field(start)
    _, change = jax.jvp(arrowhead.field, (start,), (field,))
    speed, bend = _norm(field), _norm(change)
    timescale = jnp.where(bend > 0, speed / bend, 1 / speed)
    first = FIRST_STEP * timescale
    end = jnp.minimum(ends.t1, first * 10.0**HORIZON_DECADES)
    summary = _at_start(point, seen, speed, scales)
    carry = _Carry(point, seen, first, jnp.full(STAGES + 1, point.u), first, summary)

    def advance(carry: _Carry) -> _Carry:
        now = carry.summary
        size = jnp.minimum(carry.size, end - now.t)
        outcome = step(reduced, carry.point, carry.seen, guess(carry, size), size, ends.rtol)
        error = jnp.where(outcome.converged & jnp.isfinite(outcome.error), outcome.error / ends.rtol, jnp.inf)
        accepted = error <= 1
        largest_factor = jnp.where(accepted, LARGEST_FACTOR, 1.0)
        following = size * jnp.clip(SAFETY * error ** (-1 / (STAGES + 1)), LEAST_FACTOR, largest_factor)

        point, seen = end_of(outcome)
        t = jnp.where(size == end - now.t, end, now.t + size)
        known = [jnp.append(before, there) for before, there in zip(carry.seen[1:], outcome.seen[1:], strict=True)]
        reaches = functools.partial(crossing, now.t + size * jnp.asarray(NODES), *known)
        dissipated = now.dissipated + outcome.dissipated
        # While little is lost, the dissipated energy has more digits than the excess.
        lost = dissipated / now.excess_start
        decayed = jnp.where(lost < 0.5, -jnp.log1p(-jnp.minimum(lost, 0.5)), jnp.log(now.excess_start / seen.excess))
        quantities = _quantities(point, seen)
        after = now._replace(
            t=t,
            excess=seen.excess,
            grad_norm_sq=seen.grad_norm_sq,
            norm_sq=quantities["closest"],
            dissipated=dissipated,
            largest_grad_norm_sq=jnp.maximum(now.largest_grad_norm_sq, seen.grad_norm_sq),
            escape_time=jnp.minimum(now.escape_time, reaches(ESCAPED * scales.excess)),
            convergence_time=jnp.minimum(now.convergence_time, reaches(CONVERGED * now.excess_start)),
            energy_defect=jnp.maximum(now.energy_defect, jnp.abs(now.excess_start - seen.excess - dissipated)),
            steps=now.steps + 1,
            **{name: _lesser(getattr(now, name), value, t) for name, value in quantities.items()},
            rate=_lesser(now.rate, decayed / t, t),
        )
        after = after._replace(status=_status(after, ends, end, scales))
        stuck = following < _SMALLEST_STEP * jnp.maximum(now.t, timescale)
        status = jnp.where(stuck, _CODE[Status.NEWTON], _RUNNING)
        on = _Carry(
            point, seen, jnp.minimum(following, GROWTH * t), jnp.append(carry.point.u, outcome.stages.u), size, after
        )
        again = carry._replace(
            size=following, summary=now._replace(rejected_steps=now.rejected_steps + 1, status=status)
        )
        return jax.tree.map(functools.partial(jnp.where, accepted), on, again)

    carry = jax.lax.while_loop(lambda carry: carry.summary.status == _RUNNING, advance, carry)
    return carry.summary, carry.point, scales


def _norm(tree: State) -> Scalar:
    U, u = tree
    return jnp.sqrt(jnp.sum(U**2) + u**2)


def _quantities(point: Point, seen: Seen) -> dict[str, Scalar]:
    """What the least value is kept of, beside the rate."""
    ratio = seen.grad_norm_sq / jnp.where(seen.excess > 0, seen.excess, 1.0)
    squares = jnp.sum(point.shaft**2) + seen.moments[0]
    return {
        "pl": jnp.where(seen.excess > 0, ratio, jnp.inf),
        "u": point.u,
        "sign": point.u / jnp.sqrt(squares),
        "closest": point.u**2 + squares,
    }


def _at_start(point: Point, seen: Seen, speed: Scalar, scales: Scales) -> Summary:
    zero, never, none = jnp.zeros(()), jnp.asarray(jnp.inf), jnp.asarray(0)
    status = jnp.where(speed > 0, _RUNNING, _CODE[Status.STATIONARY])
    quantities = _quantities(point, seen)
    return Summary(
        status=jnp.where(jnp.isfinite(speed), status, _CODE[Status.NONFINITE]),
        t=zero,
        excess=seen.excess,
        grad_norm_sq=seen.grad_norm_sq,
        norm_sq=quantities["closest"],
        excess_start=seen.excess,
        norm_sq_start=quantities["closest"],
        largest_grad_norm_sq=seen.grad_norm_sq,
        dissipated=zero,
        escape_time=jnp.where(seen.excess <= ESCAPED * scales.excess, 0.0, jnp.inf),
        convergence_time=never,
        **{name: Least(value, zero) for name, value in quantities.items()},
        rate=Least(never, zero),
        energy_defect=zero,
        steps=none,
        rejected_steps=none,
    )


def _status(now: Summary, ends: Ends, end: Scalar, scales: Scales) -> Int[Array, ""]:
    """How the flow ends here, if it does."""
    late = jnp.isinf(ends.t1) & (now.t >= ends.earliest)
    start = jnp.minimum(now.excess_start, scales.excess)
    below = now.excess <= ends.stop_excess * start
    largest = jnp.minimum(now.largest_grad_norm_sq, scales.gradient**2)
    # Above the minimum a small gradient is a plateau; at the saddle, where a flow may stay, rounding of it is rest.
    small = now.grad_norm_sq <= ends.stop_grad_norm**2 * largest
    at_minimum = now.excess <= jnp.maximum(ends.stop_excess, Stop.excess) * start
    at_saddle = (now.excess >= CLEARLY * scales.excess) & (now.grad_norm_sq <= jnp.finfo(float).eps ** 2 * largest)
    at_rest = (small & at_minimum) | at_saddle
    last = jnp.where(jnp.isinf(ends.t1), _CODE[Status.HORIZON], _CODE[Status.TIME])
    conditions = [late & below, late & at_rest, now.t >= end, now.steps + now.rejected_steps >= _MAX_STEPS]
    codes = [_CODE[Status.EXCESS], _CODE[Status.GRAD_NORM], last, _CODE[Status.STEPS]]
    return jnp.select(conditions, [jnp.asarray(code) for code in codes], _RUNNING)


def _lesser(least: Least, value: Scalar, t: Scalar) -> Least:
    better = value < least.value
    return Least(jnp.where(better, value, least.value), jnp.where(better, t, least.t))


def guess(carry: Any, size: Scalar) -> Float[Array, " stages"]:
    """u at the stages of the next step, by the polynomial through the last one; of log |u| where u keeps its sign."""
    x = 1 + size / carry.last_size * jnp.asarray(NODES[1:])
    gaps = NODES[:, None] - NODES[None, :] + np.eye(STAGES + 1)
    others = jnp.where(jnp.eye(STAGES + 1, dtype=bool)[None], 1.0, (x[:, None] - jnp.asarray(NODES)[None, :])[:, None])
    basis = jnp.prod(others, axis=2) / jnp.asarray(np.prod(gaps, axis=1))[None, :]
    one_sign = jnp.all(carry.last_u * carry.point.u > 0)
    logarithms = basis @ jnp.log(jnp.where(one_sign, jnp.abs(carry.last_u), 1.0))
    return jnp.where(one_sign, jnp.sign(carry.point.u) * jnp.exp(logarithms), basis @ carry.last_u)


def crossing(t: Nodes, excess: Nodes, grad_norm_sq: Nodes, level: Scalar) -> Scalar:
    """When the excess first is at most a level at these times, infinite where it never is.

    Between two times t is a cubic in log excess, whose derivative -excess/|grad|^2 is known at both.
    """
    below = excess <= level
    right = jnp.clip(jnp.argmax(below), 1, t.shape[0] - 1)
    ends = jnp.stack([right - 1, right])
    times, slopes, logarithms = t[ends], -excess[ends] / grad_norm_sq[ends], jnp.log(excess[ends])
    width = logarithms[1] - logarithms[0]
    x = (jnp.log(level) - logarithms[0]) / width
    value = (1 + 2 * x) * (1 - x) ** 2 * times[0] + x**2 * (3 - 2 * x) * times[1]
    value = value + width * x * (1 - x) * ((1 - x) * slopes[0] - x * slopes[1])
    value = jnp.where(jnp.isfinite(value), jnp.clip(value, times[0], times[1]), times[1])
    return jnp.where(below[0], t[0], jnp.where(jnp.any(below), value, jnp.inf))
