"""Judge statements about gradient descent. Ball arithmetic encloses the true iterates, and rounding is the only
error.
"""

import contextlib
import dataclasses
import functools
import math

import equinox as eqx
import jax
import numpy as np

from flowsim._core.functions import times_asked
from flowsim.claims.claim import Claim, Comparison
from flowsim.claims.deciding.ending import holds_beyond
from flowsim.claims.deciding.findings import Finding, not_solved
from flowsim.claims.deciding.iterates import CLEARLY, MOST, SAME_ROUNDED, DescentEvidence
from flowsim.claims.deciding.measuring import sampling_error
from flowsim.claims.deciding.sides import Sides
from flowsim.claims.deciding.verdict import Judgement
from flowsim.claims.evidence import ROUNDING
from flowsim.claims.evidence.bounds import NOTHING, Bounds
from flowsim.claims.evidence.case import ROUNDING_SAFETY
from flowsim.claims.evidence.comparing import WORST_RESOLUTION, compared
from flowsim.claims.evidence.enclosing import Enclosed, OpenError
from flowsim.claims.evidence.series import rows_of, scaled
from flowsim.claims.limits import takes_limit
from flowsim.flow.recording import uncertified
from flowsim.flow.trajectory import Trajectory
from flowsim.losses.sampled.monte_carlo import MonteCarloLoss

_OTHER_ENDS = (math.nan, math.nan), (2.0**-50, 2.0**50), (16.0, 2.0**-10), (-16.0, 1.0), (2.0**50, 2.0**-50)

_IS_NO_LIMIT = (
    "It takes the last iterate for the limit, and so depends on the number of steps: use flowsim.limit(descent, f) "
    "for the limit with a bound, or descent.at(k) for the model after k steps."
)
_DEPENDS_ON_STEPS = "It depends on the number of steps: return a row for each iterate, or use descent.at(k)."
_NO_BOUND = (
    "No bound is known on the distance from the last iterate to the limit: make more steps, or smaller ones. The "
    "minimum there may be degenerate."
)
_OTHER = "The iterates of the trajectory are not those of gradient descent on this loss."
_TOO_WIDE = "Rounding errors are too large to decide it."
_TOO_FAR = "The distance from the last iterate to the limit is too large to decide it: make more steps."
_GRANTED = 1e-8  # two sides may differ by as much of what is allowed for a limit


@dataclasses.dataclass(frozen=True)
class _Reading:
    """How a comparison depends on a descent.

    **Fields:**

    - is_series: whether it has a row for each iterate or each step.
    - reads_end: whether it uses the last iterate in a special role, and not only as one of many.
    """

    is_series: bool
    reads_end: bool


def found_along(claim: Claim, evidence: DescentEvidence) -> Finding:
    """Judge the conclusion of a claim from its two sides along a descent, without regard to its hypotheses."""
    unresolved = functools.partial(Finding, Judgement.UNRESOLVED)
    if evidence.differs:
        return unresolved(note=_OTHER)
    if reason := evidence.not_descending or _too_late(claim, evidence):
        return unresolved(note=reason)
    ours = compared(claim, evidence.stated, evidence.run)
    measured = _measured(claim, evidence, ours)
    reading = _read(claim, evidence, ours, measured)
    if isinstance(reading, str):
        return unresolved(note=reading)
    enclosed = evidence.enclosed
    asked = WORST_RESOLUTION
    if enclosed is not None and np.any(ours.allowance[ours.promised] > 0):
        enclosed = dataclasses.replace(enclosed, remaining=evidence.remaining)
        asked = _GRANTED if takes_limit(claim.compare, evidence.stated, evidence.run) else asked
    sides = dataclasses.replace(_sides(claim, evidence, ours, measured, enclosed), asked=asked)
    if reading.reads_end and (note := _of_the_limit(claim, evidence, sides)) is not None:
        return unresolved(note=note)
    judgement = sides.judgement
    until = {}
    if reading.is_series and judgement in (Judgement.HOLDS, Judgement.VACUOUS):
        last = float(evidence.run.t[-1])
        until = {} if _goes_on(claim, evidence, sides) else {"until": last, "cut": True}
    if judgement is Judgement.VACUOUS:
        return Finding(judgement, note="The statement promises nothing here.", sides=sides, **until)
    unfinished = not_solved("The descent", evidence.trajectory)
    if unfinished and judgement is not Judgement.VIOLATED:
        return unresolved(note=unfinished)
    slack = sides.slack[sides.possible]
    if not np.all(np.isfinite(slack) | (slack == np.inf)):
        return unresolved(note="A side of the statement is not finite. Look for an overflow in it.")
    worst = sides.worst
    place: float | str = float(worst[0])
    if not reading.is_series:
        place = f"point {worst[0] + 1} of {slack.size}" if slack.size > 1 else "one point"
    elif len(worst) > 1 and sides.slack.shape[1] > 1:
        place = f"k = {worst[0]}, entry {worst[1] + 1} of {sides.slack.shape[1]}"
    return Finding(
        judgement,
        margin=float(sides.margin[worst]),
        where=place,
        floor=float((sides.error[worst] + sides.allowance[worst]) / sides.size[worst]),
        tightness=float(sides.tightness[worst]) or None,
        note=_too_wide(sides) if judgement is Judgement.UNRESOLVED else "",
        sides=sides,
        **until,
    )


def _too_wide(sides: Sides) -> str:
    open_ = sides.possible & ~sides.stands & ~sides.fails
    return _TOO_FAR if np.all(sides.allowance[open_] > sides.error[open_]) else _TOO_WIDE


def _too_late(claim: Claim, evidence: DescentEvidence) -> str:
    """The message for a claim that evaluates the descent after a number k of steps for which the descent has no
    iterate. Empty for other claims.
    """
    last = evidence.run.t.size - 1
    with times_asked() as times, contextlib.suppress(Exception):
        eqx.filter_eval_shape(claim.compare, evidence.stated, evidence.run)
    wrong = [k for k in times if not (k == round(k) and 0 <= k <= last)]
    return f"It needs k = {wrong[0]:g}, but the descent makes {last} steps." if wrong else ""


def _measured(claim: Claim, evidence: DescentEvidence, ours: Comparison) -> np.ndarray:
    """The error of the slack from rounding, measured on descents whose weights are perturbed after every step."""
    found = np.zeros(ours.slack.shape)
    for loss, run in evidence.shaken:
        if run.t.size != evidence.run.t.size:
            return np.full(ours.slack.shape, np.inf)
        found = np.maximum(found, np.abs(compared(claim, loss, run).slack - ours.slack))
    return np.where(np.isinf(ours.slack), 0.0, ROUNDING_SAFETY * found + ROUNDING * ours.scale)


def _read(claim: Claim, evidence: DescentEvidence, ours: Comparison, measured: np.ndarray) -> _Reading | str:
    """How a comparison depends on a descent, found by comparing it on descents with more steps and with other last
    iterates.

    **Arguments:** claim; evidence; ours: the comparison on the descent; measured: the rounding error of its slack.

    **Returns:** the `_Reading`, or the reason why the claim has no meaning for another number of steps.
    """
    run, n = evidence.run, ours.slack.shape[0]
    longer = _with_last(run, 1.0, 1.0, more=1)
    with_row = compared(claim, evidence.stated, longer).slack.shape[0]
    if with_row not in (n, n + 1):
        return "Its number of rows must match the number of steps: return one row for each iterate or for each step."
    is_series = with_row == n + 1
    # The last row of a series may read the last iterate.
    rows, own = slice(n), slice(n - 1 if is_series else n)
    reads_end = False
    for factors in _OTHER_ENDS:
        # With other numbers a size may be negative, which is refused.
        with contextlib.suppress(ValueError):
            after = compared(claim, evidence.stated, _with_last(run, *factors, more=1))
            if not np.any(_changed(ours, after, rows, measured)):
                continue
            reads_end = True
            there = compared(claim, evidence.stated, _with_last(run, *factors, more=0))
            if np.any(_changed(there, after, own, measured)):
                return _DEPENDS_ON_STEPS
            if is_series and np.any(_changed(ours, after, slice(n - 1, n), measured)):
                # Its last row is another one if a step follows.
                return _DEPENDS_ON_STEPS
    for factors in () if is_series or reads_end else _OTHER_ENDS:
        # An iterate that is counted from the end is another one if more steps follow.
        with contextlib.suppress(ValueError):
            further = compared(claim, evidence.stated, _with_last(run, *factors, more=run.t.size))
            if further.slack.shape != ours.slack.shape or np.any(_changed(ours, further, rows, measured)):
                return _DEPENDS_ON_STEPS
    return _Reading(is_series, reads_end)


def _changed(one: Comparison, other: Comparison, rows: slice, measured: np.ndarray) -> np.ndarray:
    """Where two comparisons differ by more than rounding, in the given rows."""
    same = np.abs(one.slack[rows] - other.slack[rows]) <= np.maximum(SAME_ROUNDED * one.scale[rows], measured[rows])
    same |= (one.slack[rows] == other.slack[rows]) | (np.isnan(one.slack[rows]) & np.isnan(other.slack[rows]))
    return (~same & (one.promised[rows] | other.promised[rows])) | (one.promised[rows] != other.promised[rows])


def _with_last(run: Trajectory, weights: float, losses: float, *, more: int) -> Trajectory:
    """A descent with false numbers in its last row, or in ``more`` rows that are added after it.

    Each false number is a factor times a number larger than all before it: the factor is ``weights`` for the
    weights and |grad L|^2, and ``losses`` for the loss, the excess and the dissipated energy.
    """

    def repeated(leaf):
        if not more or not eqx.is_array(leaf):
            return leaf
        values = np.asarray(leaf)
        return jax.device_put(np.concatenate([values, np.repeat(values[-1:], more, axis=0)]))

    def other(factor, leaf):
        if not eqx.is_inexact_array(leaf):
            return leaf
        values = np.array(leaf)
        values[-max(more, 1) :] = factor * (values[-1] + 1 + np.max(np.abs(values), initial=0.0))
        return jax.device_put(values)

    rows = jax.tree.map(repeated, (run.t, run.models, run.loss, run.excess, run.grad_norm_sq, run.dissipated))
    t, models, loss, excess, grad_norm_sq, dissipated = rows
    if more:
        t = jax.device_put(np.arange(t.size, dtype=float))
    models, grad_norm_sq = jax.tree.map(functools.partial(other, weights), (models, grad_norm_sq))
    loss, excess, dissipated = jax.tree.map(functools.partial(other, losses), (loss, excess, dissipated))
    return uncertified(t, models, loss, excess, grad_norm_sq, dissipated, run.descent, repeated(run.step_size))


def _thinned(run: Trajectory, rows: slice) -> Trajectory:
    """A descent reduced to some of its rows."""
    pick = lambda leaf: jax.device_put(np.asarray(leaf)[rows]) if eqx.is_array(leaf) else leaf
    models, sizes = jax.tree.map(pick, (run.models, run.step_size))
    t, loss, excess, grad_norm_sq, dissipated = map(pick, rows_of(run))
    return uncertified(t, models, loss, excess, grad_norm_sq, dissipated, run.descent, sizes)


def _sides(
    claim: Claim, evidence: DescentEvidence, ours: Comparison, measured: np.ndarray, enclosed: Enclosed | None
) -> Sides:
    """The sides at the true iterates, with bounds on the errors of rounding. Where there are no bounds, the
    measured sides, with an error so large that only clear margins count.

    **Arguments:**

    - claim, evidence: the claim and the evidence.
    - ours: the comparison on the descent.
    - measured: the measured rounding error of its slack.
    - enclosed: the true iterates in balls, or None.
    """
    little = np.minimum(CLEARLY * measured, np.maximum(measured, 0.1 * WORST_RESOLUTION * ours.reference))
    clear = np.where(ours.identity, little, CLEARLY * measured)
    if isinstance(evidence.loss, MonteCarloLoss):
        clear = clear + sampling_error(claim, evidence.replicates, ours) if evidence.samples_matter(claim) else clear
    sides = Sides.of(ours, clear)
    rounded = None if enclosed is None else _bounds(claim, enclosed, ours)
    if enclosed is None or rounded is None:
        return sides
    middle, half = (rounded.low + rounded.high) / 2, (rounded.high - rounded.low) / 2
    infinite = np.isinf(ours.slack) & ~np.isfinite(half)
    half = np.where(np.isnan(half), np.inf, half)
    sides = dataclasses.replace(
        sides,
        slack=np.where(np.isfinite(half), middle, ours.slack),
        error=np.where(infinite, 0.0, np.where(ours.identity, np.maximum(measured, half), half)),
        allowance=rounded.allowance,
        possible=rounded.possible,
        certain=rounded.certain,
    )
    if sides.judgement is not Judgement.UNRESOLVED:
        return sides
    exact = _bounds(claim, enclosed.exact, ours)
    if exact is None:
        return sides
    # Balls of rounded numbers grow where a number occurs many times. Those of exact numbers show the margin, and where
    # the sides are equal.
    middle, half = (exact.low + exact.high) / 2, (exact.high - exact.low) / 2
    half = np.where(np.isnan(half), np.inf, half)
    sizes = ours.reference
    tie = exact.zero | (np.abs(middle) <= half) & (half <= NOTHING * np.where(np.isfinite(sizes), sizes, 0.0))
    error = half + np.where(ours.identity, measured, CLEARLY * measured)
    better = sides.possible & ~sides.stands & ~sides.fails & (error < sides.error)
    return dataclasses.replace(
        sides,
        slack=np.where(better, middle, sides.slack),
        error=np.where(better, error, sides.error),
        allowance=np.where(better, exact.allowance, sides.allowance),
        tie=tie & ~ours.identity,
    )


def _bounds(claim: Claim, enclosed: Enclosed, ours: Comparison, radius: float | None = None) -> Bounds | None:
    """The comparison in balls; None if that fails. If ``radius`` is given, the last iterate is replaced by a ball
    that contains all weights within this distance of it.
    """
    rows = np.arange(enclosed.run.t.size)
    try:
        bounds = enclosed.compared(claim, rows, MOST) if radius is None else enclosed.settled(claim, rows, radius, MOST)
    except OpenError:
        return None
    return bounds if bounds.low.shape == ours.slack.shape else None


def _of_the_limit(claim: Claim, evidence: DescentEvidence, sides: Sides) -> str | None:
    """The reason why a statement that uses the last iterate may have another verdict at the limit. None if the
    verdict is the same there.
    """
    if evidence.enclosed is None or not math.isfinite(evidence.remaining):
        return _NO_BOUND if np.any(sides.allowance[sides.possible] > 0) else _IS_NO_LIMIT
    enclosed = dataclasses.replace(evidence.enclosed, remaining=evidence.remaining)
    bounds = _bounds(claim, enclosed, compared(claim, evidence.stated, evidence.run), evidence.remaining)
    if bounds is None:
        return _IS_NO_LIMIT
    middle, half = (bounds.low + bounds.high) / 2, (bounds.high - bounds.low) / 2
    there = dataclasses.replace(
        sides,
        slack=middle,
        # The balls contain the limit, so that nothing is left to allow for.
        error=np.where(np.isfinite(half), half, np.inf) + np.where(sides.identity, sides.error, 0.0),
        allowance=np.zeros(middle.shape),
        possible=bounds.possible,
        certain=bounds.certain,
        tie=bounds.zero,
    )
    judged = dataclasses.replace(sides, asked=WORST_RESOLUTION).judgement
    return None if there.judgement is judged else _IS_NO_LIMIT


def _goes_on(claim: Claim, evidence: DescentEvidence, sides: Sides) -> bool:
    """Whether a statement for all k also holds after the last step."""
    enclosed, run = evidence.enclosed, evidence.run
    if enclosed is None or sides.slack.shape[0] != run.t.size or run.t.size < 2:
        return False
    ours, every = compared(claim, evidence.stated, run), slice(0, None, 2)
    try:
        thinned = compared(claim, evidence.stated, _thinned(run, every))
    except ValueError:
        return False
    # What counts rows is not known at later ones.
    own = jax.tree.map(lambda side: side[every], ours)
    if own.slack.shape != thinned.slack.shape or np.any(_changed(own, thinned, slice(None), np.zeros(own.slack.shape))):
        return False
    for factors in _OTHER_ENDS[1:3]:
        # What reads several iterates at once is not known at later ones.
        others = scaled(run, slice(1, run.t.size - 1, 2), *factors)
        try:
            changed = compared(claim, evidence.stated, others)
        except ValueError:
            return False
        if np.any(_changed(ours, changed, slice(0, None, 2), np.zeros(ours.slack.shape))):
            return False
    if not math.isfinite(evidence.remaining):
        return False
    return holds_beyond(claim, dataclasses.replace(enclosed, remaining=evidence.remaining), evidence.remaining, sides)
