"""The contents of verdicts.json, for a run and for an audit."""

from collections.abc import Iterable, Mapping

from flowsim._core.documents import plain, versions
from flowsim._core.types import Document
from flowsim.claims.deciding.verdict import Judgement, Verdict
from flowsim.experiments.audit import Entry
from flowsim.flow.trajectory import Certificates, Status
from flowsim.papers.data import fault_of
from flowsim.problem import AbstractSpec

NOT_INTEGRATED = "not-integrated"


def verdicts_document(
    problem: AbstractSpec,
    status: Status | None,
    certificates: Certificates | Mapping[str, object] | None,
    constants: Mapping[str, object],
    limits: Mapping[str, object],
    verdicts: Iterable[Verdict],
) -> Document:
    """The contents of verdicts.json for one problem.

    **Arguments:**

    - problem: the problem.
    - status: how the integration ended; None if nothing was integrated.
    - certificates: the certificates of the flow's accuracy, or None.
    - constants, limits: the constants and limits of the papers for this problem, by name.
    - verdicts: the verdicts.
    """
    return plain(
        {
            "problem": problem,
            "status": status or NOT_INTEGRATED,
            "certificates": certificates or {},
            "versions": versions(),
            "constants": constants,
            "limits": limits,
            "claims": [_claim(verdict) for verdict in verdicts],
        }
    )


def audit_document(entries: Iterable[Entry]) -> Document:
    """The contents of verdicts.json for an audit: one entry for each claim, form and problem. Each entry contains
    its problem.
    """
    claims = [
        {
            "problem": entry.problem,
            "status": entry.status or NOT_INTEGRATED,
            "certificates": entry.certificates or {},
            **_claim(entry.verdict),
        }
        for entry in entries
    ]
    return plain({"versions": versions(), "claims": claims})


def _claim(verdict: Verdict) -> Document:
    names = ("id", "source", "form", "verdict", "until", "margin", "where", "floor", "tightness", "hypotheses", "note")
    found: Document = {name: getattr(verdict, name) for name in names}
    if verdict.verdict is Judgement.VIOLATED:
        fault = fault_of(verdict)
        found |= {"weight": fault and fault.weight, "rests": fault.rests if fault else ()}
        found |= {"extraction": bool(fault and fault.extraction)}
    if verdict.certified or verdict.uncertified:
        found |= {name: getattr(verdict, name) for name in ("certified", "proved_until", "uncertified")}
    return found
