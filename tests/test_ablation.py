"""Which hypotheses a claim needs, on claims of which it is known."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import flowsim
from flowsim.claims.hypotheses import agrees, hypothesis
from flowsim.cli.main import main


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
    return {" and ".join(row.names): row for row in found.hypotheses}


@pytest.fixture(scope="module")
def found():
    return flowsim.ablate(positive, problems=128)


def test_the_needed_hypothesis_is_found_with_a_problem_and_the_other_is_not(found):
    rows = by_name(found)
    needed, other = rows["a(0) > 0"], rows["b(0) < 3"]
    assert needed.verdict == "needed"
    assert needed.counterexample.verdict.verdict == "violated"
    assert float(needed.counterexample.evidence.trajectory.start.a) <= 0
    assert "start" in needed.counterexample.values
    assert other.verdict == "not found needed"
    assert other.problems > 0
    assert other.fails == 0
    assert other.least >= 0
    assert found.problems >= 128


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


def test_hypotheses_that_imply_each_other_are_never_unmet_alone():
    twice = lambda loss, start: [hypothesis("a > 0", start.a, ">", 0.0), hypothesis("2 a > 0", 2 * start.a, ">", 0.0)]

    @flowsim.claim("mine.twice", "notes", hypotheses=twice, spaces=(SPACE,))
    def positive(start):
        """$a(0) >= 0.05$"""
        return flowsim.at_least(start.a, 0.05)

    rows = by_name(flowsim.ablate(positive, problems=128))
    assert rows["a > 0"].verdict == rows["2 a > 0"].verdict == "never unmet alone"
    assert rows["2 a > 0 and a > 0"].verdict == "needed"


def test_what_cannot_be_ablated_is_refused_in_one_line():
    with pytest.raises(ValueError, match="a space of problems"):
        flowsim.ablate(flowsim.claim("mine.a", "notes", statement="a")(lambda start: flowsim.at_least(start.a, 0.0)))
    bare = flowsim.claim("mine.a", "notes", statement="a", spaces=(SPACE,))
    with pytest.raises(ValueError, match="with hypotheses"):
        flowsim.ablate(bare(lambda start: flowsim.at_least(start.a, 0.0)))


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
    assert (out / "figures" / "ablation.png").stat().st_size > 10_000
