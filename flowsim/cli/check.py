"""`flowsim check`: judge a claim on its own problems."""

import json
from collections.abc import Sequence

from flowsim._core.checks import refuse
from flowsim.cli.common import claims_of, exit_status
from flowsim.experiments.audit import Entry, judge_all
from flowsim.report.documents import audit_document, verdict_table
from flowsim.report.facts import sharp_constants


def check(identifier: str, *, overrides: Sequence[str], as_json: bool, strict: bool) -> int:
    """Judge a claim, or all its parts, in every form on its own problems."""
    entries = list(judge_all(claims_of(identifier), overrides))
    if not entries:
        refuse("claim id", "that of a claim with problems of its own", f"{identifier} has none")
    if as_json:
        print(json.dumps(audit_document(entries), indent=1))
    else:
        print_by_problem(entries)
    return exit_status(strict, [entry.verdict for entry in entries], [entry.status for entry in entries])


def print_by_problem(entries: Sequence[Entry]) -> None:
    """The verdicts on each problem, under the problem."""
    for spec in dict.fromkeys(entry.problem for entry in entries):
        verdicts = [entry.verdict for entry in entries if entry.problem == spec]
        print(spec.heading, verdict_table(verdicts), sep="\n")
        print(*(f"  {label}: {text}" for label, text in sharp_constants(verdicts).items()), "", sep="\n")
