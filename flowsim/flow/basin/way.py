"""A proved bound on the remaining length of a gradient flow, and a test whether a start is a critical point."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from flowsim._core.balls.enclosure import enclose
from flowsim.flow.basin.bowls import in_a_bowl
from flowsim.flow.basin.landscape import UNSUPPORTED, Landscape, descends
from flowsim.flow.basin.valleys import in_a_valley
from flowsim.flow.solvers.threads import blas_in_one_thread

_LARGEST_BOWL = 128  # weights
_OFFSET = 1e-6  # of the weights: the distance of nearby points
_AT_REST = 1e-12  # of the weights: a start that moves less is at rest up to rounding


class Tail(NamedTuple):
    """The continuation of a flow beyond the end of its trajectory.

    **Fields:**

    - moved: the weights at the end of the continuation minus those at the end of the trajectory.
    - way_to_go: a bound on the length of the flow from the end of the continuation to the limit.
    """

    moved: PyTree
    way_to_go: float


def way_to_go(flow: Landscape, state: PyTree, start: PyTree, step_size: float = 0.0, apart: float = 0.0) -> float:
    """A proved bound on the length of the path from a state to the limit of a gradient flow; infinite if no bound
    is found.

    Only curvatures within the smallest subspace that provably contains the flow matter: arrays that are symmetric
    or zero at t = 0 remain so if the field preserves this at all weights. A continuous symmetry of the loss with a
    conserved quantity is taken into account, and so is a continuum of minima.

    **Arguments:**

    - flow: the flow.
    - state: the weights at which the path begins.
    - start: the weights at t = 0.
    - step_size: 0 for the flow; the step size for gradient descent. No bound is found if it exceeds 2/curvature.
    - apart: the bound also holds for every path that begins within this distance of the state.
    """
    leaves, structure = jax.tree.flatten(state)
    is_small = sum(leaf.size for leaf in leaves) <= _LARGEST_BOWL
    if not (is_small or flow.loss is not None) or not all(np.all(np.isfinite(leaf)) for leaf in leaves):
        return math.inf
    if not descends(flow, state):
        return math.inf
    begin = [np.asarray(leaf) for leaf in jax.tree.leaves(start)]
    bowl = flow, leaves, structure, begin, step_size, apart
    length = _or_infinity(in_a_bowl, *bowl) if is_small else math.inf
    if math.isfinite(length) or flow.loss is None or step_size:
        return length
    return _or_infinity(in_a_valley, flow.loss, state)


def _or_infinity(bound: Callable[..., float], *arguments: object) -> float:
    try:
        with blas_in_one_thread():
            return bound(*arguments)
    except UNSUPPORTED:
        return math.inf


def rests(flow: Landscape, state: PyTree) -> bool:
    """Whether a start with zero gradient in float64 is a critical point: the exact gradient is zero, or the start
    is a minimum up to rounding.

    If the gradient cannot be computed in balls, the test only excludes an underflow: the gradient of every array
    must be nonzero at nearby weights.
    """
    largest = lambda leaf: float(np.max(np.abs(leaf), initial=0.0))
    size = max(map(largest, jax.tree.leaves(state)))
    try:
        slopes = jax.tree.leaves(enclose(flow.field, state, open_branches=True))
    except UNSUPPORTED:
        rng = np.random.default_rng(0)
        outside = lambda leaf: leaf + _OFFSET * (largest(leaf) or size or 1.0) * rng.standard_normal(leaf.shape)
        slopes = jax.tree.leaves(flow.field(jax.tree.map(outside, state)))
        return all(bool(np.any(np.asarray(slope) != 0)) for slope in slopes)
    # A ball that contains zero and other numbers has lost its digits, as float64 has.
    if all(bool(ball == 0) for slope in slopes for ball in np.ravel(slope)):
        return True
    return way_to_go(flow, state, state) <= _AT_REST * size
