"""The risk of a model on new prompts is the literal model's, for every law of a prompt that is offered."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import covariance, largest_z, random_model, regression, sample_means

import flowsim
from flowsim.flow.risk_curve import risk_along
from flowsim.initialization import balanced
from flowsim.losses import LinearAttentionLoss
from flowsim.losses.prompt_risk import best_linear_error, risk, risk_standard_error, zero_predictor_error
from flowsim.models import LinearAttention
from flowsim.papers.zhang2023.conditions import limit
from flowsim.tasks import LinearRegression, Prompt
from flowsim.tasks.joint_law import JointLaw

pytestmark = pytest.mark.slow

PROMPTS = 200_000
LENGTHS = [1, 2, 7, np.inf]
W = np.array([0.7, -1.2])
QUERIES = np.array([[2.0, 0.9], [0.9, 0.5]])


def squared_error(model, prompt, label):
    return (model(prompt) - label) ** 2


def reduced(model):
    """The model with u12 = u21 = 0, and U11 not symmetric."""
    return LinearAttention(model.U11, model.u_minus1)


def shifted(M, **shifts):
    return LinearRegression(covariance(2, seed=4), M, **shifts)


SHIFTS = {
    "noise": {"label_noise": 0.8},
    "query": {"query_covariance": QUERIES},
    "weight": {"weight": W},
    "law of w": {"weights": "inverse-covariance"},
    "everything": {"label_noise": 0.3, "query_covariance": QUERIES, "weight": W},
}


@pytest.mark.parametrize(("name", "M"), [("noise", 1), ("query", 5), ("weight", 1), ("law of w", 3), ("everything", 5)])
def test_shifted_tasks_by_sampling(name, M):
    """Within three standard errors of the literal model, trained at N = 3 and at any weights, scaled covariates too."""
    models = [limit(regression(2, 3, seed=4)), reduced(random_model(2, seed=1, scale=0.8))]
    tasks = [shifted(M, **SHIFTS[name]), shifted(M, **SHIFTS[name]).scaled(1.3)]
    mean, error = sample_means(
        lambda key: [squared_error(model, *task.sample(key)) for model in models for task in tasks], PROMPTS, seed=M
    )
    assert largest_z(mean, error, [risk(model, task, M) for model in models for task in tasks]) < 3


@pytest.mark.parametrize("M", [1, 4])
def test_all_weights_on_prompts_of_another_length_by_sampling(M):
    """A flow at N = 3 and any weights, u12 and u21 too, on prompts with M examples and of another scale."""
    models = [limit(regression(2, 3, seed=4)), random_model(2, seed=2, scale=0.6)]
    tasks = [regression(2, M, seed=4), regression(2, M, seed=4).scaled(0.7)]
    mean, error = sample_means(
        lambda key: [squared_error(model, *task.sample(key)) for model in models for task in tasks], PROMPTS, seed=M
    )
    assert largest_z(mean, error, [risk(model, task, M) for model in models for task in tasks]) < 3


def polynomial(inputs, noise, law):
    w, v, b, c, s = law
    along = inputs @ v
    return inputs @ w + b * along**2 + c * along**3 + s * noise


V = np.array([0.5, 0.4])
POLYNOMIALS = {
    "linear": (W, W, 0.0, 0.0, 0.5),
    "square alone": (np.zeros(2), V, 1.1, 0.0, 0.0),
    "square": (W, V, -0.9, 0.0, 0.2),
    "cube": (W, V, 0.0, 0.6, 0.0),
    "all": (W, V, 0.7, -0.5, 0.4),
}


def law_of(Lambda, polynomial):
    w, v, b, c, s = polynomial
    return JointLaw.of_polynomial(Lambda, w, direction=v, square=b, cube=c, label_noise=s)


@pytest.mark.parametrize(("name", "M"), list(zip(POLYNOMIALS, [1, 6, 1, 6, 3], strict=True)))
def test_nonlinear_labels_by_sampling(name, M):
    """Theorem 4.2 at its own weights (4.1) and the same at any others, E[y] != 0 included."""
    Lambda = covariance(2, seed=4, condition=3.0)
    root = np.linalg.cholesky(Lambda).T
    models = [limit(LinearRegression(Lambda, 3)), reduced(random_model(2, seed=1, scale=0.8))]

    def errors(key):
        first, second = jax.random.split(key)
        inputs = jax.random.normal(first, (M + 1, 2)) @ root
        labels = polynomial(inputs, jax.random.normal(second, (M + 1,)), POLYNOMIALS[name])
        return [squared_error(model, Prompt(inputs[:-1], labels[:-1], inputs[-1]), labels[-1]) for model in models]

    mean, error = sample_means(errors, PROMPTS, seed=3)
    law = law_of(Lambda, POLYNOMIALS[name])
    assert largest_z(mean, error, [risk(model, law, M) for model in models]) < 3


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_polynomial_moments_by_quadrature(name):
    """Every entry is a polynomial of degree at most 8: six Hermite nodes a coordinate are exact."""
    Lambda = covariance(2, seed=4)
    nodes, weights = np.polynomial.hermite_e.hermegauss(6)
    z = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), axis=-1).reshape(-1, 2)
    p = np.outer(weights, weights).ravel() / weights.sum() ** 2
    x = z @ np.linalg.cholesky(Lambda).T
    s = POLYNOMIALS[name][-1]
    y = polynomial(x, 0.0, POLYNOMIALS[name])
    law = law_of(Lambda, POLYNOMIALS[name])
    cross = (p * y) @ x
    square = np.einsum("k,k,ki,kj->ij", p, y**2, x, x) + s**2 * Lambda
    np.testing.assert_allclose(law.cross, cross, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(law.spread, square - np.outer(cross, cross), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(law.label_energy, p @ y**2 + s**2, rtol=1e-12)


@pytest.mark.parametrize("M", LENGTHS)
def test_a_linear_law_is_the_regression_task(M):
    task = shifted(3, weight=W, label_noise=0.4)
    law = JointLaw.of_polynomial(task.covariance, W, label_noise=0.4)
    model = reduced(random_model(2, seed=1))
    np.testing.assert_allclose(risk(model, law, M), risk(model, task, M), rtol=1e-13)
    np.testing.assert_allclose(best_linear_error(law), best_linear_error(task), rtol=1e-12)
    np.testing.assert_allclose(zero_predictor_error(law), zero_predictor_error(task), rtol=1e-13)


@pytest.mark.parametrize("M", LENGTHS)
def test_shifts_that_are_none_change_nothing(M):
    """The form for shifted prompts against the loss, two independent routes to one number."""
    task = regression(3, 5)
    same = LinearRegression(task.covariance, 5, query_covariance=task.covariance)
    model = reduced(random_model(3, seed=2))
    np.testing.assert_allclose(risk(model, same, M), risk(model, task, M), rtol=1e-13)
    np.testing.assert_allclose(
        risk(model, task, M), 2 * LinearAttentionLoss(LinearRegression(task.covariance, M))(model), rtol=1e-15
    )


def test_the_risk_is_the_mean_over_w_of_that_at_a_fixed_one():
    """Three weights a coordinate with the moments of N(0, 1) up to the third: the risk is quadratic in w."""
    model, M = reduced(random_model(2, seed=2)), 4
    weights = np.sqrt(2) * np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    of_weight = [risk(model, shifted(3, weight=w, label_noise=0.1), M) for w in weights]
    np.testing.assert_allclose(np.mean(of_weight), risk(model, shifted(3, label_noise=0.1), M), rtol=1e-13)


def test_scaling_the_covariates_scales_the_prediction_by_c_squared():
    task = shifted(jnp.inf, weight=W)
    model, c = limit(regression(2, jnp.inf, seed=4)), 3.0
    expected = (c**2 - 1) ** 2 * c**2 * (W @ np.asarray(task.covariance) @ W)
    np.testing.assert_allclose(risk(model, task.scaled(c), jnp.inf), expected, rtol=1e-13)
    prompt, label = shifted(3, weight=W).sample(jax.random.key(0))
    larger, larger_label = shifted(3, weight=W).scaled(c).sample(jax.random.key(0))
    np.testing.assert_allclose(larger.inputs, c * prompt.inputs, rtol=1e-14)
    np.testing.assert_allclose(model(larger), c**3 * model(prompt), rtol=1e-13)
    np.testing.assert_allclose(larger_label, c * label, rtol=1e-13)


def test_near_the_best_predictor_the_risk_keeps_its_digits():
    """On noiseless labels it is 1/N^2 times a number of order 1, here against rational numbers: d = 1."""
    for N in (1e4, 1e8, 1e12):
        task = LinearRegression([[2.0]], N)
        expected = 2.0 * (2 / (N + 2)) ** 2
        model = limit(task)
        np.testing.assert_allclose(risk(model, task, jnp.inf), expected, rtol=4e-16 * N)
        np.testing.assert_allclose(
            risk(model, LinearRegression([[2.0]], N, weight=[1.0]), jnp.inf), expected, rtol=4e-16 * N
        )


@pytest.fixture(scope="module")
def run():
    task = regression(2, 3, seed=4)
    return flowsim.gradient_flow(LinearAttentionLoss(task), balanced(0.3, np.eye(2)), times=[1.0], t1=5.0)


@pytest.mark.parametrize(
    "task", [regression(2, 9, seed=4), shifted(2, label_noise=0.3), law_of(np.eye(2), POLYNOMIALS["all"])]
)
def test_risk_along_a_flow_is_that_of_each_of_its_models(run, task):
    along = risk_along(run, task, 7)
    assert along.shape == run.t.shape
    for index in (0, 3, -1):
        np.testing.assert_allclose(along[index], risk(run.row(index), task, 7), rtol=1e-13)


def test_at_the_training_length_the_risk_along_a_flow_is_twice_its_loss(run):
    np.testing.assert_allclose(risk_along(run, regression(2, 99, seed=4), 3), 2 * run.loss, rtol=1e-13)


def test_a_sampled_risk_has_its_error():
    """Over 400 independent sample sets the deviations from the exact risk have the size that is stated."""
    Lambda, terms = covariance(2, seed=4, condition=3.0), (W, V, 0.4, 0.0, 0.4)
    exact = law_of(Lambda, terms)
    model, root = limit(LinearRegression(Lambda, 3)), np.linalg.cholesky(Lambda).T

    def score(key):
        first, second = jax.random.split(key)
        inputs = jax.random.normal(first, (2000, 2)) @ root
        law = JointLaw.of_samples(inputs, polynomial(inputs, jax.random.normal(second, (2000,)), terms))
        return (risk(model, law, 5) - risk(model, exact, 5)) / risk_standard_error(model, law, 5)

    scores = jax.jit(lambda keys: jax.lax.map(score, keys))(jax.random.split(jax.random.key(0), 400))
    # A standard deviation over 400 sets is known to within 1/sqrt(800) = 3.5 %, their mean to within 5 %.
    assert abs(np.std(scores) - 1) < 0.12
    assert abs(np.mean(scores)) < 0.25
    assert risk_standard_error(model, exact, 5) == 0


def test_a_sampled_law_has_the_moments_of_its_samples():
    inputs = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, -2.0], [2.0, 1.0]])
    labels = np.array([1.0, -1.0, 0.5, 2.0])
    law = JointLaw.of_samples(inputs, labels)
    products = labels[:, None] * inputs
    np.testing.assert_allclose(law.covariance, inputs.T @ inputs / 4, rtol=1e-15)
    np.testing.assert_allclose(law.cross, np.mean(products, 0), rtol=1e-15)
    np.testing.assert_allclose(law.spread, np.cov(products.T, bias=True), rtol=1e-14)
    np.testing.assert_allclose(law.label_energy, np.mean(labels**2), rtol=1e-15)


def test_the_standard_error_is_the_jackknife_s():
    rng = np.random.default_rng(1)
    inputs = rng.standard_normal((60, 2))
    labels = polynomial(inputs, rng.standard_normal(60), POLYNOMIALS["all"])
    model = reduced(random_model(2, seed=3))
    left_out = np.array(
        [float(risk(model, JointLaw.of_samples(np.delete(inputs, i, 0), np.delete(labels, i)), 5)) for i in range(60)]
    )
    jackknife = np.sqrt(59 / 60 * np.sum((left_out - np.mean(left_out)) ** 2))
    stated = risk_standard_error(model, JointLaw.of_samples(inputs, labels), 5)
    np.testing.assert_allclose(stated, jackknife, rtol=0.1)


@pytest.mark.parametrize("M", [0, 0.5, -3, 2.5, np.nan])
def test_a_test_length_that_is_none(M):
    with pytest.raises(ValueError, match="test_length must be a whole number of at least 1, or inf"):
        risk(random_model(2, 0), regression(2, 3), M)


@pytest.mark.parametrize("weight", ["u12", "u21"])
def test_weights_that_only_training_prompts_allow(weight):
    model = LinearAttention(np.eye(2), 1.0, **{weight: [0.0, 1e-300]})
    others = (shifted(3, label_noise=0.1), shifted(3, weights="inverse-covariance"))
    for task in (*others, law_of(np.eye(2), POLYNOMIALS["all"])):
        with pytest.raises(ValueError, match=f"{weight} must be zero on prompts that are not as in training"):
            risk(model, task, 3)
        assert jnp.isnan(jax.jit(lambda model, task=task: risk(model, task, 3))(model))
    assert risk(model, regression(2, 3).scaled(2.0), 3) > 0


def test_another_dimension_is_refused():
    with pytest.raises(ValueError, match="model must be of the task's dimension 3, but it is of dimension 2"):
        risk(random_model(2, 0), regression(3, 3), 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cross": [1.0]}, "cross must be an array of shape"),
        ({"spread": -np.eye(2)}, "spread must be positive semidefinite"),
        ({"spread": np.eye(3)}, "spread must be an array of shape"),
        ({"label_energy": -1.0}, "label_energy must be at least 0"),
        ({"label_energy": 0.5}, r"label_energy must be at least cross\^T covariance\^-1 cross = 1, but it is 0.5"),
        ({"covariance": np.zeros((2, 2))}, "covariance must be positive definite"),
    ],
)
def test_moments_that_no_law_has_are_refused(change, message):
    good = {"covariance": np.eye(2), "cross": [1.0, 0.0], "spread": np.eye(2), "label_energy": 2.0}
    JointLaw(**good)
    with pytest.raises(ValueError, match=message):
        JointLaw(**(good | change))


@pytest.mark.parametrize(
    ("inputs", "labels", "message"),
    [
        (np.ones((2, 2)), np.ones(2), "inputs must be more rows than columns"),
        (np.ones((5, 2)), np.ones(4), "labels must be an array of shape"),
    ],
)
def test_samples_that_are_none(inputs, labels, message):
    with pytest.raises(ValueError, match=message):
        JointLaw.of_samples(inputs, labels)
