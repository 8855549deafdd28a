"""The summary of a flow, collected during integration: least values, times of events, and how the flow ends.

The size of a summary does not grow with the number of steps.
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from flowsim._core.types import Scalar
from flowsim.flow.schedule import HORIZON_DECADES, RESTING, SUBTRACTED, Stop
from flowsim.flow.solvers.lockstep import FIRST_STEP, AbstractObserver, Nodes, View
from flowsim.flow.trajectory import Status
from flowsim.losses.arrowhead import CLEARLY, AbstractArrowhead

ESCAPED = 0.99  # of the excess at the saddle
CONVERGED = 1e-6  # of the excess at the start
STATUSES = tuple(Status)
_CODE = {status: index for index, status in enumerate(STATUSES)}
_RUNNING = -1
UNDECIDED = -2  # a flow that may rest above its minimum; its Hessian decides
_MAX_STEPS = 20_000
_KNOWN = 64  # units of rounding: a larger excess is known well enough for a ratio
_EPS = float(jnp.finfo(jnp.float64).eps)


class Ends(NamedTuple):
    """The conditions that end a flow: the time t1 or, if t1 is infinite, relative stops from the time ``earliest``
    on.

    **Fields:**

    - t1, earliest: the time of the end, and the time before which no stop ends the flow.
    - stop_excess: the largest excess loss at a stop, relative to the excess loss at the start or at the saddle,
      whichever is less.
    - stop_grad_norm: the largest |grad L| at a stop, relative to the largest |grad L| so far or to
      ``Scales.gradient``, whichever is less. Without ``Scales.gradient`` a flow from a huge start would end too
      early.
    - rtol: the relative error of a step.
    """

    t1: Scalar
    earliest: Scalar
    stop_excess: Scalar
    stop_grad_norm: Scalar
    rtol: Scalar


class Least(NamedTuple):
    """The least value of a quantity along a flow, and the time at which it is attained."""

    value: Scalar
    t: Scalar


class Scales(NamedTuple):
    """The natural scales of a loss with an arrowhead. Let a and b be as in `AbstractArrowhead`. At the balanced
    minimum u U = diag(b_i/a_ii) and |U|_F = u.

    **Fields:**

    - excess: the excess loss at zero weights, the saddle.
    - weights: the norm of the weights at the balanced minimum.
    - gradient: |b| u at the balanced minimum, the norm of each of the two terms of dU/dt, which cancel there.
    """

    excess: Scalar
    weights: Scalar
    gradient: Scalar


def scales_of(arrowhead: AbstractArrowhead) -> Scales:
    """The `Scales` of the loss with an arrowhead."""
    b = arrowhead.drive
    product = b / jnp.diagonal(arrowhead.curvature)
    squared = jnp.linalg.norm(product)
    return Scales(b @ product / 2, jnp.sqrt(2 * squared), jnp.linalg.norm(b) * jnp.sqrt(squared))


class Summary(NamedTuple):
    """The summary of a flow.

    **Fields:**

    - status: an index into `STATUSES`, or `UNDECIDED`.
    - t, excess, grad_norm_sq, norm_sq: the time, excess loss, |grad L|^2 and squared norm of the weights at the
      end.
    - excess_start, norm_sq_start: the excess loss and the squared norm of the weights at t = 0.
    - largest_grad_norm_sq: the largest |grad L|^2 along the flow.
    - dissipated: int |grad L|^2 dt over the flow.
    - escape_time: the first time at which the excess is at most `ESCAPED` times the excess at the saddle, or
      infinite.
    - convergence_time: the first time at which the excess is at most `CONVERGED` times ``excess_start``, or
      infinite.
    - pl: the least |grad L|^2 / excess.
    - rate: the least log(excess(0)/excess(t)) / t for t > 0.
    - closest: the least squared norm of the weights.
    - energy_defect: the largest |excess(0) - excess - dissipated|.
    - steps, rejected_steps: the numbers of accepted and rejected steps.
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
    closest: Least
    energy_defect: Scalar
    steps: Int[Array, ""]
    rejected_steps: Int[Array, ""]


class Summarizing(AbstractObserver):
    """Collects the summary of a flow, and ends the flow.

    **Fields:**

    - ends: the conditions that end the flow.
    - scales: the natural scales of the loss.
    - timescale: the time in which the gradient changes at the start.
    - subtracted: the minimum, if the excess is computed as the loss minus the minimum and so has the rounding error
      of the loss; else 0.
    - arrowhead: whether the flow has an arrowhead. Then it can only rest at its minimum or at the saddle.
    """

    ends: Ends
    scales: Scales
    timescale: Scalar
    subtracted: Scalar
    arrowhead: bool = eqx.field(static=True)

    @property
    def last(self) -> Scalar:
        """The time at which the flow ends if no stop ends it earlier."""
        horizon = FIRST_STEP * self.timescale * 10.0**HORIZON_DECADES
        return jnp.where(jnp.isinf(self.ends.t1), jnp.maximum(horizon, self.ends.earliest), self.ends.t1)

    def begin(self, view: View) -> Summary:
        zero, never, none = jnp.zeros(()), jnp.asarray(jnp.inf), jnp.asarray(0)
        # The square of a tiny gradient may underflow, but its timescale does not.
        moves = ~jnp.isinf(self.timescale)
        status = jnp.where(moves, _RUNNING, _CODE[Status.STATIONARY])
        asked = jnp.where(jnp.isinf(self.ends.t1), self.ends.earliest, self.ends.t1)
        quantities = self._quantities(view)
        return Summary(
            status=jnp.where(jnp.isfinite(view.grad_norm_sq), status, _CODE[Status.NONFINITE]),
            t=jnp.where(moves, zero, asked),
            excess=view.excess,
            grad_norm_sq=view.grad_norm_sq,
            norm_sq=view.norm_sq,
            excess_start=view.excess,
            norm_sq_start=view.norm_sq,
            largest_grad_norm_sq=view.grad_norm_sq,
            dissipated=zero,
            escape_time=jnp.where(view.excess <= ESCAPED * self.scales.excess, 0.0, jnp.inf),
            convergence_time=jnp.where(view.excess <= 0, zero, never),
            **{name: Least(value, zero) for name, value in quantities.items()},
            # A flow at rest has the rate zero at the time that was asked for.
            rate=Least(jnp.where(moves | (asked <= 0), jnp.inf, 0.0), asked),
            energy_defect=zero,
            steps=none,
            rejected_steps=none,
        )

    def continues(self, kept: Summary) -> Bool[Array, ""]:
        return kept.status == _RUNNING

    def accept(self, kept: Summary, view: View) -> Summary:
        # While little is lost, the dissipated energy has more digits than the excess.
        lost = view.dissipated / kept.excess_start
        decayed = jnp.where(lost < 0.5, -jnp.log1p(-jnp.minimum(lost, 0.5)), jnp.log(kept.excess_start / view.excess))
        defect = jnp.abs(kept.excess_start - view.excess - view.dissipated)
        quantities = {"rate": decayed / view.t, **self._quantities(view)}
        after = kept._replace(
            t=view.t,
            excess=view.excess,
            grad_norm_sq=view.grad_norm_sq,
            norm_sq=view.norm_sq,
            dissipated=view.dissipated,
            largest_grad_norm_sq=jnp.maximum(kept.largest_grad_norm_sq, view.grad_norm_sq),
            escape_time=jnp.minimum(kept.escape_time, crossing(*view.nodes, ESCAPED * self.scales.excess)),
            convergence_time=jnp.minimum(kept.convergence_time, crossing(*view.nodes, CONVERGED * kept.excess_start)),
            energy_defect=jnp.maximum(kept.energy_defect, defect),
            steps=kept.steps + 1,
            **{name: _lesser(getattr(kept, name), value, view.t) for name, value in quantities.items()},
        )
        return after._replace(status=self._status(after, view))

    def reject(self, kept: Summary, stuck: Bool[Array, ""]) -> Summary:
        status = jnp.where(stuck, _CODE[Status.NEWTON], _RUNNING)
        return kept._replace(rejected_steps=kept.rejected_steps + 1, status=status)

    def _quantities(self, view: View) -> dict[str, Scalar]:
        """The quantities ``pl`` and ``closest`` at a view, for their least values."""
        pl = pl_ratio(view.excess, view.grad_norm_sq, self.subtracted)
        return {"pl": pl, "closest": view.norm_sq}

    def _status(self, now: Summary, view: View) -> Int[Array, ""]:
        """The code of the status if the flow ends at a view, else `_RUNNING`. ``now`` is the summary up to the
        view.
        """
        ends, scales = self.ends, self.scales
        late = jnp.isinf(ends.t1) & (now.t >= ends.earliest)
        start = jnp.minimum(now.excess_start, scales.excess)
        below = now.excess <= ends.stop_excess * start
        largest = jnp.minimum(now.largest_grad_norm_sq, scales.gradient**2)
        # A small gradient above the minimum belongs to a plateau. At the saddle, where a flow may stay, a gradient that
        # is rounding is rest.
        threshold = ends.stop_grad_norm**2 * largest
        small = (threshold > 0) & jnp.isfinite(threshold) & (now.grad_norm_sq <= threshold)
        rounding = rounding_of(now.excess, self.subtracted)
        least = jnp.maximum(jnp.maximum(ends.stop_excess, Stop.excess) * start, rounding)
        unknown = jnp.isnan(now.excess)
        at_rest = small & ((unknown & ~view.leaves) | (now.excess <= least))
        if self.arrowhead:
            at_rest |= (now.excess >= CLEARLY * scales.excess) & (now.grad_norm_sq <= _EPS**2 * largest)
        undecided = view.still & (now.grad_norm_sq <= (RESTING * _EPS) ** 2 * largest)
        undecided |= small & unknown & view.leaves
        last = jnp.where(jnp.isinf(ends.t1), _CODE[Status.HORIZON], _CODE[Status.TIME])
        steps = now.steps + now.rejected_steps >= _MAX_STEPS
        # If the minimum is unknown, the excess is NaN from the start.
        lost = jnp.isnan(now.excess) & ~jnp.isnan(now.excess_start)
        conditions = [lost, late & below, late & at_rest, late & undecided, now.t >= self.last, steps]
        codes = [
            _CODE[Status.NONFINITE],
            _CODE[Status.EXCESS],
            _CODE[Status.GRAD_NORM],
            UNDECIDED,
            last,
            _CODE[Status.STEPS],
        ]
        return jnp.select(conditions, [jnp.asarray(code) for code in codes], _RUNNING)


def rounding_of(excess: Array, subtracted: Scalar) -> Array:
    """The rounding error of an excess that is computed as the loss minus the minimum; zero for any other excess.

    **Arguments:** excess: the excess loss; subtracted: the minimum if it was subtracted from the loss, else 0.
    """
    return jnp.where(subtracted == 0, 0.0, SUBTRACTED * _EPS * jnp.abs(subtracted + excess))


def is_known(excess: Array, subtracted: Scalar) -> Bool[Array, "..."]:
    """Whether the excess is much larger than its rounding error.

    **Arguments:** as for `rounding_of`.
    """
    return excess > _KNOWN * rounding_of(excess, subtracted)


def pl_ratio(excess: Array, grad_norm_sq: Array, subtracted: Scalar) -> Array:
    """The ratio |grad L|^2 / excess where the excess is much larger than its rounding error, else infinite.

    **Arguments:**

    - excess: the excess loss.
    - grad_norm_sq: |grad L|^2.
    - subtracted: as in `rounding_of`.
    """
    known = is_known(excess, subtracted)
    return jnp.where(known, grad_norm_sq / jnp.where(known, excess, 1.0), jnp.inf)


def _lesser(least: Least, value: Scalar, t: Scalar) -> Least:
    better = value < least.value
    return Least(jnp.where(better, value, least.value), jnp.where(better, t, least.t))


def crossing(t: Nodes, excess: Nodes, grad_norm_sq: Nodes, level: Scalar) -> Scalar:
    """The first time at which the excess loss is at most ``level``; infinite if it never is.

    Between two nodes, t is interpolated by a cubic in log excess. At both nodes its derivative is known: it is
    -excess/|grad L|^2.

    **Arguments:**

    - t, excess, grad_norm_sq: (nodes,) times, and the excess loss and |grad L|^2 there.
    - level: the excess loss to be reached.
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
