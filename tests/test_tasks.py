"""The prompts drawn by a task have the moments the task states, and bad arguments are refused by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import covariance, largest_z, regression, sample_means

from flowsim.tasks import LinearRegression

SAMPLES = 200_000


@pytest.mark.parametrize(("d", "context_length"), [(1, 1), (2, 3), (3, 20)])
def test_gamma_is_the_second_moment_of_the_sample_covariance(d, context_length):
    task = regression(d, context_length)

    def second_moment(key):
        inputs = task.sample(key)[0].inputs
        sample_covariance = inputs.T @ inputs / context_length
        return sample_covariance @ sample_covariance

    mean, error = sample_means(second_moment, SAMPLES, seed=d)
    assert largest_z(mean, error, task.gamma() @ task.covariance) < 4


def test_samples_follow_the_stated_law():
    task = regression(3, 2)

    def moments(key):
        prompt, label = task.sample(key)
        first, second = prompt.inputs
        return {
            "first input": jnp.outer(first, first),
            "query": jnp.outer(prompt.query, prompt.query),
            "inputs with each other": jnp.outer(first, second),
            "context with query": jnp.outer(first, prompt.query),
            "labels with each other": prompt.labels[0] * prompt.labels[1] * jnp.outer(first, second),
            "label with query label": prompt.labels[0] * label * jnp.outer(first, prompt.query),
            "label squared": label**2,
            "label": label,
        }

    S = np.asarray(task.covariance)
    expected = {
        "first input": S,
        "query": S,
        "inputs with each other": np.zeros((3, 3)),
        "context with query": np.zeros((3, 3)),
        # E[y_1 y_2 x_1 x_2^T] = E[x_1 x_1^T w w^T x_2 x_2^T] = S S
        "labels with each other": S @ S,
        "label with query label": S @ S,
        "label squared": np.trace(S),
        "label": np.zeros(()),
    }
    mean, error = sample_means(moments, SAMPLES, seed=7)
    assert largest_z(mean, error, expected) < 4


def test_one_weight_vector_explains_every_label_of_a_prompt():
    prompt, label = regression(3, 20).sample(jax.random.key(0))
    weight = np.linalg.lstsq(prompt.inputs, prompt.labels)[0]
    np.testing.assert_allclose(prompt.inputs @ weight, prompt.labels, atol=1e-12)
    np.testing.assert_allclose(prompt.query @ weight, label, atol=1e-12)


def test_the_same_key_draws_the_same_prompt_and_another_key_another():
    task = regression(2, 4)
    first, again, other = (task.sample(jax.random.key(seed))[0].inputs for seed in (0, 0, 1))
    assert jnp.array_equal(first, again)
    assert not jnp.array_equal(first, other)


def test_gamma_in_the_limit_of_infinite_context_is_the_covariance():
    task = regression(3, jnp.inf)
    np.testing.assert_array_equal(task.gamma(), task.covariance)


def test_an_infinite_context_cannot_be_sampled():
    with pytest.raises(ValueError, match="context_length must be a known finite number"):
        regression(2, jnp.inf).sample(jax.random.key(0))


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.ones((2, 3)), "covariance must be a square matrix"),
        (np.ones(3), "covariance must be an array of shape"),
        ([[1.0, 0.1], [0.0, 1.0]], "covariance must be symmetric"),
        (np.diag([1.0, -0.5]), "covariance must be positive definite, but its smallest eigenvalue is -0.5"),
        (np.diag([1.0, 0.0]), "covariance must be positive definite"),
        (np.diag([1.0, np.nan]), "covariance must be finite"),
        (np.diag([1.0, np.inf]), "covariance must be finite"),
        ([[1.0, 0.0], [0.0]], "covariance must be an array of numbers"),
        (np.zeros((0, 0)), "covariance must be"),
    ],
)
def test_bad_covariances_are_refused(matrix, message):
    with pytest.raises(ValueError, match=message):
        LinearRegression(matrix, 3)


@pytest.mark.parametrize("context_length", [0, -1, 2.5, np.nan, -np.inf, np.ones(1)])
def test_bad_context_lengths_are_refused(context_length):
    with pytest.raises(ValueError, match="context_length must be a whole number of at least 1, or inf"):
        LinearRegression(covariance(2, 0), context_length)


def test_a_task_can_be_built_under_a_transformation():
    def gamma_trace(scale):
        return jnp.trace(LinearRegression(scale * jnp.eye(2), 4).gamma())

    np.testing.assert_allclose(jax.grad(gamma_trace)(1.0), 1.25 * 2 + 0.25 * 2 * 2)
