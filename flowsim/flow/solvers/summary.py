"""The summary of a flow, kept while it is integrated: least values, the times of events, and where it ends.

Nothing that is kept grows with the number of steps.
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
UNTOLD = -2  # a flow that may rest above its minimum, which its Hessian tells
_MAX_STEPS = 20_000
_KNOWN = 64  # roundings of an excess, from which a ratio to it is known
_EPS = float(jnp.finfo(jnp.float64).eps)


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

    status: index into `STATUSES`, or `UNTOLD`; t, excess, grad_norm_sq, norm_sq: at its end, the last of the weights;
    excess_start, norm_sq_start: at time 0; largest_grad_norm_sq: along the flow; dissipated: int |grad L|^2;
    escape_time: when the excess first is at most `ESCAPED` times that at the saddle; convergence_time: when it first is
    at most `CONVERGED` times that at the start, both infinite where it never is; pl: |grad|^2 / excess; rate:
    log(excess(0)/excess(t)) / t for t > 0; closest: squared norm of the weights; energy_defect: largest
    |excess(0) - excess - dissipated|; steps, rejected_steps: of the solver.
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
    """Keeps the summary of a flow until it meets what ends it.

    subtracted: the minimum, where the excess is the loss less it, so that rounding of the loss is left of it; else 0.
    arrowhead: whether the flow has one, and so rests above its minimum at the saddle alone.
    """

    ends: Ends
    scales: Scales
    timescale: Scalar
    subtracted: Scalar
    arrowhead: bool = eqx.field(static=True)

    @property
    def last(self) -> Scalar:
        """The time at which the flow ends at the latest."""
        horizon = FIRST_STEP * self.timescale * 10.0**HORIZON_DECADES
        return jnp.where(jnp.isinf(self.ends.t1), jnp.maximum(horizon, self.ends.earliest), self.ends.t1)

    def begin(self, view: View) -> Summary:
        zero, never, none = jnp.zeros(()), jnp.asarray(jnp.inf), jnp.asarray(0)
        # The square of a tiny gradient is zero, while the time in which it changes is not.
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
            # Where a flow stays, nothing is lost at the time that was asked for.
            rate=Least(jnp.where(moves | (asked <= 0), jnp.inf, 0.0), asked),
            energy_defect=zero,
            steps=none,
            rejected_steps=none,
        )

    def goes_on(self, kept: Summary) -> Bool[Array, ""]:
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
        """What the least value is kept of, beside the rate."""
        pl = pl_ratio(view.excess, view.grad_norm_sq, self.subtracted)
        return {"pl": pl, "closest": view.norm_sq}

    def _status(self, now: Summary, view: View) -> Int[Array, ""]:
        """How the flow ends here, if it does."""
        ends, scales = self.ends, self.scales
        late = jnp.isinf(ends.t1) & (now.t >= ends.earliest)
        start = jnp.minimum(now.excess_start, scales.excess)
        below = now.excess <= ends.stop_excess * start
        largest = jnp.minimum(now.largest_grad_norm_sq, scales.gradient**2)
        # Above the minimum a small gradient is a plateau; at the saddle, where a flow may stay, rounding of it is rest.
        threshold = ends.stop_grad_norm**2 * largest
        small = (threshold > 0) & jnp.isfinite(threshold) & (now.grad_norm_sq <= threshold)
        rounding = rounding_of(now.excess, self.subtracted)
        least = jnp.maximum(jnp.maximum(ends.stop_excess, Stop.excess) * start, rounding)
        unknown = jnp.isnan(now.excess)
        at_rest = small & ((unknown & ~view.leaves) | (now.excess <= least))
        if self.arrowhead:
            at_rest |= (now.excess >= CLEARLY * scales.excess) & (now.grad_norm_sq <= _EPS**2 * largest)
        untold = view.still & (now.grad_norm_sq <= (RESTING * _EPS) ** 2 * largest)
        untold |= small & unknown & view.leaves
        last = jnp.where(jnp.isinf(ends.t1), _CODE[Status.HORIZON], _CODE[Status.TIME])
        steps = now.steps + now.rejected_steps >= _MAX_STEPS
        # Where the minimum is not known, the excess is NaN from the start on.
        lost = jnp.isnan(now.excess) & ~jnp.isnan(now.excess_start)
        conditions = [lost, late & below, late & at_rest, late & untold, now.t >= self.last, steps]
        codes = [
            _CODE[Status.NONFINITE],
            _CODE[Status.EXCESS],
            _CODE[Status.GRAD_NORM],
            UNTOLD,
            last,
            _CODE[Status.STEPS],
        ]
        return jnp.select(conditions, [jnp.asarray(code) for code in codes], _RUNNING)


def rounding_of(excess: Array, subtracted: Scalar) -> Array:
    """How far off an excess may be that is the loss less a minimum; an excess that is not has no rounding to speak of.

    **Arguments:** subtracted: the minimum, or 0.
    """
    return jnp.where(subtracted == 0, 0.0, SUBTRACTED * _EPS * jnp.abs(subtracted + excess))


def is_known(excess: Array, subtracted: Scalar) -> Bool[Array, "..."]:
    """Whether the excess is more than rounding.

    **Arguments:** subtracted: as in `rounding_of`.
    """
    return excess > _KNOWN * rounding_of(excess, subtracted)


def pl_ratio(excess: Array, grad_norm_sq: Array, subtracted: Scalar) -> Array:
    """|grad L|^2 / excess where the excess is more than rounding, else infinite.

    **Arguments:** subtracted: as in `rounding_of`.
    """
    known = is_known(excess, subtracted)
    return jnp.where(known, grad_norm_sq / jnp.where(known, excess, 1.0), jnp.inf)


def _lesser(least: Least, value: Scalar, t: Scalar) -> Least:
    better = value < least.value
    return Least(jnp.where(better, value, least.value), jnp.where(better, t, least.t))


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
