"""Search for what a claim needs: its hypotheses, one or several at a time, and the bounds of its spaces.

Problems come from the spaces of the claim, and from those of its paper's other claims about the same models. In
addition, starts are changed: one array of weights, or all of them, is multiplied or negated, or one array is made
less symmetric or displaced. For pairs of hypotheses, starts are changed twice.
"""

import math
import os
import pathlib

from flowsim import papers
from flowsim._core import checks
from flowsim._core.files import refuse_taken
from flowsim.claims import Claim
from flowsim.claims.spaces import Space
from flowsim.experiments.ablation.bounds import Outlook, bounds_of
from flowsim.experiments.ablation.hypotheses import Dropped, dropped, looked, simplified, together
from flowsim.experiments.ablation.result import FILE, Ablated, Ablation, Widened
from flowsim.experiments.ablation.starts import changed
from flowsim.experiments.search.clock import Clock
from flowsim.experiments.search.points import Sampler
from flowsim.experiments.search.screening import Screen, built

# Shares of the budget at which each part ends: looking without hypotheses, judging each alone, looking at starts that
# are changed twice, judging several together, bounds. The rest makes counterexamples small.
_LOOKED, _ALONE, _TWICE, _JUDGED, _WIDENED = 0.35, 0.5, 0.6, 0.7, 0.85
_OUTLOOK = 0.6  # of the time for bounds is spent before any problem beyond them is judged


def ablate(
    claim: Claim,
    *,
    budget: int | float = 600,
    problems: int | None = None,
    seed: int = 0,
    out: str | os.PathLike | None = None,
    progress: bool = False,
) -> Ablation:
    """Search for the hypotheses that a claim needs, and for the bounds of its spaces that it needs.

    For each hypothesis, the search looks for a problem that violates the statement and meets all other hypotheses.
    For each pair of hypotheses neither of which was found needed, it looks for one that meets all hypotheses except
    this pair. For each bound, it looks for a problem beyond the bound that violates the statement.

    **Arguments:**

    - claim: the claim.
    - budget: seconds for the whole search. At most one more unit of work is done (see `Clock`).
    - problems: a number of problems instead of a budget: two thirds of them for single hypotheses, a sixth for
      pairs if there are any, the rest for bounds, in whole batches. The result then depends on the seed and not on
      the clock.
    - seed: the seed of the draws.
    - out: a folder for ablation.json.
    - progress: whether to show a progress bar.

    **Raises:** `ValueError` if the claim has no spaces, if it has neither hypotheses nor bounds to test, or if
    ablation.json cannot be written to the folder.
    """
    if out is not None:
        refuse_taken("out", pathlib.Path(out) / FILE)
    if not claim.spaces:
        checks.refuse(f"the claim {claim.id}", "one with a space of problems to search", "it declares none")
    clock = Clock(budget, problems)
    loss, start, _ = built(claim.spaces[0], Sampler(claim.spaces[0], 0, seed).draw(0, 1)[0].values)
    names = [condition.name for condition in claim.hypotheses(loss, start)]
    bounds = bounds_of(claim.spaces)
    if not names and not bounds:
        checks.refuse(f"the claim {claim.id}", "one with hypotheses, or with ranges in its spaces", "it has neither")
    with clock.shown(claim.id, progress):
        once, twice = ([changed(space, place, n) for place, space in enumerate(claim.spaces)] for n in (1, 2))
        screen = Screen(claim, (*once, *claim.spaces, *_siblings(claim), *twice), clock.longest, beyond=True)
        count, total = len(once), len(screen.spaces)
        part, end = clock.problems or math.inf, lambda share: clock.until(share * clock.budget)
        turns = [range(count), range(count, total - count)]
        seen = looked(screen, turns, seed, end(_LOOKED), part * 2 / 3) if names else []
        drop = lambda group, clock: dropped(claim, screen.spaces, group, seen, clock)
        alone = [drop(frozenset([name]), end(_ALONE)) for name in names]
        needed = frozenset(row.names[0] for row, _ in alone if row.counterexample is not None)
        if len(set(names) - needed) > 1 and not end(_TWICE).is_up():
            seen += looked(screen, [range(total - count, total)], seed, end(_TWICE), part / 6)
        several = [drop(group, end(_JUDGED)) for group in together(names, seen, needed)]
        left = max(part / 6, part - len(seen))
        each = part if math.isinf(part) else math.ceil(left / max(len(bounds), 1))
        beyond = _beyond([Outlook(claim, screen, count, bound, seed, each) for bound in bounds], end(_WIDENED))
        rows = _small(claim, screen, [*alone, *several], clock)
    tried = len(seen) + sum(row.problems for row in beyond)
    found = Ablation(claim, rows[: len(alone)], rows[len(alone) :], beyond, tried, clock.seconds)
    if out is not None:
        pathlib.Path(out).mkdir(parents=True, exist_ok=True)
        found.save(out)
    return found


def _beyond(outlooks: list[Outlook], clock: Clock) -> tuple[Widened, ...]:
    """Search for failures of a claim beyond the bounds of its spaces, one batch for each bound in turn.

    The search ends when that of each bound has ended, or after a fixed share of the remaining time.

    **Arguments:** outlooks: the searches, each beyond one bound; clock.

    **Returns:** a row of results for each bound.
    """
    looking = clock.until(clock.seconds + _OUTLOOK * (clock.budget - clock.seconds))
    while (left := [one for one in outlooks if not one.has_ended]) and not looking.is_up():
        for one in left:
            if not looking.is_up("looking beyond bounds"):
                one.look(looking)
    return tuple(one.row(clock) for one in outlooks)


def _small(claim: Claim, screen: Screen, rows: list[Dropped], clock: Clock) -> tuple[Ablated, ...]:
    """The rows with their counterexamples simplified. The remaining time is divided among them."""
    found, left = [], sum(point is not None for _, point in rows)
    for row in rows:
        own = clock.until(clock.seconds + (clock.budget - clock.seconds) / max(left, 1))
        found.append(simplified(claim, screen.spaces, row, own))
        left -= row[1] is not None
    return tuple(found)


def _siblings(claim: Claim) -> list[Space]:
    """The spaces of other claims of the same paper about the same models, without the spaces of the claim
    itself.
    """
    paper, found = claim.id.partition(".")[0], []
    for other in papers.ALL_CLAIMS:
        if other.id.partition(".")[0] == paper and other.models == claim.models:
            found += [space for space in other.spaces if space not in (*claim.spaces, *found)]
    return found
