"""The architecture "attention": heads of linear attention with merged or separate keys and queries.

The values of the heads are labels or whole tokens.
"""

from collections.abc import Mapping

import jax.numpy as jnp
import msgspec
from jaxtyping import PyTree

from flowsim import initialization
from flowsim._core.checks import refuse
from flowsim.losses import AttentionLoss, RandomCovarianceLoss, Reparametrized
from flowsim.losses.base import AbstractPopulationLoss
from flowsim.models import LinearAttention, MergedHeads, SeparateHeads, TokenHeads
from flowsim.models.heads import AbstractHeads, AbstractLabelHeads, with_weights
from flowsim.problem.architecture import Architecture, Start, check_trained_guess, guess_of, scale_of, seed_of
from flowsim.problem.init_table import InitTable
from flowsim.problem.model_table import LossTable, ModelTable
from flowsim.problem.task_tables import EXTRAS, TaskTable
from flowsim.tasks import LinearRegression, RandomCovarianceRegression


def _like(model: ModelTable, d: int) -> PyTree:
    """Heads with zero weights. [model], with all defaults, gives their kind, their number and their guess."""
    assert model.heads is not None, "a resolved table has it"
    H, guess = model.heads, guess_of(model)
    if model.blocks == "all":
        sides = {"query_token": bool(model.query_token)}
        return TokenHeads(jnp.zeros((H, d + 1)), jnp.zeros((H, d + 1, d)), **guess, **sides)
    if model.keys == "merged":
        return MergedHeads(jnp.zeros(H), jnp.zeros((H, d, d)), **guess)
    keys = jnp.zeros((H, model.rank or 1, d))
    return SeparateHeads(jnp.zeros(H), keys, keys, **guess)


def _loss(model: ModelTable, task: LinearRegression | RandomCovarianceRegression, kind: str) -> AbstractPopulationLoss:
    like = _like(model, task.dimension)
    if isinstance(task, LinearRegression):
        return AttentionLoss(task, like)
    one_layer = RandomCovarianceLoss(task)
    readout = one_layer.least_model()
    least = like.of_readout(readout.u_minus1 * readout.U11, like.w)
    return Reparametrized(one_layer, _one_layer, least_model=least, conserved=lambda heads: heads.balances.reshape(-1))


def _one_layer(heads: AbstractLabelHeads) -> LinearAttention:
    """The `LinearAttention` layer that makes the same predictions as heads whose guess is zero."""
    return LinearAttention(heads.readout, 1.0)


def _explicit(table: InitTable, d: int, model: ModelTable) -> AbstractHeads:
    like = _like(model, d)
    check_trained_guess(table, like.trainable)
    return with_weights(like, table.arrays({name: x.shape for name, x in like.weights.items()}))


def _random(table: InitTable, d: int, model: ModelTable) -> AbstractHeads:
    scales = {} if table.scales is None else msgspec.structs.asdict(table.scales)
    given = {name: scale for name, scale in scales.items() if scale is not None}
    return initialization.linear_heads(scale_of(table), _like(model, d), seed_of(table), given)


def _starts(model: ModelTable) -> Mapping[str, Start]:
    names = ("p", "Q") if model.blocks == "all" else ("v", "U") if model.keys == "merged" else ("v", "k", "q")
    return {
        "random": Start(_random, ("scale",), ("seed", "scales")),
        "explicit": Start(_explicit, names, ("w",)),
        "zeros": Start(lambda table, d, model: _like(model, d)),
    }


def _check(model: ModelTable, task: TaskTable, loss: LossTable, restrict: str | None) -> None:
    named = 'with architecture = "attention"'
    if model.blocks == "all" and model.keys is not None:
        refuse("model.keys", 'left out with blocks = "all", whose weights are p and Q', "it is given")
    if model.rank is not None and (model.keys != "separate" or model.blocks == "all"):
        refuse("model.rank", 'left out without keys = "separate"', "it is given")
    if model.rank is not None and model.rank > task.size:
        refuse("model.rank", f"at most the dimension, {task.size}, beyond which it adds nothing", f"it is {model.rank}")
    if model.query_token and model.blocks != "all":
        refuse("model.query_token", 'left out without blocks = "all": on labels that token adds nothing', "it is true")
    if task.covariance_law is not None:
        if model.blocks == "all":
            refuse("model.blocks", f'"label" {named} and a random covariance', 'it is "all"')
        if model.guess != "zero":
            refuse("model.guess", f'"zero" {named} and a random covariance', "it is another")
        if task.extras:
            refuse(f"task.{task.extras[0]}", f"left out {named} and a random covariance", "it is given")
        if model.keys == "separate" and (model.heads or 1) * (model.rank or 1) < task.size:
            expected = f"such that heads times rank is at least the dimension {task.size} with a random covariance"
            refuse("model.heads", expected, f"it is {model.heads}")


def _defaults(model: ModelTable, task: TaskTable, symmetric: bool, restrict: str | None) -> dict[str, object]:
    given: dict[str, object] = {"heads": 1, "guess": "zero", "blocks": "label"}
    if model.blocks == "all":
        return given | {"query_token": False}
    return given | {"keys": "merged"} | ({"rank": 1} if model.keys == "separate" else {})


ATTENTION = Architecture(
    "attention",
    loss=_loss,
    starts=_starts,
    start="random",
    fields=("heads", "keys", "rank", "blocks", "query_token", "guess"),
    defaults=_defaults,
    losses=("exact", "limit", "monte-carlo"),
    factor=0.5,
    laws_of_weights=("isotropic", "inverse-covariance"),
    extras=EXTRAS,
    random_covariance=True,
    check=_check,
)
