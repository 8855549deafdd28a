"""Helpers that the commands share: read problems and claims, parse options, print, choose the exit status."""

import json
import os
import pathlib
import re
import shutil
import sys
from collections.abc import Iterable, Sequence

from flowsim import papers
from flowsim._core.checks import refuse
from flowsim._core.types import Tables
from flowsim.claims import Claim, Judgement, Verdict, find_claims
from flowsim.flow.trajectory import Status
from flowsim.problem import Problem, ProblemError, spec_of, toml
from flowsim.problem.own.files import find_own, is_place
from flowsim.report.documents import WIDTH, verdict_table

FINISHED, VIOLATED, UNFINISHED = 0, 1, 3
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_LONGEST = 1e9  # in any unit


def read(path: pathlib.Path, overrides: Sequence[str]) -> Problem:
    """Build the problem of a file, with overrides applied and all fields checked.

    **Arguments:** path: a problem file, or FILE.py:NAME; overrides: texts FIELD=VALUE.

    **Raises:** `ProblemError` naming the field that is wrong.
    """
    return spec_of(tables_of(path), overrides).build()


def tables_of(path: pathlib.Path) -> Tables:
    """Return the TOML tables of a problem. For a user's function they are ``{"make": "FILE.py:NAME"}``."""
    return {"make": str(path)} if is_place(str(path)) else toml.parse(_text_of(path))


def claims_of(identifier: str) -> list[Claim]:
    """Return all forms of the claim with an id and of its parts; for FILE.py:NAME, return the one claim of the
    user.

    **Raises:** `ProblemError` if no claim has this id.
    """
    if is_place(identifier):
        return [find_own(identifier, Claim)]
    try:
        return find_claims(papers.ALL_CLAIMS, identifier)
    except ValueError as error:
        raise ProblemError(f"{error}, or FILE.py:NAME for a claim of your own") from None


def claim_of(identifier: str, form: str) -> Claim:
    """Return one claim by its id and its form, or a user's claim by FILE.py:NAME.

    **Raises:** `ProblemError` if no claim, or several, have this id, or if the claim does not have this form.
    """
    found = claims_of(identifier)
    if is_place(identifier):
        return found[0]
    exact = [claim for claim in found if claim.id == identifier]
    if not exact:
        parts = ", ".join(dict.fromkeys(claim.id for claim in found))
        refuse("claim id", f"that of one claim ({parts})", f'it is "{identifier}"')
    chosen = [claim for claim in exact if claim.form == form]
    if not chosen:
        refuse("--form", f'"{exact[0].form}" for {identifier}', f'it is "{form}"')
    return chosen[0]


def _text_of(path: pathlib.Path) -> str:
    if path.suffix == ".py":
        refuse("PROBLEM.toml", "a problem file, or FILE.py:NAME for a function of your own", f"it is {path}")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        refuse("PROBLEM.toml", "a text file that can be read", f"{path}: not UTF-8")
    except (OSError, ValueError) as error:  # ValueError for a path that cannot exist
        refuse("PROBLEM.toml", "a text file that can be read", f"{path}: {getattr(error, 'strerror', error)}")


def check_format(format: str) -> None:
    """Refuse the figure format pgf if pdflatex is missing.

    Matplotlib measures the labels of pgf figures with LaTeX, so that the command would fail only after hours of
    work.
    """
    if format == "pgf" and shutil.which("pdflatex") is None:
        refuse("--format", "png, svg or pdf where there is no pdflatex, which measures the labels", "it is pgf")


def print_json(document: object) -> None:
    """Print a document as JSON, for the option --json."""
    print(json.dumps(document, indent=1))


def width(otherwise: int) -> int:
    """Return the number of columns of the terminal, or ``otherwise`` if the output is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else otherwise


def has_colours() -> bool:
    """Whether to write in colour: on a terminal, or if FORCE_COLOR is set; never if NO_COLOR is set."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (sys.stdout.isatty() and os.environ.get("TERM") != "dumb")


def table_of(verdicts: Iterable[Verdict]) -> str:
    """Return the table of verdicts, as wide as the terminal, or ``WIDTH`` if the output is not a terminal. It is
    coloured if `has_colours`.
    """
    return verdict_table(verdicts, width(WIDTH), has_colours())


def part_of(shard: str | None, out: pathlib.Path | None) -> tuple[int, int]:
    """Parse --shard I/N: return I and N, or (1, 1) if ``shard`` is None.

    **Arguments:** shard: the option; out: the option --out, which --shard needs.

    **Raises:** `ProblemError` unless 1 <= I <= N and ``out`` is given.
    """
    if shard is None:
        return 1, 1
    if out is None:
        refuse("--out", "a folder, which all parts share, with --shard", "it is missing")
    number, _, parts = shard.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        refuse("--shard", "I/N, the I-th of N parts", f'it is "{shard}"')
    return int(number), int(parts)


def seconds_of(option: str, text: str) -> float:
    """Return the seconds in a time such as ``90``, ``90s``, ``10m`` or ``2h``.

    **Arguments:** option: its name, for the error message; text: the time.

    **Raises:** `ProblemError` if the text is not a positive time.
    """
    parts = re.fullmatch(r"(\d+(?:\.\d*)?)([smh]?)", text.strip())
    if not parts or not 0 < float(parts[1]) <= _LONGEST:
        refuse(option, "a positive time such as 90s, 10m or 2h", f'it is "{text}"')
    return float(parts[1]) * _SECONDS[parts[2]]


def exit_status(strict: bool, verdicts: Iterable[Verdict], statuses: Iterable[Status | None] = ()) -> int:
    """Return 3 if an integration was not finished; else 1 if ``strict`` is set and a claim is violated; else 0.

    **Arguments:**

    - strict: whether a violated claim counts.
    - verdicts: the verdicts.
    - statuses: how the integrations ended; None where nothing was integrated.
    """
    if any(status is not None and not status.finished for status in statuses):
        return UNFINISHED
    return VIOLATED if strict and any(verdict.verdict is Judgement.VIOLATED for verdict in verdicts) else FINISHED
