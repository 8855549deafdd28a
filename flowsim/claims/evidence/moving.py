"""Numbers moved a little: starts, weights and losses, to see what depends on their last digits."""

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from flowsim.losses import AbstractPopulationLoss

ROUNDING = 4 * float(np.finfo(np.float64).eps)


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
    if loss.sampled:
        return loss

    def choose(leaf, moved):
        if not eqx.is_inexact_array(leaf):
            return leaf
        values = np.asarray(leaf)
        return jax.device_put(np.where(values == np.round(values), values, np.asarray(moved)))

    return jax.tree.map(choose, loss, nudged(loss, amount))
