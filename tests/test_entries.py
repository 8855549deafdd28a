"""Claims that compare several entries at a time, such as one a head."""

import jax.numpy as jnp
import numpy as np
import pytest
from systems import Vector

import flowsim
from flowsim.claims.deciding.judging import judge_or_note
from flowsim.claims.evidence import Evidence

RATES = jnp.asarray([1.0, 2.0, 5.0])
LOSS = flowsim.FunctionLoss(lambda model: jnp.sum(RATES * model.x**2) / 2, minimum=0.0)


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return Evidence(LOSS, flowsim.gradient_flow(LOSS, Vector(jnp.asarray([3.0, -2.0, 1.0])), t1=3.0))


def decays(factors, shape=lambda sides: sides) -> flowsim.Claim:
    """|x_i(t)| <= |x_i(0)| e^{-rate_i t factor_i}, entry by entry."""

    def compare(loss, flow):
        bound = jnp.abs(flow.start.x)[None] * jnp.exp(-flow.t[:, None] * (RATES * jnp.asarray(factors))[None])
        later = jnp.broadcast_to(flow.t[:, None] > 0.1, bound.shape)
        return flowsim.at_most(shape(jnp.abs(flow.models.x)), shape(bound), promised=shape(later))

    return flowsim.Claim("mine.decay", "my notes", "each entry decays at its rate", compare)


def test_every_entry_is_judged(evidence):
    assert judge_or_note(decays([0.9, 0.9, 0.9]), evidence).verdict is flowsim.Judgement.HOLDS
    wrong = judge_or_note(decays([0.9, 1.1, 0.9]), evidence)
    assert wrong.verdict is flowsim.Judgement.VIOLATED
    assert wrong.where == "t = 3, entry 2 of 3"
    assert wrong.margin == pytest.approx(1 - np.exp(0.1 * 2 * 3), rel=1e-6)


def test_an_identity_of_entries_is_judged_as_one_of_numbers(evidence):
    def compare(loss, flow):
        exact = flow.start.x[None] * jnp.exp(-flow.t[:, None] * RATES[None])
        return flowsim.equal(flow.models.x, exact, size=jnp.abs(flow.start.x)[None])

    claim = flowsim.Claim("mine.exact", "", "x(t)", compare)
    assert judge_or_note(claim, evidence).verdict is flowsim.Judgement.HOLDS


def test_one_entry_says_what_a_series_says(evidence):
    rate = lambda flow: 3.0 * jnp.exp(-0.99 * flow.t)
    series = flowsim.Claim("a", "", "", lambda loss, flow: flowsim.at_most(flow.models.x[:, 0], rate(flow)))
    entry = flowsim.Claim("a", "", "", lambda loss, flow: flowsim.at_most(flow.models.x[:, :1], rate(flow)[:, None]))
    one, other = (judge_or_note(claim, evidence) for claim in (series, entry))
    assert (one.verdict, one.margin, one.floor) == (other.verdict, other.margin, other.floor)


def test_time_that_is_not_first_is_one_line(evidence, monkeypatch):
    monkeypatch.delenv("FLOWSIM_TRACEBACK", raising=False)
    verdict = judge_or_note(decays([0.9, 0.9, 0.9], shape=jnp.transpose), evidence)
    assert verdict.verdict is flowsim.Judgement.UNRESOLVED
    assert "mine.decay must be a comparison of arrays with a row for each output time" in verdict.note
    assert "it is 3x" in verdict.note
