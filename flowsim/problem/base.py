"""The common interface of problem files and of users' functions: the table [flow], and the problem that is built."""

import abc
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

import equinox as eqx
import jax
import msgspec
import numpy as np
from jaxtyping import Array, PyTree

from flowsim._core import checks
from flowsim._core.checks import ProblemError, refuse
from flowsim._core.types import Scalar
from flowsim.flow.descent import gradient_descent
from flowsim.flow.gradient_flow import Stop, gradient_flow
from flowsim.flow.trajectory import Trajectory, weights
from flowsim.losses import AbstractPopulationLoss
from flowsim.losses.sampled.monte_carlo import prepared
from flowsim.models import FactoredMultiHeadAttention, LinearTransformerBlock, MultiHeadAttention
from flowsim.problem import toml
from flowsim.problem.architecture import Curve
from flowsim.problem.toml import AbstractTable, Count, NumberOrVector, Positive, Threshold, Tolerance, Vector
from flowsim.tasks import LinearRegression, RandomCovarianceRegression, SpectralRegression

Kind = TypeVar("Kind")
Observable = Callable[[PyTree], Scalar]


class StopTable(AbstractTable, frozen=True):
    """flow.stop: when the flow ends.

    **Fields:** excess: relative to that of the start; grad_norm: relative to the largest gradient norm so far.
    """

    excess: Threshold = 1e-12
    grad_norm: Threshold = 1e-10


class DescentTable(AbstractTable, frozen=True):
    """flow.descent: gradient descent in place of the flow.

    **Fields:** those of `gradient_descent`; step_size may be a list of ``steps`` numbers.
    """

    step_size: NumberOrVector
    steps: Count
    momentum: Threshold = 0.0
    direction: Literal["gradient", "sign", "normalized"] = "gradient"


class FlowTable(AbstractTable, frozen=True):
    """[flow]: how far and how accurately to integrate.

    **Fields:** those of `gradient_flow`, and

    - descent: gradient descent in place of the flow.
    - restrict: "inverse-covariance", the flow on A_i = a_i covariance^-1 and B_i = b_i I, or "eigenbasis", the flow of
      matrices that are diagonal in the eigenbasis of the covariance. The flow preserves this set. It is integrated by
      eigenvalues, so the dimension may be a million.
    """

    times: Vector = ()
    t1: Positive | None = None
    rtol: Tolerance = 1e-9
    atol: Positive | None = None
    solver: Literal["auto", "implicit", "explicit"] = "auto"
    stop: StopTable | None = None
    descent: DescentTable | None = None
    budget_seconds: Positive | None = None
    restrict: Literal["inverse-covariance", "eigenbasis"] | None = None

    def resolved(self) -> "FlowTable":
        """The table with default stops if there is no t1. Times beyond t1, and stops with a t1, are refused."""
        with fields_of("flow"):
            times = checks.increasing_times("times", self.times)
            if self.t1 is not None:
                checks.time("t1", self.t1)
        if self.descent is not None:
            self._refuse_with_descent()
            return self
        if self.t1 is None:
            return msgspec.structs.replace(self, stop=self.stop or StopTable())
        if times.size and times[-1] > self.t1:
            refuse("flow.times", f"at most t1 = {self.t1:g}", f"it holds {times[-1]:g}")
        if self.stop is not None:
            refuse("flow.stop", "left out where t1 is given, since the flow then ends at t1", "it is given")
        return self

    def _refuse_with_descent(self) -> None:
        """Refuse fields of the flow that mean nothing for gradient descent."""
        own = msgspec.structs.asdict(self)
        for name, default in msgspec.structs.asdict(FlowTable()).items():
            if name != "descent" and own[name] != default:
                refuse(f"flow.{name}", "left out where flow.descent is given, which has no such choice", "it is given")


class _AbstractTables(msgspec.StructMeta, abc.ABCMeta):
    """Tables with abstract methods."""


class AbstractSpec(AbstractTable, frozen=True, metaclass=_AbstractTables):
    """A problem in its resolved form, from a problem file or from a function of a user."""

    @property
    @abc.abstractmethod
    def flow(self) -> FlowTable:  # a field of its tables
        """How far and how accurately to integrate."""

    @property
    @abc.abstractmethod
    def identity(self) -> str:
        """A digest of everything that the flow depends on. It excludes [test] and the wall-clock budget."""

    def identity_with(self, loss: AbstractPopulationLoss, start: PyTree) -> str:
        """The `identity` of a built problem, which also covers the loss and the start that a user's function made."""
        return self.identity

    @property
    def content(self) -> str:
        """The text of a problem file, with a digest of what a user's function makes at present."""
        return self.to_toml()

    @property
    @abc.abstractmethod
    def only_device(self) -> str | None:
        """The reason why only one device can compute the loss, or None if several devices can share its samples."""

    @property
    @abc.abstractmethod
    def headline(self) -> Sequence[tuple[str, object]]:
        """The main properties of the problem as pairs of a symbol, which may be empty, and a value."""

    @property
    @abc.abstractmethod
    def start_in_short(self) -> str:
        """One line that distinguishes the problem from others of its kind."""

    @property
    @abc.abstractmethod
    def heading(self) -> str:
        """A description of the problem in a few lines."""

    @property
    @abc.abstractmethod
    def curves(self) -> Mapping[str, Curve]:
        """Figures that compare the flow with the model of least known loss, by name."""

    @property
    @abc.abstractmethod
    def observables(self) -> Mapping[str, Observable]:
        """Functions of the model that are recorded along the flow, by name."""

    @abc.abstractmethod
    def start_from_tables(self) -> PyTree | None:
        """The start, computed from the numbers of the tables, also inside a trace. None if a user's function does."""

    @abc.abstractmethod
    def own(self, kind: type[Kind]) -> list[Kind]:
        """The objects of a class that the file of the problem defines, without duplicates."""

    def to_toml(self) -> str:
        """The text of a problem file that reads back as exactly this problem."""
        return toml.write(msgspec.to_builtins(self))

    @abc.abstractmethod
    def build(self, *, mesh: jax.sharding.Mesh | None = None) -> "Problem":
        """Build the task, the loss and the start.

        **Arguments:** mesh: devices that share the samples of a sampled loss, as in `MonteCarloLoss`.

        **Raises:** `ProblemError` if a value is mathematically impossible or the function of the user fails;
        `ValueError` without float64.
        """


@dataclasses.dataclass(frozen=True)
class Problem:
    """A problem ready to be integrated.

    **Arguments:**

    - spec: the problem in its resolved form.
    - task: the law of the prompts, or None if the loss has no attribute ``task``.
    - loss: the population loss.
    - start: the model at t = 0.
    - test: the law of test prompts, if there are any.
    """

    spec: AbstractSpec
    task: PyTree
    loss: AbstractPopulationLoss
    start: PyTree
    test: LinearRegression | RandomCovarianceRegression | None = None

    @property
    def identity(self) -> str:
        """A digest of everything that the flow depends on."""
        return self.spec.identity_with(self.loss, self.start)

    @property
    def minimizer(self) -> PyTree | None:
        """A model of least known loss, or None."""
        return self.loss.least_model()

    @property
    def is_descent(self) -> bool:
        """Whether it asks for gradient descent in place of the flow."""
        return self.spec.flow.descent is not None

    @property
    def curves(self) -> Mapping[str, Curve]:
        """Further figures of this problem, by name: those of its architecture if a minimizer is known, and one for each
        observable.
        """
        compared = self.spec.curves if self.minimizer is not None else {}
        return {**compared, **{f"observable-{name}": _curve(name, of) for name, of in self.spec.observables.items()}}

    def prepared(self) -> "Problem":
        """The problem with the prompts of a sampled loss drawn, so that all later uses share them.

        **Raises:** `ProblemError` if the loss does not fit the model or the memory.
        """
        with fields_of("loss"):
            return dataclasses.replace(self, loss=prepared(self.loss, self.start))

    def with_flow(self, table: FlowTable) -> "Problem":
        """The problem with another table of the flow."""
        return dataclasses.replace(self, spec=msgspec.structs.replace(self.spec, flow=table))

    def extra_arrays(self, models: PyTree) -> dict[str, Array]:
        """The `matrices` and the observables of models with a leading axis of times, by name."""
        return self.matrices(models) | self.observed(models)

    def observed(self, models: PyTree) -> dict[str, Array]:
        """The observables of models with a leading axis of times, by name."""
        return {name: eqx.filter_vmap(of)(models) for name, of in self.spec.observables.items()}

    def matrices(self, models: PyTree) -> dict[str, Array]:
        """The matrices that the models of a restricted or factored flow represent, by name, leading axis times.

        In the eigenbasis of the covariance they are given by their eigenvalues. Other flows have no such matrices.
        """
        if isinstance(self.task, SpectralRegression):
            return {"eigenvalues": models.eigenvalues(self.task)}
        if isinstance(models, FactoredMultiHeadAttention | LinearTransformerBlock):
            return {name: leaf for name, leaf in weights(jax.vmap(_reduced)(models)).items() if name != "bias"}
        if self.spec.flow.restrict is None:
            return {}
        covariance = self.task.mean_covariance
        return weights(jax.vmap(lambda model: model.attention(covariance))(models))

    def run(self, **how: Any) -> Trajectory:
        """Integrate the flow, or descend. ``how`` are further arguments of `gradient_flow`, such as ``checkpoint``,
        which a descent does not need.
        """
        table = self.spec.flow
        if table.descent is not None:
            with fields_of("flow.descent"):
                return gradient_descent(self.loss, self.start, **msgspec.structs.asdict(table.descent))
        fields = msgspec.structs.asdict(table).items()
        asked = {name: value for name, value in fields if value is not None and name not in ("restrict", "descent")}
        if table.stop is not None:
            asked["stop"] = Stop(excess=table.stop.excess, grad_norm=table.stop.grad_norm)
        return gradient_flow(self.loss, self.start, **asked, **how)


def _curve(name: str, observable: Observable) -> Curve:
    values = lambda trajectory, best: np.asarray(eqx.filter_vmap(observable)(trajectory.models))
    return Curve(name, f"{name} along the flow, as defined in the file of the problem.", values)


def _reduced(model: FactoredMultiHeadAttention | LinearTransformerBlock) -> MultiHeadAttention:
    return model.reduced()


@contextlib.contextmanager
def fields_of(table: str) -> Iterator[None]:
    """A context in which errors name an argument as TABLE.ARGUMENT."""
    try:
        yield
    except ValueError as error:
        raise ProblemError(f"{table}.{error}") from None
