"""The control of the step size of implicit methods, and the sizes of weights for relative errors."""

from typing import NamedTuple

import diffrax
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, PyTree

from flowsim._core.types import Scalar

SAFETY, LEAST_FACTOR, LARGEST_FACTOR = 0.9, 0.2, 10.0
SMALLEST = 1e-13  # of the time or of the timescale of the start: no step is shorter
ANEW = 1e-6  # of these: if the gradient changes in a shorter time, time is counted from a new origin
_LEAST_ERROR = 1e-6  # smaller errors count as this one when two are compared
_FAILED_FACTOR = 0.3
_ALIKE = 1e-3  # of the largest of n weights, times n: the smallest of n random weights is about 1/n of the largest


class Past(NamedTuple):
    """The length of the last accepted step (0 before the first), its error, and whether a step was rejected after
    it.
    """

    length: Scalar
    error: Scalar
    rejected: Bool[Array, ""]


def begin() -> Past:
    """The `Past` before the first step."""
    return Past(jnp.zeros(()), jnp.ones(()), jnp.asarray(False))


def next_length(length: Scalar, error: Scalar, order: ArrayLike, past: Past) -> tuple[Scalar, Past]:
    """The length of the next step, and the updated `Past`.

    A step is accepted if its error is at most 1. The next length is predicted from the errors of the last two
    steps, which show a trend.

    **Arguments:**

    - length: the length of the step just made.
    - error: the error of this step in units of the tolerance, infinite if the step failed.
    - order: the error is proportional to length^order.
    - past: the last accepted step before this step.

    **Source:** Gustafsson, Control-theoretic techniques for stepsize selection in implicit Runge-Kutta methods
    (1994).
    """
    accepted = error <= 1
    known = jnp.maximum(error, _LEAST_ERROR)
    plain = SAFETY * known ** (-1 / order)
    trend = length / jnp.where(past.length > 0, past.length, 1.0) * (past.error / known) ** (1 / order)
    predicted = jnp.where(past.length > 0, jnp.minimum(plain, plain * trend), plain)
    factor = jnp.clip(predicted, LEAST_FACTOR, jnp.where(past.rejected, 1.0, LARGEST_FACTOR))
    again = jnp.where(jnp.isfinite(error), jnp.clip(plain, LEAST_FACTOR, SAFETY), _FAILED_FACTOR)
    on = Past(length, known, jnp.asarray(False))
    now = jax.tree.map(lambda a, b: jnp.where(accepted, a, b), on, past._replace(rejected=jnp.asarray(True)))
    return length * jnp.where(accepted, factor, again), now


class PredictiveStepSize(diffrax.AbstractStepSizeController):
    """Controls the step sizes of diffrax by `next_length`. A step is at most ``growth`` times the larger of the
    time and ``timescale``, the time in which the gradient changes at the start.
    """

    growth: Scalar
    timescale: Scalar

    def wrap(self, direction):
        """The controller itself, since time increases."""
        return self

    def init(self, terms, t0, t1, y0, dt0, args, func, error_order):
        """The end of the first step, and the `Past` before it."""
        return t0 + dt0, begin()

    def adapt_step_size(self, t0, t1, y0, y1_candidate, args, y_error, error_order, controller_state):
        """Whether a step is accepted, and the start and end of the next one."""
        error = jnp.asarray(y_error)
        length, past = next_length(jnp.asarray(t1 - t0), error, error_order, controller_state)
        accepted = error <= 1
        now = jnp.where(accepted, t1, t0)
        clock = jnp.maximum(now, self.timescale)
        length = jnp.minimum(length, self.growth * clock)
        stuck = length < SMALLEST * clock
        result = diffrax.RESULTS.where(stuck, diffrax.RESULTS.dt_min_reached, diffrax.RESULTS.successful)
        return accepted, now, now + length, jnp.asarray(False), past, result


def own_sizes(start: PyTree, first_move: Scalar) -> PyTree:
    """The size of each weight at a start, the unit of its relative error.

    The size is the largest absolute value in the array of the weight, or the absolute value of the weight itself if
    that is far smaller. A weight that is zero gets the smallest size of all nonzero weights. If all weights are
    zero, each has the size ``first_move``, or 1 if that is zero too.
    """

    def alike(x):
        largest = jnp.max(jnp.abs(x), initial=0.0)
        return jnp.where(x.size * jnp.abs(x) > _ALIKE * largest, largest, jnp.abs(x))

    own = jax.tree.map(alike, start)
    nonzero = [jnp.min(jnp.where(size > 0, size, jnp.inf), initial=jnp.inf) for size in jax.tree.leaves(own)]
    least, first_move = jnp.min(jnp.stack(nonzero)), jnp.where(first_move > 0, first_move, 1.0)
    least = jnp.where(jnp.isfinite(least), least, first_move)
    return jax.tree.map(lambda size: jnp.where(size > 0, size, least), own)
