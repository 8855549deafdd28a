"""The exact loss is the literal model's, over all weights; its excess keeps its digits down to the minimum."""

import functools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_close, largest_z, random_model, regression, relative_error, sample_means
from hypothesis import given
from hypothesis import strategies as st

from flowsim._core.checks import is_concrete
from flowsim.losses import FunctionLoss, LinearAttentionLoss, MinimumKind
from flowsim.models import LinearAttention
from flowsim.tasks import Prompt

LENGTHS = [1, 3, 20]


def squared_error(model, prompt, label):
    return (model(prompt) - label) ** 2 / 2


def reduced_loss(task, U, u):
    """zhang2023 (5.5) plus tr(Lambda)/2."""
    Lambda, Gamma = np.asarray(task.covariance), np.asarray(task.gamma())
    l = np.trace(u**2 * Gamma @ Lambda @ U @ Lambda @ U.T / 2 - u * Lambda @ Lambda @ U.T)
    return l + np.trace(Lambda) / 2


def on_invariant_set(model):
    """The model with u12 = u21 = 0."""
    return LinearAttention(model.U11, model.u_minus1)


@pytest.mark.parametrize(("d", "length"), [(1, 1), (1, 3), (2, 1), (2, 2), (3, 1)])
def test_loss_over_all_weights_by_quadrature(d, length):
    """The squared error is a polynomial of degree at most 6 in each Gaussian: four Hermite nodes each are exact."""
    task = regression(d, length, seed=d)
    root = np.linalg.cholesky(task.covariance)
    model = random_model(d, seed=d)
    nodes, weights = np.polynomial.hermite_e.hermegauss(4)
    count = d * (length + 2)

    def error(gaussians):
        w, inputs = gaussians[:d], gaussians[d:].reshape(length + 1, d) @ root.T
        labels = inputs @ w
        return squared_error(model, Prompt(inputs[:-1], labels[:-1], inputs[-1]), labels[-1])

    choices = np.indices((len(nodes),) * count).reshape(count, -1).T
    points, probabilities = jnp.asarray(nodes[choices]), np.prod((weights / weights.sum())[choices], axis=1)
    errors = jax.lax.map(error, points, batch_size=4096)
    np.testing.assert_allclose(LinearAttentionLoss(task)(model), probabilities @ errors, rtol=1e-11)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.slow
def test_loss_over_all_weights_by_sampling(d, length):
    """Within four stated standard errors of the literal model's error on 400,000 prompts."""
    task = regression(d, length, seed=d)
    models = [random_model(d, seed, scale=0.7) for seed in range(3)]
    mean, error = sample_means(
        lambda key: [squared_error(model, *task.sample(key)) for model in models], 400_000, seed=d
    )
    loss = LinearAttentionLoss(task)
    assert largest_z(mean, error, [loss(model) for model in models]) < 4


@pytest.mark.parametrize("length", [*LENGTHS, np.inf])
@pytest.mark.parametrize("d", [1, 2, 4])
def test_reduced_form_and_its_gradient(d, length):
    """On u12 = u21 = 0 the loss is (5.5) and minus its gradient (5.4), and u12, u21 stay zero."""
    task = regression(d, length, seed=d)
    loss = LinearAttentionLoss(task)
    model = on_invariant_set(random_model(d, seed=d))
    U, u = np.asarray(model.U11), float(model.u_minus1)
    Lambda, Gamma = np.asarray(task.covariance), np.asarray(task.gamma())
    np.testing.assert_allclose(loss(model), reduced_loss(task, U, u), rtol=1e-12)
    gradient = loss.gradient(model)
    dU = -(u**2) * Gamma @ Lambda @ U @ Lambda + u * Lambda @ Lambda
    du = -np.trace(u * Gamma @ Lambda @ U @ Lambda @ U.T - Lambda @ Lambda @ U.T)
    np.testing.assert_allclose(gradient.U11, -dU, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(gradient.u_minus1, -du, rtol=1e-11)
    assert_close((gradient.u12, gradient.u21), (jnp.zeros(d), jnp.zeros(d)))


@pytest.mark.parametrize("length", LENGTHS)
def test_gradient_over_all_weights(length):
    """Against automatic differentiation of the loss and against central differences."""
    loss = LinearAttentionLoss(regression(3, length))
    model, direction = random_model(3, seed=1), random_model(3, seed=2)
    gradient = loss.gradient(model)
    assert_close(gradient, jax.grad(loss)(model), rtol=1e-10, atol=1e-12)

    step = 1e-5
    ahead, behind = (jax.tree.map(lambda x, v, s=s: x + s * step * v, model, direction) for s in (1, -1))
    slope = (loss(ahead) - loss(behind)) / (2 * step)
    inner = sum(jax.tree.leaves(jax.tree.map(lambda g, v: jnp.sum(g * v), gradient, direction)))
    np.testing.assert_allclose(inner, slope, rtol=1e-7)


@pytest.mark.parametrize("length", [*LENGTHS, np.inf])
def test_minimum_is_attained_where_lemma_5_3_says_and_nowhere_undercut(length):
    task = regression(3, length)
    loss = LinearAttentionLoss(task)
    Lambda, Gamma = np.asarray(task.covariance), np.asarray(task.gamma())
    expected = (np.trace(Lambda) - np.trace(Lambda @ Lambda @ np.linalg.inv(Gamma))) / 2
    np.testing.assert_allclose(loss.minimum, expected, rtol=1e-12, atol=1e-15)
    assert loss.minimum_kind is MinimumKind.EXACT
    for u in (0.3, -2.0):
        minimiser = LinearAttention(np.linalg.inv(Gamma) / u, u)
        np.testing.assert_allclose(reduced_loss(task, np.linalg.inv(Gamma) / u, u), expected, rtol=1e-12, atol=1e-14)
        assert 0 <= loss.excess(minimiser) < 1e-28


@given(
    d=st.integers(1, 4),
    length=st.sampled_from([1.0, 2.0, 20.0, 1e6, np.inf]),
    seed=st.integers(0, 2**16),
    logscale=st.floats(-8, 2),
)
def test_excess_is_never_negative_and_the_loss_is_minimum_plus_excess(d, length, seed, logscale):
    loss = LinearAttentionLoss(regression(d, length, seed))
    model = random_model(d, seed, 10.0**logscale)
    excess = loss.excess(model)
    assert excess >= 0
    np.testing.assert_allclose(loss(model), loss.minimum + excess, rtol=1e-13)


def exact_excess(task, model):
    """l(U, u) - min l of (5.5) in rational arithmetic, the float64 arguments taken as exact numbers."""
    N = Fraction(float(task.context_length))
    d = task.dimension

    def rational(array):
        return [[Fraction(float(x)) for x in row] for row in np.asarray(array)]

    def multiply(A, B):
        return [
            [sum((a * b for a, b in zip(row, column, strict=True)), Fraction(0)) for column in zip(*B, strict=True)]
            for row in A
        ]

    def trace(A):
        return sum((A[i][i] for i in range(d)), Fraction(0))

    def inverse(A):
        rows = [[*row, *(Fraction(int(i == j)) for j in range(d))] for i, row in enumerate(A)]
        for pivot in range(d):
            rows[pivot] = [x / rows[pivot][pivot] for x in rows[pivot]]
            for other in set(range(d)) - {pivot}:
                factor = rows[other][pivot]
                rows[other] = [x - factor * y for x, y in zip(rows[other], rows[pivot], strict=True)]
        return [row[d:] for row in rows]

    Lambda, U, u = rational(task.covariance), rational(model.U11), Fraction(float(model.u_minus1))
    shift = trace(Lambda) / N
    Gamma = [[(1 + 1 / N) * Lambda[i][j] + (shift if i == j else 0) for j in range(d)] for i in range(d)]
    transposed = [list(column) for column in zip(*U, strict=True)]
    square = multiply(Lambda, Lambda)
    quadratic = trace(multiply(multiply(multiply(Gamma, Lambda), multiply(U, Lambda)), transposed))
    minimum = -trace(multiply(square, inverse(Gamma))) / 2
    return float(u * u * quadratic / 2 - u * trace(multiply(square, transposed)) - minimum)


@pytest.mark.parametrize("distance", [1.0, 1e-3, 1e-6, 1e-9, 1e-12])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_excess_keeps_its_digits_near_the_minimum(d, distance):
    """At a relative distance delta the relative error is of the order eps / delta; a subtraction's is eps / delta^2."""
    task = regression(d, 10.0)
    direction = np.random.default_rng(0).standard_normal((d, d))
    minimiser = np.linalg.inv(task.gamma())
    model = LinearAttention(minimiser / 0.7 + distance * direction, 0.7)
    np.testing.assert_allclose(
        LinearAttentionLoss(task).excess(model), exact_excess(task, model), rtol=100 * np.finfo(float).eps / distance
    )


@pytest.mark.parametrize("length", [3.0, np.inf])
def test_the_arrowhead_is_the_same_flow_in_another_basis(length):
    loss = LinearAttentionLoss(regression(4, length))
    model = on_invariant_set(random_model(4, seed=3))
    arrowhead = loss.arrowhead(model)
    assert arrowhead is not None
    state = arrowhead.state(model)
    assert_close(arrowhead.model(state), model, rtol=1e-13, atol=1e-14)
    downhill = jax.tree.map(jnp.negative, loss.gradient(model))
    assert relative_error(arrowhead.model(arrowhead.field(state)).U11, downhill.U11) < 1e-13
    assert relative_error(arrowhead.field(state)[1], downhill.u_minus1) < 1e-13
    np.testing.assert_allclose(arrowhead.excess(state), loss.excess(model), rtol=1e-13)


@pytest.mark.parametrize("weight", ["u12", "u21"])
def test_off_the_invariant_set_there_is_no_arrowhead(weight):
    loss = LinearAttentionLoss(regression(2, 3))
    model = LinearAttention(np.eye(2), 1.0, **{weight: np.array([0.0, 1e-300])})
    assert loss.arrowhead(model) is None


def test_a_loss_made_of_a_function():
    def bowl(model):
        return jnp.sum(model.U11**2) + 3.0

    model = random_model(2, seed=0)
    known, unknown = FunctionLoss(bowl, minimum=3.0), FunctionLoss(bowl)
    assert known.minimum_kind is MinimumKind.EXACT
    assert unknown.minimum_kind is MinimumKind.UNKNOWN
    np.testing.assert_allclose(known.excess(model), jnp.sum(model.U11**2), rtol=1e-12)
    assert jnp.isnan(unknown.excess(model)) and jnp.isnan(unknown.minimum)
    np.testing.assert_allclose(known.gradient(model).U11, 2 * model.U11)
    assert known.arrowhead(model) is None
    direct = FunctionLoss(bowl, excess=lambda model: jnp.sum(model.U11**2), minimum=3.0)
    assert direct.excess(LinearAttention(1e-12 * np.eye(2), 1.0)) == 2e-24


def test_a_minimum_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="minimum must be finite"):
        FunctionLoss(lambda model: model.u_minus1, minimum=np.inf)


@pytest.mark.parametrize("minimum", [None, 0.0, 1])
def test_a_loss_made_of_a_function_while_another_is_traced_can_be_kept(minimum):
    made = functools.cache(lambda: FunctionLoss(lambda x: x**2 / 2, minimum=minimum))
    jax.jit(lambda x: made()(x))(jnp.asarray(3.0))
    assert all(map(is_concrete, jax.tree.leaves(made())))
    np.testing.assert_equal(jax.jit(lambda x: made().excess(x))(jnp.asarray(3.0)), 4.5 - made().minimum)


def test_a_minimum_may_depend_on_what_is_traced():
    loss = lambda c: FunctionLoss(lambda x: (x - c) ** 2 + c, minimum=c)
    assert jax.jit(lambda c: loss(c).excess(jnp.asarray(5.0)))(3.0) == 4.0
