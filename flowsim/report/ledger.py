"""docs/claims.md: every statement, where it stands, what it assumes, what was found."""

import itertools
from collections.abc import Iterable, Sequence

from flowsim._core.numbers import number_text
from flowsim.claims.claim import Judgement
from flowsim.experiments.audit import Entry
from flowsim.report.documents import MARKS

_HEAD = """# Every claim

Written by `flowsim audit --out DIR`, as `DIR/claims.md`: every statement that flowsim knows, printed and corrected,
judged on its own problems. [verdicts.md](verdicts.md) says what a verdict, its margin and its floor mean.

Out of reach: section 5.3 of xie2025 prompts large language models. That is no gradient flow of a population loss, and
the weights of those models are not public.
"""

_HEAD_OF_FILE = """# Every claim of {file}

Written by `flowsim audit --paper {file} --out DIR`, as `DIR/claims.md`: every claim of the file, judged on its own
problems.
"""

_SHARP = "../benchmarks/results/sharp_constants.md"


def ledger(entries: Iterable[Entry], file: str | None = None) -> str:
    """The ledger of an audit in Markdown: a summary, then for every claim and form its statement and its verdicts.

    **Arguments:** file: the Python file that the claims are of, None for the papers' claims, whose sections link to
    what the repository has on them.
    """
    groups = [list(group) for _, group in itertools.groupby(entries, key=lambda entry: entry.claim)]
    head = _HEAD if file is None else _HEAD_OF_FILE.format(file=file)
    return "\n".join([head, _summary(groups), *(_section(group, linked=file is None) for group in groups)])


def _summary(groups: Sequence[Sequence[Entry]]) -> str:
    rows = ["| claim | form | verdicts |", "|---|---|---|"]
    for group in groups:
        claim = group[0].claim
        counts = {judgement: sum(entry.verdict.verdict is judgement for entry in group) for judgement in Judgement}
        found = ", ".join(f"{MARKS[j]} {j} ({n})" for j, n in counts.items() if n)
        rows.append(f"| [{claim.id}](#{_anchor(group)}) | {claim.form} | {found} |")
    return "\n".join(rows) + "\n"


def _section(group: Sequence[Entry], linked: bool) -> str:
    claim = group[0].claim
    hypotheses = dict.fromkeys(h.name for entry in group for h in entry.verdict.hypotheses)
    compare = claim.compare
    lines = [
        f"## {claim.id} ({claim.form})",
        "",
        f"> {escaped(claim.statement)}",
        "",
        f"- Source: {claim.source}",
        f"- Hypotheses: {'; '.join(map(escaped, hypotheses)) or 'none'}",
        f"- Judged by: `{compare.__module__}.{compare.__name__}`",
    ]
    if claim.note:
        lines.append(f"- Note: {escaped(claim.note)}")
    if linked and any(entry.verdict.verdict is Judgement.VIOLATED for entry in group):
        lines.append(f"- Smallest counterexample found: [{claim.id}.toml](counterexamples/{claim.id}.toml)")
    if linked and any(name.startswith("sharp_") for entry in group for name in entry.verdict.constants):
        lines.append(f"- Sharp constant: [{claim.id}]({_SHARP})")
    lines += ["", "| problem | verdict | margin | floor |", "|---|---|---|---|"]
    for entry in group:
        verdict = entry.verdict
        margin, floor = (number_text(value, form) for value, form in ((verdict.margin, "+.3g"), (verdict.floor, ".0e")))
        lines.append(f"| {escaped(entry.name)} | {MARKS[verdict.verdict]} {verdict.verdict} | {margin} | {floor} |")
    return "\n".join(lines) + "\n"


def _anchor(group: Sequence[Entry]) -> str:
    """How a page names the heading of a section."""
    claim = group[0].claim
    return f"{claim.id} {claim.form}".replace(".", "").replace(" ", "-")


def escaped(text: str) -> str:
    """Text in which Markdown finds no markup."""
    for character in "\\|*_<>":
        text = text.replace(character, f"\\{character}")
    return text
