"""The exact loss of the masked layer is the literal model's, over all weights, and (8) is where it is least."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_close, largest_z, regression, sample_means

from flowsim.claims.critical_points.end_points import hessian
from flowsim.losses import LinearAttentionLoss, MaskedAttentionLoss, MinimumKind
from flowsim.losses.deep.multi_layer import LoopedLoss
from flowsim.models import LinearAttention, LoopedAttention, MaskedAttention
from flowsim.tasks import LinearRegression, Prompt

pytestmark = pytest.mark.slow


def drawn(d: int, seed: int, scale: float = 0.7) -> MaskedAttention:
    """Weights without any symmetry, b_x and alpha included."""
    rng = np.random.default_rng(seed)
    return MaskedAttention(scale * rng.standard_normal(d + 1), scale * rng.standard_normal((d + 1, d)))


def same_unmasked(model: MaskedAttention) -> LinearAttention:
    """The layer that attends to the query too, with the same weights; its prediction has no minus sign."""
    return LinearAttention(model.A[:-1], -model.b[-1], -model.b[:-1], model.A[-1])


@pytest.mark.parametrize(("d", "length"), [(1, 3), (2, 1), (2, 2)])
def test_loss_over_all_weights_by_quadrature(d, length):
    """The squared error is a polynomial of degree at most 4 in each Gaussian: three Hermite nodes each are exact."""
    task = regression(d, length, seed=d)
    root = np.linalg.cholesky(task.covariance)
    model = drawn(d, seed=d)
    nodes, weights = np.polynomial.hermite_e.hermegauss(3)
    count = d * (length + 2)

    def error(gaussians):
        w, inputs = gaussians[:d], gaussians[d:].reshape(length + 1, d) @ root.T
        labels = inputs @ w
        return (model(Prompt(inputs[:-1], labels[:-1], inputs[-1])) - labels[-1]) ** 2

    choices = np.indices((len(nodes),) * count).reshape(count, -1).T
    points, probabilities = jnp.asarray(nodes[choices]), np.prod((weights / weights.sum())[choices], axis=1)
    errors = jax.lax.map(error, points, batch_size=4096)
    np.testing.assert_allclose(MaskedAttentionLoss(task)(model), probabilities @ errors, rtol=1e-11)


@pytest.mark.parametrize(("d", "length"), [(3, 2), (3, 10)])
def test_loss_and_gradient_by_sampling(d, length):
    """Within three stated standard errors of the literal model's error, and of its gradient, on 200,000 prompts."""
    task = regression(d, length, seed=d)
    model = drawn(d, seed=1)

    def squared_error(model, key):
        prompt, label = task.sample(key)
        return (model(prompt) - label) ** 2

    mean, error = sample_means(lambda key: jax.value_and_grad(squared_error)(model, key), 200_000, seed=d)
    loss = MaskedAttentionLoss(task)
    assert largest_z(mean, error, (loss(model), loss.gradient(model))) < 3


@pytest.mark.parametrize("length", [1, 4, np.inf])
def test_the_mask_changes_what_u12_does_and_nothing_else(length):
    """Where b_x = 0 and at n = inf the loss is twice that of the layer without a mask; elsewhere it is another."""
    masked, unmasked = MaskedAttentionLoss(regression(3, length)), LinearAttentionLoss(regression(3, length))
    model = drawn(3, seed=2)
    without = MaskedAttention(model.b.at[:-1].set(0.0), model.A)
    np.testing.assert_allclose(masked(without), 2 * unmasked(same_unmasked(without)), rtol=1e-12)
    np.testing.assert_allclose(masked.minimum, 2 * unmasked.minimum, rtol=1e-15)
    ratio = masked(model) / (2 * unmasked(same_unmasked(model)))
    if np.isinf(length):
        np.testing.assert_allclose(ratio, 1.0, rtol=1e-12)
    else:
        assert abs(ratio - 1) > 1e-3


def test_one_loop_is_this_layer():
    """A looped layer applied once has b = (u, 1) and A = [-A; 0]: its loss is known by another route."""
    task = regression(3, 4)
    rng = np.random.default_rng(3)
    A, u = rng.standard_normal((3, 3)), rng.standard_normal(3)
    model = MaskedAttention(np.append(u, 1.0), np.vstack([-A, np.zeros(3)]))
    looped = LoopedLoss(task, 1, symmetric=False)(LoopedAttention(A, u, loops=1))
    np.testing.assert_allclose(MaskedAttentionLoss(task)(model), looped, rtol=1e-12)


@pytest.mark.parametrize("gamma", [1.0, -0.02, 30.0])
@pytest.mark.parametrize("length", [1, 7, np.inf])
def test_the_minimum_is_attained_at_8_and_its_rescalings(length, gamma):
    task = regression(4, length, condition=100.0)
    loss = MaskedAttentionLoss(task)
    Sigma, Gamma = np.asarray(task.covariance), np.asarray(task.gamma())
    expected = np.trace(Sigma) - np.trace(Sigma @ Sigma @ np.linalg.inv(Gamma))
    np.testing.assert_allclose(loss.minimum, expected, rtol=1e-12, atol=1e-14)
    best = loss.minimizer(gamma)
    np.testing.assert_allclose(best.b, gamma * np.eye(5)[4], rtol=0)
    np.testing.assert_allclose(best.A, -np.vstack([np.linalg.inv(Gamma), np.zeros(4)]) / gamma, rtol=1e-12, atol=1e-13)
    assert 0 <= loss.excess(best) < 1e-28
    assert loss.minimum_kind is MinimumKind.EXACT
    assert loss.replicates() == () and loss.arrowhead(best) is None


def test_the_loss_is_minimum_plus_excess_and_its_gradient_that_of_the_value():
    loss = MaskedAttentionLoss(regression(3, 5))
    for seed in range(8):
        model = drawn(3, seed, scale=10.0 ** (seed - 5))
        assert loss.excess(model) >= 0
        np.testing.assert_allclose(loss(model), loss.minimum + loss.excess(model), rtol=1e-13)
        assert_close(loss.gradient(model), jax.grad(loss)(model), rtol=1e-13)


@pytest.mark.parametrize("distance", [1e-3, 1e-6, 1e-9, 1e-12])
def test_the_excess_keeps_its_digits_near_the_minimum(distance):
    """At a distance delta it is delta^2 v^T H v / 2 to within a few delta, where a subtraction leaves nothing."""
    loss = MaskedAttentionLoss(regression(3, 5))
    best, v = loss.minimizer(), drawn(3, seed=5)
    along = lambda s: loss.excess(jax.tree.map(lambda x, y: x + s * y, best, v))
    curvature = jax.jit(jax.grad(jax.grad(along)))(0.0)
    # Of the weights, that are of order one, 1e-16 is lost: of the distance 1e-16/delta.
    tolerance = 10 * distance + 1e-14 / distance
    np.testing.assert_allclose(along(distance), distance**2 * curvature / 2, rtol=tolerance)


@pytest.mark.parametrize("length", [2, np.inf])
def test_no_direction_at_the_minimum_goes_down_and_the_rescaling_alone_is_flat(length):
    loss = MaskedAttentionLoss(regression(3, length))
    eigenvalues = jax.jit(lambda model: jnp.linalg.eigvalsh(hessian(loss, model)))
    values = np.asarray(eigenvalues(loss.minimizer(1.5)))
    assert abs(values[0]) < 1e-13 * values[-1] and values[1] > 1e-4 * values[-1]
    # Zero weights are a saddle: beta goes with each diagonal entry of A_x in the eigenbasis, up and down alike.
    saddle = np.asarray(eigenvalues(MaskedAttention(np.zeros(4), np.zeros((4, 3)))))
    np.testing.assert_allclose(saddle, -saddle[::-1], atol=1e-12)
    assert saddle[0] < -0.1


def test_what_the_flow_conserves():
    """Each of b and A does the same work, as the prediction is linear in either: |b|^2 - |A|_F^2 never changes."""
    loss, model = MaskedAttentionLoss(regression(3, 4)), drawn(3, seed=6)
    gradient, change = loss.gradient(model), jax.grad(loss.conserved)(model)
    np.testing.assert_allclose(jnp.vdot(model.b, gradient.b), jnp.vdot(model.A, gradient.A), rtol=1e-12)
    along = jnp.vdot(change.b, gradient.b) + jnp.vdot(change.A, gradient.A)
    assert abs(along) < 1e-12 * jnp.vdot(model.b, gradient.b)


def test_refused():
    with pytest.raises(ValueError, match="gamma must be a number other than 0"):
        MaskedAttentionLoss(regression(2, 3)).minimizer(0.0)
    with pytest.raises(ValueError, match='weights = "isotropic"'):
        MaskedAttentionLoss(LinearRegression(np.eye(2), 3, weights="inverse-covariance"))
    with pytest.raises(ValueError, match="task must be one of training"):
        MaskedAttentionLoss(LinearRegression(np.eye(2), 3, label_noise=0.1))
