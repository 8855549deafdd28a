"""Judging: a claim against a trajectory, its more accurate repetitions, and the rounding of its own arithmetic."""

import dataclasses
import functools
import os
from collections.abc import Iterable

import equinox as eqx
import jax
import numpy as np

from flowsim.analysis.base import Claim, Comparison, Judgement, Relation, Verdict
from flowsim.analysis.evidence import ROUNDING, Case, Evidence
from flowsim.losses import AbstractPopulationLoss
from flowsim.losses.confidence import student_quantile
from flowsim.trajectory import Settings, Trajectory

_LADDER_SAFETY = 4.0
_ROUNDING_SAFETY = 8.0
_WORST_RESOLUTION = 1e-3  # an identity known no better than this is not judged
_WORST_ENERGY_DEFECT = 1e-3
_CONFIDENCE = 0.99  # of all points of a statement together


def judge(
    claims: Iterable[Claim],
    loss: AbstractPopulationLoss,
    trajectory: Trajectory,
    *,
    checkpoint: str | os.PathLike | None = None,
    progress: bool = False,
) -> list[Verdict]:
    """Judge claims along one flow, in order; see `check`."""
    evidence = Evidence(loss, trajectory, checkpoint=checkpoint, progress=progress)
    return [judge_on(claim, evidence) for claim in claims]


def check(claim: Claim, loss: AbstractPopulationLoss, trajectory: Trajectory) -> Verdict:
    """Judge one claim along a flow.

    The numerical error of a margin is measured, not assumed: by solving the flow again more accurately, and by moving
    every weight by a few units in the last place. "holds" and "violated" need room beyond that error everywhere and
    somewhere; "violated" also survives a third, still more accurate solve. Everything else is "unresolved".

    **Arguments:** claim; loss, trajectory: of one flow.
    """
    return judge_on(claim, Evidence(loss, trajectory))


def judge_on(claim: Claim, evidence: Evidence) -> Verdict:
    """Judge one claim on evidence that several claims may share."""
    verdict = _judged(claim, evidence)
    if verdict.verdict in (Judgement.VACUOUS, Judgement.NOT_APPLICABLE) or not evidence.samples_matter(claim):
        return verdict
    reason = evidence.distrust
    if reason is None:
        return verdict
    return dataclasses.replace(verdict, verdict=Judgement.UNRESOLVED, note=f"{verdict.note} {reason}".strip())


def _judged(claim: Claim, evidence: Evidence) -> Verdict:
    loss, run = evidence.stated, evidence.trajectory
    if foreign := claim.foreign(loss, run.start):
        return _verdict(claim, (foreign,), Judgement.NOT_APPLICABLE, None, {}, f"Not met: {foreign.name}.")
    hypotheses = tuple(claim.hypotheses(loss, run.start))
    verdict = functools.partial(_verdict, claim, hypotheses)
    if claim.along_flow and not run.status.finished:
        return verdict(Judgement.UNRESOLVED, None, {}, f"The integration did not finish ({run.status}).")
    rough, fine, finest = evidence.cases
    constants = {name: float(value) for name, value in _constants(claim, loss, rough).items()}
    finding = _find(claim, loss, rough, fine if claim.along_flow else rough)
    if any(not condition.met for condition in hypotheses):
        unmet = "; ".join(condition.name for condition in hypotheses if not condition.met)
        if all(condition.met or condition.unknown for condition in hypotheses):
            return verdict(Judgement.UNRESOLVED, finding, constants, f"A side is not known here: {unmet}.")
        return verdict(Judgement.NOT_APPLICABLE, finding, constants, f"Not met: {unmet}. {_alone(finding)}")
    if not claim.along_flow or finding.judgement in (Judgement.HOLDS, Judgement.VACUOUS):
        return verdict(finding.judgement, finding, constants)
    sharper = _find(claim, loss, fine, finest)
    if finding.judgement is Judgement.VIOLATED and sharper.judgement is not Judgement.VIOLATED:
        reason = "A violation at the asked tolerance did not survive a more accurate solve."
        return verdict(Judgement.UNRESOLVED, sharper, constants, reason)
    return verdict(sharper.judgement, sharper, constants)


@dataclasses.dataclass(frozen=True)
class _Finding:
    judgement: Judgement
    margin: float | None = None
    where: float | str | None = None
    floor: float | None = None
    tightness: float | None = None
    note: str = ""


def _find(claim: Claim, loss: AbstractPopulationLoss, rough: Case, fine: Case) -> _Finding:
    """The verdict of the fine solve, with the distance to the rough one as its error, hypotheses aside."""
    if claim.along_flow and not (rough.run.status.finished and fine.run.status.finished):
        return _Finding(Judgement.UNRESOLVED, note=f"A more accurate solve did not finish ({fine.run.status}).")
    if claim.along_flow and fine.run.certificates.energy_defect > _WORST_ENERGY_DEFECT:
        defect = fine.run.certificates.energy_defect
        return _Finding(Judgement.UNRESOLVED, note=f"The energy balance is off by {defect:.1e}.")
    ours = compared(claim, loss, fine.padded)
    error = _rounding(claim, loss, fine, ours)
    if claim.along_flow and rough is not fine:
        error = error + _solver_error(compared(claim, loss, rough.padded), ours, fine.run.settings)
    if replicates := fine.replicates(claim):
        error = error + _sampling_error(claim, replicates, ours)
    slack, size, promised, allowance = ours.slack, ours.size, ours.promised, ours.allowance
    if not promised.any():
        return _Finding(Judgement.VACUOUS, note="The statement promises nothing here.")
    if not np.all(np.isfinite(slack[promised]) & np.isfinite(error[promised])):
        return _Finding(Judgement.UNRESOLVED, note="A side of the statement is not finite.")
    safe = np.where(size > 0, size, np.inf)
    room = slack + allowance
    worst = int(np.argmin(np.where(promised, slack / safe, np.inf)))
    if np.any(room[promised] < -error[promised]):
        judgement = Judgement.VIOLATED
        worst = int(np.argmin(np.where(promised, (room + error) / safe, np.inf)))
    elif claim.relation is Relation.IDENTITY:
        resolved = (error + allowance)[promised] <= _WORST_RESOLUTION * size[promised]
        judgement = Judgement.HOLDS if np.all(resolved) else Judgement.UNRESOLVED
    else:
        judgement = Judgement.HOLDS if np.all(room[promised] > error[promised]) else Judgement.UNRESOLVED
    return _Finding(
        judgement,
        margin=float(slack[worst] / safe[worst]),
        where=_place(worst, slack.size, fine, claim.along_flow),
        floor=float((error[worst] + allowance[worst]) / safe[worst]),
        tightness=float(ours.tightness[worst]) or None,
    )


def _place(index: int, length: int, case: Case, along_flow: bool) -> float | str:
    """A time, or the number of a point; points of a claim along the flow may follow the times."""
    times = case.padded.t.size
    if length == times or (along_flow and index < times < length):
        return float(case.padded.t[index])
    if along_flow and length > times:
        index, length = index - times, length - times
    return f"point {index + 1} of {length}" if length > 1 else "one point"


def compared(claim: Claim, loss: AbstractPopulationLoss, run: Trajectory) -> Comparison:
    """The claim's comparison, on the host; compiled unless it draws prompts, for which N must be a number."""
    comparison = _compiled(claim.compare, loss, run) if claim.along_flow else claim.compare(loss, run)
    return jax.tree.map(np.asarray, comparison)


def _constants(claim: Claim, loss: AbstractPopulationLoss, case: Case) -> dict:
    function = claim.constants
    return _compiled(function, loss, case.padded) if claim.along_flow else function(loss, case.padded)


@eqx.filter_jit
def _compiled(function, loss, run):
    return function(loss, run)


def _solver_error(rough: Comparison, fine: Comparison, settings: Settings) -> np.ndarray:
    """Error of the fine slack: its distance to the rough one, relative, and never shrinking in time, since two solves
    can agree by chance at one time; and at least the tolerance, which no solver is asked to beat.
    """
    scale = np.maximum(fine.scale, np.finfo(float).tiny)
    relative = np.abs(rough.slack - fine.slack) / scale
    return (_LADDER_SAFETY * np.maximum.accumulate(relative) + settings.rtol) * scale


def _sampling_error(
    claim: Claim, replicates: list[tuple[AbstractPopulationLoss, Trajectory]], ours: Comparison
) -> np.ndarray:
    """Error of the slack from the draws of a sampled loss: half its interval over independent sets of draws, and
    how far their mean lies from the slack of all draws together, which is their bias.
    """
    slacks = np.stack([compared(claim, loss, run).slack for loss, run in replicates])
    spread = np.std(slacks, axis=0, ddof=1) / np.sqrt(len(replicates))
    # Each point has its own interval, so that all together hold with the stated confidence (Bonferroni).
    level = 1 - (1 - _CONFIDENCE) / max(int(np.sum(ours.promised)), 1)
    return student_quantile(level, len(replicates)) * spread + np.abs(np.mean(slacks, axis=0) - ours.slack)


def _rounding(claim: Claim, loss: AbstractPopulationLoss, case: Case, ours: Comparison) -> np.ndarray:
    """Error of the slack from rounding: how far it moves when every weight moves by a few units in the last place."""
    moved = [np.abs(compared(claim, loss, nudged).slack - ours.slack) for nudged in case.nudged]
    return _ROUNDING_SAFETY * np.max(moved, axis=0) + ROUNDING * ours.scale


def _alone(finding: _Finding) -> str:
    if finding.judgement is Judgement.HOLDS:
        return "Its conclusion holds all the same."
    if finding.judgement is Judgement.VIOLATED:
        return "Its conclusion fails here."
    return ""


def _verdict(
    claim: Claim, hypotheses: tuple, judgement: Judgement, finding: _Finding | None, constants: dict, reason: str = ""
) -> Verdict:
    finding = _Finding(judgement) if finding is None else finding
    note = " ".join(part for part in (claim.note, reason, finding.note) if part)
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
        constants=constants,
        note=note,
    )
