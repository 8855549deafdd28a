"""Certificates for an audit: the printed statements that it calls violated are to be refuted."""

import itertools
import pathlib
from collections.abc import Iterable, Iterator

from flowsim import papers
from flowsim._core.progress import progress_bar
from flowsim.claims import Claim, Judgement
from flowsim.experiments.audit import Entry, Kept, entry_of, evidence_of
from flowsim.experiments.certification.kept import Certificates
from flowsim.problem import spec_of, toml

_COUNTEREXAMPLE = "the smallest counterexample found"
_FOLDER = pathlib.Path(papers.__file__).parents[2] / "docs" / "counterexamples"


def counterexample_of(claim: Claim) -> pathlib.Path | None:
    """The file of a printed claim's smallest counterexample in the repository, or None."""
    place = _FOLDER / f"{claim.id}.toml"
    return place if claim.form == "printed" and place.is_file() else None


def refuted(entries: Iterable[Entry], certificates: Certificates, kept: Kept) -> list[Entry]:
    """The entries of an audit, with what certificates show of the printed claims that are violated.

    A certificate of such a claim is tried on its smallest counterexample, if there is a file of it, which becomes an
    entry, and then on the problems on which it is violated, until there is one.

    **Arguments:** entries, in the order of their claims; certificates: where these are kept; kept: finished verdicts.

    **Raises:** `ContradictionError`
    """
    groups = [list(group) for _, group in itertools.groupby(entries, key=lambda entry: entry.claim)]
    count = sum(map(_is_tried, groups))
    with progress_bar("certifying", count, unit="claim") as bar:
        for group in groups:
            if _is_tried(group):
                group[:] = _certified(group, certificates, kept)
                bar.update()
    return [entry for group in groups for entry in group]


def _is_tried(group: list[Entry]) -> bool:
    return group[0].claim.form == "printed" and any(map(_is_violated, group))


def _is_violated(entry: Entry) -> bool:
    return entry.verdict.verdict is Judgement.VIOLATED


def _certified(group: list[Entry], certificates: Certificates, kept: Kept) -> Iterator[Entry]:
    """The entries of one claim."""
    claim, found = group[0].claim, False
    file = counterexample_of(claim)
    own = [] if file is None else [entry_of(claim, _COUNTEREXAMPLE, spec_of(toml.parse(file.read_text())), kept)]
    for entry in [*own, *group]:
        if _is_violated(entry) and not found:
            evidence = evidence_of(entry.problem.build(), claim.along_flow)
            verdict = certificates.certified(claim, entry.verdict, evidence, entry.problem)
            entry, found = entry._replace(verdict=verdict), verdict.certified is not None
        if entry.name != _COUNTEREXAMPLE or entry.verdict.certified:
            yield entry
