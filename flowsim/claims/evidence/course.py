"""A solve as a function of time: its weights between the output times, and balls around them on time intervals."""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float, PyTree

from flowsim._core.balls.operations import Balls, balls
from flowsim.claims.evidence.moving import ROUNDING
from flowsim.flow.recording import uncertified
from flowsim.flow.solvers.clock import Clock
from flowsim.flow.trajectory import AbstractDescent, Trajectory

Times = Float[np.ndarray, " spans"]

_OUTSIDE = 1 / 16  # of the distance between the ends of a span: by how much the weights may leave the segment


class Spans(NamedTuple):
    """Rows of a flow in balls: its start, the middles of N time intervals ("spans"), the N spans themselves, and
    its end.

    **Fields:**

    - t: (2 N + 2,) the times of the rows as balls. The ball of a span contains all of its times.
    - run: the middles of the balls, as a trajectory with 2 N + 2 rows.
    - spread: for each array of weights, (2 N + 2,) a bound on the distance of its weights from the middle.
    """

    t: Balls
    run: Trajectory
    spread: PyTree


@dataclasses.dataclass(frozen=True)
class Course:
    """The weights of a solve at any time, by cubic interpolation of the weights and velocities at its output times.

    **Fields:**

    - run: the solve.
    - velocity: the velocities at its output times, in the shape of the model with time on the first axis.
    - clock: the clock of the flow, which converts differences of output times to durations.
    """

    run: Trajectory
    velocity: PyTree
    clock: Clock

    def weights(self, t: Times) -> PyTree:
        """The weights at given times, with time on the first axis."""
        known = eqx.filter(self.run.models, eqx.is_inexact_array)
        return jax.tree.map(lambda values, slopes: self._cubic(values, slopes, t), known, self.velocity)

    def loss(self, t: Times) -> tuple[Times, Times]:
        """The least and the largest of four estimates of the loss at each of the given times.

        The estimates are the cubic, the chord and the tangents at both ends of the step, clipped to the range
        between the losses at its ends. A loss that decays exponentially within the step lies between them.
        """
        known, values, slopes = (np.asarray(part) for part in (self.run.t, self.run.loss, -self.run.grad_norm_sq))
        left = np.clip(np.searchsorted(known, t, side="right") - 1, 0, known.size - 2)
        begin, end, rate = values[left], values[left + 1], self.clock.rate(known[left])
        lines = [begin + slopes[left] * rate * (t - known[left]), end - slopes[left + 1] * rate * (known[left + 1] - t)]
        lines += [np.interp(t, known, values), self._cubic(values, slopes, t)]
        inside = np.clip(lines, np.minimum(begin, end), np.maximum(begin, end))
        return np.min(inside, axis=0), np.max(inside, axis=0)

    def _cubic(self, values: ArrayLike, slopes: ArrayLike, t: Times) -> np.ndarray:
        known, values, slopes = (np.asarray(part) for part in (self.run.t, values, slopes))
        left = np.clip(np.searchsorted(known, t, side="right") - 1, 0, known.size - 2)
        of_row = lambda times: times.reshape(-1, *[1] * (values.ndim - 1))
        length, since = of_row((known[1:] - known[:-1])[left]), of_row(t - known[left])
        rate, chord = of_row(self.clock.rate(known[left])), (values[left + 1] - values[left]) / length
        begin = rate * slopes[left]
        bend = (begin + rate * slopes[left + 1] - 2 * chord) / length
        square = since * since
        return (
            values[left] + begin * since + ((chord - begin) / length - bend) * square + bend / length * (square * since)
        )

    def spans(self, low: Times, high: Times, count: int) -> Spans:
        """The time intervals [low_i, high_i] as `Spans`, with the last one repeated until there are ``count``."""
        more = count - low.size
        low, high = (np.append(times, np.full(more, times[-1])) for times in (low, high))
        middle = (low + high) / 2
        begin, centre, end = (self.weights(times) for times in (low, middle, high))
        known = eqx.filter(self.run.models, eqx.is_inexact_array)
        rows = lambda first, *parts: np.concatenate([np.asarray(first)[:1], *parts, np.asarray(first)[-1:]])

        largest = lambda values: np.max(np.abs(values).reshape(count, -1), axis=1, initial=0.0)
        # The error of a solve is at least its tolerance.
        rtol = max(ROUNDING, self.run.settings.rtol)

        def radius(begin, centre, end):
            apart = np.maximum(largest(begin - centre), largest(end - centre))
            return rows(np.zeros(1), rtol * largest(centre), (1 + _OUTSIDE) * apart)

        weights = jax.tree.map(lambda leaf, centre: jax.device_put(rows(leaf, centre, centre)), known, centre)
        rest = eqx.filter(self.run.models, eqx.is_inexact_array, inverse=True)
        repeated = lambda leaf: jnp.repeat(leaf[:1], 2 * count + 2, axis=0) if eqx.is_array(leaf) else leaf
        t = rows(self.run.t, middle, middle)
        nothing = jax.device_put(np.zeros(t.size))
        run = uncertified(
            jax.device_put(t),
            eqx.combine(weights, jax.tree.map(repeated, rest)),
            nothing,
            nothing,
            nothing,
            nothing,
            self.run.descent,
        )
        half = np.concatenate([np.zeros(1 + count), (high - low) / 2, np.zeros(1)])
        return Spans(balls(t, half), run, jax.tree.map(radius, begin, centre, end))


@eqx.filter_jit
def velocities(descent: AbstractDescent, models: PyTree) -> PyTree:
    """The velocity of a flow at several models, which are stacked on the first axis."""
    return eqx.filter(eqx.filter_vmap(descent)(models), eqx.is_inexact_array)
