"""The prompts drawn by a task have the moments the task states, and bad arguments are refused by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import covariance, largest_z, regression, sample_means

from flowsim.losses import LinearAttentionLoss
from flowsim.papers.zhang2023.conditions import limit
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


@pytest.mark.parametrize("weights", ["isotropic", "inverse-covariance"])
def test_weights_follow_the_law_that_is_asked_for(weights):
    task = LinearRegression(covariance(2, seed=5), 4, weights=weights)
    S = np.asarray(task.covariance)
    law = np.eye(2) if weights == "isotropic" else np.linalg.inv(S)

    def moments(key):
        prompt, label = task.sample(key)
        w = jnp.linalg.lstsq(prompt.inputs, prompt.labels)[0]
        first, second = prompt.inputs[:2]
        return {
            "weight": jnp.outer(w, w),
            "weight and query": jnp.outer(w, prompt.query),
            "label squared": label**2,
            "labels with each other": prompt.labels[0] * prompt.labels[1] * jnp.outer(first, second),
            # Label given w: <w, x>, so that E[y^4] = 3 E(w^T S w)^2 = 3 (tr(S E) ^2 + 2 tr(S E S E)) with E = E[w w^T].
            "label to the fourth": label**4,
        }

    expected = {
        "weight": law,
        "weight and query": np.zeros((2, 2)),
        "label squared": np.trace(S @ law),
        "labels with each other": S @ law @ S,
        "label to the fourth": 3 * (np.trace(S @ law) ** 2 + 2 * np.trace(S @ law @ S @ law)),
    }
    mean, error = sample_means(moments, SAMPLES, seed=3)
    assert largest_z(mean, error, expected) < 4
    np.testing.assert_allclose(task.weight_energy, law, rtol=1e-14)


def test_inverse_covariance_weights_are_kept_and_move_with_the_covariates():
    """Twice the covariates, half the weight: the same labels."""
    task = LinearRegression(covariance(2, seed=5), 3, weights="inverse-covariance")
    larger, key = task.scaled(2.0), jax.random.key(1)
    assert larger.weights == "inverse-covariance" and task.shifts == ()
    (prompt, label), (scaled, scaled_label) = task.sample(key), larger.sample(key)
    np.testing.assert_allclose(scaled.inputs, 2 * prompt.inputs, rtol=1e-14)
    np.testing.assert_allclose((scaled_label, *scaled.labels), (label, *prompt.labels), rtol=1e-13)


def test_weights_of_another_law_are_refused_by_name():
    with pytest.raises(
        ValueError, match='^weights must be one of isotropic, inverse-covariance, but it is "inverse"; did'
    ):
        LinearRegression(np.eye(2), 3, weights="inverse")
    with pytest.raises(ValueError, match='^weight must be left out with weights = "inverse-covariance"'):
        LinearRegression(np.eye(2), 3, weights="inverse-covariance", weight=[1.0, 2.0])
    for of_zhang2023 in (LinearAttentionLoss, limit):
        with pytest.raises(
            ValueError, match='task must be one with weights = "isotropic", but its weights are "inverse'
        ):
            of_zhang2023(LinearRegression(np.eye(2), 3, weights="inverse-covariance"))


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


# The shifts of test prompts.


def test_a_task_without_shifts_has_none_under_jit_either():
    def shifts(covariance):
        task = LinearRegression(covariance, 3)
        return jnp.zeros(len(task.shifts)), jnp.zeros(len(task.scaled(2.0).shifts))

    assert [array.shape for array in jax.jit(shifts)(jnp.eye(2))] == [(0,), (0,)]


def test_training_prompts_are_drawn_as_they_always_were():
    """The first draws of seed 0, kept so that a change of the sampler cannot go unseen."""
    prompt, label = LinearRegression(np.diag([1.0, 4.0]), 2).sample(jax.random.key(0))
    normals = jax.random.normal(jax.random.key(0), (4, 2))
    np.testing.assert_array_equal(prompt.inputs, normals[1:3] * np.array([[1.0, 2.0]]))
    np.testing.assert_array_equal(prompt.query, normals[3] * np.array([1.0, 2.0]))
    np.testing.assert_allclose(label, normals[0] @ prompt.query, rtol=1e-15)


def test_each_shift_changes_what_it_names_and_nothing_else():
    matrix, key = covariance(2, seed=1), jax.random.key(3)
    plain, label = LinearRegression(matrix, 3).sample(key)
    noisy, noisy_label = LinearRegression(matrix, 3, label_noise=0.5).sample(key)
    np.testing.assert_array_equal(noisy.inputs, plain.inputs)
    assert np.all(noisy.labels != plain.labels) and noisy_label != label
    moved, _ = LinearRegression(matrix, 3, query_covariance=4 * matrix).sample(key)
    np.testing.assert_array_equal(moved.labels, plain.labels)
    np.testing.assert_allclose(moved.query, 2 * plain.query, rtol=1e-14)
    fixed, fixed_label = LinearRegression(matrix, 3, weight=[1.0, -2.0]).sample(key)
    np.testing.assert_allclose(fixed.labels, plain.inputs @ np.array([1.0, -2.0]), rtol=1e-14)
    np.testing.assert_allclose(fixed_label, plain.query @ np.array([1.0, -2.0]), rtol=1e-14)


def test_scaled_tasks_keep_their_shifts():
    task = LinearRegression(np.eye(2), 3, label_noise=0.5, query_covariance=2 * np.eye(2), weight=[1.0, 2.0]).scaled(
        3.0
    )
    assert task.shifts == ("label_noise", "query_covariance", "weight")
    np.testing.assert_array_equal(task.covariance, 9 * np.eye(2))
    np.testing.assert_array_equal(task.query_covariance, 18 * np.eye(2))
    assert task.label_noise == 0.5
    assert LinearRegression(np.eye(2), 3, label_noise=0.0).scaled(2).shifts == ()


@pytest.mark.parametrize("c", [0.0, -1.0, np.inf, np.nan])
def test_a_scale_that_is_none(c):
    with pytest.raises(ValueError, match="c must be (positive|finite)"):
        regression(2, 3).scaled(c)


@pytest.mark.parametrize(
    ("shift", "message"),
    [
        ({"label_noise": -0.1}, "label_noise must be at least 0, but it is -0.1"),
        ({"label_noise": np.inf}, "label_noise must be finite"),
        ({"query_covariance": np.eye(3)}, "query_covariance must be an array of shape"),
        ({"query_covariance": np.diag([1.0, -1.0])}, "query_covariance must be positive definite"),
        ({"weight": np.ones(3)}, "weight must be an array of shape"),
    ],
)
def test_bad_shifts_are_refused(shift, message):
    with pytest.raises(ValueError, match=message):
        LinearRegression(np.eye(2), 3, **shift)


@pytest.mark.parametrize("shift", [{"label_noise": 0.1}, {"query_covariance": np.eye(2)}, {"weight": np.ones(2)}])
def test_shifted_prompts_are_not_trained_on(shift):
    name = next(iter(shift))
    with pytest.raises(ValueError, match=f"task must be one of training, .* but it has a {name}"):
        LinearAttentionLoss(LinearRegression(np.eye(2), 3, **shift))
