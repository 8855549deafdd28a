"""The cubature of sample covariances: moments by two other routes, and what it cannot integrate."""

import jax.numpy as jnp
import numpy as np
import pytest

from flowsim import moments


@pytest.mark.parametrize(("d", "n", "degree"), [(1, 3, 8), (2, 1, 8), (2, 10, 26), (3, 2, 6), (3, 7, 3), (2, 10**6, 8)])
def test_trace_powers_are_the_exact_rationals(d: int, n: int, degree: int):
    factors, weights = moments.wishart_cubature(d, n, degree)
    assert weights.size == moments.cubature_size(d, n, degree)
    assert np.all(weights > 0)
    W = factors @ np.swapaxes(factors, 1, 2)
    for power in range(degree + 1):
        traces = np.trace(np.linalg.matrix_power(W, power), axis1=1, axis2=2)
        exact = float(moments.mean_trace_power(d, n, power))
        np.testing.assert_allclose(np.sum(weights * traces), exact, rtol=1e-11)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_no_direction_is_another(n: int):
    """E[W M W] of any matrix M, entry by entry."""
    factors, weights = moments.wishart_cubature(3, n, 2)
    W = factors @ np.swapaxes(factors, 1, 2)
    M = np.random.default_rng(n).standard_normal((3, 3))
    exact = moments.sample_covariance_sandwich(jnp.asarray(M), jnp.eye(3), jnp.asarray(float(n)))
    np.testing.assert_allclose(np.einsum("p,pij->ij", weights, W @ M @ W), exact, rtol=1e-12, atol=1e-13)


def test_a_rule_of_too_low_a_degree_is_seen():
    factors, weights = moments.wishart_cubature(2, 4, 2)
    traces = np.trace(np.linalg.matrix_power(factors @ np.swapaxes(factors, 1, 2), 6), axis1=1, axis2=2)
    assert abs(np.sum(weights * traces) / float(moments.mean_trace_power(2, 4, 6)) - 1) > 0.1


def test_an_infinite_context_has_one_covariance():
    factors, weights = moments.wishart_cubature(2, float("inf"), 8)
    np.testing.assert_array_equal(factors, np.eye(2)[None])
    assert weights.sum() == moments.cubature_size(2, float("inf"), 8) == 1
