"""Claims along one flow are compared by one program, and each comes out as it does alone."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from systems import Vector

import flowsim
import flowsim.claims.hypotheses
from flowsim.claims import Evidence, Judgement, judge_on
from flowsim.claims.deciding.judging import judge_or_note
from flowsim.claims.evidence import case, comparing, padded, series

RATES = jnp.asarray([1.0, 2.0, 5.0])
LOSS = flowsim.FunctionLoss(lambda model: jnp.sum(RATES * model.x**2) / 2, minimum=0.0)


@pytest.fixture(scope="module")
def run() -> flowsim.Trajectory:
    return flowsim.gradient_flow(LOSS, Vector(jnp.asarray([3.0, -2.0, 1.0])), t1=3.0)


def claim(name, compare, **more):
    return flowsim.Claim(f"mine.{name}", "my notes", name, compare, **more)


def decay(rate):
    """The excess decays at a rate: it does at 2, and does not at 10."""

    def compare(loss, flow):
        return flowsim.at_most(flow.excess, flow.excess[0] * jnp.exp(-rate * flow.t), promised=flow.t > 0.1)

    return compare


def slope(loss, flow):
    return flowsim.at_least(flow.grad_norm_sq, 1.9 * flow.excess)


def sharp(loss, flow):
    return {"sharp_mu": jnp.min(flow.grad_norm_sq / flow.excess)}


CLAIMS = (
    claim("slow", decay(1.9)),
    claim("fast", decay(10.0)),
    claim("pl", slope, constants=sharp),
    claim(
        "start",
        lambda loss, flow: flowsim.equal(loss(flow.start), 11.0, 11.0),
        along_flow=False,
    ),
)


@pytest.mark.slow
def test_claims_together_say_what_each_says_alone(run):
    together = flowsim.judge(CLAIMS, LOSS, run)
    alone = [flowsim.check(one, LOSS, run) for one in CLAIMS]
    verdicts = [Judgement.HOLDS, Judgement.VIOLATED, Judgement.HOLDS, Judgement.HOLDS]
    assert [verdict.verdict for verdict in together] == [verdict.verdict for verdict in alone] == verdicts
    for one, other in zip(together, alone, strict=True):
        assert one.margin == pytest.approx(other.margin, rel=1e-9, abs=1e-14)
        assert one.constants.keys() == other.constants.keys()
        np.testing.assert_allclose(list(one.constants.values()), list(other.constants.values()), rtol=1e-12)


def test_one_that_raises_leaves_the_others_as_they_are(run, monkeypatch):
    monkeypatch.delenv("FLOWSIM_TRACEBACK", raising=False)

    def broken(loss, flow):
        raise KeyError("no such weight")

    claims = (CLAIMS[0], claim("broken", broken), CLAIMS[1])
    evidence = Evidence(LOSS, run, claims=claims)
    found = [judge_or_note(one, evidence) for one in claims]
    expected = [Judgement.HOLDS, Judgement.UNRESOLVED, Judgement.VIOLATED]
    assert [verdict.verdict for verdict in found] == expected
    assert "no such weight" in found[1].note


def test_a_setting_that_raises_leaves_the_others_as_they_are(run, monkeypatch):
    monkeypatch.delenv("FLOWSIM_TRACEBACK", raising=False)

    def broken(loss):
        raise AttributeError("no task")

    claims = (CLAIMS[0], claim("broken", decay(1.9), setting=broken), CLAIMS[1])
    evidence = Evidence(LOSS, run, claims=claims)
    verdicts = [judge_or_note(one, evidence).verdict for one in claims]
    assert verdicts == [Judgement.HOLDS, Judgement.UNRESOLVED, Judgement.VIOLATED]


def test_a_claim_that_is_not_of_the_panel_is_judged_alone(run):
    evidence = Evidence(LOSS, run, claims=CLAIMS)
    stranger = claim("stranger", decay(1.5))
    assert judge_on(stranger, evidence).verdict is Judgement.HOLDS
    planted = claim("stranger", decay(2.5))
    assert judge_on(planted, evidence).verdict is Judgement.VIOLATED


def test_all_claims_of_a_flow_are_traced_once_for_all_its_solves(run):
    traced = []

    def counting(name, compare):
        def counted(loss, flow):
            # Balls have no padding.
            if flow.t.shape == padded(run, run.t.size).t.shape:
                traced.append(name)
            return compare(loss, flow)

        return counted

    claims = tuple(
        claim(name, counting(name, compare)) for name, compare in {"a": decay(1.9), "b": decay(1.8), "c": slope}.items()
    )
    verdicts = flowsim.judge(claims, LOSS, run)
    assert all(verdict.verdict is Judgement.HOLDS for verdict in verdicts)
    assert sorted(traced) == ["a", "b", "c"]


def test_at_further_times_a_claim_of_many_weights_is_compared_without_the_others(run, monkeypatch):
    further, found, together = np.asarray([0.123, 1.7]), {}, []
    compared = comparing._together
    monkeypatch.setattr(comparing, "_together", lambda *given: together.append(given) or compared(*given))
    for few, programs in ((128, 1), (2, 0)):
        monkeypatch.setattr(case, "_FEW", few)
        finer = Evidence(LOSS, run, claims=CLAIMS).cases[0].at(further)
        found[few] = finer.panel.compared(CLAIMS[0], LOSS, finer.padded).slack
        assert len(together) == programs
        together.clear()
    np.testing.assert_allclose(found[2], found[128], rtol=1e-12, atol=1e-14)


def test_claims_with_the_same_bound_on_the_way_to_go_share_one_comparison(run):
    solve = Evidence(LOSS, run, claims=CLAIMS).cases[0]
    assert solve.with_remaining(0.5).padded is solve.with_remaining(0.5).padded
    assert np.asarray(solve.with_remaining(0.25).padded.way_to_go) == 0.25


def test_a_claim_of_another_model_is_not_compared(run):
    class Other(eqx.Module):
        y: float

    foreign = claim("foreign", lambda loss, flow: flowsim.at_least(flow.models.y, 0.0), models=(Other,))
    verdicts = flowsim.judge((foreign, *CLAIMS[:2]), LOSS, run)
    expected = [Judgement.NOT_APPLICABLE, Judgement.HOLDS, Judgement.VIOLATED]
    assert [verdict.verdict for verdict in verdicts] == expected


def test_claims_that_do_not_fit_into_memory_together_are_compared_alone(run, monkeypatch):
    """They were traced and computed together again until Python had no stack left."""
    tried = []

    def exhausted(*given):
        tried.append(given)
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1025541964416 bytes.")

    monkeypatch.setattr(comparing, "_together", exhausted)
    claims = (claim("slow", decay(2.0)), claim("fast", decay(10.0)))
    evidence = Evidence(LOSS, run, claims=claims)
    found = [judge_or_note(one, evidence).verdict for one in claims]
    assert found == [Judgement.HOLDS, Judgement.VIOLATED] and len(tried) == 1


@pytest.fixture
def large(monkeypatch):
    """Any flow is taken for one of many weights."""
    monkeypatch.setattr(series, "LARGE", 0)
    monkeypatch.setattr(series, "_MANY", 0)
    comparing._program.cache_clear()
    yield monkeypatch
    comparing._program.cache_clear()


@pytest.mark.slow
def test_a_flow_of_many_weights_is_judged_as_others_are(run, large):
    large.undo()
    before = flowsim.judge(CLAIMS, LOSS, run)
    large.setattr(series, "LARGE", 0)
    large.setattr(series, "_MANY", 0)
    evidence = Evidence(LOSS, run, claims=CLAIMS)
    assert evidence.cases[0].padded.t.size < run.t.size + 10
    _, nudged = next(iter(evidence.cases[0].nudged))
    assert series.made(nudged) is not series.made(nudged)  # no copy is kept
    after = [judge_on(one, evidence) for one in CLAIMS]
    for one, other in zip(before, after, strict=True):
        assert (one.verdict, one.until, one.constants) == (other.verdict, other.until, other.constants)
        assert other.margin == pytest.approx(one.margin, rel=1e-6, abs=1e-12)


@pytest.mark.slow
def test_a_claim_of_many_weights_is_not_taken_for_one_that_is_gone(run, large):
    """Python gives the place of an object that is gone to the next one."""
    panel = comparing.Panel()
    bound = lambda number: float(panel.compared(claim("short-lived", slope_of(number)), LOSS, run).bound[0])
    slope_of = lambda number: lambda loss, flow: flowsim.at_most(flow.loss, number)
    assert [bound(float(number)) for number in range(40)] == list(range(40))


def test_a_claim_alone_is_compared_once_a_solve(run, monkeypatch):
    """It was compared anew by each function that asked, such as whether it is an identity."""
    asked = []
    compared = comparing.compared
    monkeypatch.setattr(comparing, "compared", lambda *given: asked.append(tuple(map(id, given))) or compared(*given))
    judge_on(claim("slow", decay(1.9)), Evidence(LOSS, run))
    assert len(asked) > 3 and len(set(asked)) == len(asked)


def test_what_was_compared_is_forgotten_with_the_solve(run):
    """Python gives the place of a solve that is gone to the next one."""
    panel, one = comparing.Panel(), claim("slow", decay(1.9))
    for count in range(4, 20):
        other = padded(series.shortened(run, count))
        found = panel.compared(one, LOSS, other).slack
        np.testing.assert_array_equal(found, comparing.compared(one, LOSS, other).slack)


def test_a_margin_tells_how_far_a_bound_of_zero_fails():
    ours = flowsim.at_least(jnp.asarray([1.0, -2.0]), 0.0)
    for one in (ours, jax.tree.map(np.asarray, ours)):
        np.testing.assert_array_equal(one.margin, [0.5, -1.0])
    assert isinstance(jax.tree.map(np.asarray, ours).margin, np.ndarray)


@pytest.mark.parametrize(
    ("name", "most", "words"),
    [("_MOST_OPERATIONS", 10.0, "operations at this size"), ("_MOST_MEMORY", 1e-9, "GB at this size")],
)
def test_what_takes_too_much_is_unresolved_and_says_how_much(name, most, words, run, large):
    large.setattr(comparing, name, most)
    unmet = claim("unmet", slope, hypotheses=lambda loss, start: [flowsim.claims.hypotheses.unmet("it is so")])
    verdicts = flowsim.judge((*CLAIMS[:3], unmet), LOSS, run)
    assert [one.verdict for one in verdicts] == [Judgement.UNRESOLVED] * 3 + [Judgement.NOT_APPLICABLE]
    assert all(words in one.note for one in verdicts)
