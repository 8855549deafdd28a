"""Reads the records about each form of a paper's statements, from the ledger, the certificates and the package."""

import dataclasses
import pathlib
from collections.abc import Mapping

from flowsim._core.checks import refuse
from flowsim._core.types import Document
from flowsim.claims import Claim, Judgement
from flowsim.experiments.certification import DOCS, Record, counterexample_of, key_of
from flowsim.papers.data import Fault, faults_of
from flowsim.papers.paper import Paper
from flowsim.problem import spec_of, toml, unnamed
from flowsim.report.ledger import counts_in

Counts = Mapping[Judgement, int]


@dataclasses.dataclass(frozen=True)
class Recorded:
    """The records about one form of a statement.

    **Fields:**

    - claim: the statement in this form.
    - fault: what is wrong with the statement; None for a corrected form, or if the printed form is not known to
      fail.
    - counts: on how many of its problems each verdict was given; None if the ledger is missing.
    - row: the record of its certificate: the result, or why there is none; None if no valid record exists.
    - outdated: whether a record was ignored, since the statement or the problem has changed.
    """

    claim: Claim
    fault: Fault | None
    counts: Counts | None
    row: Document | None
    outdated: bool

    @property
    def certified(self) -> str | None:
        """What a certificate shows, "proved" or "refuted"; None if no valid certificate shows either."""
        return None if self.row is None else self.row["certified"]


def recorded(paper: Paper, docs: pathlib.Path = DOCS) -> list[Recorded]:
    """Gather the records about all forms of a paper's statements, in the order of the paper. Nothing is judged
    again.

    **Arguments:**

    - paper: the paper.
    - docs: a folder with ``claims/PAPER.md`` and ``certified/PAPER.json``, which may be missing.

    **Raises:** `ProblemError` if the ledger lacks a statement, or disagrees with the package about which of them
    fail.
    """
    page, record = docs / "claims" / f"{paper.id}.md", Record(docs / "certified")
    counts = counts_in(page.read_text(encoding="utf-8")) if page.is_file() else None
    faults, found = faults_of(paper.id), []
    for claim in paper.claims:
        own = None if counts is None else counts.get((claim.id, claim.form))
        if counts is not None and not own:
            _contradicted(page, f"it has no verdict on {claim.id}, {claim.form}")
        fault = faults.get(claim.id) if claim.form == "printed" else None
        if claim.form == "printed" and own is not None and (Judgement.VIOLATED in own) != (fault is not None):
            came = "is violated there, and is not" if fault is None else "is not violated there, and is"
            _contradicted(page, f"{claim.id} {came} among its statements that fail")
        row = record.row(claim)
        outdated = row is not None and row["key"] not in _keys(claim)
        found.append(Recorded(claim, fault, own, None if outdated else row, outdated))
    return found


def _contradicted(page: pathlib.Path, came: str) -> None:
    refuse(str(page), "the ledger of this version of flowsim", came)


def _keys(claim: Claim) -> set[str]:
    """Return the keys of all certificates that are valid for a claim: on its problems, and on its smallest
    counterexample.
    """
    tables = [unnamed(named) for named in claim.problems]
    if (file := counterexample_of(claim)) is not None:
        tables.append(toml.parse(file.read_text(encoding="utf-8")))
    return {key_of(claim, spec_of(one)) for one in tables}
