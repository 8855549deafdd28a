"""Attempts to certify a verdict. Certificates that confirm the verdict are tried first, then certificates of its
opposite.
"""

import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from flowsim._core.text import TRACEBACK, in_short, one_line
from flowsim._core.types import Document
from flowsim.claims import Claim, Comparison, Evidence, Judgement, Verdict
from flowsim.claims.deciding.iterates import DescentEvidence
from flowsim.claims.deciding.judging import judge_on
from flowsim.claims.proofs import FollowedFlow, OpenError, certify, ending
from flowsim.claims.proofs.writer import is_rounded
from flowsim.experiments.audit.judging import evidence_of
from flowsim.experiments.certification.clock import TimeUpError, within
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import AbstractPopulationLoss, MonteCarloLoss
from flowsim.problem import AbstractSpec

_FOREVER = 1 / 3  # of the time limit, for a proof for all t
_FIRST = 2 / 3  # of the remaining time, for a proof until the end of the flow
_SHORTER = 0.1  # of the end time of the flow: a proof until then is tried next
_CLEAR = 1e-3  # of the worst margin: a failure that is clear
_ROUNDING = 1e-12  # relative to the sides, in addition to the floor of the verdict
_OF_SAMPLES = "nothing is proved of a sample"
_OF_FLOWS = "certificates are of flows, and this is gradient descent"


class _Attempt(NamedTuple):
    """A certificate to try: a proof up to the time t1, or a refutation at t1.

    **Fields:**

    - refutes: whether it is a refutation.
    - t1: the time; infinite for a proof for all t.
    - beyond: the fraction of the size of the sides by which a refutation must show the statement to fail.
    - share: the fraction of the remaining seconds that the attempt may use.
    """

    refutes: bool
    t1: float | None
    beyond: float = 0.0
    share: float = 1.0


def certified(
    claim: Claim,
    verdict: Verdict,
    evidence: Evidence | DescentEvidence,
    followed: Callable[[], FollowedFlow],
    *,
    seconds: float,
    problem: str = "",
) -> tuple[Verdict, Document | None]:
    """Try to confirm a verdict by a certificate.

    For a claim that holds, a proof is tried for all t, then until the end of the flow, then until a tenth of that
    time. For a claim that is violated, a refutation is tried at the points where it fails. If these attempts fail,
    a certificate of the opposite is tried. If it is found, `Verdict.contradicted` is true. For an unresolved claim
    the proofs are tried first, then a refutation.

    **Arguments:**

    - claim, verdict, evidence: the claim, its verdict, and the evidence for the verdict.
    - followed: returns the enclosure of the flow in balls, which several claims share. An exception that it raises
      is recorded as the reason why there is no certificate.
    - seconds: the time limit for all attempts together.
    - problem: the text of the problem, which the certificate contains.

    **Returns:** the verdict with the outcome added, and the certificate, or None if no attempt succeeded.
    """
    why, deadline, reasons = _nothing_to_show(claim, verdict, evidence), time.monotonic() + seconds, []
    if why or isinstance(evidence, DescentEvidence):
        return dataclasses.replace(verdict, uncertified=why), None
    loss, start = evidence.loss, evidence.trajectory.start
    if not claim.along_flow and evidence.trajectory.t.size > 1 and evidence.reads_more_than_the_start(claim):
        claim = dataclasses.replace(claim, along_flow=True)  # as it was judged
    for attempt in _attempts(claim, verdict, evidence):
        meant = _as_promised(claim) if attempt.refutes else claim
        tried = _weakened(meant, attempt.beyond) if attempt.beyond else meant
        try:
            with within(attempt.share * (deadline - time.monotonic())):
                flow = followed() if claim.along_flow else None
                how = {"t1": attempt.t1, "refutes": attempt.refutes, "problem": problem, "followed": flow}
                found = certify(tried, loss, start, **how)
                if attempt.beyond:
                    found = certify(meant, loss, start, **how)
            if verdict.verdict is Judgement.UNRESOLVED and _has_rounded_numbers(found):
                raise OpenError("the sides are too near to each other for constants that are rounded to float64")
        except TimeUpError:
            reason = f"none was found within {seconds:g} s"
        except Exception as error:
            if os.environ.get(TRACEBACK) == "1" and not isinstance(error, OpenError | ValueError):
                raise
            reason = str(error) if isinstance(error, OpenError | ValueError) else in_short(error)
        else:
            until = attempt.t1 if "until" in found else math.inf
            of_a_time = claim.along_flow and not attempt.refutes and found.get("about") != ending.LIMIT
            until = until if of_a_time else None
            return dataclasses.replace(verdict, certified=found["verdict"], proved_until=until), found
        if attempt.t1 != math.inf:
            reasons.append(reason)
    return dataclasses.replace(verdict, uncertified=one_line(reasons[0])), None


def certification(claim: Claim, specs: Iterable[AbstractSpec], *, until: float | None = None) -> Document:
    """Find a certificate of a claim. Problems are tried in order until one gives a certificate.

    A claim that is violated is refuted at a time where it fails. Any other claim is proved for all t up to a time.

    **Arguments:**

    - claim: the claim.
    - specs: the problems to try, in order.
    - until: the time up to which the claim is proved, default the end of the flow. A refutation is tried at this
      time, too.

    **Raises:** `OpenError` if no certificate is found, with the reason for each problem.
    """
    reasons = []
    for spec in specs:
        problem = spec.build()
        if isinstance(problem.loss, MonteCarloLoss):
            reasons.append(f"{spec.heading}: {_OF_SAMPLES}")
            continue
        evidence = evidence_of(problem, claim.along_flow)
        if isinstance(evidence, DescentEvidence):
            reasons.append(f"{spec.heading}: {_OF_FLOWS}")
            continue
        verdict = judge_on(claim, evidence)
        if verdict.verdict in (Judgement.NOT_APPLICABLE, Judgement.VACUOUS):
            reasons.append(f"{spec.heading}: {verdict.verdict}")
            continue
        attempts = _attempts(claim, verdict, evidence)
        attempt = next(each for each in attempts if each.t1 != math.inf)
        t1, meant = attempt.t1 if until is None else until, _as_promised(claim) if attempt.refutes else claim
        how = {"t1": t1, "refutes": attempt.refutes, "problem": spec.to_toml()}
        try:
            if claim.along_flow:
                how["followed"] = FollowedFlow(problem.loss, problem.start, spec.start_from_tables)
            return certify(meant, problem.loss, problem.start, **how)
        except OpenError as error:
            reasons.append(f"{spec.heading}: {error}")
    raise OpenError("; ".join(reasons) or "the claim has no problems: name one")


def _nothing_to_show(claim: Claim, verdict: Verdict, evidence: Evidence | DescentEvidence) -> str:
    """The reason why no certificate is tried for a verdict; empty if certificates are tried."""
    if verdict.verdict in (Judgement.NOT_APPLICABLE, Judgement.VACUOUS):
        return f"it is {verdict.verdict.replace('-', ' ')} here"
    if isinstance(evidence.loss, MonteCarloLoss):
        return _OF_SAMPLES
    if isinstance(evidence, DescentEvidence):
        return _OF_FLOWS
    if claim.along_flow and evidence.late:
        return "the flow is followed from near a saddle on"
    return ""


def _attempts(claim: Claim, verdict: Verdict, evidence: Evidence) -> Iterator[_Attempt]:
    """The certificates to try for a verdict, in order."""
    end = float(evidence.trajectory.t[-1]) or 1.0  # of a flow at rest
    fails = end if not claim.along_flow or not isinstance(verdict.where, float) else verdict.where
    if verdict.verdict is Judgement.VIOLATED:
        if claim.along_flow and (first := _first_failure(claim, evidence)) < fails:
            yield _Attempt(True, first, share=_FIRST)
        yield _Attempt(True, fails)
        yield _Attempt(False, fails or end)
        return
    if claim.along_flow:
        yield _Attempt(False, math.inf, share=_FOREVER)
    yield _Attempt(False, end, share=_FIRST if claim.along_flow else 1.0)
    if claim.along_flow:
        yield _Attempt(False, _SHORTER * end)
    if verdict.verdict is Judgement.UNRESOLVED:
        yield _Attempt(True, fails)
    elif verdict.floor is not None:
        # A difference of less than the floor contradicts nothing: constants that float64 rounds may be all of it.
        yield _Attempt(True, fails, 2 * verdict.floor + _ROUNDING)


def _first_failure(claim: Claim, evidence: Evidence) -> float:
    """The first output time at which a claim clearly fails: its margin is negative, and its size at least a
    thousandth of that of the worst margin. Infinity if no margin is negative.

    An early time is best for a refutation, since the flow has to be enclosed up to it.
    """
    case = evidence.cases[0]
    ours, t = case.panel.compared(claim, evidence.stated, case.padded), np.asarray(evidence.trajectory.t)
    if len(ours.slack) < t.size:
        return math.inf
    rows = np.where(ours.promised, ours.margin, np.inf)[: t.size].reshape(t.size, -1)
    margins = np.min(np.where(np.isfinite(rows), rows, np.inf), axis=1)
    worst = np.min(margins)
    return float(t[np.argmax(margins <= _CLEAR * worst)]) if worst < 0 else math.inf


def _as_promised(claim: Claim) -> Claim:
    """A claim that agrees with the given claim wherever the given claim makes a statement. Elsewhere the sides of
    the new claim are equal, so that it does not fail there.
    """

    def compare(loss: AbstractPopulationLoss, flow: Trajectory) -> Comparison:
        ours = claim.compare(loss, flow)
        value, slack = jnp.where(ours.promised, ours.value, ours.bound), jnp.where(ours.promised, ours.slack, 0.0)
        return dataclasses.replace(ours, value=value, slack=slack, promised=jnp.ones_like(ours.promised))

    return dataclasses.replace(claim, compare=compare)


def _weakened(claim: Claim, beyond: float) -> Claim:
    """A weaker claim, which allows the given claim to fail by the fraction ``beyond`` of the size of its sides."""

    def compare(loss: AbstractPopulationLoss, flow: Trajectory) -> Comparison:
        ours = claim.compare(loss, flow)
        slack = ours.slack + beyond * (jnp.abs(ours.size) + ours.scale)
        return dataclasses.replace(ours, slack=slack, identity=jnp.zeros_like(ours.identity))

    return dataclasses.replace(claim, compare=compare)


def _has_rounded_numbers(certificate: Document) -> bool:
    """Whether a number in the sides of a certificate has so many digits that float64 must have rounded it."""
    named = ("number", "near")
    texts = (text for name, _, given in certificate["sides"]["operations"] if name in named for text in given)
    return any(map(is_rounded, texts))
