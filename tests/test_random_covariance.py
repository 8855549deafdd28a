"""Flows with random covariances: the loss by two routes, the claims about them, and what sampled laws can tell."""

import dataclasses
import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import largest_z, random_model, relative_error, sample_means

import flowsim
import flowsim.problem
from flowsim.claims import Evidence, Judgement, judge_on
from flowsim.initialization import balanced
from flowsim.losses import LinearAttentionLoss, RandomCovarianceLoss
from flowsim.losses.arrowhead import balanced_minimum, local_rate
from flowsim.papers import zhang2023
from flowsim.papers.zhang2023 import appendix_c, problems, section_4_3
from flowsim.papers.zhang2023.conditions import random_scale_bound
from flowsim.problem import spec_of, unnamed
from flowsim.tasks import LinearRegression, RandomCovarianceRegression
from flowsim.tasks.covariance_laws import DiagonalLaw, Discrete, Gamma, SampledLaw, WishartDraw

pytestmark = pytest.mark.slow

DISCRETE = Discrete([[0.5, 1.5], [1.0, 3.0], [0.2, 2.0]], [[0.5, 0.5], [0.9, 0.1], [0.3, 0.7]])
THETA = np.array([[1, 0.5, 0], [0, 1, -0.5], [0.3, 0, 1]])


def random_loss(law, length: float = 5.0) -> RandomCovarianceLoss:
    return RandomCovarianceLoss(RandomCovarianceRegression(law, length))


def exponential(d: int = 3) -> DiagonalLaw:
    return DiagonalLaw(Gamma(1.0, np.ones(d)))


def every_covariance():
    """Each covariance of `DISCRETE` with its probability."""
    for choice in itertools.product((0, 1), repeat=3):
        values = [float(DISCRETE.values[i, k]) for i, k in enumerate(choice)]
        yield np.diag(values), float(np.prod([DISCRETE.probabilities[i, k] for i, k in enumerate(choice)]))


# The loss


def test_the_loss_over_all_weights_is_the_mean_of_fixed_covariance_losses():
    loss, model = random_loss(DiagonalLaw(DISCRETE)), random_model(3, seed=1)
    fixed = [(LinearAttentionLoss(LinearRegression(matrix, 5.0)), p) for matrix, p in every_covariance()]
    np.testing.assert_allclose(loss(model), sum(p * each(model) for each, p in fixed), rtol=1e-12)
    gradients = [jax.tree.map(lambda leaf, p=p: p * leaf, each.gradient(model)) for each, p in fixed]
    assert relative_error(loss.gradient(model), jax.tree.map(lambda *leaves: sum(leaves), *gradients)) < 1e-12


def test_a_law_without_variance_is_one_covariance():
    loss = random_loss(DiagonalLaw(Discrete([[0.5], [1.0], [2.0]], np.ones((3, 1)))))
    fixed = LinearAttentionLoss(LinearRegression(np.diag([0.5, 1.0, 2.0]), 5.0))
    model = random_model(3, seed=2)
    for value, expected in ((loss(model), fixed(model)), (loss.minimum, fixed.minimum)):
        np.testing.assert_allclose(value, expected, rtol=1e-12)
    assert relative_error(balanced_minimum(loss.structure).U11, balanced_minimum(fixed.structure).U11) < 1e-14
    np.testing.assert_allclose(local_rate(loss.structure), local_rate(fixed.structure), rtol=1e-12)


def test_the_loss_against_prompts_of_the_literal_model():
    loss, model = random_loss(exponential(), 4.0), random_model(3, seed=3, scale=0.4)

    def squared_error(key):
        prompt, label = loss.task.sample(key)
        return (model(prompt) - label) ** 2 / 2

    mean, error = sample_means(squared_error, samples=1_000_000, seed=4)
    assert largest_z(mean, error, loss(model)) < 3


@pytest.mark.parametrize("law", [DiagonalLaw(DISCRETE), SampledLaw(WishartDraw(np.eye(3) + 0.3, 5), 64)])
def test_the_minimum_is_attained_with_no_gradient_and_no_excess(law):
    loss = random_loss(law)
    best = balanced_minimum(loss.structure)
    assert float(loss.excess(best)) < 1e-28
    assert max(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(loss.gradient(best))) < 1e-13
    np.testing.assert_allclose(best.u_minus1, jnp.linalg.norm(best.U11), rtol=1e-13)
    other = random_model(3, seed=5)
    np.testing.assert_allclose(loss(other) - loss(best), loss.excess(other), rtol=1e-12)


def test_the_loss_of_a_sampled_law_is_the_mean_over_its_draws():
    law = SampledLaw(WishartDraw(np.eye(3) + 0.3, 5), 32)
    model = random_model(3, seed=6)
    values = [LinearAttentionLoss(LinearRegression(matrix, 5.0))(model) for matrix in law.matrices]
    np.testing.assert_allclose(random_loss(law)(model), np.mean(values), rtol=1e-12)


# The flow


@pytest.mark.parametrize("law", [DiagonalLaw(DISCRETE), SampledLaw(WishartDraw(np.eye(3) + 0.3, 5), 64)])
def test_the_flow_is_that_of_its_reduction(law):
    loss, start = random_loss(law), balanced(0.1, THETA)
    times = [0.1, 1.0, 5.0, 20.0]
    run = flowsim.gradient_flow(loss, start, times=times, points_per_decade=0)
    reduced = flowsim.reduced_flow(loss, start, times=times)
    assert relative_error(run.models.U11, reduced.models.U11) < 1e-9
    assert relative_error(run.models.u_minus1, reduced.models.u_minus1) < 1e-9


def test_the_arrowhead_and_the_general_solver_agree_without_a_common_eigenbasis():
    loss = random_loss(SampledLaw(WishartDraw(np.eye(2) + 0.3, 3), 32))
    fast, slow = (
        flowsim.gradient_flow(loss, balanced(0.1, THETA[:2]), times=[1.0, 20.0], points_per_decade=0, solver=solver)
        for solver in ("auto", "implicit")
    )
    assert (fast.settings.solver, slow.settings.solver) == ("arrowhead", "implicit")
    assert relative_error(fast.models.U11, slow.models.U11) < 1e-8


# The claims

PARTS = ("theorem-4.5", "eq-4.13", "lemma-c", "corollary-c", "eq-c")
CLAIMS = [claim for claim in zhang2023.CLAIMS if claim.id.removeprefix("zhang2023.").startswith(PARTS)]
BY_KEY = {(claim.id.removeprefix("zhang2023."), claim.form): claim for claim in CLAIMS}
REFUTED = {("lemma-c.6.proof-equality", "printed"), ("lemma-c.8.limit", "printed")}
PROBLEMS = {problem["name"]: problem for claim in CLAIMS for problem in claim.problems}
ON_ITS_PROBLEMS = [
    pytest.param(key, problem["name"], id=f"{'-'.join(key)}-{problem['name']}", marks=[pytest.mark.long] * (index > 0))
    for key, claim in BY_KEY.items()
    for index, problem in enumerate(claim.problems)
]


@functools.cache
def evidence_of(name: str) -> Evidence:
    problem = spec_of(unnamed(PROBLEMS[name])).build()
    return Evidence(problem.loss, problem.run())


@pytest.mark.parametrize(("key", "name"), ON_ITS_PROBLEMS)
def test_every_claim_on_its_own_problems(key, name):
    verdict = judge_on(BY_KEY[key], evidence_of(name))
    assert verdict.verdict is (Judgement.VIOLATED if key in REFUTED else Judgement.HOLDS), verdict


def test_the_edge_is_just_under_the_scale_condition():
    problem = spec_of(unnamed(problems.RANDOM_EDGE)).build()
    assert isinstance(problem.loss, RandomCovarianceLoss)
    assert 0.9 < float(problem.start.u_minus1 / random_scale_bound(problem.loss, problem.start)) < 1


def scaled(function, factor):
    return lambda *args: factor * function(*args)


def wrong_coefficients(real):
    def coefficients(loss):
        gamma, xi, zeta = real(loss)
        return 1.0001 * gamma, xi, zeta

    return coefficients


def wrong_field(real):
    def field(loss, model):
        dU, *rest = real(loss, model)
        return 1.000001 * dU, *rest

    return field


PLANTS = {
    ("theorem-4.5", "printed"): (section_4_3, "gamma_of", lambda real: scaled(real, 1.001)),
    ("lemma-c.1", "printed"): (appendix_c, "gamma_of", lambda real: scaled(real, 1.000001)),
    ("corollary-c.2", "printed"): (appendix_c, "entry_field", wrong_field),
    ("lemma-c.3", "printed"): (appendix_c, "entry_loss", lambda real: scaled(real, 1.000001)),
    ("lemma-c.4", "printed"): (appendix_c, "entry_loss", lambda real: scaled(real, 1.000001)),
    ("lemma-c.6.proof-equality", "corrected"): (
        appendix_c,
        "proof_of_positivity",
        lambda real: lambda *a: real(*a)[::-1],
    ),
    ("lemma-c.7", "printed"): (appendix_c, "random_u_lower_bound_sq", lambda real: scaled(real, 4.0)),
    ("lemma-c.8.pl", "printed"): (appendix_c, "random_pl_constant", lambda real: scaled(real, 1e2)),
    ("lemma-c.8.limit", "corrected"): (appendix_c, "coefficients", wrong_coefficients),
    ("eq-c.17", "printed"): (appendix_c, "coefficients", wrong_coefficients),
}


@pytest.mark.parametrize("key", PLANTS, ids="-".join)
def test_planted_errors_are_refused(key, monkeypatch):
    module, name, plant = PLANTS[key]
    monkeypatch.setattr(module, name, plant(getattr(module, name)))
    compare = BY_KEY[key].compare
    # A comparison of its own, so that nothing compiled for the true one is used.
    claim = dataclasses.replace(BY_KEY[key], compare=lambda loss, run: compare(loss, run))
    verdict = judge_on(claim, evidence_of(problems.RANDOM_EASY["name"]))
    assert verdict.verdict is Judgement.VIOLATED, verdict


def test_claims_about_one_covariance_do_not_apply_to_random_ones_nor_the_other_way_round():
    fixed = spec_of({"task": {"covariance": [[1.0]], "context_length": 3}, "init": {"kind": "balanced", "scale": 0.1}})
    problem = fixed.build()
    about_random = judge_on(BY_KEY["lemma-c.7", "printed"], Evidence(problem.loss, problem.run()))
    theorem = flowsim.find_claims(flowsim.ALL_CLAIMS, "zhang2023.theorem-4.1")[0]
    about_fixed = judge_on(theorem, evidence_of(problems.RANDOM_EASY["name"]))
    for verdict in (about_random, about_fixed):
        assert verdict.verdict is Judgement.NOT_APPLICABLE
        assert [condition.met for condition in verdict.hypotheses] == [False]
        assert verdict.margin is None


def test_what_three_moments_do_not_tell_is_unresolved():
    moments = {"family": "moments", "first": 1.0, "second": 2.0, "third": 6.0, "dimension": 3}
    tables = {"task": {"covariance_law": moments, "context_length": 10}, "init": problems.RANDOM_EASY["init"]}
    problem = spec_of(tables).build()
    case = Evidence(problem.loss, problem.run())
    assert relative_error(case.trajectory.end.U11, evidence_of(problems.RANDOM_EASY["name"]).trajectory.end.U11) < 1e-9
    verdict = judge_on(BY_KEY["lemma-c.8.pl", "printed"], case)
    assert verdict.verdict is Judgement.UNRESOLVED
    assert "A side of a hypothesis is not known here: sigma^2 sqrt(d) E[|Gamma|_op" in verdict.note
    assert judge_on(BY_KEY["lemma-c.5", "printed"], case).verdict is Judgement.HOLDS


# Sampled laws: the error of the draws is part of the verdict


@functools.cache
def sampled_evidence() -> Evidence:
    loss = random_loss(SampledLaw(WishartDraw(np.eye(2), 4), 256), 10.0)
    return Evidence(loss, flowsim.gradient_flow(loss, balanced(0.2, np.eye(2)), points_per_decade=6))


def exact_limit() -> float:
    """u_{-1} at the limit under the Wishart law itself, isotropic: |T|_F^{1/2} with T = E[Lambda^2]/E[Gamma Lambda^2].

    For d = 2 and n = 4 degrees: E tr Lambda^2 = 2 (1 + 3/n), E tr Lambda^3 = 2 (1 + 9/n + 14/n^2), and
    E[tr Lambda tr Lambda^2] = 4 (1 + 3/n) (1 + 2/n), since the trace is independent of Lambda over its trace.
    """
    n, length = 4.0, 10.0
    square, cube, mixed = 2 * (1 + 3 / n), 2 * (1 + 9 / n + 14 / n**2), 4 * (1 + 3 / n) * (1 + 2 / n)
    ratio = square / ((1 + 1 / length) * cube + mixed / length)
    return float(np.sqrt(np.sqrt(2) * ratio))


def at_least_its_limit(factor: float) -> flowsim.Claim:
    compare = lambda loss, run: flowsim.at_least(run.end.u_minus1[None], factor * exact_limit())
    return flowsim.Claim(f"test.{factor}", "test", f"u_{{-1}} ends above {factor} times its limit", compare)


def test_the_error_of_the_draws_is_part_of_the_verdict():
    case = sampled_evidence()
    verdicts = [judge_on(at_least_its_limit(factor), case) for factor in (0.7, 0.995, 1.005, 1.4)]
    assert [verdict.verdict for verdict in verdicts] == [
        Judgement.HOLDS,
        Judgement.UNRESOLVED,
        Judgement.UNRESOLVED,
        Judgement.VIOLATED,
    ]
    floor = verdicts[1].floor
    assert floor is not None and 1e-3 < floor < 0.3


def test_more_draws_tell_more():
    loss = random_loss(SampledLaw(WishartDraw(np.eye(2), 4), 4096), 10.0)
    case = Evidence(loss, flowsim.gradient_flow(loss, balanced(0.2, np.eye(2)), points_per_decade=6))
    few, many = (judge_on(at_least_its_limit(1.0), each).floor for each in (sampled_evidence(), case))
    assert few is not None and many is not None and many < few / 2
    assert float(abs(case.trajectory.end.u_minus1 / exact_limit() - 1)) < many


def test_an_identity_of_every_law_holds_whatever_was_drawn():
    verdict = judge_on(BY_KEY["lemma-c.1", "printed"], sampled_evidence())
    assert verdict.verdict is Judgement.HOLDS
    assert verdict.floor is not None and verdict.floor < 1e-9


# The problem file


def law_of(**fields):
    tables = {"task": {"covariance_law": fields, "context_length": 4}, "init": {"kind": "zeros"}}
    task = spec_of(tables).build().task
    assert isinstance(task, RandomCovarianceRegression) and isinstance(task.law, DiagonalLaw)
    return task.law


@pytest.mark.parametrize(
    ("fields", "moments"),
    [
        ({"family": "exponential", "rate": 2.0, "dimension": 1}, (0.5, 0.5, 0.75)),
        ({"family": "gamma", "shape": [2.0], "rate": 1.0}, (2, 6, 24)),
        ({"family": "uniform", "low": 0, "high": 1, "dimension": 1}, (1 / 2, 1 / 3, 1 / 4)),
        ({"family": "log-normal", "location": 0.0, "spread": [1.0]}, tuple(np.exp([0.5, 2.0, 4.5]))),
        ({"family": "discrete", "values": [[0.5, 1.5]], "probabilities": [[0.5, 0.5]]}, (1, 1.25, 1.75)),
        ({"family": "deterministic", "eigenvalues": [2.0]}, (2, 4, 8)),
        ({"family": "moments", "first": 1, "second": 2, "third": 6, "dimension": 1}, (1, 2, 6)),
    ],
)
def test_a_family_by_its_table(fields, moments):
    np.testing.assert_allclose(law_of(**fields).moments()[:, 0], moments, rtol=1e-13)


def test_a_number_stands_for_every_coordinate_and_the_file_reads_back():
    tables = unnamed(problems.RANDOM_HARD)
    spec = spec_of(tables)
    law = spec.build().task
    assert law.dimension == 5
    assert flowsim.ProblemSpec.from_toml(spec.to_toml()) == spec
    assert eqx.tree_equal(flowsim.ProblemSpec.from_toml(spec.to_toml()).build().loss, spec.build().loss)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"family": "exponential", "rate": 1.0}, "task.covariance_law.dimension must be given where every parameter"),
        ({"family": "exponential", "rate": [1.0, 2.0], "dimension": 3}, "covariance_law.rate must be of length 3"),
        (
            {"family": "gamma", "rate": [1.0]},
            "task.covariance_law.shape must be a number or a list",
        ),
        (
            {"family": "uniform", "low": [0.0], "high": 1, "rate": 1},
            "task.covariance_law.rate must be left out with",
        ),
        ({"family": "exponental", "rate": [1.0]}, 'did you mean "exponential"'),
        ({"family": "uniform", "low": [-1.0], "high": 1}, "task.covariance_law.low must be at least 0"),
        (
            {"family": "log-normal", "location": [0.0], "spread": 20.0},
            "covariance_law.moments must be finite up to",
        ),
        ({"family": "moments", "first": [1.0], "second": 2, "third": 1e400}, "finite"),
        (
            {"family": "discrete", "values": [[0.0]], "probabilities": [[1.0]]},
            "task.covariance_law.values must be positive",
        ),
    ],
)
def test_a_law_that_is_none_is_refused_in_one_line(fields, line):
    with pytest.raises(flowsim.problem.ProblemError) as error:
        law_of(**fields)
    assert line in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("covariance", [{}, {"covariance": [[1.0]]}])
def test_a_covariance_or_a_law_of_it(covariance):
    law = {"covariance_law": {"family": "exponential", "rate": [1.0]}} if covariance else {}
    with pytest.raises(flowsim.problem.ProblemError, match="task.covariance must be given, or task.covariance_law"):
        spec_of({"task": {**covariance, **law, "context_length": 2}, "init": {"kind": "zeros"}})
