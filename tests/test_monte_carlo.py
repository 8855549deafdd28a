"""Sampled losses: unbiased by every method, the same whatever the blocks, judged no further than the samples reach."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_close, covariance, relative_error

import flowsim
import flowsim.claims
from flowsim.claims import Judgement
from flowsim.losses.sampled import blocks
from flowsim.losses.sampled.estimators import CovarianceEstimator, InputEstimator, Prompts, RadialEstimator
from flowsim.models.residuals import layered_residual, product
from flowsim.tasks import Prompt
from flowsim.tasks.covariance_laws import DiagonalLaw, Gamma

pytestmark = pytest.mark.slow

D, N = 3, 7
TASK = flowsim.LinearRegression(covariance(D, 0), N, weights="inverse-covariance")
ISOTROPIC = flowsim.LinearRegression(covariance(D, 0), N)
RNG = np.random.default_rng(0)
LOOPED = flowsim.LoopedAttention(0.4 * np.eye(D) + 0.1 * RNG.standard_normal((D, D)), [0.2, -0.1, 0.3], loops=2)
SYMMETRIC = flowsim.LoopedAttention(0.5 * np.eye(D), loops=2)
STREAM = flowsim.MultiLayerAttention(
    0.2 * RNG.standard_normal((3, D, D)), 0.2 * RNG.standard_normal((2, D, D)), symmetric=False
)
SINGLE = flowsim.LinearAttention(0.5 * RNG.standard_normal((D, D)), 0.7)
RANDOM = flowsim.RandomCovarianceRegression(DiagonalLaw(Gamma(np.ones(D), 1.0)), N)


class Ridge(eqx.Module):
    """A user's own model: c times the correlation of the examples with the query."""

    c: jax.Array

    def __call__(self, prompt: Prompt) -> jax.Array:
        return self.c * jnp.mean(prompt.labels * (prompt.inputs @ prompt.query))


class Bent(eqx.Module):
    """A user's own model that is linear at its start alone."""

    c: jax.Array
    bend: jax.Array

    def __call__(self, prompt: Prompt) -> jax.Array:
        linear = self.c * jnp.mean(prompt.labels * (prompt.inputs @ prompt.query))
        return linear + self.bend * linear**3


def exact_loss(task, model):
    if isinstance(model, flowsim.LoopedAttention):
        return flowsim.LoopedLoss(task, model.loops, symmetric=False)
    if isinstance(task, flowsim.RandomCovarianceRegression):
        return flowsim.RandomCovarianceLoss(task)
    return flowsim.LinearAttentionLoss(task)


def sampled(task=TASK, samples=4096, **how):
    return flowsim.MonteCarloLoss(task, samples=samples, key=jax.random.key(3), **how)


@pytest.mark.parametrize(
    ("method", "task", "model", "factor"),
    [
        ("prompts", TASK, LOOPED, 1.0),
        ("inputs", TASK, LOOPED, 1.0),
        ("radial", TASK, LOOPED, 1.0),
        ("covariances", ISOTROPIC, LOOPED, 1.0),
        ("prompts", ISOTROPIC, SINGLE, 0.5),
        ("covariances", RANDOM, SINGLE, 0.5),
    ],
)
def test_every_method_agrees_with_the_exact_loss_and_gradient(method, task, model, factor):
    loss, exact = sampled(task, 2**13, method=method, factor=factor).prepared(model), exact_loss(task, model)
    errors = loss.squared_errors(model)
    assert abs(np.mean(errors) - exact(model)) < 4 * np.std(errors) / np.sqrt(errors.size)
    assert float(loss(model)) == pytest.approx(float(np.mean(errors)), rel=1e-12)
    slopes = [eqx.filter(part.gradient(model), eqx.is_array) for part in loss.replicates()]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *slopes)
    for parts, truth in zip(jax.tree.leaves(stacked), jax.tree.leaves(exact.gradient(model)), strict=True):
        spread = np.std(parts, axis=0, ddof=1) / np.sqrt(8)
        assert np.all(np.abs(np.mean(parts, axis=0) - truth) <= 6 * spread + 1e-14)


@pytest.mark.parametrize("model", [LOOPED, STREAM], ids=["looped", "residual stream"])
def test_the_residual_is_that_of_the_literal_model_averaged_over_weights_and_query(model):
    """Two routes: derivatives of the literal model on inputs, and a recursion on their sample covariance."""
    inputs = jax.random.normal(jax.random.key(0), (N, D, 5))
    by_inputs = InputEstimator(Prompts(TASK)).squared_errors(model, (inputs, None))
    covariances = product(jnp.swapaxes(inputs, 0, 1), inputs) / N
    by_covariance = CovarianceEstimator(Prompts(TASK)).squared_errors(model, (covariances, None))
    assert_close(by_inputs, by_covariance, rtol=1e-10)


def test_the_residual_of_layers_that_leave_the_covariates_is_a_product():
    A, W = jnp.asarray(RNG.standard_normal((3, D, D))), jnp.asarray(covariance(D, 1))
    expected = (jnp.eye(D) - W @ A[0]) @ (jnp.eye(D) - W @ A[1]) @ (jnp.eye(D) - W @ A[2])
    assert_close(layered_residual(A, None, W), expected, rtol=1e-12, atol=1e-12)
    many = layered_residual(A, None, jnp.stack([W, 2 * W], axis=-1))
    assert_close(many[..., 0], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.long
def test_symmetric_layers_flow_in_symmetric_matrices():
    A = 0.2 * RNG.standard_normal((2, D, D))
    model = flowsim.MultiLayerAttention(A + np.swapaxes(A, 1, 2))
    gradient = sampled().gradient(model).A
    assert_close(gradient, jnp.swapaxes(gradient, 1, 2), atol=1e-15)
    free = sampled().gradient(flowsim.MultiLayerAttention(model.A, symmetric=False)).A
    assert_close(gradient, (free + jnp.swapaxes(free, 1, 2)) / 2, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("length", [2, 5, 60], ids=lambda n: f"N = {n}")
def test_the_wishart_draws_have_the_moments_of_the_law(length):
    """Bartlett's factors for long contexts, normals for short ones; tr W^k exactly from words."""
    task = flowsim.LinearRegression(np.eye(D), length)
    draw = CovarianceEstimator(Prompts(task)).draw
    W, _ = jax.vmap(draw)(jax.random.split(jax.random.key(1), 20_000))
    for word in ("WA", "WWA", "WWWA"):
        values = np.trace(np.linalg.matrix_power(np.asarray(W), len(word) - 1), axis1=1, axis2=2)
        expected = float(flowsim.wishart_expectation(word, symmetric="A")(length, A=jnp.eye(D)))
        assert abs(np.mean(values) - expected) < 4 * np.std(values) / np.sqrt(values.size)


def test_the_radius_is_averaged_exactly():
    """Given a direction of the inputs the law of tr W is Gamma(N d / 2): moments to order 31 of it."""
    estimator = RadialEstimator(Prompts(flowsim.LinearRegression(np.eye(D), N)))
    halves = np.asarray(estimator.scales) * N / 2
    for power in (1, 2, 10, 31):
        expected = np.prod(N * D / 2 + np.arange(power))
        assert np.asarray(estimator.weights) @ halves**power == pytest.approx(expected, rel=1e-11)


def test_a_sample_is_known_by_its_index():
    loss = sampled(samples=512).prepared(LOOPED)
    errors = loss.squared_errors(LOOPED)
    assert_close(jnp.asarray(sampled(samples=1024).squared_errors(LOOPED)[:512]), jnp.asarray(errors), rtol=1e-13)
    alone = CovarianceEstimator(Prompts(TASK)).draw(jax.random.fold_in(loss.key, 37))
    one = CovarianceEstimator(Prompts(TASK)).squared_errors(LOOPED, (alone[0][..., None], None))
    assert float(one[0]) == pytest.approx(float(errors[37]), rel=1e-13)
    again = eqx.tree_at(lambda loss: loss.draws, loss, None)
    assert float(again(LOOPED)) == pytest.approx(float(loss(LOOPED)), rel=1e-13)
    assert relative_error(again.gradient(LOOPED), loss.gradient(LOOPED)) < 1e-12


@pytest.mark.parametrize("block", [7, 512])
def test_blocks_change_nothing_but_rounding(block):
    whole = sampled(samples=512, method="covariances", block=512).prepared(LOOPED)
    blocks = sampled(samples=512, method="covariances", block=block).prepared(LOOPED)
    assert blocks.block == block
    assert float(blocks(LOOPED)) == pytest.approx(float(whole(LOOPED)), rel=1e-13)
    assert relative_error(blocks.gradient(LOOPED), whole.gradient(LOOPED)) < 1e-12
    assert_close(jnp.asarray(blocks.squared_errors(LOOPED)), jnp.asarray(whole.squared_errors(LOOPED)), rtol=1e-13)


def test_replicates_are_the_parts_of_the_samples():
    loss = sampled(samples=320, replicates=5).prepared(LOOPED)
    parts = loss.replicates()
    assert len(parts) == 5
    values = [float(part(LOOPED)) for part in parts]
    assert float(np.mean(values)) == pytest.approx(float(loss(LOOPED)), rel=1e-12)
    assert len(set(values)) == 5


def test_the_gradient_is_the_derivative_of_the_loss():
    loss = sampled(samples=256, method="covariances")
    step = jax.tree.map(lambda leaf: jnp.asarray(RNG.standard_normal(leaf.shape)), LOOPED)
    moved = lambda h: jax.tree.map(lambda x, dx: x + h * dx, LOOPED, step)
    slope = (float(loss(moved(1e-5))) - float(loss(moved(-1e-5)))) / 2e-5
    inner = jax.tree.map(lambda g, dx: jnp.sum(g * dx), loss.gradient(LOOPED), step)
    assert float(sum(jax.tree.leaves(inner))) == pytest.approx(slope, rel=1e-8)


@pytest.mark.parametrize(
    ("model", "task", "method"),
    [
        (SYMMETRIC, TASK, "covariances"),
        (Ridge(jnp.asarray(0.5)), ISOTROPIC, "inputs"),
        (Bent(jnp.asarray(0.5), jnp.asarray(0.0)), ISOTROPIC, "prompts"),
        (flowsim.LinearAttention(SINGLE.U11, 0.7, [0.1, 0, 0]), ISOTROPIC, "prompts"),
        (SINGLE, dataclasses.replace(ISOTROPIC, label_noise=0.5, weights="isotropic"), "prompts"),
    ],
    ids=["looped", "a user's", "linear at its start alone", "u12", "noisy labels"],
)
def test_auto_takes_the_cheapest_method_that_is_right(model, task, method):
    loss = sampled(task)
    costs = loss.costs(model)
    assert loss.prepared(model).method == method == min(costs, key=lambda name: costs[name])
    assert costs[method] == 1.0
    assert loss.costs(model) == costs


def test_averaging_lowers_the_variance_as_it_must():
    spread = {
        method: np.std(sampled(method=method).squared_errors(SYMMETRIC))
        for method in ("prompts", "inputs", "covariances", "radial")
    }
    assert spread["prompts"] > 5 * spread["covariances"]
    assert spread["inputs"] == pytest.approx(spread["covariances"], rel=0.1)
    assert spread["covariances"] > spread["radial"]


def test_the_excess_is_taken_on_the_same_prompts():
    exact = flowsim.LoopedLoss(TASK, 2)
    loss = sampled(exact=exact, minimizer=exact.minimizer).prepared(SYMMETRIC)
    assert float(loss.minimum) == float(exact.minimum)
    gap = float(loss.excess(SYMMETRIC))
    assert gap == pytest.approx(float(loss(SYMMETRIC)) - float(loss(exact.minimizer)), rel=1e-10)
    near = jax.tree.map(lambda leaf: 1.02 * leaf, exact.minimizer)
    parts = loss.replicates()
    spread = np.std([float(part(near)) for part in parts])
    assert np.std([float(part.excess(near)) for part in parts]) < 0.3 * spread
    assert np.isnan(float(sampled().excess(SYMMETRIC)))


@pytest.mark.long
def test_the_flow_of_samples_ends_where_their_gradient_vanishes_and_near_that_of_the_population():
    task = flowsim.LinearRegression(np.diag([1.0, 0.8]), N, weights="inverse-covariance")
    exact = flowsim.LoopedLoss(task, 2)
    loss = sampled(task, 1024, exact=exact, minimizer=exact.minimizer)
    start = flowsim.LoopedAttention(0.1 * np.eye(2), loops=2)
    run = flowsim.gradient_flow(loss, start, rtol=1e-6, stop=flowsim.Stop(grad_norm=1e-7), points_per_decade=4)
    assert run.status is flowsim.Status.GRAD_NORM
    assert run.settings.method == "explicit"
    assert run.certificates.energy_defect < 1e-5
    # On its own samples it beats the best of the population.
    assert float(run.excess[-1]) < 0
    # Samples are no symmetric law: the end is symmetric as far as they tell.
    assert float(jnp.max(jnp.abs(run.end.A - run.end.A.T))) < 0.1
    assert 0 < float(exact.excess(flowsim.LoopedAttention((run.end.A + run.end.A.T) / 2, loops=2))) < 1e-2


@pytest.fixture(scope="module")
def judged():
    """A sampled flow of two loops on d = 1, where |grad L|^2 / (L - min)^(3/2) is known to the samples' precision."""
    task = flowsim.LinearRegression([[1.0]], 10, weights="inverse-covariance")
    exact = flowsim.LoopedLoss(task, 2)
    loss = flowsim.MonteCarloLoss(task, samples=4096, exact=exact, key=jax.random.key(5), method="covariances")
    start = flowsim.LoopedAttention([[0.0]], loops=2)
    run = flowsim.gradient_flow(loss, start, t1=0.3, rtol=1e-7)
    return exact, loss, run


def claim_of(constant):
    def compare(loss, trajectory):
        return flowsim.at_least(trajectory.grad_norm_sq, constant * trajectory.loss**1.5)

    return flowsim.Claim("test.dominance", "a test", "|grad L|^2 >= c L^(3/2)", compare)


def test_verdicts_reach_as_far_as_the_samples(judged):
    """The sharp constant of the population, from below and above: known by the exact flow."""
    exact, loss, run = judged
    truth = flowsim.gradient_flow(exact, run.start, times=run.t[1:], points_per_decade=0)
    sharp = float(np.min(truth.grad_norm_sq / truth.loss**1.5))
    evidence = flowsim.Evidence(loss, run)
    verdict = lambda constant: flowsim.claims.judge_on(claim_of(constant), evidence).verdict
    assert verdict(0.5 * sharp) is Judgement.HOLDS
    assert verdict(1.5 * sharp) is Judgement.VIOLATED
    assert verdict(sharp) is Judgement.UNRESOLVED
    assert evidence.distrust is None


def test_the_floor_shrinks_with_more_samples(judged):
    exact, loss, run = judged
    few = flowsim.MonteCarloLoss(exact.task, samples=512, exact=exact, key=jax.random.key(6), method="covariances")
    small = flowsim.gradient_flow(few, run.start, t1=0.3, rtol=1e-7)
    floors = [flowsim.check(claim_of(0.1), *case).floor or np.inf for case in ((few, small), (loss, run))]
    assert floors[1] < floors[0] / 1.5


@pytest.mark.long
def test_a_loss_that_no_draw_shows_is_not_judged():
    """Squared errors of a sixth power of normals have no usable interval: the verdict says so and why."""

    class Explosive(eqx.Module):
        c: jax.Array

        def __call__(self, prompt: Prompt) -> jax.Array:
            return self.c * jnp.sum(prompt.inputs**6) * prompt.query[0] ** 3

    task = flowsim.LinearRegression([[1.0]], 1)
    loss = flowsim.MonteCarloLoss(task, samples=1024)
    run = flowsim.gradient_flow(loss, Explosive(jnp.asarray(0.5)), t1=1e-9, rtol=1e-6)
    claim = flowsim.Claim("test.loss", "a test", "L >= 0", lambda loss, run: flowsim.at_least(run.loss, 0.0, size=1.0))
    verdict = flowsim.check(claim, loss, run)
    assert verdict.verdict is Judgement.UNRESOLVED
    assert "too heavy a tail" in verdict.note
    light = flowsim.check(claim, sampled(samples=1024), flowsim.gradient_flow(sampled(samples=1024), SYMMETRIC, t1=0.1))
    assert light.verdict is Judgement.HOLDS


def test_a_run_with_a_checkpoint_goes_on_bit_for_bit(tmp_path):
    loss = sampled(samples=512)
    whole = flowsim.gradient_flow(loss, SYMMETRIC, t1=1.0, rtol=1e-6)
    cut = flowsim.gradient_flow(loss, SYMMETRIC, t1=1.0, rtol=1e-6, checkpoint=tmp_path, budget_seconds=1e-9)
    while cut.status is flowsim.Status.BUDGET:
        cut = flowsim.gradient_flow(loss, SYMMETRIC, t1=1.0, rtol=1e-6, checkpoint=tmp_path, budget_seconds=1e-9)
    assert np.array_equal(whole.models.A, cut.models.A)
    with pytest.raises(ValueError, match="checkpoint must be empty or of this same run"):
        flowsim.gradient_flow(sampled(samples=1024), SYMMETRIC, t1=1.0, rtol=1e-6, checkpoint=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"samples": 100}, "samples must be a multiple of replicates = 8, and between 256 and 2^31, but it is 100"),
        ({"samples": 64}, "samples must be a multiple of replicates = 8, and between 256 and 2^31, but it is 64"),
        ({"samples": 512, "replicates": 2}, "replicates must be at least 4, for an interval, but it is 2"),
        ({"method": "covariance"}, 'method must be one of auto, .*did you mean "covariances"'),
        ({"factor": 0.0}, "factor must be positive, but it is 0"),
        ({"block": 0}, "block must be a whole number of at least 1, but it is 0"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(arguments, line):
    with pytest.raises(ValueError, match=line.replace("^", r"\^")):
        flowsim.MonteCarloLoss(TASK, **({"samples": 512} | arguments))


def test_an_infinite_context_is_refused():
    with pytest.raises(ValueError, match="task.context_length must be finite"):
        flowsim.MonteCarloLoss(flowsim.LinearRegression(np.eye(2), np.inf), samples=512)


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (lambda prompt: prompt.labels, r"its output has shape \(7,\)"),
        (lambda prompt: (prompt.query[0], 1.0), "it gives"),
        (lambda prompt: prompt.query[0].astype(jnp.float32), "type float32"),
    ],
)
def test_a_model_that_gives_no_scalar_is_refused(model, line):
    with pytest.raises(ValueError, match=f"model must be one that maps a prompt to a float64 scalar, but .*{line}"):
        sampled(method="prompts")(model)


def test_a_model_that_is_not_finite_names_the_key_that_shows_it():
    model = lambda prompt: jnp.sqrt(prompt.query[0] + 1.0)
    loss = sampled(method="prompts")
    with pytest.raises(ValueError, match="model must be finite on every drawn prompt") as error:
        loss.prepared(model)
    index = int(str(error.value).rpartition("fold_in(key, ")[2].rstrip(")"))
    prompt, _ = TASK.sample(jax.random.fold_in(loss.key, index))
    assert np.isnan(float(model(prompt)))


def test_a_method_that_is_wrong_for_the_model_is_refused():
    with pytest.raises(ValueError, match='method must be unbiased for the model, but "covariances" is biased'):
        sampled(ISOTROPIC, method="covariances").prepared(Ridge(jnp.asarray(0.5)))
    with pytest.raises(ValueError, match='method must be unbiased for the model, but "inputs" is biased'):
        sampled(ISOTROPIC, method="inputs").prepared(Bent(jnp.asarray(0.5), jnp.asarray(0.0)))


def test_auto_cannot_measure_inside_a_transformation():
    with pytest.raises(ValueError, match='method must be other than "auto" inside of a transformation'):
        eqx.filter_jit(sampled())(LOOPED)


def test_a_block_or_model_beyond_the_memory_is_refused_beforehand(monkeypatch):
    monkeypatch.setattr(blocks, "_free_bytes", lambda device: 2e6)
    with pytest.raises(ValueError, match=r"block must be at most (\d+), which .* but it is 4096") as error:
        sampled(block=4096, method="covariances").prepared(LOOPED)
    fits = int(str(error.value).split("at most ")[1].split(",")[0])
    assert sampled(block=fits, method="covariances").prepared(LOOPED).block == fits
    monkeypatch.setattr(blocks, "_free_bytes", lambda device: 100.0)
    with pytest.raises(ValueError, match="model must be small enough"):
        sampled(method="covariances").prepared(LOOPED)
