"""Verdicts written down: a table, JSON, a citation line, and a page that reads like a page of a paper."""

from collections.abc import Iterable, Mapping
from typing import Any

from flowsim._core.documents import plain, versions
from flowsim._core.numbers import number_text
from flowsim._core.types import Document
from flowsim.claims.claim import Judgement, Verdict
from flowsim.experiments.audit import Entry
from flowsim.flow.trajectory import Certificates, Status
from flowsim.problem import AbstractSpec

NOT_INTEGRATED = "not-integrated"

# Told apart without colour.
MARKS = {
    Judgement.HOLDS: "✓",
    Judgement.VIOLATED: "✗",
    Judgement.UNRESOLVED: "?",
    Judgement.VACUOUS: "∅",
    Judgement.NOT_APPLICABLE: "–",
}

_COLUMNS = ("claim", "form", "verdict", "margin", "where", "floor", "tightness")
_WIDTH = 110


def verdict_table(verdicts: Iterable[Verdict]) -> str:
    """The verdicts as aligned plain text, at most 110 columns wide; a long parameter is cut short."""
    rows = [_COLUMNS] + [
        (
            verdict.id,
            verdict.form,
            str(verdict.verdict),
            number_text(verdict.margin, "+.3g"),
            verdict.where_text(),
            number_text(verdict.floor, ".0e"),
            number_text(verdict.tightness),
        )
        for verdict in verdicts
    ]
    place = _COLUMNS.index("where")
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    others = sum(widths) - widths[place] + 2 * (len(widths) - 1)
    widths[place] = min(widths[place], max(len("where"), _WIDTH - others))
    lines = []
    for row in rows:
        cells = [_clipped(cell, width).ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def verdicts_document(
    problem: AbstractSpec,
    status: Status | None,
    certificates: Certificates | Mapping[str, Any] | None,
    constants: Mapping[str, Any],
    limits: Mapping[str, Any],
    verdicts: Iterable[Verdict],
) -> Document:
    """verdicts.json of one problem; a status of None says that nothing was integrated."""
    return plain(
        {
            "problem": problem,
            "status": status or NOT_INTEGRATED,
            "certificates": certificates or {},
            "versions": versions(),
            "constants": constants,
            "limits": limits,
            "claims": [_claim(verdict) for verdict in verdicts],
        }
    )


def audit_document(entries: Iterable[Entry]) -> Document:
    """verdicts.json of an audit: an entry for every claim, form and problem, each with its own problem."""
    claims = [
        {
            "problem": entry.problem,
            "status": entry.status or NOT_INTEGRATED,
            "certificates": entry.certificates or {},
            **_claim(entry.verdict),
        }
        for entry in entries
    ]
    return plain({"versions": versions(), "claims": claims})


def _claim(verdict: Verdict) -> Document:
    names = ("id", "source", "form", "verdict", "margin", "where", "floor", "tightness", "hypotheses", "note")
    return {name: getattr(verdict, name) for name in names}


def _clipped(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
