"""The steps of a reduced arrowhead flow, for flows in lockstep."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim._core.types import Scalar
from flowsim.flow.solvers.arrowhead.reduced import Point, Reduced, Seen, end_of, reduce, step
from flowsim.flow.solvers.collocation import NODES, STAGES, after
from flowsim.flow.solvers.lockstep import AbstractKernel, View
from flowsim.flow.systems import ArrowheadSystem, pace
from flowsim.losses.arrowhead import Arrowhead, State

STEPS_PER_DECADE = 8  # of time, at least


class _Kept(NamedTuple):
    """What a step leaves: the moments at its end, u at 0 and its nodes, and its length."""

    seen: Seen
    last_u: Float[Array, " nodes"]
    last_length: Scalar


class ReducedKernel(AbstractKernel):
    """The steps of an arrowhead flow by its reduction; a point is the diagonal of U, u and the clock."""

    reduced: Reduced
    start: Point
    seen: Seen
    rtol: Scalar
    timescale: Scalar
    growth: float = 10 ** (1 / STEPS_PER_DECADE) - 1

    @staticmethod
    def of(arrowhead: Arrowhead, start: State, rtol: Scalar) -> "ReducedKernel":
        """The kernel of the flow of an arrowhead from a start."""
        _, timescale = pace(ArrowheadSystem(arrowhead, jnp.zeros(())), start)
        reduced, point, seen = reduce(arrowhead, start)
        return ReducedKernel(reduced=reduced, start=point, seen=seen, rtol=rtol, timescale=timescale)

    def begin(self) -> tuple[_Kept, View]:
        kept = _Kept(self.seen, jnp.full(STAGES + 1, self.start.u), self.timescale)
        zero = jnp.zeros(())
        nodes = jnp.zeros(STAGES + 1)
        return kept, _view(self.start, self.seen, zero, (nodes, nodes, nodes))

    def step(self, kept: _Kept, view: View, length: Scalar) -> tuple[_Kept, View, Scalar]:
        outcome = step(self.reduced, view.point, kept.seen, _guess(kept, view.point, length), length, self.rtol)
        error = jnp.where(outcome.converged, outcome.error / self.rtol, jnp.inf)
        point, seen = end_of(outcome)
        known = [jnp.append(before, there) for before, there in zip(kept.seen[1:], outcome.seen[1:], strict=True)]
        nodes = (view.t + length * jnp.asarray(NODES), *known)
        then = _Kept(seen, jnp.append(view.point.u, outcome.stages.u), length)
        return then, _view(point, seen, view.dissipated + outcome.dissipated, nodes), error


def models_of(arrowhead: Arrowhead, start: State, points: Point):
    """The models at points of the flow from a start, with time leading."""
    U0, _ = start
    off = U0 * (1 - jnp.eye(U0.shape[0]))

    def model(point: Point):
        return arrowhead.model((off * jnp.exp(-arrowhead.curvature * point.clock) + jnp.diag(point.shaft), point.u))

    return jax.vmap(model)(points)


def _view(point: Point, seen: Seen, dissipated: Scalar, nodes) -> View:
    squares = jnp.sum(point.shaft**2) + seen.moments[0]
    return View(
        t=jnp.zeros(()),
        point=point,
        excess=seen.excess,
        grad_norm_sq=seen.grad_norm_sq,
        norm_sq=point.u**2 + squares,
        u=point.u,
        sign=point.u / jnp.sqrt(squares),
        dissipated=dissipated,
        still=jnp.asarray(False),
        nodes=nodes,
    )


def _guess(kept: _Kept, point: Point, length: Scalar) -> Float[Array, " stages"]:
    """u at the stages of the next step, by the polynomial through the last one; of log |u| where u keeps its sign."""
    basis = after(length, kept.last_length)
    one_sign = jnp.all(kept.last_u * point.u > 0)
    logarithms = basis @ jnp.log(jnp.where(one_sign, jnp.abs(kept.last_u), 1.0))
    return jnp.where(one_sign, jnp.sign(point.u) * jnp.exp(logarithms), basis @ kept.last_u)
