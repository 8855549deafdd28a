"""The verdict on a claim, from a trajectory, its more accurate repetitions, and balls that contain both sides."""

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable

import jax
import numpy as np

from flowsim._core.documents import ForeignFileError
from flowsim._core.text import TRACEBACK, in_short, out_of_memory
from flowsim.claims.claim import Claim, Comparison, Judgement, Verdict, Verdicts
from flowsim.claims.deciding.between import follow
from flowsim.claims.deciding.ending import (
    allows_for_a_while,
    depends_on_others,
    depends_on_the_times,
    is_in_order,
    reads_the_end,
    too_late,
)
from flowsim.claims.deciding.grounding import Ground, carried_on, grounded, judgement_at_the_limit
from flowsim.claims.deciding.measuring import discretization_error, rounding_error, sampling_error
from flowsim.claims.deciding.places import place_of
from flowsim.claims.deciding.sides import Errors, Sides, solver_error
from flowsim.claims.evidence import Case, Evidence
from flowsim.claims.evidence.comparing import CostlyError, relative, size_of
from flowsim.claims.evidence.narrow import hidden_events
from flowsim.flow.trajectory import Status, Trajectory
from flowsim.losses import AbstractPopulationLoss

_WORST_ENERGY_DEFECT = 1e-3
_MOVES = 4.0  # times its error
_NO_BOUND = "No bound is known on the distance from the end of the flow to its limit."
_ALLOWS_TOO_LITTLE = (
    "Its allowance may be smaller than the change from the end of the flow to its limit: take the allowance from "
    "flowsim.limit(flow, f), which bounds this change."
)
_NOT_IN_ORDER = "It has a row for each time, but in another order: return the rows in the order of flow.t."
_READS_MORE = "It reads more of the flow than its start, but nothing was integrated: declare it with along_flow=True."
_IS_NO_LIMIT = (
    "It reads the end of the flow as its limit, so that it depends on where the integration stopped: use "
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
    """Judge claims along one flow, in order; see `check`."""
    claims = tuple(claims)
    evidence = Evidence(loss, trajectory, claims=claims, checkpoint=checkpoint, progress=progress)
    return Verdicts(judge_on(claim, evidence) for claim in claims)


def check(claim: Claim, loss: AbstractPopulationLoss, trajectory: Trajectory) -> Verdict:
    """Judge one claim along a flow.

    The numerical error of a margin is measured by solving the flow again more accurately. Its rounding error is bounded
    in ball arithmetic where the verdict depends on it. "holds" needs margins above the errors everywhere, "violated" a
    failure beyond them somewhere that a third, still more accurate solve confirms. All else is "unresolved".

    **Arguments:** claim; loss; trajectory: a flow of the loss.

    **Raises:** `ValueError` if the claim compares arrays that do not match, such as arrays of another length.
    """
    return judge_on(claim, Evidence(loss, trajectory))


def judge_or_note(claim: Claim, evidence: Evidence) -> Verdict:
    """As `judge_on`, but an exception in the claim's arithmetic makes it unresolved, with the reason in the note.

    **Raises:** `OSError` if the disk fails; `ForeignFileError` on a checkpoint of another run; anything if
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
        return _verdict(claim, (), Judgement.UNRESOLVED, None, {}, reason)


_not_finite = np.errstate(invalid="ignore", divide="ignore", over="ignore")  # sides that are not finite are reported


@_not_finite
def judge_on(claim: Claim, evidence: Evidence) -> Verdict:
    """Judge one claim on evidence, which several claims may share."""
    try:
        verdict = _judged(claim, evidence)
    except CostlyError as error:
        verdict = _unjudged(claim, evidence, str(error))
    if verdict.verdict in (Judgement.VACUOUS, Judgement.NOT_APPLICABLE) or not evidence.samples_matter(claim):
        return verdict
    if (reason := evidence.distrust) is None:
        return verdict
    return dataclasses.replace(verdict, verdict=Judgement.UNRESOLVED, note=f"{verdict.note} {reason}".strip())


def _judged(claim: Claim, evidence: Evidence) -> Verdict:
    loss, run = evidence.stated, evidence.trajectory
    if foreign := claim.foreign(loss, run.start):
        return _verdict(claim, (foreign,), Judgement.NOT_APPLICABLE, None, {}, f"Not met: {foreign.name}.")
    hypotheses = evidence.hypotheses(claim)
    verdict = functools.partial(_verdict, claim, hypotheses)
    if reason := evidence.below_minimum:
        return verdict(Judgement.UNRESOLVED, None, {}, reason)
    if not claim.along_flow and evidence.reads_more_than_the_start(claim):
        # A claim is judged by what it reads, not by what it declares to read.
        if run.t.size == 1:
            # A statement that fails at the start is false.
            if not (evidence.reads_the_start_first(claim) and _fails_first(claim, evidence)):
                return verdict(Judgement.UNRESOLVED, None, {}, _READS_MORE)
        else:
            claim = dataclasses.replace(claim, along_flow=True)
    if claim.along_flow and (reason := too_late(claim, evidence)):
        return verdict(Judgement.UNRESOLVED, None, {}, reason)
    if claim.along_flow:
        solves = {"The integration": lambda: run, "A more accurate solve": lambda: evidence.reference}
        for what, solve in solves.items():
            if solve().status is Status.KINK:
                return _judged(claim, evidence.before_kink)
            if not solve().status.finished:
                reason = f"{what} did not finish ({solve().status}). {solve().status.advice}"
                return verdict(Judgement.UNRESOLVED, None, {}, reason)
    if claim.along_flow and evidence.cases[0].has_as_many_points(claim):
        # The entries of one point are not times.
        claim = dataclasses.replace(claim, compare=functools.partial(_at_one_point, claim.compare))
    (rough, fine, finest), lower = followed(claim, evidence)
    constants = rough.panel.constants(claim, loss, rough.padded)
    finding = _find(claim, evidence, rough, fine if claim.along_flow else rough, lower)
    if any(not condition.met for condition in hypotheses):
        unmet = "; ".join(condition.name for condition in hypotheses if not condition.met)
        if all(condition.met or condition.unknown for condition in hypotheses):
            return verdict(
                Judgement.UNRESOLVED, finding, constants, f"A side of a hypothesis is not known here: {unmet}."
            )
        return verdict(Judgement.NOT_APPLICABLE, finding, constants, f"Not met: {unmet}. {_alone(finding)}")
    if not claim.along_flow:
        return verdict(finding.judgement, finding, constants)
    if reason := evidence.diverged or evidence.stepped_over or evidence.not_descending:
        return verdict(Judgement.UNRESOLVED, finding, constants, reason)
    if not is_in_order(claim, evidence):
        return verdict(Judgement.UNRESOLVED, finding, constants, _NOT_IN_ORDER)
    if reason := _depends_on_the_end(claim, evidence, fine, finding):
        return verdict(Judgement.UNRESOLVED, finding, constants, reason)
    if finding.judgement in (Judgement.HOLDS, Judgement.VACUOUS):
        return verdict(finding.judgement, finding, constants)
    if evidence.confirmation.status is Status.KINK:
        return _judged(claim, evidence.before_kink)
    sharper = _find(claim, evidence, fine, finest, lower)
    if finding.judgement is Judgement.VIOLATED and sharper.judgement is not Judgement.VIOLATED:
        reason = "A violation at the asked tolerance did not survive a more accurate solve. Ask for a smaller rtol."
        return verdict(Judgement.UNRESOLVED, sharper, constants, reason)
    return verdict(sharper.judgement, sharper, constants)


def _unjudged(claim: Claim, evidence: Evidence, reason: str) -> Verdict:
    """The verdict on a claim whose sides cannot be compared: its hypotheses are still evaluated."""
    hypotheses = evidence.hypotheses(claim)
    unmet = "; ".join(condition.name for condition in hypotheses if not (condition.met or condition.unknown))
    judgement = Judgement.NOT_APPLICABLE if unmet else Judgement.UNRESOLVED
    return _verdict(claim, hypotheses, judgement, None, {}, f"Not met: {unmet}. {reason}" if unmet else reason)


def _at_one_point(compare: Callable[..., Comparison], *read: object) -> Comparison:
    return jax.tree.map(lambda side: side.reshape(1, -1), compare(*read))


def _fails_first(claim: Claim, evidence: Evidence) -> bool:
    """Whether the first row of a comparison on the start alone fails."""
    sides = _find(claim, evidence, evidence.alone, evidence.alone, 0.0).sides
    return sides is not None and bool(np.any(sides.fails[0]))


@_not_finite
def followed(claim: Claim, evidence: Evidence) -> tuple[tuple[Case, Case, Case], float]:
    """The three solves with further times, and a bound on how much lower the margin may be between them.

    The further times are those that the claim asks for, and those at which the margin may be least.
    """
    if not claim.along_flow:
        return (evidence.alone, evidence.alone, evidence.alone), 0.0
    first = evidence.cases[0]
    ours = first.panel.compared(claim, evidence.stated, first.padded)
    asked = np.zeros(0)
    # Until its time is an output time, flow.at(t) is NaN, and a comparison with NaN is false.
    if not (ours.promised.all() and np.all(np.isfinite(ours.slack))):
        asked = evidence.asked(claim)
    lower, further = 0.0, np.zeros(0)
    if ours.identity.all():
        further = hidden_events(claim, evidence.stated, first, asked)
    else:
        noise = functools.partial(np.interp, xp=np.asarray(first.run.t), fp=_noise(claim, first, ours))
        margins = functools.partial(_margins, claim, evidence.stated, first, asked)
        further, lower = follow(margins, noise, hidden_events(claim, evidence.stated, first, asked))
    rough, fine, finest = (case.at(np.union1d(asked, further)) for case in evidence.cases)
    return (rough, fine, finest), lower


def _noise(claim: Claim, case: Case, ours: Comparison) -> np.ndarray:
    """The error of the margins by rounding at each time; zero for a comparison at other points."""
    count = case.run.t.size
    if ours.slack.shape[0] < case.padded.t.size:
        return np.zeros(count)
    noise = np.where(ours.promised, relative(rounding_error(claim, case, ours), size_of(ours)), 0.0)
    return np.nan_to_num(np.max(noise[:count].reshape(count, -1), axis=1))


def _margins(
    claim: Claim, loss: AbstractPopulationLoss, case: Case, asked: np.ndarray, further: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The times, the margins at each and where they are promised; empty for a comparison at other points."""
    case = case.at(np.union1d(asked, further))
    ours, count = case.panel.compared(claim, loss, case.padded), case.run.t.size
    if ours.slack.shape[0] < case.padded.t.size:
        return np.zeros(0), np.zeros((0, 1)), np.zeros((0, 1), dtype=bool)
    margins = relative(ours.slack + ours.allowance, size_of(ours))
    rows = lambda side: np.asarray(side)[:count].reshape(count, -1)
    # The margins of a flow at rest are rounding.
    promised = rows(ours.promised) & (np.arange(count) < case.at_rest)[:, None]
    return np.asarray(case.run.t), rows(margins), promised


@dataclasses.dataclass(frozen=True)
class _Finding:
    judgement: Judgement
    margin: float | None = None
    where: float | str | None = None
    floor: float | None = None
    tightness: float | None = None
    note: str = ""
    until: float | None = None
    cut: bool = False
    sides: Sides | None = None


def _find(claim: Claim, evidence: Evidence, rough: Case, fine: Case, lower: float) -> _Finding:
    """The verdict on the fine solve, with the distance to the rough one as its error, before hypotheses are considered.

    ``lower`` is how much lower the margin may be between the times of the solves.
    """
    if claim.along_flow and not (rough.run.status.finished and fine.run.status.finished):
        return _Finding(
            Judgement.UNRESOLVED,
            note=f"A more accurate solve did not finish ({fine.run.status}). {fine.run.status.advice}",
        )
    if claim.along_flow and fine.run.certificates.energy_defect > _WORST_ENERGY_DEFECT:
        defect = fine.run.certificates.energy_defect
        return _Finding(
            Judgement.UNRESOLVED, note=f"The energy balance has an error of {defect:.1e}. Ask for a smaller rtol."
        )
    loss = evidence.stated
    ours = fine.panel.compared(claim, loss, fine.padded)
    if np.any(ours.allowance[ours.promised] > 0):
        # The allowance of the rough solve is not used.
        alone, fine = rough is fine, fine.settled
        rough = fine if alone else rough.with_remaining(fine.remaining)
        ours = fine.panel.compared(claim, loss, fine.padded)
    rest = lower * size_of(ours) if lower else np.zeros(ours.slack.shape)
    if replicates := fine.replicates(claim):
        rest = rest + sampling_error(claim, replicates, ours)
    thinned = discretization_error(claim, loss, fine, ours)
    rest = rest + thinned
    ladder = np.zeros(ours.slack.shape)
    if claim.along_flow and rough is not fine:
        other = rough.panel.compared(claim, loss, rough.padded)
        counts = other.promised | ours.promised
        # The signed differences: two solves with errors of opposite sign have the same slack in an identity.
        both = (one.value - one.bound for one in (other, ours))
        ladder = solver_error(*both, scale=ours.scale, counts=counts, rtol=fine.run.settings.rtol)
    sides = Sides.of(ours)
    rounding = rounding_error(claim, fine, ours)
    errors = Errors(rounding, ladder, rest, combines=bool(np.any(thinned > _MOVES * rounding)))
    return _finding_on(claim, evidence, fine, grounded(claim, rough, fine, sides, errors))


def _finding_on(claim: Claim, evidence: Evidence, case: Case, ground: Ground) -> _Finding:
    """The finding on sides with bounded errors."""
    sides, judgement, note = ground.sides, ground.sides.judgement, ground.note
    if judgement is Judgement.VACUOUS:
        found = _Finding(judgement, note="The statement promises nothing here.", sides=sides)
        return dataclasses.replace(found, **_until(claim, evidence, case, ground))
    promised = sides.possible
    if not np.all(np.isfinite(sides.slack[promised]) | (sides.slack[promised] == np.inf)):
        late = case.too_late(claim)
        reason = late or "A side of the statement is not finite. Look for an overflow in it."
        return _Finding(Judgement.UNRESOLVED, note=reason)
    if np.any(np.isinf(sides.allowance[promised])):
        return _Finding(Judgement.UNRESOLVED, note=f"{_NO_BOUND} {_advice(case)}")
    worst = sides.worst
    margin = relative(sides.slack, sides.size)[worst]
    floor = (sides.error[worst] + sides.allowance[worst]) / sides.size[worst]
    found = _Finding(
        judgement,
        margin=float(margin),
        where=place_of(worst, sides.slack.shape, case, claim, evidence.steepest),
        floor=float(floor),
        tightness=float(sides.tightness[worst]) or None,
        note=note if judgement is Judgement.UNRESOLVED else "",
        sides=sides,
    )
    return dataclasses.replace(found, **_until(claim, evidence, case, ground))


def _until(claim: Claim, evidence: Evidence, case: Case, ground: Ground) -> dict:
    """The time up to which a statement for all t was judged, and whether the flow was cut there."""
    if not ground.for_all_t or ground.sides.judgement not in (Judgement.HOLDS, Judgement.VACUOUS):
        return {"until": None, "cut": False}
    if ground.last < case.run.t.size - 1:
        return {"until": evidence.steepest + float(case.run.t[ground.last]), "cut": True}
    # A statement that combines times depends on all later times.
    combines = ground.combines or depends_on_others(claim, evidence)
    if not combines and carried_on(claim, case, ground.sides):
        return {"until": None, "cut": False}
    status = case.status
    if status is Status.STATIONARY:
        # Its start is its only time.
        return {"until": 0.0, "cut": True}
    return {"until": evidence.steepest + float(case.run.t[-1]), "cut": status not in (Status.EXCESS, Status.GRAD_NORM)}


def _advice(case: Case) -> str:
    """Advice if no bound on the remaining length of the flow is known."""
    if case.status in (Status.EXCESS, Status.GRAD_NORM, Status.STATIONARY):
        return "The minimum there may be degenerate, or the flow may rest at a saddle."
    return "Ask for a later t1, or leave t1 out: the flow then runs until a stopping rule is met."


def _depends_on_the_end(claim: Claim, evidence: Evidence, case: Case, finding: _Finding) -> str:
    """The reason why a statement that reads the end of the flow as its limit may differ at the limit by more than it
    allows for; empty if it does not.
    """
    sides = finding.sides
    if sides is None or not sides.possible.any():
        return ""
    reads, derived, differs = reads_the_end(claim, evidence, case)
    if not reads:
        return ""
    allows = bool(np.any(sides.allowance[sides.possible] > 0))
    if evidence.loss.sampled and not allows:
        return "" if case.status in (Status.EXCESS, Status.GRAD_NORM) else _IS_NO_LIMIT
    at_the_limit = Judgement.UNRESOLVED
    if not evidence.loss.sampled:
        at_the_limit = judgement_at_the_limit(claim, case, sides)
    # The balls contain all ends, but only the times of the run.
    if at_the_limit is sides.judgement and not differs and not depends_on_the_times(claim, evidence):
        return ""
    if not allows:
        return _IS_NO_LIMIT
    if {at_the_limit, sides.judgement} == {Judgement.HOLDS, Judgement.VIOLATED}:
        return _ALLOWS_TOO_LITTLE
    if not (derived or evidence.loss.sampled):
        return _ALLOWS_TOO_LITTLE
    return "" if allows_for_a_while(claim, evidence, sides) else _ALLOWS_TOO_LITTLE


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
    until = judgement in (Judgement.HOLDS, Judgement.VACUOUS)
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
        until=finding.until if until else None,
        cut=finding.cut and until,
    )
