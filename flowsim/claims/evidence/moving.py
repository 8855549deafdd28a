"""Perturbed starts, weights and losses, to measure the effect of rounding, and bounds on the error of weights beyond
it.
"""

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float, PyTree

from flowsim._core.balls.enclosure import lower, upper
from flowsim._core.balls.operations import Balls
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import AbstractPopulationLoss
from flowsim.losses.sampled.monte_carlo import MonteCarloLoss

ROUNDING = 4 * float(np.finfo(np.float64).eps)
NEGLIGIBLE = 1e-276  # the absolute error of a weight that no solver resolves, over all steps
_EXPLAINED = 8.0  # times the effect of rounding the weights: a larger error of the field has another cause


def is_symmetric(leaf: np.ndarray) -> bool:
    """Whether an array holds matrices, larger than 1 x 1, that are bitwise symmetric."""
    square = leaf.ndim > 1 and leaf.shape[-1] == leaf.shape[-2] > 1
    return square and np.array_equal(leaf, np.swapaxes(leaf, -1, -2))


def moved(start: PyTree, amount: float) -> PyTree:
    """A start with each number perturbed by a different relative amount.

    Equal or opposite numbers do not stay so, but symmetric matrices stay symmetric and zeros stay zero.
    """

    def move(place: int, leaf):
        if not eqx.is_inexact_array(leaf):
            return leaf
        values = np.asarray(leaf)
        drawn = np.random.default_rng(place).uniform(0, 2 * np.pi, (values.ndim, max(values.shape, default=0)))
        if is_symmetric(values):
            # The sum over the axes is then equal for the entries (i, j) and (j, i).
            drawn[-2] = drawn[-1]
        shares = [row[index] for row, index in zip(drawn, np.indices(values.shape), strict=True)]
        return jax.device_put(values * (1 + amount * np.cos(1.0 + place + sum(shares))))

    leaves, structure = jax.tree.flatten(start)
    return jax.tree.unflatten(structure, [move(place, leaf) for place, leaf in enumerate(leaves)])


def nudged(tree: PyTree, amount: float) -> PyTree:
    """A tree with its numbers perturbed by a relative amount with alternating signs. Symmetric matrices stay
    symmetric.
    """

    def move(leaf):
        if not eqx.is_inexact_array(leaf):
            return leaf
        signs = 1.0 - 2.0 * (np.sum(np.indices(leaf.shape), axis=0) % 2)
        return jax.device_put(np.asarray(leaf) * (1 + amount * signs))

    return jax.tree.map(move, tree)


def nudged_loss(loss: AbstractPopulationLoss, amount: float) -> AbstractPopulationLoss:
    """A loss with its numbers moved, except whole ones, since lengths and dimensions are exact, and samples."""
    if isinstance(loss, MonteCarloLoss):
        return loss

    def choose(leaf, moved):
        if not eqx.is_inexact_array(leaf):
            return leaf
        values = np.asarray(leaf)
        return jax.device_put(np.where(values == np.round(values), values, np.asarray(moved)))

    return jax.tree.map(choose, loss, nudged(loss, amount))


def lost_in(slopes: Balls, floats: Float[np.ndarray, "T n"], t: np.ndarray) -> Float[np.ndarray, " T"]:
    """A bound on the error of the weights from a field that is rounded by more than its weights are.

    It is the difference between the field in float64 and its balls, integrated over time.

    **Arguments:**

    - slopes: (T, n) the field in balls.
    - floats: (T, n) the field in float64.
    - t: (T,) the times.
    """
    low, high = lower(slopes), upper(slopes)
    middle, radius = (low + high) / 2, (high - low) / 2
    beyond = np.maximum(np.abs(floats - middle) - _EXPLAINED * radius, 0.0)
    beyond = np.linalg.norm(np.where(np.isfinite(beyond), beyond, np.inf), axis=1)
    return np.append(0.0, np.cumsum(np.maximum(beyond[:-1], beyond[1:]) * np.diff(t)))


def allowed_in(run: Trajectory) -> PyTree:
    """(T,) for each array of weights, the error that the solver's tolerance allows.

    The tolerance is relative to the larger end of a step, so that a weight that decays within it has a larger relative
    error, and keeps it.
    """
    largest = lambda leaf: np.max(np.abs(np.asarray(leaf)).reshape(leaf.shape[0], -1), axis=1, initial=0.0)

    def allowed(leaf):
        sizes = largest(leaf)
        with np.errstate(divide="ignore", invalid="ignore"):
            decays = np.where(sizes[1:] > 0, np.maximum(sizes[:-1] / sizes[1:] - 1, 0.0), 0.0)
        return run.settings.rtol * sizes * np.append(0.0, np.cumsum(decays)) + NEGLIGIBLE

    return jax.tree.map(allowed, eqx.filter(run.models, eqx.is_inexact_array))
