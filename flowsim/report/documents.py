"""Verdicts as text: a table, a line that counts them, and the reasons for missing certificates."""

import collections
import textwrap
from collections.abc import Iterable, Mapping

from flowsim._core.text import cut, number_text
from flowsim.claims.deciding.verdict import Judgement, Verdict, certificates_asked, own_stop

# Distinct without colour.
MARKS = {
    Judgement.HOLDS: "✓",
    Judgement.VIOLATED: "✗",
    Judgement.UNRESOLVED: "?",
    Judgement.VACUOUS: "∅",
    Judgement.NOT_APPLICABLE: "–",
}

# In the order in which they are listed: what needs attention first.
_WORDS = {
    Judgement.VIOLATED: "violated",
    Judgement.UNRESOLVED: "unresolved",
    Judgement.HOLDS: "hold",
    Judgement.VACUOUS: "vacuous",
    Judgement.NOT_APPLICABLE: "not applicable",
}
ORDER = tuple(_WORDS)
_COLOURS = {Judgement.VIOLATED: "1;31", Judgement.UNRESOLVED: "33", Judgement.HOLDS: "32"}  # ANSI codes

WIDTH = 80
_PLACE = 14  # the width of "point 12 of 64"
_STATED = 24  # the least width of a column of statements
_COLUMNS = ("claim", "form", "verdict", "margin", "where", "floor", "tightness")
_CERTIFIED = ("claim", "form", "verdict", "certified", "margin", "where", "floor", "tightness")
_GIVEN_UP = ("tightness", "floor", "where")  # columns that are left out if the table is too wide, in this order
_FORMS = {"printed": "prin.", "corrected": "corr."}
_SHORTEST = {"claim": 12, "where": 9, "certified": 9}  # widths to which columns are cut


def verdict_table(verdicts: Iterable[Verdict], width: int = WIDTH, colours: bool = False) -> str:
    """Format verdicts as a table of aligned plain text, at most ``width`` columns wide.

    To fit the width, in this order: long texts are cut, the form is abbreviated, ids lose the paper's name, the
    columns tightness, floor and place are left out, and ids lose more of their beginning. 45 columns always
    suffice, or 58 with a column of certificates. Space that is left shows the statements, cut to fit. A line below
    the table gives the time up to which statements for all t were judged, unless the rows give this time, or the
    verdicts bound all later times too.

    **Arguments:**

    - verdicts: the verdicts.
    - width: the number of columns.
    - colours: whether to colour the verdicts with ANSI codes, for a terminal.
    """
    verdicts = list(verdicts)
    columns = _CERTIFIED if certificates_asked(verdicts) else _COLUMNS
    rows = [
        {
            "claim": verdict.id,
            "form": verdict.form,
            "verdict": verdict.verdict_text(),
            "certified": verdict.certified_text(),
            "margin": number_text(verdict.margin, "+.3g"),
            "where": verdict.where_text(),
            "floor": number_text(verdict.floor, ".0e"),
            "tightness": number_text(verdict.tightness),
            "statement": verdict.text,
        }
        for verdict in verdicts
    ]
    widths = {name: max([len(name), *(len(row[name]) for row in rows)]) for name in columns}

    def over() -> int:
        return sum(widths.values()) + 2 * (len(widths) - 1) - width

    def narrow(name: str, least: int | None = None) -> None:
        widths[name] = min(widths[name], max(widths[name] - over(), _SHORTEST[name] if least is None else least))

    place = widths["where"]
    narrow("where", _PLACE)
    if over() > 0:
        rows = [row | {"claim": f"…{row['claim'].partition('.')[2] or row['claim']}"} for row in rows]
        widths["claim"] = max([len("claim"), *(len(row["claim"]) for row in rows)])
    if over() > 0:
        rows = [row | {"form": _FORMS.get(row["form"], row["form"])} for row in rows]
        widths["form"] = max([len("form"), *(len(row["form"]) for row in rows)])
    narrow("where")
    for name in _GIVEN_UP:
        if over() > 0:
            del widths[name]
    if "where" in widths:
        widths["where"] = place
        narrow("where")
    if "certified" in widths:
        narrow("certified")
    narrow("claim")
    if rows and -over() - 2 >= _STATED:
        widths["statement"] = min(-over() - 2, max(len(row["statement"]) for row in rows))

    def line(cells: Mapping[str, str], colour: str | None = None) -> str:
        shown = {name: _clipped(name, cells[name], size).ljust(size) for name, size in widths.items()}
        if colour is not None:
            shown["verdict"] = f"\x1b[{colour}m{shown['verdict']}\x1b[0m"
        return "  ".join(shown.values()).rstrip()

    head, *body = [line({name: name for name in widths}), *map(line, rows)]
    rule = "-" * max(map(len, [head, *body]))
    if colours:
        body = [line(row, _COLOURS.get(verdict.verdict)) for row, verdict in zip(rows, verdicts, strict=True)]
    note = textwrap.wrap(own_stop(verdicts), max(len(rule), 45))
    return "\n".join([head, rule, *body, *note])


def summary(verdicts: Iterable[Verdict]) -> str:
    """Count the verdicts of each kind, the most urgent first: ``1 violated, 11 hold``."""
    counts = collections.Counter(verdict.verdict for verdict in verdicts)
    words = {judgement: "holds" if judgement is Judgement.HOLDS and n == 1 else _WORDS[judgement]
             for judgement, n in counts.items()}  # fmt: skip
    return ", ".join(f"{counts[judgement]} {words[judgement]}" for judgement in ORDER if counts[judgement])


def uncertified(verdicts: Iterable[Verdict]) -> list[str]:
    """Return a line for each reason why certificates are missing, with the claims to which the reason applies."""
    reasons: dict[str, list[str]] = {}
    for verdict in verdicts:
        if verdict.uncertified:
            form = "" if verdict.form == "printed" else f" [{verdict.form}]"
            reasons.setdefault(verdict.uncertified, []).append(f"{verdict.id}{form}")
    return [f"No certificate of {', '.join(names)}: {reason}." for reason, names in reasons.items()]


def _clipped(name: str, text: str, width: int) -> str:
    """Cut a text to a width. An id loses its beginning, any other text its end.

    **Arguments:** name: the column, "claim" for an id; text: the text; width: its largest length.
    """
    if len(text) <= width:
        return text
    return f"…{text[1 - width :]}" if name == "claim" else cut(text, width)
