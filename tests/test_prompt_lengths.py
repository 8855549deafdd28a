"""The formulas of section 4.1, and the calculator of prompt lengths: the smallest lengths are the smallest."""

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import covariance

import flowsim
from flowsim.losses.prompt_risk import risk
from flowsim.papers.zhang2023.conditions import limit
from flowsim.papers.zhang2023.prompt_lengths import (
    printed_context_length,
    sufficient_context_length,
    sufficient_test_length,
)
from flowsim.papers.zhang2023.section_4_1 import averaged_bounds, noiseless_bound, noiseless_risk, nonlinear_risk
from flowsim.tasks import LinearRegression
from flowsim.tasks.joint_law import JointLaw

LAMBDAS = {
    "one": np.array([[2.0]]),
    "identity": np.eye(3),
    "anisotropic": covariance(4, seed=1, condition=100.0),
    "condition 1e6": np.diag([1e-6, 1e-3, 1.0]),
}


def averaged(Lambda, N, M):
    task = LinearRegression(Lambda, N)
    return float(risk(limit(task), task, M))


def test_one_dimension_by_hand():
    """Lambda = 2, N = 4, so that Gamma = 3; w = 3, M = 5."""
    Lambda, w = jnp.asarray([[2.0]]), jnp.asarray([3.0])
    test, train = noiseless_risk(Lambda, w, 4.0, 5.0)
    np.testing.assert_allclose(test, (9 * 8 / 9 + 4 / 9 * 18) / 5, rtol=1e-15)
    np.testing.assert_allclose(train, (9 * 8 / 9 + 2 * 2 * 9 * 4 / 9 + 4 * 9 * 2 / 9) / 16, rtol=1e-15)
    np.testing.assert_allclose(noiseless_bound(Lambda, w, 4.0, 5.0), [2 * 18 / 5, (18 + 36 + 18) / 16], rtol=1e-15)
    second = 4 / 5 + (2 + 4 + 2) / 16
    np.testing.assert_allclose(averaged_bounds(Lambda, 4.0, 5.0), [second, second], rtol=1e-15)
    np.testing.assert_allclose(sufficient_test_length(Lambda, 0.1), 2 * 2 * 2 / 0.1, rtol=1e-15)
    np.testing.assert_allclose(sufficient_context_length(Lambda, 0.1), np.sqrt(2 * 4 * 2 / 0.1), rtol=1e-15)
    np.testing.assert_allclose(printed_context_length(Lambda, 0.01), np.sqrt(2 * 4 * 2 * 10), rtol=1e-15)


@pytest.mark.parametrize("name", LAMBDAS)
@pytest.mark.parametrize(("N", "M"), [(1, 1), (3, 50), (1000, 2), (20, np.inf)])
def test_averages_over_weights_are_the_averaged_forms(name, N, M):
    """Weights sqrt(d) times the eigenvectors have the second moments of N(0, I)."""
    Lambda = jnp.asarray(LAMBDAS[name])
    d = Lambda.shape[0]
    weights = np.sqrt(d) * np.linalg.eigh(Lambda)[1].T
    mean = np.mean([np.sum(noiseless_risk(Lambda, jnp.asarray(w), N, M)) for w in weights])
    np.testing.assert_allclose(mean, averaged(Lambda, N, M), rtol=1e-9)
    bound = np.mean([np.sum(noiseless_bound(Lambda, jnp.asarray(w), N, M)) for w in weights])
    np.testing.assert_allclose(bound, averaged_bounds(Lambda, N, M)[0], rtol=1e-9)


def test_the_terms_of_a_nonlinear_law_add_up_to_the_risk():
    Lambda = covariance(3, seed=2)
    law = JointLaw.of_polynomial(Lambda, [1.0, -0.5, 0.2], square=0.7, cube=0.2, label_noise=0.3)
    for N, M in [(2, 1), (30, 7), (np.inf, 4), (5, np.inf)]:
        expected = risk(limit(LinearRegression(Lambda, N)), law, M)
        np.testing.assert_allclose(sum(nonlinear_risk(law, N, M)), expected, rtol=1e-12)


@pytest.mark.parametrize("epsilon", [0.3, 1e-3, 1e-7])
@pytest.mark.parametrize("name", LAMBDAS)
def test_the_smallest_lengths_are_enough_and_one_less_is_not(name, epsilon):
    Lambda = LAMBDAS[name]
    found = flowsim.prompt_lengths(Lambda, epsilon)
    N, M, inf = found.context_length, found.test_length, np.inf
    assert averaged(Lambda, N, M) <= epsilon
    assert M == 1 or averaged(Lambda, N, M - 1) > epsilon
    assert averaged(Lambda, found.smallest_context_length, inf) <= epsilon
    assert found.smallest_context_length == 1 or averaged(Lambda, found.smallest_context_length - 1, inf) > epsilon
    matching = found.matching_context_length
    assert averaged(Lambda, matching, M) <= epsilon
    assert matching == 1 or averaged(Lambda, matching - 1, M) > epsilon
    assert averaged(Lambda, found.sufficient_context_length, found.sufficient_test_length) <= epsilon
    assert found.smallest_context_length <= matching <= N == found.sufficient_context_length
    assert found.test_length <= found.sufficient_test_length


def test_lengths_at_a_given_training_length():
    found = flowsim.prompt_lengths(np.eye(2), 0.01, context_length=np.inf)
    assert found.test_length == 600  # (d + 1) tr(Lambda)/epsilon, exactly
    assert found.context_length == np.inf


def test_a_training_length_that_no_prompt_makes_up_for():
    with pytest.raises(
        ValueError, match="context_length must be at least 132 for a risk of 0.001, but at 10 the risk is"
    ):
        flowsim.prompt_lengths(np.eye(2), 1e-3, context_length=10)
    assert averaged(np.eye(2), 132, np.inf) <= 1e-3 < averaged(np.eye(2), 131, np.inf)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, np.nan, 1e-30])
def test_an_epsilon_that_is_none_or_out_of_reach(epsilon):
    with pytest.raises(ValueError, match="epsilon must be"):
        flowsim.prompt_lengths(np.eye(2), epsilon)
