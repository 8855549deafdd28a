"""The record of certificates for the claims of an audit: a file for each paper, with a row for each claim."""

import hashlib
import json
import pathlib

from flowsim import papers
from flowsim._core.files import DamagedFileError, ignore_damaged, read_document, write_whole
from flowsim._core.types import Document
from flowsim.claims import Claim
from flowsim.claims.proofs import checker, ending, identities
from flowsim.experiments.sources import statement_digest
from flowsim.problem import AbstractSpec

VERSIONS = (checker.VERSION, identities.VERSION, ending.VERSION)
# In the repository. An installed package does not have this folder.
DOCS = pathlib.Path(papers.__file__).parents[2] / "docs"


def counterexample_of(claim: Claim) -> pathlib.Path | None:
    """The file of a printed claim's smallest counterexample in the repository, or None."""
    place = DOCS / "counterexamples" / f"{claim.id}.toml"
    return place if claim.form == "printed" and place.is_file() else None


def key_of(claim: Claim, spec: AbstractSpec) -> str:
    """A digest of what a certificate proves: the statement, the problem, and the versions of the checkers.

    The code that finds certificates is not included, since a proof stays valid however it was found.
    """
    parts = (claim.id, claim.form, statement_digest(claim), spec.content, VERSIONS)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class Record:
    """A folder of files, PAPER.json for each paper. A file has one row for each claim of the paper.

    **Arguments:** folder: the folder, created with the first row; fresh: whether to ignore existing rows.
    """

    def __init__(self, folder: pathlib.Path, *, fresh: bool = False):
        self.folder, self._fresh = folder, fresh
        self._rows: dict[pathlib.Path, Document] = {}

    def path_of(self, claim: Claim) -> pathlib.Path:
        """The file with the rows of a claim's paper."""
        return self.folder / f"{claim.id.partition('.')[0]}.json"

    def row(self, claim: Claim) -> Document | None:
        """The row of a claim, or None."""
        return self._read(self.path_of(claim)).get(_name(claim))

    def forget(self, claim: Claim) -> None:
        """Remove the row of a claim from memory. The file keeps the row until another row of the same paper is
        saved.
        """
        self._read(self.path_of(claim)).pop(_name(claim), None)

    def save(self, claim: Claim, row: Document) -> None:
        """Add the row of a claim, or replace it, and write the file."""
        path = self.path_of(claim)
        rows = self._read(path)
        rows[_name(claim)] = row
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(dict(sorted(rows.items())), indent=1) + "\n"
        write_whole(path, lambda file: file.write(text.encode()))

    def _read(self, path: pathlib.Path) -> Document:
        if path not in self._rows:
            rows: Document = {}
            if not self._fresh:
                try:
                    rows = read_document(path)
                except FileNotFoundError:
                    pass
                except DamagedFileError as error:
                    ignore_damaged(error, "none of its certificates counts")
            self._rows[path] = rows
        return self._rows[path]


def _name(claim: Claim) -> str:
    return f"{claim.id} {claim.form}"
