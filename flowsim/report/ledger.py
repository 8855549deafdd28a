"""Writes the ledger: docs/claims.md and a page for each paper, with every statement, its source, hypotheses and
verdicts.
"""

import itertools
import re
from collections.abc import Iterable, Sequence

from flowsim import papers
from flowsim._core.text import cut, number_text
from flowsim._core.types import Document
from flowsim.claims.deciding.verdict import Judgement, certificates_asked
from flowsim.experiments.audit import Entry
from flowsim.experiments.certification import COUNTEREXAMPLE
from flowsim.experiments.sources import paper_digest
from flowsim.papers.data import fault_of
from flowsim.papers.paper import Paper
from flowsim.report.documents import MARKS

_HEAD = """# Every claim

Written by `flowsim audit --out docs`: every statement that flowsim knows, printed and corrected, judged on its own
problems, a page for each paper. [verdicts.md](verdicts.md) says what a verdict, its margin and its floor mean.
"""

_HEAD_OF_FILE = """# Every claim of {file}

Written by `flowsim audit --paper {file} --out DIR`, as `DIR/claims.md`: every claim of the file, judged on its own
problems.
"""

_HEAD_OF_PAPER = """# Every claim of {id}

{authors}, *{title}* ({year}), [arXiv {arxiv}](https://arxiv.org/abs/{arxiv}). Written by `flowsim audit --out docs`
with the rest of the [ledger](../claims.md). [verdicts.md](../verdicts.md) says what a verdict, its margin and its floor
mean.
"""

_INDEXED = "- [{id}](claims/{id}.md): {authors}, *{title}* ({year})\n"
_COLUMN = """
*certified* says what a certificate shows and on which problem, or why there is none. A proof is of that problem alone.
Until t = T it is for all t from 0 to T."""
_REASON = 90  # characters of why there is no certificate
_SHARP = "../../benchmarks/results/sharp_constants.md"
SOURCES = "<!-- judged by the sources {digest} -->\n"
_ROW = re.compile(r"^[|] \[([^]]+)\]\([^)]*\) [|] (printed|corrected) [|] ([^|]+) [|]", re.MULTILINE)
_COUNT = re.compile(rf"({'|'.join(Judgement)}) \((\d+)\)")


def ledger(entries: Iterable[Entry], file: str | None = None) -> dict[str, str]:
    """Write the ledger of an audit in Markdown: an index, and for each paper a page with a summary and all claims.
    The claims of a Python file give one page.

    **Arguments:**

    - entries: the verdicts, grouped by claim.
    - file: the Python file that declares the claims. None for claims of papers, whose sections link to
      counterexamples and sharp constants in the repository.

    **Returns:** the text of each page by its file name.
    """
    groups = [list(group) for _, group in itertools.groupby(entries, key=lambda entry: entry.claim)]
    if file is not None:
        head = _HEAD_OF_FILE.format(file=file)
        return {"claims.md": "\n".join([head, _summary(groups), *(_section(group, False) for group in groups)])}
    out_of_reach = "".join(f"\nOut of reach: {paper.out_of_reach}\n" for paper in papers.PAPERS if paper.out_of_reach)
    index = "".join(_INDEXED.format(**_described(paper)) for paper in papers.PAPERS)
    pages = {"claims.md": f"{_HEAD}{out_of_reach}\n{index}"}
    for paper in papers.PAPERS:
        if found := [group for group in groups if group[0].claim.id.startswith(f"{paper.id}.")]:
            head, sources = _HEAD_OF_PAPER.format(**_described(paper)), SOURCES.format(digest=paper_digest(paper.id))
            sections = (_section(group, True) for group in found)
            pages[f"claims/{paper.id}.md"] = "\n".join([head, _summary(found), *sections, sources])
    return pages


def _described(paper: Paper) -> Document:
    names = ("id", "authors", "title", "year", "arxiv")
    return {name: getattr(paper, name) for name in names}


def _summary(groups: Sequence[Sequence[Entry]]) -> str:
    asked = certificates_asked([entry.verdict for group in groups for entry in group])
    rows = ["| claim | form | verdicts |", "|---|---|---|"]
    if asked:
        rows = [f"{rows[0]} certified |", f"{rows[1]}---|"]
    for group in groups:
        claim, own = group[0].claim, _own(group)
        counts = {judgement: sum(entry.verdict.verdict is judgement for entry in own) for judgement in Judgement}
        found = ", ".join(f"{MARKS[j]} {j} ({n})" for j, n in counts.items() if n)
        shown = f" {_shown(group)} |" if asked else ""
        rows.append(f"| [{claim.id}](#{anchor_of(claim.id, claim.form)}) | {claim.form} | {found} |{shown}")
    return "\n".join([*rows, *([_COLUMN] if asked else [])]) + "\n"


def counts_in(page: str) -> dict[tuple[str, str], dict[Judgement, int]]:
    """Read how often each verdict was given to each claim, from the text of a paper's page in the ledger.

    **Returns:** for each (id, form) the number of problems with each verdict.
    """
    return {
        (name, form): {Judgement(word): int(count) for word, count in _COUNT.findall(verdicts)}
        for name, form, verdicts in _ROW.findall(page)
    }


def _own(group: Iterable[Entry]) -> list[Entry]:
    """Return the entries of a claim on the problems that it lists. An entry on its smallest counterexample is left
    out.
    """
    return [entry for entry in group if entry.name != COUNTEREXAMPLE]


def _shown(group: Iterable[Entry]) -> str:
    """Return the result of a certificate for a claim with the name of its problem, or why there is no certificate.

    **Arguments:** group: the entries of the claim.
    """
    verdicts = [(entry.name, entry.verdict) for entry in group]
    for name, verdict in verdicts:
        if verdict.certified:
            return f"**{verdict.certified_text()}**: {escaped(name)}"
    reasons = (cut(verdict.uncertified, _REASON) for _, verdict in verdicts if verdict.uncertified)
    return escaped(next(reasons, "not tried"))


def _section(group: Sequence[Entry], linked: bool) -> str:
    claim, own = group[0].claim, _own(group)
    hypotheses = dict.fromkeys(h.name for entry in own for h in entry.verdict.hypotheses)
    compare = claim.compare
    lines = [
        f"## {claim.id} ({claim.form})",
        "",
        f"> {escaped(claim.text)}",
        "",
        f"- Source: {claim.source}",
        f"- Hypotheses: {'; '.join(map(escaped, hypotheses)) or 'none'}",
        f"- Judged by: `{compare.__module__}.{compare.__name__}`",
    ]
    if claim.note:
        lines.append(f"- Note: {escaped(claim.note)}")
    violated = any(entry.verdict.verdict is Judgement.VIOLATED for entry in group)
    if violated and (fault := fault_of(group[0].verdict)):
        lines.append(f"- Weight: {fault.weight}; what rests on it: {', '.join(fault.rests) or 'nothing'}")
        if fault.extraction:
            lines.append("- The fault may be that of the text extracted from the PDF, and not the paper's")
    if linked and violated:
        lines.append(f"- Smallest counterexample found: [{claim.id}.toml](../counterexamples/{claim.id}.toml)")
    if linked and any(name.startswith("sharp_") for entry in group for name in entry.verdict.constants):
        lines.append(f"- Sharp constant: [{claim.id}]({_SHARP})")
    if certificates_asked([entry.verdict for entry in group]):
        lines.append(f"- Certified: {_shown(group)}")
    lines += ["", "| problem | verdict | margin | floor |", "|---|---|---|---|"]
    for entry in own:
        verdict = entry.verdict
        margin, floor = (number_text(value, form) for value, form in ((verdict.margin, "+.3g"), (verdict.floor, ".0e")))
        lines.append(f"| {escaped(entry.name)} | {MARKS[verdict.verdict]} {verdict.verdict} | {margin} | {floor} |")
    return "\n".join(lines) + "\n"


def anchor_of(name: str, form: str) -> str:
    """Return the anchor of a claim's heading: in lower case and without dots, as GitHub and Sphinx generate it."""
    return f"{name} {form}".lower().replace(".", "").replace(" ", "-")


def escaped(text: str) -> str:
    """Escape the characters of a text that have a meaning in Markdown."""
    for character in "\\|*_<>":
        text = text.replace(character, f"\\{character}")
    return text
