"""Heads with a guess on prompts with a prior mean: the exact risk, its optima, flows and problem files."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix
import pytest
from helpers import assert_close

import flowsim
from flowsim import initialization
from flowsim.cli import main
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LinearAttentionLoss, MaskedAttentionLoss, MinimumKind, MonteCarloLoss, MultiHeadLoss
from flowsim.losses.one_layer.head_risk import HeadRisk
from flowsim.models import (
    FactoredMultiHeadAttention,
    GradientDescentStep,
    LinearTransformerBlock,
    MaskedAttention,
    MultiHeadAttention,
)
from flowsim.problem import ProblemError, ProblemSpec
from flowsim.tasks import LinearRegression

pytestmark = pytest.mark.slow

D, C = 2, 3
MEAN = np.array([1.0, -2.0])
TASK = LinearRegression(np.eye(D), C, prior_mean=MEAN)


def normals(*shape, seed=0, scale=0.4):
    return scale * np.random.default_rng([seed, *shape]).standard_normal(shape)


def square(H, seed=0):
    return normals(H, D + 1, D + 1, seed=seed)


MODELS = {
    "one head": MultiHeadAttention(normals(1, D + 1), square(1)),
    "two heads, guess and bias": MultiHeadAttention(normals(2, D + 1), square(2), normals(D), 0.7),
    "trainable guess": MultiHeadAttention(normals(1, D + 1), square(1), normals(D), trainable=True),
    "factored": FactoredMultiHeadAttention(square(2), square(2, 1), square(2, 2), square(2, 3), normals(D), 0.7),
    "linear block": LinearTransformerBlock(
        normals(4, D + 1), normals(4, D + 1, seed=1), *(square(1, seed)[0] for seed in range(4))
    ),
    "gradient descent": GradientDescentStep(0.4, normals(D)),
}


def zero_heads(H, d=D, w=None, bias=0.0, trainable=False):
    return MultiHeadAttention(np.zeros((H, d + 1)), np.zeros((H, d + 1, d + 1)), w, bias, trainable=trainable)


def moments(mean, context):
    """E[G_mn G_pq], E[w_i G_mn] and E[G_mn] by a cubature over w, given which tokens are Gaussian."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(6)
    d, total = len(mean), (2 * np.pi) ** (len(mean) / 2)
    second, mixed, first = np.zeros((d + 1,) * 4), np.zeros((d, d + 1, d + 1)), np.zeros((d + 1, d + 1))
    for index in itertools.product(range(6), repeat=d):
        w = mean + nodes[list(index)]
        weight = np.prod(weights[list(index)]) / total
        M = np.block([[np.eye(d), w[:, None]], [w[None], np.array([[w @ w]])]])
        pairs = np.einsum("mp,nq->mnpq", M, M) + np.einsum("mq,np->mnpq", M, M)
        second = second + weight * (np.einsum("mn,pq->mnpq", M, M) + pairs / context)
        mixed = mixed + weight * np.einsum("i,mn->imn", w, M)
        first = first + weight * M
    return second, mixed, first


@pytest.mark.parametrize("name", MODELS)
def test_the_risk_is_the_quadratic_form_of_the_moments_of_shared_weights(name):
    """Theory's tensor, summed over a cubature that is exact for its degree."""
    model = MODELS[name].reduced()
    second, mixed, first = moments(MEAN, C)
    M = np.einsum("hm,hni->imn", model.b, model.A)
    N = M[:-1] + np.asarray(model.w)[:, None, None] * M[-1:]
    linear = mixed - np.asarray(model.w)[:, None, None] * first
    risk = np.einsum("imn,mnpq,ipq->", N, second, N) - 2 * np.sum(N * linear)
    risk += D + np.sum((MEAN - model.w) ** 2)
    energy = np.einsum("mn,mnpq,pq->", M[-1], second, M[-1])
    risk += float(model.bias) ** 2 * (energy + 2 * np.sum(M[-1] * first) + 1)
    assert float(MultiHeadLoss(TASK, MODELS[name])(MODELS[name])) == pytest.approx(float(risk), rel=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_the_risk_is_that_of_prompts_through_the_literal_model(name):
    model = MODELS[name]

    def error(key):
        prompt, y = TASK.sample(key)
        return (model(prompt) - y) ** 2

    errors = np.asarray(jax.jit(jax.vmap(error))(jax.random.split(jax.random.key(1), 2**17)))
    standard_error = errors.std() / np.sqrt(errors.size)
    assert abs(errors.mean() - float(MultiHeadLoss(TASK, model)(model))) < 3 * standard_error


@pytest.mark.parametrize("name", MODELS)
def test_the_reduced_model_predicts_the_same(name):
    prompts = jax.vmap(lambda key: TASK.sample(key)[0])(jax.random.split(jax.random.key(0), 8))
    literal, reduced = (
        jax.vmap(lambda prompt, m=m: m(prompt))(prompts) for m in (MODELS[name], MODELS[name].reduced())
    )
    np.testing.assert_allclose(literal, reduced, rtol=0, atol=1e-13)


def test_the_masked_layer_of_ahn2023_is_one_head():
    """Its columns are those of the query's covariates, and its prediction has the other sign."""
    A, b = square(1)[0], normals(D + 1)
    model = MultiHeadAttention(b[None], A[None])
    task = LinearRegression(np.eye(D), C)
    masked = MaskedAttentionLoss(task)(MaskedAttention(-b, A[:, :D]))
    assert float(MultiHeadLoss(task, model)(model)) == pytest.approx(float(masked), rel=1e-13)


@pytest.mark.parametrize("name", MODELS)
def test_the_balance_is_conserved_and_fixed_guesses_do_not_move(name):
    model = MODELS[name]
    loss = MultiHeadLoss(TASK, model)
    gradient = loss.gradient(model)
    if not isinstance(model, GradientDescentStep):
        rate = jax.jvp(loss.conserved, (model,), (gradient,))[1]
        assert abs(float(rate)) < 1e-12 * float(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient)))
    if isinstance(gradient, MultiHeadAttention | FactoredMultiHeadAttention):
        assert gradient.trainable == bool(np.any(gradient.w)) and not float(gradient.bias)


@pytest.mark.parametrize(
    "like", [zero_heads(2), zero_heads(3, w=[1.0, 0.0], bias=2.0), zero_heads(1, trainable=True), zero_heads(1, w=MEAN)]
)
@pytest.mark.parametrize("context", [1, 3, np.inf])
def test_the_least_risk_is_that_of_the_quadratic_program(like, context):
    """Normal equations in symmetric matrices, each N_i by itself."""
    task = LinearRegression(np.eye(D), context, prior_mean=MEAN)
    loss = MultiHeadLoss(task, like)
    second, mixed, first = moments(MEAN, context)
    form = second.reshape((D + 1) ** 2, -1)
    w = MEAN if like.trainable else np.asarray(like.w)
    gain = lambda linear: float(linear.ravel() @ np.linalg.lstsq(form, linear.ravel(), rcond=1e-12)[0])
    least = D + np.sum((MEAN - w) ** 2) - sum(gain(mixed[i] - w[i] * first) for i in range(D))
    least += float(like.bias) ** 2 * (1 - gain(first))
    assert loss.minimum_kind is MinimumKind.EXACT
    assert float(loss.minimum) == pytest.approx(least, abs=1e-9)
    assert float(loss(loss.minimizer)) == pytest.approx(float(loss.minimum), abs=1e-13)
    assert_close(loss.gradient(loss.minimizer), jax.tree.map(jnp.zeros_like, like), atol=1e-12)


def searched(loss, like, key):
    """A local minimum of the risk over all weights, from standard normal ones."""

    def model(weights):
        return eqx.tree_at(lambda m: (m.b, m.A), like, weights)

    def residuals(weights, _):
        off = loss.risk.off(like.w, loss.risk.forms(model(weights)))
        d, inverse = loss.task.dimension, 1 / loss.task.context_length
        root = jnp.sqrt(1 + (d + 1) * inverse)
        parts = [
            jnp.sqrt(2 * inverse) * off.shifted.reshape(d + 1, -1),
            loss.risk.mean(off)[:, None],
            2 * root * off.p,
            jnp.sqrt(2.0 * d) * root * off.pi[:, None],
        ]
        sizes = jnp.ones(d + 1).at[d].set(like.bias)
        return jnp.concatenate(parts, axis=1) * sizes[:, None]

    b_key, A_key = jax.random.split(key)
    start = jax.random.normal(b_key, like.b.shape), jax.random.normal(A_key, like.A.shape)
    solver = optimistix.LevenbergMarquardt(1e-9, 1e-11)
    return loss(model(optimistix.least_squares(residuals, solver, start, max_steps=400, throw=False).value))


@pytest.mark.parametrize(("H", "guess"), [(2, {"w": [1.0, 1.0, 0.0], "bias": 0.5})])
def test_fewer_heads_have_the_least_risk_that_searches_find(H, guess):
    task = LinearRegression(np.eye(3), 5, prior_mean=[2.0, 1.0, 0.0])
    like = zero_heads(H, 3, **guess)
    loss = MultiHeadLoss(task, like)
    ends = jax.jit(jax.vmap(lambda key: searched(loss, like, key)))(jax.random.split(jax.random.key(0), 6))
    assert loss.minimum_kind is MinimumKind.NUMERICAL
    assert float(jnp.min(ends)) == pytest.approx(float(loss.minimum), rel=1e-9)
    assert float(loss(loss.minimizer)) == pytest.approx(float(loss.minimum), rel=1e-13)
    assert float(loss.excess(loss.minimizer)) == pytest.approx(0.0, abs=1e-14)
    gradient = loss.gradient(loss.minimizer)
    assert max(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(gradient)) < 1e-9


def test_least_risks_in_closed_form():
    d, context, mean = 10, 10, 2 * np.ones(10)
    task = LinearRegression(np.eye(d), context, prior_mean=mean)
    loss = MultiHeadLoss(task, zero_heads(d, d))
    descent, gap = d * (d + 1) / (context + d + 1), 2 / (d * context + 2)
    assert float(loss.minimum) == pytest.approx(descent + gap * 40, rel=1e-14)
    assert float(MultiHeadLoss(task, zero_heads(1, d, trainable=True)).minimum) == pytest.approx(descent, rel=1e-14)
    step = GradientDescentStep(loss.risk.step_size, mean)
    assert float(loss(step)) == pytest.approx(descent, rel=1e-14)
    assert float(MultiHeadLoss(task, zero_heads(d + 1, d)).minimum) == float(loss.minimum)
    assert float(MultiHeadLoss(task, zero_heads(d - 1, d)).minimum) > 1.001 * float(loss.minimum)


def test_the_excess_keeps_its_digits_near_the_minimum():
    loss = MultiHeadLoss(TASK, zero_heads(2, w=[1.0, 0.0], bias=1.0))
    direction = MultiHeadAttention(normals(2, D + 1), square(2), np.zeros(D))
    excess = [
        float(loss.excess(jax.tree.map(lambda x, v, s=size: x + s * v, loss.minimizer, direction)))
        for size in (1e-4, 1e-8)
    ]
    assert excess[1] == pytest.approx(1e-8 * excess[0], rel=1e-3)


def test_in_the_limit_one_head_has_no_risk():
    loss = MultiHeadLoss(LinearRegression(np.eye(D), np.inf, prior_mean=MEAN), zero_heads(1))
    assert float(loss.minimum) == pytest.approx(0.0, abs=1e-12)
    step = GradientDescentStep(1.0, np.zeros(D)).reduced()
    assert float(loss(MultiHeadAttention(step.b, step.A))) == pytest.approx(0.0, abs=1e-14)


@pytest.mark.parametrize(
    "make",
    [
        lambda: initialization.balanced_heads(0.1, zero_heads(3), 0),
        lambda: initialization.factored_heads(0.4, zero_heads(1, trainable=True), 0),
    ],
    ids=["MultiHeadAttention", "FactoredMultiHeadAttention"],
)
def test_flows_reach_the_least_risk_and_keep_the_balance(make):
    start = make()
    loss = MultiHeadLoss(TASK, start)
    flow = flowsim.gradient_flow(loss, start, rtol=1e-7)
    assert flow.status is flowsim.Status.EXCESS
    assert float(flow.loss[-1]) == pytest.approx(float(loss.minimum), rel=1e-9)
    drift = flow.certificates.balance_drift
    assert drift is not None and drift < 1e-6
    assert np.all(np.diff(flow.loss) <= 1e-9)


def test_balanced_starts_are_balanced():
    start = initialization.balanced_heads(0.1, zero_heads(3), 0)
    np.testing.assert_allclose(np.linalg.norm(start.b, axis=1), 0.1, rtol=1e-14)
    np.testing.assert_allclose(np.linalg.norm(start.A, axis=(1, 2)), 0.1, rtol=1e-14)


def test_separated_risks_add_up_where_the_guess_does_not_see_the_query():
    risk = HeadRisk(TASK)
    biased = eqx.tree_at(lambda m: m.w, MODELS["two heads, guess and bias"], jnp.zeros(D))
    loss = MultiHeadLoss(TASK, biased)
    assert float(jnp.sum(loss.separated(biased))) == pytest.approx(float(loss(biased)), rel=1e-13)
    guessing = MODELS["two heads, guess and bias"]
    assert float(jnp.sum(risk.separated(guessing))) != pytest.approx(float(risk(guessing)), rel=1e-3)
    for model in (guessing, MODELS["trainable guess"]):
        with pytest.raises(ValueError, match=r"model must be one whose guess does not depend on x_q \(18\)"):
            loss.separated(model)


def test_prior_means_of_tasks():
    labels = jax.vmap(lambda key: TASK.sample(key))(jax.random.split(jax.random.key(0), 2**14))
    prompts, y = labels
    found = np.mean(np.asarray(y)[:, None] * np.asarray(prompts.query), axis=0)
    np.testing.assert_allclose(found, MEAN, atol=0.15)
    np.testing.assert_array_equal(TASK.weight_energy, np.eye(D) + np.outer(MEAN, MEAN))
    assert TASK.shifts == ("prior_mean",)
    np.testing.assert_array_equal(TASK.scaled(2.0).prior_mean, MEAN)
    with pytest.raises(ValueError, match="prior_mean must be left out with a fixed weight"):
        LinearRegression(np.eye(D), C, prior_mean=MEAN, weight=MEAN)
    with pytest.raises(ValueError, match='prior_mean must be left out with weights = "inverse-covariance"'):
        LinearRegression(np.eye(D), C, prior_mean=MEAN, weights="inverse-covariance")
    with pytest.raises(ValueError, match=r"prior_mean must be an array of shape \(2,\)"):
        LinearRegression(np.eye(D), C, prior_mean=[1.0])
    with pytest.raises(ValueError, match="it has a prior_mean"):
        LinearAttentionLoss(TASK)


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (LinearRegression(np.diag([1.0, 2.0]), C), "task.covariance must be the identity"),
        (LinearRegression(np.eye(D), C, label_noise=1.0), "it has a label_noise"),
        (LinearRegression(np.eye(D), C, weights="inverse-covariance"), 'weights = "isotropic"'),
    ],
)
def test_other_tasks_are_refused(task, expected):
    with pytest.raises(ValueError, match=expected):
        MultiHeadLoss(task, zero_heads(1))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            lambda: MultiHeadAttention(np.zeros((0, 3)), np.zeros((0, 3, 3))),
            r"A must be square matrices|A must be of shape \(H, d",
        ),
        (lambda: MultiHeadAttention(np.zeros((2, 3)), np.zeros((1, 3, 3))), r"b must be an array of shape \(1, 3\)"),
        (lambda: MultiHeadAttention(np.zeros((1, 3)), np.zeros((1, 3, 3)), [1.0]), r"w must be an array of shape"),
        (lambda: GradientDescentStep(1.0, [np.nan]), "w must be finite|w must hold finite"),
        (lambda: LinearTransformerBlock(np.zeros((2, 2)), *np.zeros((5, 3, 3))), r"W_1 must be an array of shape"),
    ],
)
def test_bad_weights_are_refused(make, expected):
    with pytest.raises(ValueError, match=expected):
        make()


HEADS = """
[task]
context_length = 3
covariance = "identity"
dimension = 2
prior_mean = [1.0, -2.0]
[model]
architecture = "multi-head"
heads = 2
[init]
kind = "random"
scale = 0.3
"""


def spec(*overrides):
    return ProblemSpec.from_toml(HEADS, overrides)


@pytest.mark.parametrize(
    ("overrides", "make"),
    [
        ([], lambda: initialization.heads(0.3, zero_heads(2), 0)),
        (
            ["model.guess={linear=[1,0],bias=2}"],
            lambda: initialization.heads(0.3, zero_heads(2, w=[1.0, 0.0], bias=2.0), 0),
        ),
        (["model.guess=trainable", "init.seed=3"], lambda: initialization.heads(0.3, zero_heads(2, trainable=True), 3)),
        (["init.kind=balanced"], lambda: initialization.balanced_heads(0.3, zero_heads(2), 0)),
        (["model.parametrisation=factored"], lambda: initialization.factored_heads(0.3, zero_heads(2), 0)),
    ],
)
def test_problem_files_give_the_heads_that_they_say(overrides, make):
    start, resolved = make(), spec(*overrides)
    assert ProblemSpec.from_toml(resolved.to_toml()) == resolved
    problem = resolved.build()
    assert_close(problem.start, start)
    assert isinstance(problem.loss, MultiHeadLoss)
    assert_close(problem.loss.minimum, MultiHeadLoss(TASK, start).minimum, rtol=1e-13)


def test_the_other_architectures_of_problem_files():
    text = HEADS.replace("heads = 2\n", "")
    guess = ProblemSpec.from_toml(text.replace("multi-head", "initial-guess")).build()
    assert_close(guess.start, initialization.heads(0.3, zero_heads(1, trainable=True), 0))
    block = ProblemSpec.from_toml(text.replace("multi-head", "linear-block")).build()
    assert_close(block.start, initialization.linear_block(0.3, 2, 0))
    explicit = [
        "init={kind='explicit', b=[[1,2,3]], A=[[[1,0,0],[0,1,0],[0,0,1]]], w=[4,5]}",
        "model={architecture='initial-guess'}",
    ]
    found = spec(*explicit).build().start
    assert_close(found, MultiHeadAttention([[1.0, 2, 3]], [np.eye(3)], [4.0, 5.0], trainable=True))
    sampled = spec("loss={kind='monte-carlo', samples=512}").build().loss
    assert isinstance(sampled, MonteCarloLoss) and isinstance(sampled.exact, MultiHeadLoss)
    limit = spec("loss.kind=limit").build().loss
    assert isinstance(limit, MultiHeadLoss) and np.isinf(limit.task.context_length)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["model.heads=0"], "model.heads must be a whole number of at least 1"),
        (["task.prior_mean=[1.0]"], r"task.prior_mean must be an array of shape \(2,\)"),
        (
            ["task.context_length=0"],
            "task.context_length must be a whole number of at least 1, .inf. or a table {.*}, but it is 0",
        ),
        (["model.guess={linear=[1,2,3]}"], "model.guess.linear must be a list of 2 numbers, but it has 3"),
        (["model.guess=nothing"], "model.guess"),
        (["model={architecture='multi-head'}"], "model.heads must be a whole number of at least 1, but it is missing"),
        (["model.loops=2"], "model.loops must be left out"),
        (["init={kind='explicit',b=[[1,2,3]],A=[[1,2,3]]}", "model.heads=1"], "init.A must be an array of shape"),
        (["init={kind='explicit',b=[],A=[],w=[1,2]}"], "init"),
        (["model={architecture='linear-attention'}"], "task.prior_mean must be left out with architecture"),
    ],
)
def test_bad_problem_files_are_refused_in_one_line(overrides, expected):
    with pytest.raises(ProblemError, match=expected) as error:
        spec(*overrides).build()
    assert "\n" not in str(error.value)


def test_another_covariance_is_refused():
    text = HEADS.replace('covariance = "identity"\ndimension = 2', "covariance = [[1.0, 0.0], [0.0, 2.0]]")
    with pytest.raises(ProblemError, match='task.covariance must be "identity" with architecture = "multi-head"'):
        ProblemSpec.from_toml(text)


@pytest.mark.long
def test_a_factored_run_saves_the_products_too(tmp_path, monkeypatch):
    monkeypatch.setattr("flowsim.papers.ALL_CLAIMS", ())
    (tmp_path / "problem.toml").write_text(HEADS)
    options = ["--set", "model.parametrisation=factored", "--set", "flow.t1=0.5", "--quiet"]
    assert main.main(["run", str(tmp_path / "problem.toml"), "--out", str(tmp_path / "out"), *options]) == 0
    with np.load(tmp_path / "out" / "trajectory.npz") as file:
        T = file["t"].size
        assert file["b"].shape == (T, 2, 3) and file["A"].shape == (T, 2, 3, 3) and file["w"].shape == (T, 2)
        assert all(file[f"W_{name}"].shape == (T, 2, 3, 3) for name in "KQVP")
        np.testing.assert_allclose(file["A"], np.swapaxes(file["W_K"], 2, 3) @ file["W_Q"], rtol=0, atol=1e-13)
    assert isinstance(Trajectory.load(tmp_path / "out" / "trajectory.npz").models, FactoredMultiHeadAttention)
