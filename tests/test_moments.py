"""Each closed moment equals the sum over all pairings (Isserlis), entry by entry."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import covariance

from flowsim import moments

DIMENSIONS = [1, 2, 3]
LENGTHS = [1, 2, 3]


def gaussian_moment(factors, second_moment):
    """E of a product of centred Gaussians, summed over pairings; ``second_moment(a, b)`` is E[ab]."""
    if not factors:
        return 1.0
    first, *rest = factors
    return sum(
        second_moment(first, partner) * gaussian_moment(rest[:i] + rest[i + 1 :], second_moment)
        for i, partner in enumerate(rest)
    )


def inputs_moment(*factors, Lambda):
    """E of a product of entries of the inputs; an entry is (example, coordinate), and examples are independent."""
    return gaussian_moment(list(factors), lambda a, b: Lambda[a[1], b[1]] if a[0] == b[0] else 0.0)


def sample_covariance_pair(Lambda, length):
    """(d, d, d, d): E[S_ab S_cd] for the sample covariance S of ``length`` examples."""
    Lambda, d = np.asarray(Lambda), len(Lambda)
    result = np.zeros((d,) * 4)
    for a, b, c, e in itertools.product(range(d), repeat=4):
        result[a, b, c, e] = sum(
            inputs_moment((i, a), (i, b), (j, c), (j, e), Lambda=Lambda)
            for i, j in itertools.product(range(length), repeat=2)
        )
    return result / length**2


def matrices(d, count):
    """Matrices without any symmetry."""
    return jnp.asarray(np.random.default_rng(d).standard_normal((count, d, d)))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("d", DIMENSIONS)
def test_products_of_two_sample_covariances(d, length):
    Lambda, N = jnp.asarray(covariance(d, seed=d)), jnp.asarray(float(length))
    pair = sample_covariance_pair(Lambda, length)
    (M,) = matrices(d, 1)
    np.testing.assert_allclose(
        moments.sample_covariance_sandwich(M, Lambda, N), np.einsum("abcd,bc->ad", pair, M), rtol=1e-12, atol=1e-14
    )


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("d", DIMENSIONS)
def test_token_covariance_times_a_form(d, length):
    """The mean over w, of degree four, by three Hermite nodes a coordinate; over the inputs by pairings."""
    Lambda = covariance(d, seed=d)
    pair = sample_covariance_pair(Lambda, length)
    form = np.random.default_rng(d).standard_normal((d + 1, d + 1))
    nodes, weights = np.polynomial.hermite_e.hermegauss(3)
    expected = np.zeros((d + 1, d + 1))
    for choice in itertools.product(range(3), repeat=d):
        tokens = np.vstack([np.eye(d), nodes[list(choice)]])
        value = np.einsum("abce,ma,nb,pc,qe,mn->pq", pair, tokens, tokens, tokens, tokens, form, optimize=True)
        expected += np.prod((weights / weights.sum())[list(choice)]) * value
    actual = moments.token_covariance_times_form(jnp.asarray(form), jnp.asarray(Lambda), jnp.asarray(float(length)))
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-13)


def test_an_infinite_context_leaves_the_products_of_the_means():
    Lambda, N = jnp.asarray(covariance(3, seed=3)), jnp.asarray(jnp.inf)
    (M,) = matrices(3, 1)
    np.testing.assert_allclose(moments.sample_covariance_sandwich(M, Lambda, N), Lambda @ M @ Lambda, rtol=1e-12)
