"""The architecture "masked-attention": one layer of linear attention that does not attend to the query."""

import jax.numpy as jnp

from flowsim import initialization
from flowsim.losses import MaskedAttentionLoss
from flowsim.models import MaskedAttention
from flowsim.problem.architecture import Architecture, Start, random_start
from flowsim.problem.init_table import InitTable
from flowsim.problem.model_table import ModelTable
from flowsim.tasks import LinearRegression


def _loss(model: ModelTable, task: LinearRegression, kind: str) -> MaskedAttentionLoss:
    return MaskedAttentionLoss(task)


def _explicit(table: InitTable, d: int, model: ModelTable) -> MaskedAttention:
    return MaskedAttention(**table.arrays({"b": (d + 1,), "A": (d + 1, d)}))


_STARTS = {
    "zeros": Start(lambda table, d, model: MaskedAttention(jnp.zeros(d + 1), jnp.zeros((d + 1, d)))),
    "random": random_start(initialization.masked),
    "explicit": Start(_explicit, ("b", "A")),
}

MASKED_ATTENTION = Architecture(
    "masked-attention", loss=_loss, starts=lambda model: _STARTS, losses=("exact", "limit", "monte-carlo")
)
