"""The interface that problem files and users' functions share, the table [flow], and the problem that is built."""

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
    """flow.stop: the thresholds at which the flow ends.

    **Fields:** excess: the excess loss, relative to the excess loss at the start; grad_norm: the gradient norm,
    relative to the largest gradient norm so far.
    """

    excess: Threshold = 1e-12
    grad_norm: Threshold = 1e-10


class DescentTable(AbstractTable, frozen=True):
    """flow.descent: gradient descent in place of the flow.

    **Fields:** the arguments of `gradient_descent`. step_size is one number, or a list of ``steps`` numbers.
    """

    step_size: NumberOrVector
    steps: Count
    momentum: Threshold = 0.0
    direction: Literal["gradient", "sign", "normalized"] = "gradient"


class FlowTable(AbstractTable, frozen=True):
    """[flow]: how far and how accurately to integrate.

    **Fields:** the arguments of `gradient_flow`, and

    - descent: gradient descent in place of the flow.
    - restrict: a set of weights to which the flow is restricted. For "inverse-covariance" it is the set A_i = a_i
      covariance^-1, B_i = b_i I. For "eigenbasis" it is the set of matrices that are diagonal in the eigenbasis of
      the covariance, which the flow preserves. Only their eigenvalues are integrated, so the dimension may be a
      million.
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
        """The table, checked, with a default ``stop`` if t1 is not given.

        **Raises:** `ProblemError` naming the field, for example if times exceed t1, or if stop and t1 are given.
        """
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
        """Refuse fields of the flow that have no meaning for gradient descent.

        **Raises:** `ProblemError` naming the field.
        """
        own = msgspec.structs.asdict(self)
        for name, default in msgspec.structs.asdict(FlowTable()).items():
            if name != "descent" and own[name] != default:
                refuse(f"flow.{name}", "left out where flow.descent is given, which has no such choice", "it is given")


class _AbstractTables(msgspec.StructMeta, abc.ABCMeta):
    """The metaclass of tables with abstract methods."""


class AbstractSpec(AbstractTable, frozen=True, metaclass=_AbstractTables):
    """The description of a problem with all defaults filled in, from a problem file or from a user's function."""

    @property
    @abc.abstractmethod
    def flow(self) -> FlowTable:  # a field of its tables
        """The table [flow]: how far and how accurately to integrate."""

    @property
    @abc.abstractmethod
    def identity(self) -> str:
        """A digest of everything in the tables that the flow depends on: all except [test] and the time budget."""

    def identity_with(self, loss: AbstractPopulationLoss, start: PyTree) -> str:
        """A digest of a built problem. It includes the loss and the start if a user's function returned them."""
        return self.identity

    @property
    def content(self) -> str:
        """The problem as text. If a user's function defines the problem, the text ends with a digest of the loss
        and the start that the function returns when it is called again.
        """
        return self.to_toml()

    @property
    @abc.abstractmethod
    def only_device(self) -> str | None:
        """The reason why only one device can compute the loss. None if several devices can share its samples."""

    @property
    @abc.abstractmethod
    def headline(self) -> Sequence[tuple[str, object]]:
        """The main properties of the problem, as pairs of a symbol and a value. The symbol may be empty."""

    @property
    @abc.abstractmethod
    def start_in_short(self) -> str:
        """The start, or the arguments of a user's function, in one line. It tells similar problems apart."""

    @property
    @abc.abstractmethod
    def heading(self) -> str:
        """A description of the problem in a few lines."""

    @property
    @abc.abstractmethod
    def curves(self) -> Mapping[str, Curve]:
        """The figures that compare the flow with the model of smallest known loss, by name."""

    @property
    @abc.abstractmethod
    def observables(self) -> Mapping[str, Observable]:
        """The user's functions of the model whose values are recorded along the flow, by name."""

    @abc.abstractmethod
    def start_from_tables(self) -> PyTree | None:
        """The start, computed from the numbers in the tables, which may be traced. None if a user's function
        defines it.
        """

    @abc.abstractmethod
    def own(self, kind: type[Kind]) -> list[Kind]:
        """The global objects in the user's Python file that are instances of ``kind``, without duplicates. The list
        is empty if the problem comes from a problem file.
        """

    def to_toml(self) -> str:
        """The text of a problem file that describes exactly this problem."""
        return toml.write(msgspec.to_builtins(self))

    @abc.abstractmethod
    def build(self, *, mesh: jax.sharding.Mesh | None = None) -> "Problem":
        """Build the task, the loss and the start.

        **Arguments:** mesh: devices that share the samples of a sampled loss, as in `MonteCarloLoss`.

        **Raises:** `ProblemError` if a value is mathematically impossible or the user's function fails.
        `ValueError` if float64 is not enabled.
        """


@dataclasses.dataclass(frozen=True)
class Problem:
    """A problem with its task, loss and start, ready to be integrated.

    **Arguments:**

    - spec: the description of the problem, with all defaults.
    - task: the law of the prompts, or None if the loss has no attribute ``task``.
    - loss: the population loss.
    - start: the model at t = 0.
    - test: the law of test prompts, or None.
    """

    spec: AbstractSpec
    task: PyTree
    loss: AbstractPopulationLoss
    start: PyTree
    test: LinearRegression | RandomCovarianceRegression | None = None

    @property
    def identity(self) -> str:
        """A digest of everything that the flow depends on; see `AbstractSpec.identity_with`."""
        return self.spec.identity_with(self.loss, self.start)

    @property
    def minimizer(self) -> PyTree | None:
        """A model with the smallest known loss, or None if no such model is known."""
        return self.loss.least_model()

    @property
    def is_descent(self) -> bool:
        """Whether the problem is a gradient descent and not a flow."""
        return self.spec.flow.descent is not None

    @property
    def curves(self) -> Mapping[str, Curve]:
        """The figures that only problems of this kind have, by name.

        There is one figure for each observable. The figures of the architecture are included if a minimizer is
        known.
        """
        compared = self.spec.curves if self.minimizer is not None else {}
        return {**compared, **{f"observable-{name}": _curve(name, of) for name, of in self.spec.observables.items()}}

    def prepared(self) -> "Problem":
        """The problem with the prompts of a sampled loss already drawn, so that all later uses share the prompts.

        **Raises:** `ProblemError` if the loss does not fit the model or the memory.
        """
        with fields_of("loss"):
            return dataclasses.replace(self, loss=prepared(self.loss, self.start))

    def with_flow(self, table: FlowTable) -> "Problem":
        """The problem with another table [flow]."""
        return dataclasses.replace(self, spec=msgspec.structs.replace(self.spec, flow=table))

    def extra_arrays(self, models: PyTree) -> dict[str, Array]:
        """The `matrices` and the values of the observables along a flow, by name, with time on the first axis.

        **Arguments:** models: a model with time on the first axis of every weight.
        """
        return self.matrices(models) | self.observed(models)

    def observed(self, models: PyTree) -> dict[str, Array]:
        """The values of the observables along a flow, by name, (T,).

        **Arguments:** models: a model with time on the first axis of every weight.
        """
        return {name: eqx.filter_vmap(of)(models) for name, of in self.spec.observables.items()}

    def matrices(self, models: PyTree) -> dict[str, Array]:
        """The matrices that the models of a restricted or factored flow represent, by name.

        They have time on their first axis. For flow.restrict = "eigenbasis" these are the eigenvalues of the
        matrices. The result is empty for flows that are neither restricted nor factored.

        **Arguments:** models: a model with time on the first axis of every weight.
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
        """Integrate the flow, or run the gradient descent.

        **Arguments:** how: further arguments of `gradient_flow`, such as ``checkpoint``. A descent ignores them.
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
    """A context that turns a `ValueError` into a `ProblemError` which names the argument as TABLE.ARGUMENT."""
    try:
        yield
    except ValueError as error:
        raise ProblemError(f"{table}.{error}") from None
