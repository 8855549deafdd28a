"""The kernel that makes the steps of flows in lockstep, for arrowhead flows in their reduction."""

import jax
import jax.numpy as jnp

from flowsim._core.types import Scalar
from flowsim.flow.solvers.arrowhead.reduced import Kept, before_first_step, end_of, reduce, step
from flowsim.flow.solvers.collocation import NODES, STAGES
from flowsim.flow.solvers.lockstep import AbstractKernel, View
from flowsim.flow.systems import ArrowheadSystem, pace
from flowsim.losses.arrowhead import Arrowhead, State
from flowsim.losses.reduction import Point, Reduction, Seen

STEPS_PER_DECADE = 8  # the least number in a decade of time


class ReducedKernel(AbstractKernel):
    """Makes the steps of an arrowhead flow in its reduction. The ``point`` of a `View` is the diagonal of U, u and
    the clock.

    **Fields:** reduction: the coefficients of the flow; start, seen: the point at t = 0, and the moments, excess
    and |grad L|^2 there; rtol: the relative error of a step; timescale, growth: as in `AbstractKernel`.
    """

    reduction: Reduction
    start: Point
    seen: Seen
    rtol: Scalar
    timescale: Scalar
    growth: float = 10 ** (1 / STEPS_PER_DECADE) - 1

    @staticmethod
    def of(arrowhead: Arrowhead, start: State, rtol: Scalar) -> "ReducedKernel":
        """The kernel for the flow of an arrowhead from the start (U, u)."""
        _, timescale = pace(ArrowheadSystem(arrowhead, jnp.zeros(())), start)
        reduction, point = reduce(arrowhead, start)
        seen = reduction.seen(point)
        return ReducedKernel(reduction=reduction, start=point, seen=seen, rtol=rtol, timescale=timescale)

    def begin(self) -> tuple[Kept, View]:
        kept = before_first_step(self.start, self.seen, self.timescale)
        zero = jnp.zeros(())
        nodes = jnp.zeros(STAGES + 1)
        return kept, _view(self.start, self.seen, zero, (nodes, nodes, nodes))

    def step(self, kept: Kept, view: View, length: Scalar) -> tuple[Kept, View, Scalar]:
        outcome = step(self.reduction, view.point, kept.seen, kept.guess(view.point, length), length, self.rtol)
        error = jnp.where(outcome.converged, outcome.error / self.rtol, jnp.inf)
        point, seen = end_of(outcome)
        known = [jnp.append(before, there) for before, there in zip(kept.seen[1:], outcome.seen[1:], strict=True)]
        nodes = (view.t + length * jnp.asarray(NODES), *known)
        then = Kept(seen, jnp.append(view.point.u, outcome.stages.u), length)
        return then, _view(point, seen, view.dissipated + outcome.dissipated, nodes), error

    def anew(self, kept: Kept, t: Scalar) -> Kept:
        return kept


def models_of(arrowhead: Arrowhead, start: State, points: Point):
    """The models at points of a reduced arrowhead flow, with time on the first axis.

    **Arguments:**

    - arrowhead: the structure of the flow.
    - start: U and u at t = 0.
    - points: the diagonal of U (T, d), u (T,) and the clock (T,).
    """
    U0, _ = start
    off = U0 * (1 - jnp.eye(U0.shape[0]))

    def model(point: Point):
        return arrowhead.model((off * jnp.exp(-arrowhead.curvature * point.clock) + jnp.diag(point.shaft), point.u))

    return jax.vmap(model)(points)


def _view(point: Point, seen: Seen, dissipated: Scalar, nodes) -> View:
    return View(
        t=jnp.zeros(()),
        point=point,
        excess=seen.excess,
        grad_norm_sq=seen.grad_norm_sq,
        norm_sq=point.u**2 + jnp.sum(point.shaft**2) + seen.moments[0],
        dissipated=dissipated,
        still=jnp.asarray(False),
        leaves=jnp.asarray(False),
        nodes=nodes,
    )
