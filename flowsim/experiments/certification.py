"""Certificates of claims for problems. The verdict says whether to prove or to refute, and until which time."""

from collections.abc import Iterable

from flowsim._core.types import Document
from flowsim.claims import Claim, Judgement
from flowsim.claims.deciding.judging import judge_on
from flowsim.claims.proofs import OpenError, certify
from flowsim.experiments.audit.judging import evidence_of
from flowsim.problem import AbstractSpec


def certification(claim: Claim, specs: Iterable[AbstractSpec], *, until: float | None = None) -> Document:
    """A certificate of a claim on the first of its problems for which one is found.

    A claim that is violated is refuted where it fails, and one that holds is proved for all t up to a time, by default
    the end of the flow.

    **Raises:** `OpenError` with the reason on each problem, where no certificate is found.
    """
    reasons = []
    for spec in specs:
        problem = spec.build()
        evidence = evidence_of(problem, claim.along_flow)
        verdict = judge_on(claim, evidence)
        if verdict.verdict in (Judgement.NOT_APPLICABLE, Judgement.VACUOUS):
            reasons.append(f"{spec.heading}: {verdict.verdict}")
            continue
        refutes = verdict.verdict is Judgement.VIOLATED
        t1 = until
        if claim.along_flow and until is None:
            t1 = verdict.where if refutes and isinstance(verdict.where, float) else float(evidence.trajectory.t[-1])
        try:
            return certify(claim, problem.loss, problem.start, t1=t1, refutes=refutes, problem=spec.to_toml())
        except OpenError as error:
            reasons.append(f"{spec.heading}: {error}")
    raise OpenError("; ".join(reasons) or "the claim has no problems: name one")
