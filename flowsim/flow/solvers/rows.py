"""A flow as one pure function of its start, that keeps the ends of its steps: batched by vmap, differentiated by jvp.

A search looks at many problems through it; verdicts are given on `gradient_flow` alone.
"""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from flowsim._core.types import Scalar
from flowsim.flow.solvers.arrowhead.kernel import ReducedKernel, models_of
from flowsim.flow.solvers.dense.kernel import DenseKernel
from flowsim.flow.solvers.lockstep import AbstractObserver, View, follow
from flowsim.flow.solvers.summary import scales_of
from flowsim.flow.systems import AbstractSystem, ArrowheadSystem
from flowsim.flow.trajectory import Trajectory, uncertified
from flowsim.losses.arrowhead import Arrowhead

_LENGTH = 256
_REJECTED = 256
_STOP = 1e-12  # of the excess


class _Row(NamedTuple):
    """What is kept of the end of a step."""

    t: Scalar
    point: PyTree
    excess: Scalar
    grad_norm_sq: Scalar
    dissipated: Scalar


class _Rows(NamedTuple):
    """The ends of the steps so far, the last one repeated, and the numbers of accepted and rejected steps."""

    rows: _Row
    count: Int[Array, ""]
    rejected: Int[Array, ""]


class _Keeping(AbstractObserver):
    """Keeps the ends of steps until the excess is least."""

    least: Scalar

    def begin(self, view: View) -> _Rows:
        rows = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (_LENGTH, *leaf.shape)), _row(view))
        return _Rows(rows, jnp.asarray(0), jnp.asarray(0))

    def goes_on(self, kept: _Rows) -> Bool[Array, ""]:
        excess = kept.rows.excess[-1]
        moving = (excess > self.least) & jnp.isfinite(excess)
        return moving & (kept.count < _LENGTH - 1) & (kept.rejected < _REJECTED)

    def accept(self, kept: _Rows, view: View) -> _Rows:
        # Every row from here on, so that the end is repeated.
        later = jnp.arange(_LENGTH) > kept.count
        rows = jax.tree.map(
            lambda old, new: jnp.where(later.reshape(-1, *[1] * new.ndim), new[None], old), kept.rows, _row(view)
        )
        return kept._replace(rows=rows, count=kept.count + 1)

    def reject(self, kept: _Rows, stuck: Bool[Array, ""]) -> _Rows:
        return kept._replace(rejected=jnp.where(stuck, _REJECTED, kept.rejected + 1))


def traced_flow(
    system: AbstractSystem, start: PyTree, minimum: Scalar, rtol: float
) -> tuple[Trajectory, Bool[Array, ""]]:
    """The flow of a system from a model until its excess is 1e-12 of that at the start or the saddle of an arrowhead,
    the smaller, and whether it got there; it does not where no minimum is known.

    The end is repeated up to a fixed length, so that every flow has the same shapes. Derivatives are those of the
    iterations of Newton's method: exact for an arrowhead to rounding, else to about a percent.
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
    kept, view = follow(kernel, _Keeping(least), jnp.asarray(jnp.inf))
    rows = kept.rows
    run = uncertified(
        rows.t, models_at(rows.point), minimum + rows.excess, rows.excess, rows.grad_norm_sq, rows.dissipated
    )
    return run, view.excess <= least


def _row(view: View) -> _Row:
    return _Row(view.t, view.point, view.excess, view.grad_norm_sq, view.dissipated)
