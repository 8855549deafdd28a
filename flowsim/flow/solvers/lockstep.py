"""A flow as one pure function of what it begins with: many go in lockstep by vmap, and none asks the host when to end.

A kernel makes the steps, an observer sums up what is wanted of them and says when the flow ends, and the ends of the
steps are recorded.
"""

import abc
import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from flowsim._core.types import Scalar
from flowsim.flow.solvers.collocation import STAGES
from flowsim.flow.solvers.step_size import ANEW, SMALLEST, Past, begin, next_length

FIRST_STEP = 1e-2  # of the start's timescale
BLOCK = 16  # steps between two looks at whether a flow has ended
_BLOCKS = 16  # that are recorded

Nodes = Float[Array, " nodes"]


class View(NamedTuple):
    """What is seen of a flow where a step ends.

    point: where the flow is, as the kernel keeps it; norm_sq: of the weights; dissipated: int |grad L|^2 so far; still:
    whether the gradient is but rounding, or the flow rests for all that the kernel can tell; leaves: whether this may
    be a saddle that the flow still leaves; nodes: t, excess and |grad L|^2 in the step, from its begin to its end.
    """

    t: Scalar
    point: PyTree
    excess: Scalar
    grad_norm_sq: Scalar
    norm_sq: Scalar
    dissipated: Scalar
    still: Bool[Array, ""]
    leaves: Bool[Array, ""]
    nodes: tuple[Nodes, Nodes, Nodes]


class Row(NamedTuple):
    """What is recorded where a step ends, as in `View`."""

    t: Scalar
    point: PyTree
    excess: Scalar
    grad_norm_sq: Scalar
    dissipated: Scalar


class Record(NamedTuple):
    """The rows of a flow: the start, the end of every step, and the last one repeated up to a fixed length.

    count: of the rows without the repetition; whole: whether there was room for all steps.
    """

    rows: Row
    count: Int[Array, ""]
    whole: Bool[Array, ""]


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

    @abc.abstractmethod
    def anew(self, kept: Any, t: Scalar) -> Any:
        """What a step left at the time t where that becomes 0."""


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
    """The view at the last accepted step, what the kernel and the observer keep, and the length of the next step.

    origin: from which the kernel's times count, while the observer sees the sum; timescale: that in which the gradient
    changes there.
    """

    view: View
    made: Any
    kept: Any
    length: Scalar
    past: Past
    origin: Scalar
    timescale: Scalar

    def seen(self) -> View:
        """The view in times from the start."""
        t, *rest = self.view.nodes
        return self.view._replace(t=self.origin + self.view.t, nodes=(self.origin + t, *rest))


def follow(kernel: AbstractKernel, observer: AbstractObserver, end: Scalar) -> tuple[Any, View, Record]:
    """Follow a flow until its observer has seen enough, or to the time ``end``: what it keeps, the last view, and the
    record.
    """
    made, view = kernel.begin()
    first = FIRST_STEP * kernel.timescale
    start = _Flow(view, made, observer.begin(view), first, begin(), jnp.zeros(()), kernel.timescale)

    def advance(flow: _Flow) -> _Flow:
        t, last = flow.view.t, end - flow.origin
        length = jnp.minimum(flow.length, last - t)
        made, view, error = kernel.step(flow.made, flow.view, length)
        arrives = length == last - t
        view = view._replace(t=jnp.where(arrives, last, t + length))
        error = jnp.where(jnp.isfinite(error), error, jnp.inf)
        following, past = next_length(length, error, STAGES + 1, flow.past)
        seen = flow._replace(view=view).seen()
        # Added up again, the time of the end might miss it.
        seen = seen._replace(t=jnp.where(arrives, end, seen.t))
        choose = functools.partial(jax.tree.map, lambda a, b: jnp.where(error <= 1, a, b))
        made, view = choose((made, view), (flow.made, flow.view))
        # Where the flow has become so fast that its time cannot tell steps apart, this begins anew.
        clock = jnp.maximum(view.t, flow.timescale)
        stuck = following < SMALLEST * clock
        _, _, (before, *_, after) = view.nodes
        timescale = 2 * past.length / jnp.abs(jnp.log(after / before))
        anew = stuck & (past.length > 0) & (timescale < ANEW * clock)
        kept = choose(observer.accept(flow.kept, seen), observer.reject(flow.kept, stuck & ~anew))
        going = choose(jnp.minimum(following, kernel.growth * clock), following)
        on = flow._replace(view=view, made=made, kept=kept, length=going, past=past)
        there = _Flow(
            view=view._replace(t=jnp.zeros(())),
            made=kernel.anew(made, view.t),
            kept=kept,
            length=FIRST_STEP * timescale,
            past=begin(),
            origin=flow.origin + view.t,
            timescale=timescale,
        )
        return jax.tree.map(lambda a, b: jnp.where(anew, a, b), there, on)

    def step(flow: _Flow, _: None) -> tuple[_Flow, Row]:
        goes_on = observer.goes_on(flow.kept)
        flow = jax.tree.map(lambda a, b: jnp.where(goes_on, a, b), advance(flow), flow)
        return flow, _row(flow.seen())

    def block(state: tuple[_Flow, Row, Array]) -> tuple[_Flow, Row, Array]:
        flow, rows, blocks = state
        flow, further = jax.lax.scan(step, flow, None, length=BLOCK)
        first = 1 + BLOCK * jnp.minimum(blocks, _BLOCKS - 1)
        put = lambda kept, new: jax.lax.dynamic_update_slice_in_dim(kept, new, first, axis=0)
        return flow, jax.tree.map(put, rows, further), blocks + 1

    room = 1 + BLOCK * _BLOCKS
    rows = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (room, *jnp.shape(leaf))), _row(start.seen()))
    # In blocks, since a loop under vmap copies all that it keeps each time.
    state = start, rows, jnp.asarray(0)
    last, rows, blocks = jax.lax.while_loop(lambda state: observer.goes_on(state[0].kept), block, state)
    count = 1 + BLOCK * jnp.minimum(blocks, _BLOCKS)
    filled = jnp.minimum(jnp.arange(room), count - 1)
    record = Record(jax.tree.map(lambda leaf: leaf[filled], rows), count, blocks <= _BLOCKS)
    return last.kept, last.seen(), record


def _row(view: View) -> Row:
    return Row(view.t, view.point, view.excess, view.grad_norm_sq, view.dissipated)
