"""Heavy tails: a sample average that looks far better than the population loss is distrusted, a light one is not."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowsim
from flowsim import initialization
from flowsim.claims import Claim, Judgement, at_least
from flowsim.losses import MonteCarloLoss, ScalarLayersLoss
from flowsim.models import LinearAttention, LoopedAttention, MultiLayerAttention, ScalarLayers
from flowsim.tasks import LinearRegression
from tests.helpers import covariance

pytestmark = pytest.mark.slow


def trained(n: int, samples: int, steps: int) -> tuple[MonteCarloLoss, MultiLayerAttention]:
    """ahn2023, section 6.1 on isotropic covariates: three layers with B from a random start, by gradient descent with
    steps that adapt, which a sample average can be brought down by in seconds.
    """
    task = LinearRegression(jnp.eye(5), n, weights="inverse-covariance")
    model = MultiLayerAttention(initialization.symmetric(0.2, 5, 0, 3), initialization.gaussian(0.2, 5, 100, 2))
    loss = MonteCarloLoss(task, samples=samples, method="covariances").prepared(model)
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)

    def step(carry, _):
        arrays, first, second, count = carry
        slope = loss.gradient(eqx.combine(arrays, rest))
        slope = eqx.filter(slope, eqx.is_inexact_array)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, slope)
        second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g**2, second, slope)
        rate = 0.02 * jnp.sqrt(1 - 0.99**count) / (1 - 0.9**count)
        moved = jax.tree.map(lambda x, m, v: x - rate * m / (jnp.sqrt(v) + 1e-9), arrays, first, second)
        return (moved, first, second, count + 1.0), None

    zero = jax.tree.map(jnp.zeros_like, arrays)
    run = jax.jit(lambda start: jax.lax.scan(step, (start, zero, zero, jnp.asarray(1.0)), length=steps)[0][0])
    return loss, eqx.combine(run(arrays), rest)


@pytest.fixture(scope="module")
def heavy() -> tuple[MonteCarloLoss, MultiLayerAttention]:
    return trained(10, 1024, 1500)


def test_what_suits_the_samples_is_known_to_suit_them_alone(heavy):
    loss, model = heavy
    own, fresh = loss.estimate(model), loss.fresh(model).estimate(model)
    # Nothing on the samples tells: their own tail has a variance.
    assert own.tail.shape < 0.5
    assert own.value < 1.0
    assert fresh.value > 20 * own.value
    reason = loss.distrust(model)
    assert reason is not None
    assert "fresh prompts" in reason


def test_on_scalars_the_exact_loss_says_the_same(heavy):
    """The exact loss of the scalars nearest to the weights explodes too; that of the best scalars can be sampled."""
    exact, (loss, model) = ScalarLayersLoss(5, 10, 3, residual_stream=True), heavy
    assert float(exact.minimum) == pytest.approx(0.0393, rel=0.01)
    nearest = ScalarLayers(jnp.einsum("kii->k", model.A) / 5, jnp.einsum("kii->k", model.B) / 5)
    assert float(exact(nearest)) > 1000 * loss.estimate(nearest.attention(jnp.eye(5))).value
    best = exact.minimizer.attention(jnp.eye(5))
    assert loss.distrust(best) is None
    estimate = loss.estimate(best)
    assert estimate.low < float(exact.minimum) < estimate.high


@pytest.mark.long
def test_a_verdict_on_such_a_flow_is_unresolved(heavy):
    loss, model = heavy
    trajectory = flowsim.gradient_flow(loss, model, t1=1e-3, rtol=1e-4, points_per_decade=2)
    falls = Claim("a.b", "a, b", "the loss is below 5", lambda loss, run: at_least(5.0, run.loss))
    (verdict,) = flowsim.judge([falls], loss, trajectory)
    assert verdict.verdict is Judgement.UNRESOLVED
    assert verdict.margin is not None
    assert verdict.margin > 0
    assert "The samples may be far from the population loss" in verdict.note


@pytest.mark.parametrize("seed", range(4))
def test_light_tails_are_trusted(seed: int):
    """At the best weights and on the way there."""
    task = LinearRegression(covariance(3, seed), 20, weights="inverse-covariance")
    isotropic = LinearRegression(covariance(3, seed), 20)
    inverse = jnp.linalg.inv(task.covariance)
    layer = lambda scale: LinearAttention(scale * 0.8 * inverse, 1.0)
    for of_prompts, models in (
        (task, [LoopedAttention(a * inverse, loops=2) for a in (0.2, 0.6)]),
        (task, [LoopedAttention(a * inverse, loops=3) for a in (0.2, 0.5)]),
        (isotropic, [layer(scale) for scale in (0.2, 1.0)]),
    ):
        loss = MonteCarloLoss(of_prompts, samples=4096, key=jax.random.key(seed), method="covariances")
        loss = loss.prepared(models[0])
        fresh = loss.fresh(models[0])
        for model in models:
            assert loss.distrust(model, fresh) is None


def test_the_minimum_on_samples_is_told_from_chance():
    """The reason compares intervals: a model that no sample chose is trusted even where its loss is small."""
    task = LinearRegression(np.eye(2), 200, weights="inverse-covariance")
    exact = ScalarLayersLoss(2, 200, 2)
    loss = MonteCarloLoss(task, samples=2048, method="covariances").prepared(exact.minimizer.attention(np.eye(2)))
    assert loss.distrust(exact.minimizer.attention(np.eye(2))) is None
    estimate = loss.estimate(exact.minimizer.attention(np.eye(2)))
    assert estimate.low < float(exact.minimum) < estimate.high
