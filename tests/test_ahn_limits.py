"""What ahn2023's figures say of the limit of training is decided only where the way to the limit is bounded."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowsim
from flowsim import initialization
from flowsim.claims import Evidence, Judgement, judge_on
from flowsim.flow import basin as region
from flowsim.flow.gradient_flow import start_alone
from flowsim.losses import MonteCarloLoss
from flowsim.models import MultiLayerAttention
from flowsim.papers.ahn2023 import CLAIMS, figures

pytestmark = pytest.mark.slow

BY_KEY = {(claim.id.removeprefix("ahn2023."), claim.form): claim for claim in CLAIMS}
WITHOUT_B = [
    ("figure-1.preconditioner", "printed"),
    ("figure-1.plain", "corrected"),
    ("figure-1.loss", "printed"),
    ("figure-1.loss", "corrected"),
    ("figure-2", "printed"),
]
BY_PROMPTS = [(f"figure-3.training.{part}", "printed") for part in ("loss", "A", "B")]


@functools.cache
def sampled() -> Evidence:
    task = flowsim.LinearRegression(np.diag([0.5, 1.0]), 50, weights="inverse-covariance")
    start = MultiLayerAttention(initialization.symmetric(0.3, 2, 0, 2), initialization.gaussian(0.3, 2, 1, 1))
    loss = MonteCarloLoss(task, samples=256, method="covariances").prepared(start)
    return Evidence(loss, flowsim.gradient_flow(loss, start, t1=1.0, rtol=1e-4, points_per_decade=2))


@pytest.mark.parametrize("key", WITHOUT_B, ids="-".join)
def test_without_a_bound_limits_are_open(key, monkeypatch: pytest.MonkeyPatch):
    task = flowsim.LinearRegression(np.eye(1), 6, weights="inverse-covariance")
    loss = flowsim.MultiLayerLoss(task, 2)
    run = flowsim.gradient_flow(loss, MultiLayerAttention(jnp.array([[[0.2]], [[0.9]]])), t1=0.1, rtol=1e-6)
    monkeypatch.setattr(region, "way_to_go", lambda *args: math.inf)
    verdict = judge_on(BY_KEY[key], Evidence(loss, run))
    assert verdict.verdict is Judgement.UNRESOLVED and "No bound is known" in verdict.note, verdict


@pytest.mark.long
@pytest.mark.parametrize("key", BY_PROMPTS, ids="-".join)
def test_by_prompts_limits_are_open(key):
    verdict = judge_on(BY_KEY[key], sampled())
    assert verdict.verdict is Judgement.UNRESOLVED and "No bound is known" in verdict.note, verdict


@pytest.mark.long
@pytest.mark.parametrize("key", BY_PROMPTS, ids="-".join)
def test_by_prompts_a_limit_that_is_reached_is_compared(key):
    """Were there no way to go, the end of this short flow would not do."""
    run = sampled().trajectory
    found = BY_KEY[key].compare(sampled().loss, dataclasses.replace(run, way_to_go=jnp.zeros(())))
    assert np.all(found.allowance == 0) and np.all(found.slack < -0.05)


def test_the_distance_to_the_identity_moves_no_faster_than_is_allowed():
    rng = np.random.default_rng(0)
    for _ in range(200):
        M, step = rng.standard_normal((2, 3, 3))
        way = rng.uniform(0, 2) * np.linalg.norm(M)
        moved = M + way * step / np.linalg.norm(step)
        change = abs(figures.distance_to_identity(jnp.asarray(moved)) - figures.distance_to_identity(jnp.asarray(M)))
        assert change <= figures.distance_to_go(jnp.asarray(M), jnp.asarray(way))


@pytest.mark.parametrize("k", [1, 2, 3])
def test_third_derivatives_are_bounded(k: int):
    """Along random lines, by differentiating the loss itself."""
    loss = flowsim.MultiLayerLoss(flowsim.LinearRegression(np.eye(2), 3, weights="inverse-covariance"), k)
    third = jax.jit(jax.grad(jax.grad(jax.grad(lambda s, A, D: loss(MultiLayerAttention(A + s * D))))))
    rng = np.random.default_rng(1)
    for _ in range(20):
        A, D = (x + np.swapaxes(x, 1, 2) for x in rng.standard_normal((2, k, 2, 2)))
        found = abs(third(0.0, jnp.asarray(A), jnp.asarray(D / np.linalg.norm(D))))
        a = jnp.asarray(np.max(np.linalg.norm(A, 2, axis=(1, 2))))
        assert found <= figures.third_derivative(loss, a) * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_no_flow_goes_further_than_is_proved(seed: int):
    """From a point near the minimum, a way that is measured, with covariances at which A' moves at other speeds."""
    task = flowsim.LinearRegression(np.diag([0.5, 2.0]), 6, weights="inverse-covariance")
    loss = flowsim.MultiLayerLoss(task, 2)
    D = np.random.default_rng(seed).standard_normal((2, 2, 2))
    start = MultiLayerAttention(loss.minimizer.A + 1e-9 * (D + np.swapaxes(D, 1, 2)))
    run = flowsim.gradient_flow(loss, start, t1=50.0, rtol=1e-6)
    way = float(figures.way_to_go(loss, start_alone(loss, start)))
    steps = np.diff(np.asarray(run.models.A), axis=0).reshape(run.t.size - 1, -1)
    assert np.sum(np.linalg.norm(steps, axis=1)) < way < 1e-6


def test_the_first_problem_of_training_is_the_papers():
    first, *others = BY_KEY["figure-4.training", "printed"].problems
    assert first["task"]["context_length"] == 10 and first["model"]["layers"] == 3
    assert len(first["task"]["covariance"]["eigenvalues"]) == 5
    assert all("section" not in problem["name"] for problem in others)
