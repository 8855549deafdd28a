"""Which hypotheses a claim needs, on claims of which it is known."""

import json
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import flowsim
from flowsim.claims.hypotheses import agrees, hypothesis
from flowsim.cli.main import main
from flowsim.experiments.ablation.bounds import bounds_of
from flowsim.experiments.ablation.hypotheses import opposite


class Net(eqx.Module):
    a: jax.Array
    b: jax.Array


def make(a, b):
    loss = flowsim.FunctionLoss(lambda net: 0.5 * (net.a * net.b - 1.0) ** 2, minimum=0.0)
    return loss, Net(jnp.asarray(a), jnp.asarray(b))


SPACE = flowsim.Space({"a": flowsim.Real(0.1, 2.0), "b": flowsim.Real(0.1, 2.0)}, make=make)


def both(loss, start):
    return [hypothesis("a(0) > 0", start.a, ">", 0.0), hypothesis("b(0) < 3", start.b, "<", 3.0)]


@flowsim.claim("mine.sign", "notes", hypotheses=both, spaces=(SPACE,))
def positive(start):
    """$a(0) >= 0.05$ on the space, which needs only that a(0) > 0"""
    return flowsim.at_least(start.a, 0.05)


def by_name(found):
    return {" and ".join(row.names): row for row in (*found.hypotheses, *found.together)}


def counterexample(row):
    assert row.counterexample is not None
    return row.counterexample


@pytest.fixture(scope="module")
def found():
    return flowsim.ablate(positive, problems=128)


def test_the_needed_hypothesis_is_found_with_a_problem_and_the_other_is_not(found):
    rows = by_name(found)
    needed, other = rows["a(0) > 0"], rows["b(0) < 3"]
    assert needed.verdict == "needed"
    assert counterexample(needed).verdict.verdict == "violated"
    assert float(counterexample(needed).evidence.trajectory.start.a) <= 0
    assert "start" in counterexample(needed).values
    assert other.verdict == "not found needed"
    assert other.problems > 0
    assert other.fails == 0
    assert other.least >= 0
    assert found.problems >= 120


def test_the_same_seed_finds_the_same(found):
    again = flowsim.ablate(positive, problems=128)
    assert str(again).split(" problems in ")[0] == str(found).split(" problems in ")[0]
    assert [row.misses for row in again.hypotheses] == [row.misses for row in found.hypotheses]


@pytest.mark.long
@pytest.mark.slow
def test_a_statement_along_the_flow_needs_balancedness():
    balanced = lambda loss, start: [agrees("a(0) = b(0)", start.a, start.b)]
    space = flowsim.Space({"a": flowsim.Real(0.5, 2.0)}, make=lambda a: make(a, a))

    @flowsim.claim("mine.balanced", "notes", hypotheses=balanced, spaces=(space,))
    def same(flow):
        """$a(t) = b(t)$ for all $t$"""
        return flowsim.equal(flow.models.a, flow.models.b, 1.0)

    (row,) = flowsim.ablate(same, problems=32).hypotheses
    assert row.verdict == "needed"
    assert row.problems > 3
    assert row.factor > 1


def test_of_two_hypotheses_that_imply_each_other_the_pair_is_needed_and_neither_alone():
    def three(loss, start):
        twice = [hypothesis("a > 0", start.a, ">", 0.0), hypothesis("2 a > 0", 2 * start.a, ">", 0.0)]
        return [*twice, hypothesis("b < 3", start.b, "<", 3.0)]

    @flowsim.claim("mine.twice", "notes", hypotheses=three, spaces=(SPACE,))
    def positive(start):
        """$a(0) >= 0.05$"""
        return flowsim.at_least(start.a, 0.05)

    found = flowsim.ablate(positive, problems=192)
    rows = by_name(found)
    assert rows["a > 0"].verdict == rows["2 a > 0"].verdict == "never unmet alone"
    assert rows["b < 3"].verdict == "not found needed"
    pair = rows["2 a > 0 and a > 0"]
    assert pair.verdict == "needed"
    assert float(counterexample(pair).evidence.trajectory.start.a) <= 0
    assert {one.name: one.met for one in counterexample(pair).verdict.hypotheses} == {
        "not a > 0": True,
        "not 2 a > 0": True,
        "b < 3": True,
    }
    assert rows["a > 0 and b < 3"].verdict == rows["2 a > 0 and b < 3"].verdict == "never unmet alone"
    assert "2 a > 0 and a > 0: one of them is needed. Without them the statement fails at" in str(found)


def never(loss, start):
    return [hypothesis("a(0) > 0", start.a, ">", 0.0)]


@pytest.mark.slow
def test_a_simple_problem_that_meets_the_hypothesis_is_not_one_without_it():
    @flowsim.claim("mine.false", "notes", hypotheses=never, spaces=(SPACE,))
    def large(start):
        """$a(0) >= 100$, which fails with the hypothesis, too"""
        return flowsim.at_least(start.a, 100.0)

    (row,) = flowsim.ablate(large, problems=96).hypotheses
    assert float(counterexample(row).evidence.trajectory.start.a) <= 0


def test_the_opposite_of_a_condition_is_met_where_it_is_not_and_unknown_where_it_is():
    of = lambda value: opposite(lambda loss, start: [hypothesis("a < 1", value, "<", 1.0)], frozenset(["a < 1"]))
    assert [(one.name, one.relation, one.met) for one in of(2.0)(None, None)] == [("not a < 1", ">=", True)]
    assert [one.met for value in (0.5, float("nan")) for one in of(value)(None, None)] == [False, False]


def test_of_a_statement_that_needs_nothing_nothing_is_found_needed_and_no_bound():
    @flowsim.claim("mine.square", "notes", hypotheses=both, spaces=(SPACE,))
    def square(start):
        """$a(0)^2 >= -1$"""
        return flowsim.at_least(start.a**2, -1.0)

    found = flowsim.ablate(square, problems=192)
    assert {row.verdict for row in found.hypotheses} == {"not found needed"}
    assert [row.names for row in found.together] == [("a(0) > 0", "b(0) < 3")]
    assert found.together[0].verdict == "not found needed"
    assert found.together[0].problems > 0
    assert [(row.axis, row.bound, row.verdict) for row in found.bounds] == [
        ("a", 0.1, "stands beyond it"),
        ("a", 2.0, "stands beyond it"),
        ("b", 0.1, "stands beyond it"),
        ("b", 2.0, "stands beyond it"),
    ]
    assert all(row.problems and not row.fails and row.least >= 1 for row in found.bounds)


@pytest.fixture(scope="module")
def inside():
    def make_many(a, length, sizes):
        loss = flowsim.FunctionLoss(lambda net: 0.5 * jnp.sum(net.b**2), minimum=0.0)
        return loss, Net(jnp.asarray(a), jnp.append(jnp.asarray(sizes), length))

    axes = {"a": flowsim.Real(0.1, 2.0), "length": flowsim.Whole(1, 20), "sizes": flowsim.Each(flowsim.Real(-1.0, 1.0))}
    space = flowsim.Space({"d": flowsim.Choice((2,)), **axes}, make=lambda d, **rest: make_many(**rest), sized_by="d")
    short = lambda loss, start: [hypothesis("length >= 1", start.b[-1], ">=", 1.0)]

    @flowsim.claim("mine.inside", "notes", hypotheses=short, spaces=(space,))
    def small(start):
        """$a <= 3$, $length <= 57$ and $sizes >= -1.5$: true in the space"""
        sides = jnp.stack([start.a / 3, start.b[-1] / 57, -jnp.min(start.b[:-1]) / 1.5])
        return flowsim.at_most(jnp.max(sides), 1.0)

    return small


@pytest.mark.slow
def test_a_statement_that_is_true_inside_a_bound_is_found_false_beyond_it_where_it_is(inside):
    found = flowsim.ablate(inside, problems=192)
    rows = {(row.axis, row.upper): row for row in found.bounds}
    a, length, sizes = rows["a", True], rows["length", True], rows["sizes", False]
    for row in (a, length, sizes):
        assert row.verdict == "fails beyond it"
        assert counterexample(row).verdict.verdict == "violated"
        assert all(one.met for one in counterexample(row).verdict.hypotheses)
    assert counterexample(sizes).values["a"] <= 2.0
    assert counterexample(sizes).values["length"] <= 20
    assert a.stands <= 3.0 < counterexample(a).values["a"] < 3.01
    assert (length.stands, counterexample(length).values["length"]) == (57, 58)
    assert -1.51 < min(counterexample(sizes).values["sizes"]) < -1.5 <= min(sizes.stands)
    assert rows["a", False].verdict == rows["sizes", True].verdict == "stands beyond it"
    assert rows["length", False].verdict == "not tried"
    assert rows["length", False].why.endswith("misses a hypothesis: length >= 1")
    assert "length <= 20: the statement fails beyond it, the nearest at" in str(found)


def test_what_is_not_judged_violated_is_neither_needed_nor_a_failure_beyond_a_bound(inside, monkeypatch):
    for module in ("hypotheses", "bounds"):
        monkeypatch.setattr(f"flowsim.experiments.ablation.{module}.confirmed", lambda screen, point: "unresolved.")
    (row, _) = flowsim.ablate(positive, problems=64).hypotheses
    assert row.fails > 0
    assert row.verdict == "not found needed"
    beyond = [row for row in flowsim.ablate(inside, problems=192).bounds if row.fails]
    assert len(beyond) == 3
    assert {row.verdict for row in beyond} == {"stands beyond it"}
    assert all("but none was judged violated" in str(row) for row in beyond)


def test_what_the_budget_left_untried_is_said():
    found = flowsim.ablate(positive, budget=1e-6)
    assert {row.verdict for row in found.hypotheses} <= {"not judged", "not found needed", "never unmet alone"}
    assert {row.verdict for row in found.bounds} == {"not tried"}
    assert "a >= 0.1; a <= 2; b >= 0.1; b <= 2: not tried, as the time ended before: give it more." in str(found)


def test_only_bounds_that_mean_something_are_widened():
    axes = {
        "task.covariance.dimension": flowsim.Whole(1, 8),
        "task.context_length": flowsim.Whole(20, 1000),
        "init.seed": flowsim.Whole(0, 99),
        "init.rank": flowsim.Whole(1, 8),
        "task.prior_mean": flowsim.Each(flowsim.Real(-3.0, 3.0)),
        "model.heads": flowsim.Choice((1, 2)),
    }
    found = bounds_of([flowsim.Space(axes, {"init": {"kind": "balanced"}})])
    assert [(bound.axis, bound.at, bound.reach) for bound in found] == [
        ("task.context_length", 20, 2),
        ("task.context_length", 1000, 10000),
        ("task.prior_mean", -3.0, -9.0),
        ("task.prior_mean", 3.0, 9.0),
        ("task.covariance.dimension", 1, 0),
        ("task.covariance.dimension", 8, 10),
    ]


def test_what_cannot_be_ablated_is_refused_in_one_line():
    with pytest.raises(ValueError, match="a space of problems"):
        flowsim.ablate(flowsim.claim("mine.a", "notes", statement="a")(lambda start: flowsim.at_least(start.a, 0.0)))
    choices = flowsim.Space({"a": flowsim.Choice((0.1,)), "b": flowsim.Choice((0.1,))}, make=make)
    bare = flowsim.claim("mine.a", "notes", statement="a", spaces=(choices,))
    with pytest.raises(ValueError, match="with hypotheses, or with ranges"):
        flowsim.ablate(bare(lambda start: flowsim.at_least(start.a, 0.0)))


@pytest.mark.parametrize("search", [flowsim.ablate, flowsim.refute, flowsim.sharpen])
def test_a_claim_that_compares_nothing_is_refused_in_one_line(search):
    of = flowsim.claim("mine.a", "notes", statement="a", spaces=(SPACE,), hypotheses=both)
    nothing: Any = None
    with pytest.raises(ValueError, match=r"mine\.a must be a function that returns what flowsim\.at_least does, but"):
        search(of(lambda start: nothing), problems=8)
    with pytest.raises(ValueError, match=r"mine\.a must be judged over a family"):
        search(of(lambda start: flowsim.tends_to(start.a, 0.0, 1.0)), problems=8)


OWN = """
import equinox as eqx, jax, jax.numpy as jnp, flowsim
from flowsim.claims.hypotheses import hypothesis
class Net(eqx.Module):
    a: jax.Array
def make(a):
    return flowsim.FunctionLoss(lambda net: 0.5 * (net.a - 1.0) ** 2, minimum=0.0), Net(jnp.asarray(a))
@flowsim.claim("mine.sign", "notes", spaces=(flowsim.Space({"a": flowsim.Real(0.1, 2.0)}, make=make),),
               hypotheses=lambda loss, start: [hypothesis("a(0) > 0", start.a, ">", 0.0)])
def positive(start):
    "a(0) > 0.05"
    return flowsim.at_least(start.a, 0.05)
"""


def test_the_command_writes_the_table_and_a_picture(tmp_path, capsys):
    file, out = tmp_path / "own.py", tmp_path / "out"
    file.write_text(OWN)
    assert main(["ablate", f"{file}:positive", "--problems", "64", "--out", str(out)]) == 0
    assert "a(0) > 0: needed. Without it the statement fails at" in capsys.readouterr().out
    (row,) = json.loads((out / "ablation.json").read_text())["hypotheses"]
    assert row["verdict"] == "needed"
    assert row["counterexample"]["verdict"]["verdict"] == "violated"
    assert json.loads((out / "ablation.json").read_text())["bounds"][0]["verdict"] == "fails beyond it"
    assert (out / "figures" / "ablation.png").stat().st_size > 10_000
