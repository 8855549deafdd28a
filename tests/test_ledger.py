"""The pages of docs/claims are the ledger of an audit of the claims as they are."""

import json
import pathlib
import re

import pytest

import flowsim
from flowsim.claims import judge_on
from flowsim.experiments.certification.record import counterexample_of, key_of
from flowsim.experiments.sources import paper_digest
from flowsim.flow.gradient_flow import start_alone
from flowsim.papers import PAPERS
from flowsim.problem import spec_of, toml, unnamed
from flowsim.report.ledger import anchor_of, escaped

PAGES = pathlib.Path(__file__).parents[1] / "docs"
LEDGER = {paper.id: (PAGES / "claims" / f"{paper.id}.md").read_text() for paper in PAPERS}
SECTIONS = {
    title: body
    for page in LEDGER.values()
    for title, body in re.findall(r"^## (.*?)\n(.*?)(?=^## |^<!-- |\Z)", page, re.MULTILINE | re.DOTALL)
}
RECORDED = {
    name: row
    for paper in PAPERS
    for name, row in json.loads((PAGES / "certified" / f"{paper.id}.json").read_text()).items()
}
REFUTED = {
    "ahn2023.eq-11",
    "ahn2023.eq-25",
    "ahn2023.eq-28",
    "ahn2023.eq-34",
    "ahn2023.eq-35",
    "ahn2023.eq-35.all-matrices",
    "ahn2023.eq-35.constrained",
    "ahn2023.eq-37",
    "ahn2023.eq-38",
    "ahn2023.eq-6",
    "ahn2023.eq-61",
    "ahn2023.figure-1.loss",
    "ahn2023.figure-1.plain",
    "ahn2023.figure-3.loss",
    "ahn2023.lemma-6.inner-product",
    "ahn2023.lemma-6.unique",
    "ahn2023.lemma-7.sum",
    "ahn2023.lemma-7.unique",
    "ahn2023.sec-4.parameters",
    "ahn2023.sec-5.2.distorted",
    "ahn2023.sec-5.2.hessian",
    "ahn2023.sec-6.1.curvature",
    "ahn2023.theorem-1.unique",
    "ahn2023.theorem-3.trace",
    "gatmiry2024.corollary-a.4.u-term",
    "gatmiry2024.figure-1",
    "gatmiry2024.figure-2",
    "gatmiry2024.figure-3.in-distribution",
    "gatmiry2024.figure-3.out-of-distribution",
    "gatmiry2024.figure-4",
    "gatmiry2024.figure-4.one-loop",
    "gatmiry2024.figure-4.slower",
    "gatmiry2024.lemma-4.1",
    "gatmiry2024.lemma-4.2",
    "gatmiry2024.lemma-4.3",
    "gatmiry2024.lemma-a.10",
    "gatmiry2024.lemma-a.10.eq-26",
    "gatmiry2024.lemma-a.10.eq-27",
    "gatmiry2024.lemma-a.10.factors",
    "gatmiry2024.lemma-a.10.gamma",
    "gatmiry2024.lemma-a.10.hoelder",
    "gatmiry2024.lemma-a.10.noise",
    "gatmiry2024.lemma-a.2.eq-19",
    "gatmiry2024.lemma-a.2.eq-20",
    "gatmiry2024.lemma-a.2.pairings",
    "gatmiry2024.lemma-a.3",
    "gatmiry2024.lemma-a.5",
    "gatmiry2024.lemma-a.5.proof",
    "gatmiry2024.lemma-a.7",
    "gatmiry2024.lemma-a.7.eq-21",
    "gatmiry2024.proposition-3.1.eq-7",
    "gatmiry2024.proposition-3.1.eq-9",
    "gatmiry2024.proposition-3.1.first-step",
    "gatmiry2024.proposition-3.1.step",
    "gatmiry2024.sec-3.2.hessian",
    "gatmiry2024.sec-3.2.step-size",
    "gatmiry2024.sec-3.5.delta",
    "gatmiry2024.sec-3.7.non-convex",
    "gatmiry2024.sec-5.2",
    "gatmiry2024.theorem-3.3.time",
    "gatmiry2024.theorem-3.4",
    "gatmiry2024.theorem-4.5",
    "gatmiry2024.theorem-4.5.norms",
    "gatmiry2024.theorem-a.1.eq-12",
    "gatmiry2024.theorem-a.1.eq-13",
    "gatmiry2024.theorem-a.11",
    "gatmiry2024.theorem-a.11.eq-28",
    "gatmiry2024.theorem-a.11.step",
    "gatmiry2024.theorem-a.12",
    "gatmiry2024.theorem-a.12.comparison",
    "gatmiry2024.theorem-a.12.ode",
    "gatmiry2024.theorem-a.13",
    "xie2025.eq-10",
    "xie2025.eq-18",
    "xie2025.eq-23",
    "xie2025.eq-24",
    "xie2025.eq-25",
    "xie2025.eq-25.nonzero",
    "xie2025.eq-26",
    "xie2025.eq-27",
    "xie2025.eq-28",
    "xie2025.eq-29",
    "xie2025.eq-8",
    "xie2025.lemma-3.proof",
    "xie2025.sec-4.2.conjecture",
    "xie2025.sec-4.2.lower-bound",
    "xie2025.sec-4.2.newton",
    "xie2025.sec-5.1.heads",
    "xie2025.sec-5.1.heads.lower-bound",
    "xie2025.sec-5.1.initial-guess",
    "xie2025.sec-5.1.prior-mean",
    "xie2025.sec-5.2",
    "xie2025.theorem-2",
    "xie2025.theorem-2.exception.eq-25",
    "xie2025.theorem-4",
    "zhang2023.corollary-4.3.definition-3.2",
    "zhang2023.corollary-4.3.train-length",
    "zhang2023.eq-a.15.bound",
    "zhang2023.lemma-c.6.proof-equality",
    "zhang2023.lemma-c.8.limit",
    "zhang2023.sec-4.2.orthogonal-query",
    "zhang2023.sec-4.3.one-third",
    "zhang2023.sec-5.1.negative-eigenvalues",
    "zhang2025.eq-14",
    "zhang2025.eq-9",
}

# Along flows of layers with B over all matrices, whose loss samples do not tell or whose limit nothing bounds; at equal
# eigenvalues, where minima are not isolated; where no pair of matrices is known for the statement; where the end of a
# flow is read as its limit; where the constants of a statement span more digits than its numbers have; and where a more
# accurate solve does not finish.
UNRESOLVED = {
    "ahn2023.figure-3.training.A (corrected)",
    "ahn2023.figure-3.training.A (printed)",
    "ahn2023.figure-3.training.B (corrected)",
    "ahn2023.figure-3.training.B (printed)",
    "ahn2023.figure-3.training.loss (printed)",
    "ahn2023.figure-4.training (printed)",
    "ahn2023.theorem-1.flow (corrected)",
    "gatmiry2024.sec-3.7.non-convex (printed)",
}


@pytest.mark.parametrize("paper", LEDGER)
def test_a_page_was_judged_by_the_paper_s_modules_as_they_are(paper):
    """Where it fails: flowsim audit --paper PAPER --out docs."""
    assert f"<!-- judged by the sources {paper_digest(paper)} -->" in LEDGER[paper]


def test_the_index_has_every_paper():
    index = (PAGES / "claims.md").read_text()
    assert re.findall(r"^- \[(\w+)\]\(claims/\1\.md\)", index, re.MULTILINE) == list(LEDGER)


def test_the_ledger_has_every_claim_as_it_is_and_no_other():
    assert list(SECTIONS) == [f"{claim.id} ({claim.form})" for claim in flowsim.ALL_CLAIMS]
    for claim in flowsim.ALL_CLAIMS:
        body = SECTIONS[f"{claim.id} ({claim.form})"]
        assert f"> {escaped(claim.text)}\n" in body
        assert f"- Source: {claim.source}\n" in body
        assert f"`{claim.compare.__module__}.{claim.compare.__name__}`" in body
        assert not claim.note or f"- Note: {escaped(claim.note)}\n" in body
        assert re.findall(r"^\| (.*?) \| [✓✗?∅–] ", body, re.MULTILINE) == [escaped(p["name"]) for p in claim.problems]


@pytest.mark.parametrize("paper", LEDGER)
def test_every_link_within_a_page_leads_to_a_section(paper):
    titles = re.findall(r"^## (\S+) \((\w+)\)$", LEDGER[paper], re.MULTILINE)
    assert titles and re.findall(r"\]\(#(.*?)\)", LEDGER[paper]) == [anchor_of(*title) for title in titles]


def test_the_ledger_refutes_what_the_tests_of_the_claims_refute():
    violated = {title for title, body in SECTIONS.items() if "✗ violated" in body}
    assert violated == {f"{name} (printed)" for name in REFUTED}
    unresolved = {title for title, body in SECTIONS.items() if "? unresolved" in body}
    assert unresolved == UNRESOLVED


@pytest.mark.parametrize("paper", LEDGER)
def test_what_certificates_show_is_of_the_claims_as_they_are(paper):
    """Where it fails: flowsim audit --paper PAPER --certify --out docs, which tries again what has changed alone."""
    claims = {f"{claim.id} {claim.form}": claim for claim in flowsim.ALL_CLAIMS if claim.id.startswith(f"{paper}.")}
    for name, row in RECORDED.items():
        if name.startswith(f"{paper}."):
            claim = claims[name]
            file = counterexample_of(claim)
            given = [*([toml.parse(file.read_text())] if file else []), *map(unnamed, claim.problems)]
            assert any(row["key"] == key_of(claim, spec_of(tables)) for tables in given), name


def test_the_pages_say_of_each_claim_what_certificates_show():
    """Where it fails: flowsim audit --paper PAPER --out docs."""
    rows = re.findall(r"^\| \[(\S+)\]\(#\S+\) \| (\w+) \| (.*?) \| (.*) \|$", "\n".join(LEDGER.values()), re.MULTILINE)
    assert len(rows) == len(flowsim.ALL_CLAIMS)
    for name, form, verdicts, shown in rows:
        assert (f"\n- Certified: {shown}\n" in SECTIONS[f"{name} ({form})"]) == (shown != "not tried")
        row = RECORDED.get(f"{name} {form}")
        if row is None:
            assert shown == "not tried" and "violated" not in verdicts
        elif row["certified"]:
            assert shown.startswith(f"**{row['certified']}") and shown.endswith(f": {escaped(row['problem'])}")
            assert ("violated" in verdicts) == (row["certified"] == "refuted")
        else:
            assert escaped(row["uncertified"]).startswith(shown.removesuffix("…"))


def test_what_is_refuted_has_a_corrected_form_or_a_note():
    for name in REFUTED:
        assert f"{name} (corrected)" in SECTIONS or "- Note: " in SECTIONS[f"{name} (printed)"]


def test_every_refuted_statement_has_a_counterexample_that_is_a_problem():
    files = {path.stem: path for path in (PAGES / "counterexamples").glob("*.toml")}
    assert files.keys() == REFUTED
    for name, path in files.items():
        text = path.read_text()
        assert text.startswith("# ") and " fails at " in text.splitlines()[0]
        flowsim.ProblemSpec.from_toml(text)
        assert f"](../counterexamples/{name}.toml)" in SECTIONS[f"{name} (printed)"]


@pytest.mark.parametrize("name", ["ahn2023.eq-6", "gatmiry2024.lemma-a.2.pairings", "xie2025.eq-27"])
@pytest.mark.slow
def test_a_counterexample_is_judged_violated_again(name):
    problem = flowsim.ProblemSpec.from_toml((PAGES / "counterexamples" / f"{name}.toml").read_text()).build()
    run = start_alone(problem.loss, problem.start)
    claim = next(claim for claim in flowsim.ALL_CLAIMS if claim.id == name and claim.form == "printed")
    assert not claim.along_flow
    verdict = judge_on(claim, flowsim.Evidence(problem.loss, run))
    assert verdict.verdict == "violated" and all(condition.met for condition in verdict.hypotheses)


def test_the_bounds_that_report_a_sharp_constant_are_in_the_table():
    table = (PAGES.parent / "benchmarks" / "results" / "sharp_constants.md").read_text()
    linked = [title.split(" (")[0] for title, body in SECTIONS.items() if "- Sharp constant: " in body]
    assert linked and all(f"| {name} |" in table for name in linked)
