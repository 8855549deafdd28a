"""Judging: a claim against a trajectory, its more accurate repetitions, and the rounding of its own arithmetic."""

import dataclasses
import functools
import os
from collections.abc import Iterable

import equinox as eqx
import jax
import numpy as np

from flowsim._core.balls.enclosure import UndecidedError, enclose, lower, upper
from flowsim._core.lines import TRACEBACK, in_short, out_of_memory
from flowsim.claims.between import follow
from flowsim.claims.claim import Claim, Comparison, Judgement, Relation, Verdict, Verdicts
from flowsim.claims.evidence import ROUNDING, Case, Evidence
from flowsim.claims.evidence.comparing import compared
from flowsim.flow.trajectory import Settings, Trajectory
from flowsim.losses import AbstractPopulationLoss
from flowsim.losses.sampled.confidence import bonferroni_quantile

_LADDER_SAFETY = 4.0
_ROUNDING_SAFETY = 8.0
_WORST_RESOLUTION = 1e-4  # an identity known no better than this is not judged
_WORST_ENERGY_DEFECT = 1e-3
_FAR = 1e4  # times its rounding, what a violation exceeds that cannot be looked at with more digits
_CONFIDENCE = 0.99  # of all points of a statement together
_NO_BOUND = "No bound is known of the way still to go to the limit. Ask for a later t1, or for a stricter stop."


def judge(
    claims: Iterable[Claim],
    loss: AbstractPopulationLoss,
    trajectory: Trajectory,
    *,
    checkpoint: str | os.PathLike | None = None,
    progress: bool = False,
) -> Verdicts:
    """Judge claims along one flow, in order; see `check`."""
    claims = tuple(claims)
    evidence = Evidence(loss, trajectory, claims=claims, checkpoint=checkpoint, progress=progress)
    return Verdicts(judge_on(claim, evidence) for claim in claims)


def check(claim: Claim, loss: AbstractPopulationLoss, trajectory: Trajectory) -> Verdict:
    """Judge one claim along a flow.

    The numerical error of a margin is measured, not assumed: by solving the flow again more accurately, and by moving
    every weight by a few units in the last place. "holds" and "violated" need room beyond that error everywhere and
    somewhere; "violated" also survives a third, still more accurate solve. Everything else is "unresolved".

    **Arguments:** claim; loss, trajectory: of one flow.
    """
    return judge_on(claim, Evidence(loss, trajectory))


def judge_or_note(claim: Claim, evidence: Evidence) -> Verdict:
    """As `judge_on`, but a claim whose arithmetic raises is unresolved and its note says why, so that others stand.

    **Raises:** `OSError` where the disk does; anything where FLOWSIM_TRACEBACK=1 asks for it.
    """
    try:
        return judge_on(claim, evidence)
    except OSError:
        raise
    except Exception as error:
        if os.environ.get(TRACEBACK) == "1" and not out_of_memory(error):
            raise
        reason = f"It could not be judged: {in_short(error)}."
        return _verdict(claim, (), Judgement.UNRESOLVED, None, {}, reason)


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
        return verdict(
            Judgement.UNRESOLVED, None, {}, f"The integration did not finish ({run.status}). {run.status.advice}"
        )
    (rough, fine, finest), beneath = followed(claim, evidence)
    constants = rough.panel.constants(claim, loss, rough.padded)
    finding = _find(claim, loss, rough, fine if claim.along_flow else rough, beneath)
    if any(not condition.met for condition in hypotheses):
        unmet = "; ".join(condition.name for condition in hypotheses if not condition.met)
        if all(condition.met or condition.unknown for condition in hypotheses):
            return verdict(Judgement.UNRESOLVED, finding, constants, f"A side is not known here: {unmet}.")
        return verdict(Judgement.NOT_APPLICABLE, finding, constants, f"Not met: {unmet}. {_alone(finding)}")
    if not claim.along_flow:
        finding = _confirmed(claim, loss, rough, finding) if finding.judgement is Judgement.VIOLATED else finding
        return verdict(finding.judgement, finding, constants)
    if evidence.parted:
        return verdict(Judgement.UNRESOLVED, finding, constants, evidence.parted)
    if finding.judgement in (Judgement.HOLDS, Judgement.VACUOUS):
        return verdict(finding.judgement, finding, constants)
    sharper = _find(claim, loss, fine, finest, beneath)
    if finding.judgement is Judgement.VIOLATED and sharper.judgement is not Judgement.VIOLATED:
        reason = "A violation at the asked tolerance did not survive a more accurate solve. Ask for a smaller rtol."
        return verdict(Judgement.UNRESOLVED, sharper, constants, reason)
    return verdict(sharper.judgement, sharper, constants)


def followed(claim: Claim, evidence: Evidence) -> tuple[tuple[Case, Case, Case], float]:
    """The three solves with the times between those of the run at which the margin may be least, and how much lower it
    may still be between any times.
    """
    if not claim.along_flow or claim.relation is Relation.IDENTITY:
        return evidence.cases, 0.0
    further, beneath = follow(functools.partial(_margins, claim, evidence.stated, evidence.cases[0]))
    rough, fine, finest = (case.at(further) for case in evidence.cases)
    return (rough, fine, finest), beneath


def _margins(
    claim: Claim, loss: AbstractPopulationLoss, case: Case, further: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times, the margin at each and where anything is promised; of a comparison at other points nothing."""
    case = case.at(further)
    ours, count = case.panel.compared(claim, loss, case.padded), case.run.t.size
    if ours.slack.shape[0] < case.padded.t.size:
        return np.zeros(0), np.zeros(0), np.zeros(0, dtype=bool)
    promised: np.ndarray = np.asarray(ours.promised)[:count].reshape(count, -1)
    safe = np.where(ours.size > 0, ours.size, np.inf)
    margins = np.asarray((ours.slack + ours.allowance) / safe)[:count].reshape(count, -1)
    anything = np.asarray(np.any(promised, axis=1))
    least = np.min(np.where(promised | ~anything[:, None], margins, np.inf), axis=1)
    return np.asarray(case.run.t), least, anything


@dataclasses.dataclass(frozen=True)
class _Finding:
    judgement: Judgement
    margin: float | None = None
    where: float | str | None = None
    floor: float | None = None
    tightness: float | None = None
    note: str = ""


def _find(claim: Claim, loss: AbstractPopulationLoss, rough: Case, fine: Case, beneath: float) -> _Finding:
    """The verdict of the fine solve, with the distance to the rough one as its error, hypotheses aside.

    **Arguments:** beneath: how much lower than at the times of the solves the margin may be between them.
    """
    if claim.along_flow and not (rough.run.status.finished and fine.run.status.finished):
        return _Finding(
            Judgement.UNRESOLVED,
            note=f"A more accurate solve did not finish ({fine.run.status}). {fine.run.status.advice}",
        )
    if claim.along_flow and fine.run.certificates.energy_defect > _WORST_ENERGY_DEFECT:
        defect = fine.run.certificates.energy_defect
        return _Finding(
            Judgement.UNRESOLVED, note=f"The energy balance is off by {defect:.1e}. Ask for a smaller rtol."
        )
    ours = fine.panel.compared(claim, loss, fine.padded)
    if np.any(np.isinf(ours.allowance[ours.promised])):
        rough, fine = (case.settled for case in (rough, fine))
        ours = fine.panel.compared(claim, loss, fine.padded)
    error = _rounding(claim, fine, ours)
    if claim.along_flow and rough is not fine:
        error = error + _solver_error(rough.panel.compared(claim, loss, rough.padded), ours, fine.run.settings)
    if replicates := fine.replicates(claim):
        error = error + _sampling_error(claim, replicates, ours)
    return _decided(claim, ours, error + beneath * ours.size, fine)


def _decided(claim: Claim, ours: Comparison, error: np.ndarray, case: Case) -> _Finding:
    """The verdict of a comparison whose slack has a known error."""
    slack, size, promised, allowance = ours.slack, ours.size, ours.promised, ours.allowance
    if not promised.any():
        return _Finding(Judgement.VACUOUS, note="The statement promises nothing here.")
    if not np.all(np.isfinite(slack[promised]) & np.isfinite(error[promised])):
        return _Finding(Judgement.UNRESOLVED, note="A side of the statement is not finite. Look for an overflow in it.")
    if np.any(np.isinf(allowance[promised])):
        return _Finding(Judgement.UNRESOLVED, note=_NO_BOUND)
    safe = np.where(size > 0, size, np.inf)
    room = slack + allowance
    worst = _least(np.where(promised, slack / safe, np.inf))
    if np.any(room[promised] < -error[promised]):
        judgement = Judgement.VIOLATED
        worst = _least(np.where(promised, (room + error) / safe, np.inf))
    elif claim.relation is Relation.IDENTITY:
        resolved = (error + allowance)[promised] <= _WORST_RESOLUTION * size[promised]
        judgement = Judgement.HOLDS if np.all(resolved) else Judgement.UNRESOLVED
    else:
        holds = np.all((slack - allowance)[promised] > error[promised])
        judgement = Judgement.HOLDS if holds else Judgement.UNRESOLVED
    return _Finding(
        judgement,
        margin=float(slack[worst] / safe[worst]),
        where=_place(worst, slack.shape, case, claim),
        floor=float((error[worst] + allowance[worst]) / safe[worst]),
        tightness=float(ours.tightness[worst]) or None,
    )


def _confirmed(claim: Claim, loss: AbstractPopulationLoss, case: Case, finding: _Finding) -> _Finding:
    """A violation without a flow, looked at again with twice the digits, where it can be traced. Elsewhere it has to
    exceed its measured error by far.
    """
    ours = compared(claim, loss, case.padded)
    rounding, sampling = _rounding(claim, case, ours), np.zeros_like(ours.slack)
    if replicates := case.replicates(claim):
        sampling = _sampling_error(claim, replicates, ours)
    found = _in_balls(claim, loss, case, ours, rounding + sampling)
    if found.judgement is not Judgement.UNRESOLVED:
        return found
    if np.any((ours.slack + ours.allowance + _FAR * rounding + sampling)[ours.promised] < 0):
        return finding
    reason = "A violation at the last digits could not be confirmed with more of them."
    return dataclasses.replace(finding, judgement=Judgement.UNRESOLVED, note=reason)


def _in_balls(claim: Claim, loss: AbstractPopulationLoss, case: Case, ours: Comparison, error: np.ndarray) -> _Finding:
    """The verdict by twice the digits."""
    try:
        exact = enclose(lambda: claim.compare(loss, case.padded), proved=False)
    except (UndecidedError, jax.errors.JAXTypeError, ValueError):
        return _Finding(Judgement.UNRESOLVED)
    low, high = lower(exact.slack), upper(exact.slack)
    low, high = low.reshape(ours.slack.shape), high.reshape(ours.slack.shape)
    slack = np.where(np.isfinite(high - low), (low + high) / 2, np.nan)
    return _decided(claim, eqx.tree_at(lambda c: c.slack, ours, slack), error + (high - low) / 2, case)


def _least(values: np.ndarray) -> tuple[int, ...]:
    return tuple(int(place) for place in np.unravel_index(np.argmin(values), values.shape))


def _place(index: tuple[int, ...], shape: tuple[int, ...], case: Case, claim: Claim) -> float | str:
    """A time, or the number of a point, and which of several entries there."""
    place = _point(index[0], shape[0], case, claim)
    if len(shape) == 1:
        return place
    return f"{place if isinstance(place, str) else f't = {place:.4g}'}, entry {index[1] + 1} of {shape[1]}"


def _point(row: int, length: int, case: Case, claim: Claim) -> float | str:
    """A time, or the number of a point; points of a claim along the flow may follow the times."""
    times = case.padded.t.size
    if case.has_times(claim, length) or (claim.along_flow and row < times < length):
        return float(case.padded.t[row])
    if claim.along_flow and length > times:
        row, length = row - times, length - times
    return f"point {row + 1} of {length}" if length > 1 else "one point"


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
    quantile = bonferroni_quantile(_CONFIDENCE, int(np.sum(ours.promised)), len(replicates))
    return quantile * spread + np.abs(np.mean(slacks, axis=0) - ours.slack)


def _rounding(claim: Claim, case: Case, ours: Comparison) -> np.ndarray:
    """Error of the slack from rounding: how far it moves when every weight, and every number of the loss, moves by a
    few units in the last place.
    """
    moved = [np.abs(case.panel.compared(claim, nudged, run).slack - ours.slack) for nudged, run in case.nudged]
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
