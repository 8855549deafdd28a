"""A flow as one pure function of what it begins with: many go in lockstep by vmap, and none asks the host when to end.

A kernel makes the steps, an observer keeps what is wanted of them and says when the flow ends.
"""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from flowsim._core.types import Scalar
from flowsim.flow.solvers.collocation import STAGES
from flowsim.flow.solvers.step_size import SMALLEST, Past, begin, next_length

FIRST_STEP = 1e-2  # of the start's timescale

Nodes = Float[Array, " nodes"]


class View(NamedTuple):
    """What is seen of a flow where a step ends.

    point: where the flow is, as the kernel keeps it; norm_sq: of the weights; u, sign: u_{-1} and u_{-1} / |U|_F of one
    layer of linear attention, NaN of other models; dissipated: int |grad L|^2 so far; still: whether the gradient is
    but rounding, or the flow rests for all that the kernel can tell; leaves: whether this may be a saddle that the flow
    still leaves; nodes: t, excess and |grad L|^2 in the step, from its begin to its end.
    """

    t: Scalar
    point: PyTree
    excess: Scalar
    grad_norm_sq: Scalar
    norm_sq: Scalar
    u: Scalar
    sign: Scalar
    dissipated: Scalar
    still: Bool[Array, ""]
    leaves: Bool[Array, ""]
    nodes: tuple[Nodes, Nodes, Nodes]


class AbstractKernel(eqx.Module):
    """The steps of a flow. What one leaves to the next is the kernel's own.

    timescale: the time in which the start's gradient changes, |g|/|H g|; growth: the longest step, of the time.
    """

    timescale: eqx.AbstractVar[Scalar]
    growth: eqx.AbstractVar[float]

    @abc.abstractmethod
    def begin(self) -> tuple[Any, View]:
        """What the first step begins with, and the view at time 0."""

    @abc.abstractmethod
    def step(self, kept: Any, view: View, length: Scalar) -> tuple[Any, View, Scalar]:
        """What a step of some length leaves, the view at its end, and its error in units of the tolerance, infinite
        where it was not found.
        """


class AbstractObserver(eqx.Module):
    """What is kept of a flow, and when it ends."""

    @abc.abstractmethod
    def begin(self, view: View) -> Any:
        """What is kept of the start."""

    @abc.abstractmethod
    def goes_on(self, kept: Any) -> Bool[Array, ""]:
        """Whether there is a further step."""

    @abc.abstractmethod
    def accept(self, kept: Any, view: View) -> Any:
        """What is kept after an accepted step."""

    @abc.abstractmethod
    def reject(self, kept: Any, stuck: Bool[Array, ""]) -> Any:
        """What is kept after a rejected one, and whether the next would be too short to be one."""


class _Flow(NamedTuple):
    """The view at the last accepted step, what the kernel and the observer keep, and the length of the next step."""

    view: View
    made: Any
    kept: Any
    length: Scalar
    past: Past


def follow(kernel: AbstractKernel, observer: AbstractObserver, end: Scalar) -> tuple[Any, View]:
    """Follow a flow until its observer has seen enough, or to the time ``end``: what it keeps, and the last view."""
    made, view = kernel.begin()
    first = FIRST_STEP * kernel.timescale
    start = _Flow(view, made, observer.begin(view), first, begin())

    def advance(flow: _Flow) -> _Flow:
        t = flow.view.t
        length = jnp.minimum(flow.length, end - t)
        made, view, error = kernel.step(flow.made, flow.view, length)
        view = view._replace(t=jnp.where(length == end - t, end, t + length))
        error = jnp.where(jnp.isfinite(error), error, jnp.inf)
        following, past = next_length(length, error, STAGES + 1, flow.past)
        stuck = following < SMALLEST * jnp.maximum(t, kernel.timescale)
        longest = kernel.growth * jnp.maximum(view.t, kernel.timescale)
        on = _Flow(view, made, observer.accept(flow.kept, view), jnp.minimum(following, longest), past)
        again = flow._replace(kept=observer.reject(flow.kept, stuck), length=following, past=past)
        return jax.tree.map(lambda a, b: jnp.where(error <= 1, a, b), on, again)

    last = jax.lax.while_loop(lambda flow: observer.goes_on(flow.kept), advance, start)
    return last.kept, last.view
