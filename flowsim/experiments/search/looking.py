"""What is looked at together in a search for a counterexample, from the draw to the verdicts."""

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

_CANDIDATES = 3  # of a batch, that are judged

Seen = list[tuple[Point, Margin]]


class BatchUnit(NamedTuple):
    """A batch to be looked at: its number among those of its space, and what is known when it is drawn.

    known: points with their objectives; refused: the least margin of what failed at first sight alone; least: that of
    all points, hypotheses met, with its point; descends: whether a descent follows from that.
    """

    place: int
    batch: int
    seed: int
    known: list[Known]
    refused: float
    least: tuple[float, Point] | None
    descends: bool


class Looked(NamedTuple):
    """What is found of a batch.

    seen, below: of its points and of those of a descent; doubts: what became of those that failed at first sight alone,
    with their margins; unjudged: how many failed so when the time was up; place: of a counterexample, if there is one;
    small: whether the time sufficed to make it as small as it can be; found: itself, unless another process found it.
    """

    seen: Seen
    below: Seen
    doubts: list[tuple[str, float]]
    unjudged: int = 0
    place: Point | None = None
    small: bool = True
    found: Counterexample | None = None

    def document(self) -> Document:
        """As JSON has it, without a counterexample; numbers that are not finite stay what they are."""
        return {"seen": rows_of(self.seen), "below": rows_of(self.below), "doubts": self.doubts}

    @staticmethod
    def of(document: Document) -> "Looked":
        """What was written down."""
        doubts = [(name, margin) for name, margin in document["doubts"]]
        return Looked(seen_of(document["seen"]), seen_of(document["below"]), doubts)


def look(screen: Screen, unit: BatchUnit, clock: Clock) -> Looked:
    """Look at a batch, as far as the time allows, and judge the worst of what fails at first sight."""
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
    return _judged(screen, Looked(seen, below, []), unit.refused, clock)


def look_for_place(screen: Screen, unit: BatchUnit, clock: Clock) -> Looked:
    """As `look`, without a counterexample itself, which another process confirms at its place."""
    return look(screen, unit, clock)._replace(found=None)


def _judged(screen: Screen, looked: Looked, refused: float, clock: Clock) -> Looked:
    """With the first of the worst points that is a counterexample, made small if it stays one."""
    clear = [(point, margin) for point, margin in (*looked.seen, *looked.below) if margin.clear and not margin.unmet]
    worst = sorted(clear, key=lambda pair: pair[1].objective)[:_CANDIDATES]
    for place, (point, margin) in enumerate(worst):
        # What failed no worse than what a verdict has refused is not asked for again.
        if margin.margin >= 2 * min([refused, *(least for _, least in looked.doubts)]):
            continue
        if clock.is_up():
            return looked._replace(unjudged=len(clear) - place)
        clock.tell("judging what failed at first sight")
        begin = clock.seconds
        found = confirmed(screen, point)
        if isinstance(found, str):
            looked.doubts.append((found, margin.margin))
            continue
        return _made_small(screen, looked._replace(place=point, found=found), clock, clock.seconds - begin)
    return looked


def _made_small(screen: Screen, looked: Looked, clock: Clock, took: float) -> Looked:
    """With the counterexample made small, as far as the time allows and it stays one.

    **Arguments:** took: how many seconds its verdict did, as will that of a smaller one.
    """
    assert looked.place is not None
    simpler, small = shrunk(screen, looked.place, clock, took)
    clock.tell("judging the small counterexample")
    smaller = confirmed(screen, simpler) if simpler.values != looked.place.values else ""
    if isinstance(smaller, str):
        return looked._replace(small=small)
    return looked._replace(place=simpler, small=small, found=smaller)


def rows_of(seen: Seen) -> list[list[Any]]:
    """Points and margins as JSON has them."""
    return [[point.space, plain(point.values), *margin] for point, margin in seen]


def seen_of(rows: Sequence[Sequence[Any]]) -> Seen:
    """What `rows_of` wrote down."""
    return [
        (Point(space, values), Margin(margin, factor, clear, tuple(unmet), distance))
        for space, values, margin, factor, clear, unmet, distance in rows
    ]
