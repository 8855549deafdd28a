"""The page of a paper: it counts what the ledger and the package say, and a ledger that contradicts them is refused."""

import json
import re
import shutil

import pytest

from flowsim.cli.main import main
from flowsim.experiments.certification import DOCS
from flowsim.papers import PAPERS
from flowsim.papers.data import faults_of
from flowsim.report.referee import review_of_paper
from flowsim.report.referee.pages import Table

PAPER = next(paper for paper in PAPERS if paper.id == "zhang2025")


@pytest.fixture
def docs(tmp_path):
    """A copy of what is recorded of one paper."""
    for place in (f"claims/{PAPER.id}.md", f"certified/{PAPER.id}.json"):
        (tmp_path / place).parent.mkdir()
        shutil.copy(DOCS / place, tmp_path / place)
    return tmp_path


def rows(review, title):
    return [
        row
        for section in review.sections()
        if section.title == title
        for part in section.parts
        if isinstance(part, Table)
        for row in part.rows
    ]


def test_the_command_writes_the_page_and_prints_the_counts(tmp_path, capfd):
    assert main(["referee", PAPER.id, "--out", str(tmp_path)]) == 0
    told = capfd.readouterr().out
    assert "arXiv 2501.16265: 19 statements" in told
    assert "17 hold on every problem on which they apply; 2 fail: 1 false in substance, 1 by a slip" in told
    found = {suffix: (tmp_path / f"referee.{suffix}").read_text() for suffix in ("html", "md", "tex")}
    assert found["md"].index("flowsim referee zhang2025.eq-9") < found["md"].index("flowsim referee zhang2025.eq-14")
    assert "are fixed points too" in found["html"]
    assert "http" not in found["html"].replace("http://www.w3.org", "")
    # A tabular does not break over pages: eight statements with their notes were too high for one.
    assert "{tabular}" not in found["tex"] and r"\begin{description}" in found["tex"]
    assert found["tex"].count(r"\item[") == 19
    assert r"zhang2025.\allowbreak{}eq-9" in found["tex"]
    assert not re.search(r"\d\.\\allowbreak\{\}\d", found["tex"])
    for table in re.findall(r"(?:^\|.*\|\n)+", found["md"], re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1
    for name in re.findall(r"\\begin\{(\w+)\}", found["tex"]):
        assert found["tex"].count(rf"\begin{{{name}}}") == found["tex"].count(rf"\end{{{name}}}")


@pytest.mark.parametrize(
    "paper",
    [
        pytest.param(paper, id=paper.id, marks=() if place < 2 else pytest.mark.slow)
        for place, paper in enumerate(PAPERS)
    ],
)
def test_every_statement_has_one_row_and_those_that_fail_the_weightiest_first(paper):
    found = review_of_paper(paper)
    printed = {claim.id for claim in paper.claims if claim.form == "printed"}
    failing = [row[-1].removeprefix("flowsim referee ") for row in rows(found, "Statements that fail")]
    others = [row[-1] for title in ("that hold", "that are unresolved") for row in rows(found, f"Statements {title}")]
    assert sorted([*failing, *others]) == sorted(printed)
    assert set(failing) == set(faults_of(paper.id))
    order = ["false", "wrong-constant", "condition-left-out", "slip"]
    places = [order.index(faults_of(paper.id)[name].weight) for name in failing]
    assert places == sorted(places)


def test_without_the_repository_the_page_says_so_and_calls_nothing_held(tmp_path):
    found = review_of_paper(PAPER, tmp_path)
    assert "17 are not known to fail; 2 fail" in str(found)
    assert "whether those that are not known to fail hold" in found.lines[-1]
    assert "not in an installed package" in " ".join(found.rests_on)
    assert not rows(found, "Statements that hold")
    assert len(rows(found, "Other statements")) == 17
    assert len(rows(found, "Statements that fail")) == 2


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (
            "✗ violated (3)",
            "✓ holds (3)",
            "zhang2025.eq-9 is not violated there, and is among its statements that fail",
        ),
        (
            "✓ holds (2)",
            "✗ violated (2)",
            "zhang2025.eq-6 is violated there, and is not among its statements that fail",
        ),
        ("[zhang2025.eq-6]", "[zhang2025.eq-5]", "it has no verdict on zhang2025.eq-6, printed"),
        ("✓ holds (2)", "✓ stands (2)", "it has no verdict on zhang2025.eq-6, printed"),
    ],
)
def test_a_ledger_that_contradicts_the_package_is_refused(before, after, expected, docs):
    page = docs / "claims" / f"{PAPER.id}.md"
    page.write_text(page.read_text().replace(before, after, 1))
    with pytest.raises(ValueError, match=re.escape(expected)):
        review_of_paper(PAPER, docs)


def test_an_undecided_problem_and_a_certificate_of_something_else_do_not_count(docs):
    page, record = docs / "claims" / f"{PAPER.id}.md", docs / "certified" / f"{PAPER.id}.json"
    page.write_text(page.read_text().replace("✓ holds (2)", "✓ holds (1), ? unresolved (1)", 1))
    known = json.loads(record.read_text())
    known["zhang2025.eq-9 printed"]["key"] = "0" * 64
    record.write_text(json.dumps(known))
    found = review_of_paper(PAPER, docs)
    assert "16 hold on every problem on which they apply, 1 are unresolved on some" in str(found)
    assert "refute 1 of the 2 that fail" in str(found)
    assert "what could not be decided on some problem ((6))" in str(found)
    assert any("1 recorded certificate" in line for line in found.rests_on)
    page.write_text(page.read_text().replace("judged by the sources ", "judged by the sources 0"))
    assert any("of other sources" in line for line in review_of_paper(PAPER, docs).rests_on)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (["zhang2052"], 'it is "zhang2052"; did you mean "zhang2025"?'),
        (["zhang2025", "problem.toml"], "PROBLEM.toml must be left out with the name of a paper"),
        (["zhang2025", "--form", "corrected"], "--form must be left out with the name of a paper"),
    ],
)
def test_what_is_asked_wrongly_is_refused_in_a_line_and_nothing_is_written(asked, expected, tmp_path, capfd):
    out = tmp_path / "page"
    assert main(["referee", *asked, "--out", str(out)]) == 2
    told = capfd.readouterr().err
    assert expected in told
    assert len(told.strip().splitlines()) == 1
    assert not out.exists()
