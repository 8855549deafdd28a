"""A flow as a pure function of its start, for vmap and jvp. The function returns the flow at the ends of steps.

Searches use this function to evaluate many problems. Claims are judged only on trajectories of `gradient_flow`.
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
    """The excess at the last accepted step, and the numbers of accepted and rejected steps."""

    excess: Scalar
    count: Int[Array, ""]
    rejected: Int[Array, ""]


class _UntilLeast(AbstractObserver):
    """Ends a flow when its excess is at most ``least``, or after too many steps."""

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
    """Integrate the flow of a system until its excess loss has decreased by the factor 1e-12.

    The factor is relative to the excess at the start or, for an arrowhead, to the excess at its saddle if that is
    smaller. JAX differentiates through Newton's iterations. The derivatives are exact up to rounding for an
    arrowhead, otherwise to about one percent.

    **Arguments:**

    - system: the flow.
    - start: the model at t = 0.
    - minimum: the least loss, NaN if unknown.
    - rtol: the relative error of a step.

    **Returns:** the trajectory, with its end repeated up to a fixed length, so that all flows have the same shapes;
    and whether the excess became small enough within the largest number of steps, which is false if the minimum is
    unknown.
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
    """The trajectory of a recorded flow.

    **Arguments:** rows: its rows; models: its models, with time on the first axis; minimum: the least loss.
    """
    return uncertified(rows.t, models, minimum + rows.excess, rows.excess, rows.grad_norm_sq, rows.dissipated)
