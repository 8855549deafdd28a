"""Certificates for the claims of an audit: refutations of violated claims, and proofs of claims that hold."""

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator

import jax

from flowsim._core.progress import progress_bar
from flowsim._core.types import Document
from flowsim.claims import Evidence, Judgement
from flowsim.claims.deciding.iterates import DescentEvidence
from flowsim.experiments.audit import Entry, Kept, entry_of, evidence_of
from flowsim.experiments.certification.kept import FIELDS, FLOWS, Certificates, refuse_contradicted
from flowsim.experiments.certification.record import Record, counterexample_of, key_of
from flowsim.losses import MonteCarloLoss
from flowsim.problem import AbstractSpec, spec_of, toml

COUNTEREXAMPLE = "the smallest counterexample found"
_CLAIMS = 64  # after which compiled programs are dropped
_Entries = list[Entry]


def with_certificates(
    entries: Iterable[Entry], record: Record, kept: Kept, certificates: Certificates | None = None
) -> _Entries:
    """The entries of an audit. One entry of each claim gets the result of its certificate, or the reason why there
    is none.

    If a claim is violated on some of its problems, a refutation is tried on each of these until one succeeds. If
    the repository has a smallest counterexample of a printed claim, it becomes an entry and is tried first. If a
    claim is violated on none of its problems, a proof is tried on the problems where the claim holds, and then on
    those where it is unresolved. Each claim has a time limit. Recorded results are used again as long as the
    statement, the problem and the versions of the checkers are the same.

    **Arguments:**

    - entries: the entries, in the order of their claims.
    - record: the record of earlier results, to which new ones are added.
    - kept: finished verdicts.
    - certificates: the folder of certificates. Without it no certificate is tried.

    **Raises:** `ContradictionError` if a certificate shows the opposite of a verdict.
    """
    groups = [list(group) for _, group in itertools.groupby(entries, key=lambda entry: entry.claim)]
    if certificates is not None:
        _try([group for group in groups if _candidates(group)], record, kept, certificates)
    return [entry for group in groups for entry in _recorded(group, record, kept)]


def _try(groups: list[_Entries], record: Record, kept: Kept, certificates: Certificates) -> None:
    """Try certificates for the claims whose recorded result is missing or no longer valid, and record the new
    results.
    """
    # Refutations come first. Claims on the same problem share its flow.
    groups.sort(key=lambda group: (not _violated(group), _candidates(group)[0].problem.to_toml()))
    evidence = functools.lru_cache(FLOWS)(_evidence)
    with progress_bar("certifying", len(groups), unit="claim") as bar:
        for number, group in enumerate(groups, 1):
            row, entries = record.row(group[0].claim), _all_candidates(group, kept)
            if number % _CLAIMS == 0:
                jax.clear_caches()  # the compiled programs of many problems hold gigabytes
            if not any(_is_of(row, entry, certificates.seconds) for entry in entries):
                record.save(group[0].claim, _tried(entries, certificates, evidence))
            bar.update()


def _evidence(spec: AbstractSpec, flows: bool) -> Evidence | DescentEvidence:
    problem = spec.build()
    # Nothing is proved of a sample, whose flow may take long.
    return evidence_of(problem, flows and not isinstance(problem.loss, MonteCarloLoss))


def _violated(group: Iterable[Entry]) -> _Entries:
    return [entry for entry in group if entry.verdict.verdict is Judgement.VIOLATED]


def _candidates(group: _Entries) -> _Entries:
    """The entries of a claim to certify: the violated ones or, if there are none, those that hold, followed by the
    unresolved ones.
    """
    if violated := _violated(group):
        return violated
    order = (Judgement.HOLDS, Judgement.UNRESOLVED)
    return [entry for judgement in order for entry in group if entry.verdict.verdict is judgement]


def _all_candidates(group: _Entries, kept: Kept) -> _Entries:
    """The entries of `_candidates`. For a violated claim, the entry of its smallest counterexample comes first, if
    the repository has a file of it.
    """
    claim, found = group[0].claim, _candidates(group)
    file = counterexample_of(claim) if _violated(group) else None
    if file is None:
        return found
    own = entry_of(claim, COUNTEREXAMPLE, spec_of(toml.parse(file.read_text())), kept)
    return [*_violated([own]), *found]


def _is_of(row: Document | None, entry: Entry, seconds: float = 0.0) -> bool:
    """Whether a recorded row can be used for an entry: it is about the same statement and problem, and has a
    certificate or reports an attempt at the same verdict with at least this many seconds.
    """
    if row is None or row["key"] != key_of(entry.claim, entry.problem):
        return False
    return row["certified"] is not None or (row["verdict"] == entry.verdict.verdict and row["seconds"] >= seconds)


def _tried(
    entries: _Entries,
    certificates: Certificates,
    evidence: Callable[[AbstractSpec, bool], Evidence | DescentEvidence],
) -> Document:
    """Try to certify the entries of a claim, one after the other, within the time limit.

    **Returns:** the row of the first entry for which a certificate is found; otherwise the row of the first entry,
    with the reason why there is none.
    """
    rows, until = [], time.monotonic() + certificates.seconds
    for entry in entries:
        if rows and time.monotonic() > until:
            break
        begin, claim = time.process_time(), entry.claim
        found = certificates.tried(claim, entry.verdict, evidence(entry.problem, claim.along_flow), entry.problem)
        row = {"problem": entry.name, "key": key_of(claim, entry.problem), "verdict": str(entry.verdict.verdict)}
        rows.append(row | found | {"took": round(time.process_time() - begin, 2)})
        if found["certified"]:
            return rows[-1]
    return rows[0]


def _recorded(group: _Entries, record: Record, kept: Kept) -> Iterator[Entry]:
    """The entries of a claim. The entry that the claim's recorded row is about gets the result in the row.

    If the row is about the smallest counterexample, which is not a problem of the claim, an entry for it is added.

    **Raises:** `ContradictionError` if the result is the opposite of the entry's verdict.
    """
    claim, entries = group[0].claim, group
    row = record.row(claim)
    if row is not None and row["problem"] == COUNTEREXAMPLE:
        entries = [*(one for one in _all_candidates(group, kept) if one.name == COUNTEREXAMPLE), *group]
    for entry in entries:
        if row is not None and _is_of(row, entry):
            shown = {name: row[name] for name in FIELDS}
            entry, row = entry._replace(verdict=dataclasses.replace(entry.verdict, **shown)), None
            refuse_contradicted(entry.verdict, record.path_of(claim))
        yield entry
