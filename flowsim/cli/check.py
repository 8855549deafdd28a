"""`flowsim check`: judge a claim on its own problems."""

import json
from collections.abc import Sequence

from flowsim import papers
from flowsim.claims import find_claims
from flowsim.cli.common import exit_status
from flowsim.experiments.audit import Entry, judge_all
from flowsim.problem import ProblemError, ProblemSpec, toml
from flowsim.problem.model_table import ModelTable
from flowsim.report.documents import audit_document, verdict_table
from flowsim.report.facts import sharp_constants


def check(identifier: str, *, overrides: Sequence[str], as_json: bool, strict: bool) -> int:
    """Judge a claim, or all its parts, in every form on its own problems."""
    try:
        chosen = find_claims(papers.ALL_CLAIMS, identifier)
    except ValueError as error:
        raise ProblemError(str(error)) from None
    entries = list(judge_all(chosen, overrides))
    if as_json:
        print(json.dumps(audit_document(entries), indent=1))
    else:
        print_by_problem(entries)
    return exit_status(strict, [entry.verdict for entry in entries], [entry.status for entry in entries])


def print_by_problem(entries: Sequence[Entry]) -> None:
    """The verdicts on each problem, under the problem."""
    for spec in dict.fromkeys(entry.problem for entry in entries):
        verdicts = [entry.verdict for entry in entries if entry.problem == spec]
        print(_heading(spec), verdict_table(verdicts), sep="\n")
        print(*(f"  {label}: {text}" for label, text in sharp_constants(verdicts).items()), "", sep="\n")


def _heading(spec: ProblemSpec) -> str:
    """A problem in a few lines: its task, its model where that is not the default, and its start."""
    tables = ("task", "init") if spec.model == ModelTable() else ("task", "model", "init")
    return "\n".join(f"[{name}] {toml.write_inline(getattr(spec, name))}" for name in tables)
