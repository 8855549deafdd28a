"""Operations on trajectories: repeat the last row, insert rows, replace numbers, compare two solves."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, PyTree

from flowsim.flow.recording import uncertified
from flowsim.flow.trajectory import Status, Trajectory

Item = TypeVar("Item")

LARGE = 5e6  # numbers; larger trajectories are not copied
_SHORTEST = 64
_SPARE = 40  # further times that a claim may ask for before another shape is compiled
_MANY, _ROUNDED = 10_000, 8  # from this many weights on, the number of times is rounded up to a multiple of eight


def padded(run: Trajectory, times: int = 0) -> Trajectory:
    """A trajectory with its last row repeated, so that few different shapes are compiled.

    The new number of rows is a power of two or, for 10,000 weights or more, a multiple of eight.

    **Arguments:**

    - run: the trajectory, possibly with further times that a claim evaluates.
    - times: the number of rows without these further times, default all rows. The power of two leaves space for 40
      further times.
    """
    if weights_of(run) < _MANY:
        least = max((times or run.t.size) + _SPARE, run.t.size, _SHORTEST)
        length = 1 << (least - 1).bit_length()
    else:
        length = -(-(run.t.size + 2) // _ROUNDED) * _ROUNDED

    def stretch(leaf):
        leaf = np.asarray(leaf)
        return jax.device_put(np.concatenate([leaf, np.repeat(leaf[-1:], length - leaf.shape[0], axis=0)]))

    t, value, excess, grad_norm_sq, dissipated = (stretch(leaf) for leaf in rows_of(run))
    models = jax.tree.map(lambda leaf: stretch(leaf) if eqx.is_array(leaf) else leaf, run.models)
    # Other fields are static, so that each of their values would be compiled separately.
    return uncertified(t, models, value, excess, grad_norm_sq, dissipated, run.descent)


def weights_of(run: Trajectory) -> int:
    """The number of weights of the model."""
    weights = jax.tree.leaves(eqx.filter(run.models, eqx.is_inexact_array))
    return sum(math.prod(leaf.shape[1:]) for leaf in weights)


class Later:
    """A padded solve that is too large to be stored, and so is computed again for each comparison.

    **Arguments:** make: returns the solve; t: (T,) its times, which a caller may replace by others.
    """

    def __init__(self, make: Callable[[], Trajectory], t: Array):
        self.make, self.t = make, t


Padded = Trajectory | Later


def made(run: Padded) -> Trajectory:
    """The trajectory of a padded solve, which is computed here if it is a `Later`."""
    return run.make() if isinstance(run, Later) else run


class Made(Generic[Item]):
    """A sequence of items, each computed when an iteration first reaches it, and then cached."""

    def __init__(self, *makers: Callable[[], Item]):
        self._makers = makers
        self._kept: dict[int, Item] = {}

    def __iter__(self) -> Iterator[Item]:
        for place, make in enumerate(self._makers):
            if place not in self._kept:
                self._kept[place] = make()
            yield self._kept[place]


def is_large(run: Trajectory) -> bool:
    """Whether a trajectory has more than five million weights over all times. No copies of it are then stored."""
    return run.t.size * weights_of(run) > LARGE


def taken(run: Trajectory, rows: np.ndarray) -> Trajectory:
    """A padded trajectory reduced to some of its rows, the last of which is repeated to keep the length."""
    places = np.append(rows, np.full(run.t.size - rows.size, rows[-1]))
    pick = lambda leaf: jax.device_put(np.asarray(leaf)[places]) if eqx.is_array(leaf) else leaf
    t, value, excess, grad_norm_sq, dissipated = map(pick, rows_of(run))
    other = uncertified(t, jax.tree.map(pick, run.models), value, excess, grad_norm_sq, dissipated, run.descent)
    return dataclasses.replace(other, way_to_go=run.way_to_go, tail=run.tail)


def shortened(run: Trajectory, count: int) -> Trajectory:
    """The first ``count`` rows of a trajectory, as if the flow had been integrated up to there only."""
    first = lambda leaf: jax.device_put(np.asarray(leaf)[:count]) if eqx.is_array(leaf) else leaf
    t, loss, excess, grad_norm_sq, dissipated = map(first, rows_of(run))
    return dataclasses.replace(
        run,
        t=t,
        counted=jax.tree.map(first, run.counted),
        models=jax.tree.map(first, run.models),
        loss=loss,
        excess=excess,
        grad_norm_sq=grad_norm_sq,
        dissipated=dissipated,
        status=Status.TIME,
    )


def padded_with(
    run: Trajectory, models: PyTree, loss: Array, excess: Array, grad_norm_sq: Array, dissipated: Array
) -> Trajectory:
    """A copy of a padded trajectory with the given weights, (T, ..) each, and the given series, (T,) each."""
    other = uncertified(run.t, models, loss, excess, grad_norm_sq, dissipated, run.descent, run.step_size)
    return dataclasses.replace(other, way_to_go=run.way_to_go, tail=run.tail)


def scaled(run: Trajectory, rows: slice, weights: float, losses: float, t: float = 1.0) -> Trajectory:
    """A padded trajectory with some rows multiplied by factors.

    **Arguments:**

    - run: the trajectory.
    - rows: which rows.
    - weights: the factor of the weights and |grad L|^2.
    - losses: the factor of the loss, the excess and the dissipated energy.
    - t: the factor of the times.
    """

    def times(factor):
        def multiplied(leaf):
            if not eqx.is_inexact_array(leaf):
                return leaf
            values = np.array(leaf)
            values[rows] = factor * values[rows]
            return jax.device_put(values)

        return multiplied

    models, grad_norm_sq = jax.tree.map(times(weights), (run.models, run.grad_norm_sq))
    loss, excess, dissipated = jax.tree.map(times(losses), (run.loss, run.excess, run.dissipated))
    other = padded_with(run, models, loss, excess, grad_norm_sq, dissipated)
    return other if t == 1 else dataclasses.replace(other, t=times(t)(run.t))


def randomized(run: Trajectory) -> Trajectory:
    """A padded trajectory with the same start and, after it, random numbers of similar size at random times."""
    draw = np.random.default_rng(0)

    def lead(leaf):
        if not eqx.is_inexact_array(leaf):
            return leaf
        values = np.array(leaf)
        size = 1.0 + np.max(np.abs(values[0]), initial=0.0)
        values[1:] = size * draw.standard_normal(values[1:].shape)
        return jax.device_put(values)

    models, value, excess, grad_norm_sq, dissipated = jax.tree.map(lead, (run.models, *rows_of(run)[1:]))
    t = np.append(np.asarray(run.t)[:1], np.cumsum(draw.uniform(0.1, 1.0, run.t.size - 1)))
    other = uncertified(jax.device_put(t), models, value, excess, grad_norm_sq, dissipated, run.descent)
    return dataclasses.replace(other, way_to_go=run.way_to_go, tail=run.tail)


def rows_of(run: Trajectory) -> tuple[Array, ...]:
    """t, loss, excess, grad_norm_sq and dissipated, each of shape (T,)."""
    return run.t, run.loss, run.excess, run.grad_norm_sq, run.dissipated


def shifted(part: Trajectory, t: np.ndarray, dissipated: float) -> Trajectory:
    """A continuation of a flow, made part of that flow.

    **Arguments:** part: the continuation; t: (T,) its times in the flow; dissipated: the energy that the flow
    dissipated before it, which is added.
    """
    return dataclasses.replace(
        part, t=jax.device_put(t), dissipated=jax.device_put(np.asarray(part.dissipated) + dissipated)
    )


def merged(parts: Sequence[Trajectory]) -> Trajectory:
    """The first trajectory with all rows but the first of each other trajectory inserted, in the order of time."""
    first, *others = parts
    order = np.argsort(np.concatenate([first.t, *[np.asarray(part.t)[1:] for part in others]]), kind="stable")
    join = lambda leaf, *more: jax.device_put(np.concatenate([leaf, *[np.asarray(x)[1:] for x in more]])[order])
    t, value, excess, grad_norm_sq, dissipated = (join(*leaves) for leaves in zip(*map(rows_of, parts), strict=True))
    models = jax.tree.map(
        lambda leaf, *more: join(leaf, *more) if eqx.is_array(leaf) else leaf,
        first.models,
        *[part.models for part in others],
    )
    unfinished = [part.status for part in others if not part.status.finished]
    return dataclasses.replace(
        first,
        t=t,
        models=models,
        loss=value,
        excess=excess,
        grad_norm_sq=grad_norm_sq,
        dissipated=dissipated,
        status=unfinished[0] if unfinished else first.status,
        counted=None,
    )


def gap(ours: Trajectory, theirs: Trajectory) -> np.ndarray:
    """(T,) the distance between the weights of two solves at each time, relative to the largest norm of weights."""
    squares = lambda tree: sum(
        np.sum(np.asarray(leaf).reshape(leaf.shape[0], -1) ** 2, axis=1) for leaf in jax.tree.leaves(tree)
    )
    one, other = (eqx.filter(run.models, eqx.is_inexact_array) for run in (ours, theirs))
    apart = squares(jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), one, other))
    largest = np.max(squares(other))
    return np.sqrt(apart / (largest if largest > 0 else 1.0))
