"""Searches: the spaces of all claims, a margin by two routes, what is found, and that a killed search goes on."""

import dataclasses
import json
import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import flowsim
from flowsim.claims.hypotheses import hypothesis
from flowsim.claims.spaces import Choice, Each, Real, Space, Whole
from flowsim.cli.main import main
from flowsim.experiments.search import counterexample
from flowsim.experiments.search.points import Point, Sampler
from flowsim.experiments.search.refutation import Search
from flowsim.experiments.search.screening import Screen
from flowsim.problem import spec_of

pytestmark = pytest.mark.slow

CLAIMS = flowsim.ALL_CLAIMS
SPACES = {repr(space): (claim, space) for claim in CLAIMS for space in claim.spaces}


class Pair(eqx.Module):
    a: jnp.ndarray
    b: jnp.ndarray


LOSS = flowsim.FunctionLoss(lambda net: 0.5 * (net.a * net.b - 1.0) ** 2, minimum=0.0)


def pair(a, b):
    return LOSS, Pair(jnp.asarray(a), jnp.asarray(b))


# |grad L|^2 = 2 (a^2 + b^2) L, a^2 - b^2 is conserved and a b tends to 1.
STARTS = Space({"a": Real(1.0, 3.0), "b": Real(0.1, 0.3)}, make=pair)


def claimed(bound, **options: Any):
    """|grad L|^2 >= bound(flow) L."""
    compare = lambda loss, flow: flowsim.at_least(flow.grad_norm_sq, bound(flow) * flow.excess)
    options.setdefault("spaces", (STARTS,))
    return flowsim.Claim("mine", "notes", "a bound", compare, **options)


def known(identifier, form="printed"):
    return next(claim for claim in CLAIMS if claim.id == identifier and claim.form == form)


def test_every_claim_declares_the_problems_it_speaks_of():
    assert [claim.id for claim in CLAIMS if not claim.spaces] == []
    # A flow that is cut off at once would be no flow.
    cut = [
        c.id for c in CLAIMS for space in c.spaces if c.along_flow and space.problem.get("flow", {}).get("t1") == 1e-6
    ]
    assert cut == []


@pytest.mark.parametrize("name", SPACES, ids=lambda name: f"{list(SPACES).index(name)}")
def test_a_space_holds_problems_of_its_claim(name):
    claim, space = SPACES[name]
    points = Sampler(space, 0, 1).draw(2).points
    for point in points:
        assert point.values.keys() == space.axes.keys()
        for axis, value in point.values.items():
            assert space.axes[axis].holds(value) or axis == "init.rank"
    problem = spec_of(space.tables(points[0].values)).build()
    assert claim.foreign(problem.loss, problem.start) is None


def test_axes_are_refused_where_they_have_no_value():
    with pytest.raises(ValueError, match="an axis must be from a finite number"):
        Real(2.0, 1.0)
    with pytest.raises(ValueError, match="a space must be given a problem, or a function"):
        Space({"a": Real(0.0, 1.0)})
    assert Each(Real(0.0, 1.0)).holds([0.5, 1.0]) and not Each(Real(0.0, 1.0)).holds([0.5, 2.0])
    assert not Choice((1, 2)).holds(3) and not Whole(1, 3).holds(1.5)


@pytest.mark.parametrize(
    "identifier, tolerance", [("zhang2023.lemma-5.4.pl", 1e-3), ("zhang2023.corollary-4.3.train-length", 1e-9)]
)
def test_the_margin_of_many_is_that_of_each_alone(identifier, tolerance):
    claim = known(identifier)
    screen = Screen(claim, claim.spaces)
    sampler = Sampler(claim.spaces[0], 0, 3)
    points = [sampler.draw(6).points for _ in range(3)][-1]
    together = screen.margins(points)
    assert all(program is not None for program in screen._programs.values())
    alone = [screen.alone(point) for point in points]
    assert any(not margin.unmet for margin in alone)
    for one, other in zip(together, alone, strict=True):
        assert one.unmet == other.unmet
        # Along a flow the least margin is over other output times.
        assert one.margin == pytest.approx(other.margin, rel=tolerance, nan_ok=True)


def test_the_gradient_of_a_margin_goes_through_the_flow():
    claim = known("zhang2023.lemma-5.4.pl")
    screen = Screen(claim, claim.spaces)
    values = dict(Sampler(claim.spaces[0], 0, 0).draw(2).points[0].values)
    values |= {"task.context_length": 7, "init.scale": 0.01}
    found = screen.gradient(Point(0, values))
    assert found is not None
    _, slopes = found
    for name in ("task.covariance.scale", "init.scale"):
        step = 1e-5 * values[name]
        up, down = (
            screen.margins([Point(0, values | {name: values[name] + sign * step})])[0].margin for sign in (1, -1)
        )
        assert slopes[name] == pytest.approx((up - down) / (2 * step), rel=1e-5)


def test_a_false_bound_is_broken_and_the_counterexample_made_small():
    found = flowsim.refute(claimed(lambda flow: 4 * flow.start.a), budget=60).counterexample
    assert found is not None and found.verdict.verdict == "violated"
    assert found.routes and all(verdict.verdict == "violated" for verdict in found.routes.values())
    a, b = found.values["a"], found.values["b"]
    # At the start the sides are 2 (a^2 + b^2) L and 4 a L, which a = 1 breaks for every small b.
    assert a == 1.0 and b in (0.1, 0.2, 0.3)
    assert found.value < found.bound
    assert found.bound == pytest.approx(4 * a * 0.5 * (a * b - 1) ** 2, rel=1e-6)
    assert "fails at a = 1.0" in found.erratum


def test_what_is_true_or_an_equality_is_not_broken():
    true = flowsim.refute(claimed(lambda flow: 2 * (flow.start.a**2 - flow.start.b**2)), budget=6)
    assert true.counterexample is None and true.least is not None and true.least[0] > 0
    same = flowsim.refute(claimed(lambda flow: 2 * (flow.models.a**2 + flow.models.b**2)), budget=6)
    assert same.counterexample is None and same.least is not None and abs(same.least[0]) < 1e-12


def test_the_best_constant_is_that_of_the_closed_form():
    bound = claimed(lambda flow: 2 * (flow.start.a**2 - flow.start.b**2), along_flow=False)
    found = flowsim.sharpen(bound, budget=6)
    # (a^2 + b^2)/(a^2 - b^2) at the start, least where b/a is.
    best = (9 + 0.01) / (9 - 0.01)
    assert best <= found.factor * (1 + 1e-12) and found.factor < 1.0001 * best
    growth = {growth.name: growth for growth in found.growth}
    for b, factor in zip(growth["b"].values, growth["b"].factors, strict=True):
        assert (9 + b**2) / (9 - b**2) <= factor * (1 + 1e-9) and factor < 1.001 * (9 + b**2) / (9 - b**2)
    with pytest.raises(ValueError, match="an inequality, whose constant can be sharpened"):
        flowsim.sharpen(known("zhang2023.lemma-5.4.limit"))


def test_a_killed_search_goes_on_with_the_same_batches(tmp_path):
    claim = claimed(lambda flow: 2 * (flow.start.a**2 - flow.start.b**2))
    whole, parts = Search(claim, claim.spaces, 0, 1e9), Search(claim, claim.spaces, 0, 1e9, tmp_path)
    for _ in range(4):
        whole.batch()
    for _ in range(2):
        parts.batch()
    again = Search(claim, claim.spaces, 0, 1e9, tmp_path)
    for _ in range(4):
        again.batch()
    assert again.result(None).least == whole.result(None).least
    assert (again.problems, again.met) == (whole.problems, whole.met)
    with pytest.raises(ValueError, match="the folder of this same search"):
        Search(claim, claim.spaces, 1, 1e9, tmp_path)


def test_a_space_that_no_hypothesis_allows_is_refused_with_the_hypothesis():
    never = claimed(lambda flow: 1.0, hypotheses=lambda loss, start: [hypothesis("a < 1/2", start.a, "<", 0.5)])
    for search in (flowsim.refute, flowsim.sharpen):
        with pytest.raises(ValueError, match='"a < 1/2" excludes all'):
            search(never, budget=0.5)
    with pytest.raises(ValueError, match="one with a space of problems to search"):
        flowsim.refute(claimed(lambda flow: 1.0, spaces=()))


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["xie2025.eq-27", "--over", "init.scale=1:2"], "over an axis of xie2025.eq-27"),
        (["xie2025.eq-27", "--over", "task.dimension=3:1"], "at least as large"),
        (["xie2025.eq-27", "--over", "task.dimension"], "FIELD=LOW:HIGH"),
        (["xie2025.eq-27", "--over", "task.dimension=1.5:2"], "whole numbers"),
        (["xie2025.eq-27", "--budget", "soon"], "a positive time"),
        (["xie2025.eq-27", "--budget", "0.000001s"], "long enough for one batch"),
        (["zhang2023.lemma-5.4"], "that of one claim"),
        (["xie2025.eq-2"], "claim id must be"),
        (["zhang2023.lemma-5.4.pl", "--form", "corrected"], '--form must be "printed"'),
        (["nowhere.py:mine"], "a Python file that can be read"),
    ],
)
def test_bad_input_is_one_line_that_says_what_was_expected(arguments, words, capsys):
    assert main(["refute", *arguments, "--quiet"]) == 2
    line = capsys.readouterr().err
    assert words in line and line.count("\n") == 1


def test_the_command_writes_a_counterexample_that_is_judged_violated_again(tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["refute", "xie2025.eq-27", "--over", "task.dimension=2:3", "--out", str(out), "--quiet"]) == 0
    assert "counterexample found" in capsys.readouterr().out
    document = json.loads((out / "counterexample.json").read_text())
    assert document["verdict"]["verdict"] == "violated" and document["values"]["task.dimension"] == 2
    assert (out / "erratum.txt").read_text().count(". ") >= 1
    assert (out / "figures" / "counterexample.png").stat().st_size > 1000
    problem = flowsim.ProblemSpec.from_toml((out / "counterexample.toml").read_text()).build()
    run = flowsim.gradient_flow(problem.loss, problem.start, t1=1e-6)
    assert flowsim.check(known("xie2025.eq-27"), problem.loss, run).verdict == "violated"
    assert math.isfinite(document["value"]) and document["value"] != document["bound"]


def test_a_search_says_what_became_of_what_failed_at_first_sight(monkeypatch):
    unfinished = "The integration did not finish (solver-failed)."
    judge = counterexample.judge_on
    monkeypatch.setattr(
        counterexample,
        "judge_on",
        lambda *given: dataclasses.replace(judge(*given), verdict=flowsim.Judgement.UNRESOLVED, note=unfinished),
    )
    found = flowsim.refute(claimed(lambda flow: 10.0), budget=5)
    assert found.counterexample is None and set(found.doubtful) == {f"unresolved. {unfinished}"}
    assert f"by their verdict: unresolved. {unfinished}" in str(found).replace("by its", "by their")
    assert "promised something at" not in str(found) and found.promising == found.met


def test_a_claim_in_a_file_of_the_users_own_is_sharpened(tmp_path, capsys):
    own = tmp_path / "own.py"
    own.write_text(
        "import flowsim\n"
        "claim = flowsim.Claim('mine', 'notes', 'tr L <= 2 d |L|', \n"
        "    lambda loss, run: flowsim.at_most(loss.eigenvalues.sum()[None], 2 * loss.eigenvalues.size * "
        "loss.eigenvalues[-1:]),\n"
        "    along_flow=False, spaces=(flowsim.Space({'task.covariance.condition': flowsim.Real(1.0, 9.0)},\n"
        "    {'task': {'covariance': {'dimension': 2}, 'context_length': 3}, 'init': {'kind': 'zeros'}}),))\n"
    )
    out = tmp_path / "out"
    assert main(["sharpen", f"{own}:claim", "--budget", "1s", "--out", str(out), "--quiet"]) == 0
    document = json.loads((out / "sharpening.json").read_text())
    # tr Lambda = (1 + 1/condition) lambda_1, against 4 lambda_1.
    assert document["factor"] == pytest.approx(2.0, rel=1e-3)
    assert document["values"]["task.covariance.condition"] == pytest.approx(1.0, abs=1e-2)
    (growth,) = document["growth"]
    np.testing.assert_allclose(growth["factors"], 4 / (1 + 1 / np.asarray(growth["values"])), rtol=1e-9)
    assert (out / "figures" / "sharpening.png").stat().st_size > 1000
    assert main(["sharpen", f"{own}:other"]) == 2
    assert "the name of a Claim there (claim)" in capsys.readouterr().err
