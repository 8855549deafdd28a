"""A batch of a search for a counterexample: draw points, compute their margins, and judge the worst points.

Here a margin fails if the statement fails at the point by more than the errors of its two sides.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from flowsim._core.documents import plain
from flowsim._core.types import Document
from flowsim.experiments.search.clock import Clock
from flowsim.experiments.search.counterexample import Counterexample, confirmed, shrunk
from flowsim.experiments.search.descent import descend
from flowsim.experiments.search.points import Known, Point, Sampler
from flowsim.experiments.search.screening import Margin, Screen

_CANDIDATES = 3  # points of a batch that are judged

Seen = list[tuple[Point, Margin]]


class BatchUnit(NamedTuple):
    """A batch of points to draw from one space, and the results on which the draw depends.

    **Fields:**

    - place: the index of the space.
    - batch: the number of the batch in this space.
    - seed: the seed of the search.
    - known: points with their objectives.
    - refused: the least margin among points whose margin fails but whose verdict is not "violated"; infinite
      without such points.
    - least: the least margin so far of a point that meets the hypotheses, with the point, or None.
    - descends: whether a descent of the margin follows, from the point with the least margin.
    """

    place: int
    batch: int
    seed: int
    known: list[Known]
    refused: float
    least: tuple[float, Point] | None
    descends: bool


class BatchResult(NamedTuple):
    """The result of a batch.

    **Fields:**

    - seen, below: the points of the batch, and the points of a descent from the best of them, with their margins.
    - doubts: for points with a failing margin whose verdict is not "violated", the verdict in words and the margin.
    - unjudged: how many points with a failing margin were not judged in time.
    - place: the point of a counterexample, or None.
    - small: whether the time sufficed to simplify the counterexample fully.
    - found: the counterexample, or None. A worker does not return it.
    """

    seen: Seen
    below: Seen
    doubts: list[tuple[str, float]]
    unjudged: int = 0
    place: Point | None = None
    small: bool = True
    found: Counterexample | None = None

    def document(self) -> Document:
        """The result for JSON, without the counterexample. Numbers that are not finite remain floats."""
        return {"seen": rows_of(self.seen), "below": rows_of(self.below), "doubts": self.doubts}

    @staticmethod
    def of(document: Document) -> "BatchResult":
        """The inverse of `document`."""
        doubts = [(name, margin) for name, margin in document["doubts"]]
        return BatchResult(seen_of(document["seen"]), seen_of(document["below"]), doubts)


def look(screen: Screen, unit: BatchUnit, clock: Clock) -> BatchResult:
    """Compute the margins of a batch, as far as the time allows, and judge the worst points whose margin fails.

    **Arguments:**

    - screen: computes the margins of the claim.
    - unit: the batch.
    - clock: the budget.
    """
    sampler = Sampler(screen.spaces[unit.place], unit.place, unit.seed)
    count = screen.lanes(sampler.draw(unit.batch, 1)[0])
    seen = screen.look(sampler.draw(unit.batch, count, unit.known), clock)
    below = []
    if unit.descends and len(seen) == count:
        usable = [(margin.margin, point) for point, margin in seen if not margin.unmet and math.isfinite(margin.margin)]
        if unit.least is not None:
            usable.insert(0, unit.least)
        if usable:
            least = min(usable, key=lambda pair: pair[0])
            below = screen.look(descend(screen, least[1], clock), clock)
    return _judged(screen, BatchResult(seen, below, []), unit.refused, clock)


def look_on_worker_for_place(screen: Screen, unit: BatchUnit, clock: Clock) -> BatchResult:
    """The result of `look` on a worker, without the counterexample. The main process confirms the counterexample
    again at its point.
    """
    return look(screen, unit, clock)._replace(found=None)


def _judged(screen: Screen, looked: BatchResult, refused: float, clock: Clock) -> BatchResult:
    """Judge the worst points of a batch. The first that is a counterexample is simplified and added to the result.

    **Arguments:**

    - screen: computes the margins of the claim.
    - looked: the result of the batch so far.
    - refused: as in `BatchUnit`.
    - clock: the budget.
    """
    clear = [(point, margin) for point, margin in (*looked.seen, *looked.below) if margin.clear and not margin.unmet]
    worst = sorted(clear, key=lambda pair: pair[1].objective)[:_CANDIDATES]
    for place, (point, margin) in enumerate(worst):
        # A point is judged only if it fails by twice as much as any point whose verdict was not "violated".
        if margin.margin >= 2 * min([refused, *(least for _, least in looked.doubts)]):
            continue
        if clock.is_up():
            return looked._replace(unjudged=len(clear) - place)
        clock.tell("judging the worst")
        begin = clock.seconds
        found = confirmed(screen, point)
        if isinstance(found, str):
            looked.doubts.append((found, margin.margin))
            continue
        return _made_small(screen, looked._replace(place=point, found=found), clock, clock.seconds - begin)
    return looked


def _made_small(screen: Screen, looked: BatchResult, clock: Clock, took: float) -> BatchResult:
    """The result with its counterexample simplified, as far as the time allows.

    **Arguments:**

    - screen: computes the margins of the claim.
    - looked: the result with a counterexample.
    - clock: the budget.
    - took: the seconds that a verdict takes, which are reserved for judging the simplified counterexample.
    """
    assert looked.place is not None
    simpler, small = shrunk(screen, looked.place, clock, took)
    clock.tell("judging the simplified counterexample")
    smaller = confirmed(screen, simpler) if simpler.values != looked.place.values else ""
    if isinstance(smaller, str):
        return looked._replace(small=small)
    return looked._replace(place=simpler, small=small, found=smaller)


def rows_of(seen: Seen) -> list[list[Any]]:
    """Points and their margins as nested lists for JSON."""
    return [[point.space, plain(point.values), *margin] for point, margin in seen]


def seen_of(rows: Sequence[Sequence[Any]]) -> Seen:
    """The inverse of `rows_of`."""
    return [
        (Point(space, values), Margin(margin, factor, clear, tuple(unmet), distance))
        for space, values, margin, factor, clear, unmet, distance in rows
    ]
