"""The largest step size for which a statement about gradient descent holds, by bisection of its verdicts."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import PyTree

from flowsim._core import checks
from flowsim.claims import Claim, Judgement, check
from flowsim.flow.descent import gradient_descent
from flowsim.losses import AbstractPopulationLoss


class Edge(NamedTuple):
    """Step sizes between which a statement ceases to hold.

    **Fields:**

    - holds: the largest step size that was tried for which the statement holds.
    - violated: the least step size from which on the statement is violated for all step sizes that were tried. It
      exceeds ``holds`` by at most the relative accuracy ``rtol``, unless the statement is unresolved between them.
    """

    holds: float
    violated: float


def edge(
    claim: Claim,
    loss: AbstractPopulationLoss,
    model: PyTree,
    low: float,
    high: float,
    *,
    steps: int,
    rtol: float = 1e-6,
    **how: Any,
) -> Edge:
    """The step size at which a statement about gradient descent ceases to hold.

    Every step size that is tried is judged. The statement is assumed to hold up to one step size and to fail beyond
    it.

    **Arguments:**

    - claim: a statement that takes the ``descent``.
    - loss, model: as for `gradient_descent`.
    - low, high: a step size for which the statement holds, and a larger one for which it is violated.
    - steps: the number of steps of each descent.
    - rtol: the relative accuracy of the two step sizes.
    - how: other arguments of `gradient_descent`.

    **Raises:** `ValueError` on bad arguments, or on other verdicts at ``low`` and ``high``.
    """
    low, high = float(checks.positive("low", low)), float(checks.positive("high", high))
    if not low < high:
        checks.refuse("high", f"above low = {low:g}", f"it is {high:g}")
    if not 1e-14 <= rtol < 1:
        checks.refuse("rtol", "at least 1e-14 and below 1", f"it is {rtol}")

    def verdict(eta: float) -> Judgement:
        return check(claim, loss, gradient_descent(loss, model, eta, steps, **how)).verdict

    ends = {"low": (low, Judgement.HOLDS), "high": (high, Judgement.VIOLATED)}
    for name, (eta, expected) in ends.items():
        if (came := verdict(eta)) is not expected:
            checks.refuse(name, f"a step size for which {claim.id} is {expected}", f"it is {came} at {eta:g}")
    found = {low: Judgement.HOLDS, high: Judgement.VIOLATED}

    def first(is_before: Callable[[Judgement], bool]) -> float:
        """The first step size whose verdict no longer satisfies ``is_before``, by bisection to the relative
        accuracy ``rtol``.
        """
        while True:
            known = sorted(found)
            before = max(eta for eta in known if is_before(found[eta]))
            after = min(eta for eta in known if eta > before)
            if after <= (1 + rtol) * before:
                return after
            middle = math.sqrt(before * after)
            found[middle] = verdict(middle)

    first(lambda one: one is Judgement.HOLDS)
    violated = first(lambda one: one is not Judgement.VIOLATED)
    return Edge(max(eta for eta, one in found.items() if one is Judgement.HOLDS), violated)
