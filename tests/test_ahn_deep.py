"""ahn2023's layers: verdicts as they are, planted errors refused, the floor left open, and gradients by two routes."""

import dataclasses
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from anew import anew

import flowsim
import flowsim.initialization
import flowsim.moments
from flowsim.claims import Evidence, Judgement, judge_on
from flowsim.flow.trajectory import Certificates, Settings, Status, Trajectory
from flowsim.models import ScalarLayers
from flowsim.models import multi_layer as layers
from flowsim.papers import ahn2023
from flowsim.papers.ahn2023 import (
    appendix_b_1_2_4,
    figures,
    multi_layer,
    problems,
    prompts,
    residual_stream,
    sections_5_6,
)
from flowsim.papers.ahn2023.settings import LAYERED
from flowsim.problem import spec_of, unnamed
from flowsim.tasks import Prompt

pytestmark = pytest.mark.slow

CLAIMS = tuple(claim for claim in ahn2023.CLAIMS if claim.models == LAYERED)
BY_KEY = {(claim.id.removeprefix("ahn2023."), claim.form): claim for claim in CLAIMS}
# Large variances, so that tr Sigma^-1 < 1; on the last the paper's two layers of Theorem 3.
SMALL, ONE, ISOTROPIC = ([5.0, 10.0], 3), ([2.0], 4), ([1.0, 1.0], 3)
FIGURE_4 = ([1.0] * 5, 10)
VIOLATED = {
    ("eq-11", "printed"),
    ("theorem-3.trace", "printed"),
    ("sec-5.2.hessian", "printed"),
    ("eq-61", "printed"),
    ("eq-28", "printed"),
    ("eq-25", "printed"),
    ("eq-34", "printed"),
    ("eq-35", "printed"),
    ("eq-38", "printed"),
    ("sec-5.2.distorted", "printed"),
    ("sec-6.1.curvature", "printed"),
    ("eq-35.constrained", "printed"),
    ("eq-37", "printed"),
    ("figure-1.plain", "printed"),
    ("figure-1.loss", "printed"),
    ("figure-3.loss", "printed"),
}


def at_rest(loss: flowsim.MultiLayerLoss, start: flowsim.MultiLayerAttention) -> Trajectory:
    """The start alone, for statements that need no flow."""
    leading = lambda value: jnp.asarray(value)[None]
    slope = jnp.sum(loss.gradient(start).A ** 2)
    series = (jax.tree.map(leading, start), leading(loss(start)), leading(loss.excess(start)), leading(slope))
    settings = Settings("implicit", 1e-9, 1e-9)
    return Trajectory(jnp.zeros(1), *series, jnp.zeros(1), Certificates(0.0, None, 0, 0), settings, Status.STATIONARY)


@functools.cache
def static(which: str) -> Evidence:
    eigenvalues, n = {"small": SMALL, "one": ONE, "isotropic": ISOTROPIC, "figure 4": FIGURE_4}[which]
    task = flowsim.LinearRegression(np.diag(eigenvalues), n, weights="inverse-covariance")
    layers = 3 if which == "figure 4" else 2
    loss = flowsim.MultiLayerLoss(task, layers)
    start = flowsim.MultiLayerAttention(jnp.zeros((layers, len(eigenvalues), len(eigenvalues))))
    return Evidence(loss, at_rest(loss, start))


@functools.cache
def trained() -> Evidence:
    task = flowsim.LinearRegression(np.diag([0.5, 2.0]), 6, weights="inverse-covariance")
    loss = flowsim.MultiLayerLoss(task, 2)
    start = flowsim.MultiLayerAttention(flowsim.initialization.symmetric(1.0, 2, 0, 2))
    # The rows are of the limit, to 1e-4 of a distance: the square root of what is left of the excess.
    return Evidence(loss, flowsim.gradient_flow(loss, start, rtol=1e-6, stop=flowsim.Stop(excess=1e-14)))


def evidence_of(claim: flowsim.Claim) -> Evidence:
    if claim.along_flow:
        return trained()
    if claim.id == "ahn2023.figure-4.conditioning":
        return static("figure 4")
    return static("isotropic" if claim.id.startswith("ahn2023.theorem-3") else "small")


@pytest.mark.parametrize("key", BY_KEY, ids="-".join)
def test_every_verdict(key):
    claim = BY_KEY[key]
    verdict = judge_on(claim, evidence_of(claim))
    assert verdict.verdict is (Judgement.VIOLATED if key in VIOLATED else Judgement.HOLDS), verdict


def test_every_problem_is_one():
    known = {str(problem): problem for claim in CLAIMS for problem in claim.problems}
    for problem in known.values():
        spec_of(unnamed(problem))
    assert len({problem["name"] for problem in known.values()}) == len(known)
    assert problems.PAPER["task"]["context_length"] == 20


def scaled(factor):
    return lambda real: lambda *args: jax.tree.map(lambda value: factor * value, real(*args))


def first_scaled(factor):
    return lambda real: lambda *args: (factor * real(*args)[0], *real(*args)[1:])


def bent(real):
    """Gradients with something in them that no rotation leaves."""
    return lambda loss, points: real(loss, points).at[..., 0, 0].multiply(1 + 1e-6)


def bent_losses(real):
    """Losses with something in them that no rotation leaves."""
    return lambda loss, matrices: real(loss, matrices) * (1 + 1e-9 * matrices[:, 0, 0, 0])


PLANTS = {
    ("theorem-3.rotation", "printed"): (appendix_b_1_2_4, "losses_at", bent_losses),
    ("figure-4.conditioning", "printed"): (
        figures,
        "local_minima",
        lambda real: lambda loss: jax.tree.map(lambda of: of[:1], real(loss)),
    ),
    ("figure-4.conditioning", "corrected"): (
        figures,
        "lowest",
        lambda real: lambda loss: real(loss).at[-1].multiply(0.1),
    ),
    ("theorem-3", "printed"): (sections_5_6, "diagonals", scaled(0.0)),
    ("theorem-3.multiples", "corrected"): (sections_5_6, "many_starts", lambda real: lambda *a: real(*a) + 1e-9),
    ("theorem-3.proof", "printed"): (appendix_b_1_2_4, "at_most", lambda real: lambda x, y: real(y, x)),
    ("theorem-3.convex", "printed"): (
        appendix_b_1_2_4,
        "at_least",
        lambda real: lambda x, y, size: real(-x, y, size=size),
    ),
    ("theorem-4", "printed"): (sections_5_6, "best_scalars", scaled(1.001)),
    ("theorem-4.minimum", "corrected"): (multi_layer, "best_scalars", scaled(0.1)),
    ("theorem-4.global", "corrected"): (sections_5_6, "many_starts", lambda real: lambda *a: real(*a) + 1e-9),
    ("theorem-4.on-the-set", "corrected"): (appendix_b_1_2_4, "many_starts", lambda real: lambda *a: real(*a) + 1e-9),
    ("theorem-4.gradient", "corrected"): (appendix_b_1_2_4, "gradients", bent),
    ("eq-25", "corrected"): (appendix_b_1_2_4, "gradients", bent),
    ("eq-26", "printed"): (appendix_b_1_2_4, "_decrease", first_scaled(0.499)),
    ("eq-26", "corrected"): (appendix_b_1_2_4, "_decrease", first_scaled(1 + 1e-9)),
    ("lemma-8", "printed"): (
        appendix_b_1_2_4,
        "_permuted",
        lambda real: lambda *a: real(*a) * jnp.array([[1, 1 + 1e-9]]),
    ),
    ("theorem-5", "printed"): (sections_5_6, "lowest", scaled(1.001)),
    ("figure-1.preconditioner", "printed"): (figures, "preconditioned", lambda real: lambda loss, A: A),
    ("figure-1.plain", "corrected"): (
        figures,
        "distance_to_identity",
        lambda real: lambda M: real(M) + 0.01 * M.ndim,
    ),
    ("figure-1.loss", "corrected"): (
        figures,
        "equal",
        lambda real: lambda value, expected, size, allowance: real(value, 1.001 * expected, size, allowance=allowance),
    ),
    ("figure-2", "printed"): (figures, "best_scalars", scaled(1.001)),
}


@pytest.mark.long
@pytest.mark.parametrize("key", PLANTS, ids="-".join)
def test_planted_errors_are_refused(key, monkeypatch: pytest.MonkeyPatch):
    module, name, plant = PLANTS[key]
    real = getattr(module, name)
    monkeypatch.setattr(module, name, plant(real))
    claim = BY_KEY[key]
    # A function of its own: what was compiled with the real one is not used again.
    planted = dataclasses.replace(claim, compare=lambda *args: claim.compare(*args), constants=lambda *args: {})
    verdict = judge_on(planted, evidence_of(claim))
    assert verdict.verdict is Judgement.VIOLATED, verdict


def test_planted_errors_on_prompts_are_refused():
    @prompts.on_prompts
    def without_the_label(drawn):
        return prompts.layers(drawn, prompts.labelled(drawn))[-1, -1, -1:], jnp.stack(
            [prompts.layers(drawn, prompts.embed(drawn.prompt))[-1, -1, -1]]
        )

    planted = dataclasses.replace(BY_KEY["lemma-9", "printed"], compare=lambda loss, flow: without_the_label(loss))
    verdict = judge_on(planted, static("small"))
    assert verdict.verdict is Judgement.VIOLATED, verdict


def louder(attend):
    """Layers that attend by 1% more, which no rotation sees."""
    return lambda *args: 1.01 * attend(*args)


def uneven(rule):
    """A law of the sample covariance that has directions: the first point weighs 1% more."""

    def moved(*args):
        factors, weights = rule(*args)
        return residual_stream.Cubature(factors, np.concatenate([1.01 * weights[:1], weights[1:]]))

    return moved


IN_THE_LAYERS = [("theorem-5", "printed"), ("theorem-5.gradient", "corrected")]
IN_THE_LAW = [
    ("theorem-5.gradient", "corrected"),
    ("eq-34", "corrected"),
    ("eq-35", "corrected"),
    ("eq-36", "printed"),
    ("eq-37", "corrected"),
]


@pytest.mark.parametrize(
    ("key", "home", "name", "plant"),
    [
        *((key, layers, "attend", louder) for key in IN_THE_LAYERS),
        *((key, residual_stream, "wishart_cubature", uneven) for key in IN_THE_LAW),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else getattr(value, "__name__", value),
)
def test_errors_of_one_percent_with_B_are_refused(key, home, name, plant, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(home, name, plant(getattr(home, name)))
    # What was compiled with the real layers is not used again. The law is an argument of what is compiled.
    forget = jax.clear_caches if home is layers else lambda: None
    forget()
    verdict = judge_on(BY_KEY[key], static("small"))
    forget()
    assert verdict.verdict is Judgement.VIOLATED, verdict


def test_the_second_move_conditions_the_covariates_worse():
    """By the layers themselves, on other prompts, on S at its best."""
    loss = static("figure 4").loss
    assert isinstance(loss, flowsim.MultiLayerLoss)
    model = residual_stream.on_the_set(loss).minimizer
    assert model.b is not None
    A, B = ([value * np.eye(5) for value in values] for values in (-np.asarray(model.a), [*model.b, 0.0]))
    found = []
    for seed in range(200):
        keys = jax.random.split(jax.random.key(seed))
        weight = jax.random.normal(keys[1], (5,))
        inputs = jax.random.normal(keys[0], (10, 5))
        prompt = Prompt(inputs, inputs @ weight, jnp.zeros(5))
        drawn = prompts.Drawn(prompt, weight, jnp.asarray(A), jnp.asarray(B), jnp.eye(5), jnp.eye(5))
        X = prompts.covariates(drawn, prompts.inputs_of(drawn))[:-1, :, :-1]
        found.append(np.linalg.cond(X))
    better = np.mean(np.diff(found, axis=1) < 0, axis=0)
    assert better[0] > 0.9 and better[1] < 0.35
    corrected = judge_on(BY_KEY["figure-4.conditioning", "corrected"], static("figure 4"))
    assert corrected.constants["share_1"] == pytest.approx(better[0], abs=0.1)
    assert corrected.constants["share_2"] == pytest.approx(better[1], abs=0.1)


def test_the_trace_takes_symmetric_matrices_for_granted():
    task = flowsim.LinearRegression(np.eye(2), 3, weights="inverse-covariance")
    loss = flowsim.MultiLayerLoss(task, 2, symmetric=False)
    start = flowsim.MultiLayerAttention(jnp.zeros((2, 2, 2)), symmetric=False)
    for form in ("printed", "corrected"):
        verdict = judge_on(BY_KEY["theorem-3.trace", form], Evidence(loss, at_rest(loss, start)))
        assert verdict.verdict is Judgement.NOT_APPLICABLE


def test_gradients_that_are_out_of_reach_are_not_known():
    task = flowsim.LinearRegression(np.eye(3), 10, weights="inverse-covariance")
    loss = flowsim.MultiLayerLoss(task, 3)
    evidence = Evidence(loss, at_rest(loss, flowsim.MultiLayerAttention(jnp.zeros((3, 3, 3)))))
    verdict = judge_on(BY_KEY["eq-36", "printed"], evidence)
    assert verdict.verdict is Judgement.UNRESOLVED and "cubature" in verdict.note


def test_at_the_noise_floor_nothing_is_decided(monkeypatch: pytest.MonkeyPatch):
    """Where the sides differ by rounding alone: (26) at d = 1, where there is no factor d to spare."""
    assert judge_on(BY_KEY["eq-26", "printed"], static("one")).verdict is Judgement.UNRESOLVED
    # Lemma 8's matrices off S put on S; Theorem 3's matrices diagonal from the first.
    points = lambda loss, key: multi_layer.drawn_scalars(loss)[:, :, None, None] * jnp.eye(2)[None, None]
    monkeypatch.setattr(appendix_b_1_2_4, "drawn_matrices", points)
    assert judge_on(anew(BY_KEY["lemma-8.general", "corrected"]), static("small")).verdict is not Judgement.HOLDS
    assert judge_on(anew(BY_KEY["theorem-3.proof", "printed"]), static("isotropic")).verdict is Judgement.UNRESOLVED


def test_hypotheses_and_settings():
    assert judge_on(BY_KEY["theorem-3", "printed"], static("small")).verdict is Judgement.NOT_APPLICABLE
    assert judge_on(BY_KEY["theorem-4.invariant", "corrected"], static("isotropic")).verdict is Judgement.NOT_APPLICABLE
    other = flowsim.LinearAttentionLoss(flowsim.LinearRegression(np.eye(2), 3))
    assert all(claim.setting(other) is not None for claim in CLAIMS)


def test_the_gradient_over_all_matrices_with_B_is_that_of_the_scalars():
    """Monte Carlo of the literal model, gradients in A and B by differentiating its prediction."""
    Sigma, a, b = jnp.array([[1.0, 0.3], [0.3, 0.5]]), jnp.array([0.4, 0.7]), jnp.array([0.5])
    task = flowsim.LinearRegression(Sigma, 12, weights="inverse-covariance")
    model = ScalarLayers(a, b).attention(Sigma)

    @eqx.filter_jit
    def drawn(keys):
        def one(key):
            prompt, label = task.sample(key)
            return eqx.filter_grad(lambda m: (m(prompt) - label) ** 2)(model)

        return jax.vmap(one)(keys)

    found = drawn(jax.random.split(jax.random.key(3), 40_000))
    loss = residual_stream.scalar_loss(2, 12.0, 2)
    slopes = jax.grad(loss.__call__)(ScalarLayers(a, b))
    for samples, slope, direction in ((found.A, slopes.a, Sigma), (found.B, slopes.b, jnp.eye(2))):
        expected = slope[:, None, None] * direction[None] / 2
        error = jnp.std(samples, axis=0) / samples.shape[0] ** 0.5
        assert np.all(np.abs(np.mean(samples, axis=0) - expected) < 4.5 * error)
        assert np.all(error < 0.1 * np.max(np.abs(expected)))


def test_equal_scalars_are_a_strict_saddle():
    """The critical point with a_0 = a_1 on S: moving them apart by s lowers the loss by 2 s^2 E tr W^2 (1 - a W)^2."""
    loss: Any = static("isotropic").loss
    slope = jax.jit(jax.grad(lambda a: loss(multi_layer.on_the_set(loss, jnp.stack([a, a])))))
    low, high = 0.0, 2.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    here = loss(multi_layer.on_the_set(loss, jnp.array([low, low])))
    apart = loss(multi_layer.on_the_set(loss, jnp.array([low - 1e-3, low + 1e-3])))
    rule = flowsim.moments.spectral_quadrature(2, 3, 4)
    x = 1 + rule.offsets
    assert float((apart - here) / 1e-6) == pytest.approx(
        -2 * np.sum(rule.weights * x**2 * (1 - low * x) ** 2), rel=1e-4
    )
