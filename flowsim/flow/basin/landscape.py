"""The parts of a gradient flow that the bounds need, and a test whether its field is the gradient of its loss."""

from collections.abc import Callable
from typing import NamedTuple

import flint
import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from flowsim._core.balls.enclosure import BITS, Traced, enclose
from flowsim._core.balls.operations import UndecidedError, balls
from flowsim.flow.basin.curvature import largest

_CUSTOM_DERIVATIVES = {"stop_gradient", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"}
_NEARBY, _STEP = 1e-2, 2.0**-30  # of the weights: nearby points; of a direction: steps of differences
_AGREES = 1e-6  # of its terms: the error of a derivative

# Errors for operations that balls do not support.
UNSUPPORTED = (UndecidedError, jax.errors.JAXTypeError, np.linalg.LinAlgError, ValueError, TypeError)

Field = Callable[[PyTree], PyTree]


class Landscape(NamedTuple):
    """The parts of a gradient flow that the bounds of this package need.

    **Fields:**

    - field: maps weights to minus the gradient.
    - conserved: maps weights to a conserved quantity, or returns None if there is none.
    - loss: maps weights to the loss if the field is computed as its derivative, else None.
    - is_one_formula: whether the field is the same formula at all weights, even if its program has branches.
    """

    field: Field
    conserved: Callable[[PyTree], Array | None]
    loss: Callable[[PyTree], Array] | None = None
    is_one_formula: bool = False


def descends(flow: Landscape, state: PyTree) -> bool:
    """Whether the field is minus the gradient of the loss. It may differ if the loss uses `stop_gradient` or
    `custom_jvp`.

    Directional derivatives of the loss according to the field are compared with difference quotients of the loss,
    which are computed in balls. If the loss is not known or balls cannot be used, the answer is yes.

    **Arguments:** flow; state: the weights near which the test is made.
    """
    if flow.loss is None or flow.is_one_formula:
        return True
    loss, (point, unravel) = flow.loss, ravel_pytree(state)
    rng, point = np.random.default_rng(0), np.asarray(point)
    size = float(np.max(np.abs(point), initial=0.0)) or 1.0
    try:
        traced = Traced(lambda x: loss(unravel(x)), point)
        if not any(eqn.primitive.name in _CUSTOM_DERIVATIVES for eqn, _ in traced.equations):
            return True
        for offset in (0.0, _NEARBY, _NEARBY):
            here = point + offset * size * rng.standard_normal(point.shape)
            direction = size * rng.standard_normal(point.shape)
            slope = enclose(lambda x: ravel_pytree(flow.field(unravel(x)))[0], here)
            with flint.ctx.workprec(BITS):
                steps = (_STEP, _STEP / 2)
                ends = {h: traced.on(balls(here) + h * balls(direction)) for h in (*steps, *(-h for h in steps))}
                coarse, found = ((ends[h] - ends[-h]) / (2 * h) for h in steps)
                expected = -np.sum(balls(direction) * slope)
                terms = float(np.sum(np.abs(direction) * largest(slope))) + float(abs(found).upper())
                # Near a minimum the slope may be smaller than the error of a difference.
                allowed = _AGREES * terms + 2 * float(abs(coarse - found).upper())
                if float(abs(found - expected).lower()) > allowed:
                    return False
    except UNSUPPORTED:
        return True
    return True
