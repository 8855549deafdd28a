"""Each literal transformer misses the label by the product of matrices that the papers derive, on any one prompt."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_close, random_model, regression, symmetrise

from flowsim.models import LinearAttention, LoopedAttention, MaskedAttention, MultiLayerAttention
from flowsim.tasks import Prompt

D, N, LAYERS = 3, 4, 3


@pytest.fixture(scope="module")
def drawn():
    """A prompt, its w, and the error of a model on it."""
    rng = np.random.default_rng(0)
    inputs, query, w = rng.standard_normal((N, D)), rng.standard_normal(D), rng.standard_normal(D)
    prompt = Prompt(jnp.asarray(inputs), jnp.asarray(inputs @ w), jnp.asarray(query))
    return prompt, w, lambda model: float(w @ query - model(prompt))


def matrices(count, seed=1):
    """Random matrices without any symmetry."""
    return np.random.default_rng(seed).standard_normal((count, D, D))


def sample_covariance(prompt):
    return np.asarray(prompt.inputs.T @ prompt.inputs) / N


def test_layers_multiply_from_left_to_right(drawn):
    prompt, w, error = drawn
    A, S = matrices(LAYERS), sample_covariance(prompt)
    product = np.eye(D)
    for layer in A:
        product = product @ (np.eye(D) - S @ layer)
    expected = w @ product @ np.asarray(prompt.query)
    np.testing.assert_allclose(error(MultiLayerAttention(A, symmetric=False)), expected, rtol=1e-12)
    # The other order is another number, so that the test can tell.
    backwards = error(MultiLayerAttention(A[::-1], symmetric=False))
    assert abs(backwards - expected) > 0.1 * abs(expected)


def test_value_weights_of_the_covariates_add_to_the_weight(drawn):
    prompt, w, error = drawn
    A, u = matrices(1)[0], np.array([0.3, -1.0, 2.0])
    R = np.linalg.matrix_power(np.eye(D) - sample_covariance(prompt) @ A, LAYERS)
    expected = (w @ R - u @ (np.eye(D) - R)) @ np.asarray(prompt.query)
    np.testing.assert_allclose(error(LoopedAttention(A, u, loops=LAYERS)), expected, rtol=1e-12)
    assert abs(expected - w @ R @ np.asarray(prompt.query)) > 0.1


@pytest.mark.parametrize("loops", [1, 3])
def test_loops_are_layers_with_the_same_matrix(drawn, loops):
    A = matrices(1)[0]
    looped = LoopedAttention(A, loops=loops)
    layers = MultiLayerAttention(np.stack([A] * loops), symmetric=False)
    np.testing.assert_allclose(drawn[2](looped), drawn[2](layers), rtol=1e-13)


def test_loops_are_steps_of_preconditioned_gradient_descent(drawn):
    """gatmiry2024, Proposition 3.1: w_{t+1} = w_t - A^T grad of the mean squared error over 2."""
    prompt, w, error = drawn
    A, S = 0.3 * np.eye(D), sample_covariance(prompt)
    reached = np.zeros(D)
    for _ in range(5):
        reached = reached - A @ S @ (reached - w)
    expected = (w - reached) @ np.asarray(prompt.query)
    np.testing.assert_allclose(error(LoopedAttention(A, loops=5)), expected, rtol=1e-12)


def test_covariates_that_move_follow_their_recursion(drawn):
    """ahn2023 (54) with A of the other sign, the query's column included; the labels keep the row of w^T X_0."""
    prompt, w, error = drawn
    A, B = symmetrise(jnp.asarray(matrices(LAYERS))), matrices(LAYERS - 1, seed=2)
    X = np.column_stack([np.asarray(prompt.inputs).T, prompt.query])
    mask = np.diag([1.0] * N + [0.0])
    Y = w @ X
    for layer, move in zip(np.asarray(A), [*B, np.zeros((D, D))], strict=True):
        X, Y = X - move @ X @ mask @ X.T @ layer @ X / N, Y - Y @ mask @ X.T @ layer @ X / N
    np.testing.assert_allclose(error(MultiLayerAttention(A, B)), Y[-1], rtol=1e-12)
    assert abs(Y[-1] - error(MultiLayerAttention(A))) > 0.1


def test_one_masked_layer_is_a_linear_attention_layer_without_value_weights_of_covariates():
    prompt, _ = regression(D, N).sample(jax.random.key(0))
    model = random_model(D, 1)
    A = np.vstack([model.U11, model.u21])
    masked = MaskedAttention(-np.append(np.zeros(D), model.u_minus1), A)
    same = LinearAttention(model.U11, model.u_minus1, None, model.u21)
    np.testing.assert_allclose(masked(prompt), same(prompt), rtol=1e-13)
    # With u12 the layer that does not mask attends to the query too: by u12^T x x^T U11 x / N.
    masked = MaskedAttention(-np.append(model.u12, model.u_minus1), A)
    x = prompt.query
    np.testing.assert_allclose(model(prompt) - masked(prompt), (model.u12 @ x) * (x @ model.U11 @ x) / N, rtol=1e-11)


def test_one_loop_is_a_masked_layer(drawn):
    A, u = matrices(1)[0], np.array([0.3, -1.0, 2.0])
    masked = MaskedAttention(np.append(u, 1.0), np.vstack([A, np.zeros(D)]))
    # ahn2023 adds the layer that gatmiry2024 subtracts.
    flipped = MaskedAttention(masked.b, -masked.A)
    np.testing.assert_allclose(drawn[2](LoopedAttention(A, u, loops=1)), drawn[2](flipped), rtol=1e-13)


def test_a_matrix_that_rounding_made_asymmetric_is_made_symmetric():
    A = np.array([[[1.0, 0.5], [0.5 + 1e-16, 1.0]]])
    model = MultiLayerAttention(A)
    np.testing.assert_array_equal(model.A, np.swapaxes(model.A, 1, 2))


def test_the_unused_last_move_is_no_weight_and_zeros_are_the_default():
    model = MultiLayerAttention(np.zeros((1, 2, 2)), np.zeros((0, 2, 2)))
    assert model.B is not None and model.B.shape == (0, 2, 2)
    assert_close(LoopedAttention(np.eye(2), loops=1).u, jnp.zeros(2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LoopedAttention(np.ones((2, 3)), loops=1), r"A must be a square matrix, but its shape is \(2, 3\)"),
        (lambda: LoopedAttention(np.zeros((0, 0)), loops=1), "A must be a square matrix"),
        (lambda: LoopedAttention(np.eye(2), np.ones(3), loops=1), r"u must be an array of shape \(2,\)"),
        (lambda: LoopedAttention([[np.nan]], loops=1), "A must be finite"),
        (lambda: LoopedAttention(np.eye(2), loops=0), "loops must be a whole number of at least 1, but it is 0"),
        (lambda: LoopedAttention(np.eye(2), loops=True), "loops must be a whole number of at least 1, but it is True"),
        (lambda: MultiLayerAttention(np.eye(2)), r"A must be an array of shape \(any, any, any\)"),
        (lambda: MultiLayerAttention(np.ones((2, 2, 3))), "A must be square matrices"),
        (lambda: MultiLayerAttention(np.ones((0, 2, 2))), "A must be square matrices"),
        (lambda: MultiLayerAttention(matrices(2)), "A must be symmetric, but it differs from its transpose by"),
        (lambda: MultiLayerAttention(np.zeros((2, 3, 3)), np.zeros((2, 3, 3))), "B must be an array of shape"),
        (lambda: MaskedAttention(np.ones(2), np.ones((2, 2))), r"A must be an array of shape \(d \+ 1, d\)"),
        (lambda: MaskedAttention(np.ones(2), np.ones((3, 2))), r"b must be an array of shape \(3,\)"),
    ],
)  # fmt: skip
def test_bad_weights_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
