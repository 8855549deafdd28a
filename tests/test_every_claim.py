"""The table of all claims: its counts are those of the ledger, its links lead somewhere, and a browser filters it."""

import collections
import html
import re
import shutil
import subprocess
import tomllib
import urllib.parse

import pytest

import flowsim
from docs.extensions import records
from flowsim.experiments.certification import DOCS
from flowsim.papers import PAPERS
from flowsim.report.ledger import anchor_of

CHROMIUM = shutil.which("chromium")
PAPER = next(paper for paper in PAPERS if paper.id == "zhang2025")
LEDGER = {paper.id: (DOCS / "claims" / f"{paper.id}.md").read_text() for paper in PAPERS}
WRONG = {
    name: "extraction" if fault.get("extraction") else fault["weight"]
    for paper in PAPERS
    for name, fault in tomllib.loads((DOCS.parent / f"flowsim/papers/{paper.id}/faults.toml").read_text()).items()
}


@pytest.fixture(scope="module")
def rows():
    return records.rows_of(DOCS)


def test_every_claim_has_a_row_with_the_verdicts_of_the_ledger(rows):
    assert [(row.claim.id, row.claim.form) for row in rows] == [(one.id, one.form) for one in flowsim.ALL_CLAIMS]
    pages = "\n".join(LEDGER.values())
    summary = re.findall(r"^\| \[(\S+)\]\(#\S+\) \| (\w+) \| (.*?) \|", pages, re.MULTILINE)
    assert len(summary) == len(rows)
    for row, (name, form, verdicts) in zip(rows, summary, strict=True):
        assert (row.claim.id, row.claim.form) == (name, form)
        cells = row.markdown.split(" | ")
        assert cells[1] == verdicts.replace(", ", "<br>")
        assert ("violated" in verdicts) == (row.worst == "violated")
        assert cells[2] == ("" if form == "corrected" or name not in WRONG else records.FAULTS[WRONG[name]])


def test_the_totals_are_those_of_the_files_and_each_links_to_as_many_rows(rows):
    said = records.totals(rows, "every-claim.html")
    links = re.findall(r'<a href="every-claim\.html#(.*?)">(\d+) (.*?)</a>', said)
    counts = {words: int(count) for _, count, words in links}
    printed = [row for row in rows if row.claim.form == "printed"]
    assert said.startswith(f"{len(printed)} printed statements of {len(PAPERS)} papers are judged, and ")
    assert f"and {len(rows) - len(printed)} corrected forms" in said
    holds, unresolved, violated, *kinds = counts.values()
    assert holds + unresolved + violated == len(printed)
    assert violated == len(WRONG) == sum(kinds)
    expected = collections.Counter(WRONG.values())
    assert kinds == [expected[kind] for kind in ("false", "wrong-constant", "condition-left-out", "slip", "extraction")]
    for query, count, _ in links:
        chosen = dict(urllib.parse.parse_qsl(html.unescape(query), strict_parsing=True))
        assert len(records.chosen(rows, **chosen)) == int(count)


def test_every_value_of_a_row_can_be_chosen_and_every_choice_is_a_class(rows):
    for row in rows:
        for name, values in row.values.items():
            assert values <= records.FILTERS[name][1].keys()
        assert all(re.fullmatch(r"[\w-]+", name) for name in row.classes)
    for name, (_, choices) in records.FILTERS.items():
        assert all(records.chosen(rows, **{name: choice}) for choice in choices)


def test_every_link_leads_to_a_section_and_every_counterexample_has_one(rows):
    anchors = {
        (paper, anchor_of(*title))
        for paper, page in LEDGER.items()
        for title in re.findall(r"^## (\S+) \((\w+)\)$", page, re.MULTILINE)
    }
    linked = [re.findall(r"\]\(claims/(\w+)\.md#(\S+?)\)", row.markdown) for row in rows]
    assert all(len(found) == 1 for found in linked)
    assert {found[0] for found in linked} == anchors
    files = [name for row in rows for name in re.findall(r"<counterexamples/(\S+?)>", row.markdown)]
    assert sorted(files) == sorted(path.name for path in (DOCS / "counterexamples").glob("*.toml"))
    assert {name.removesuffix(".toml") for name in files} == WRONG.keys()


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("| ✗ violated (3) |", "| ✗ violated (2) |", "counts other verdicts on zhang2025.eq-9 printed"),
        ("| ✓ holds (2) |", "| ✓ holds (1), ? unresolved (1) |", "counts other verdicts on zhang2025"),
        (" | ✓ holds | ", " | ? unresolved | ", "counts other verdicts on zhang2025"),
        ("| ✗ violated (3) |", "| ✓ holds (3) |", "zhang2025.eq-9 is not violated there"),
    ],
)
def test_a_planted_wrong_count_is_refused(before, after, expected, tmp_path):
    shutil.copytree(DOCS / "claims", tmp_path / "claims")
    shutil.copytree(DOCS / "certified", tmp_path / "certified")
    assert len(records.rows_of(tmp_path, [PAPER])) == len(PAPER.claims)
    page = tmp_path / "claims" / f"{PAPER.id}.md"
    text = page.read_text()
    assert before in text
    page.write_text(text.replace(before, after, 1))
    with pytest.raises(ValueError, match=re.escape(expected)):
        records.rows_of(tmp_path, [PAPER])


def test_without_scripts_the_filters_are_hidden_and_no_row_is():
    assert records.controls(7).startswith('<form class="claim-filters" hidden>')
    assert "7 of 7 rows" in records.controls(7)
    script = (DOCS / "_static" / "every-claim.js").read_text()
    assert "fetch" not in script and "http" not in script


@pytest.mark.skipif(CHROMIUM is None, reason="there is no browser")
@pytest.mark.parametrize(
    ("fragment", "chosen", "words"),
    [
        ("", {}, ""),
        ("#paper=zhang2023&verdict=violated", {"paper": "zhang2023", "verdict": "violated"}, ""),
        ("#fault=false&form=printed&text=Theorem", {"fault": "false", "form": "printed"}, "theorem"),
        ("#certified=proved", {"certified": "proved"}, ""),
        ("#verdict=refuted&paper=zhang2052&other=1", {}, ""),
    ],
)
def test_a_browser_shows_the_rows_that_the_address_chooses(fragment, chosen, words, rows, tmp_path):
    shown = browsed(rows, tmp_path, fragment)
    expected = [row.claim.id for row in records.chosen(rows, **chosen) if words in text_of(row).lower()]
    assert len(expected) > 0
    assert f'<output aria-live="polite">{len(expected)} of {len(rows)} rows</output>' in shown
    assert '<form class="claim-filters">' in shown
    visible = re.findall(r'<tr class="[^"]*"><td>(\S+)', shown)
    assert visible == expected


@pytest.mark.skipif(CHROMIUM is None, reason="there is no browser")
def test_a_browser_keeps_what_is_chosen_in_the_address(rows, tmp_path):
    script = """
      const form = document.querySelector("form");
      form.elements.paper.value = "xie2025";
      form.elements.text.value = " ≤ & risk ";
      form.elements.text.dispatchEvent(new Event("input", {bubbles: true}));
      document.title = location.hash;
      form.querySelector("button").click();
      setTimeout(() => document.body.append(`[${location.hash}] ${form.querySelector("output").textContent}`));
    """
    shown = browsed(rows, tmp_path, "#verdict=violated", script)
    title = re.findall(r"<title>#(.*?)</title>", shown)
    assert dict(urllib.parse.parse_qsl(html.unescape(title[0]))) == {
        "paper": "xie2025",
        "verdict": "violated",
        "text": " ≤ & risk ",
    }
    assert f"[] {len(rows)} of {len(rows)} rows" in shown


def text_of(row):
    return f"{row.claim.id} {row.claim.source} {row.claim.text}"


def browsed(rows, folder, fragment, script=""):
    """What a browser makes of the filters, the rows and the script of the page."""
    assert CHROMIUM
    cells = (f'<tr class="{" ".join(row.classes)}"><td>{html.escape(text_of(row))}</td></tr>' for row in rows)
    own = (DOCS / "_static" / "every-claim.js").read_text()
    page = folder / "page.html"
    page.write_text(
        f'<!doctype html><meta charset="utf-8"><title></title>{records.controls(len(rows))}<div class="every-claim">'
        f"<table><tbody>{''.join(cells)}</tbody></table></div><script>{own}</script><script>{script}</script>"
    )
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    options += [f"--user-data-dir={folder / 'chromium'}", "--dump-dom", f"file://{page}{fragment}"]
    return subprocess.run([CHROMIUM, *options], capture_output=True, text=True, timeout=300).stdout
