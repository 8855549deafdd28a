"""`flowsim check`: judge a claim on its problems."""

from collections.abc import Sequence

from flowsim._core.checks import refuse
from flowsim.cli.common import claims_of, exit_status, print_json, table_of
from flowsim.experiments.audit import Entry, judge_all
from flowsim.report.documents import audit_document, summary
from flowsim.report.facts import sharp_constants


def check(identifier: str, *, overrides: Sequence[str], as_json: bool, strict: bool) -> int:
    """Judge a claim, or all its parts, in every form on its problems."""
    entries = list(judge_all(claims_of(identifier), overrides))
    if not entries:
        refuse("claim id", "that of a claim that lists problems", f"{identifier} has none")
    if as_json:
        print_json(audit_document(entries))
    else:
        print_by_problem(entries)
    return exit_status(strict, [entry.verdict for entry in entries], [entry.status for entry in entries])


def print_by_problem(entries: Sequence[Entry]) -> None:
    """Print the verdicts on each problem, and the number of each kind."""
    for spec in dict.fromkeys(entry.problem for entry in entries):
        verdicts = [entry.verdict for entry in entries if entry.problem == spec]
        print(spec.heading, table_of(verdicts), sep="\n")
        print(*(f"  {label}: {text}" for label, text in sharp_constants(verdicts).items()), "", sep="\n")
    if len(entries) > 1:
        print(f"{len(entries)} verdicts: {summary([entry.verdict for entry in entries])}")
