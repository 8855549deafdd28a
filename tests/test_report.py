"""What is written: tables that line up, JSON that any parser reads back, and a page that needs nothing else."""

import dataclasses
import functools
import html.parser
import json
import math
import pathlib
import re
import tempfile

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from synthetic import predictions, trajectory

from flowsim import __version__
from flowsim._core.documents import write_json
from flowsim._core.text import in_unicode
from flowsim.claims import citation
from flowsim.claims.claim import Claim, at_least
from flowsim.claims.deciding.verdict import Judgement, Verdict
from flowsim.claims.hypotheses import Hypothesis
from flowsim.cli.common import has_colours, width
from flowsim.experiments.audit import Entry
from flowsim.experiments.certification import COUNTEREXAMPLE
from flowsim.experiments.documents import audit_document, verdicts_document
from flowsim.flow.trajectory import Status
from flowsim.problem import ProblemSpec
from flowsim.report import documents, ledger, page, plots

SPEC = ProblemSpec.from_toml("""
[task]
context_length = "inf"
covariance = [[0.5, 0.0], [0.0, 2.0]]
[init]
scale = 0.3
""")
SCALE = Hypothesis("sigma^2 |Gamma|_op sqrt(d) < 2", 0.4, "<", 2.0, True)
UNMET = Hypothesis("Theta Lambda != 0", 0.0, ">", 0.0, False)
SOURCE = "zhang2023, Lemma 5.4 (5.8)"
NAN = float("nan")


def verdict(name: str = "zhang2023.lemma-5.4.pl", judgement: Judgement = Judgement.HOLDS, **changes) -> Verdict:
    example = Verdict(
        id=name,
        source=SOURCE,
        form="printed",
        statement=r"$\lVert \nabla \ell \rVert^2 \ge \mu (\ell - \min \ell)$ \& more",
        verdict=judgement,
        margin=0.83,
        where=2.1,
        floor=3e-12,
        tightness=0.0091,
        hypotheses=(SCALE,),
        constants={"mu": 0.0048},
        note="",
    )
    return dataclasses.replace(example, **changes)


def the_sides(loss, run):
    return at_least(run.loss, 0.0)


CLAIM = Claim("test.claim", "nowhere, (1)", "a < b | c", the_sides, note="of interest")
VERDICTS = (
    verdict(),
    verdict(
        "zhang2023.lemma-5.1",
        Judgement.VIOLATED,
        margin=-0.5,
        where="U11 = [[1, 0], [0, 1]], u_minus1 = 2, u12 = [3, 4]",
    ),
    verdict(
        "zhang2023.lemma-a.5", Judgement.UNRESOLVED, form="corrected", floor=NAN, note="Differs by <a factor> of 2."
    ),
    verdict("zhang2023.lemma-a.4", Judgement.VACUOUS, margin=None, where=None, floor=None, tightness=None),
    verdict(
        "zhang2023.sec-5.1.negative-eigenvalues", Judgement.NOT_APPLICABLE, margin=-math.inf, hypotheses=(SCALE, UNMET)
    ),
)


def document(**changes) -> dict:
    arguments = {
        "problem": SPEC,
        "status": Status.EXCESS,
        "certificates": trajectory().certificates,
        "constants": {"mu": np.float64(0.0048), "sharp": jnp.asarray(0.5), "none": NAN},
        "limits": {"u_minus1": 3.0, "U11": jnp.eye(2)},
        "verdicts": VERDICTS,
    }
    return verdicts_document(**(arguments | changes))


def strictly_read(path: pathlib.Path) -> dict:
    def refuse(constant: str):
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(path.read_text(), parse_constant=refuse)


@functools.cache
def figures() -> dict[str, pathlib.Path]:
    return plots.draw_all(tempfile.mkdtemp(), trajectory(), predictions())


def written(path: pathlib.Path, **changes) -> str:
    arguments = {
        "spec": SPEC,
        "trajectory": trajectory(),
        "verdicts": VERDICTS,
        "figures": figures(),
        "predictions": predictions(),
        "facts": {"fitted rate": "1.000 in [0.999, 1.001] <95%>"},
    }
    page.write_report(path, **(arguments | changes))
    return path.read_text()


class Page(html.parser.HTMLParser):
    """Collects the tags with their attributes, and the text."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_table_lines_up_within_110_columns():
    lines = documents.verdict_table(VERDICTS, 110).splitlines()
    assert len(lines) == 2 + len(VERDICTS)
    assert max(map(len, lines)) <= 110
    for name in ("form", "verdict", "margin", "where", "floor", "tightness"):
        start = lines[0].index(name)
        assert all(line[start - 2 : start].strip() == "" for line in lines[2:])
    assert re.search(r"lemma-5\.4\.pl +printed +holds +\+0\.83 +t = 2\.1 +3e-12 +0\.0091$", lines[2])
    assert "…" in lines[3]
    assert re.search(r"vacuous +- +- +- +-$", lines[5])


def test_a_table_fits_80_columns_and_wide_ones_have_the_statements():
    assert max(map(len, documents.verdict_table(VERDICTS).splitlines())) <= 80
    long = verdict(statement="$a$ is at most $b$ " + 40 * "word ")
    lines = documents.verdict_table([long], 120).splitlines()
    assert lines[0].endswith("statement") and max(map(len, lines)) <= 120
    assert "a is at most b word" in lines[2] and lines[2].endswith("…")
    assert "statement" not in documents.verdict_table([long], 100)


@pytest.mark.parametrize("width", [60, 80, 95])
def test_a_narrow_table_keeps_what_matters(width: int):
    lines = documents.verdict_table(VERDICTS, width).splitlines()
    assert len(lines) == 2 + len(VERDICTS) and max(map(len, lines)) <= width
    for line, entry in zip(lines[2:], VERDICTS, strict=True):
        name, form, word, *_ = line.split()
        assert entry.id.endswith(name.removeprefix("…"))
        assert len(name) > 12 or name == f"…{entry.id.partition('.')[2]}"
        assert entry.form.startswith(form[:4]) and word == entry.verdict
    coloured = documents.verdict_table(VERDICTS, width, colours=True)
    assert "\x1b[1;31mviolated" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured).replace(" ", "") == "\n".join(lines).replace(" ", "")


@pytest.mark.parametrize(
    ("terminal", "environment", "coloured"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"TERM": "dumb"}, False),
        (True, {"NO_COLOR": "1"}, False),
        (False, {"FORCE_COLOR": "1"}, True),
        (True, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
    ],
)
def test_colours_are_for_terminals_that_want_them(terminal, environment, coloured, monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("COLUMNS", "66")
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal, raising=False)
    assert has_colours() is coloured
    assert width(110) == (66 if terminal else 110)


def test_numbers_are_set_as_in_a_paper():
    shown = {0.0: "0", 2.14e-14: "2.14×10⁻¹⁴", -1.5e12: "−1.5×10¹²", math.inf: "∞", NAN: "-", None: "-"}
    for value, text in shown.items():
        assert in_unicode(value) == text


def test_the_table_of_nothing_is_its_heading():
    assert documents.verdict_table([]).splitlines()[0].split() == [
        "claim", "form", "verdict", "margin", "where", "floor", "tightness",
    ]  # fmt: skip


def test_citation():
    where_and_how = "holds, margin 0.83 at t = 2.1, numerical floor 3e-12"
    assert citation(VERDICTS[0]) == f"{SOURCE} [printed]: {where_and_how}; flowsim {__version__}"
    assert citation(VERDICTS[3]) == f"{SOURCE} [printed]: vacuous; flowsim {__version__}"


def test_the_document_has_the_keys_that_others_rely_on():
    made = document()
    assert list(made) == ["problem", "status", "certificates", "versions", "constants", "limits", "claims"]
    assert set(made["versions"]) == {"flowsim", "jax", "equinox", "diffrax", "numpy", "python"}
    for claim in made["claims"]:
        assert list(claim) == [
            "id", "source", "form", "verdict", "until", "margin", "where", "floor", "tightness", "hypotheses", "note",
            *(["weight", "rests", "extraction"] if claim["verdict"] == "violated" else []),
        ]  # fmt: skip
    assert (made["claims"][1]["weight"], made["claims"][1]["rests"]) == (None, [])
    known = verdict("xie2025.eq-23", Judgement.VIOLATED)
    weighed = document(verdicts=[known, dataclasses.replace(known, form="corrected")])["claims"]
    assert (weighed[0]["weight"], weighed[0]["rests"]) == ("false", ["xie2025.eq-24"])
    assert weighed[1]["weight"] is None
    doubtful = document(verdicts=[verdict("ahn2023.eq-11", Judgement.VIOLATED)])["claims"]
    assert [claim["extraction"] for claim in (*weighed, *doubtful)] == [False, False, True]
    assert made["claims"][4]["hypotheses"][1] == {
        "name": "Theta Lambda != 0", "value": 0.0, "relation": ">", "bound": 0.0, "met": False,
    }  # fmt: skip
    assert made["problem"]["task"]["context_length"] == "inf"
    assert made["status"] == "stopped-excess"
    assert made["certificates"]["steps"] == 50
    assert made["limits"]["U11"] == [[1.0, 0.0], [0.0, 1.0]]


def test_json_round_trips_strictly(tmp_path: pathlib.Path):
    path = tmp_path / "verdicts.json"
    write_json(path, document())
    read = strictly_read(path)
    assert read == document()
    assert [claim["margin"] for claim in read["claims"]] == [0.83, -0.5, 0.83, None, None]
    assert [claim["verdict"] for claim in read["claims"]] == [judgement.value for judgement in Judgement]
    assert read["claims"][2]["floor"] is None
    assert read["constants"]["none"] is None


def test_what_was_not_integrated_says_so():
    made = document(status=None, certificates=None)
    assert made["status"] == "not-integrated"
    assert made["certificates"] == {}


def test_the_audit_gives_every_entry_its_own_problem(tmp_path: pathlib.Path):
    entries = [
        Entry(CLAIM, "easy", SPEC, Status.EXCESS, trajectory().certificates, VERDICTS[0]),
        Entry(CLAIM, "hard", SPEC, None, None, VERDICTS[4]),
    ]
    path = tmp_path / "verdicts.json"
    write_json(path, audit_document(entries))
    read = strictly_read(path)
    assert list(read) == ["versions", "claims"]
    assert [claim["status"] for claim in read["claims"]] == ["stopped-excess", "not-integrated"]
    assert read["claims"][0]["problem"]["init"]["scale"] == 0.3
    assert read["claims"][0]["id"] == VERDICTS[0].id


def test_the_ledger_names_statement_source_hypotheses_module_problems_and_verdicts():
    holds, fails = (Entry(CLAIM, name, SPEC, None, None, v) for name, v in zip("ab", VERDICTS, strict=False))
    page = ledger.ledger([holds, fails], file="own.py")["claims.md"]
    assert "| [test.claim](#testclaim-printed) | printed | ✓ holds (1), ✗ violated (1) |" in page
    assert "## test.claim (printed)" in page  # what the link of the summary leads to
    assert r"> a \< b \| c" in page
    assert "Source: nowhere, (1)" in page and "Note: of interest" in page
    assert f"Judged by: `{CLAIM.compare.__module__}.the_sides`" in page
    assert r"- Hypotheses: sigma^2 \|Gamma\|\_op sqrt(d) \< 2" in page
    assert "| a | ✓ holds | +0.83 |" in page and "| b | ✗ violated | -0.5 |" in page


def test_the_ledger_says_proved_refuted_or_why_not_and_counts_the_claim_s_own_problems():
    holds, fails = VERDICTS[0], VERDICTS[1]

    def shown(*entries):
        found = [Entry(CLAIM, name, SPEC, None, None, verdict) for name, verdict in entries]
        page = ledger.ledger(found, file="own.py")
        summary, section = page["claims.md"].split("\n## ")
        (row,) = [line for line in summary.splitlines() if line.startswith("| [")]
        return row.split(" | ")[2], row.removesuffix(" |").split(" | ")[-1], section

    refuted = dataclasses.replace(fails, certified="refuted")
    counts, certified, section = shown((COUNTEREXAMPLE, refuted), ("a", holds), ("b", fails))
    assert counts == "✓ holds (1), ✗ violated (1)"
    assert certified == f"**refuted**: {COUNTEREXAMPLE}" and f"- Certified: {certified}\n" in section
    assert "| a | ✓ holds |" in section and "| b | ✗ violated |" in section and f"| {COUNTEREXAMPLE}" not in section
    proved = dataclasses.replace(holds, certified="proved", proved_until=2.5)
    assert shown(("a_b", proved))[1] == r"**proved until t = 2.5**: a\_b"
    assert shown(("a", dataclasses.replace(holds, uncertified="for " + "long " * 40)))[1].endswith("…")
    assert "certified" not in ledger.ledger([Entry(CLAIM, "a", SPEC, None, None, holds)], file="own.py")["claims.md"]


def test_json_never_holds_nan_and_a_failed_write_keeps_the_earlier_file(tmp_path: pathlib.Path):
    path = tmp_path / "verdicts.json"
    write_json(path, document())
    before = path.read_bytes()
    with pytest.raises(ValueError):
        write_json(path, {"margin": NAN})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_page_holds_everything_and_needs_nothing(tmp_path: pathlib.Path):
    text = written(tmp_path / "report.html")
    page = Page(text)
    assert page.open == []
    for name in (*(entry.id for entry in VERDICTS), *(judgement.value for judgement in Judgement)):
        assert name in page.text
    for attributes in (attributes for _, attributes in page.tags):
        assert str(attributes.get("src", "data:")).startswith("data:")
        assert str(attributes.get("href", "#")).startswith("#")
    assert "http" not in re.sub(r"base64,[A-Za-z0-9+/=]+", "", text)
    assert not {"script", "link", "iframe"} & {tag for tag, _ in page.tags}
    assert [tag for tag, _ in page.tags].count("img") == 6


def test_the_page_begins_with_what_asks_for_attention(tmp_path: pathlib.Path):
    text = written(tmp_path / "report.html")
    page = Page(text)
    places = {str(attributes["id"]) for _, attributes in page.tags if "id" in attributes}
    links = [str(attributes["href"]).removeprefix("#") for tag, attributes in page.tags if tag == "a"]
    assert links[:2] == ["zhang2023.lemma-5.1-printed", "zhang2023.lemma-a.5-corrected"] and set(links) <= places
    counts = (
        "Of 4 statements that apply, 1 is violated: zhang2023.lemma-5.1; 1 is unresolved: zhang2023.lemma-a.5 "
        "(corrected); 1 holds; 1 is vacuous. 1 more does not apply."
    )
    assert counts in page.text
    order = ["Figure 1", "Verdicts", "not applicable: a hyp", "Figures", "Promised", "Problem", "Hypotheses", "How it"]
    body = text[text.index("</nav>") :]
    assert [body.index(words) for words in order] == sorted(body.index(words) for words in order)
    bodies = [str(attributes["class"]) for tag, attributes in page.tags if tag == "tbody" and "class" in attributes]
    assert bodies == [str(judgement) for judgement in documents.ORDER]
    alternatives = [str(attributes["alt"]) for tag, attributes in page.tags if tag == "img"]
    assert all(words[0].isupper() and words.endswith(".") and len(words.split()) > 6 for words in alternatives)
    assert len(set(alternatives)) == 6


def test_colours_of_the_page_have_a_contrast_of_at_least_4_5():
    style = (pathlib.Path(page.__file__).parent / "templates" / "report.html.jinja").read_text()
    themes = re.findall(r":root \{(.*?)\}", style)
    assert len(themes) == 2
    for theme in themes:
        colour = dict(re.findall(r"--(\w+): (#\w+)", theme))
        for ground in ("paper", "shade"):
            for ink in ("ink", "link"):
                low, high = sorted(luminance(colour[name]) for name in (ground, ink))
                assert (high + 0.05) / (low + 0.05) > 4.5, (ground, ink)


def luminance(colour: str) -> float:
    """Relative, as WCAG 2 has it."""
    parts = np.asarray(to_rgb(colour))
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def test_every_figure_has_a_caption_and_a_paper_s_has_its_source(tmp_path: pathlib.Path):
    text = written(tmp_path / "report.html")
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", text, re.DOTALL)
    assert len(captions) == len(figures()) == 6
    assert all("zhang2023" in caption for caption in captions[:-1])
    assert "the drift of what the flow conserves" in captions[-1]


def test_the_page_says_how_it_was_computed_and_escapes_what_it_is_given(tmp_path: pathlib.Path):
    text = written(tmp_path / "report.html")
    page = Page(text)
    for fact in ("1e-09", "arrowhead", "50 accepted", "stopped: excess below", "covariance = [[0.5, 0.0], [0.0, 2.0]]"):
        assert fact in page.text
    assert "1.000 in [0.999, 1.001] <95%>" in page.text
    assert "Differs by &lt;a factor&gt; of 2." in text
    assert page.text.count("ΘΛ≠0") == 1 and "‖∇ℓ‖2≥μ(ℓ−minℓ)" in page.text
    assert documents.summary(VERDICTS) == "1 violated, 1 unresolved, 1 holds, 1 vacuous, 1 not applicable"


def test_the_page_opens_with_one_sentence(tmp_path: pathlib.Path):
    loose = verdict(constants={"mu": 0.005, "sharp_mu": 0.55})
    opening = (
        "All 2 statements that apply hold; the μ of zhang2023, Lemma 5.4 (5.8) is 110 times too small for this flow."
    )
    assert opening in Page(written(tmp_path / "report.html", verdicts=[loose, verdict("zhang2023.lemma-5.3")])).text
    tight = verdict(constants={"mu": 0.005, "sharp_mu": 0.0055})
    assert "The only statement that applies holds." in Page(written(tmp_path / "report.html", verdicts=[tight])).text
    none = Page(written(tmp_path / "report.html", verdicts=[])).text
    assert "No statement was judged on this flow." in none and "Verdicts" not in none
    unmet = verdict(judgement=Judgement.NOT_APPLICABLE, hypotheses=(UNMET,))
    folded = Page(written(tmp_path / "report.html", verdicts=[unmet])).text
    assert "No statement applies to this flow. 1 more does not apply." in folded


def test_problem_and_hypotheses_are_folded_and_each_is_there_once(tmp_path: pathlib.Path):
    text = written(tmp_path / "report.html")
    folded = "".join(re.findall(r"<details>.*?</details>", text, re.DOTALL))
    for words in ("covariance = [[0.5, 0.0], [0.0, 2.0]]", "2 hypotheses, 1 not met"):
        assert text.count(words) == folded.count(words) == 1
    assert folded.count('<tr><td class="mark">✓') == 1 and folded.count("5 statements") == 1


def test_an_unfinished_run_is_marked(tmp_path: pathlib.Path):
    unfinished = written(tmp_path / "report.html", trajectory=trajectory(status=Status.BUDGET))
    assert "was not finished" in unfinished
    assert "was not finished" not in written(tmp_path / "report.html")


def test_a_page_without_predictions_verdicts_or_a_known_minimum(tmp_path: pathlib.Path):
    unknown = trajectory(excess=np.full(5, NAN), balance_drift=None)
    bare = {"predictions": None, "facts": {}, "verdicts": (), "trajectory": unknown}
    page = Page(written(tmp_path / "report.html", figures=plots.draw_all(tmp_path, unknown), **bare))
    assert "nan" not in page.text
    assert [tag for tag, _ in page.tags].count("img") == 2


def test_vector_figures_are_embedded_and_other_files_refused(tmp_path: pathlib.Path):
    text = written(tmp_path / "report.html", figures=plots.draw_all(tmp_path, trajectory(), format="svg"))
    assert "data:image/svg+xml;base64," in text
    with pytest.raises(ValueError, match=r"figures must be files that a page can show .*excess\.pdf"):
        written(tmp_path / "report.html", figures={"excess": tmp_path / "excess.pdf"})
    assert (tmp_path / "report.html").read_text() == text


def test_every_value_and_key_is_documented():
    text = (pathlib.Path(__file__).parent.parent / "docs" / "verdicts.md").read_text()
    values = [*(status.value for status in Status), *(judgement.value for judgement in Judgement), "not-integrated"]
    certificates = [field.name for field in dataclasses.fields(trajectory().certificates)]
    asked = document(verdicts=[verdict(certified="proved")])["claims"][0]
    keys = [*document(), *asked, *document()["claims"][0]["hypotheses"][0], *certificates]
    for name in (*values, *keys, "printed", "corrected", *predictions().constants):
        assert re.search(f'`"?{re.escape(name)}"?`', text), name
    for judgement, mark in documents.MARKS.items():
        assert f"{mark} ({judgement.value.replace('-', ' ')})" in text.replace("\n", " ")
