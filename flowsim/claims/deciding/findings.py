"""Judge the conclusion of a claim from its two sides on two solves of a flow, without regard to its hypotheses."""

import dataclasses

import numpy as np

from flowsim.claims.claim import Claim
from flowsim.claims.deciding.ending import carried_on, depends_on_others, growing
from flowsim.claims.deciding.grounding import Ground, grounded
from flowsim.claims.deciding.measuring import discretization_error, rounding_error, sampling_error
from flowsim.claims.deciding.sides import Errors, Sides, solver_error
from flowsim.claims.deciding.verdict import Judgement
from flowsim.claims.evidence import Case, Evidence
from flowsim.claims.evidence.comparing import WORST_RESOLUTION
from flowsim.flow.trajectory import Status, Trajectory

_WORST_ENERGY_DEFECT = 1e-3
_MOVES = 4.0  # times its error
_GRANTED = 10.0  # times the tolerance of a flow: two sides may differ by as much of what is allowed for a limit


@dataclasses.dataclass(frozen=True)
class Finding:
    """A judgement on the conclusion of a claim, with the numbers that a `Verdict` reports.

    Further fields are ``sides``, the two sides of the claim with their errors, and ``case``, the solve that they
    come from.
    """

    judgement: Judgement
    margin: float | None = None
    where: float | str | None = None
    floor: float | None = None
    tightness: float | None = None
    note: str = ""
    until: float | None = None
    cut: bool = False
    sides: Sides | None = None
    case: Case | None = None


def found(claim: Claim, evidence: Evidence, rough: Case, fine: Case, lower: float) -> Finding:
    """Judge the conclusion of a claim on the fine solve. Its difference to the rough solve is the error of the
    solver.

    **Arguments:**

    - claim: the claim.
    - evidence: the evidence for all claims on the flow.
    - rough, fine: the two solves, which may be the same one.
    - lower: by how much the margin may be lower between the times of the solves than at them.
    """
    if claim.along_flow and (reason := not_solved("A more accurate solve", fine.run) or _unbalanced(fine.run)):
        return Finding(Judgement.UNRESOLVED, note=reason)
    # The errors of weights at rest add up from one late drop to the next.
    finely = _GRANTED * evidence.trajectory.settings.rtol
    loss, asked = evidence.stated, finely if evidence.late else WORST_RESOLUTION
    ours = fine.panel.compared(claim, loss, fine.padded)
    if np.any(ours.allowance[ours.promised] > 0):
        # The allowance of the rough solve is not used.
        alone, fine = rough is fine, fine.settled
        rough = fine if alone else rough.with_remaining(fine.remaining)
        if evidence.takes_limit(claim):
            asked = finely
            rough, fine = (fine.continued or fine,) * 2 if alone else _continued(rough, fine)
        ours = fine.panel.compared(claim, loss, fine.padded)
    rest = lower * ours.reference if lower else np.zeros(ours.slack.shape)
    if replicates := fine.replicates(claim):
        rest = rest + sampling_error(claim, replicates, ours)
    thinned = discretization_error(claim, loss, fine, ours)
    rest = rest + thinned
    ladder = np.zeros(ours.slack.shape)
    if claim.along_flow and rough is not fine:
        other = rough.panel.compared(claim, loss, rough.padded)
        counts = other.promised | ours.promised
        # With their signs: two solves with errors of opposite sign have the same slack in an identity.
        both = (one.value - one.bound for one in (other, ours))
        ladder = solver_error(*both, scale=ours.scale, counts=counts, rtol=fine.run.settings.rtol)
    rounding = rounding_error(claim, fine, ours)
    errors = Errors(rounding, ladder, rest, combines=bool(np.any(thinned > _MOVES * rounding)), asked=asked)
    ground = grounded(claim, rough, fine, ours, errors)
    sides, judgement = ground.sides, ground.sides.judgement
    if judgement is Judgement.VACUOUS:
        nothing = "The statement promises nothing here."
        return Finding(judgement, note=nothing, sides=sides, case=fine, **_until(claim, evidence, fine, ground))
    if reason := _unknown(claim, fine, sides):
        return Finding(Judgement.UNRESOLVED, note=reason)
    worst = sides.worst
    return Finding(
        judgement,
        margin=float(sides.margin[worst]),
        where=_place_of(worst, sides.slack.shape, fine, claim, evidence),
        floor=float((sides.error[worst] + sides.allowance[worst]) / sides.size[worst]),
        tightness=float(sides.tightness[worst]) or None,
        note=ground.note if judgement is Judgement.UNRESOLVED else "",
        sides=sides,
        case=fine,
        **_until(claim, evidence, fine, ground),
    )


def _continued(rough: Case, fine: Case) -> tuple[Case, Case]:
    """Both solves continued towards their limits; unchanged if one of them cannot be continued."""
    one, other = rough.continued, fine.continued
    return (rough, fine) if one is None or other is None else (one, other)


def not_solved(what: str, run: Trajectory) -> str:
    """The message for a solve that did not finish; empty if it did. ``what`` names the solve in the message."""
    return "" if run.status.finished else f"{what} did not finish ({run.status}). {run.status.advice}"


def _unbalanced(run: Trajectory) -> str:
    defect = run.certificates.energy_defect
    return (
        f"The energy balance has an error of {defect:.1e}. Ask for a smaller rtol."
        if defect > _WORST_ENERGY_DEFECT
        else ""
    )


def _unknown(claim: Claim, case: Case, sides: Sides) -> str:
    """The reason why a comparison has no margin: a side is not finite, or an allowance is infinite. Empty if the
    comparison has a margin.
    """
    slack = sides.slack[sides.possible]
    if not np.all(np.isfinite(slack) | (slack == np.inf)):
        return case.too_late(claim) or "A side of the statement is not finite. Look for an overflow in it."
    if not np.any(np.isinf(sides.allowance[sides.possible])):
        return ""
    if case.status in (Status.EXCESS, Status.GRAD_NORM, Status.STATIONARY):
        advice = "The minimum there may be degenerate, or the flow may rest at a saddle."
    else:
        advice = "Ask for a later t1, or leave t1 out: the flow then runs until a stopping rule is met."
    return f"No bound is known on the distance from the end of the flow to its limit. {growing(case.run) or advice}"


def _until(claim: Claim, evidence: Evidence, case: Case, ground: Ground) -> dict:
    """The fields ``until`` and ``cut`` of the finding for a statement for all t; empty if all later times are
    bounded too, or if the statement is not one for all t.
    """
    if not ground.for_all_t or ground.sides.judgement not in (Judgement.HOLDS, Judgement.VACUOUS):
        return {}
    t = np.asarray(case.run.t)
    if ground.last < t.size - 1:
        return {"until": float(evidence.clock.since_start(t[ground.last])), "cut": True}
    # What combines times depends on all that are still to come.
    combines = ground.combines or depends_on_others(claim, evidence)
    if not combines and carried_on(claim, case, ground.sides):
        return {}
    status = case.status
    if status is Status.STATIONARY:
        # Only its times were evaluated.
        return {"until": 0.0, "cut": True}
    return {"until": float(evidence.clock.since_start(t[-1])), "cut": status not in (Status.EXCESS, Status.GRAD_NORM)}


def _place_of(
    index: tuple[int, ...], shape: tuple[int, ...], case: Case, claim: Claim, evidence: Evidence
) -> float | str:
    """Where a point of a comparison is: its time, or a text with its number if it is not a time. If its row has
    several entries, the text also has the number of the entry.

    **Arguments:**

    - index: the row, and the entry in it.
    - shape: the shape of the comparison.
    - case: the solve.
    - claim: the claim.
    - evidence: the evidence for all claims on the flow.
    """
    place = _point(index[0], shape[0], case, claim, evidence)
    if len(shape) == 1:
        return place
    return f"{place if isinstance(place, str) else f't = {place:.4g}'}, entry {index[1] + 1} of {shape[1]}"


def _point(row: int, length: int, case: Case, claim: Claim, evidence: Evidence) -> float | str:
    """The time of a row in a comparison of ``length`` rows, or a text with the number of the row if it is not a
    time.

    A claim along the flow has a row for each time, and then may have rows for other points.
    """
    times = case.padded.t.size
    if case.has_times(claim, length) or (claim.along_flow and row < times < length):
        return float(evidence.clock.since_start(np.asarray(case.padded.t)[row]))
    if claim.along_flow and length > times:
        row, length = row - times, length - times
    return f"point {row + 1} of {length}" if length > 1 else "one point"
