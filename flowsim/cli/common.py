"""Shared parts of commands: reading a problem, the output folder, the exit status."""

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
    """The problem of a file, with all fields checked."""
    return spec_of(tables_of(path), overrides).build()


def tables_of(path: pathlib.Path) -> Tables:
    """The tables of a problem: those in a problem file, or those that name a function FILE.py:NAME."""
    return {"make": str(path)} if is_place(str(path)) else toml.parse(_text_of(path))


def claims_of(identifier: str) -> list[Claim]:
    """All forms of the claim with an id, and of its parts; or the one claim of a user that FILE.py:NAME names."""
    if is_place(identifier):
        return [find_own(identifier, Claim)]
    try:
        return find_claims(papers.ALL_CLAIMS, identifier)
    except ValueError as error:
        raise ProblemError(f"{error}, or FILE.py:NAME for a claim of your own") from None


def claim_of(identifier: str, form: str) -> Claim:
    """One claim by its id and its form, or a user's claim as FILE.py:NAME."""
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
    """Refuse pgf without pdflatex before hours of work: Matplotlib measures its labels with LaTeX."""
    if format == "pgf" and shutil.which("pdflatex") is None:
        refuse("--format", "png, svg or pdf where there is no pdflatex, which measures the labels", "it is pgf")


def print_json(document: object) -> None:
    """Print the document for --json."""
    print(json.dumps(document, indent=1))


def width(otherwise: int) -> int:
    """The number of columns of the terminal, or another number if the output is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else otherwise


def has_colours() -> bool:
    """Whether to write in colour: on a terminal unless NO_COLOR is set, and always if FORCE_COLOR is."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (sys.stdout.isatty() and os.environ.get("TERM") != "dumb")


def table_of(verdicts: Iterable[Verdict]) -> str:
    """The table of verdicts in the width and colours of the terminal; elsewhere in the default width without
    colours.
    """
    return verdict_table(verdicts, width(WIDTH), has_colours())


def part_of(shard: str | None, out: pathlib.Path | None) -> tuple[int, int]:
    """The part and the number of parts in I/N."""
    if shard is None:
        return 1, 1
    if out is None:
        refuse("--out", "a folder, which all parts share, with --shard", "it is missing")
    number, _, parts = shard.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        refuse("--shard", "I/N, the I-th of N parts", f'it is "{shard}"')
    return int(number), int(parts)


def seconds_of(option: str, text: str) -> float:
    """Seconds from ``90``, ``90s``, ``10m`` or ``2h``."""
    parts = re.fullmatch(r"(\d+(?:\.\d*)?)([smh]?)", text.strip())
    if not parts or not 0 < float(parts[1]) <= _LONGEST:
        refuse(option, "a positive time such as 90s, 10m or 2h", f'it is "{text}"')
    return float(parts[1]) * _SECONDS[parts[2]]


def exit_status(strict: bool, verdicts: Iterable[Verdict], statuses: Iterable[Status | None] = ()) -> int:
    """1 if a claim is violated and ``strict`` is set, 3 if an integration was not finished, else 0.

    **Arguments:**

    - strict: whether a violated claim counts.
    - verdicts: the verdicts.
    - statuses: how the integrations ended, None if nothing was integrated.
    """
    if any(status is not None and not status.finished for status in statuses):
        return UNFINISHED
    return VIOLATED if strict and any(verdict.verdict is Judgement.VIOLATED for verdict in verdicts) else FINISHED
