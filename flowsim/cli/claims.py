"""`flowsim claims`, `check`, `certify`, `verify`, `cite`: list claims, judge one, prove it, check a proof, cite."""

import dataclasses
import fnmatch
import json
import pathlib
import sys
from collections.abc import Sequence

from flowsim import papers
from flowsim._core import VERSION
from flowsim._core.checks import refuse
from flowsim._core.files import bytes_of, folder_of, refuse_taken, write_whole
from flowsim._core.text import counted, cut, one_line
from flowsim._core.types import Document
from flowsim.claims import Claim, Family, Judgement
from flowsim.claims.proofs import OpenError, ending
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
from flowsim.experiments.sweep.axes import GridAxis
from flowsim.papers.data import bibtex_of
from flowsim.problem import AbstractSpec, spec_of, unnamed
from flowsim.report.documents import WIDTH, summary
from flowsim.report.facts import sharp_constants

_FLOWSIM = f"""@misc{{flowsim,
  author = {{{{The flowsim developers}}}},
  title  = {{flowsim: gradient flow on the population losses of linear transformers}},
  note   = {{Version {VERSION}}},
}}
"""


def claims(pattern: str, *, as_json: bool) -> int:
    """List the claims whose ids match a pattern. If no id matches, the pattern is read as the id of a claim, and
    this claim is listed with its parts.
    """
    chosen = [claim for claim in papers.ALL_CLAIMS if fnmatch.fnmatchcase(claim.id, pattern)] or claims_of(pattern)
    if as_json:
        names = {"id": "id", "source": "source", "form": "form", "statement": "text", "latex": "statement"}
        print_json([{key: getattr(claim, name) for key, name in names.items()} for claim in chosen])
        return FINISHED
    for claim in chosen:
        print(f"{claim.id} [{claim.form}], {claim.source}\n    {claim.text}")
    return FINISHED


def cite(identifiers: Sequence[str]) -> int:
    """Print the BibTeX entries of flowsim and of the papers that state some claims."""
    places: dict[str, dict[str, None]] = {}
    for identifier in identifiers:
        for claim in claims_of(identifier):
            paper, _, place = claim.source.partition(", ")
            if paper not in (known.id for known in papers.PAPERS):
                refuse("claim id", "that of a statement of a paper", f"{identifier} is of no paper")
            places.setdefault(paper, {})[place] = None
    for paper, cited in places.items():
        print(*(rf"% \cite[{{{place}}}]{{{paper}}}" for place in cited), bibtex_of(paper), sep="\n")
    print(_FLOWSIM, end="")
    return FINISHED


def check(
    identifier: str,
    problem: pathlib.Path | None,
    *,
    over: Sequence[str],
    overrides: Sequence[str],
    as_json: bool,
    strict: bool,
) -> int:
    """Judge a claim and all its parts, in every form, and print the verdicts.

    **Arguments:**

    - identifier: the id of a claim or of several parts, or FILE.py:NAME.
    - problem: the problem to judge it on, or None for the problems that the claim lists.
    - over: a field and its values, at most one text. The claim is then judged over the family of these problems.
    - overrides: texts FIELD=VALUE.
    - as_json, strict: see `flowsim.cli.commands.claims.check`.
    """
    chosen = claims_of(identifier)
    if problem is not None:
        chosen = [dataclasses.replace(claim, problems=(tables_of(problem),)) for claim in chosen]
    entries = judge_over(chosen, over, overrides) if over else list(judge_all(chosen, overrides))
    if not entries:
        refuse("claim id", "that of a claim that lists problems", f"{identifier} has none: name a problem, too")
    if as_json:
        print_json(audit_document(entries))
    else:
        stated = (cut(f"{claim.id} [{claim.form}]: {claim.text}", width(WIDTH)) for claim in chosen)
        print(*stated, "", sep="\n")
        print_by_problem(entries, with_notes=bool(over))
    return exit_status(strict, [entry.verdict for entry in entries], [entry.status for entry in entries])


def judge_over(claims: Sequence[Claim], over: Sequence[str], overrides: Sequence[str]) -> list[Entry]:
    """Judge claims over families of problems. Each family is a problem of a claim with one field varied.

    **Arguments:** claims: the claims; over: a single text FIELD=VALUES; overrides: texts FIELD=VALUE for every
    problem.

    **Raises:** `ProblemError` if several fields vary.
    """
    axes = [GridAxis.parse(text) for text in over]
    if len(axes) > 1:
        refuse("--over", "one field that varies", f"there are {len(axes)}")
    families: dict[AbstractSpec, Family] = {}
    entries = []
    for claim in claims:
        for named in claim.problems:
            spec = spec_of(unnamed(named), overrides)
            family = families.setdefault(spec, Family(spec, {axes[0].field: axes[0].values}))
            (verdict,) = family.judge(claim, progress=True)
            entries.append(Entry(claim, str(named.get("name", "")), spec, None, None, verdict))
    return entries


def print_by_problem(entries: Sequence[Entry], *, with_notes: bool = False) -> None:
    """Print the verdicts on each problem as a table, and then how many verdicts there are of each kind.

    **Arguments:** entries: the verdicts; with_notes: whether to print the notes of all verdicts, or only of
    unresolved ones.
    """
    for spec in dict.fromkeys(entry.problem for entry in entries):
        verdicts = [entry.verdict for entry in entries if entry.problem == spec]
        print(spec.heading, table_of(verdicts), sep="\n")
        print(*(f"  {label}: {text}" for label, text in sharp_constants(verdicts).items()), "", sep="\n")
        told = [one for one in verdicts if one.note and (with_notes or one.verdict is Judgement.UNRESOLVED)]
        print(*(f"{verdict.id}: {verdict.note}\n" for verdict in told), sep="\n", end="")
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
    """Write a certificate of a claim to the file ``out``. Without ``problem``, the claim's own problems are tried
    in order until a certificate is found.

    **Returns:** the exit status: 3 if no certificate is found, else 0.
    """
    claim = claim_of(identifier, form)
    named = [tables_of(problem)] if problem else [unnamed(tables) for tables in claim.problems]
    refuse_taken("--out", out)
    with folder_of(out.parent):
        out.parent.mkdir(parents=True, exist_ok=True)
    try:
        certificate = certification(claim, [spec_of(tables, overrides) for tables in named], until=until)
    except OpenError as error:
        why = one_line(", ".join(str(error).splitlines()))
        print(f"flowsim: no certificate: {why}", file=sys.stderr)
        return UNFINISHED
    text = json.dumps(certificate, indent=1).encode()
    write_whole(out, lambda file: file.write(text))
    print(f"{claim.id} [{claim.form}]: {certificate['verdict']}{_when(certificate, claim)}\ncertificate: {out}")
    return FINISHED


def _when(certificate: Document, claim: Claim) -> str:
    if "until" in certificate:
        return f" until t = {certificate['until']}"
    if certificate.get("about") == ending.LIMIT or (certificate["verdict"] == "refuted" and "end" in certificate):
        return " in the limit"
    return " for all t" if claim.along_flow else ""


def verify(path: pathlib.Path) -> int:
    """Check the certificate in a file, and print what it proves.

    **Returns:** the exit status: 1 if the file does not contain a proof, else 0.
    """
    try:
        certificate = json.loads(bytes_of(path))
        found = check_certificate(certificate)
    except Exception as error:  # a certificate with any fault proves nothing
        print(f"flowsim: {path} is not a proof: {error}", file=sys.stderr)
        return VIOLATED
    statement = certificate["statement"]
    print(f"{statement['id']} [{statement['form']}]: {found}\n{statement['text']}\n{certificate['problem']}")
    return FINISHED
