"""What the papers' data files say about their statements: their LaTeX, what is wrong with those that are violated, and
how the papers are cited.
"""

import enum
import functools
import pathlib
import re

import msgspec

from flowsim.claims import Claim, Verdict

_PAPERS = pathlib.Path(__file__).parent
# Characters that text-mode LaTeX reads as markup, and how to write them.
ESCAPES = {
    **{character: f"\\{character}" for character in "{}$&#%_"},
    **{"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"},
}


class Weight(enum.StrEnum):
    """What is wrong with a statement that is violated as printed.

    SLIP: a sign, a letter, a relation or a factor differs from the paper's own definitions, proof or other displays,
    and the statement holds with theirs; WRONG_CONSTANT: it holds with another number, factor or exponent;
    CONDITION_LEFT_OUT: it holds under a condition that it does not name, and that more than exceptional weights meet;
    FALSE: none of these repairs it, and a different statement holds instead. Where a statement has a slip or a wrong
    constant and also lacks a condition, the weight names the slip or the constant.
    """

    SLIP = "slip"
    WRONG_CONSTANT = "wrong-constant"
    CONDITION_LEFT_OUT = "condition-left-out"
    FALSE = "false"


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is wrong with a statement, and the ids of the statements whose printed argument uses it."""

    weight: Weight
    rests: tuple[str, ...]


class Statements(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A paper's statements.toml: both forms of statements as text-mode LaTeX by id, and the faults of printed ones."""

    printed: dict[str, str]
    corrected: dict[str, str]
    violated: dict[str, Fault]


def fault_of(verdict: Verdict) -> Fault | None:
    """What is wrong with the statement of a verdict; None unless it is a paper's printed one, known to be violated."""
    known = _statements_of(verdict.id)
    return None if known is None or verdict.form != "printed" else known.violated.get(verdict.id)


def latex_of(statement: Claim | Verdict) -> str:
    """The statement of a claim as text-mode LaTeX, with its formulas in ``$..$``.

    For a paper's claim it comes from the paper's statements.toml. A claim of your own is taken as LaTeX if its
    statement contains formulas in ``$..$``, and set as plain text otherwise.
    """
    known = _statements_of(statement.id)
    found = None if known is None else getattr(known, statement.form).get(statement.id)
    if found is not None:
        return found
    parts = text_and_formulas(statement.statement)
    return statement.statement if len(parts) > 1 and len(parts) % 2 == 1 else escaped(statement.statement)


def text_and_formulas(latex: str) -> list[str]:
    """Text-mode LaTeX split into text, formula, text, and so on, without the dollar signs."""
    return re.split(r"(?<!\\)\$", latex)


def latex_of_name(name: str) -> str:
    """The name of a condition, or a label that ends with a constant, as text-mode LaTeX."""
    symbols = _symbols()
    before, _, last = name.rpartition(" ")
    if name not in symbols and before and last in symbols:
        return f"{escaped(before)} {symbols[last]}"
    return symbols.get(name) or escaped(name)


def escaped(text: str) -> str:
    """Plain text with the characters escaped that LaTeX would read as markup."""
    return "".join(ESCAPES.get(character, character) for character in text)


def number_in_latex(text: str) -> str:
    """A number written by `format`, as a LaTeX formula; a dash where there is no number."""
    mantissa, _, exponent = text.replace("inf", r"\infty").partition("e")
    if mantissa == "-":
        return "--"
    return f"${mantissa} \\times 10^{{{int(exponent)}}}$" if exponent else f"${mantissa}$"


def bibtex_of(paper: str) -> str:
    """The BibTeX entry of a paper, whose key is its id."""
    return (_PAPERS / paper / "paper.bib").read_text(encoding="utf-8")


@functools.cache
def _symbols() -> dict[str, str]:
    return msgspec.toml.decode((_PAPERS / "symbols.toml").read_bytes(), type=dict[str, str])


def _statements_of(identifier: str) -> Statements | None:
    """The statements of the paper that an id names; None where it names none."""
    return _read(identifier.partition(".")[0])


@functools.cache
def _read(paper: str) -> Statements | None:
    file = _PAPERS / paper / "statements.toml"
    return msgspec.toml.decode(file.read_bytes(), type=Statements) if paper and file.is_file() else None
