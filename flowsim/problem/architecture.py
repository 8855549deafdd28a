"""Architectures: what problem files need to know about a kind of in-context model."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import cast

import equinox as eqx
import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jaxtyping import Float, PyTree

from flowsim._core import checks
from flowsim._core.checks import refuse
from flowsim._core.types import Document, ScalarLike, Seed
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import AbstractPopulationLoss, MonteCarloLoss
from flowsim.problem import toml
from flowsim.problem.init_table import InitTable
from flowsim.problem.model_table import GuessTable, LossTable, ModelTable
from flowsim.problem.task_tables import LengthTable, TaskTable
from flowsim.tasks import LinearRegression, RandomCovarianceRegression, SpectralRegression

Task = LinearRegression | RandomCovarianceRegression | SpectralRegression
Series = Float[np.ndarray, " T"]
MakeLoss = Callable[..., AbstractPopulationLoss]  # (model table, task, kind of loss) -> loss

_FIELDS = toml.fields(InitTable, "init.") | toml.fields(ModelTable, "model.")


@dataclasses.dataclass(frozen=True)
class Start:
    """A kind of start, the value of ``init.kind``.

    **Arguments:**

    - make: ([init], dimension, [model]) -> the model at t = 0.
    - needed: the fields that [init] must have.
    - allowed: the further fields that [init] may have.
    """

    make: Callable[[InitTable, int, ModelTable], PyTree]
    needed: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Restriction:
    """A set of weights to which ``flow.restrict`` restricts the flow.

    **Arguments:**

    - starts: the kinds of start, by name.
    - loss: ([model], task, kind of loss) -> the loss on the set.
    - make: ([init], task, [model]) -> the model at t = 0, in place of `Start.make`. Needed if the model depends on
      more of the task than its dimension.
    """

    starts: Mapping[str, Start]
    loss: MakeLoss
    make: Callable[..., PyTree] | None = None


@dataclasses.dataclass(frozen=True)
class Level:
    """A horizontal line in the figure of a curve: a lower bound of the curve, or the value that it should tend to.

    **Arguments:** value: the height; label: of the line; is_bound: whether the line is a lower bound.
    """

    value: float
    label: str
    is_bound: bool


@dataclasses.dataclass(frozen=True)
class Curve:
    """A figure that shows a quantity along a flow as a function of time.

    **Arguments:**

    - label: the label of the vertical axis.
    - caption: the caption of the figure.
    - values: (trajectory, model with the smallest known loss) -> the quantity at the T times, (T,).
    - levels: horizontal lines in the figure.
    - logarithmic: whether the vertical axis is logarithmic.
    """

    label: str
    caption: str
    values: Callable[[Trajectory, PyTree], Series]
    levels: tuple[Level, ...] = ()
    logarithmic: bool = True


def _no_defaults(model: ModelTable, task: TaskTable, symmetric: bool, restrict: str | None) -> dict[str, object]:
    return {}


def _no_further_check(model: ModelTable, task: TaskTable, loss: LossTable, restrict: str | None) -> None:
    return None


@dataclasses.dataclass(frozen=True)
class Architecture:
    """Everything that problem files need to know about a kind of in-context model.

    **Arguments:**

    - name: the value of ``model.architecture``.
    - loss: ([model], task, kind of loss) -> the loss, for every kind except "monte-carlo".
    - starts: [model] -> the kinds of start, by name.
    - start: the default kind of start. Without it ``init.kind`` is required.
    - fields: the fields that [model] may have.
    - needed: the fields that [model] must have.
    - defaults: ([model], [task], whether the start is symmetric, ``flow.restrict``) -> values of optional fields.
    - losses: the allowed values of ``loss.kind``.
    - factor: the factor of the squared error in the loss, such as 1/2.
    - laws_of_weights: the allowed values of ``task.weights``, with the default first.
    - extras: the members of `EXTRAS` that the task may have.
    - isotropic: whether the covariance must be I.
    - random_covariance: whether the covariance may be random.
    - has_exact_loss: [model] -> whether the model has an exact loss.
    - restrictions: the sets to which the flow may be restricted, by the value of ``flow.restrict``.
    - check: ([model], [task], [loss], ``flow.restrict``) -> None. It refuses further combinations of fields.
    - curves: the figures of a run, by name.
    """

    name: str
    loss: MakeLoss
    starts: Callable[[ModelTable], Mapping[str, Start]]
    start: str | None = None
    fields: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    defaults: Callable[[ModelTable, TaskTable, bool, str | None], dict[str, object]] = _no_defaults
    losses: tuple[str, ...] = ("exact", "monte-carlo")
    factor: float = 1.0
    laws_of_weights: tuple[str, ...] = ("isotropic",)
    extras: tuple[str, ...] = ()
    isotropic: bool = False
    random_covariance: bool = False
    has_exact_loss: Callable[[ModelTable], bool] = lambda model: True
    restrictions: Mapping[str, Restriction] = dataclasses.field(default_factory=dict)
    check: Callable[[ModelTable, TaskTable, LossTable, str | None], None] = _no_further_check
    curves: Mapping[str, Curve] = dataclasses.field(default_factory=dict)

    def resolved_model(
        self, model: ModelTable, task: TaskTable, loss: LossTable, *, symmetric: bool, restrict: str | None
    ) -> ModelTable:
        """Check that [model], [task] and [loss] fit together, and return [model] with all defaults filled in.

        **Arguments:**

        - model, task, loss: the tables.
        - symmetric: whether the start is symmetric, with u = 0.
        - restrict: the value of ``flow.restrict``.

        **Raises:** `ProblemError` naming the field.
        """
        named, given = f'with architecture = "{self.name}"', model.given()
        for name in given:
            if name not in self.fields:
                refuse(f"model.{name}", f"left out {named}", "it is given")
        for name in self.needed:
            if name not in given:
                came = f'it is missing (architecture = "{self.name}")'
                refuse(f"model.{name}", _FIELDS[f"model.{name}"].expected, came)
        _check_size(model, task.size, restrict)
        for name in task.extras:
            if name not in self.extras:
                field, expected = ("context_length", "one length") if name == "length_law" else (name, "left out")
                came = "it is a law of lengths" if name == "length_law" else "it is given"
                refuse(f"task.{field}", f"{expected} {named}", came)
        if self.isotropic and not task.is_isotropic:
            refuse("task.covariance", f'"identity" {named}', "it is another")
        linear = model.guess.linear if isinstance(model.guess, GuessTable) else None
        if linear is not None and len(linear) != task.size:
            refuse("model.guess.linear", f"a list of {task.size} numbers", f"it has {len(linear)}")
        if task.covariance_law is not None and not self.random_covariance:
            refuse("task.covariance_law", f"left out {named}: its loss is for one fixed covariance", "it is given")
        if task.weights not in self.laws_of_weights:
            refuse("task.weights", f'"{self.laws_of_weights[0]}" {named}', f'it is "{task.weights}"')
        if loss.kind not in self.losses:
            refuse("loss.kind", f"{_either(self.losses)} {named}", f'it is "{loss.kind}"')
        if loss.kind != "exact" and isinstance(task.context_length, LengthTable):
            refuse("task.context_length", f'one length with loss.kind = "{loss.kind}"', "it is a law of lengths")
        if loss.kind == "monte-carlo":
            _check_drawn(task)
        if restrict and restrict not in self.restrictions:
            refuse("flow.restrict", f"left out {named}", "it is given")
        resolved = msgspec.structs.replace(model, **(self.defaults(model, task, symmetric, restrict) | given))
        if restrict and loss.kind == "monte-carlo":
            expected = _either(kind for kind in self.losses if kind != "monte-carlo")
            refuse("loss.kind", f'{expected} with flow.restrict = "{restrict}"', f'it is "{loss.kind}"')
        self.check(resolved, task, loss, restrict)
        return resolved

    def resolved_start(self, table: InitTable, d: int, model: ModelTable, restrict: str | None) -> InitTable:
        """[init] with its kind and with defaults for rank and seed. Fields that the kind would ignore are refused.

        **Arguments:** table: [init]; d: the dimension; model: [model]; restrict: the value of ``flow.restrict``.

        **Raises:** `ProblemError` naming the field.
        """
        kind, known = self._start(table, model, restrict)
        given = table.given()
        for name in known.needed:
            if name not in given:
                refuse(f"init.{name}", _FIELDS[f"init.{name}"].expected, f'it is missing (kind = "{kind}")')
        for name in given:
            if name not in known.needed + known.allowed:
                expected = f'left out with kind = "{kind}" and architecture = "{self.name}"'
                refuse(f"init.{name}", expected, "it is given")
            if name in ("rank", "seed") and table.theta is not None:
                refuse(f"init.{name}", "left out where theta is given", "it is given")
        if table.rank is not None and table.rank > d:
            refuse("init.rank", f"at most the dimension, {d}", f"it is {table.rank}")
        drawn = () if table.theta is not None else known.allowed
        defaults = {name: value for name, value in {"rank": d, "seed": 0}.items() if name in drawn}
        return msgspec.structs.replace(table, kind=kind, **(defaults | given))

    def make_start(self, table: InitTable, task: Task, model: ModelTable, restrict: str | None) -> PyTree:
        """The model at t = 0.

        **Arguments:** table, model: [init] and [model] with all defaults; task: the law of the prompts; restrict:
        the value of ``flow.restrict``.

        **Raises:** `ValueError` naming the argument.
        """
        if restrict is not None and (make := self.restrictions[restrict].make) is not None:
            return make(table, task, model)
        return self._start(table, model, restrict)[1].make(table, task.dimension, model)

    def start_with(self, table: InitTable, d: int, scale: ScalarLike, seed: Seed) -> PyTree:
        """The start that [init] describes, but with this scale and seed, for a [model] that only names the
        architecture.

        Scale and seed may be traced, so that one compiled program computes many starts. If [init] has no scale,
        ``scale`` is ignored; if it has no seed, ``seed`` is ignored.
        """
        given = table.given()
        others = {name: value for name, value in {"scale": scale, "seed": seed}.items() if name in given}
        model = ModelTable(self.name)
        return self._start(table, model, None)[1].make(msgspec.structs.replace(table, **others), d, model)

    def make_loss(
        self,
        model: ModelTable,
        task: Task,
        table: LossTable,
        restrict: str | None,
        mesh: jax.sharding.Mesh | None = None,
    ) -> AbstractPopulationLoss:
        """The population loss that [model] and [loss] describe, for a task.

        **Arguments:**

        - model, table: [model] and [loss] with all defaults.
        - task: the law of the prompts.
        - restrict: the value of ``flow.restrict``.
        - mesh: devices that share the prompts of a sampled loss.

        **Raises:** `ValueError` naming the argument, which is a field of [model] or [loss].
        """
        if table.kind == "monte-carlo":
            return self._sampled_loss(model, task, table, mesh)
        if table.kind == "limit":
            task = eqx.tree_at(lambda task: task.context_length, task, jnp.asarray(jnp.inf))
        return (self.restrictions[restrict] if restrict else self).loss(model, task, table.kind)

    def _sampled_loss(
        self, model: ModelTable, task: Task, table: LossTable, mesh: jax.sharding.Mesh | None
    ) -> MonteCarloLoss:
        """The sampled loss. It also holds the exact loss and its minimizer, if the model has an exact loss."""
        assert table.samples is not None and table.replicates is not None and table.seed is not None, "it is resolved"
        exact = self.loss(model, task, "exact") if "exact" in self.losses and self.has_exact_loss(model) else None
        return MonteCarloLoss(
            task,
            samples=table.samples,
            replicates=table.replicates,
            key=jax.random.key(table.seed),
            method=table.method or "auto",
            factor=self.factor,
            exact=exact,
            minimizer=None if exact is None else exact.least_model(),
            mesh=mesh,
        )

    def _start(self, table: InitTable, model: ModelTable, restrict: str | None) -> tuple[str, Start]:
        """The name of the kind of start that [init] gives, or of the default kind, and the kind itself.

        **Raises:** `ProblemError` naming the field if the kind is unknown or missing.
        """
        starts = self.restrictions[restrict].starts if restrict else self.starts(model)
        kind = table.kind or self.start
        if kind is None or kind not in starts:
            known = ", ".join(f'"{name}"' for name in starts)
            named = f'architecture = "{self.name}"' + (f' and flow.restrict = "{restrict}"' if restrict else "")
            came = f'it is "{kind}"{checks.nearest(kind, starts)}' if kind else "it is missing"
            refuse("init.kind", f"one of {known} with {named}", came)
        return kind, starts[kind]


def scale_of(table: InitTable) -> ScalarLike:
    """The scale in [init], for a kind of start that needs a scale."""
    assert table.scale is not None
    return table.scale


def seed_of(table: InitTable) -> Seed:
    """The seed in [init] with all defaults, for a kind of start that is random."""
    assert table.seed is not None
    return table.seed


def random_start(make: Callable[[ScalarLike, int, Seed], PyTree]) -> Start:
    """The kind of start that is drawn by a function (scale, dimension, seed) -> model."""
    return Start(lambda table, d, model: make(scale_of(table), d, seed_of(table)), ("scale",), ("seed",))


def guess_of(model: ModelTable) -> Document:
    """The guess that [model] describes, as the keyword arguments w, bias and trainable of a model with heads."""
    fixed = model.guess if isinstance(model.guess, GuessTable) else GuessTable()
    return {"w": fixed.linear, "bias": fixed.bias, "trainable": model.guess == "trainable"}


def check_trained_guess(table: InitTable, trainable: bool) -> None:
    """Refuse an explicit start that lacks w although the guess is trained, or has w although the guess is fixed.

    **Raises:** `ProblemError` naming w.
    """
    if (table.w is not None) != trainable:
        expected = "a list of numbers" if trainable else "left out"
        came = "it is missing" if table.w is None else "it is given"
        refuse("w", f'{expected} with model.guess {"=" if trainable else "other than"} "trainable"', came)


def _either(kinds: Iterable[str]) -> str:
    return " or ".join(f'"{kind}"' for kind in kinds)


def _check_drawn(task: TaskTable) -> None:
    """Refuse tasks for which prompts cannot be drawn: infinite prompts, and prompts with label noise.

    With label noise the labels of the queries would be drawn with noise, too, unlike in the exact loss.

    **Raises:** `ProblemError` naming the field.
    """
    named = 'with loss.kind = "monte-carlo"'
    if np.isinf(float(cast(float, task.context_length))):
        refuse("task.context_length", f"finite {named}", "it is inf")
    if task.label_noise is not None:
        refuse("task.label_noise", f"left out {named}, whose queries would have it too", "it is given")


def _check_size(model: ModelTable, d: int, restrict: str | None) -> None:
    """Refuse numbers of layers, heads or loops for which the weights or the quadrature do not fit into memory.

    **Raises:** `ProblemError` naming the field of [model].
    """
    numbers = {"inverse-covariance": 1, "eigenbasis": d, None: (d + 1) ** 2}[restrict]
    for name in ("layers", "heads"):
        checks.within_memory(f"model.{name}", (getattr(model, name) or 0) * numbers)
    if restrict is not None:
        checks.within_memory("model.loops", (2 * (model.loops or 0)) ** 2)
