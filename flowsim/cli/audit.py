"""`flowsim audit`: judge every claim on its problems."""

import functools
import pathlib
from collections import Counter
from collections.abc import Sequence
from typing import IO

from flowsim import papers
from flowsim._core import checks
from flowsim._core.checks import refuse
from flowsim._core.documents import write_json
from flowsim._core.files import folder_of, remove_parts_of_the_dead, write_whole
from flowsim.claims import Claim
from flowsim.cli.claims import print_by_problem
from flowsim.cli.common import exit_status, part_of, print_json, seconds_of
from flowsim.experiments.audit import Kept, judge_all
from flowsim.experiments.certification import Certificates, Record, with_certificates
from flowsim.experiments.documents import audit_document
from flowsim.experiments.executors import executor_of
from flowsim.experiments.run import CERTIFICATES
from flowsim.problem import ProblemError
from flowsim.problem.own.files import own_objects
from flowsim.report.ledger import ledger


def audit(
    out: pathlib.Path | None,
    *,
    paper: str | None,
    overrides: Sequence[str],
    as_json: bool,
    strict: bool,
    fresh: bool,
    certify: str | None,
    jobs: int,
    scheduler: str | None,
    shard: str | None,
) -> int:
    """Judge all claims, or those of one paper or Python file, on the problems that they list.

    Problems to which the overrides do not apply are skipped. If ``out`` is given, the verdicts and the ledger are
    written there, and finished verdicts there are used again unless ``fresh`` is set.

    **Arguments:**

    - paper: the id of a paper, FILE.py, or None for all claims.
    - certify: the time limit for each certificate, such as "90s"; None without certificates.

    The other arguments are those of `flowsim.cli.commands.claims.audit`.

    **Returns:** the exit status.
    """
    seconds = None if certify is None else seconds_of("--certify-budget", certify)
    if seconds is not None and out is None:
        refuse("--out", "a folder, which keeps the certificates, with --certify", "it is missing")
    chosen, part = _claims_of(paper), part_of(shard, out)
    own = paper if paper and paper.endswith(".py") else None
    if out is not None:
        with folder_of(out):
            out.mkdir(parents=True, exist_ok=True)
            for folder in (out, out / "units", out / "certified"):
                remove_parts_of_the_dead(folder)
    skipped: list[str] = []
    kept = Kept(None if out is None else out / "units", fresh=fresh)
    with executor_of(jobs, scheduler) as executor:
        entries = judge_all(
            chosen, overrides, skipped if overrides else None, kept=kept, executor=executor, shard=part, own=own
        )
    if not entries and not skipped and part == (1, 1):
        refuse("--paper", "a file with claims that list problems", f"{paper} has none")
    if not entries and skipped:
        raise ProblemError(f"--set must be something that applies to a problem, but {skipped[0]}")
    cases = sum(len(claim.problems) for claim in chosen) - len(skipped)
    if len(entries) < cases:
        line = f"{len(entries)} of {cases} verdicts are finished: when all are, run the command without --shard"
        print_json({"verdicts": len(entries), "of": cases}) if as_json else print(line)
        return exit_status(False, [])
    if out is not None:
        certificates = None if seconds is None else Certificates(out / CERTIFICATES, seconds)
        record = Record(out / "certified", fresh=fresh and certificates is not None)
        entries = with_certificates(entries, record, kept, certificates)
    document = audit_document(entries)
    if out is not None:
        write_json(out / "verdicts.json", document)
        for name, page in ledger(entries, file=own).items():
            (out / name).parent.mkdir(exist_ok=True)
            write_whole(out / name, functools.partial(_write, page))
    if as_json:
        print_json(document)
    else:
        print_by_problem(entries)
    if skipped and not as_json:
        print(f"Not judged, as the overrides do not apply to the problem: {len(skipped)}")
        print(*(f"  {count}: {reason}" for reason, count in Counter(skipped).most_common()), sep="\n")
    return exit_status(strict, [entry.verdict for entry in entries], [entry.status for entry in entries])


def _write(page: str, file: IO[bytes]) -> None:
    file.write(page.encode())


def _claims_of(paper: str | None) -> list[Claim]:
    """Return all claims, or those of one paper or Python file.

    **Raises:** `ProblemError` if the paper is unknown.
    """
    if paper is not None and paper.endswith(".py"):
        return own_objects(paper, Claim)
    known = [found.id for found in papers.PAPERS]
    if paper is not None and paper not in known:
        expected = f"one of {', '.join(sorted(known))}, or FILE.py for claims of your own"
        refuse("--paper", expected, f'it is "{paper}"{checks.nearest(paper, known)}')
    return [claim for claim in papers.ALL_CLAIMS if paper in (None, claim.id.partition(".")[0])]
