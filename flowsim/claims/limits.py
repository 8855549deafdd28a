"""The limit of a function of the model along a flow, with a bound on its error."""

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from flowsim._core.balls.enclosure import enclose, lower, upper
from flowsim._core.balls.operations import UndecidedError, balls
from flowsim._core.checks import is_concrete
from flowsim.flow.trajectory import Trajectory

End = tuple[PyTree, float]  # the last model, and a bound on the remaining length


class TracedFlowError(TypeError):
    """The limit of a flow was asked for inside a transformation of JAX, in which its values are unknown."""


_END: contextvars.ContextVar[End | None] = contextvars.ContextVar("end", default=None)


@contextlib.contextmanager
def ending_at(model: PyTree, remaining: float) -> Iterator[None]:
    """A context in which a traced flow is known to end at this model, with this bound on its remaining length."""
    token = _END.set((model, remaining))
    try:
        yield
    finally:
        _END.reset(token)


def limit(
    flow: Trajectory, f: Callable[[PyTree], Array]
) -> tuple[Float[Array, "1 *values"], Float[Array, "1 *values"]]:
    """The limit of a function along a flow, and a bound on its error.

    The value is that of f at the end of the flow. The bound is the largest change of f over a ball around the end that
    the flow cannot leave. It is infinite if no such ball is found: if t1 is short, on a plateau, at a degenerate
    minimum, or if f cannot be computed in ball arithmetic.

    Both have one row in front, as in a claim about a limit: ``value, allowance = limit(flow, f); return equal(value,
    expected, size, allowance=allowance)``.

    **Arguments:**

    - flow: the trajectory.
    - f: model -> an array.

    **Raises:** `TracedFlowError` inside a transformation of JAX.
    """
    value = jnp.asarray(f(flow.end), dtype=float)
    end = _END.get() if _is_traced(flow) else (flow.end, _way_to_go(flow))
    if end is None:
        raise TracedFlowError("limit needs a flow with known values: call it outside of jax transformations")
    with jax.ensure_compile_time_eval():
        bound = _variation(f, *end)
    return value[None], jnp.asarray(bound).reshape(value.shape)[None]


def _is_traced(flow: Trajectory) -> bool:
    return not all(is_concrete(leaf) for leaf in jax.tree.leaves((flow.models, flow.way_to_go)))


def _way_to_go(flow: Trajectory) -> float:
    """The bound on the flow's remaining length, computed if it is not known yet."""
    if isinstance(flow.way_to_go, float) and math.isinf(flow.way_to_go) and flow.descent is not None:
        return flow.descent.way_to_go(flow.end, flow.start)
    return float(jnp.asarray(flow.way_to_go))


def _variation(f: Callable[[PyTree], Array], model: PyTree, remaining: float) -> np.ndarray:
    """A bound on the change of f within a distance of a model."""
    weights, rest = eqx.partition(model, eqx.is_inexact_array)
    of_weights = lambda weights: jnp.asarray(f(eqx.combine(weights, rest)), dtype=float)
    shape = jax.eval_shape(of_weights, weights).shape
    if not math.isfinite(remaining):
        return np.full(shape, np.inf)
    around = jax.tree.map(lambda leaf: balls(np.asarray(leaf), remaining), weights)
    try:
        within, here = (enclose(of_weights, where, open_branches=True) for where in (around, weights))
    except (UndecidedError, jax.errors.JAXTypeError):
        return np.full(shape, np.inf)
    found = np.maximum(upper(within) - lower(here), upper(here) - lower(within))
    return np.where(np.isfinite(found), found, np.inf)
