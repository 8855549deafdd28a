"""Widen the bounds of a claim's spaces: try problems beyond one end of one axis, where the statement may fail.

The bounds of seeds, of lists and of ranks are not tested; a rank is at most the dimension. Numbers are drawn up to
ten times an upper bound, or down to a tenth of a lower bound. If the axis has negative numbers, or if the lower
bound is zero, numbers are drawn up to the length of the axis beyond the bound. Sizes of arrays decide the cost of a
problem. They exceed a bound by at most a quarter of the bound, or by one if that is more.
"""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from flowsim.claims import Claim
from flowsim.claims.spaces import Axis, Each, Real, Space, Whole
from flowsim.experiments.ablation.result import Widened
from flowsim.experiments.search.clock import Clock
from flowsim.experiments.search.counterexample import confirmed
from flowsim.experiments.search.points import Point, Sampler, remembered
from flowsim.experiments.search.screening import LANES, Margin, Screen, built

_FACTOR = 10  # by which a bound is widened
_PART = 4  # a size is widened by a quarter of it
_EMPTY = 4  # batches without a problem after which no more are drawn
_HALVINGS = 12
_NEAREST = 2  # failures nearest to the bound that are bisected, in addition to the worst one
_LOOKING, _JUDGING = "looking beyond a bound", "judging beyond a bound"
_TIME = "the time ended before: give it more"


class Bound(NamedTuple):
    """One end of an axis.

    **Fields:**

    - axis: the name of the axis.
    - upper: whether it is the upper end.
    - at: the value at this end.
    - reach: the farthest value beyond this end at which problems are drawn.
    - sizes: whether the axis changes the shapes of arrays.
    - places: the indices of the claim's spaces that have this end.
    """

    axis: str
    upper: bool
    at: int | float
    reach: int | float
    sizes: bool
    places: tuple[int, ...]

    def is_beyond(self, value: Any) -> bool:
        """Whether a value, or any entry of a list, is beyond the bound."""
        if isinstance(value, Sequence):
            return any(map(self.is_beyond, value))
        return value > self.at if self.upper else value < self.at

    def factor(self, value: Any) -> float:
        """How far a value, or the farthest entry of a list, is beyond the bound; 1 if it is not beyond.

        If ``at`` and ``reach`` are positive, this is the ratio of the value and ``at``, the larger over the
        smaller. Otherwise it is 1 plus the distance beyond ``at``, as a fraction of the distance between ``at`` and
        ``reach``.
        """
        if isinstance(value, Sequence):
            return max(map(self.factor, value))
        if not self.is_beyond(value):
            return 1.0
        if min(self.at, self.reach) > 0:
            return max(value / self.at, self.at / value)
        return 1 + abs(value - self.at) / abs(self.reach - self.at)

    def moved(self, value: Any, part: float) -> Any:
        """The value, with its distance beyond the bound multiplied by ``part``. A value that is not beyond stays
        unchanged.
        """
        if isinstance(value, Sequence):
            return [self.moved(one, part) for one in value]
        if not self.is_beyond(value):
            return value
        near = self.at + part * (value - self.at)
        return round(near) if isinstance(value, int) else near


def bounds_of(spaces: Sequence[Space]) -> list[Bound]:
    """The bounds of spaces to test. Bounds of axes that change the shapes of arrays come last."""
    found: dict[tuple[str, bool, int | float, int | float, bool], list[int]] = {}
    for place, space in enumerate(spaces):
        for name, axis in space.axes.items():
            span = axis.of if isinstance(axis, Each) else axis
            if not isinstance(span, Whole | Real) or name.endswith("seed") or name == "init.rank":
                continue
            sizes = name in space.shaping
            for upper, at, reach in ((False, span.low, _lower(span, sizes)), (True, span.high, _upper(span, sizes))):
                if at != reach:
                    found.setdefault((name, upper, at, reach, sizes), []).append(place)
    bounds = [Bound(*key, places=tuple(places)) for key, places in found.items()]
    return sorted(bounds, key=lambda bound: bound.sizes)


def _upper(span: Whole | Real, sizes: bool) -> int | float:
    if sizes:
        return span.high + max(1, int(span.high) // _PART)
    return _FACTOR * span.high if span.low >= 0 else span.high + (span.high - span.low)


def _lower(span: Whole | Real, sizes: bool) -> int | float:
    if sizes:
        return span.low - max(1, int(span.low) // _PART)
    if span.low > 0:
        return span.low // _FACTOR if isinstance(span, Whole) else span.low / _FACTOR
    return span.low - (span.high - span.low)


class Outlook:
    """A search for failures of a claim beyond one bound, batch by batch.

    **Arguments:**

    - claim: the claim.
    - screen: computes the margins of the claim, also where hypotheses are not met.
    - first: the index of the claim's first space among the spaces of the screen.
    - bound: the bound.
    - seed: the seed of the draws.
    - most: the number of problems after which no further batch is drawn.
    """

    def __init__(self, claim: Claim, screen: Screen, first: int, bound: Bound, seed: int, most: int | float):
        self._claim, self._screen, self._bound, self._seed, self._most = claim, screen, bound, seed, most
        self._spaces = list(screen.spaces)
        self._places = [first + place for place in bound.places]
        for place in self._places:
            self._spaces[place] = _over(screen.spaces[place], bound)
        self._looked: list[tuple[Point, Margin]] = []
        self._batches = self._tried = 0
        self._why = _TIME

    @property
    def has_ended(self) -> bool:
        """Whether the search is over: the statement seems to fail, enough problems were tried, or several batches
        had no problem that meets the hypotheses.
        """
        met = [margin for _, margin in self._looked if not margin.unmet]
        fails = any(margin.clear for margin in met)
        return fails or self._tried >= self._most or (not met and self._batches >= _EMPTY)

    def look(self, clock: Clock) -> None:
        """Draw one more batch of problems beyond the bound, and compute their margins."""
        place = self._places[self._batches % len(self._places)]
        batch, space = self._batches // len(self._places), self._spaces[place]
        self._batches += 1
        known = [(point, margin.objective) for point, margin in self._looked if point.space == place]
        points = Sampler(space, place, self._seed).draw(batch, LANES, remembered(known))
        beyond = (point for point in points if self._bound.is_beyond(point.values[self._bound.axis]))
        refused: list[str] = []
        exist = (point for point in beyond if _exists(space, point, refused))
        if (one := next(exist, None)) is not None:
            # The screen keeps the spaces as they are, so that one program serves all bounds.
            count = int(min(self._screen.lanes(one), self._most - self._tried))
            found = self._screen.look([one, *itertools.islice(exist, count - 1)], clock)
            self._tried += len(found)
            self._looked += [(point, margin) for point, margin in found if not math.isnan(margin.margin)]
            self._why = "no margin could be computed there"
        elif refused and not self._looked:
            self._why = f"there is no such problem ({refused[0]})"

    def row(self, clock: Clock) -> Widened:
        """The row of results for this bound. Its counterexample is the confirmed failure nearest to the bound,
        among those found in time.
        """
        bound = self._bound
        beyond = functools.partial(Widened, bound.axis, bound.upper, bound.at, bound.reach)
        met = [(point, margin) for point, margin in self._looked if not margin.unmet]
        if not met:
            return beyond(why=_missing(self._looked) if self._looked else self._why)
        misses = tuple((bound.factor(point.values[bound.axis]), margin.clear) for point, margin in met)
        beyond = functools.partial(beyond, misses=misses, least=min(margin.margin for _, margin in met))
        fails = [one for one in met if one[1].clear]
        near = sorted((point for point, _ in fails), key=lambda point: bound.factor(point.values[bound.axis]))
        worst = [point for point, _ in sorted(fails, key=lambda one: one[1].margin)[:1]]
        starts = [*near[:_NEAREST], *(point for point in worst if point not in near[:_NEAREST])]
        judge, late = Screen(self._claim, self._spaces, clock.longest), bool(fails)
        for point, stands in _candidates(self._screen, bound, starts, clock):
            if clock.is_up(_JUDGING):
                break
            late = False
            if not isinstance(found := confirmed(judge, point), str):
                inside = not bound.is_beyond(point.values[bound.axis])
                return beyond(counterexample=found, stands=stands, inside=inside)
        return beyond(late=late)


def _exists(space: Space, point: Point, refused: list[str]) -> bool:
    """Whether the problem at a point can be built. If not, the reason is added to ``refused``.

    The test is needed since a compiled program does not check the values of a problem.
    """
    try:
        built(space, point.values)
    except (ValueError, ArithmeticError, MemoryError) as error:
        refused.append(str(error))
        return False
    return True


def _missing(looked: Sequence[tuple[Point, Margin]]) -> str:
    """A sentence that names the hypotheses that exclude all problems beyond the bound."""
    excluded = Counter(name for _, margin in looked for name in margin.unmet)
    always = [name for name, count in excluded.items() if count == len(looked)]
    if always:
        return f"every problem that was tried there misses a hypothesis: {' and '.join(always)}"
    return f"every problem that was tried there misses one of the hypotheses {'; '.join(excluded)}"


def _over(space: Space, bound: Bound) -> Space:
    """The space with the axis of the bound replaced by the values from the bound to its ``reach``.

    For a size of arrays, the values start one beyond the bound. For a vector, the values also include the former
    range, so that a vector may have entries on both sides of the bound.
    """
    axis: Axis = space.axes[bound.axis]
    span = axis.of if isinstance(axis, Each) else axis
    assert isinstance(span, Whole | Real), "a list has no bounds"
    if isinstance(axis, Each):
        near = span.low if bound.upper else span.high
    else:
        near = bound.at + (bound.sizes if bound.upper else -bound.sizes)
    ends = sorted((near, bound.reach))
    wide = Whole(int(ends[0]), int(ends[1])) if isinstance(span, Whole) else Real(*ends)
    return space.over({bound.axis: wide})


def _candidates(
    screen: Screen, bound: Bound, fails: Sequence[Point], clock: Clock
) -> Iterator[tuple[Point, int | float | list[float] | None]]:
    """Problems at which the statement seems to fail, in the order in which they are judged.

    First come problems found by bisection between the bound and each failure in ``fails``, the nearest to the bound
    first. Then come the failures themselves. Each problem is paired with the nearest value of the axis at which the
    statement does not fail, or with None if no such value is known. There is no bisection for axes of sizes.
    """
    ways = [] if bound.sizes else [_way_back(screen, bound, point, clock) for point in fails]
    yield from sorted(ways, key=lambda way: bound.factor(way[0].values[bound.axis]))
    yield from ((point, None) for point in fails)


def _way_back(
    screen: Screen, bound: Bound, point: Point, clock: Clock
) -> tuple[Point, int | float | list[float] | None]:
    """Move a failure towards the bound by bisection, with all other axes fixed.

    **Returns:** the nearest problem to the bound at which the statement seems to fail, and the nearest value of the
    axis at which it does not fail. This value is None if it is not known, or if the statement also fails at the
    bound.
    """

    def at(part: float) -> Point:
        return Point(point.space, {**point.values, bound.axis: bound.moved(point.values[bound.axis], part)})

    def margin(part: float) -> Margin:
        return screen.margins([at(part)])[0]

    def fails(of: Margin) -> bool:
        return of.clear and not of.unmet

    if clock.is_up(_LOOKING):
        return point, None
    if fails(here := margin(0.0)):
        return at(0.0), None
    near, far, known = 0.0, 1.0, not here.unmet and not math.isnan(here.margin)
    for _ in range(_HALVINGS):
        middle = (near + far) / 2
        value = at(middle).values[bound.axis]
        if value in (at(near).values[bound.axis], at(far).values[bound.axis]) or clock.is_up(_LOOKING):
            break
        if fails(here := margin(middle)):
            far = middle
        else:
            near, known = middle, not here.unmet and not math.isnan(here.margin)
    return at(far), at(near).values[bound.axis] if known else None
