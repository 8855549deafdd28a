"""ahn2023's single layer: every claim comes out as it is, planted errors are refused, and flows end where they may."""

import dataclasses
import functools
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from anew import anew
from helpers import regression

import flowsim
from flowsim.claims import Evidence, Judgement, judge_on
from flowsim.losses import LinearAttentionLoss, MaskedAttentionLoss
from flowsim.models import LinearAttention, MaskedAttention
from flowsim.papers.ahn2023 import CLAIMS, appendix_a, problems, sections_3_4
from flowsim.problem import spec_of, unnamed

pytestmark = pytest.mark.slow

BY_KEY = {
    (claim.id.removeprefix("ahn2023."), claim.form): claim for claim in CLAIMS if claim.models == (MaskedAttention,)
}
FLOW = ("theorem-1.flow", "corrected")
REFUTED = {"eq-6", "sec-4.parameters", "lemma-6.unique", "lemma-6.inner-product", "lemma-7.unique", "lemma-7.sum"}


def build(problem) -> flowsim.Problem:
    return spec_of(unnamed(problem), ["flow.rtol=1e-6"]).build()


def loss_of(problem) -> MaskedAttentionLoss:
    loss = build(problem).loss
    assert isinstance(loss, MaskedAttentionLoss)
    return loss


@functools.cache
def _evidence(text: str) -> Evidence:
    problem = build(json.loads(text))
    return Evidence(problem.loss, problem.run())


def evidence_of(problem) -> Evidence:
    return _evidence(json.dumps(problem))


EASY = [(key, claim.problems[0]) for key, claim in BY_KEY.items() if key != FLOW]
HARD_TOO = (
    "eq-6",
    "sec-4.parameters",
    "theorem-1",
    "theorem-1.rescaling",
    "theorem-1.local-minimum",
    "lemma-6",
    "lemma-7",
)
CASES = [
    *EASY,
    *((key, claim.problems[1]) for key, claim in BY_KEY.items() if key[0] in HARD_TOO),
    (("theorem-1", "printed"), problems.INFINITE),
    (("theorem-1.local-minimum", "corrected"), problems.DOMINANT),
    (("theorem-1.local-minimum", "corrected"), problems.INFINITE),
    (("theorem-1.unique", "printed"), problems.ONE),
    (("lemma-6.inner-product", "printed"), problems.ISOTROPIC_SHORT),
]


@pytest.mark.parametrize(
    ("key", "problem"), CASES, ids=[f"{'-'.join(key)}-{problem['name']}" for key, problem in CASES]
)
def test_every_claim_on_its_problems(key, problem):
    verdict = judge_on(BY_KEY[key], evidence_of(problem))
    refuted = key[1] == "printed" and (key[0] in REFUTED or problem is problems.ONE)
    refuted &= problem is not problems.ISOTROPIC_SHORT  # n = 1, where 1/n may be left out
    assert verdict.verdict is (Judgement.VIOLATED if refuted else Judgement.HOLDS), verdict


def test_what_is_refuted_has_a_corrected_form():
    assert {(name, "corrected") for name in REFUTED} <= BY_KEY.keys()


@pytest.mark.long
def test_a_flow_ends_at_another_local_minimum():
    """This one ends where labels and covariates change places in the first eigendirection."""
    problem = problems.ELSEWHERE[2]
    evidence = evidence_of(problem)
    verdict = judge_on(BY_KEY[FLOW], evidence)
    assert verdict.verdict is Judgement.HOLDS, verdict
    loss = loss_of(problem)
    expected = loss.excess(sections_3_4.swapped(loss.task))
    assert verdict.constants["excess_end"] == pytest.approx(float(expected), rel=1e-6)
    drift = evidence.trajectory.certificates.balance_drift
    assert drift is not None and drift < 1e-5
    values = jax.vmap(loss.conserved)(evidence.reference.models)
    np.testing.assert_allclose(values, values[0], atol=1e-7)


def test_a_flow_that_reaches_the_minimum_says_nothing():
    loss = loss_of(problems.DOMINANT)
    start = jax.tree.map(lambda leaf: 1.2 * leaf, loss.minimizer())
    verdict = judge_on(BY_KEY[FLOW], Evidence(loss, flowsim.gradient_flow(loss, start, rtol=1e-6)))
    assert verdict.verdict is Judgement.VACUOUS


def test_hypotheses_and_settings_are_named():
    easy = evidence_of(problems.EASY)
    isotropic = judge_on(BY_KEY["lemma-6", "printed"], easy)
    assert isotropic.verdict is Judgement.NOT_APPLICABLE
    assert "Sigma = I" in isotropic.note and "fails here" in isotropic.note
    one = judge_on(BY_KEY["theorem-1.unique", "corrected"], evidence_of(problems.ONE))
    assert one.verdict is Judgement.NOT_APPLICABLE and "d >= 2" in one.note
    unmasked = LinearAttentionLoss(regression(2, 3))
    run = flowsim.gradient_flow(unmasked, LinearAttention(np.zeros((2, 2)), 0.0))
    claim = BY_KEY["theorem-1", "printed"]
    for about, named in ((claim.models, "class MaskedAttention"), ((), "masked")):  # the model, and else the setting
        foreign = judge_on(dataclasses.replace(claim, models=about), Evidence(unmasked, run))
        assert foreign.verdict is Judgement.NOT_APPLICABLE and named in foreign.note


# Planted errors


def minimizer_of(n_shift: float, trace_factor: float):
    """(8) with n + n_shift for n in the first coefficient, and another one of the trace."""

    def minimizer(loss, gamma=1.0):
        Sigma, n, d = loss.task.covariance, loss.task.context_length, loss.task.dimension
        Gamma = (1 + 1 / (n + n_shift)) * Sigma + trace_factor * jnp.trace(Sigma) / n * jnp.eye(d)
        A = -jnp.concatenate([jnp.linalg.inv(Gamma), jnp.zeros((1, d))]) / gamma
        return MaskedAttention(jnp.zeros(d + 1).at[d].set(gamma), A)

    return minimizer


def scaled(function, factor=1.000001):
    return lambda *args: factor * function(*args)


def far(real):
    """Points of a large loss, between which f is smaller."""
    return lambda loss, gamma: jax.tree.map(lambda leaf: 10 * leaf, real(loss, gamma))


def squared_gamma(real):
    return lambda loss, gamma=1.0: eqx.tree_at(lambda model: model.A, real(loss, gamma), replace_fn=lambda A: A / gamma)


# claim -> (module, name in it, what to put in its place, problem)
PLANTS = [
    ("theorem-1", MaskedAttentionLoss, "minimizer", lambda real: minimizer_of(1.0, 1.0), problems.EASY),
    ("theorem-1", MaskedAttentionLoss, "minimizer", lambda real: minimizer_of(0.0, 2.0), problems.EASY),
    ("theorem-1.rescaling", MaskedAttentionLoss, "minimizer", squared_gamma, problems.EASY),
    ("sec-3.non-convex", MaskedAttentionLoss, "minimizer", far, problems.EASY),
    ("theorem-1.isotropic", MaskedAttentionLoss, "minimizer", lambda real: minimizer_of(1.0, 1.0), problems.ISOTROPIC),
    (
        "theorem-1.local-minimum",
        sections_3_4,
        "_swapped_sides",
        lambda real: lambda task: (1.5 * real(task)[0], real(task)[1]),
        problems.EASY,
    ),
    ("eq-6", sections_3_4, "in_context_loss", scaled, problems.EASY),
    ("lemma-6", appendix_a, "unit", scaled, problems.ISOTROPIC),
    ("lemma-6.sum", appendix_a, "component", scaled, problems.ISOTROPIC),
    ("lemma-6.unique", appendix_a, "_flat_directions", lambda real: lambda task: (1.0 + real(task)[0], real(task)[1]),
     problems.ISOTROPIC),
    ("eq-17", appendix_a, "_pair", scaled, problems.ISOTROPIC),
    ("eq-18", appendix_a, "unit", scaled, problems.ISOTROPIC),
    ("eq-19", appendix_a, "_pair", scaled, problems.ISOTROPIC),
    ("lemma-7", appendix_a, "unit", scaled, problems.EASY),
    ("lemma-7.sum", appendix_a, "component", scaled, problems.EASY),
    ("eq-20", appendix_a, "_pair", scaled, problems.EASY),
    ("eq-21", appendix_a, "_pair", scaled, problems.EASY),
    ("sec-a.3.rotation", appendix_a, "in_context_loss", scaled, problems.EASY),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(("name", "home", "attribute", "plant", "problem"), PLANTS, ids=[plant[0] for plant in PLANTS])
def test_planted_errors_are_refused(name, home, attribute, plant, problem, monkeypatch):
    claim = BY_KEY.get((name, "corrected")) or BY_KEY[name, "printed"]
    monkeypatch.setattr(home, attribute, plant(getattr(home, attribute)))
    verdict = judge_on(anew(claim), evidence_of(problem))
    assert verdict.verdict is Judgement.VIOLATED, verdict


@pytest.mark.parametrize("form", ["printed", "corrected"])
@pytest.mark.parametrize("name", ["sec-4.parameters", "lemma-6.inner-product"])
def test_the_counts_and_factors_are_told_apart_on_prompts(name, form):
    """The printed forms are false where n is neither d nor 1, which is what a planted error would be."""
    verdict = judge_on(BY_KEY[name, form], evidence_of(problems.ISOTROPIC))
    assert verdict.verdict is (Judgement.VIOLATED if form == "printed" else Judgement.HOLDS)


def test_long_sums_round_more():
    """At n = 7009 the two orders of summation differ by more than a few units in the last place."""
    problem = problems._single_layer("n = 7009", "identity", 7009, dimension=3)
    verdict = judge_on(BY_KEY["lemma-6.inner-product", "corrected"], evidence_of(problem))
    assert verdict.verdict is Judgement.HOLDS, verdict


def test_a_minimum_that_is_not_the_only_one_is_counted(monkeypatch):
    monkeypatch.setattr(sections_3_4, "swapped", lambda task: MaskedAttentionLoss(task).minimizer(2.0))
    uncompiled = sections_3_4._unique_minimum.__wrapped__
    monkeypatch.setattr(sections_3_4, "_unique_minimum", uncompiled)
    verdict = judge_on(anew(BY_KEY["theorem-1.unique", "corrected"]), evidence_of(problems.EASY))
    assert verdict.verdict is Judgement.VIOLATED


# The noise floor


def test_strictly_above_the_minimum_at_8_is_unresolved():
    @flowsim.claim("test.strict", "test")
    def strict(task):
        """$f(8) > \\min f$"""
        loss = MaskedAttentionLoss(task)
        return flowsim.at_least(appendix_a.in_context_loss(task, loss.minimizer())[None], loss.minimum)

    assert judge_on(strict, evidence_of(problems.EASY)).verdict is Judgement.UNRESOLVED


def three_variances(x: float) -> flowsim.LinearRegression:
    return flowsim.LinearRegression(np.diag([0.1, x, 1.0]), 3.0)


def test_at_equality_it_is_open_whether_the_other_point_is_a_minimum():
    """With variances 0.1, x and 1 at n = 3, at the x where the two sides of the inequality meet."""
    low, high = 0.2, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        left, right = sections_3_4._swapped_sides(three_variances(middle))
        low, high = (middle, high) if left > right else (low, middle)
    assert 0.3 < low < 0.99
    for x, expected in ((low, Judgement.UNRESOLVED), (low - 0.01, Judgement.HOLDS), (low + 0.01, Judgement.HOLDS)):
        loss = MaskedAttentionLoss(three_variances(x))
        run = flowsim.gradient_flow(loss, MaskedAttention(np.zeros(4), np.zeros((4, 3))))
        verdict = judge_on(BY_KEY["theorem-1.local-minimum", "corrected"], Evidence(loss, run))
        assert verdict.verdict is expected, verdict
