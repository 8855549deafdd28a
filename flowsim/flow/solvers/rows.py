"""A flow as one pure function of its start that returns the ends of its steps, for vmap and jvp.

Searches evaluate many problems by it. Verdicts are given on `gradient_flow` only.
"""

import functools
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from flowsim._core.types import Scalar
from flowsim.flow.recording import uncertified
from flowsim.flow.solvers.arrowhead.kernel import ReducedKernel, models_of
from flowsim.flow.solvers.dense.kernel import DenseKernel
from flowsim.flow.solvers.lockstep import AbstractObserver, Row, View, follow
from flowsim.flow.solvers.summary import scales_of
from flowsim.flow.systems import AbstractSystem, ArrowheadSystem
from flowsim.flow.trajectory import Trajectory
from flowsim.losses.arrowhead import Arrowhead

_MOST = 255  # steps
_MOST_REJECTED = 256
_STOP = 1e-12  # of the excess


class _Seen(NamedTuple):
    """The excess so far, and the numbers of accepted and rejected steps."""

    excess: Scalar
    count: Int[Array, ""]
    rejected: Int[Array, ""]


class _UntilLeast(AbstractObserver):
    """Ends a flow when its excess is small enough."""

    least: Scalar

    def begin(self, view: View) -> _Seen:
        return _Seen(view.excess, jnp.asarray(0), jnp.asarray(0))

    def continues(self, kept: _Seen) -> Bool[Array, ""]:
        moving = (kept.excess > self.least) & jnp.isfinite(kept.excess)
        return moving & (kept.count < _MOST) & (kept.rejected < _MOST_REJECTED)

    def accept(self, kept: _Seen, view: View) -> _Seen:
        return kept._replace(excess=view.excess, count=kept.count + 1)

    def reject(self, kept: _Seen, stuck: Bool[Array, ""]) -> _Seen:
        return kept._replace(rejected=jnp.where(stuck, _MOST_REJECTED, kept.rejected + 1))


def traced_flow(
    system: AbstractSystem, start: PyTree, minimum: Scalar, rtol: float
) -> tuple[Trajectory, Bool[Array, ""]]:
    """The flow of a system until its excess has decreased by a factor 1e-12, and whether it got there. It never does if
    no minimum is known.

    The factor is relative to the excess at the start or, for an arrowhead, at its saddle if that is smaller. The end is
    repeated up to a fixed length, so that all flows have the same shapes. Derivatives are those of Newton's iterations:
    exact to rounding for an arrowhead, else to about a percent.

    **Arguments:**

    - system: the flow.
    - start: the model at t = 0.
    - minimum: the least loss.
    - rtol: the relative error of a step.
    """
    state = system.encode(start)
    if isinstance(system, ArrowheadSystem) and isinstance(system.arrowhead, Arrowhead):
        kernel = ReducedKernel.of(system.arrowhead, state, jnp.asarray(rtol))
        least = _STOP * jnp.minimum(kernel.seen.excess, scales_of(system.arrowhead).excess)
        models_at = functools.partial(models_of, system.arrowhead, state)
    else:
        kernel = DenseKernel.of(system, state, jnp.asarray(rtol))
        least = _STOP * system.excess(state)
        models_at = eqx.filter_vmap(system.decode)
    _, view, record = follow(kernel, _UntilLeast(least), jnp.asarray(jnp.inf))
    return trajectory_of(record.rows, models_at(record.rows.point), minimum), (view.excess <= least) & record.whole


def trajectory_of(rows: Row, models: PyTree, minimum: Scalar) -> Trajectory:
    """The trajectory of a recorded flow with these models."""
    return uncertified(rows.t, models, minimum + rows.excess, rows.excess, rows.grad_norm_sq, rows.dissipated)
