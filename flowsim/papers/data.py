"""The contents of the papers' data files: the faults of violated statements, symbols, and references."""

import enum
import functools
import pathlib

import msgspec

from flowsim._core.latex import escaped
from flowsim.claims import Verdict

_PAPERS = pathlib.Path(__file__).parent


class Weight(enum.StrEnum):
    """What is wrong with a statement that is violated as printed.

    - SLIP: a sign, a letter, a relation or a factor differs from the paper's own definitions, proof or other
      displays. The statement holds when it is made to agree with them.
    - WRONG_CONSTANT: the statement holds with another number, factor or exponent.
    - CONDITION_LEFT_OUT: the statement holds under a condition that it does not name. The condition is met by more
      than exceptional weights.
    - FALSE: none of these changes makes the statement true. A different statement holds instead.

    A statement with a slip or a wrong constant may also lack a condition. Its weight is then SLIP or
    WRONG_CONSTANT.
    """

    SLIP = "slip"
    WRONG_CONSTANT = "wrong-constant"
    CONDITION_LEFT_OUT = "condition-left-out"
    FALSE = "false"

    @property
    def in_words(self) -> str:
        """What is wrong, in words for a page of a review."""
        return _IN_WORDS[self]


_IN_WORDS = {
    Weight.SLIP: "a slip, which the paper's own definitions or displays put right",
    Weight.WRONG_CONSTANT: "a wrong constant",
    Weight.CONDITION_LEFT_OUT: "a condition is left out",
    Weight.FALSE: "false in substance",
}


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is wrong with a statement.

    weight: the kind of fault. rests: the ids of the statements whose printed argument uses the faulty statement.
    extraction: whether the fault may come from the extraction of the text from the PDF, and not from the paper.
    """

    weight: Weight
    rests: tuple[str, ...]
    extraction: bool = False


def fault_of(verdict: Verdict) -> Fault | None:
    """The fault of the statement that a verdict judges.

    None if the statement is not a printed one of a paper, or is not known to be violated.
    """
    return faults_of(verdict.id.partition(".")[0]).get(verdict.id) if verdict.form == "printed" else None


@functools.cache
def faults_of(paper: str) -> dict[str, Fault]:
    """The faults of a paper's printed statements that are known to be violated, by the statement's id.

    They are read from the paper's ``faults.toml``. The dictionary is empty if that file does not exist.
    """
    file = _PAPERS / paper / "faults.toml"
    return msgspec.toml.decode(file.read_bytes(), type=dict[str, Fault]) if paper and file.is_file() else {}


def latex_of_name(name: str) -> str:
    """Text-mode LaTeX for the name of a condition, or for a label whose last word is the name of a constant."""
    symbols = _symbols()
    before, _, last = name.rpartition(" ")
    if name not in symbols and before and last in symbols:
        return f"{escaped(before)} {symbols[last]}"
    return symbols.get(name) or escaped(name)


def bibtex_of(paper: str) -> str:
    """The BibTeX entry of a paper. Its key is the paper's id."""
    return (_PAPERS / paper / "paper.bib").read_text(encoding="utf-8")


@functools.cache
def _symbols() -> dict[str, str]:
    return msgspec.toml.decode((_PAPERS / "symbols.toml").read_bytes(), type=dict[str, str])
