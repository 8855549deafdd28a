"""The literal transformer, its explicit sum (3.6) and the quadratic form of Lemma 5.1 are one function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_close, random_model, regression

from flowsim.models import LinearAttention
from flowsim.models.linear_attention import embed


def explicit_sum(model, prompt):
    """zhang2023 (3.6), token by token: (u12; u_-1)^T [sum_j e_j e_j^T / N] (U11; u21^T) x_query, query included."""
    value = np.append(model.u12, model.u_minus1)
    key_query = np.vstack([model.U11, model.u21])
    context = np.column_stack([prompt.inputs, prompt.labels])
    query = np.append(prompt.query, 0.0)
    total = 0.0
    for token in [*context, query]:
        total += (value @ token) * (token @ key_query @ prompt.query)
    return total / len(prompt.labels)


def quadratic_form(model, prompt):
    """zhang2023 Lemma 5.1: u^T H u with H = X kron (E E^T / N) / 2 and u the columns of U on top of each other."""
    d = len(prompt.query)
    E = np.asarray(embed(prompt))
    X = np.zeros((d + 1, d + 1))
    X[:d, d] = X[d, :d] = prompt.query
    H = np.kron(X, E @ E.T / len(prompt.labels)) / 2
    U = np.block([[np.asarray(model.U11), np.asarray(model.u12)[:, None]], [np.append(model.u21, model.u_minus1)]])
    u = U.flatten(order="F")
    return u @ H @ u


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("d", "context_length"), [(1, 1), (2, 3), (3, 20)])
def test_three_ways_to_predict_agree(d, context_length, seed):
    model = random_model(d, seed)
    prompt, _ = regression(d, context_length).sample(jax.random.key(seed))
    prediction = model(prompt)
    np.testing.assert_allclose(prediction, explicit_sum(model, prompt), rtol=1e-12)
    np.testing.assert_allclose(prediction, quadratic_form(model, prompt), rtol=1e-12)


def test_the_embedding_stacks_examples_as_columns_and_hides_the_label():
    prompt, _ = regression(2, 3).sample(jax.random.key(0))
    E = embed(prompt)
    assert E.shape == (3, 4)
    assert_close(E[:2, :3], prompt.inputs.T)
    assert_close(E[2, :3], prompt.labels)
    assert_close(E[:, 3], jnp.append(prompt.query, 0.0))


def test_value_weights_of_the_covariates_default_to_zero():
    model = LinearAttention(np.eye(2), 0.5)
    assert_close((model.u12, model.u21), (jnp.zeros(2), jnp.zeros(2)))


def test_at_the_optimum_with_a_long_context_the_model_predicts_the_label():
    task = regression(2, 2000)
    prompt, label = task.sample(jax.random.key(0))
    model = LinearAttention(jnp.linalg.inv(task.gamma()), 1.0)
    np.testing.assert_allclose(model(prompt), label, atol=4 * np.sqrt(float(label) ** 2 / 2000))


def test_the_model_runs_on_a_batch_of_prompts_and_has_a_gradient():
    task = regression(2, 3)
    prompts, _ = jax.vmap(task.sample)(jax.random.split(jax.random.key(0), 5))
    model = random_model(2, 0)
    assert jax.vmap(model)(prompts).shape == (5,)
    gradient = jax.grad(lambda model: jax.vmap(model)(prompts).sum())(model)
    step = 1e-6
    moved = LinearAttention(model.U11, model.u_minus1 + step, model.u12, model.u21)
    difference = (jax.vmap(moved)(prompts).sum() - jax.vmap(model)(prompts).sum()) / step
    np.testing.assert_allclose(gradient.u_minus1, difference, rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.ones((2, 3)), 1.0), "U11 must be a square matrix"),
        ((np.ones(2), 1.0), "U11 must be an array of shape"),
        ((np.eye(2), np.ones(1)), "u_minus1 must be an array of shape"),
        ((np.eye(2), np.nan), "u_minus1 must be finite"),
        ((np.eye(2), 1.0, np.ones(3)), "u12 must be an array of shape"),
        ((np.eye(2), 1.0, None, np.ones((2, 1))), "u21 must be an array of shape"),
        ((np.diag([1.0, np.inf]), 1.0), "U11 must be finite"),
    ],
)
def test_bad_weights_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        LinearAttention(*arguments)
