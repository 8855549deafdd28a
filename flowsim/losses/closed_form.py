"""Which losses are closed forms of flowsim's."""

import jax

from flowsim.losses.base import AbstractPopulationLoss, FunctionLoss
from flowsim.losses.reparametrized import Reparametrized


def is_closed_form(loss: AbstractPopulationLoss) -> bool:
    """Whether a loss is a formula of flowsim's, without a function of somebody else's in it: it has neither walls nor
    pits, and no excess that is a small difference of large numbers.
    """
    is_a_users = lambda part: isinstance(part, FunctionLoss | Reparametrized)
    parts = jax.tree.leaves(loss, is_leaf=is_a_users)
    return type(loss).__module__.startswith("flowsim.losses.") and not any(map(is_a_users, parts))
