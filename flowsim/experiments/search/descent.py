"""Descent of the margin from a point. Its derivatives go through the loss, the flow and the limit of the flow."""

import math
from typing import Any

import jax
import numpy as np
import optax
from jaxtyping import ArrayLike

from flowsim._core.types import Document, Values
from flowsim.claims.spaces import Axis, Each, Real, Space, Whole
from flowsim.experiments.search.clock import Clock
from flowsim.experiments.search.points import Point
from flowsim.experiments.search.screening import Screen

_STEPS = 24
_DOING = "going downhill"
_RATE = 0.15  # of a step, in logarithms or relative to the length of an axis


def descend(screen: Screen, point: Point, clock: Clock, within: Space | None = None) -> list[Point]:
    """The points of a descent of the margin, as far as the time allows, with integers rounded. Empty if the margin
    has no derivative.

    Adam (optax) changes the values of the axes in which the margin is differentiable, and for geometric axes the
    logarithms of the values. Each value stays in the range of its axis.

    **Arguments:**

    - screen: computes the margins of the claim.
    - point: the first point.
    - clock: the budget.
    - within: a space with narrower ranges of the same axes, or None.
    """
    space, path, values = within or screen.spaces[point.space], [], dict(point.values)
    if clock.is_up(_DOING) or screen.gradient(point) is None:
        return []
    optimiser = optax.adam(_RATE)
    state: optax.OptState | None = None
    for _ in range(_STEPS):
        if clock.is_up(_DOING):
            break
        found = screen.gradient(Point(point.space, values))
        if found is None or not found[1]:
            break
        margin, slopes = found
        inner = {name: _inward(space.axes[name], values[name]) for name in slopes}
        scaled = {name: _scaled(space.axes[name], values[name], slope) for name, slope in slopes.items()}
        if not (math.isfinite(margin) and all(np.all(np.isfinite(slope)) for slope in scaled.values())):
            break
        state = optimiser.init(inner) if state is None else state
        with jax.numpy_dtype_promotion("standard"):  # optax raises floats to integer powers
            updates, state = optimiser.update(scaled, state)
        moved: Any = optax.apply_updates(inner, updates)
        values |= {name: _outward(space.axes[name], np.asarray(value)) for name, value in moved.items()}
        path.append(Point(point.space, _rounded(space, values)))
    return path


def _of(axis: Axis) -> Real | Whole:
    if isinstance(axis, Each):
        return axis.of
    assert isinstance(axis, Real | Whole), "words have no derivative"
    return axis


def _inward(axis: Axis, value: ArrayLike) -> np.ndarray:
    """The coordinate of the descent for a value: its logarithm on a geometric axis, otherwise its position between
    the ends of the axis, from 0 to 1.
    """
    ends, array = _of(axis), np.asarray(value, dtype=float)
    return np.asarray(np.log(array) if ends.geometric else (array - ends.low) / max(ends.high - ends.low, 1e-300))


def _outward(axis: Axis, inner: np.ndarray) -> float | list[float]:
    ends = _of(axis)
    array = np.exp(inner) if ends.geometric else ends.low + inner * (ends.high - ends.low)
    return np.clip(array, ends.low, ends.high).tolist()


def _scaled(axis: Axis, value: ArrayLike, slope: np.ndarray) -> np.ndarray:
    """The derivative with respect to the coordinate of the descent, from the derivative with respect to the
    value.
    """
    ends = _of(axis)
    return np.asarray(slope * np.asarray(value, dtype=float) if ends.geometric else slope * (ends.high - ends.low))


def _rounded(space: Space, values: Values) -> Document:
    whole = [name for name, axis in space.axes.items() if isinstance(axis, Whole)]
    return {name: round(value) if name in whole else value for name, value in values.items()}
