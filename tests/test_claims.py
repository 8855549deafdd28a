"""Verdicts: true statements hold, planted errors are refused, and what the numerics cannot tell is left unresolved."""

import dataclasses
import functools

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from anew import anew

import flowsim
import flowsim.claims.statements
from flowsim.claims import Evidence, Judgement, judge_on
from flowsim.claims.hypotheses import hypothesis
from flowsim.flow.gradient_flow import start_alone
from flowsim.flow.trajectory import Status
from flowsim.papers import zhang2023
from flowsim.papers.zhang2023 import appendix_a, problems, section_3, section_5
from flowsim.papers.zhang2023.conditions import limit, pl_constant
from flowsim.problem import spec_of, unnamed

PARTS = ("eq-3.6", "assumption-3.3", "theorem-4.1", "corollary-4.3.convergence", "lemma-5", "sec-5")
PARTS += ("lemma-a", "corollary-a", "eq-a")
CLAIMS = [claim for claim in zhang2023.CLAIMS if claim.id.removeprefix("zhang2023.").startswith(PARTS)]
BY_KEY = {(claim.id.removeprefix("zhang2023."), claim.form): claim for claim in CLAIMS}


def build(problem):
    return spec_of(unnamed(problem)).build()


def task_of(problem) -> flowsim.LinearRegression:
    task = build(problem).task
    assert isinstance(task, flowsim.LinearRegression)
    return task


@functools.cache
def evidence_of(index: int) -> Evidence:
    problem = build((*problems.FLOWS, section_3.UNBALANCED, section_3.BEYOND)[index])
    return Evidence(problem.loss, problem.run(), claims=CLAIMS)


EASY, HARD, EDGE, ONE, UNBALANCED, BEYOND = range(6)


ZERO_BLOCKS = ("assumption-3.3.zero-blocks", "corrected")


@pytest.mark.parametrize("index", [*(pytest.param(index, marks=pytest.mark.slow) for index in (EASY, HARD)), ONE])
@pytest.mark.parametrize("key", [key for key in BY_KEY if key != ZERO_BLOCKS], ids="-".join)
def test_every_claim_on_a_start_that_meets_the_assumption(key, index):
    verdict = judge_on(BY_KEY[key], evidence_of(index))
    short_context = index == HARD  # N = 3 < d = 8
    refuted = key == ("sec-5.1.negative-eigenvalues", "printed") and short_context
    refuted |= key == ("eq-a.15.bound", "printed") and index != HARD  # there |Lambda|_op = 1
    equal = key[0] in ("lemma-a.4.start", "eq-a.16") and index == ONE  # both sides at d = 1
    expected = Judgement.VIOLATED if refuted else Judgement.VACUOUS if equal else Judgement.HOLDS
    assert verdict.verdict is expected, verdict


def test_the_count_of_negative_eigenvalues_as_printed_fails_by_what_the_corrected_one_says():
    verdict = judge_on(BY_KEY["sec-5.1.negative-eigenvalues", "printed"], evidence_of(HARD))
    assert verdict.constants == {"fewest_negative_eigenvalues": 4.0, "d_plus_one": 9.0}


@pytest.mark.parametrize("key", [("lemma-5.1", "printed"), ("sec-5.1.negative-eigenvalues", "printed")])
def test_where_a_claim_about_the_start_fails_is_a_point_and_no_time(key):
    """Both have 64 points, which is how many times a start alone is padded to."""
    problem = build(problems.FLOWS[ONE])
    verdict = judge_on(BY_KEY[key], Evidence(problem.loss, start_alone(problem.loss, problem.start)))
    assert isinstance(verdict.where, str) and verdict.where.startswith("point ") and verdict.where.endswith(" of 64")
    timed = flowsim.Claim("mine", "notes", "the excess", lambda loss, run: flowsim.at_least(run.excess, 0.0))
    assert judge_on(timed, Evidence(problem.loss, start_alone(problem.loss, problem.start))).where == 0.0
    misdeclared = dataclasses.replace(timed, along_flow=False)
    assert (
        "along_flow=True"
        in judge_on(misdeclared, Evidence(problem.loss, start_alone(problem.loss, problem.start))).note
    )


def test_unmet_hypotheses_are_named_and_the_conclusion_is_reported_all_the_same():
    verdict = judge_on(BY_KEY["theorem-4.1", "printed"], evidence_of(BEYOND))
    assert verdict.verdict is Judgement.NOT_APPLICABLE
    assert [condition.name for condition in verdict.hypotheses if not condition.met] == [
        "sigma^2 |Gamma|_op sqrt(d) < 2"
    ]
    assert "holds nevertheless" in verdict.note
    assert verdict.margin is not None


def test_without_balance_the_printed_limit_fails_and_the_corrected_one_holds():
    assert "fails here" in judge_on(BY_KEY["lemma-5.4.limit", "printed"], evidence_of(UNBALANCED)).note
    corrected = judge_on(BY_KEY["assumption-3.3.balance", "corrected"], evidence_of(UNBALANCED))
    assert corrected.verdict is Judgement.HOLDS


@pytest.mark.long
@pytest.mark.slow
def test_without_zero_blocks_a_flow_ends_at_another_local_minimum():
    example = {**section_3.ALL_WEIGHTS, "flow": {"rtol": 1e-6}}
    problem = build(example)
    verdict = judge_on(BY_KEY[ZERO_BLOCKS], Evidence(problem.loss, problem.run()))
    assert verdict.verdict is Judgement.HOLDS
    assert verdict.constants["excess_end"] == pytest.approx(0.483069, rel=1e-5)
    # The example says so of itself alone: not where the flow reaches the global minimum.
    small = {**example, "init": {**example["init"], "u12": [0, 0, 1e-3], "u21": [0, 0, -1e-3]}}
    other = build(small)
    elsewhere = judge_on(BY_KEY[ZERO_BLOCKS], Evidence(other.loss, other.run()))
    assert elsewhere.verdict is Judgement.VACUOUS, elsewhere
    assert judge_on(BY_KEY[ZERO_BLOCKS], evidence_of(EASY)).verdict is Judgement.NOT_APPLICABLE


def scaled(function, factor):
    return lambda *args: factor * function(*args)


def scaled_model(function, factor):
    return lambda *args: eqx.tree_at(lambda m: (m.U11, m.u_minus1), function(*args), replace_fn=lambda x: factor * x)


GAMMA = (flowsim.LinearRegression, "gamma", lambda real: scaled(real, 1.001))
# claim -> (where, name there, what to put in its place): a false constant or formula for every claim
PLANTS = {
    ("assumption-3.3", "printed"): (section_3, "balanced", lambda real: scaled_model(real, 1.001)),
    ("assumption-3.3.balance", "corrected"): (
        section_3,
        "distance_to_limit",
        lambda real: lambda l, t, m: real(l, t, limit(l.task)),
    ),
    ("assumption-3.3.semidefinite", "corrected"): GAMMA,
    ("assumption-3.3.scale", "corrected"): GAMMA,
    ("theorem-4.1", "printed"): GAMMA,
    ("corollary-4.3.convergence", "printed"): GAMMA,
    ("lemma-5.3", "printed"): GAMMA,
    ("lemma-5.1", "printed"): (
        section_5,
        "_summed",
        lambda real: lambda *args: real(*args)._replace(attended=1.01 * real(*args).attended),
    ),
    ("sec-5.1.negative-eigenvalues", "corrected"): (
        section_5,
        "_negative_eigenvalues",
        lambda real: lambda l: (real(l)[0] - 1, real(l)[1]),
    ),
    ("lemma-5.2", "printed"): GAMMA,
    ("lemma-a.1", "printed"): (appendix_a, "printed_loss", lambda real: scaled(real, 1.000001)),
    ("corollary-a.2", "printed"): (appendix_a, "printed_loss", lambda real: scaled(real, 1.000001)),
    ("lemma-5.4.limit", "printed"): GAMMA,
    ("lemma-5.4.pl", "printed"): (section_5, "pl_constant", lambda real: scaled(real, 1e3)),
    ("lemma-5.4.rate", "printed"): (section_5, "pl_constant", lambda real: scaled(real, 1e3)),
    ("eq-a.15.bound", "corrected"): (appendix_a, "u_lower_bound_sq", lambda real: scaled(real, 1.01)),
    ("lemma-a.5", "printed"): (appendix_a, "u_lower_bound_sq", lambda real: scaled(real, 4.0)),
}


@pytest.mark.parametrize("key", PLANTS, ids="-".join)
@pytest.mark.slow
def test_planted_errors_are_refused(key, monkeypatch):
    owner, name, plant = PLANTS[key]
    index = {"assumption-3.3.balance": UNBALANCED, "eq-a.15.bound": ONE}.get(key[0], EASY)
    # What was compiled for the true statement is not used.
    monkeypatch.setattr(section_5, "_every_minimum", section_5._every_minimum.__wrapped__)
    monkeypatch.setattr(section_5, "_both_sides", section_5._both_sides.__wrapped__)
    monkeypatch.setattr(owner, name, plant(getattr(owner, name)))
    verdict = judge_on(anew(BY_KEY[key]), evidence_of(index))
    assert verdict.verdict is Judgement.VIOLATED, verdict


@functools.cache
def of_another_loss() -> Evidence:
    """The flow of a loss whose eigenvalues are one percent off those of its covariance."""
    true = build(problems.EASY)
    loss = eqx.tree_at(lambda l: l.eigenvalues, true.loss, replace_fn=lambda x: 1.01 * x)
    return Evidence(loss, flowsim.gradient_flow(loss, true.start))


@pytest.mark.parametrize("part", ["theorem-4.1", "lemma-5.2", "lemma-5.3", "lemma-5.4.limit", "lemma-a.1"])
def test_one_percent_of_the_loss_is_refused(part):
    assert judge_on(BY_KEY[part, "printed"], of_another_loss()).verdict is Judgement.VIOLATED


@pytest.mark.parametrize("context_length", [1, 1024, 1025, 100_000])
@pytest.mark.slow
def test_the_prediction_on_a_long_prompt_is_summed_token_by_token(context_length):
    task = flowsim.LinearRegression(np.eye(2), context_length)
    model = flowsim.LinearAttention(np.diag([1.0, 2.0]), 0.5)
    loss = flowsim.LinearAttentionLoss(task)
    run = flowsim.gradient_flow(loss, model, t1=1e-3, points_per_decade=0)
    assert flowsim.check(BY_KEY["lemma-5.1", "printed"], loss, run).verdict is Judgement.HOLDS


@pytest.mark.parametrize("claim_id", ["lemma-a.3", "lemma-a.4"])
def test_planted_trajectories_are_refused(claim_id):
    """Statements without a constant are tried on a flow that they are not true of."""
    true = evidence_of(EASY)
    broken = Evidence(true.loss, _tamper(true.trajectory, claim_id))
    broken.__dict__["reference"] = broken.__dict__["confirmation"] = broken.trajectory
    broken.__dict__["stepped_over"] = ""  # its loss is not that of its weights
    assert judge_on(BY_KEY[claim_id, "printed"], broken).verdict is Judgement.VIOLATED


def _tamper(run, claim_id):
    models = run.models
    if claim_id == "lemma-a.4":
        models = eqx.tree_at(lambda m: m.u_minus1, models, models.u_minus1 * jnp.where(run.t > 1.0, -1.0, 1.0))
    else:
        models = eqx.tree_at(lambda m: m.u_minus1, models, models.u_minus1 * jnp.where(run.t > 1.0, 1.001, 1.0))
    return dataclasses.replace(run, models=models)


def test_a_violation_that_a_more_accurate_solve_does_not_confirm_is_unresolved():
    true = evidence_of(EASY)
    broken = Evidence(true.loss, _tamper(true.trajectory, "lemma-a.3"))
    broken.__dict__["reference"] = broken.trajectory
    broken.__dict__["confirmation"] = true.reference
    assert judge_on(BY_KEY["lemma-a.3", "printed"], broken).verdict is Judgement.UNRESOLVED


@pytest.mark.parametrize("offset", [1e-15, -1e-15])
def test_pl_at_the_sharp_constant_is_unresolved(offset):
    case = evidence_of(EASY)
    compare = lambda loss, run: flowsim.at_least(
        run.grad_norm_sq, (1 + offset) * flowsim.claims.statements.sharp_constant(run) * run.excess
    )
    claim = flowsim.Claim("test.sharp", "test", "the sharp PL constant", compare)
    assert judge_on(claim, case).verdict is Judgement.UNRESOLVED


@pytest.mark.parametrize(
    "name, compare",
    [
        ("balance as an inequality", lambda loss, run: flowsim.at_least(loss_conserved(loss, run), 0.0, size=1.0)),
        ("the loss falls strictly", lambda loss, run: flowsim.at_most(run.excess + run.dissipated, run.excess[0])),
        ("an identity off by its rounding", lambda loss, run: flowsim.at_most(run.loss - run.excess, loss.minimum)),
    ],
)
def test_strict_statements_at_the_noise_floor_are_unresolved(name, compare):
    verdict = judge_on(flowsim.Claim("test.noise", "test", name, compare), evidence_of(EASY))
    assert verdict.verdict is Judgement.UNRESOLVED, verdict


def loss_conserved(loss, run):
    return run.models.u_minus1**2 - jnp.sum(run.models.U11**2, axis=(1, 2))


def test_an_identity_known_too_coarsely_is_unresolved():
    case = evidence_of(EASY)
    within = lambda loss, run: flowsim.equal(run.models.u_minus1[-1:], limit(loss.task).u_minus1, 1.0, allowance=0.01)
    coarse = flowsim.Claim("test.coarse", "test", "u -> ..", within)
    assert flowsim.check(coarse, case.loss, case.trajectory).verdict is Judgement.UNRESOLVED


def test_what_promises_nothing_is_vacuous():
    case = evidence_of(EASY)
    task = task_of(problems.EASY)
    at_limit = flowsim.gradient_flow(case.loss, limit(task), times=[1.0], points_per_decade=0)
    never = flowsim.Claim(
        "test.never", "test", "nothing", lambda loss, run: flowsim.at_least(run.loss, 0.0, promised=run.t < 0)
    )
    assert flowsim.check(never, case.loss, at_limit).verdict is Judgement.VACUOUS


@pytest.mark.parametrize("status", [status for status in Status if not status.judged])
def test_a_run_that_did_not_finish_holds_nothing(status):
    case = evidence_of(EASY)
    failed = dataclasses.replace(case.trajectory, status=status)
    for verdict in flowsim.judge([claim for claim in CLAIMS if claim.along_flow], case.loss, failed):
        assert verdict.verdict is Judgement.UNRESOLVED
        assert str(status) in verdict.note


def test_a_more_accurate_solve_that_fails_leaves_the_claim_unresolved():
    case = evidence_of(EASY)
    half = Evidence(case.loss, case.trajectory)
    half.__dict__["reference"] = half.__dict__["confirmation"] = dataclasses.replace(
        case.trajectory, status=Status.NEWTON
    )
    assert judge_on(BY_KEY["lemma-5.4.pl", "printed"], half).verdict is Judgement.UNRESOLVED


def test_energy_that_does_not_balance_leaves_the_claim_unresolved():
    case = evidence_of(EASY)
    off = dataclasses.replace(case.reference.certificates, energy_defect=0.01)
    doubtful = Evidence(case.loss, case.trajectory)
    doubtful.__dict__["reference"] = doubtful.__dict__["confirmation"] = dataclasses.replace(
        case.reference, certificates=off
    )
    assert judge_on(BY_KEY["lemma-5.4.pl", "printed"], doubtful).verdict is Judgement.UNRESOLVED


def test_a_field_without_numbers_never_holds():
    case = evidence_of(EASY)
    claim = flowsim.Claim("test.nan", "test", "nan", lambda loss, run: flowsim.at_least(run.loss * jnp.nan, 0.0))
    assert judge_on(claim, case).verdict is Judgement.UNRESOLVED


def test_the_sharp_constant_of_pl_is_the_least_ratio_of_continuous_time():
    case = evidence_of(EASY)
    verdict = judge_on(BY_KEY["lemma-5.4.pl", "printed"], case)
    run = case.trajectory
    seen = np.asarray(run.grad_norm_sq / run.excess)
    least = int(np.argmin(seen))
    around = np.linspace(float(run.t[least - 1]), float(run.t[least + 1]), 2001)
    dense = flowsim.reduced_flow(case.loss, run.start, around)
    least = float(np.min((dense.grad_norm_sq / dense.excess)[1:]))
    assert verdict.constants["sharp_mu"] == pytest.approx(least, rel=1e-8)
    assert verdict.constants["sharp_mu"] < np.min(seen) * (1 - 1e-6)
    assert verdict.constants["mu"] == pytest.approx(float(pl_constant(task_of(problems.EASY), run.start)), rel=1e-12)
    assert verdict.margin == pytest.approx(verdict.constants["sharp_mu"] / verdict.constants["mu"] - 1, rel=1e-4)


def test_claim_ids_are_unique_with_their_form_and_found_by_prefix():
    assert len({(claim.id, claim.form) for claim in flowsim.ALL_CLAIMS}) == len(flowsim.ALL_CLAIMS)
    found = flowsim.find_claims(flowsim.ALL_CLAIMS, "zhang2023.lemma-5.4")
    assert [claim.id[-5:] for claim in found] == ["4.pl", "rate", "limit"] or len(found) == 3
    with pytest.raises(ValueError, match='did you mean "zhang2023.lemma-5.4.pl"'):
        flowsim.find_claims(flowsim.ALL_CLAIMS, "zhang2023.lemma-5.4.pll")


def test_hypotheses_at_equality_are_strict():
    assert not hypothesis("x", 2.0, "<", 2.0).met
    assert hypothesis("x", 2.0, "<=", 2.0).met


def test_only_a_flow_that_can_be_solved_again_is_judged():
    case = evidence_of(EASY)
    descent = flowsim.gradient_descent(case.loss, case.trajectory.start, 0.01, 5)
    with pytest.raises(ValueError, match="trajectory must be one of gradient_flow"):
        flowsim.check(BY_KEY["lemma-5.4.pl", "printed"], case.loss, descent)
