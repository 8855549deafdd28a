"""The page with what a referee needs to know about a paper. `review_of_paper` gathers its content from records."""

import collections
import dataclasses
import pathlib
import re
from collections.abc import Iterable, Iterator

from flowsim._core import VERSION
from flowsim._core.latex import escaped, latex
from flowsim._core.text import counted
from flowsim.claims import Claim, Judgement
from flowsim.experiments.certification import DOCS, Record
from flowsim.experiments.sources import paper_digest
from flowsim.papers.data import Fault, Weight
from flowsim.papers.paper import Paper
from flowsim.report.ledger import SOURCES
from flowsim.report.referee.pages import AbstractPage, Section, Table
from flowsim.report.referee.recorded import Counts, Recorded, recorded

# The words after a number of statements, the weightiest first.
_MANY = {
    Weight.FALSE: "false in substance",
    Weight.WRONG_CONSTANT: "with a wrong constant",
    Weight.CONDITION_LEFT_OUT: "without a condition that they need",
    Weight.SLIP: "by a slip, which the paper's own definitions or displays put right",
}
_OF_THE_TEXT = "the fault may be that of the text extracted from the PDF"
_FAILING = {
    "source": 9,
    "as printed": 22,
    "what is wrong": 21,
    "correction": 22,
    "certificate": 11,
    "to reproduce it": 15,
}
_STANDING = {"source": 13, "statement": 44, "verdicts (problems)": 12, "certificate": 16, "id": 15}
_SENTENCES = re.compile(r"(?<=[.]) +")
_HOW = ("Judged ", "Judges ")  # what begins a sentence that says how, and not why


@dataclasses.dataclass(frozen=True)
class Statement:
    """The records about a printed statement.

    **Fields:**

    - printed: the records about the printed form.
    - corrected: the records about the corrected form, or None if there is no such form.
    """

    printed: Recorded
    corrected: Recorded | None

    @property
    def claim(self) -> Claim:
        """The statement in its printed form."""
        return self.printed.claim

    @property
    def fault(self) -> Fault | None:
        """What is wrong with the statement; None if it is not known to fail."""
        return self.printed.fault

    @property
    def counts(self) -> Counts | None:
        """On how many of its problems each verdict was given; None if the ledger is missing."""
        return self.printed.counts

    @property
    def place(self) -> str:
        """The statement's place in the paper, such as its number."""
        return self.claim.source.partition(", ")[2] or self.claim.source

    @property
    def settled(self) -> bool:
        """Whether the ledger shows that the statement holds on every problem on which it applies."""
        return self.fault is None and self.counts is not None and not self.counts.get(Judgement.UNRESOLVED)


@dataclasses.dataclass(frozen=True)
class PaperReview(AbstractPage):
    """The records about the statements of a paper.

    **Fields:**

    - paper: the paper.
    - statements: its printed statements, in the order of the paper.
    - rests_on: sentences that say from which sources the page was written.
    """

    paper: Paper
    statements: tuple[Statement, ...]
    rests_on: tuple[str, ...]

    @property
    def failing(self) -> list[Statement]:
        """The statements that fail as printed, the most serious first. Among equally serious statements, those
        whose fault may be that of the extracted text come last; otherwise, those on which most others depend come
        first.
        """
        order = list(_MANY)
        known = [(one, one.fault) for one in self.statements if one.fault is not None]
        known.sort(key=lambda pair: (order.index(pair[1].weight), pair[1].extraction, -len(pair[1].rests)))
        return [one for one, _ in known]

    @property
    def title(self) -> str:
        """The title of the page, in LaTeX."""
        return escaped(f"{self.paper.id}: what flowsim {VERSION} has recorded")

    @property
    def lines(self) -> tuple[str, ...]:
        """Four lines for a review, in LaTeX: the paper, the counts, the certificates, and what was not checked."""
        paper = self.paper
        said = f"{paper.authors}, {paper.title} ({paper.year}), arXiv {paper.arxiv}: "
        said += f"{counted(len(self.statements), 'statement')}, each judged as printed."
        certificates = _certificates_line(self.failing, [one for one in self.statements if one.fault is None])
        unchecked = f"Not checked: {'; '.join(_not_checked(self.statements))}."
        return tuple(map(escaped, (said, _counts_line(self.statements, self.failing), certificates, unchecked)))

    def sections(self) -> list[Section]:
        """Return the sections of the page, without empty ones."""
        held = [one for one in self.statements if one.settled]
        left = [one for one in self.statements if one.fault is None and not one.settled]
        known = any(one.counts is not None for one in self.statements)
        out_of_reach = [" ".join(self.paper.out_of_reach.split())] if self.paper.out_of_reach else []
        unchecked = [*(f"{line[0].upper()}{line[1:]}." for line in _not_checked(self.statements)), *out_of_reach]
        parts = [
            Section("Summary", list(self.lines)),
            Section("What this page rests on", list(map(escaped, self.rests_on))),
            Section("Statements that fail", _failing_parts(self.failing)),
            Section("Statements that hold", _standing_parts(held)),
            Section("Statements that are unresolved" if known else "Other statements", _standing_parts(left)),
            Section("Not checked", list(map(escaped, unchecked))),
        ]
        return [section for section in parts if section.parts]


def review_of_paper(paper: Paper, docs: pathlib.Path = DOCS) -> PaperReview:
    """Gather the records about a paper's statements. Nothing is judged again.

    The package knows which statements fail and what is wrong with them. Verdicts and certificates are read from the
    ledger in the repository.

    **Arguments:**

    - paper: the paper.
    - docs: a folder with ``claims/PAPER.md`` and ``certified/PAPER.json``, which may be missing.

    **Raises:** `ProblemError` if the ledger lacks a statement, or disagrees with the package about which of them
    fail.
    """
    page, found = docs / "claims" / f"{paper.id}.md", recorded(paper, docs)
    text = page.read_text(encoding="utf-8") if page.is_file() else None
    corrections = {one.claim.id: one for one in found if one.claim.form == "corrected"}
    printed = [one for one in found if one.claim.form == "printed"]
    statements = tuple(Statement(one, corrections.get(one.claim.id)) for one in printed)
    outdated = sum(one.outdated for one in printed)
    certified = Record(docs / "certified").path_of(paper.claims[0])
    return PaperReview(paper, statements, tuple(_rests_on(paper, text, page, certified, outdated)))


def _rests_on(
    paper: Paper, text: str | None, page: pathlib.Path, certified: pathlib.Path, outdated: int
) -> Iterator[str]:
    yield "Nothing was judged again for this page. Which statements fail, how, and their corrections come with flowsim."
    if text is None:
        yield (
            "The ledger of verdicts is in the repository, and not in an installed package: a statement that is not "
            "known to fail is listed without a verdict. flowsim check ID judges one, flowsim audit all."
        )
    else:
        yield f"The verdicts are those of the ledger, docs/claims/{page.name}."
        if SOURCES.format(digest=paper_digest(paper.id)) not in text:
            yield f"The ledger is of other sources of this paper: flowsim audit --paper {paper.id} judges anew."
    if certified.is_file():
        yield f"The certificates are those recorded in docs/certified/{certified.name}."
    else:
        yield "No certificate is recorded here: flowsim referee ID and flowsim certify ID make one."
    if outdated:
        yield f"{counted(outdated, 'recorded certificate')} of another form of the statement or the problem left out."


def _counts_line(statements: Iterable[Statement], failing: list[Statement]) -> str:
    weights = collections.Counter(one.fault.weight for one in failing if one.fault is not None)
    said = ", ".join(f"{weights[weight]} {many}" for weight, many in _MANY.items() if weights[weight])
    others = [one for one in statements if one.fault is None]
    settled = sum(one.settled for one in others)
    if any(one.counts is not None for one in others):
        standing = f"{settled} hold on every problem on which they apply"
        standing += f", {len(others) - settled} are unresolved on some" if len(others) > settled else ""
    else:
        standing = f"{len(others)} are not known to fail"
    of_the_text = sum(one.fault.extraction for one in failing if one.fault is not None)
    maybe = f"; for {of_the_text} of them {_OF_THE_TEXT}" if of_the_text else ""
    return f"{standing}; {len(failing)} fail{f': {said}' if said else ''}{maybe}."


def _certificates_line(failing: list[Statement], others: list[Statement]) -> str:
    if not any(one.printed.row is not None for one in (*failing, *others)):
        return "Certificates: none is recorded."
    refuted, proved = (
        sum(one.printed.certified == word for one in group)
        for group, word in ((failing, "refuted"), (others, "proved"))
    )
    tried = sum(one.printed.row is not None for one in others)
    said = f"Certificates refute {refuted} of the {len(failing)} that fail, each on one problem"
    if not tried:
        return f"{said}; no proof of the others was tried."
    return f"{said}, and prove {proved} of the other {len(others)}, each on one problem."


def _not_checked(statements: Iterable[Statement]) -> Iterator[str]:
    yield "the arguments of the proofs, and problems other than those that each claim lists"
    if any(one.counts is None for one in statements):
        yield "whether those that are not known to fail hold, as the ledger is not at hand"
    if places := [one.place for one in statements if one.counts is not None and not one.settled and one.fault is None]:
        yield f"what could not be decided on some problem ({'; '.join(places)})"
    if places := [one.place for one in statements if one.fault is not None and one.fault.extraction]:
        yield f"the printed page of what may be a fault of the extracted text ({'; '.join(dict.fromkeys(places))})"


def _failing_parts(failing: list[Statement]) -> list[str | Table]:
    rows = [
        (
            escaped(one.place),
            latex(one.claim.statement),
            escaped(_what_is_wrong(one)),
            _correction(one),
            escaped(_certificate(one)),
            escaped(f"flowsim referee {one.claim.id}"),
        )
        for one in failing
    ]
    return [Table(tuple(_FAILING), rows, tuple(_FAILING.values()))] if rows else []


def _standing_parts(statements: list[Statement]) -> list[str | Table]:
    rows = [
        (
            escaped(one.place),
            latex(one.claim.statement),
            escaped("-" if one.counts is None else ", ".join(f"{word} ({n})" for word, n in one.counts.items())),
            escaped(_certificate(one)),
            escaped(one.claim.id),
        )
        for one in statements
    ]
    return [Table(tuple(_STANDING), rows, tuple(_STANDING.values()))] if rows else []


def _what_is_wrong(of: Statement) -> str:
    """Say what kind of fault a statement has, and why. The reason is the note on the printed form, or else the note
    on the corrected form.
    """
    if of.fault is None:
        return ""
    notes = [one.claim.note for one in (of.printed, of.corrected) if one is not None]
    kept = (" ".join(one for one in _SENTENCES.split(note) if not one.startswith(_HOW)).strip() for note in notes)
    why = next(filter(None, kept), "")
    maybe = f" ({_OF_THE_TEXT})" if of.fault.extraction else ""
    said = f"{of.fault.weight.in_words}{maybe}"
    said = f"{said[0].upper()}{said[1:]}"
    return f"{said}: {why}" if why else f"{said}."


def _correction(of: Statement) -> str:
    """Return the corrected form in LaTeX, with the number of problems on which it is unresolved."""
    if of.corrected is None:
        return "none is recorded"
    open_on = (of.corrected.counts or {}).get(Judgement.UNRESOLVED, 0)
    maybe = f" (unresolved on {counted(open_on, 'problem')})" if open_on else ""
    return f"{latex(of.corrected.claim.statement)}{maybe}"


def _certificate(of: Statement) -> str:
    row, certified = of.printed.row, of.printed.certified
    if row is None:
        return "none"
    if certified is None:
        reason = str(row["uncertified"])
        return reason if reason.startswith("none") else f"none: {reason}"
    return f"{certified} on: {row['problem']}"
