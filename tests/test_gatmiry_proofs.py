"""What gatmiry2024 states in its text and proofs: what holds, what fails, and second routes to its moments."""

import functools
import json
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest

from flowsim import LinearRegression, LoopedAttention, LoopedLoss
from flowsim.claims import Evidence, Judgement, judge_on
from flowsim.flow.gradient_flow import start_alone
from flowsim.papers.gatmiry2024 import CLAIMS, appendix_a_gradient, appendix_a_moments, lemmas, moments
from flowsim.papers.gatmiry2024 import problems as flows
from flowsim.problem import spec_of, unnamed

pytestmark = [pytest.mark.slow, pytest.mark.long]

BY_KEY = {(claim.id.removeprefix("gatmiry2024."), claim.form): claim for claim in CLAIMS}
HOLDS, VIOLATED, AWAY = Judgement.HOLDS, Judgement.VIOLATED, Judgement.NOT_APPLICABLE
UNRESOLVED = Judgement.UNRESOLVED

SMALL = flows.looped("L = 2, d = 2, n = 5", 2, 5, [[1.0, 0.3], [0.3, 2.0]])
SPREAD = flows.looped("d = 2, L = 2, n = 10^24", 2, 10**24, dimension=2)
QUADRATIC = flows.looped("L = 1, d = 2, n = 5", 1, 5, dimension=2)
INFINITE = flows.looped("L = 2, d = 2, n = inf", 2, "inf", dimension=2)

VERDICTS = [
    ("proposition-3.1.eq-7", "printed", SMALL, VIOLATED),
    ("proposition-3.1.first-step", "printed", SMALL, VIOLATED),
    ("proposition-3.1.eq-9", "printed", SMALL, VIOLATED),
    ("sec-3.2.hessian", "printed", SMALL, VIOLATED),
    ("sec-3.2.step-size", "printed", SMALL, VIOLATED),
    ("sec-3.5.delta", "printed", SMALL, VIOLATED),
    ("sec-3.5.delta", "corrected", SMALL, HOLDS),
    ("sec-3.7.non-convex", "printed", QUADRATIC, VIOLATED),
    ("sec-3.7.non-convex", "printed", SMALL, UNRESOLVED),
    ("sec-3.7.non-convex", "printed", INFINITE, HOLDS),
    ("sec-3.7.non-convex", "corrected", INFINITE, HOLDS),
    ("sec-3.7.non-convex", "corrected", SMALL, AWAY),
    ("sec-3.7.convex-on-symmetric", "corrected", INFINITE, HOLDS),
    ("lemma-a.10.eq-26", "printed", lemmas.TWICE_EDGE, VIOLATED),
    ("lemma-a.10.gamma", "printed", lemmas.TWICE_EDGE, VIOLATED),
    ("lemma-a.10.factors", "printed", lemmas.TWICE_EDGE, VIOLATED),
    ("lemma-a.10.eq-27", "printed", flows.SMALL_COVARIANCE, VIOLATED),
    ("lemma-a.10.eq-27", "corrected", flows.SMALL_COVARIANCE, HOLDS),
    ("lemma-a.10.noise", "printed", SPREAD, VIOLATED),
    ("lemma-a.10.noise", "corrected", SPREAD, HOLDS),
    ("lemma-a.10.hoelder", "printed", SPREAD, VIOLATED),
    ("theorem-a.11.eq-28", "printed", flows.SMALL_COVARIANCE, VIOLATED),
    ("theorem-a.11.eq-28", "corrected", flows.SMALL_COVARIANCE, HOLDS),
    ("theorem-a.11.step", "printed", flows.WIDE_LONG, VIOLATED),
    ("theorem-a.11.step", "printed", SPREAD, HOLDS),
    ("theorem-a.11.step", "corrected", flows.WIDE_LONG, HOLDS),
    ("lemma-a.7.eq-21", "printed", lemmas.TWICE_EDGE, VIOLATED),
]


@functools.cache
def evidence_of(text: str) -> Evidence:
    tables = json.loads(text)
    problem = spec_of(unnamed(tables)).build()
    return Evidence(problem.loss, start_alone(problem.loss, problem.start))


@pytest.mark.parametrize(("part", "form", "problem", "expected"), VERDICTS)
def test_every_statement_comes_out_as_its_note_says(part, form, problem, expected):
    verdict = judge_on(BY_KEY[part, form], evidence_of(json.dumps(problem)))
    assert verdict.verdict is expected, verdict


def test_every_refuted_statement_is_corrected():
    assert all((part, "corrected") in BY_KEY for part, _, _, expected in VERDICTS if expected is VIOLATED)


def test_pairings_and_integration_by_parts_give_the_same_moments():
    values, counts, n = (Fraction(3), Fraction(1, 2)), (1, 2), 7
    for k in range(1, 6):
        errors = moments.moment_errors(values, counts, n, k)
        paired = appendix_a_moments.paired_moments(values, counts, n, k)
        assert paired == tuple(x**k + error for x, error in zip(values, errors, strict=True))


def test_terms_of_the_gradient_by_hand_and_by_sampling():
    spectrum, n = appendix_a_gradient.Spectrum((Fraction(3, 2), 1), (Fraction(1, 2), 1)), 4
    # E[W A W] = A + (A + tr(A) I)/n, and E[W^2] A = (1 + 3/n) A.
    assert appendix_a_gradient.gamma(spectrum, n, 1, 0) == [x + (x + 2) / n for x in spectrum.eigenvalues]
    assert appendix_a_gradient.gamma(spectrum, n, 0, 1) == [x * (1 + Fraction(3, n)) for x in spectrum.eigenvalues]
    A = np.diag([1.5, 0.5])
    z = np.random.default_rng(0).standard_normal((400_000, n, 2))
    W = np.swapaxes(z, 1, 2) @ z / n
    R = np.eye(2) - W @ A
    found = np.diagonal(R @ W @ R @ R, axis1=1, axis2=2)
    exact = np.array(list(map(float, appendix_a_gradient.factor(spectrum, n, 1, 2))))
    assert np.all(np.abs(np.mean(found, axis=0) - exact) < 4 * np.std(found, axis=0) / len(z) ** 0.5)


def test_without_symmetry_the_limit_has_many_minimisers_and_halfway_between_two_a_loss():
    loss = LoopedLoss(LinearRegression(np.eye(2), np.inf, weights="inverse-covariance"), 2, symmetric=False)
    A = np.array([[1.0, 2.0], [0.0, 1.0]])
    at = lambda A: float(loss(LoopedAttention(jnp.asarray(A), loops=2)))
    assert at(A) == at(A.T) == 0.0
    # (I - A)^2 halfway is I, of squared norm 2.
    assert at((A + A.T) / 2) == pytest.approx(2.0, rel=1e-14)
