"""Searches: the spaces of all claims, a margin by two routes, what is found, and that a killed search goes on."""

import concurrent.futures
import dataclasses
import itertools
import json
import math
import re
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Lazy
from matplotlib.figure import Figure

import flowsim
from flowsim._core.files import held
from flowsim.claims.hypotheses import hypothesis
from flowsim.claims.spaces import Choice, Each, Real, Space, Whole
from flowsim.cli.main import main
from flowsim.experiments.executors import Processes
from flowsim.experiments.search import counterexample
from flowsim.experiments.search.clock import Clock
from flowsim.experiments.search.points import Point, Sampler
from flowsim.experiments.search.refutation import Search
from flowsim.experiments.search.screening import Screen
from flowsim.experiments.search.units import SpacePlace
from flowsim.problem import spec_of
from flowsim.problem.own.files import find_own
from flowsim.report.plots import search as pictures

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


def taken(search, count):
    """Look at that many batches."""
    assert list(itertools.islice(search.batches(), count)) == [None] * count


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
    points = Sampler(space, 0, 1).draw(0, 2)
    for point in points:
        assert point.values.keys() == space.axes.keys()
        for axis, value in point.values.items():
            assert space.axes[axis].holds(value) or axis == "init.rank"
    problem = spec_of(space.tables(points[0].values)).build()
    assert claim.foreign(problem.loss, problem.start) is None


def _nothing(**axes: Any) -> tuple[Any, Any]:
    return None, None


def test_numbers_of_each_are_as_many_as_the_axis_says_that_sizes_them():
    space = Space({"c": Each(Real(0.0, 1.0)), "n": Whole(1, 3)}, make=_nothing, sized_by="n")
    points = [point for batch in range(3) for point in Sampler(space, 0, 1).draw(batch, 2)]
    assert {len(point.values["c"]) for point in points} == {1, 2, 3}
    assert all(len(point.values["c"]) == point.values["n"] for point in points)


def test_axes_are_refused_where_they_have_no_value():
    with pytest.raises(ValueError, match="an axis must be from a finite number"):
        Real(2.0, 1.0)
    with pytest.raises(ValueError, match="a space must be given either a problem or a function"):
        Space({"a": Real(0.0, 1.0)})
    with pytest.raises(ValueError, match='sized_by of a space with Each .c. must be one of its axes, but it is "dimen'):
        Space({"c": Each(Real(0.0, 1.0)), "n": Whole(1, 3)}, make=_nothing)
    assert Each(Real(0.0, 1.0)).holds([0.5, 1.0]) and not Each(Real(0.0, 1.0)).holds([0.5, 2.0])
    assert not Choice((1, 2)).holds(3) and not Whole(1, 3).holds(1.5)


@pytest.mark.parametrize(
    "identifier, tolerance", [("zhang2023.lemma-5.4.pl", 1e-3), ("zhang2023.corollary-4.3.train-length", 1e-9)]
)
def test_the_margin_of_many_is_that_of_each_alone(identifier, tolerance):
    claim = known(identifier)
    screen = Screen(claim, claim.spaces)
    sampler = Sampler(claim.spaces[0], 0, 3)
    points = sampler.draw(2, 6)
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
    values = dict(Sampler(claim.spaces[0], 0, 0).draw(0, 2)[0].values)
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
    assert r"fails at \texttt{a} = 1.0, \texttt{b} = " in found.erratum_in_latex
    assert re.search(r"its two sides are \$[\d.]+\$ and \$[\d.]+\$", found.erratum_in_latex)


def test_what_is_true_or_an_equality_is_not_broken():
    true = flowsim.refute(claimed(lambda flow: 2 * (flow.start.a**2 - flow.start.b**2)), problems=200)
    assert true.counterexample is None and true.least is not None and true.least[0] > 0
    same = flowsim.refute(claimed(lambda flow: 2 * (flow.models.a**2 + flow.models.b**2)), problems=200)
    assert same.counterexample is None and same.least is not None and abs(same.least[0]) < 1e-12


def test_the_best_constant_is_that_of_the_closed_form():
    bound = claimed(lambda flow: 2 * (flow.start.a**2 - flow.start.b**2), along_flow=False)
    found = flowsim.sharpen(bound, problems=900)
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
    whole, parts = Search(claim, claim.spaces, 0, Clock(1e9)), Search(claim, claim.spaces, 0, Clock(1e9), tmp_path)
    taken(whole, 4)
    taken(parts, 2)
    again = Search(claim, claim.spaces, 0, Clock(1e9), tmp_path)
    taken(again, 4)
    assert again.result(None).least == whole.result(None).least
    assert (again.problems, again.met) == (whole.problems, whole.met)
    with pytest.raises(ValueError, match="empty or of this same search"):
        Search(claim, claim.spaces, 1, Clock(1e9), tmp_path)


class Ticks(Clock):
    """A clock that ticks at every look."""

    ticks = 0

    @property
    def seconds(self) -> float:
        self.ticks += 1
        return self.ticks


def test_a_search_ends_with_the_unit_in_which_its_time_is_up(tmp_path):
    def looked_at(budget, folder=None):
        clock = Ticks(budget)
        search = Search(alone, alone.spaces, 0, clock, folder)
        assert next(search.batches()) is None
        return search

    true = lambda flow: 2 * (flow.start.a**2 - flow.start.b**2)
    # What Python decides cannot be traced, so that each problem is looked at alone.
    traced = dataclasses.replace(STARTS, make=lambda a, b: pair(a, b) if a > 0 else pair(b, a))
    alone = claimed(true, along_flow=False, spaces=(traced,))
    assert looked_at(0).problems == 1  # one unit always is
    assert looked_at(4).problems == 4
    whole = looked_at(100, tmp_path)
    assert whole.problems > 4 and (tmp_path / "search.json").exists()
    assert not looked_at(4).continues()


def test_what_fails_when_the_time_is_up_is_said_to_be_unjudged():
    search = Search(claimed(lambda flow: 100.0, along_flow=False), (STARTS,), 0, Clock(0))
    assert next(search.batches()) is None
    found = search.result(None)
    assert found.unjudged == found.problems and "the time ended before a verdict" in str(found)


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
        (["xie2025.eq-27", "--over", "task.prior_mean=[[1,0],[0,1]"], "task.prior_mean must be set to a TOML value"),
        (["xie2025.eq-27", "--over", "task.dimension=1.5:2"], "whole numbers"),
        (["xie2025.eq-27", "--budget", "soon"], "a positive time"),
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
    search = ["refute", "xie2025.eq-27", "--over", "task.dimension=2:3", "--out", str(out), "--quiet"]
    assert main([*search, "--strict", "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["known"].endswith("docs/counterexamples/xie2025.eq-27.toml")
    document = json.loads((out / "counterexample.json").read_text())
    assert printed["counterexample"] == document
    assert document["verdict"]["verdict"] == "violated" and document["values"]["task.dimension"] == 2
    assert (out / "erratum.txt").read_text().count(". ") >= 1
    assert r"$\mathbb{E}[G_{mn} G_{pq}] =" in (out / "erratum.tex").read_text()
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
    found = flowsim.refute(claimed(lambda flow: 10.0), problems=60)
    assert found.counterexample is None and set(found.doubtful) == {f"unresolved. {unfinished}"}
    assert f"but were judged: unresolved. {unfinished}" in str(found)
    assert "promised something at" not in str(found) and found.promising == found.met


def test_the_picture_of_one_point_names_both_sides_and_their_values():
    claim = claimed(lambda flow: 0.0, along_flow=False)
    verdict = flowsim.Verdict(
        "mine", "notes", "printed", "", flowsim.Judgement.VIOLATED, -1.0, "one point", 0.0, 1.0, (), {}, ""
    )
    claim = dataclasses.replace(claim, statement="a $ <= b_1 of what is")
    loss, start = pair(0.5, 0.25)
    evidence = flowsim.Evidence(loss, flowsim.gradient_flow(loss, start, t1=1.0))
    found = flowsim.Counterexample(claim, {}, None, verdict, 2.0, 1.5e-7, {}, evidence)
    axes = Figure().add_subplot()
    pictures._two_sides(axes, found)
    words = [text.get_text() for text in (*axes.texts, *axes.get_yticklabels(), axes.xaxis.label)]
    assert {"2", r"$1.5\times10^{-7}$", "value", "bound"} <= set(words)
    assert "a $ <= b_1 of what is\nat one point" in words


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
    assert main(["sharpen", f"{own}:claim", "--problems", "200", "--out", str(out), "--quiet"]) == 0
    document = json.loads((out / "sharpening.json").read_text())
    # tr Lambda = (1 + 1/condition) lambda_1, against 4 lambda_1.
    assert document["factor"] == pytest.approx(2.0, rel=1e-3)
    assert document["values"]["task.covariance.condition"] == pytest.approx(1.0, abs=1e-2)
    (growth,) = document["growth"]
    np.testing.assert_allclose(growth["factors"], 4 / (1 + 1 / np.asarray(growth["values"])), rtol=1e-9)
    figure = out / "figures" / "sharpening.png"
    assert figure.stat().st_size > 1000
    one = ["--over", "task.covariance.condition=2:2", "--budget", "1s", "--out", str(tmp_path / "one"), "--quiet"]
    assert main(["sharpen", f"{own}:claim", *one]) == 0
    assert "figure: none, as no parameter has two values" in capsys.readouterr().out
    assert main(["sharpen", f"{own}:claim", *one[:-2], str(out), "--quiet"]) == 2
    assert "search.json belongs to another" in capsys.readouterr().err
    assert main(["sharpen", f"{own}:other"]) == 2
    assert "the name of a Claim there (claim)" in capsys.readouterr().err


OWN = """
import multiprocessing
import os
import pathlib
import signal

import equinox as eqx
import jax
import jax.numpy as jnp

import flowsim

LOSS = flowsim.FunctionLoss(lambda net: 0.5 * (net.a * net.b - 1.0) ** 2, minimum=0.0)


class Pair(eqx.Module):
    a: jax.Array
    b: jax.Array


def make(a, b):
    marker = pathlib.Path(__file__).parent / "killed"
    if multiprocessing.parent_process() is not None and marker.with_name("kill").exists() and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return LOSS, Pair(jnp.asarray(a), jnp.asarray(b))


def claim(rate):
    compare = lambda loss, flow: flowsim.at_least(flow.grad_norm_sq, rate(flow.start) * flow.excess)
    axes = {"a": flowsim.Real(1.0, 3.0), "b": flowsim.Real(0.1, 0.3)}
    return flowsim.Claim("mine", "", "", compare, along_flow=False, spaces=(flowsim.Space(axes, make=make),))


true, false = claim(lambda start: 2 * (start.a**2 - start.b**2)), claim(lambda start: 4 * start.a)
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    return lambda name: find_own(f"{tmp_path / 'own.py'}:{name}", flowsim.Claim)


def test_workers_find_the_same_though_one_is_killed(own, tmp_path):
    alone = flowsim.refute(own("true"), problems=150, out=tmp_path / "alone")
    sharp = flowsim.sharpen(own("true"), problems=150)
    (tmp_path / "kill").touch()
    with Processes(2) as processes:
        elsewhere = flowsim.refute(own("true"), problems=150, out=tmp_path / "elsewhere", executor=processes)
        assert (tmp_path / "killed").exists()
        assert flowsim.sharpen(own("true"), problems=150, executor=processes).document() == sharp.document()
    assert dataclasses.replace(elsewhere, seconds=alone.seconds) == alone
    assert (tmp_path / "elsewhere" / "search.json").read_bytes() == (tmp_path / "alone" / "search.json").read_bytes()


def test_a_search_that_goes_on_elsewhere_finds_the_same(own, tmp_path):
    whole = flowsim.refute(own("true"), problems=150, out=tmp_path / "whole")
    flowsim.refute(own("true"), problems=40, out=tmp_path / "parts")
    again = flowsim.refute(own("true"), problems=150, out=tmp_path / "parts", executor=Lazy())
    assert dataclasses.replace(again, seconds=whole.seconds) == whole
    assert (tmp_path / "parts" / "search.json").read_bytes() == (tmp_path / "whole" / "search.json").read_bytes()
    # Nor does it depend on what an earlier search looked at beyond it.
    fewer = flowsim.refute(own("true"), problems=40, out=tmp_path / "parts")
    assert fewer.problems < whole.problems


def test_a_counterexample_that_workers_find_is_the_same_file(own, tmp_path):
    for place, executor in (("here", None), ("elsewhere", Lazy())):
        found = flowsim.refute(own("false"), problems=150, out=tmp_path / place, executor=executor)
        assert found.counterexample is not None and found.small
    names = sorted(path.name for path in (tmp_path / "here").glob("[a-r]*"))
    assert names == ["counterexample.json", "erratum.tex", "erratum.txt"]
    for name in names:
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "elsewhere" / name).read_bytes()


def test_of_workers_at_least_one_unit_is_waited_for(own):
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        found = flowsim.refute(own("true"), budget=0, executor=threads)
    assert found.problems >= 32


def test_what_workers_cannot_find_is_refused_in_one_line(own, tmp_path, capsys):
    with pytest.raises(
        ValueError, match="the claim mine must be one of flowsim's, or at the top level of a Python file"
    ):
        flowsim.refute(claimed(lambda flow: 1.0), problems=1, executor=Lazy())
    place = SpacePlace.of(own("true"), {}, None)
    (tmp_path / "own.py").write_text(f"{OWN}# changed\n")
    with pytest.raises(ValueError, match="it differs on a worker"):
        place.screen()
    assert main(["refute", "xie2025.eq-27", "--problems", "0"]) == 2
    assert capsys.readouterr().err == "flowsim: problems must be a whole number of at least 1, but it is 0\n"


def test_two_searches_are_not_at_work_in_one_folder(own, tmp_path):
    with held(tmp_path) as alone, pytest.raises(ValueError, match="in which no other search is at work"):
        assert alone
        flowsim.refute(own("true"), problems=1, out=tmp_path)


def test_a_search_for_a_constant_that_ended_early_says_so():
    """Of k <= 18 for conditions k from 1 to 9 the best factor is 2, at the other end than the search begins."""
    space = flowsim.Space(
        {"task.covariance.condition": flowsim.Real(1.0, 9.0)},
        {"task": {"covariance": {"dimension": 2}, "context_length": 3}, "init": {"kind": "zeros"}},
    )
    ratio = lambda loss: (loss.eigenvalues.max() / loss.eigenvalues.min())[None]
    compare = lambda loss, _: flowsim.at_most(ratio(loss), 18.0)
    claim = flowsim.Claim("own.ratio", "notes", "k <= 18", compare, along_flow=False, spaces=(space,))
    short, long = (flowsim.sharpen(claim, problems=problems) for problems in (1, 900))
    assert short.factor == pytest.approx(18.0) and not short.everywhere
    assert "elsewhere the factor may be less" in str(short)
    assert long.factor == pytest.approx(2.0) and long.everywhere and "elsewhere" not in str(long)
