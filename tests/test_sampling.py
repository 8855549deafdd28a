"""Prediction errors on sampled prompts, and their bootstrap intervals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flowsim.losses import LinearAttentionLoss, RandomCovarianceLoss
from flowsim.losses.arrowhead import balanced_minimum
from flowsim.losses.prompt_risk import risk
from flowsim.tasks import LinearRegression, Prompt, RandomCovarianceRegression
from flowsim.tasks.covariance_laws import DiagonalLaw, Gamma
from flowsim.tasks.sampling import bootstrap_interval, error_band, least_squares, squared_errors

pytestmark = pytest.mark.slow

FIXED = LinearRegression(np.diag([0.5, 1.0, 2.0]), 6)
RANDOM = RandomCovarianceRegression(DiagonalLaw(Gamma(2.0, np.ones(3))), 6)


def test_least_squares_interpolates_from_d_examples_on_and_takes_the_least_norm_before():
    prompt, label = FIXED.sample(jax.random.key(0))
    np.testing.assert_allclose(least_squares(prompt), label, rtol=1e-10)
    short = Prompt(prompt.inputs[:2], prompt.labels[:2], prompt.query)
    expected = prompt.query @ (jnp.linalg.pinv(short.inputs) @ short.labels)
    np.testing.assert_allclose(least_squares(short), expected, rtol=1e-10)


def test_errors_of_least_squares_on_an_isotropic_task_have_their_exact_mean():
    errors = squared_errors(least_squares, LinearRegression(np.eye(3), 3), (1, 2, 3), jax.random.key(1), 100, 100)
    means, spreads = errors.mean(axis=(1, 2)), errors.std(axis=(1, 2)) / 100
    assert np.all(np.abs(means[:2] - [2.0, 1.0]) < 4 * spreads[:2])  # d - M
    assert np.all(errors[2] < 1e-15)


@pytest.mark.parametrize("task", [FIXED, RANDOM], ids=["fixed", "random"])
def test_bands_of_the_literal_model_hold_its_exact_risk(task):
    loss = LinearAttentionLoss(task) if isinstance(task, LinearRegression) else RandomCovarianceLoss(task)
    model = balanced_minimum(loss.structure)
    low, high = error_band(model, task, (2, 6), jax.random.key(2), covariances=200)
    exact = np.asarray([float(risk(model, task, length)) for length in (2, 6)])
    assert np.all(low < exact) and np.all(exact < high)
    assert np.all(high - low < exact)


def test_prompts_of_a_group_share_their_covariance():
    # Errors of predicting zero have the variance of their group: groups differ by more than their own spread.
    errors = squared_errors(lambda prompt: jnp.zeros(()), RANDOM.scaled(1.0), (6,), jax.random.key(3), 40, 400)[0]
    within = errors.std(axis=1).mean() / np.sqrt(400)
    assert errors.mean(axis=1).std() > 4 * within


def test_the_bootstrap_interval_is_that_of_the_mean_of_groups():
    groups = np.random.default_rng(0).normal(5.0, 2.0, size=(400, 1))
    low, high = bootstrap_interval(groups)
    half = 1.645 * groups.std() / np.sqrt(400)
    np.testing.assert_allclose([low, high], [groups.mean() - half, groups.mean() + half], atol=0.1 * half)
    wide = bootstrap_interval(groups, level=0.99)
    assert wide[0] < low < high < wide[1]
    # Ten equal prompts a group tell no more than one.
    np.testing.assert_allclose(bootstrap_interval(np.repeat(groups, 10, axis=1)), (low, high))


def test_bad_input_is_one_line():
    with pytest.raises(ValueError, match="lengths must be between 1 and the context length 6, but they hold 7"):
        squared_errors(least_squares, FIXED, (3, 7), jax.random.key(0))
    with pytest.raises(ValueError, match="level must be between 0 and 1"):
        bootstrap_interval(np.ones((3, 3)), level=1.0)
