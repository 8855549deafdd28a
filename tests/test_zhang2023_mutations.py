"""One percent off in what a row of zhang2023 speaks of makes it not hold, or the table says why it may.

Each row names a mutation: of the loss that flows, of a formula of the paper, or of a moment, a risk or a prediction.
Rows of the same kind share one problem, so that few flows are solved.
"""

import functools

import equinox as eqx
import jax
import pytest
from anew import anew

import flowsim
from flowsim.claims import Evidence, Judgement, judge_on
from flowsim.papers.zhang2023 import CLAIMS, appendix_a, appendix_c, appendix_d, problems, section_3, section_4_1
from flowsim.problem import spec_of, unnamed

pytestmark = [pytest.mark.slow, pytest.mark.long]

BY_KEY = {(claim.id.removeprefix("zhang2023."), claim.form): claim for claim in CLAIMS}


def built(problem):
    return spec_of(unnamed(problem)).build()


@functools.cache
def evidence_of(key) -> Evidence:
    problem = built(BY_KEY[key].problems[0])
    return Evidence(problem.loss, problem.run())


def shared(problem) -> Evidence:
    """The flow of a problem, for all rows that have it first."""
    return evidence_of(next(key for key, claim in BY_KEY.items() if claim.problems and claim.problems[0] is problem))


@functools.cache
def of_a_wrong_loss(random: bool) -> Evidence:
    """The flow of a loss whose curvature is one percent off that of its task."""
    true = shared(problems.RANDOM_EASY if random else problems.EASY)
    where = (lambda l: l.structure.curvature) if random else (lambda l: l.eigenvalues)
    loss = eqx.tree_at(where, true.loss, replace_fn=lambda x: 1.01 * x)
    return Evidence(loss, flowsim.gradient_flow(loss, true.trajectory.start))


WRONG_LOSS = [
    (part, form, random)
    for random, keys in (
        (
            False,
            "theorem-4.1 corollary-4.3.convergence lemma-5.2 lemma-5.3 lemma-5.4.limit lemma-a.1 corollary-a.2 eq-a.15 "
            "assumption-3.3.balance:corrected assumption-3.3.scale:corrected",
        ),
        (
            True,
            "theorem-4.5 theorem-4.5.scale:corrected lemma-c.1 corollary-c.2 lemma-c.4 lemma-c.4.minima "
            "lemma-c.8.limit:corrected eq-c.17 eq-4.13",
        ),
    )
    for part, form in ((*key.split(":"), "printed")[:2] for key in keys.split())
]


@pytest.mark.parametrize(("part", "form", "random"), WRONG_LOSS)
def test_a_loss_that_is_one_percent_off_is_refused(part, form, random):
    assert judge_on(BY_KEY[part, form], of_a_wrong_loss(random)).verdict is Judgement.VIOLATED


def off(real):
    return lambda *args: jax.tree.map(lambda x: 1.01 * x, real(*args))


def first_off(real):
    return lambda *args: [
        (1.01 * left, right) if i == 0 else (left, right) for i, (left, right) in enumerate(real(*args))
    ]


# (part, form) -> (module, name of what is one percent off, how)
FORMULAS = {
    ("eq-3.6", "printed"): (section_3, "_last_row", off),
    ("eq-3.6.query-column", "corrected"): (section_3, "MaskedAttention", off),
    ("lemma-c.3", "printed"): (appendix_c, "entry_loss", off),
    ("theorem-4.2.spread", "printed"): (section_4_1, "polynomial_rule", lambda real: weights_off(real)),
    ("eq-a.7", "printed"): (appendix_a, "second_moment", off),
    ("sec-4.1.isotropic", "printed"): (section_4_1, "limit", off),
    ("lemma-d.1", "printed"): (appendix_d, "_derivatives", first_off),
    ("lemma-a.1", "printed"): (appendix_a, "printed_loss", off),
    ("corollary-a.2", "printed"): (appendix_a, "printed_loss", off),
    ("eq-a.15", "printed"): (appendix_a, "_residuals", off),
}


def weights_off(real):
    return lambda *args: eqx.tree_at(lambda rule: rule.weights, real(*args), replace_fn=lambda x: 1.01 * x)


@pytest.mark.parametrize("key", FORMULAS, ids="-".join)
def test_a_formula_that_is_one_percent_off_is_refused(key, monkeypatch):
    module, name, change = FORMULAS[key]
    monkeypatch.setattr(module, name, change(getattr(module, name)))
    claim = BY_KEY[key]
    verdict = judge_on(anew(claim), shared(claim.problems[0]))
    assert verdict.verdict in (Judgement.VIOLATED, Judgement.UNRESOLVED), verdict


# Rows that tolerate one percent, and why.
SLACK = {
    "assumption-3.3.nonzero": "a bound by the least eigenvalue, attained only along its eigenvector",
    "assumption-3.3.zero-blocks": "an example of another minimum, which a percent does not move to the global one",
    "sec-5.1.negative-eigenvalues": "a whole number",
    "lemma-5.4.pl": "the constant is smaller by a factor of about 100 than the sharp one",
    "lemma-5.4.rate": "the same constant",
    "lemma-a.4": "a sign",
    "lemma-a.5": "a lower bound that is far from attained",
    "eq-a.15.bound": "attained at small starts in one dimension: test_claims plants a percent there",
    "eq-a.16": "norms of products bounded by products of norms",
    "lemma-a.4.start": "norms of products bounded by products of norms",
    "lemma-c.6": "a sign",
    "lemma-c.6.start": "norms of products bounded by products of norms",
    "lemma-c.6.proof-equality": "printed: violated; corrected: Jensen's inequality, with room for the variance",
    "lemma-c.7": "a lower bound that is far from attained",
    "lemma-c.8.pl": "the constant is smaller than the sharp one by far",
    "lemma-c.8.rate": "the same constant",
    "theorem-4.2.noiseless-bound": "attained as N grows: test_new_prompt_claims plants a percent there",
    "theorem-4.2.averaged-bound": "attained as N grows: test_new_prompt_claims plants a percent there",
    "corollary-4.3.test-length": "half of epsilon is left to N",
    "corollary-4.3.train-length": "half of epsilon is left to M",
    "corollary-4.3.definition-3.2": "printed: violated; corrected: half of epsilon is left to each length",
    "figure-1.least-squares": "room of a half: test_figure_1",
    "lemma-d.4": "signs, and whether matrices commute",
}
# Planted in other files: test_claims, test_new_prompt_claims, test_one_third, test_figure_1, test_random_covariance.
ELSEWHERE = {
    "assumption-3.3",
    "assumption-3.3.semidefinite",
    "lemma-5.1",
    "lemma-a.3",
    "lemma-c.5",
    "eq-4.2",
    "theorem-4.2",
    "theorem-4.2.noiseless",
    "sec-4.2.task-shift",
    "sec-4.2.query-shift",
    "sec-4.2.orthogonal-query",
    "sec-4.2.covariate-shift",
    "sec-4.3.one-third",
    "figure-1",
    "lemma-d.2",
    "lemma-d.3",
}


def test_every_row_has_its_mutation_or_the_reason_why_not():
    named = {part for part, _, _ in WRONG_LOSS} | {part for part, _ in FORMULAS} | SLACK.keys() | ELSEWHERE
    assert {part for part, _ in BY_KEY} == named


@pytest.mark.parametrize("length", [0.1, 1e3])
def test_short_flows_and_plateaus_are_no_evidence_against_a_limit(length):
    """Task diag(1, 1e-6): its slow mode stays on a plateau until t = 1e14."""
    task = {"covariance": [[1, 0], [0, 1e-6]], "context_length": 10}
    init = {"kind": "balanced", "scale": 1e-3, "theta": [[1, 0], [0, 1]]}
    problem = spec_of({"task": task, "init": init, "flow": {"t1": length}}).build()
    evidence = Evidence(problem.loss, problem.run())
    for part in ("theorem-4.1", "lemma-5.3", "lemma-5.4.limit", "lemma-5.4.rate", "lemma-a.5", "eq-a.16"):
        verdict = judge_on(BY_KEY[part, "printed"], evidence)
        assert verdict.verdict is not Judgement.VIOLATED, verdict


def test_the_refused_rows_are_the_ones_that_are_known():
    """A spot check that the mutations are what breaks a row: unmutated they hold."""
    for random in (False, True):
        evidence = shared(problems.RANDOM_EASY if random else problems.EASY)
        for part, form, of_random in WRONG_LOSS:
            if of_random is random:
                assert judge_on(BY_KEY[part, form], evidence).verdict is Judgement.HOLDS, part
