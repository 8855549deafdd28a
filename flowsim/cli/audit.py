"""`flowsim audit`: judge every claim on its own problems."""

import pathlib
from collections import Counter
from collections.abc import Sequence

from flowsim import papers
from flowsim._core import checks
from flowsim._core.checks import refuse
from flowsim._core.documents import write_json
from flowsim._core.files import write_whole
from flowsim.claims import Claim
from flowsim.cli.check import print_by_problem
from flowsim.cli.common import exit_status, folder_of
from flowsim.experiments.audit import judge_all
from flowsim.problem import ProblemError
from flowsim.problem.user_problem import own_objects
from flowsim.report.documents import audit_document
from flowsim.report.ledger import ledger


def audit(out: pathlib.Path | None, *, paper: str | None, overrides: Sequence[str], strict: bool) -> int:
    """Judge every claim, or those of a paper or Python file, on those of its problems to which the overrides apply."""
    chosen = _claims_of(paper)
    if out is not None:
        with folder_of(out):
            out.mkdir(parents=True, exist_ok=True)
    skipped: list[str] = []
    entries = list(judge_all(chosen, overrides, skipped if overrides else None))
    if not entries and not skipped:
        refuse("--paper", "a file with claims that have problems of their own", f"{paper} has none")
    if not entries:
        raise ProblemError(f"--set must be something that applies to a problem, but {skipped[0]}")
    if out is not None:
        write_json(out / "verdicts.json", audit_document(entries))
        page = ledger(entries, file=paper if paper and paper.endswith(".py") else None)
        write_whole(out / "claims.md", lambda file: file.write(page.encode()))
    print_by_problem(entries)
    if skipped:
        print(f"Not judged, as the overrides do not apply to the problem: {len(skipped)}")
        print(*(f"  {count}: {reason}" for reason, count in Counter(skipped).most_common()), sep="\n")
    return exit_status(strict, [entry.verdict for entry in entries], [entry.status for entry in entries])


def _claims_of(paper: str | None) -> list[Claim]:
    """All claims, or those of one paper or Python file."""
    if paper is not None and paper.endswith(".py"):
        return own_objects(paper, Claim)
    known = [found.id for found in papers.PAPERS]
    if paper is not None and paper not in known:
        expected = f"one of {', '.join(sorted(known))}, or FILE.py for claims of your own"
        refuse("--paper", expected, f'it is "{paper}"{checks.nearest(paper, known)}')
    return [claim for claim in papers.ALL_CLAIMS if paper in (None, claim.id.partition(".")[0])]
