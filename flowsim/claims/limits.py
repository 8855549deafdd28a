"""What a function of the model tends to along a flow, with a bound of the way that is still to go."""

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

End = tuple[PyTree, float]  # the model, and how far it still goes at most


class TracedFlowError(TypeError):
    """A limit is asked for of a flow that has no values: it is being traced."""


_END: contextvars.ContextVar[End | None] = contextvars.ContextVar("end", default=None)


@contextlib.contextmanager
def ending_at(model: PyTree, way: float) -> Iterator[None]:
    """Within, a flow that is traced ends at this model, and goes so much further at most."""
    token = _END.set((model, way))
    try:
        yield
    finally:
        _END.reset(token)


def limit(
    flow: Trajectory, f: Callable[[PyTree], Array]
) -> tuple[Float[Array, "1 *values"], Float[Array, "1 *values"]]:
    """f of the model that a flow tends to, and how far it may be off: f at the end of the flow, and the largest
    difference from it on a ball that the flow cannot leave.

    Both have one point first, as the sides of a claim about a limit have:
    ``value, allowance = limit(flow, f); return equal(value, expected, size, allowance=allowance)``.
    The allowance is infinite where no such ball is found: after a short t1, on a plateau, where a minimum is
    degenerate, or where f cannot be computed in ball arithmetic.

    **Arguments:** f: model -> an array.

    **Raises:** `TracedFlowError` within a transformation of JAX.
    """
    value = jnp.asarray(f(flow.end), dtype=float)
    end = _END.get() if _is_traced(flow) else (flow.end, _way_to_go(flow))
    if end is None:
        raise TracedFlowError("limit must be asked of a flow with values, and this one is traced")
    return value[None], jnp.asarray(_variation(f, *end)).reshape(value.shape)[None]


def _is_traced(flow: Trajectory) -> bool:
    return not all(is_concrete(leaf) for leaf in jax.tree.leaves((flow.models, flow.way_to_go)))


def _way_to_go(flow: Trajectory) -> float:
    """The bound that the flow has; where none was looked for yet, it is."""
    if isinstance(flow.way_to_go, float) and math.isinf(flow.way_to_go) and flow.descent is not None:
        return flow.descent.way_to_go(flow.end, flow.start)
    return float(jnp.asarray(flow.way_to_go))


def _variation(f: Callable[[PyTree], Array], model: PyTree, way: float) -> np.ndarray:
    """How much f changes at most within a distance of a model."""
    weights, rest = eqx.partition(model, eqx.is_inexact_array)
    of_weights = lambda weights: jnp.asarray(f(eqx.combine(weights, rest)), dtype=float)
    shape = jax.eval_shape(of_weights, weights).shape
    if not math.isfinite(way):
        return np.full(shape, np.inf)
    around = jax.tree.map(lambda leaf: balls(np.asarray(leaf), way), weights)
    try:
        within, here = (enclose(of_weights, where, open_branches=True) for where in (around, weights))
    except (UndecidedError, jax.errors.JAXTypeError):
        return np.full(shape, np.inf)
    found = np.maximum(upper(within) - lower(here), upper(here) - lower(within))
    return np.where(np.isfinite(found), found, np.inf)
