"""[model] and [loss] of a problem file: which in-context model, and which form of its population loss."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jaxtyping import PyTree

from flowsim._core import checks
from flowsim._core.checks import refuse
from flowsim.losses import (
    AbstractPopulationLoss,
    DiagonalLayersLoss,
    LinearAttentionLoss,
    LoopedLoss,
    MaskedAttentionLoss,
    MonteCarloLoss,
    MultiHeadLoss,
    MultiLayerLoss,
    RandomCovarianceLoss,
    ScalarLayersLoss,
    ScalarLoopLoss,
)
from flowsim.losses.arrowhead import balanced_minimum
from flowsim.losses.deep.multi_layer import MOST_LAYERS, MOST_LOOPS
from flowsim.losses.deep.scalar_layers import restricted_speeds
from flowsim.models import MultiHeadAttention
from flowsim.problem import toml
from flowsim.problem.kinds import Count, Flag, Number, Seed, Vector
from flowsim.problem.task_tables import TaskTable
from flowsim.problem.toml import AbstractTable
from flowsim.tasks import LinearRegression, RandomCovarianceRegression, SpectralRegression

Task = LinearRegression | RandomCovarianceRegression | SpectralRegression


class LossTable(AbstractTable, frozen=True):
    """[loss]: exact; the formula that a paper prints where that is another; the limit of a long context; or by prompts.

    samples, replicates, seed, method: as the arguments of `MonteCarloLoss`, for kind = "monte-carlo" alone.
    """

    kind: Literal["exact", "printed", "limit", "monte-carlo"] = "exact"
    samples: Count | None = None
    replicates: Count | None = None
    seed: Seed | None = None
    method: Literal["auto", "prompts", "inputs", "covariances", "radial"] | None = None

    def resolved(self) -> "LossTable":
        """With the defaults of a sampled loss."""
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        if self.kind == "monte-carlo":
            return LossTable(**(_SAMPLED | given))
        for name in _SAMPLED:
            if name in given:
                refuse(f"loss.{name}", f'left out with kind = "{self.kind}"', "it is given")
        return self


class GuessTable(AbstractTable, frozen=True):
    """model.guess: a fixed guess of the query's label, linear^T x_q + bias."""

    linear: Vector | None = None
    bias: Number = 0.0


class ModelTable(AbstractTable, frozen=True):
    """[model]: the in-context model. Which fields go with which architecture is in ``_ARCHITECTURES``.

    symmetric: whether the matrices are symmetric (and u = 0), and the flow is among such; residual_stream: whether the
    layers move the covariates too, by matrices B_i; parametrisation: of heads, by (b, A) or by the matrices that the
    paper trains; guess: of the query's label.
    """

    architecture: Literal[
        "linear-attention",
        "masked-attention",
        "looped",
        "multi-layer",
        "softmax-attention",
        "multi-head",
        "initial-guess",
        "linear-block",
    ] = "linear-attention"
    loops: Count | None = None
    layers: Count | None = None
    symmetric: Flag | None = None
    residual_stream: Flag | None = None
    heads: Count | None = None
    parametrisation: Literal["reduced", "factored"] | None = None
    guess: Literal["zero", "trainable"] | GuessTable | None = None

    @property
    def depth(self) -> int:
        """How many layers have weights of their own."""
        return self.layers or 1

    def zero_heads(self, d: int) -> MultiHeadAttention:
        """Heads as many as this model's, resolved, with its guess and weights of zero."""
        if self.architecture == "linear-block":
            return MultiHeadAttention(jnp.zeros((1, d + 1)), jnp.zeros((1, d + 1, d + 1)), trainable=True)
        assert self.heads is not None, "a resolved table has it"
        fixed = self.guess if isinstance(self.guess, GuessTable) else GuessTable()
        b, A = jnp.zeros((self.heads, d + 1)), jnp.zeros((self.heads, d + 1, d + 1))
        return MultiHeadAttention(b, A, fixed.linear, fixed.bias, trainable=self.guess == "trainable")

    @property
    def law_of_weights(self) -> str:
        """The law of w where the file does not say."""
        return _ARCHITECTURES[self.architecture].laws_of_weights[0]

    def resolved(self, task: TaskTable, loss: LossTable, *, symmetric: bool, restrict: str | None) -> "ModelTable":
        """With the defaults of its architecture, which the law of the prompts and the form of the loss must suit.

        **Arguments:** symmetric: whether the start is, with u = 0; restrict: the set that the flow is on.
        """
        known, named = _ARCHITECTURES[self.architecture], f'with architecture = "{self.architecture}"'
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        for name in given:
            if name not in (*known.fields, "architecture"):
                refuse(f"model.{name}", f"left out {named}", "it is given")
        for name in ("loops", "layers", "heads"):
            if name in known.fields and name not in (*given, *known.defaults):
                came = f'it is missing (architecture = "{self.architecture}")'
                refuse(f"model.{name}", _FIELDS[f"model.{name}"].expected, came)
        self._check_size(task.size, restrict)
        if task.prior_mean is not None and not known.prior_mean:
            refuse("task.prior_mean", f"left out {named}", "it is given")
        if known.prior_mean and self.architecture != "softmax-attention" and not task.is_isotropic:
            refuse("task.covariance", f'"identity" {named}', "it is another")
        if isinstance(self.guess, GuessTable) and self.guess.linear and len(self.guess.linear) != task.size:
            refuse("model.guess.linear", f"a list of {task.size} numbers", f"it has {len(self.guess.linear)}")
        if task.covariance_law is not None and self.architecture not in ("linear-attention", "softmax-attention"):
            refuse("task.covariance_law", f"left out {named}: its loss is for one fixed covariance", "it is given")
        if task.weights not in known.laws_of_weights:
            refuse("task.weights", f'"{known.laws_of_weights[0]}" {named}', f'it is "{task.weights}"')
        if loss.kind not in known.losses:
            expected = " or ".join(f'"{kind}"' for kind in known.losses)
            refuse("loss.kind", f"{expected} {named}", f'it is "{loss.kind}"')
        if loss.kind == "monte-carlo" and np.isinf(float(task.context_length)):
            refuse("task.context_length", f'finite with loss.kind = "{loss.kind}"', "it is inf")
        if restrict and "symmetric" not in known.fields:
            refuse("flow.restrict", f"left out {named}", "it is given")
        # A looped flow from a symmetric start stays symmetric by itself where w ~ N(0, covariance^-1).
        stays = self.loops is None or (symmetric and task.weights == "inverse-covariance")
        defaults = {"symmetric": stays or restrict is not None, "residual_stream": False}
        defaults = {name: value for name, value in (defaults | known.defaults).items() if name in known.fields}
        resolved = msgspec.structs.replace(self, **(defaults | given))
        if restrict and loss.kind == "monte-carlo":
            expected = " or ".join(f'"{kind}"' for kind in known.losses if kind != "monte-carlo")
            refuse("loss.kind", f'{expected} with flow.restrict = "{restrict}"', f'it is "{loss.kind}"')
        if restrict and not resolved.symmetric:
            refuse("model.symmetric", "true where flow.restrict is given", "it is false")
        if restrict == "inverse-covariance":
            resolved._check_on_scalars(task, loss)
        elif resolved.residual_stream and loss.kind != "monte-carlo":
            expected = 'false unless flow.restrict = "inverse-covariance", where the loss is known, or'
            refuse("model.residual_stream", f'{expected} loss.kind = "monte-carlo"', "it is true")
        if loss.kind == "printed" and not (resolved.symmetric and task.weights == "inverse-covariance"):
            expected = '"exact" or "limit" unless the model is symmetric and w has the law "inverse-covariance"'
            refuse("loss.kind", expected, f'it is "{loss.kind}"')
        return resolved

    def _check_size(self, d: int, restrict: str | None) -> None:
        """Refuse weights, and the quadrature of a loop of scalars, that no memory holds."""
        numbers = {"inverse-covariance": 1, "eigenbasis": d, None: (d + 1) ** 2}[restrict]
        for name in ("layers", "heads"):
            checks.within_memory(f"model.{name}", (getattr(self, name) or 0) * numbers)
        if restrict is not None:
            checks.within_memory("model.loops", (2 * (self.loops or 0)) ** 2)

    def _check_on_scalars(self, task: TaskTable, loss: LossTable) -> None:
        here = 'with flow.restrict = "inverse-covariance"'
        if task.weights != "inverse-covariance":
            refuse("task.weights", f'"inverse-covariance" {here}', f'it is "{task.weights}"')
        if loss.kind == "printed":
            # On multiples of the inverse covariance it is the exact loss.
            refuse("loss.kind", f'"exact" or "limit" {here}', f'it is "{loss.kind}"')

    def loss(
        self, task: Task, table: LossTable, restrict: str | None, mesh: jax.sharding.Mesh | None = None
    ) -> AbstractPopulationLoss:
        """The population loss of this model, resolved, on the prompts of a task; a mesh shares drawn ones.

        **Raises:** `ValueError` naming the argument, which is a field of this table.
        """
        kind = table.kind
        if kind == "monte-carlo":
            return self._sampled_loss(task, table, mesh)
        if kind == "limit":
            task = eqx.tree_at(lambda task: task.context_length, task, jnp.asarray(jnp.inf))
        if isinstance(task, SpectralRegression):
            form = "printed" if kind == "printed" else "exact"
            return DiagonalLayersLoss(task, self.loops or self.depth, looped=self.loops is not None, form=form)
        if restrict:
            return _restricted_loss(self, task)
        return _ARCHITECTURES[self.architecture].loss(self, task, kind)

    def _sampled_loss(self, task: Task, table: LossTable, mesh: jax.sharding.Mesh | None) -> MonteCarloLoss:
        """The loss by prompts, beside the exact one where that is known."""
        assert table.samples is not None and table.replicates is not None and table.seed is not None, "it is resolved"
        known = _ARCHITECTURES[self.architecture]
        exact = known.loss(self, task, "exact") if self._has_exact_loss() else None
        return MonteCarloLoss(
            task,
            samples=table.samples,
            replicates=table.replicates,
            key=jax.random.key(table.seed),
            method=table.method or "auto",
            factor=known.factor,
            exact=exact,
            minimizer=None if exact is None else least(exact),
            mesh=mesh,
        )

    def _has_exact_loss(self) -> bool:
        if self.residual_stream or self.architecture == "softmax-attention":
            return False
        depth = self.loops or self.layers
        if depth is None:
            return True
        return depth <= (MOST_LOOPS if self.loops else MOST_LAYERS)[bool(self.symmetric)]


@dataclasses.dataclass(frozen=True)
class _Architecture:
    """What goes with an architecture: the form of its loss, fields, laws of w (the default first), kinds of loss,
    the factor of the squared error in it, fields that the file may leave out, and whether w may have a mean.
    """

    loss: Callable[[ModelTable, Any, str], AbstractPopulationLoss]
    fields: tuple[str, ...] = ()
    laws_of_weights: tuple[str, ...] = ("isotropic",)
    losses: tuple[str, ...] = ("exact", "monte-carlo")
    factor: float = 1.0
    defaults: dict[str, Any] = dataclasses.field(default_factory=dict)
    prior_mean: bool = False


def least(loss: AbstractPopulationLoss) -> PyTree | None:
    """A model of least known loss, where the loss knows one: of a masked layer that with gamma = 1 in (8)."""
    if isinstance(loss, MaskedAttentionLoss):
        return loss.minimizer()
    if isinstance(loss, LinearAttentionLoss | RandomCovarianceLoss):
        return balanced_minimum(loss.structure)
    return getattr(loss, "minimizer", None)


def _single_layer_loss(model: ModelTable, task: Any, kind: str) -> AbstractPopulationLoss:
    return LinearAttentionLoss(task) if isinstance(task, LinearRegression) else RandomCovarianceLoss(task)


def _masked_loss(model: ModelTable, task: LinearRegression, kind: str) -> AbstractPopulationLoss:
    return MaskedAttentionLoss(task)


def _looped_loss(model: ModelTable, task: LinearRegression, kind: str) -> AbstractPopulationLoss:
    assert model.loops is not None and model.symmetric is not None, "a resolved table has both"
    form = "printed" if kind == "printed" else "exact"
    return LoopedLoss(task, model.loops, form=form, symmetric=model.symmetric)


def _layers_loss(model: ModelTable, task: LinearRegression, kind: str) -> AbstractPopulationLoss:
    assert model.symmetric is not None, "a resolved table has it"
    return MultiLayerLoss(task, model.depth, symmetric=model.symmetric)


def _heads_loss(model: ModelTable, task: LinearRegression, kind: str) -> AbstractPopulationLoss:
    return MultiHeadLoss(task, model.zero_heads(task.dimension))


def _sampled_alone(model: ModelTable, task: Any, kind: str) -> AbstractPopulationLoss:
    raise AssertionError("a softmax has no exact loss: a resolved table samples it")


def _restricted_loss(model: ModelTable, task: Any) -> AbstractPopulationLoss:
    d, n, speeds = task.dimension, task.context_length, restricted_speeds(task.covariance)
    if model.loops is not None:
        return ScalarLoopLoss(d, n, model.loops, speed=speeds.a)
    return ScalarLayersLoss(d, n, model.depth, bool(model.residual_stream), speeds=speeds)


_EITHER_LAW = ("inverse-covariance", "isotropic")
_ARCHITECTURES = {
    "linear-attention": _Architecture(_single_layer_loss, factor=0.5),
    "masked-attention": _Architecture(_masked_loss, losses=("exact", "limit", "monte-carlo")),
    "looped": _Architecture(
        _looped_loss, ("loops", "symmetric"), _EITHER_LAW, ("exact", "printed", "limit", "monte-carlo")
    ),
    "multi-layer": _Architecture(
        _layers_loss, ("layers", "symmetric", "residual_stream"), _EITHER_LAW, ("exact", "limit", "monte-carlo")
    ),
    "softmax-attention": _Architecture(
        _sampled_alone,
        ("layers",),
        _EITHER_LAW[::-1],
        ("monte-carlo",),
        factor=0.5,
        defaults={"layers": 1},
        prior_mean=True,
    ),
    "multi-head": _Architecture(
        _heads_loss,
        ("heads", "parametrisation", "guess"),
        losses=("exact", "limit", "monte-carlo"),
        defaults={"parametrisation": "reduced", "guess": "zero"},
        prior_mean=True,
    ),
    "initial-guess": _Architecture(
        _heads_loss,
        ("heads", "parametrisation", "guess"),
        losses=("exact", "limit", "monte-carlo"),
        defaults={"heads": 1, "parametrisation": "reduced", "guess": "trainable"},
        prior_mean=True,
    ),
    "linear-block": _Architecture(_heads_loss, losses=("exact", "limit", "monte-carlo"), prior_mean=True),
}
_SAMPLED = {"samples": 100_000, "replicates": 8, "seed": 0, "method": "auto"}
_FIELDS = toml.fields(ModelTable, "model.")
