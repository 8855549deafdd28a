"""Which losses are closed forms."""

import jax

from flowsim.losses.base import AbstractPopulationLoss, FunctionLoss
from flowsim.losses.finite import FiniteLoss
from flowsim.losses.reparametrized import Reparametrized


def is_closed_form(loss: AbstractPopulationLoss) -> bool:
    """Whether a loss is one of flowsim's formulas and holds no function of a user.

    Such a loss has no walls or pits, and its excess is not a small difference of large numbers.
    """
    is_a_users = lambda part: isinstance(part, FunctionLoss | FiniteLoss | Reparametrized)
    parts = jax.tree.leaves(loss, is_leaf=is_a_users)
    return type(loss).__module__.startswith("flowsim.losses.") and not any(map(is_a_users, parts))
