"""A test for losses that are closed forms."""

import jax

from flowsim.losses.base import AbstractPopulationLoss


def is_closed_form(loss: AbstractPopulationLoss) -> bool:
    """Whether a loss is one of flowsim's formulas, has no kinks and contains no user's function.

    A closed form has no jumps or narrow pits, and its excess is not a small difference of large numbers.
    """
    parts = jax.tree.leaves(loss, is_leaf=_may_have_kinks)
    return type(loss).__module__.startswith("flowsim.losses.") and not any(map(_may_have_kinks, parts))


def _may_have_kinks(part: object) -> bool:
    return isinstance(part, AbstractPopulationLoss) and part.may_have_kinks
