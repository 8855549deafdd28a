"""Verdicts written down: a table, JSON, a citation line, and a page that reads like a page of a paper."""

import base64
import collections
import dataclasses
import enum
import functools
import importlib.metadata
import json
import math
import os
import pathlib
import platform
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, SupportsFloat

import jax
import jinja2
import msgspec
import numpy as np

from flowsim import __version__, _checks
from flowsim._files import write_whole
from flowsim.analysis.base import Claim, Judgement, Verdict
from flowsim.guarantees import Predictions
from flowsim.initialization import Hypothesis
from flowsim.problem import ProblemSpec
from flowsim.trajectory import Certificates, Status, Trajectory

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
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_MEDIA_TYPES = {".png": "image/png", ".svg": "image/svg+xml"}


def verdict_table(verdicts: Iterable[Verdict]) -> str:
    """The verdicts as aligned plain text, at most 110 columns wide; a long parameter is cut short."""
    rows = [_COLUMNS] + [
        (
            verdict.id,
            verdict.form,
            str(verdict.verdict),
            _number(verdict.margin, "+.3g"),
            _where(verdict),
            _number(verdict.floor, ".0e"),
            _number(verdict.tightness),
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


def citation(verdict: Verdict) -> str:
    """One line that cites a verdict, with the accuracy it was reached at and the version that reached it."""
    words = [f"{verdict.source} [{verdict.form}]: {verdict.verdict}"]
    if verdict.margin is not None:
        at = "" if verdict.where is None else f" at {_where(verdict)}"
        words.append(f"margin {_number(verdict.margin)}{at}")
    if verdict.floor is not None:
        words.append(f"numerical floor {_number(verdict.floor, '.0e')}")
    return f"{', '.join(words)}; flowsim {__version__}"


@functools.cache
def versions() -> dict[str, str]:
    """What computed a result: the packages that its digits depend on, and Python."""
    found = {name: importlib.metadata.version(name) for name in ("jax", "equinox", "diffrax", "numpy")}
    return {"flowsim": __version__, **found, "python": platform.python_version()}


def verdicts_document(
    problem: ProblemSpec,
    status: Status | None,
    certificates: Certificates | Mapping[str, Any] | None,
    constants: Mapping[str, Any],
    limits: Mapping[str, Any],
    verdicts: Iterable[Verdict],
) -> dict[str, Any]:
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


class Entry(NamedTuple):
    """One claim judged on one of its problems, of that name; status and certificates are None if nothing was
    integrated.
    """

    claim: Claim
    name: str
    problem: ProblemSpec
    status: Status | None
    certificates: Certificates | None
    verdict: Verdict


def audit_document(entries: Iterable[Entry]) -> dict[str, Any]:
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


def write_json(path: str | os.PathLike, document: Mapping[str, Any]) -> None:
    """Write strict JSON, whole or not at all.

    **Raises:** `ValueError` where a number is not finite; `plain` makes it null.
    """
    text = json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    write_whole(path, lambda file: file.write(text.encode()))


def plain(value: Any) -> Any:
    """The value as JSON holds it: arrays and tuples as lists, enumerations as their values, non-finite numbers null."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, msgspec.Struct):
        return plain(msgspec.to_builtins(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return plain(np.asarray(value).tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write_report(
    path: str | os.PathLike,
    spec: ProblemSpec,
    trajectory: Trajectory,
    verdicts: Sequence[Verdict],
    figures: Mapping[str, pathlib.Path],
    predictions: Predictions | None,
    facts: Mapping[str, str],
) -> None:
    """Write report.html, which needs nothing else to be read: problem, verdicts, figures, how it was computed.

    **Arguments:** figures: names and files (png or svg) as `flowsim.plots.draw_all` returns them; predictions:
    what the theorem promises here, if anything; facts: what else was found at the end of the flow, label and text.

    **Raises:** `ValueError` on a figure that a page cannot show.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"number": _typeset, "where": _where, "citation": citation}
    html = environment.get_template("report.html.jinja").render(
        spec=spec,
        trajectory=trajectory,
        verdicts=verdicts,
        summary=_summary(verdicts),
        start_excess=float(trajectory.excess[0]),
        marks=MARKS,
        hypotheses=_hypotheses(verdicts),
        figures={name: _data_uri(figure) for name, figure in figures.items()},
        predictions=predictions,
        facts=facts,
        versions=versions(),
    )
    write_whole(path, lambda file: file.write(html.encode()))


def _claim(verdict: Verdict) -> dict[str, Any]:
    names = ("id", "source", "form", "verdict", "margin", "where", "floor", "tightness", "hypotheses", "note")
    return {name: getattr(verdict, name) for name in names}


def _summary(verdicts: Iterable[Verdict]) -> str:
    """``11 hold, 1 is violated``."""
    counts = collections.Counter(verdict.verdict for verdict in verdicts)
    words = []
    for judgement in Judgement:
        count = counts[judgement]
        if judgement is Judgement.HOLDS:
            verb = "holds" if count == 1 else "hold"
        else:
            verb = f"{'is' if count == 1 else 'are'} {judgement.replace('-', ' ')}"
        words += [f"{count} {verb}"] if count else []
    return ", ".join(words) or "none was judged"


def _hypotheses(verdicts: Iterable[Verdict]) -> list[Hypothesis]:
    """Every hypothesis of the verdicts once."""
    return list({hypothesis.name: hypothesis for verdict in verdicts for hypothesis in verdict.hypotheses}.values())


def _data_uri(figure: pathlib.Path) -> str:
    if figure.suffix not in _MEDIA_TYPES:
        _checks.fail("figures", f"files that a page can show ({', '.join(_MEDIA_TYPES)})", f"one is {figure.name}")
    return f"data:{_MEDIA_TYPES[figure.suffix]};base64,{base64.b64encode(figure.read_bytes()).decode()}"


def _clipped(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _number(value: SupportsFloat | None, form: str = ".3g") -> str:
    """A number in few digits, a dash where there is none."""
    if value is None or math.isnan(value):
        return "-"
    return format(float(value), form) if value else "0"


def _typeset(value: SupportsFloat | None, form: str = ".3g") -> str:
    """A number as it is set in a page: 2.1×10⁻¹⁴."""
    mantissa, _, exponent = _number(value, form).replace("inf", "∞").partition("e")
    digits = mantissa if mantissa == "-" else mantissa.replace("-", "−")
    return f"{digits}×10{str(int(exponent)).translate(_SUPERSCRIPTS)}" if exponent else digits


def _where(verdict: Verdict) -> str:
    """The place of the margin, a dash where there is none."""
    return "-" if verdict.where is None else verdict.where_text()
