"""Numbers moved a little: starts, weights and losses, to see what depends on their last digits; and how far the weights
of a solve may be off beyond these.
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
NEGLIGIBLE = 1e-276  # what no solver is asked to know of a weight, in as many steps as there may be
_EXPLAINED = 8.0  # times what the weights' last digits make of a field, above which something else rounds it


def is_symmetric(leaf: np.ndarray) -> bool:
    """Whether an array holds matrices, of more than one number, that are equal to their transposes bit for bit."""
    square = leaf.ndim > 1 and leaf.shape[-1] == leaf.shape[-2] > 1
    return square and np.array_equal(leaf, np.swapaxes(leaf, -1, -2))


def moved(start: PyTree, amount: float) -> PyTree:
    """A start of which each number is moved by a relative amount of its own, so that no two that are equal or opposite
    stay so, except those of a symmetric matrix. Zeros stay zero.
    """

    def move(place: int, leaf):
        if not eqx.is_inexact_array(leaf):
            return leaf
        values = np.asarray(leaf)
        drawn = np.random.default_rng(place).uniform(0, 2 * np.pi, (values.ndim, max(values.shape, default=0)))
        if is_symmetric(values):
            # A sum over the axes is then the same for the entries (i, j) and (j, i).
            drawn[-2] = drawn[-1]
        shares = [row[index] for row, index in zip(drawn, np.indices(values.shape), strict=True)]
        return jax.device_put(values * (1 + amount * np.cos(1.0 + place + sum(shares))))

    leaves, structure = jax.tree.flatten(start)
    return jax.tree.unflatten(structure, [move(place, leaf) for place, leaf in enumerate(leaves)])


def nudged(tree: PyTree, amount: float) -> PyTree:
    """A tree with its numbers moved by a relative amount, with signs that alternate, so that a symmetric matrix stays
    one.
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
    """How far the weights of a solve may be off as its field is rounded by more than its weights are: the field in
    float64 beside what it is in balls, over the time.
    """
    low, high = lower(slopes), upper(slopes)
    middle, radius = (low + high) / 2, (high - low) / 2
    beyond = np.maximum(np.abs(floats - middle) - _EXPLAINED * radius, 0.0)
    beyond = np.linalg.norm(np.where(np.isfinite(beyond), beyond, np.inf), axis=1)
    return np.append(0.0, np.cumsum(np.maximum(beyond[:-1], beyond[1:]) * np.diff(t)))


def allowed_in(run: Trajectory) -> PyTree:
    """How far off each array of weights may be, (T,), as the solver asks for an error relative to the larger end of a
    step: what decays in it is known less well than rtol, and stays so.
    """
    largest = lambda leaf: np.max(np.abs(np.asarray(leaf)).reshape(leaf.shape[0], -1), axis=1, initial=0.0)

    def allowed(leaf):
        sizes = largest(leaf)
        with np.errstate(divide="ignore", invalid="ignore"):
            decays = np.where(sizes[1:] > 0, np.maximum(sizes[:-1] / sizes[1:] - 1, 0.0), 0.0)
        return run.settings.rtol * sizes * np.append(0.0, np.cumsum(decays)) + NEGLIGIBLE

    return jax.tree.map(allowed, eqx.filter(run.models, eqx.is_inexact_array))
