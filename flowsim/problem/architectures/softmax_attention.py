"""The architecture "softmax-attention": layers of softmax attention, with a sampled loss."""

from typing import NoReturn

from flowsim import initialization
from flowsim.models import SoftmaxAttention
from flowsim.problem.architecture import Architecture, Start, Task, scale_of, seed_of
from flowsim.problem.init_table import InitTable
from flowsim.problem.model_table import ModelTable


def _no_exact_loss(model: ModelTable, task: Task, kind: str) -> NoReturn:
    raise NotImplementedError("softmax attention has no exact loss on Gaussian prompts: the table has a sampled one")


def _random(table: InitTable, d: int, model: ModelTable) -> SoftmaxAttention:
    return initialization.softmax(scale_of(table), d, seed_of(table), model.depth)


def _explicit(table: InitTable, d: int, model: ModelTable) -> SoftmaxAttention:
    shape = (model.depth, d + 1, d + 1)
    weights = table.arrays({"W_PV": shape, "W_KQ": shape})
    return SoftmaxAttention(weights["W_PV"], weights["W_KQ"])


_STARTS = {"random": Start(_random, ("scale",), ("seed",)), "explicit": Start(_explicit, ("W_PV", "W_KQ"))}

SOFTMAX_ATTENTION = Architecture(
    "softmax-attention",
    loss=_no_exact_loss,
    starts=lambda model: _STARTS,
    fields=("layers",),
    defaults=lambda model, task, symmetric, restrict: {"layers": 1},
    losses=("monte-carlo",),
    factor=0.5,
    laws_of_weights=("isotropic", "inverse-covariance"),
    extras=("prior_mean",),
    random_covariance=True,
)
