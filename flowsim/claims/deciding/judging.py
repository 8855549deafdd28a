"""The verdict on a claim, from a trajectory, more accurate repetitions, and bounds from ball arithmetic."""

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from flowsim._core.checks import refuse
from flowsim._core.compiler import forget_programs
from flowsim._core.documents import ForeignFileError
from flowsim._core.progress import progress_bar
from flowsim._core.text import TRACEBACK, in_short, out_of_memory
from flowsim.claims.claim import Claim, Comparison
from flowsim.claims.deciding.between import followed
from flowsim.claims.deciding.descents import found_along
from flowsim.claims.deciding.ending import (
    allows_for_a_while,
    depends_on_the_times,
    is_in_order,
    reads_the_end,
    too_late,
)
from flowsim.claims.deciding.findings import Finding, found, not_solved
from flowsim.claims.deciding.grounding import judgement_at_the_limit
from flowsim.claims.deciding.iterates import DescentEvidence
from flowsim.claims.deciding.sides import not_finite
from flowsim.claims.deciding.verdict import Judgement, Verdict, Verdicts
from flowsim.claims.evidence import Case, Evidence
from flowsim.claims.evidence.comparing import WORST_RESOLUTION, CostlyError, Panel
from flowsim.claims.hypotheses import Hypothesis
from flowsim.flow.trajectory import Status, Trajectory
from flowsim.losses import AbstractPopulationLoss
from flowsim.losses.sampled.monte_carlo import MonteCarloLoss

_DECIDED = Judgement.HOLDS, Judgement.VACUOUS  # by two solves; a violation needs a third
_ALONE = {Judgement.HOLDS: "The conclusion holds nevertheless.", Judgement.VIOLATED: "The conclusion fails here."}
_ALLOWS_TOO_LITTLE = (
    "Its allowance may be smaller than the change from the end of the flow to its limit: take the allowance from "
    "flowsim.limit(flow, f), which bounds this change."
)
_NOT_IN_ORDER = "Its rows are not in the order of the output times: return them in the order of flow.t."
_READS_MORE = "It uses the flow after the start, but nothing was integrated: declare it with along_flow=True."
_DID_NOT_SURVIVE = "A more accurate solve did not confirm the violation. Ask for a smaller rtol."
_IS_NO_LIMIT = (
    "It takes the end of the flow for its limit, and so depends on where the integration stopped: use "
    "flowsim.limit(flow, f) for the limit with a bound, or flow.at(t) for the model at a time."
)


def judge(
    claims: Iterable[Claim],
    loss: AbstractPopulationLoss,
    trajectory: Trajectory,
    *,
    checkpoint: str | os.PathLike | None = None,
    progress: bool = False,
) -> Verdicts:
    """Judge claims along one flow or descent, in order; see `check`.

    **Arguments:**

    - claims: the claims.
    - loss: the loss.
    - trajectory: a flow or a descent of the loss.
    - checkpoint: a folder in which the repetitions of a flow are saved.
    - progress: whether to show a progress bar.
    """
    claims = tuple(claims)
    evidence = evidence_of(loss, trajectory, claims=claims, checkpoint=checkpoint, progress=progress)
    verdicts = Verdicts()
    with progress_bar("judging", len(claims), unit="claim", shown=progress) as bar:
        for claim in claims:
            verdicts.append(judge_on(claim, evidence))
            bar.update()
    return verdicts


def check(claim: Claim, loss: AbstractPopulationLoss, trajectory: Trajectory) -> Verdict:
    """Judge one claim along a flow or a descent.

    The numerical error of a margin is measured by solving the flow again more accurately. Its rounding error is
    bounded in ball arithmetic where the verdict depends on it. "holds" needs margins above the errors everywhere.
    "violated" needs a failure beyond the errors somewhere, which a third, still more accurate solve confirms.
    Otherwise the verdict is "unresolved".

    Along a descent rounding is the only error: its true iterates are enclosed in ball arithmetic where possible.

    **Arguments:** claim; loss; trajectory: a flow or a descent of the loss.

    **Raises:** `ValueError` if the claim compares arrays of shapes that do not match, or if it is about flows and
    the trajectory is a descent, or the other way round.
    """
    return judge_on(claim, evidence_of(loss, trajectory))


def evidence_of(loss: AbstractPopulationLoss, trajectory: Trajectory, **how: Any) -> Evidence | DescentEvidence:
    """The evidence for judging claims along a flow or a descent. ``how`` are further arguments of `Evidence` for a
    flow.
    """
    return Evidence(loss, trajectory, **how) if trajectory.step_size is None else DescentEvidence(loss, trajectory)


def judge_or_note(claim: Claim, evidence: Evidence | DescentEvidence) -> Verdict:
    """Judge one claim on evidence. If an exception is raised in the claim's arithmetic, the verdict is unresolved,
    with the exception in its note.

    **Raises:** `OSError` if the disk fails; `ForeignFileError` on a checkpoint of another run; every exception if
    FLOWSIM_TRACEBACK=1.
    """
    try:
        return judge_on(claim, evidence)
    except (OSError, ForeignFileError):
        raise
    except Exception as error:
        if os.environ.get(TRACEBACK) == "1" and not out_of_memory(error):
            raise
        reason = f"It could not be judged: {in_short(error)}."
        return _verdict(claim, (), Judgement.UNRESOLVED, reason)


@not_finite
def judge_on(claim: Claim, evidence: Evidence | DescentEvidence) -> Verdict:
    """Judge one claim on evidence, which several claims may share.

    **Raises:** `ValueError` if the claim is about flows and the evidence about a descent, or the other way round.
    """
    forget_programs()
    is_descent = isinstance(evidence, DescentEvidence)
    if claim.along_flow and claim.of_descent != is_descent:
        kinds = ("gradient_flow", "gradient_descent")
        expected = f"one of {kinds[claim.of_descent]}, which {claim.id} is about"
        refuse("trajectory", expected, f"it is of {kinds[is_descent]}")
    if is_descent and not claim.along_flow:
        return judge_on(claim, evidence.alone)
    try:
        verdict = _judged_on_descent(claim, evidence) if is_descent else _judged(claim, evidence)
    except CostlyError as error:
        verdict = _unjudged(claim, evidence, str(error))
    if verdict.verdict in (Judgement.VACUOUS, Judgement.NOT_APPLICABLE) or not evidence.samples_matter(claim):
        return verdict
    if (reason := evidence.distrust) is None:
        return verdict
    return dataclasses.replace(verdict, verdict=Judgement.UNRESOLVED, note=f"{verdict.note} {reason}".strip())


def _judged(claim: Claim, evidence: Evidence) -> Verdict:
    loss = evidence.stated
    if foreign := claim.foreign(loss, evidence.trajectory.start):
        return _verdict(claim, (foreign,), Judgement.NOT_APPLICABLE, f"Not met: {foreign.name}.")
    hypotheses = evidence.hypotheses(claim)
    if not claim.along_flow and evidence.trajectory.t.size > 1 and evidence.reads_more_than_the_start(claim):
        # It is judged by what it reads, even if it declares otherwise.
        claim = dataclasses.replace(claim, along_flow=True)
    if reason := _first(_why_not_compared(claim, evidence)):
        return _verdict(claim, hypotheses, Judgement.UNRESOLVED, reason)
    if claim.along_flow and evidence.reference.status is Status.KINK:
        return _judged(claim, evidence.before_kink)
    if claim.along_flow and evidence.cases[0].has_as_many_points(claim):
        # The entries of one point are not times.
        claim = dataclasses.replace(claim, compare=functools.partial(_at_one_point, claim.compare))
    (rough, fine, finest), beneath = followed(claim, evidence)
    finding = found(claim, evidence, rough, fine, beneath)
    verdict = functools.partial(_verdict, claim, hypotheses, constants=rough.panel.constants(claim, loss, rough.padded))
    if otherwise := _with_hypotheses(verdict, hypotheses, finding):
        return otherwise
    if claim.along_flow:
        if reason := _first(_why_otherwise(claim, evidence, fine, finding)):
            return verdict(Judgement.UNRESOLVED, reason, finding)
        if finding.judgement not in _DECIDED:
            if evidence.confirmation.status is Status.KINK:
                return _judged(claim, evidence.before_kink)
            roughly, finding = finding.judgement, found(claim, evidence, fine, finest, beneath)
            if roughly is Judgement.VIOLATED and finding.judgement is not Judgement.VIOLATED:
                return verdict(Judgement.UNRESOLVED, _DID_NOT_SURVIVE, finding)
    return verdict(finding.judgement, "", finding)


def _judged_on_descent(claim: Claim, evidence: DescentEvidence) -> Verdict:
    if foreign := claim.foreign(evidence.stated, evidence.trajectory.start):
        return _verdict(claim, (foreign,), Judgement.NOT_APPLICABLE, f"Not met: {foreign.name}.")
    hypotheses = evidence.hypotheses(claim)
    if reason := evidence.below_minimum:
        return _verdict(claim, hypotheses, Judgement.UNRESOLVED, reason)
    finding = found_along(claim, evidence)
    constants = Panel().constants(claim, evidence.stated, evidence.run)
    verdict = functools.partial(_verdict, claim, hypotheses, constants=constants)
    return _with_hypotheses(verdict, hypotheses, finding) or verdict(finding.judgement, "", finding)


def _with_hypotheses(
    verdict: Callable[..., Verdict], hypotheses: tuple[Hypothesis, ...], finding: Finding
) -> Verdict | None:
    """The verdict if some hypothesis is not met or cannot be evaluated; None if all hypotheses are met.

    **Arguments:**

    - verdict: (judgement, reason, finding) -> the verdict.
    - hypotheses: the hypotheses of the claim.
    - finding: the judgement on the conclusion alone, regardless of the hypotheses.
    """
    if not (unmet := [condition for condition in hypotheses if not condition.met]):
        return None
    names = "; ".join(condition.name for condition in unmet)
    if all(condition.unknown for condition in unmet):
        return verdict(Judgement.UNRESOLVED, f"A side of a hypothesis is not known here: {names}.", finding)
    return verdict(Judgement.NOT_APPLICABLE, f"Not met: {names}. {_ALONE.get(finding.judgement, '')}", finding)


def _unjudged(claim: Claim, evidence: Evidence | DescentEvidence, reason: str) -> Verdict:
    """The verdict on a claim whose sides cannot be compared, for the given reason. Its hypotheses are still
    evaluated.
    """
    hypotheses = evidence.hypotheses(claim)
    unmet = "; ".join(condition.name for condition in hypotheses if not (condition.met or condition.unknown))
    judgement = Judgement.NOT_APPLICABLE if unmet else Judgement.UNRESOLVED
    return _verdict(claim, hypotheses, judgement, f"Not met: {unmet}. {reason}" if unmet else reason)


def _first(reasons: Iterator[str | None]) -> str:
    return next(filter(None, reasons), "")


def _why_not_compared(claim: Claim, evidence: Evidence) -> Iterator[str]:
    """The possible reasons not to compare the sides of a claim, one by one. A reason that does not apply is an
    empty text.
    """
    yield evidence.below_minimum
    if claim.along_flow:
        yield too_late(claim, evidence)
        yield not_solved("The integration", evidence.trajectory)
        if evidence.reference.status is not Status.KINK:
            yield not_solved("A more accurate solve", evidence.reference)
    elif evidence.trajectory.t.size == 1 and evidence.reads_more_than_the_start(claim):
        # What fails at the start is false.
        fails = evidence.reads_the_start_first(claim) and _fails_first(claim, evidence)
        yield "" if fails else _READS_MORE


def _why_otherwise(claim: Claim, evidence: Evidence, fine: Case, finding: Finding) -> Iterator[str | None]:
    """The possible reasons why a finding may be wrong for the true flow, one by one. A reason that does not apply
    is empty.
    """
    yield evidence.diverged
    yield evidence.stepped_over
    yield evidence.not_descending
    yield "" if is_in_order(claim, evidence) else _NOT_IN_ORDER
    yield _depends_on_the_end(claim, evidence, fine, finding)


def _at_one_point(compare: Callable[..., Comparison], *read: object) -> Comparison:
    return jax.tree.map(lambda side: side.reshape(1, -1), compare(*read))


def _fails_first(claim: Claim, evidence: Evidence) -> bool:
    """Whether a claim fails in the first row of its comparison on the start alone."""
    sides = found(claim, evidence, evidence.alone, evidence.alone, 0.0).sides
    return sides is not None and bool(np.any(sides.fails[0]))


def _depends_on_the_end(claim: Claim, evidence: Evidence, case: Case, finding: Finding) -> str:
    """The message for a statement that takes the end of the flow for its limit, and may have another verdict at the
    limit. Empty for other statements.

    The message says whether an allowance for the distance from the end to the limit is missing or too small.
    """
    sides, settled = finding.sides, finding.case or case
    if sides is None or not sides.possible.any():
        return ""
    reads, derived, differs = reads_the_end(claim, evidence, case)
    if not reads:
        return ""
    allows = bool(np.any(sides.allowance[sides.possible] > 0))
    if isinstance(evidence.loss, MonteCarloLoss) and not allows:
        return "" if case.status in (Status.EXCESS, Status.GRAD_NORM) else _IS_NO_LIMIT
    at_the_limit, judged = Judgement.UNRESOLVED, dataclasses.replace(sides, asked=WORST_RESOLUTION).judgement
    if not isinstance(evidence.loss, MonteCarloLoss):
        at_the_limit = judgement_at_the_limit(claim, settled, sides)
    # The balls contain all ends, but only the times of the run.
    if at_the_limit is judged and not differs and not depends_on_the_times(claim, evidence):
        return ""
    if not allows:
        return _IS_NO_LIMIT
    if {at_the_limit, judged} == {Judgement.HOLDS, Judgement.VIOLATED}:
        return _ALLOWS_TOO_LITTLE
    if not (derived or isinstance(evidence.loss, MonteCarloLoss)):
        return _ALLOWS_TOO_LITTLE
    return "" if allows_for_a_while(claim, evidence, settled, sides) else _ALLOWS_TOO_LITTLE


def _verdict(
    claim: Claim,
    hypotheses: tuple[Hypothesis, ...],
    judgement: Judgement,
    reason: str,
    finding: Finding | None = None,
    constants: dict[str, float] | None = None,
) -> Verdict:
    finding = Finding(judgement) if finding is None else finding
    holds = judgement in _DECIDED
    return Verdict(
        id=claim.id,
        source=claim.source,
        form=claim.form,
        statement=claim.statement,
        verdict=judgement,
        margin=finding.margin,
        where=finding.where,
        floor=finding.floor,
        tightness=finding.tightness,
        hypotheses=hypotheses,
        constants=constants or {},
        note=" ".join(part for part in (claim.note, reason, finding.note) if part),
        until=finding.until if holds else None,
        cut=finding.cut and holds,
        clock="k" if claim.of_descent else "t",
    )
