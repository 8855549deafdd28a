"""Audits with certificates: what is recorded, when it is tried again, and what the ledger says of it."""

import dataclasses
import json
import pathlib
import re
import shutil

import pytest

import flowsim
from flowsim.claims import Judgement
from flowsim.claims.proofs import check
from flowsim.cli import main
from flowsim.experiments import sources
from flowsim.experiments.audit import Kept, entry_of, judging
from flowsim.experiments.certification import (
    COUNTEREXAMPLE,
    Certificates,
    Record,
    counterexample_of,
    kept,
    with_certificates,
)
from flowsim.experiments.sources import statement_digest
from flowsim.problem import spec_of, toml, unnamed

_SECTIONS = pathlib.Path(flowsim.__file__).parent / "papers" / "zhang2025"
OWN = """
import flowsim
import jax
import jax.numpy as jnp


def make(scale: float = 1.0):
    return flowsim.FunctionLoss(lambda w: jnp.sum(w**2) / 2, minimum=0.0), scale * jnp.asarray([1.0, 0.5])


PROBLEMS = tuple({"name": f"from {scale:g}", "make": make, "scale": scale, "flow": {"t1": 1.0}} for scale in (0.5, 1.0))


@flowsim.claim("mine.rate", "notes", statement="a rate", problems=PROBLEMS)
def rate(flow):
    return flowsim.at_most(flow.excess, jnp.exp(-2.25 * flow.t) * flow.excess[0])


@flowsim.claim("mine.gamma", "notes", statement="not in certificates", problems=PROBLEMS[1:])
def gamma(flow):
    return flowsim.at_least(jax.scipy.special.gammaln(flow.excess + 1), 2.0)


@flowsim.claim("mine.right", "notes", statement="right", problems=PROBLEMS[1:])
def right(flow):
    return flowsim.at_least(flow.excess + 1, 0.5)
"""


@pytest.fixture
def audit(tmp_path):
    """An audit of a file, which returns the entries of verdicts.json and what the summary says of certificates."""
    (tmp_path / "own.py").write_text(OWN)
    out = tmp_path / "out"

    def audited(*options: str):
        assert main.main(["audit", "--paper", str(tmp_path / "own.py"), "--out", str(out), *options]) == 0
        summary = (out / "claims.md").read_text().partition("\n## ")[0]
        rows = re.findall(r"^\| \[(.*?)\].*?\|.*?\|.*?\|(?: (.*) \|)?$", summary, re.MULTILINE)
        return json.loads((out / "verdicts.json").read_text())["claims"], dict(rows)

    return audited


def test_an_audit_refutes_proves_or_says_why_not_and_reads_it_back(audit, tmp_path, tried, capsys):
    plain, shown = audit()
    assert not any(shown.values())
    for options in (["--certify"], ["--certify"], []):
        claims, shown = audit(*options)
        # Refutations come first, and what is recorded is not tried again.
        assert tried == ["mine.gamma", "mine.rate", "mine.right"] or tried == ["mine.rate", "mine.gamma", "mine.right"]
        assert shown.pop("mine.gamma").startswith("certificates do not have the operation")
        assert shown == {"mine.rate": "**refuted**: from 0.5", "mine.right": "**proved for all t**: from 1"}
        assert [claim.pop("certified", None) for claim in claims] == ["refuted", None, None, "proved"]
        more = {"proved_until", "uncertified"}
        assert [{key: claim[key] for key in claim if key not in more} for claim in claims] == plain
    for name, words in {"rate": "refuted at", "right": "proved for all t"}.items():
        certificate = json.loads((tmp_path / "out" / "certificates" / f"mine.{name}.json").read_text())
        assert check(certificate).startswith(words)
        row = json.loads((tmp_path / "out" / "certified" / "mine.json").read_text())[f"mine.{name} printed"]
        assert row["digest"] == certificate["digest"]
    command = ["audit", "--paper", str(tmp_path / "own.py"), "--certify"]
    assert main.main(command) == 2
    assert "--out must be a folder, which keeps the certificates" in capsys.readouterr().err


@pytest.mark.slow
def test_an_audit_tries_again_what_says_something_else_and_what_has_more_time(audit, tmp_path, tried):
    audit("--certify")
    tried.clear()
    audit("--certify", "--certify-budget", "61")
    assert tried == ["mine.gamma"]
    (tmp_path / "own.py").write_text(OWN.replace("excess + 1, 0.5", "excess + 1, 0.75"))
    tried.clear()
    _, shown = audit()
    # The file states all three, so that nothing is known of any until it is tried again.
    assert not any(shown.values()) and not tried
    _, shown = audit("--certify")
    assert len(tried) == 3 and shown["mine.right"] == "**proved for all t**: from 1"


def test_an_audit_that_is_interrupted_keeps_finished_certificates(audit, tmp_path, tried, monkeypatch):
    def interrupted(*given, **how):
        if len(tried) == 2:
            raise KeyboardInterrupt
        return make(*given, **how)

    with monkeypatch.context() as patch:
        make = kept.certified
        patch.setattr(kept, "certified", interrupted)
        with pytest.raises(RuntimeError, match="KeyboardInterrupt"):
            audit("--certify")
    assert len(json.loads((tmp_path / "out" / "certified" / "mine.json").read_text())) == 2
    audit("--certify")
    assert sorted(tried) == ["mine.gamma", "mine.rate", "mine.right"]


@pytest.mark.slow
def test_a_certificate_that_contradicts_a_verdict_stops_the_audit(audit, tmp_path, monkeypatch, capfd):
    audit("--certify")
    monkeypatch.delenv("FLOWSIM_TRACEBACK", raising=False)
    judge = judging.judge_or_note

    def wrong(claim, evidence):
        found = judge(claim, evidence)
        return dataclasses.replace(found, verdict=Judgement.VIOLATED) if claim.id == "mine.right" else found

    monkeypatch.setattr(judging, "judge_or_note", wrong)
    shutil.rmtree(tmp_path / "out" / "units")
    (tmp_path / "out" / "verdicts.json").unlink()
    for options in ([], ["--certify"], ["--certify", "--fresh"]):
        capfd.readouterr()
        command = ["audit", "--paper", str(tmp_path / "own.py"), "--out", str(tmp_path / "out"), *options]
        assert main.main(command) == 3
        said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("flowsim: ")]
        assert len(said) == 1 and "mine.right [printed]: the measured verdict is violated, and" in said[0]
        assert "mine.json shows that it is proved" in said[0]
        assert not (tmp_path / "out" / "verdicts.json").exists()


@pytest.mark.slow
def test_what_is_proved_of_a_section_outlasts_a_change_of_another():
    of = {claim.id: statement_digest(claim) for claim in flowsim.ALL_CLAIMS if claim.form == "printed"}
    files = {path.name for path in sources._reached([_SECTIONS / "section_4.py"])}
    assert {"section_4.py", "setting.py", "literal.py"} <= files and not {"section_3.py", "paper.py"} & files
    assert len({of[name] for name in ("zhang2025.eq-9", "zhang2025.eq-10", "zhang2025.eq-14")}) == 3


@pytest.mark.slow
def test_a_printed_claim_of_a_paper_is_refuted_on_its_smallest_counterexample(tmp_path):
    claim = next(one for one in flowsim.ALL_CLAIMS if one.id == "xie2025.eq-10" and one.form == "printed")
    units, record = Kept(tmp_path / "units"), Record(tmp_path / "certified")
    own = entry_of(claim, "its own", spec_of(unnamed(claim.problems[0])), units)
    found = with_certificates([own], record, units, Certificates(tmp_path / "certificates", 60.0))
    assert [entry.name for entry in found] == [COUNTEREXAMPLE, "its own"] and found[1] == own
    certificate = json.loads((tmp_path / "certificates" / f"{claim.id}.json").read_text())
    assert check(certificate) == found[0].verdict.certified == "refuted"
    assert certificate["problem"] == found[0].problem.to_toml()
    smallest = counterexample_of(claim)
    assert smallest is not None and found[0].problem == spec_of(toml.parse(smallest.read_text()))
    assert with_certificates([own], Record(tmp_path / "certified"), units) == found
