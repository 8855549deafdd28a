"""Claims as functions of their two sides: what the docstring, the arguments and the section say."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowsim
from flowsim.claims import Evidence
from flowsim.claims.hypotheses import hypothesis
from flowsim.flow.gradient_flow import start_alone


class Point(eqx.Module):
    x: jax.Array


LOSS = flowsim.FunctionLoss(lambda point: jnp.sum(point.x**2) / 2, minimum=0.0)


@functools.cache
def run():
    return flowsim.gradient_flow(LOSS, Point(jnp.array([1.0, 2.0])), t1=1.0)


def far(loss, start):
    return [hypothesis("|x| >= 10", jnp.linalg.norm(start.x), ">=", 10.0)]


def near(loss, start):
    return [hypothesis("|x| < 10", jnp.linalg.norm(start.x), "<", 10.0)]


@flowsim.claim("mine.decay", "notes, (1)")
def decay(loss, flow):
    r"""$L(t) \le L(0)
    e^{-2t}$ for all $t$

    The first line
    of the note.

    And its second.
    """
    return flowsim.at_most(flow.loss, loss(flow.start) * jnp.exp(-2 * flow.t))


def test_the_docstring_is_the_statement_and_the_note():
    assert decay.statement == r"$L(t) \le L(0) e^{-2t}$ for all $t$"
    assert decay.text == "L(t) <= L(0) e^{-2t} for all t"
    assert decay.note == "The first line of the note. And its second."
    assert (decay.id, decay.source, decay.form) == ("mine.decay", "notes, (1)", "printed")


def test_a_claim_that_takes_the_flow_is_judged_along_it():
    @flowsim.claim("mine.start", "notes")
    def at_the_start(start):
        """$x_1(0) = 1$"""
        return flowsim.equal(start.x[0], 1.0, 1.0)

    assert decay.along_flow and not at_the_start.along_flow
    found = flowsim.judge([decay, at_the_start], LOSS, run())
    assert [verdict.verdict for verdict in found] == ["unresolved", "holds"]  # attained for ever: to within rounding


@pytest.mark.parametrize("names", [("task",), ("loss",), ("start",), ("flow",), ("flow", "loss"), ("start", "task")])
def test_a_function_gets_what_it_names(names):
    task = flowsim.LinearRegression(np.eye(2), 5)
    loss = flowsim.LinearAttentionLoss(task)
    run = start_alone(loss, flowsim.LinearAttention(np.eye(2), 0.5))
    expected = {"task": loss.task, "loss": loss, "start": run.start, "flow": run}
    seen = []
    sides = eval(f"lambda {', '.join(names)}: seen.append(({', '.join(names)},)) or at_least(1.0, 0.0)",
                 {"seen": seen, "at_least": flowsim.at_least})  # fmt: skip
    flowsim.claim("mine.names", "notes", statement="true")(sides).compare(loss, run)
    assert all(eqx.tree_equal(got, expected[name]) for got, name in zip(seen[0], names, strict=True))


def test_what_has_a_default_is_its_own():
    for factor in (1.0, 2.0):

        @flowsim.claim("mine.factor", "notes", statement=f"1 <= {factor}")
        def bounded(start, factor=factor):
            return flowsim.at_most(1.0, factor)

        assert float(bounded.compare(LOSS, run()).bound) == factor


def test_a_claim_without_a_statement_or_with_another_argument_is_refused():
    with pytest.raises(ValueError, match="a function whose docstring states it, but unsaid has no docstring"):

        @flowsim.claim("mine.unsaid", "notes")
        def unsaid(flow):
            return flowsim.at_least(flow.loss, 0.0)

    with pytest.raises(ValueError, match='one of loss, task, start, flow, descent, but it is "run"'):

        @flowsim.claim("mine.run", "notes")
        def of_a_run(run):
            """True"""
            return flowsim.at_least(run.loss, 0.0)

    with pytest.raises(ValueError, match="id must be"):
        flowsim.claim("../mine", "notes", statement="true")(lambda flow: flowsim.at_least(flow.loss, 0.0))


def test_sides_that_cannot_be_computed_are_not():
    @flowsim.claim("mine.needs", "notes", hypotheses=near, needs=far)
    def computed(start):
        """Never"""
        raise AssertionError

    verdict = flowsim.check(computed, LOSS, run())
    assert verdict.verdict == "not-applicable" and verdict.margin is None
    assert [(part.name, part.met) for part in verdict.hypotheses] == [("|x| < 10", True), ("|x| >= 10", False)]


def test_a_section_holds_what_its_claims_share_and_keeps_their_order():
    section = flowsim.Section("smith2025", Point, hypotheses=far)
    first, second = ({"make": "here"},), ({"make": "there"},)
    ours = section.on(first, (), hypotheses=(near, far))

    @ours.claim("lemma-1", "Lemma 1", note="An own note.")
    def lemma_1(flow):
        """$L$ falls"""
        return flowsim.at_most(flow.loss[1:], flow.loss[:-1])

    @section.claim("lemma-2", "Lemma 2", problems=second)
    def lemma_2(start):
        """$x(0) > 0$"""
        return flowsim.at_least(start.x, 0.0)

    @ours.corrected(lemma_1, "Lemma 1, its proof", hypotheses=())
    def lemma_1_corrected(flow):
        """$L$ does not grow"""
        return flowsim.at_most(flow.loss[1:], flow.loss[:-1])

    assert section.claims == ours.claims == (lemma_1, lemma_2, lemma_1_corrected)
    assert [claim.id for claim in section.claims] == ["smith2025.lemma-1", "smith2025.lemma-2", "smith2025.lemma-1"]
    assert [claim.problems for claim in section.claims] == [first, second, first]
    assert all(claim.models == (Point,) for claim in section.claims)
    assert lemma_1.note == "An own note."
    assert (lemma_1_corrected.form, lemma_1_corrected.source) == ("corrected", "smith2025, Lemma 1, its proof")
    names = [[part.name for part in claim.hypotheses(LOSS, run().start)] for claim in section.claims]
    assert names == [["|x| < 10", "|x| >= 10"], ["|x| >= 10"], []]


def test_a_statement_is_stated_again_at_another_place():
    section = flowsim.Section("smith2025", Point, needs=far)
    first = section.claim("eq-3", "(3)", note="Of the first.")(decay)
    again = section.claim("eq-7", "(7)", needs=near)(first)
    assert (first.statement, first.note) == (decay.statement, "Of the first.")
    assert (again.statement, again.note, again.source) == (decay.statement, decay.note, "smith2025, (7)")
    judged = [claim.compare(LOSS, run()).promised.any() for claim in (decay, first, again)]
    assert judged == [True, False, True] and section.claims == (first, again)


def test_claims_of_a_section_share_the_function_of_their_hypotheses():
    section = flowsim.Section("smith2025", Point, hypotheses=(near, far))
    first, second = (section.claim(name, "", statement="1 >= 0")(lambda: flowsim.at_least(1.0, 0.0)) for name in "ab")
    assert first.hypotheses is second.hypotheses


def test_an_identity_is_what_equates_its_sides():
    @flowsim.claim("mine.kept", "notes", spaces=(flowsim.Space({"a": flowsim.Real(1, 2)}, make=lambda a: problem(a)),))
    def kept(flow):
        """$x_2 = 2 x_1$"""
        return flowsim.equal(flow.models.x[:, 1], 2 * flow.models.x[:, 0], flow.models.x[:, 1])

    assert flowsim.check(kept, LOSS, run()).verdict == "holds"
    with pytest.raises(ValueError, match="an inequality, whose constant can be sharpened, but it is an identity"):
        flowsim.sharpen(kept, budget=1)


def problem(a):
    return LOSS, Point(jnp.array([a, 2 * a]))


def test_what_takes_no_flow_is_not_compared_to_see_whether_it_reads_one():
    calls = []

    @flowsim.claim("mine.formula", "notes")
    def formula(loss):
        """1 = 1"""
        calls.append(loss)
        return flowsim.equal(jnp.ones(1), 1.0, 1.0)

    evidence = Evidence(LOSS, run())
    assert not evidence.reads_more_than_the_start(formula) and not calls
    hidden = dataclasses.replace(decay, along_flow=False)
    assert evidence.reads_more_than_the_start(hidden)
    wrapping = functools.wraps(formula.compare)(lambda loss, flow: decay.compare(loss, flow))
    assert evidence.reads_more_than_the_start(dataclasses.replace(formula, compare=wrapping))
