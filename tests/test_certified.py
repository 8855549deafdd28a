"""Verdicts with certificates: what they say, where they are kept, and that none contradicts what was measured."""

import dataclasses
import json
import pathlib
import re
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowsim
from flowsim._core.files import DamagedFileWarning
from flowsim.claims import Evidence, Judgement
from flowsim.claims.proofs import FollowedFlow, OpenError, checker
from flowsim.cli import main
from flowsim.experiments import run as running
from flowsim.experiments.certification import ContradictionError, attempts, kept
from flowsim.experiments.certification.clock import TimeUpError, within
from flowsim.flow.gradient_flow import start_alone
from flowsim.problem import spec_of
from flowsim.report import documents
from flowsim.report.tex import verdicts_table

MINE = """
import flowsim
import jax
import jax.numpy as jnp


def make():
    return flowsim.FunctionLoss(lambda w: jnp.sum(w**2) / 2, minimum=0.0), jnp.asarray([1.0, 0.5])


def rate(name, mu):
    @flowsim.claim(f"mine.{name}", "my notes", statement="the rate")
    def claim(flow):
        return flowsim.at_most(flow.excess, jnp.exp(-mu * flow.t) * flow.excess[0])

    return claim


slower, faster = rate("slower", 1.75), rate("faster", 2.25)


@flowsim.claim("mine.gamma", "my notes", statement="an operation that certificates do not have")
def gamma(flow):
    return flowsim.at_least(jax.scipy.special.gammaln(flow.excess + 1), -1.0)
"""
NAMES = ["mine.slower", "mine.faster", "mine.gamma"]


@pytest.fixture(scope="module")
def mine(tmp_path_factory) -> str:
    file = tmp_path_factory.mktemp("mine") / "mine.py"
    file.write_text(MINE)
    return f"{file}:make"


@pytest.fixture(scope="module")
def problem(mine):
    return spec_of({"make": mine, "flow": {"t1": 2.0}}).build()


def certified(claim, verdict, evidence, seconds=60.0):
    """What is tried for a claim alone."""
    followed = lambda: FollowedFlow(evidence.loss, evidence.trajectory.start)
    return attempts.certified(claim, verdict, evidence, followed, seconds=seconds)


def read(out: pathlib.Path) -> dict:
    return {claim["id"]: claim for claim in json.loads((out / "verdicts.json").read_text())["claims"]}


def test_a_run_proves_refutes_or_says_why_not_and_measures_the_same(problem, tmp_path):
    plain, out = flowsim.run(problem, tmp_path / "plain"), tmp_path / "out"
    found = flowsim.run(problem, out, certify=True)
    assert [verdict.id for verdict in found.verdicts] == NAMES
    assert [verdict.certified for verdict in found.verdicts] == ["proved", "refuted", None]
    assert [verdict.proved_until for verdict in found.verdicts] == [2.0, None, None]
    assert "lgamma" not in found.verdicts[0].uncertified and "certificates do not have" in found.verdicts[2].uncertified
    assert sorted(path.name for path in (out / "certificates").glob("*.json")) == [
        "mine.faster.json",
        "mine.slower.json",
    ]
    for name, shown in {"slower": "proved for all t from 0 to 2", "faster": "refuted at t ="}.items():
        certificate = json.loads((out / "certificates" / f"mine.{name}.json").read_text())
        assert checker.check(certificate).startswith(shown)
        assert certificate["problem"] == problem.spec.to_toml()
    more = {"certified", "proved_until", "uncertified"}
    before, after = read(tmp_path / "plain"), read(out)
    assert not any(more & claim.keys() for claim in before.values())
    assert {name: {key: claim[key] for key in claim if key not in more} for name, claim in after.items()} == before
    assert after["mine.slower"]["certified"] == "proved" and after["mine.slower"]["proved_until"] == 2.0
    assert after["mine.gamma"]["certified"] is None and after["mine.gamma"]["uncertified"]
    assert [
        dataclasses.replace(verdict, certified=None, proved_until=None, uncertified="") for verdict in found.verdicts
    ] == (plain.verdicts)


@pytest.mark.slow
def test_a_run_that_was_interrupted_tries_only_what_is_left(problem, tmp_path, tried, monkeypatch):
    out, keep = tmp_path / "out", kept.Kept.save

    def interrupted(*given):
        keep(*given)
        if len(tried) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(kept.Kept, "save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            flowsim.run(problem, out, certify=True)
    assert not (out / "verdicts.json").exists()
    first = (out / "certificates" / "mine.slower.json").stat().st_mtime_ns
    found = flowsim.run(problem, out, certify=True, resume=True)
    assert tried == NAMES
    assert [verdict.certified for verdict in found.verdicts] == ["proved", "refuted", None]
    assert (out / "certificates" / "mine.slower.json").stat().st_mtime_ns == first
    # What has no certificate is tried again with more time alone, and what has lost it is.
    (out / "certificates" / "mine.faster.json").write_text("{}")
    with pytest.warns(DamagedFileWarning, match="a certificate is tried again"):
        flowsim.run(problem, out, certify=61.0, resume=True)
    assert tried == [*NAMES, "mine.faster", "mine.gamma"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "planted", "shown"),
    [("faster", "holds", "refuted"), ("slower", "violated", "proved")],
)
def test_a_certificate_that_contradicts_what_was_measured_stops_the_run(
    name, planted, shown, mine, problem, tmp_path, monkeypatch, capfd
):
    judge = running.judge_or_note

    def wrong(claim, evidence):
        found = judge(claim, evidence)
        return dataclasses.replace(found, verdict=Judgement(planted)) if found.id == f"mine.{name}" else found

    monkeypatch.setattr(running, "judge_or_note", wrong)
    out = tmp_path / "out"
    file = out / "certificates" / f"mine.{name}.json"
    for resume in (False, True):
        with pytest.raises(ContradictionError) as error:
            flowsim.run(problem, out, certify=True, resume=resume)
        for part in (f"mine.{name} [printed]", planted, shown, str(file)):
            assert part in str(error.value)
    assert checker.check(json.loads(file.read_text())).startswith(shown)
    assert not (out / "verdicts.json").exists()
    monkeypatch.delenv("FLOWSIM_TRACEBACK", raising=False)
    command = ["run", mine, "--set", "flow.t1=2.0", "--out", str(tmp_path / "other"), "--certify", "--quiet"]
    assert main.main(command) == 3
    said = capfd.readouterr().err
    assert said.startswith("flowsim: stopped: ContradictionError: ") and len(said.splitlines()) == 1


def test_a_difference_below_the_floor_contradicts_nothing():
    loss, start = flowsim.FunctionLoss(lambda w: jnp.sum(w**2) / 2, minimum=0.0), jnp.asarray([0.1])

    @flowsim.claim("mine.third", "a test", statement="3 (1/3 w) = w", along_flow=False)
    def third(loss, flow):
        return flowsim.equal(3 * (0.3333333333333333 * flow.models[0]), flow.models[0], 1.0)

    evidence = Evidence(loss, start_alone(loss, start))
    verdict = flowsim.check(third, loss, evidence.trajectory)
    assert verdict.verdict is Judgement.HOLDS
    found, certificate = certified(third, verdict, evidence)
    assert certificate is None and found.certified is None and "not proved" in found.uncertified


def test_a_claim_at_rest_on_its_bound_is_proved_where_nothing_was_measured():
    start = jnp.asarray([0.1, 0.7])

    def judged(third, rate):
        loss = flowsim.FunctionLoss(lambda w: rate * jnp.sum(w**2) / 2, minimum=0.0)

        @flowsim.claim("mine.sum", "a test", statement="(a + b)^2 <= a^2 + 2ab + b^2", along_flow=False)
        def claim(loss, flow):
            a, b = third * flow.models[0][0], flow.models[0][1]
            return flowsim.at_most((a + b) ** 2, a**2 + 2 * a * b + b**2)

        evidence = Evidence(loss, start_alone(loss, start))
        verdict = flowsim.check(claim, loss, evidence.trajectory)
        assert verdict.verdict is Judgement.UNRESOLVED
        return certified(claim, verdict, evidence)

    found, certificate = judged(0.3, 1.0)
    assert found.certified == "proved" and found.verdict is Judgement.UNRESOLVED and found.proved_until is None
    assert certificate is not None and checker.check(certificate) == "proved"
    # A number with many digits is exact in a claim if it occurs in the loss.
    for rate, why in ((1.0, "not proved"), (0.3333333333333333, "rounded to float64")):
        found, certificate = judged(0.3333333333333333, rate)
        assert certificate is None and why in found.uncertified


@pytest.mark.slow
def test_the_time_of_a_certificate_ends():
    u = jnp.linspace(1.0, 2.0, 12)
    product = lambda w: jnp.outer(w, w) - jnp.outer(u, u)
    loss = flowsim.FunctionLoss(lambda w: jnp.sum(product(w) ** 2) / 4, minimum=0.0)
    run = flowsim.gradient_flow(loss, u[::-1] / 2, t1=20.0)

    @flowsim.claim("mine.falls", "a test", statement="true, of a flow whose pieces take long")
    def claim(flow):
        return flowsim.at_most(flow.excess, 2 * flow.excess[0])

    begin = time.monotonic()
    found, certificate = certified(claim, flowsim.check(claim, loss, run), Evidence(loss, run), seconds=2.0)
    assert certificate is None and found.uncertified == "none was found within 2 s"
    assert time.monotonic() - begin < 30


def test_what_makes_another_exception_of_the_interruption_has_no_time_left_either():
    with pytest.raises(TimeUpError), within(0.2):
        try:
            while True:
                sum(range(1000))
        except TimeUpError:
            raise ValueError("wrong") from None
    with pytest.raises(ValueError, match="wrong"), within(20.0):
        raise ValueError("wrong")


def test_python_code_is_interrupted_and_jax_is_not():
    begin = time.monotonic()
    with pytest.raises(TimeUpError), within(0.2):
        while True:
            sum(range(1000))
    assert time.monotonic() - begin < 5

    def slow(x):
        time.sleep(0.6)
        return x + 1

    with pytest.raises(TimeUpError), within(0.1):
        traced = jax.make_jaxpr(slow)(1.0)
        while True:
            assert len(traced.eqns) == 1
    with within(0.05):
        pass
    time.sleep(0.1)


@pytest.mark.parametrize(
    ("certify", "words"), [(0.0, "positive number of seconds"), (-1.0, "positive number of seconds")]
)
def test_a_time_that_is_not_positive_is_refused(certify, words, problem, tmp_path):
    with pytest.raises(ValueError, match=f"certify must be a {words}"):
        flowsim.run(problem, tmp_path / "out", certify=certify)
    assert not (tmp_path / "out").exists()


def test_a_sampled_problem_and_a_wrong_time_are_refused_in_one_line(tmp_path, capfd):
    (tmp_path / "p.toml").write_text(
        '[task]\ncontext_length = 5\ncovariance = [[1.0]]\n[init]\nscale = 0.3\n[loss]\nkind = "monte-carlo"\n'
    )
    command = ["run", str(tmp_path / "p.toml"), "--out", str(tmp_path / "out"), "--certify"]
    assert main.main(command) == 2
    assert "certify must be left out for a sampled loss, as nothing is proved of a sample" in capfd.readouterr().err
    assert main.main([*command, "--certify-budget", "soon"]) == 2
    assert "--certify-budget must be a positive time such as 90s" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


def test_no_flow_is_solved_for_a_certificate_of_a_sampled_loss(tmp_path, capfd, monkeypatch):
    (tmp_path / "p.toml").write_text(
        '[task]\ncontext_length = 5\ncovariance = [[1.0]]\n[init]\nscale = 0.3\n[loss]\nkind = "monte-carlo"\n'
    )
    monkeypatch.setattr(attempts, "evidence_of", lambda *given: pytest.fail("a flow was solved"))
    command = ["certify", "zhang2023.lemma-5.4.pl", str(tmp_path / "p.toml"), "--out", str(tmp_path / "c.json")]
    assert main.main(command) == 3
    (line,) = capfd.readouterr().err.splitlines()
    assert "nothing is proved of a sample" in line
    assert not (tmp_path / "c.json").exists()


def test_tables_say_what_is_shown_only_if_it_was_asked_for(problem, tmp_path):
    found = flowsim.run(problem, tmp_path / "out", certify=True)
    lines = documents.verdict_table(found.verdicts).splitlines()
    assert lines[0].split()[:4] == ["claim", "form", "verdict", "certified"]
    assert "proved until t = 2" in lines[2] and " refuted " in lines[3]
    narrow = documents.verdict_table(found.verdicts, 58).splitlines()
    assert re.search(r"proved [until t]*…", narrow[2]) and max(map(len, narrow)) <= 58
    (line,) = documents.uncertified(found.verdicts)
    assert line.startswith("No certificate of mine.gamma: ") and line.endswith(".")
    assert "holds until t = 2, proved until t = 2" in verdicts_table(found.verdicts)
    assert "violated, refuted" in verdicts_table(found.verdicts)
    assert "proved until t = 2" in str(found.verdicts[0]) and "proved until" in flowsim.citation(found.verdicts[0])
    assert "<th>certified</th>" in found.verdicts._repr_html_()
    plain = flowsim.Verdicts([dataclasses.replace(found.verdicts[2], uncertified="")])
    assert "certified" not in documents.verdict_table(plain) + plain._repr_html_()
    assert np.all(["certified" not in documents.uncertified(plain)])


def test_a_flow_is_enclosed_once_for_all_claims(problem, tmp_path, monkeypatch):
    from flowsim.claims.proofs import path

    begun, further = [], path._further
    monkeypatch.setattr(path, "_further", lambda *given: begun.append(float(given[2].end)) or further(*given))
    running.run(problem, tmp_path / "out", certify=True)
    assert sum(t == 0.0 for t in begun) == 1
    assert begun == sorted(begun)


def test_a_refutation_is_of_what_is_promised():
    loss, start = flowsim.FunctionLoss(lambda w: jnp.sum(w**2) / 2, minimum=0.0), jnp.asarray([1.0])
    run = flowsim.gradient_flow(loss, start, t1=1.0)

    def shown(least):
        @flowsim.claim("mine.promise", "a test", statement="w >= 2 where w >= least")
        def claim(flow):
            w = flow.models[:, 0]
            return flowsim.at_least(w, 2.0, promised=w >= least)

        verdict = dataclasses.replace(flowsim.check(claim, loss, run), verdict=Judgement.VIOLATED, where=0.5)
        try:
            flowsim.certify(attempts._as_promised(claim), loss, start, t1=0.5, refutes=True)
            there = "refuted"
        except OpenError:
            there = None
        return there, certified(claim, verdict, Evidence(loss, run))[0].certified

    # At t = 1/2 w is 0.607, and at t = 0 it is 1.
    assert [shown(0.5), shown(0.7), shown(1.1)] == [("refuted", "refuted"), (None, "refuted"), (None, None)]
