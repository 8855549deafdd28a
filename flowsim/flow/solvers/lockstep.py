"""A flow as a pure function, so that vmap integrates many flows in lockstep on one device.

A kernel makes the steps. An observer collects data at their ends and decides when the flow ends. The ends of the
first steps are recorded.
"""

import abc
import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from flowsim._core.types import Scalar
from flowsim.flow.solvers.collocation import STAGES
from flowsim.flow.solvers.step_size import ANEW, SMALLEST, Past, begin, next_length

FIRST_STEP = 1e-2  # of the timescale of the start
BLOCK = 16  # steps between two checks whether a flow has ended
_BLOCKS = 16  # blocks that are recorded

Nodes = Float[Array, " nodes"]


class View(NamedTuple):
    """The quantities that an observer sees at the end of a step.

    **Fields:**

    - t: the time.
    - point: the state of the flow, in the form of the kernel.
    - excess, grad_norm_sq: the excess loss and |grad L|^2.
    - norm_sq: the squared norm of the weights.
    - dissipated: int |grad L|^2 dt so far.
    - still: whether the gradient consists of rounding, or the Jacobian of the field has no positive eigenvalue.
    - leaves: whether the flow may leave a saddle there.
    - nodes: (t, excess, |grad L|^2), each (nodes,), at times in the step from its start to its end.
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
    """The quantities that are recorded at the end of a step. For the fields see `View`."""

    t: Scalar
    point: PyTree
    excess: Scalar
    grad_norm_sq: Scalar
    dissipated: Scalar


class Record(NamedTuple):
    """The recorded rows of a flow.

    **Fields:**

    - rows: the start, the ends of the steps, and copies of the last end up to a fixed length.
    - count: the number of rows before this padding. A row after a rejected step, or after the end, repeats the row
      before.
    - whole: whether all steps were recorded.
    """

    rows: Row
    count: Int[Array, ""]
    whole: Bool[Array, ""]


class AbstractKernel(eqx.Module):
    """Makes the steps of a flow.

    **Fields:**

    - timescale: |g|/|H g| at the start, the time in which the gradient g changes there.
    - growth: the longest step, relative to the larger of the time and ``timescale``.
    """

    timescale: eqx.AbstractVar[Scalar]
    growth: eqx.AbstractVar[float]

    @abc.abstractmethod
    def begin(self) -> tuple[PyTree, View]:
        """The data that the first step needs, and the view at time 0."""

    @abc.abstractmethod
    def step(self, kept: PyTree, view: View, length: Scalar) -> tuple[PyTree, View, Scalar]:
        """Make one step.

        **Arguments:**

        - kept: the data from the last step that this step needs.
        - view: the view at the start of the step.
        - length: the length of the step.

        **Returns:** the data for the next step, the view at the end, and the error in units of the tolerance.
        """

    @abc.abstractmethod
    def anew(self, kept: PyTree, t: Scalar) -> PyTree:
        """The data for the next step if the origin of time moves to t."""


class AbstractObserver(eqx.Module):
    """Collects data along a flow and decides when it ends."""

    @abc.abstractmethod
    def begin(self, view: View) -> PyTree:
        """The data at the start."""

    @abc.abstractmethod
    def continues(self, kept: PyTree) -> Bool[Array, ""]:
        """Whether the flow continues."""

    @abc.abstractmethod
    def accept(self, kept: PyTree, view: View) -> PyTree:
        """The data after an accepted step."""

    @abc.abstractmethod
    def reject(self, kept: PyTree, stuck: Bool[Array, ""]) -> PyTree:
        """The data after a rejected step. ``stuck`` says whether the next step would be too short to continue."""


class _Flow(NamedTuple):
    """The state of a flow between two steps. The kernel counts time from ``origin``, the observer from the start.

    **Fields:**

    - view: the view at the last accepted step.
    - made, kept: the data of the kernel and of the observer.
    - length: the length of the next step.
    - past: the last accepted step, for the control of the step size.
    - origin: the time from the start at which the time of the kernel is 0.
    - timescale: the time in which the gradient changes at the origin.
    """

    view: View
    made: PyTree
    kept: PyTree
    length: Scalar
    past: Past
    origin: Scalar
    timescale: Scalar

    def seen(self) -> View:
        t, *rest = self.view.nodes
        return self.view._replace(t=self.origin + self.view.t, nodes=(self.origin + t, *rest))


def follow(kernel: AbstractKernel, observer: AbstractObserver, end: Scalar) -> tuple[PyTree, View, Record]:
    """Integrate a flow until its observer ends it. Steps are shortened to hit the time ``end``.

    **Arguments:**

    - kernel: makes the steps.
    - observer: collects data, and ends the flow at ``end`` at the latest.
    - end: the last time, which may be infinite.

    **Returns:** the data of the observer, the last view, and the record.
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
        # The sum of the steps may differ from the last time by rounding.
        seen = seen._replace(t=jnp.where(arrives, end, seen.t))
        choose = functools.partial(jax.tree.map, lambda a, b: jnp.where(error <= 1, a, b))
        made, view = choose((made, view), (flow.made, flow.view))
        # If the flow has become so fast that steps are too short relative to the time, time is counted from here.
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
        continues = observer.continues(flow.kept)
        flow = jax.tree.map(lambda a, b: jnp.where(continues, a, b), advance(flow), flow)
        return flow, _row(flow.seen())

    def block(state: tuple[_Flow, Row, Array]) -> tuple[_Flow, Row, Array]:
        flow, rows, blocks = state
        flow, further = jax.lax.scan(step, flow, None, length=BLOCK)
        first = 1 + BLOCK * jnp.minimum(blocks, _BLOCKS - 1)
        put = lambda kept, new: jax.lax.dynamic_update_slice_in_dim(kept, new, first, axis=0)
        return flow, jax.tree.map(put, rows, further), blocks + 1

    room = 1 + BLOCK * _BLOCKS
    rows = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (room, *jnp.shape(leaf))), _row(start.seen()))
    # In blocks, since under vmap a loop copies its state in every iteration.
    state = start, rows, jnp.asarray(0)
    last, rows, blocks = jax.lax.while_loop(lambda state: observer.continues(state[0].kept), block, state)
    count = 1 + BLOCK * jnp.minimum(blocks, _BLOCKS)
    filled = jnp.minimum(jnp.arange(room), count - 1)
    record = Record(jax.tree.map(lambda leaf: leaf[filled], rows), count, blocks <= _BLOCKS)
    return last.kept, last.seen(), record


def _row(view: View) -> Row:
    return Row(view.t, view.point, view.excess, view.grad_norm_sq, view.dissipated)
