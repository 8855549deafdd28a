"""Random starts have the law that they state, and each matrix a key of its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_close

from flowsim import initialization

SEEDS = jnp.arange(20_000)


def second_moments(draw):
    """Means over seeds of the products of all pairs of entries, with their largest standard error."""
    entries = np.asarray(jax.jit(jax.vmap(draw))(SEEDS)).reshape(SEEDS.size, -1)
    return entries.T @ entries / SEEDS.size, 5 * 3 / np.sqrt(SEEDS.size)


def test_gaussian_entries_are_independent_between_layers_too():
    moments, error = second_moments(lambda seed: initialization.gaussian(1.0, 2, seed, layers=2))
    np.testing.assert_allclose(moments, np.eye(8), atol=error)


def test_symmetric_matrices_are_the_mean_of_a_gaussian_and_its_transpose():
    moments, error = second_moments(lambda seed: initialization.symmetric(1.0, 2, seed))
    off = [0, 0.5, 0.5, 0]
    np.testing.assert_allclose(moments, [[1, 0, 0, 0], off, off, [0, 0, 0, 1]], atol=error)


def test_diagonal_matrices_keep_the_diagonal():
    G, D = initialization.gaussian(0.3, 3, 7, layers=2), initialization.diagonal(0.3, 3, 7, layers=2)
    np.testing.assert_array_equal(D, [np.diag(np.diag(layer)) for layer in G])
    np.testing.assert_array_equal(initialization.diagonal(0.3, 3, 7), D[0])


def test_the_first_layers_do_not_depend_on_the_depth():
    for draw in (initialization.gaussian, initialization.symmetric, initialization.diagonal):
        deep = draw(0.1, 3, 5, layers=4)
        np.testing.assert_array_equal(draw(0.1, 3, 5, layers=2), deep[:2])
        np.testing.assert_array_equal(draw(0.1, 3, 5), deep[0])
        assert_close(draw(0.2, 3, 5), 2 * deep[0], rtol=1e-15)
        assert not np.any(np.diagonal(deep[0] == deep[1]))


def test_both_weights_of_a_masked_layer_are_drawn():
    moments, error = second_moments(
        lambda seed: jnp.concatenate(
            [weight.ravel() for weight in jax.tree.leaves(initialization.masked(0.5, 2, seed))]
        )
    )
    np.testing.assert_allclose(moments, 0.25 * np.eye(9), atol=0.25 * error)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: initialization.gaussian(0.0, 2, 0), "scale must be positive"),
        (lambda: initialization.symmetric(1.0, 0, 0), "dimension must be a whole number of at least 1"),
        (lambda: initialization.diagonal(1.0, 2, 0, layers=0), "layers must be a whole number of at least 1"),
        (lambda: initialization.masked(-1.0, 2, 0), "scale must be positive"),
    ],
)
def test_starts_that_are_none(make, message):
    with pytest.raises(ValueError, match=message):
        make()
