"""The papers' data files: LaTeX that says what the claims say, what is wrong with violated ones, references."""

import collections
import dataclasses
import functools
import graphlib
import pathlib
import re

import msgspec
import pytest
from test_ledger import LEDGER, REFUTED

import flowsim
from flowsim._core.latex import ACCENTS, BRACKETS, FONTS, SYMBOLS, escaped, latex, number_in_latex, plain
from flowsim.claims.deciding.verdict import Judgement, Verdict
from flowsim.cli import main
from flowsim.papers import PAPERS
from flowsim.papers.data import Fault, Weight, bibtex_of, fault_of, latex_of_name
from flowsim.report.ledger import escaped as escaped_in_markdown
from flowsim.report.mathml import name_in_html, statement_in_html
from flowsim.report.tex import verdicts_table

FOLDER = pathlib.Path(flowsim.__file__).parent / "papers"
FILES = {
    paper.id: msgspec.toml.decode((FOLDER / paper.id / "faults.toml").read_bytes(), type=dict[str, Fault])
    for paper in PAPERS
}
NAMES = msgspec.toml.decode((FOLDER / "symbols.toml").read_bytes(), type=dict[str, str])
LETTERS = re.findall(
    r"\w+",
    "alpha beta gamma delta epsilon zeta eta theta kappa lambda mu nu xi pi sigma Gamma Delta Theta Lambda Sigma "
    "sum prod min max inf exp ln begin end frac tfrac sqrt binom partial",
)
COMMANDS = {*SYMBOLS, *BRACKETS, *ACCENTS, *FONTS, *LETTERS, "\\", "%", "_"}


def verdict_of(claim: flowsim.Claim, judgement: Judgement = Judgement.HOLDS) -> Verdict:
    return Verdict(
        claim.id, claim.source, claim.form, claim.statement, judgement, -0.25, None, 2e-12, 1.0, (), {}, claim.note
    )


def own(statement: str) -> Verdict:
    claim = flowsim.Claim("own.claim", "a draft, (1)", statement, lambda loss, run: flowsim.at_least(run.loss, 0.0))
    return verdict_of(claim, Judgement.VIOLATED)


def normalised(text: str) -> str:
    return re.sub(r"[{}()\s]", "", text.replace("u_minus1", "u_-1").replace("-hat", "hat").replace("_", ""))


def balanced(latex: str) -> bool:
    depth = 0
    for found in re.findall(r"(?<!\\)[{}]", latex):
        depth += 1 if found == "{" else -1
        if depth < 0:
            return False
    return depth == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"$u_{-1} > 0$ for all $t$", "u_{-1} > 0 for all t"),
        (r"$\frac{a + b}{2 c}\,x$", "(a + b)/(2 c) x"),
        (r"$\frac{a b}{c}$ and $\tfrac{1}{N} \sum_i x_i$", "a b/c and (1/N) sum_i x_i"),
        (r"$\lVert \nabla L \rVert^2 \ge 2 \mu L$", "|grad L|^2 >= 2 mu L"),
        (r"$\bigl(\sum \xi_i^2/\gamma_i^2\bigr)^{-1/4}$", "(sum xi_i^2/gamma_i^2)^{-1/4}"),
        (r"$\Gamma^{-1} \ne \Lambda^{2L}$", "Gamma^-1 != Lambda^{2L}"),
        (r"$\begin{bmatrix} I & w \\ w^\top & \lVert w \rVert^2 + d \end{bmatrix}$", "[I, w; w^T, |w|^2 + d]"),
        (r"$\begin{bmatrix} A & 0 \\ 0 & 0 \end{bmatrix}$", "[A 0; 0 0]"),
        (r"$\langle w_\star, \hat x \rangle \to \infty$", "<w*, x-hat> -> infinity"),
        (r"``locally optimal'' to $10\%$", '"locally optimal" to 10%'),
        ("u_{-1} < 1/4, no LaTeX", "u_{-1} < 1/4, no LaTeX"),
    ],
)
def test_plain_text_says_what_the_latex_says(text, expected):
    assert plain(text) == expected


def test_plain_text_of_broken_latex_is_some_text():
    for text in (r"$\frac{$", r"$\sqrt$", "$}$", r"$\begin{bmatrix} a$", r"$x_$", r"$\unknown{x}$"):
        assert "$" not in plain(text)


def test_the_latex_is_balanced_and_of_known_commands():
    for text in [*(claim.statement for claim in flowsim.ALL_CLAIMS), *NAMES.values()]:
        assert balanced(text) and text.count("$") % 2 == 0, text
        assert set(re.findall(r"\\([A-Za-z]+|.)", text)) <= COMMANDS, text
        assert text.isascii()


def test_statements_read_well_as_plain_text():
    for claim in flowsim.ALL_CLAIMS:
        assert not re.search(r"[\\$⟦⟧⟨⟩]|  ", claim.text), claim.text
        assert "$" not in claim.note and "\\" not in claim.note, claim.id


def test_every_statement_can_be_set_as_mathml():
    for claim in flowsim.ALL_CLAIMS:
        html = statement_in_html(verdict_of(claim))
        assert "<code>" not in html and "\\" not in html and "$" not in html, claim.id
        assert html.count("<math>") == claim.statement.count("$") // 2
        assert all(tag.startswith("m") for tag in re.findall(r"</?([a-z]+)", html)), claim.id


def test_names_of_conditions_are_set_and_are_those_of_the_ledger():
    pages = "\n".join(LEDGER.values())
    for name, symbol in NAMES.items():
        assert normalised(plain(symbol)) == normalised(name)
        assert name in ("mu", "nu") or escaped_in_markdown(name) in pages, name
        assert "<code>" not in name_in_html(name)
    assert latex_of_name("zhang2023.lemma-5.4.pl, sharp mu") == r"zhang2023.lemma-5.4.pl, sharp $\mu$"
    assert latex_of_name("50% of n_0") == r"50\% of n\_0"


def test_every_violated_statement_has_a_weight_and_no_other():
    faults = {name: fault for file in FILES.values() for name, fault in file.items()}
    assert faults.keys() == REFUTED
    known = {claim.id for claim in flowsim.ALL_CLAIMS}
    assert all(set(fault.rests) <= known - {name} for name, fault in faults.items())
    graphlib.TopologicalSorter({name: fault.rests for name, fault in faults.items()}).prepare()  # no circles
    assert {fault.weight for fault in faults.values()} == set(Weight)
    corrected = next(c for c in flowsim.ALL_CLAIMS if c.id in REFUTED and c.form == "corrected")
    assert fault_of(verdict_of(corrected)) is None


def test_the_readme_counts_the_faults_by_weight():
    faults = [fault for file in FILES.values() for fault in file.values()]
    counts = collections.Counter(fault.weight for fault in faults if not fault.extraction)
    text = " ".join((FOLDER.parents[1] / "README.md").read_text(encoding="utf-8").split())
    assert (
        f"{counts[Weight.FALSE]} of their statements are false, {counts[Weight.WRONG_CONSTANT]} have a wrong constant, "
        f"{counts[Weight.CONDITION_LEFT_OUT]} lack a condition and {counts[Weight.SLIP]} are slips; "
        f"{sum(fault.extraction for fault in faults)} more fail in the text"
    ) in text


def test_a_claim_of_ones_own_may_hold_formulas():
    assert latex(r"$\lVert w\rVert \le 1$ always") == r"$\lVert w\rVert \le 1$ always"
    assert latex("w_1 < 2^n & 3% of $5") == r"w\_1 \textless{} 2\textasciicircum{}n \& 3\% of \$5"
    assert statement_in_html(own("w_1 < 2^n & 3% of $5")) == "w_1 &lt; 2^n &amp; 3% of $5"
    for hostile in (r"$\text{<script>x</script>}$", r"$\frac{$", "<b>$x$</b>", r"$\href{javascript:x}{y}$"):
        html = statement_in_html(own(hostile))
        assert not re.search(r"<(?!/?(m[a-z]+|code)\b)", html) and "href=" not in html, html


def test_the_table_is_latex():
    claims = [claim for claim in flowsim.ALL_CLAIMS if claim.id.startswith("zhang2023")]
    short, long = (verdicts_table([verdict_of(claim) for claim in part]) for part in (claims[:5], claims))
    assert r"\begin{tabular}" in short and r"\begin{longtable}" in long and r"\endhead" in long
    for table, count in ((short, 5), (long, len(claims))):
        assert balanced(table) and table.count(r"\\ \addlinespace") == count
        assert all(
            row.count(" & ") == 4 for row in table.splitlines() if r"\addlinespace" in row and "bmatrix" not in row
        )
    assert r"holds & $-0.25$ & $2 \times 10^{-12}$ \\" in short
    assert verdicts_table([verdict_of(claims[0], Judgement.NOT_APPLICABLE)]).count(r"\raggedright") == 0
    unknown = dataclasses.replace(verdict_of(claims[0], Judgement.VACUOUS), margin=None, floor=None)
    assert r"vacuous & -- & -- \\" in verdicts_table([unknown])
    assert number_in_latex("inf") == r"$\infty$" and number_in_latex("-inf") == r"$-\infty$"
    assert balanced(escaped("{a} \\ }"))


@functools.cache
def citation_file() -> str:
    return (FOLDER.parents[1] / "CITATION.cff").read_text()


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.id)
def test_a_reference_is_that_of_its_paper(paper):
    entry = bibtex_of(paper.id)
    fields = dict(re.findall(r"(\w+)\s*= \{(.*)\},", entry))
    assert re.match(rf"@\w+\{{{paper.id},", entry) and balanced(entry)
    assert fields["title"] == paper.title and fields["eprint"] == paper.arxiv
    authors = [name.split(", ") for name in fields["author"].split(" and ")]
    assert ", ".join(family for family, _ in authors) == paper.authors
    assert f'title: "{paper.title}"' in citation_file()
    assert all(f"family-names: {family}\n" in citation_file() for family, _ in authors)


def test_cite_prints_references(capsys):
    assert main.main(["cite", "zhang2023.lemma-5.4.pl", "zhang2023.lemma-5.4.rate", "ahn2023.eq-6"]) == 0
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if line.startswith("@")] == [
        "@article{zhang2023,", "@inproceedings{ahn2023,", "@misc{flowsim,",
    ]  # fmt: skip
    assert r"% \cite[{Lemma 5.4, (5.8)}]{zhang2023}" in printed and flowsim.__version__ in printed
    assert re.findall(r"title  = \{(flowsim.*)\}", printed) == re.findall(r'^title: "(.*)"', citation_file(), re.M)
    assert main.main(["cite", "zhang2023.lemma-99"]) == 2
