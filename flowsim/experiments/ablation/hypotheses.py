"""Drop hypotheses of a claim: find problems that meet all other hypotheses and violate the statement."""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jaxtyping import PyTree

from flowsim._core import checks
from flowsim.claims import Claim
from flowsim.claims.hypotheses import Hypothesis
from flowsim.claims.spaces import Space
from flowsim.experiments.ablation.result import Ablated
from flowsim.experiments.ablation.starts import described
from flowsim.experiments.search.clock import Clock
from flowsim.experiments.search.counterexample import confirmed, shrunk
from flowsim.experiments.search.points import Point, Sampler
from flowsim.experiments.search.screening import Margin, Screen
from flowsim.losses import AbstractPopulationLoss

Looked = tuple[Point, Margin]
Seen = Sequence[Looked]
Names = frozenset[str]
Dropped = tuple[Ablated, Point | None]

_CONFIRMED = 3  # problems that are judged for each set of hypotheses
_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "=": "!="}


def looked(screen: Screen, turns: Sequence[Sequence[int]], seed: int, clock: Clock, most: int | float) -> list[Looked]:
    """Draw problems, and compute their margins and the hypotheses that they do not meet.

    **Arguments:**

    - screen: computes the margins of the claim, also where hypotheses are not met.
    - turns: groups of indices of the screen's spaces. Batches are drawn from each group in turn, and within a group
      from each space in turn.
    - seed: the seed of the draws.
    - clock: the budget.
    - most: the number of problems after which no further batch is drawn.

    **Returns:** the problems whose margin could be computed, with their margins.
    """
    seen: list[Looked] = []
    tried = 0
    for number in itertools.count():
        places, turn = turns[number % len(turns)], number // len(turns)
        place, batch = places[turn % len(places)], turn // len(places)
        sampler = Sampler(screen.spaces[place], place, seed)
        points = sampler.draw(batch, screen.lanes(sampler.draw(batch, 1)[0]))
        found = screen.look(points, clock)
        tried += len(found)
        seen += [(point, margin) for point, margin in found if not math.isnan(margin.margin)]
        if clock.has_ended(tried) or tried >= most:
            return seen
    return seen


def together(names: Sequence[str], seen: Seen, needed: Names) -> list[Names]:
    """The sets of hypotheses to drop together.

    All pairs of hypotheses that were not found needed come first. Some hypotheses may be unmet only together with
    at least two others. For each of them, the smallest set of unmet hypotheses that contains it follows, or the
    most frequent of the smallest sets. Sets that contain a needed hypothesis are left out.

    **Arguments:** names: all hypotheses; seen: problems with their margins; needed: the hypotheses found needed.
    """
    rest = [name for name in names if name not in needed]
    pairs = [frozenset(pair) for pair in itertools.combinations(rest, 2)]
    counts = Counter(group for _, margin in seen if (group := frozenset(margin.unmet)))
    larger = set()
    for name in rest:
        groups = [group for group in counts if name in group]
        if groups and min(map(len, groups)) > 2:
            larger.add(min(groups, key=lambda group: (len(group), -counts[group], sorted(group))))
    # A set with a needed hypothesis fails because of that hypothesis.
    return [*pairs, *sorted((group for group in larger if not group & needed), key=sorted)]


def dropped(claim: Claim, spaces: Sequence[Space], group: Names, seen: Seen, clock: Clock) -> Dropped:
    """Judge the problems that violate each hypothesis of a group and meet all others, as far as the time allows.

    **Arguments:**

    - claim: the claim.
    - spaces: the spaces of the problems.
    - group: the names of the hypotheses.
    - seen: problems with their margins.
    - clock: the budget.

    **Returns:** the row of the group, and the point of its counterexample, or None.
    """
    of_group = [(point, margin) for point, margin in seen if frozenset(margin.unmet) == group]
    fails = sorted((one for one in of_group if one[1].clear), key=lambda one: one[1].margin)
    screen = _without(claim, spaces, group, clock)
    found, late, there = None, False, None
    for place, (point, _) in enumerate(fails[:_CONFIRMED]):
        if clock.is_up(f"judging without {', '.join(sorted(group))}"):
            late = place == 0
            break
        if not isinstance(judged := confirmed(screen, point), str):
            found, there = judged, point
            break
    margins = [margin.margin for _, margin in of_group]
    misses = tuple((math.exp(margin.distance), margin.clear) for _, margin in of_group)
    return Ablated(tuple(sorted(group)), found, misses, min(margins, default=math.nan), late), there


def simplified(claim: Claim, spaces: Sequence[Space], of: Dropped, clock: Clock) -> Ablated:
    """The row ``of`` with its counterexample simplified, as far as the time allows. The change of the start is
    given in words.
    """
    row, point = of
    if row.counterexample is None or point is None:
        return row
    screen = _without(claim, spaces, frozenset(row.names), clock)
    simpler, small = shrunk(screen, point, clock, 0.0)
    smaller = confirmed(screen, simpler) if simpler.values != point.values else row.counterexample
    found = row.counterexample if isinstance(smaller, str) else smaller
    return dataclasses.replace(row, counterexample=described(found), small=small)


def _without(claim: Claim, spaces: Sequence[Space], group: Names, clock: Clock) -> Screen:
    """A screen for the claim on problems that violate each hypothesis of a group and meet all others."""
    conditions = opposite(claim.hypotheses, group)
    return Screen(dataclasses.replace(claim, hypotheses=conditions), spaces, clock.longest)


def opposite(conditions: Callable[..., list[Hypothesis]], group: Names) -> Callable[..., list[Hypothesis]]:
    """A function that returns the conditions with each hypothesis of the group replaced by its negation."""

    def found(loss: AbstractPopulationLoss, start: PyTree) -> list[Hypothesis]:
        return [_not(one) if one.name in group else one for one in conditions(loss, start)]

    return found


def _not(one: Hypothesis) -> Hypothesis:
    """The negation of a condition. If a side is NaN, neither the condition nor its negation is met."""
    known = ~(jnp.isnan(jnp.asarray(one.value)) | jnp.isnan(jnp.asarray(one.bound)))
    met = known & ~jnp.asarray(one.met)
    said = bool(met) if checks.is_concrete(met) else met
    return Hypothesis(f"not {one.name}", one.value, _OPPOSITE[one.relation], one.bound, said)
