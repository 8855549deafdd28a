"""`flowsim check`, `flowsim certify`, `flowsim verify`: judge a claim, prove it, check the proof."""

import json
import pathlib
import sys
from collections.abc import Sequence

from flowsim._core.checks import refuse
from flowsim._core.files import write_whole
from flowsim._core.text import counted, cut
from flowsim.claims.proofs import OpenError
from flowsim.claims.proofs import check as check_certificate
from flowsim.cli.common import (
    FINISHED,
    UNFINISHED,
    VIOLATED,
    claim_of,
    claims_of,
    exit_status,
    print_json,
    table_of,
    tables_of,
    width,
)
from flowsim.experiments.audit import Entry, judge_all
from flowsim.experiments.certification import certification
from flowsim.experiments.documents import audit_document
from flowsim.problem import spec_of, unnamed
from flowsim.report.documents import WIDTH, summary
from flowsim.report.facts import sharp_constants


def check(identifier: str, *, overrides: Sequence[str], as_json: bool, strict: bool) -> int:
    """Judge a claim, or all its parts, in every form on its problems."""
    chosen = claims_of(identifier)
    entries = list(judge_all(chosen, overrides))
    if not entries:
        refuse("claim id", "that of a claim that lists problems", f"{identifier} has none")
    if as_json:
        print_json(audit_document(entries))
    else:
        stated = (cut(f"{claim.id} [{claim.form}]: {claim.text}", width(WIDTH)) for claim in chosen)
        print(*stated, "", sep="\n")
        print_by_problem(entries)
    return exit_status(strict, [entry.verdict for entry in entries], [entry.status for entry in entries])


def print_by_problem(entries: Sequence[Entry]) -> None:
    """Print the verdicts on each problem, and the number of each kind."""
    for spec in dict.fromkeys(entry.problem for entry in entries):
        verdicts = [entry.verdict for entry in entries if entry.problem == spec]
        print(spec.heading, table_of(verdicts), sep="\n")
        print(*(f"  {label}: {text}" for label, text in sharp_constants(verdicts).items()), "", sep="\n")
    if len(entries) > 1:
        print(f"{counted(len(entries), 'verdict')}: {summary([entry.verdict for entry in entries])}")


def certify(
    identifier: str,
    problem: pathlib.Path | None,
    out: pathlib.Path,
    *,
    overrides: Sequence[str],
    form: str,
    until: float | None,
) -> int:
    """Write a certificate of a claim for a problem, or for the first of the problems of the claim that has one."""
    claim = claim_of(identifier, form)
    named = [tables_of(problem)] if problem else [unnamed(tables) for tables in claim.problems]
    try:
        certificate = certification(claim, [spec_of(tables, overrides) for tables in named], until=until)
    except OpenError as error:
        print(f"flowsim: no certificate: {error}", file=sys.stderr)
        return UNFINISHED
    text = json.dumps(certificate, indent=1).encode()
    write_whole(out, lambda file: file.write(text))
    forever = " for all t" if claim.along_flow else ""
    words = f" until t = {certificate['until']}" if "until" in certificate else forever
    print(f"{claim.id} [{claim.form}]: {certificate['verdict']}{words}\ncertificate: {out}")
    return FINISHED


def verify(path: pathlib.Path) -> int:
    """Check a certificate."""
    try:
        certificate = json.loads(path.read_text(encoding="utf-8"))
        found = check_certificate(certificate)
    except Exception as error:  # a certificate with any fault proves nothing
        print(f"flowsim: {path} is not a proof: {error}", file=sys.stderr)
        return VIOLATED
    statement = certificate["statement"]
    print(f"{statement['id']} [{statement['form']}]: {found}\n{statement['text']}\n{certificate['problem']}")
    return FINISHED
