"""The architectures of masked linear attention with an initial guess, and of the linear transformer block."""

from collections.abc import Callable, Mapping

import jax.numpy as jnp
from jaxtyping import PyTree

from flowsim import initialization
from flowsim.losses import MultiHeadLoss
from flowsim.models import FactoredMultiHeadAttention, LinearTransformerBlock, MultiHeadAttention
from flowsim.problem.architecture import (
    Architecture,
    Start,
    check_trained_guess,
    guess_of,
    random_start,
    scale_of,
    seed_of,
)
from flowsim.problem.init_table import InitTable
from flowsim.problem.model_table import ModelTable
from flowsim.tasks import LinearRegression

_MATRICES = ("W_K", "W_Q", "W_V", "W_P")
_LOSSES = ("exact", "limit", "monte-carlo")


def _zeros(model: ModelTable, d: int) -> MultiHeadAttention:
    """Heads with zero weights. [model], with all defaults, gives their number and their guess."""
    assert model.heads is not None, "a resolved table has it"
    b, A = jnp.zeros((model.heads, d + 1)), jnp.zeros((model.heads, d + 1, d + 1))
    return MultiHeadAttention(b, A, **guess_of(model))


def _loss(model: ModelTable, task: LinearRegression, kind: str) -> MultiHeadLoss:
    return MultiHeadLoss(task, _zeros(model, task.dimension))


def _random(make: Callable[..., PyTree]) -> Start:
    def made(table: InitTable, d: int, model: ModelTable) -> PyTree:
        return make(scale_of(table), _zeros(model, d), seed_of(table))

    return Start(made, ("scale",), ("seed",))


def _explicit(table: InitTable, d: int, model: ModelTable) -> MultiHeadAttention:
    like = _zeros(model, d)
    check_trained_guess(table, like.trainable)
    weights = table.arrays({"b": like.b.shape, "A": like.A.shape, "w": like.w.shape})
    return MultiHeadAttention(**({"w": like.w} | weights), bias=like.bias, trainable=like.trainable)


def _explicit_factored(table: InitTable, d: int, model: ModelTable) -> FactoredMultiHeadAttention:
    like = _zeros(model, d)
    check_trained_guess(table, like.trainable)
    weights = table.arrays(dict.fromkeys(_MATRICES, like.A.shape) | {"w": like.w.shape})
    return FactoredMultiHeadAttention(**({"w": like.w} | weights), bias=like.bias, trainable=like.trainable)


_STARTS = {
    "zeros": Start(lambda table, d, model: _zeros(model, d)),
    "balanced": _random(initialization.balanced_heads),
    "random": _random(initialization.heads),
    "explicit": Start(_explicit, ("b", "A"), ("w",)),
}
_FACTORED_STARTS = {
    "random": _random(initialization.factored_heads),
    "explicit": Start(_explicit_factored, _MATRICES, ("w",)),
}


def _starts(model: ModelTable) -> Mapping[str, Start]:
    return _FACTORED_STARTS if model.parametrisation == "factored" else _STARTS


MULTI_HEAD = Architecture(
    "multi-head",
    loss=_loss,
    starts=_starts,
    fields=("heads", "parametrisation", "guess"),
    needed=("heads",),
    defaults=lambda model, task, symmetric, restrict: {"parametrisation": "reduced", "guess": "zero"},
    losses=_LOSSES,
    extras=("prior_mean",),
    isotropic=True,
)
INITIAL_GUESS = Architecture(
    "initial-guess",
    loss=_loss,
    starts=_starts,
    fields=("heads", "parametrisation", "guess"),
    defaults=lambda model, task, symmetric, restrict: {
        "heads": 1,
        "parametrisation": "reduced",
        "guess": "trainable",
    },
    losses=_LOSSES,
    extras=("prior_mean",),
    isotropic=True,
)


def _block_loss(model: ModelTable, task: LinearRegression, kind: str) -> MultiHeadLoss:
    """The loss of one head with a trained guess. The block makes the same predictions as such a head."""
    d = task.dimension
    like = MultiHeadAttention(jnp.zeros((1, d + 1)), jnp.zeros((1, d + 1, d + 1)), trainable=True)
    return MultiHeadLoss(task, like)


def _explicit_block(table: InitTable, d: int, model: ModelTable) -> LinearTransformerBlock:
    square, wide = (d + 1, d + 1), (len(table.W_1 or ()), d + 1)
    return LinearTransformerBlock(**table.arrays({"W_1": wide, "W_2": wide} | dict.fromkeys(_MATRICES, square)))


_BLOCK_STARTS = {
    "random": random_start(initialization.linear_block),
    "explicit": Start(_explicit_block, ("W_1", "W_2", *_MATRICES)),
}

LINEAR_BLOCK = Architecture(
    "linear-block",
    loss=_block_loss,
    starts=lambda model: _BLOCK_STARTS,
    losses=_LOSSES,
    extras=("prior_mean",),
    isotropic=True,
)
