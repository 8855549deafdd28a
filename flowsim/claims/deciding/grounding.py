"""Bound rounding errors in ball arithmetic where they decide a verdict."""

import dataclasses

import numpy as np

from flowsim.claims.claim import Claim, Comparison
from flowsim.claims.deciding.sides import LEAST_ERROR, Errors, Mask, Sides, solver_error
from flowsim.claims.deciding.verdict import Judgement
from flowsim.claims.evidence import Case
from flowsim.claims.evidence.bounds import NOTHING, Bounds
from flowsim.claims.evidence.comparing import WORST_RESOLUTION
from flowsim.claims.evidence.enclosing import CHEAP, COSTLY, NOT_TRACED, Enclosed, OpenError
from flowsim.flow.trajectory import Status

_CLEARLY = 100.0  # times its measured error: a smaller margin is decided by ball arithmetic only
_MOST_ROWS = 24  # rows that are enclosed if balls are costly: those nearest to their error
_MOST_FAILING, _SPREAD = 4, 9  # likewise: rows that fail, and rows spread from start to end

_UNREAD = "Its sides are not computed by jax.numpy alone, so they cannot be bounded between the output times."
_TOO_WIDE = {
    "weights": "The rounding error of the weights is too large to decide it.",
    "loss": "The rounding error of the numbers in the loss is too large to decide it.",
    "statement": "The rounding error of the constants in the statement is too large to decide it.",
    "solver": "The solver's error is too large to decide it: ask for a smaller rtol.",
    "way": (
        "The distance from the end of the flow to its limit is too large to decide it: ask for a stricter stop, "
        "as in rtol=1e-10, stop=flowsim.Stop(excess=1e-24, grad_norm=1e-13)."
    ),
    "rest": "The error between the output times, or of the samples, is too large to decide it.",
}


@dataclasses.dataclass(frozen=True)
class Ground:
    """The sides of a comparison with bounded errors.

    **Fields:**

    - sides: the sides.
    - note: why the sides do not decide the claim; empty if they do.
    - for_all_t: whether there is a row for each time.
    - last: the last row that was judged.
    - combines: whether a slack depends on several times, as in `Errors`.
    """

    sides: Sides
    note: str = ""
    for_all_t: bool = False
    last: int = 0
    combines: bool = False


def grounded(claim: Claim, rough: Case, fine: Case, ours: Comparison, errors: Errors) -> Ground:
    """The sides on the fine solve with their errors. Rounding errors are bounded in ball arithmetic.

    **Arguments:**

    - claim: the claim.
    - rough, fine: the two solves. Their difference is the solver's error.
    - ours: the comparison on the fine solve.
    - errors: the measured errors of its slack.
    """
    times, count, length = fine.padded.t.size, fine.run.t.size, ours.slack.shape[0]
    for_all_t = claim.along_flow and length >= times
    sides = Sides.of(ours, errors.measured, errors.asked)
    if for_all_t:
        sides = sides.without(slice(count, times))
    after = np.arange(times if for_all_t else 0, length)  # points that are not times
    look = _Look(claim, fine, sides, errors, after, for_all_t)
    found = look.everywhere()
    if claim.along_flow and rough is not fine and look.is_noisy(found):
        # Two solves may differ by the float64 noise of their losses, which balls do not have.
        quiet = look.quietly(rough, found)
        look, found = (look, found) if quiet is None else quiet
    last = count - 1
    if for_all_t:
        found = look.where_equal(found)
        found, last = look.until_rest(found)
    if look.jumps and found.judgement is Judgement.HOLDS:
        jump = f"Its sides may jump or oscillate between the output times, by {', '.join(look.jumps)}."
        reason = _UNREAD if NOT_TRACED in look.jumps else jump
        return Ground(_unknown(found), reason, for_all_t, last, errors.combines)
    return Ground(found, look.too_wide(found), for_all_t, last, errors.combines)


class _Look:
    """The sides of one comparison on one solve, with errors from ball arithmetic.

    **Arguments:**

    - claim: the claim.
    - case: the solve.
    - sides: the sides with their measured errors.
    - errors: the measured errors.
    - after: the rows of the comparison that are not times.
    - for_all_t: whether the comparison has a row for each time.
    """

    def __init__(self, claim: Claim, case: Case, sides: Sides, errors: Errors, after: np.ndarray, for_all_t: bool):
        self._claim, self._case, self._sides, self._errors = claim, case, sides, errors
        self._after, self._for_all_t = after, for_all_t
        self._count = case.run.t.size
        self.jumps: tuple[str, ...] = ()
        self._rows: np.ndarray | None = None  # the last rows that were enclosed

    def is_noisy(self, found: Sides) -> bool:
        """Whether the solver's error leaves a row undecided that would be decided without it. Only rows computed in
        balls count.
        """
        clear = dataclasses.replace(found, error=found.error - self._errors.solver)
        return self._rows is not None and bool(np.any(_open(found) & ~_open(clear)))

    def quietly(self, rough: Case, found: Sides) -> tuple["_Look", Sides] | None:
        """A new `_Look` whose solver's error is computed from both solves in balls, and its sides; None if that
        fails.
        """
        every = np.arange(self._count)
        other, ours = (self._bounds(case.enclosed.exact, every, COSTLY) for case in (rough, self._case))
        if other is None or ours is None:
            return None
        places = self._places(every)
        error = self._errors.solver.copy()
        error[places] = solver_error(
            rough=other.difference,
            fine=ours.difference,
            scale=np.where(np.isfinite(ours.scale), ours.scale, np.inf),
            counts=other.possible | ours.possible,
            rtol=self._case.run.settings.rtol,
        )
        errors = self._errors._replace(solver=np.minimum(error, self._errors.solver))
        sides = dataclasses.replace(self._sides, error=errors.measured)
        look = _Look(self._claim, self._case, sides, errors, self._after, self._for_all_t)
        return look, look.everywhere()

    def everywhere(self) -> Sides:
        """The sides with errors from balls: in all rows if that is cheap, else in the rows that decide the verdict.

        If nothing can be computed in balls, the measured errors are increased.
        """
        measured = self._sides
        every = np.arange(self._count)
        bounds = self._bounds(self._case.enclosed, every, CHEAP)
        if bounds is None:
            choices = [every]
            if self._for_all_t and not self._errors.combines:
                decisive = self._decisive(measured)
                choices = [np.union1d(decisive, np.linspace(0, self._count - 1, _SPREAD).astype(int)), decisive]
            looks = ((rows, self._bounds(self._case.enclosed, rows, COSTLY)) for rows in choices)
            rows, bounds = next((look for look in looks if look[1] is not None), (every, None))
            if bounds is None:
                return self._without_balls()
            # Where the measured error is too small in some rows, it is too small in the others.
            wrong = self._underrated(measured, bounds, rows.size)
            error = self._errors.unrounded + wrong * self._errors.rounding if wrong <= _CLEARLY else np.inf
            measured = dataclasses.replace(measured, error=np.broadcast_to(error, measured.error.shape))
        assert self._rows is not None
        found = self._with(measured, bounds, self._rows)
        # Rounding alone is never a violation.
        looked = np.zeros(found.slack.shape, dtype=bool)
        looked[self._places(self._rows)] = True
        found = dataclasses.replace(found, error=np.where(found.fails & ~looked, np.inf, found.error))
        if not np.any(_open(found)[self._places(self._rows)]):
            return found
        # Balls grow where a number occurs many times. A margin of exact numbers that is far above all measured errors
        # stands.
        rows = self._rows
        exact = self._bounds(self._case.enclosed.unrounded, rows, COSTLY)
        return found if exact is None else self._cleared(found, exact, rows)

    def _without_balls(self) -> Sides:
        """The sides with measured errors, for which stricter rules hold: a margin along a flow must be a hundred
        times its rounding error, and an identity is violated only if its sides differ by a hundred times this
        error.
        """
        measured = self._errors.rounding
        clearly = _CLEARLY * measured if self._claim.along_flow else measured
        little = np.minimum(_CLEARLY * measured, 0.1 * WORST_RESOLUTION * self._sides.size)
        error = np.where(self._sides.identity, np.maximum(measured, little), clearly)
        return dataclasses.replace(self._sides, error=self._errors.unrounded + error)

    def _cleared(self, found: Sides, exact: Bounds, rows: np.ndarray) -> Sides:
        """The sides with better slacks and errors in rows that are still undecided, from balls of numbers taken as
        exact.

        In these rows the error is the radius of the ball, plus a hundred times the measured rounding error, plus
        all other errors.
        """
        places = self._places(rows)
        middle, half = _middle(exact)
        error = _CLEARLY * self._errors.rounding[places] + half + self._errors.unrounded[places]
        better = _open(found)[places] & (error < found.error[places]) & np.isfinite(half)
        new = {name: getattr(found, name).copy() for name in ("slack", "error", "allowance", "possible", "certain")}
        values = {"slack": middle, "error": error, "allowance": exact.allowance}
        values |= {"possible": exact.possible, "certain": exact.certain}
        for name, value in values.items():
            new[name][places] = np.where(better, value, new[name][places])
        return dataclasses.replace(found, **new)

    def where_equal(self, found: Sides) -> Sides:
        """The sides with a tie wherever both sides are exactly equal. Such ties are searched for at the start, and
        at all times if the difference of the sides does not change along the flow.
        """
        count = self._count
        rests = self._case.status is Status.STATIONARY
        # For these, both solves have a slack of zero at all times.
        still = np.all((found.slack[:count] == 0) & (self._errors.solver[:count] <= 2 * LEAST_ERROR), axis=0)
        throughout = rests or bool(still.any())
        open_ = (_open(found) & ~found.identity)[: count if throughout else 1]
        if self._rows is None or not open_.any():
            return found
        rows = np.arange(count) if throughout else np.asarray([0, count - 1])
        bounds = self._bounds(self._case.enclosed.exact, rows, COSTLY)
        if bounds is None:
            return found
        middle, half = (part[: rows.size] for part in _middle(bounds))
        # The change of a series since its start is zero in its first row, with size zero, and has a size later.
        sizes = found.size[:count]
        nothing = NOTHING * np.max(sizes, axis=0, where=np.isfinite(sizes), initial=0.0)
        equal = bounds.zero[: rows.size] | (np.abs(middle) <= half) & (half <= nothing)
        tie = found.tie.copy()
        tie[0] = equal[0]
        if throughout:
            tie[:count] |= equal if rests else still & equal.all(axis=0)
        return dataclasses.replace(found, tie=tie)

    def until_rest(self, found: Sides) -> tuple[Sides, int]:
        """The sides up to the last row in which they can be judged, and the number of that row.

        After that row the flow is at rest and moves by rounding only, or rounding errors exceed its remaining
        motion.
        """
        first, last = self._case.at_rest, self._count - 1
        if first >= self._count:
            return found, last
        rows = np.arange(first, self._count)
        error = found.error.copy()
        error[rows] = np.inf
        found = dataclasses.replace(found, error=error)
        settled = self._case.settled
        if self._rows is not None and np.isfinite(settled.remaining):
            around = np.arange(self._count) if self._errors.combines else np.unique(np.append(0, rows))
            further = np.where(np.arange(self._count) >= first, settled.remaining, 0.0)
            bounds = self._bounds(settled.enclosed.wider(further), around, COSTLY)
            if bounds is not None:
                found = self._with(found, bounds, around)
        is_open = _open(found)[: self._count].reshape(self._count, -1)
        open_rows = np.flatnonzero(is_open.any(axis=1))
        if not open_rows.size or found.fails.any():
            return found, last
        begin = int(open_rows[0])
        entry = (begin, int(np.argmax(is_open[begin])))[: found.slack.ndim]
        # As a flow comes to rest its remaining motion loses digits.
        by_rounding = begin >= first or (begin >= self._case.near_rest and self._rounding_decides(found, entry))
        cut = found.without(slice(begin, self._count))
        return (cut, begin - 1) if by_rounding and cut.possible.any() else (found, last)

    def too_wide(self, found: Sides) -> str:
        """The message that names the error that leaves a claim undecided; empty if the claim is decided."""
        if found.judgement is not Judgement.UNRESOLVED:
            return ""
        at = tuple(np.argwhere(_open(found))[0].tolist())
        if not np.all(np.isfinite(found.error[at] + found.allowance[at])):
            return ""
        if found.allowance[at] > found.error[at]:
            return _TOO_WIDE["way"]
        if not self._rounding_decides(found, at):
            return _TOO_WIDE["solver" if self._errors.solver[at] >= self._errors.rest[at] else "rest"]
        places = [] if self._rows is None else self._places(self._rows).tolist()
        if at[0] not in places:
            return _TOO_WIDE["weights"]
        assert self._rows is not None
        try:
            return _TOO_WIDE[self._case.enclosed.widest(self._claim, self._rows, (places.index(at[0]), *at[1:]))]
        except OpenError:
            return _TOO_WIDE["weights"]

    def _rounding_decides(self, found: Sides, at: tuple[int, ...]) -> bool:
        other = self._errors.unrounded[at] + found.allowance[at]
        return bool(found.error[at] > 2 * other)

    def _bounds(self, enclosed: Enclosed, rows: np.ndarray, most_operations: float) -> Bounds | None:
        try:
            bounds = enclosed.compared(self._claim, rows, most_operations)
        except OpenError as error:
            self._note_jumps(error.jumps)
            return None
        self._note_jumps(bounds.jumps)
        if bounds.low.shape[0] != self._places(rows).size or bounds.low.shape[1:] != self._sides.slack.shape[1:]:
            return None
        self._rows = rows
        return bounds

    def _note_jumps(self, jumps: tuple[str, ...]) -> None:
        self.jumps = jumps if self._for_all_t else ()

    def _places(self, rows: np.ndarray) -> np.ndarray:
        """The rows of the comparison that belong to the given rows of the run, followed by the rows of the
        comparison that are not times.
        """
        return np.append(rows, self._after) if self._for_all_t else self._after

    def _decisive(self, measured: Sides) -> np.ndarray:
        """The rows that decide a verdict: those with slacks nearest to their errors, those that fail most clearly,
        the one with the least margin, the first and the last that assert anything, and both ends.
        """
        flat = lambda side: np.asarray(side)[: self._count].reshape(self._count, -1)
        near = np.min(flat(measured.nearness), axis=1)
        promising = np.flatnonzero(flat(measured.possible).any(axis=1))
        margin = np.min(np.where(flat(measured.possible), flat(measured.margin), np.inf), axis=1)
        first = [0, self._count - 1, *promising[:1], *promising[-1:], int(np.argmin(margin))]
        close = np.argsort(near, kind="stable")[:_MOST_ROWS]
        failing = np.flatnonzero(flat(measured.fails).any(axis=1))
        failing = failing[np.argsort(margin[failing], kind="stable")[:_MOST_FAILING]]
        return np.unique([*first, *failing, *close[near[close] < _CLEARLY]]).astype(int)

    def _underrated(self, measured: Sides, bounds: Bounds, times: int) -> float:
        """The largest distance of a float64 slack from its ball, in units of its measured rounding error; at least
        1.

        **Arguments:**

        - measured: the sides with measured errors.
        - bounds: the comparison in balls.
        - times: the number of rows that are output times.
        """
        assert self._rows is not None
        places = self._places(self._rows)[:times]
        middle, half = (part[:times] for part in _middle(bounds))
        apart = (np.abs(middle - measured.slack[places]) - half) / self._errors.rounding[places]
        known = np.isfinite(half) & np.isfinite(measured.slack[places]) & measured.possible[places]
        return max(1.0, float(np.max(apart, where=known, initial=0.0)))

    def _with(self, sides: Sides, bounds: Bounds, rows: np.ndarray) -> Sides:
        places = self._places(rows)
        middle, half = _middle(bounds)
        measured, rest = self._errors.rounding[places], self._errors.unrounded[places]
        error = rest + np.where(sides.identity[places], np.maximum(measured, half), half)
        new = {name: getattr(sides, name).copy() for name in ("slack", "error", "possible", "certain", "allowance")}
        infinite = np.isinf(sides.slack[places]) & ~np.isfinite(half)
        new["slack"][places] = np.where(infinite, sides.slack[places], middle)
        new["error"][places] = np.where(infinite, 0.0, np.where(np.isfinite(error), error, np.inf))
        new["slack"][places] = np.where(np.isfinite(half) | infinite, new["slack"][places], sides.slack[places])
        inside = (places < self._count) | (places >= self._case.padded.t.size) | (not self._for_all_t)
        inside = inside.reshape(-1, *[1] * (sides.slack.ndim - 1))
        new["possible"][places] = bounds.possible & inside
        new["certain"][places] = bounds.certain & inside
        new["allowance"][places] = bounds.allowance
        return dataclasses.replace(sides, **new)


def _middle(bounds: Bounds) -> tuple[np.ndarray, np.ndarray]:
    return (bounds.low + bounds.high) / 2, (bounds.high - bounds.low) / 2


def _unknown(sides: Sides) -> Sides:
    return dataclasses.replace(sides, error=np.full(sides.error.shape, np.inf))


def _open(sides: Sides) -> Mask:
    return sides.possible & ~sides.stands & ~sides.fails


def judgement_at_the_limit(claim: Claim, case: Case, sides: Sides) -> Judgement:
    """The judgement on a statement about the end of the flow, with the last weights replaced by a ball. The ball
    contains all weights that the flow may still reach: those within its remaining length.

    Unresolved if the sides cannot be computed in balls. If no bound on the remaining length is known, all weights
    count, and the loss may still fall to its minimum.
    """
    settled, count = case.settled, case.run.t.size
    enclosed = settled.enclosed.exact if case.status is Status.STATIONARY else settled.enclosed
    try:
        bounds = enclosed.settled(claim, np.arange(count), settled.remaining + case.end_error, COSTLY)
    except OpenError:
        return Judgement.UNRESOLVED
    every, times = np.arange(sides.slack.shape[0]), case.padded.t.size
    places = every if every.size < times else every[(every < count) | (every >= times)]
    if bounds.low.shape != sides.slack[places].shape:
        return Judgement.UNRESOLVED
    middle, half = _middle(bounds)
    error = np.where(np.isfinite(half), half + sides.error[places], np.inf)
    there = Sides(
        slack=middle,
        error=error,
        tie=bounds.zero,
        # The balls contain the limit, so that nothing is left to allow for.
        allowance=np.zeros(middle.shape),
        size=sides.size[places],
        possible=bounds.possible,
        certain=bounds.certain,
        identity=sides.identity[places],
        tightness=sides.tightness[places],
    )
    return there.judgement
