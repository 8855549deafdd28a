"""What every problem offers, whatever it is written in: the table of its flow, and the problem that it builds."""

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
from flowsim.flow.gradient_flow import Stop, gradient_flow
from flowsim.flow.trajectory import Trajectory, weights
from flowsim.losses import AbstractPopulationLoss
from flowsim.models import FactoredMultiHeadAttention, LinearTransformerBlock, MultiHeadAttention
from flowsim.problem import toml
from flowsim.problem.architecture import Curve
from flowsim.problem.kinds import Positive, Threshold, Tolerance, Vector
from flowsim.problem.toml import AbstractTable
from flowsim.tasks import LinearRegression, RandomCovarianceRegression, SpectralRegression

Kind = TypeVar("Kind")
Observable = Callable[[PyTree], Scalar]


class StopTable(AbstractTable, frozen=True):
    """flow.stop: the excess relative to the start's, the gradient norm to the largest seen."""

    excess: Threshold = 1e-12
    grad_norm: Threshold = 1e-10


class FlowTable(AbstractTable, frozen=True):
    """[flow]: how far to integrate, and how accurately.

    restrict: "inverse-covariance" to matrices A_i = a_i covariance^-1 and B_i = b_i I, where the
    flow is constrained to these; "eigenbasis" to matrices that are diagonal in the eigenbasis of the covariance, which
    the flow never leaves: it is integrated by eigenvalues, so that the dimension may be a million.
    """

    times: Vector = ()
    t1: Positive | None = None
    rtol: Tolerance = 1e-9
    atol: Positive | None = None
    solver: Literal["auto", "implicit", "explicit"] = "auto"
    stop: StopTable | None = None
    budget_seconds: Positive | None = None
    restrict: Literal["inverse-covariance", "eigenbasis"] | None = None

    def resolved(self) -> "FlowTable":
        """With the stops where they are what ends the flow; no time beyond t1."""
        with fields_of("flow"):
            times = checks.increasing_times("times", self.times)
            if self.t1 is not None:
                checks.time("t1", self.t1)
        if self.t1 is None:
            return msgspec.structs.replace(self, stop=self.stop or StopTable())
        if times.size and times[-1] > self.t1:
            refuse("flow.times", f"at most t1 = {self.t1:g}", f"it holds {times[-1]:g}")
        if self.stop is not None:
            refuse("flow.stop", "left out where t1 is given, as the flow then ends at t1 alone", "it is given")
        return self


class AbstractSpec(AbstractTable, frozen=True):
    """A problem in its resolved form: one of a problem file, or of a function of the user's own."""

    @property
    def flow(self) -> FlowTable:  # a field of its tables
        """How far to integrate, and how accurately."""
        raise NotImplementedError

    @property
    def identity(self) -> str:
        """A digest of all that the flow depends on: neither the prompts of [test] nor the wall-clock budget."""
        raise NotImplementedError

    @property
    def only_device(self) -> str | None:
        """Why one device computes the loss, None where several can share its samples."""
        raise NotImplementedError

    @property
    def headline(self) -> Sequence[tuple[str, Any]]:
        """What sets the problem apart, for people: symbols, empty where there is none, and values."""
        raise NotImplementedError

    @property
    def start_in_short(self) -> str:
        """What sets the problem apart from others of its kind, in a line."""
        raise NotImplementedError

    @property
    def heading(self) -> str:
        """The problem in a few lines."""
        raise NotImplementedError

    @property
    def curves(self) -> Mapping[str, Curve]:
        """Figures that compare the flow with the model of least known loss, by name."""
        raise NotImplementedError

    @property
    def observables(self) -> Mapping[str, Observable]:
        """Functions of the model that are followed along the flow, by name."""
        raise NotImplementedError

    def own(self, kind: type[Kind]) -> list[Kind]:
        """The objects of a class that the file of the problem defines, each once."""
        raise NotImplementedError

    def to_toml(self) -> str:
        """The file that reads back as this problem, bit for bit."""
        return toml.write(msgspec.to_builtins(self))

    def build(self, *, mesh: jax.sharding.Mesh | None = None) -> "Problem":
        """Task, loss and start of this problem.

        **Arguments:** mesh: devices that share the samples of a loss that is known by samples, as in `MonteCarloLoss`.

        **Raises:** `ProblemError` where the mathematics, or the user's function, does not allow a value; `ValueError`
        without float64.
        """
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Problem:
    """A problem ready to be integrated.

    task: the law of the prompts, of a class in `flowsim.tasks`, None where the loss knows of none; loss: of one in
    `flowsim.losses`; test: the law of other prompts, None where none are asked for.
    """

    spec: AbstractSpec
    task: Any
    loss: AbstractPopulationLoss
    start: PyTree
    test: LinearRegression | RandomCovarianceRegression | None = None

    @property
    def minimizer(self) -> PyTree | None:
        """A model of least known loss, where there is one."""
        return self.loss.least_model()

    @property
    def curves(self) -> Mapping[str, Curve]:
        """The figures of this problem's own, by name: of its architecture where a model of least loss is known, and of
        its observables.
        """
        compared = self.spec.curves if self.minimizer is not None else {}
        return {**compared, **{f"observable-{name}": _curve(name, of) for name, of in self.spec.observables.items()}}

    def prepared(self) -> "Problem":
        """The same problem with the prompts of a sampled loss drawn, once for all that is done with it.

        **Raises:** `ProblemError` where the loss does not suit the model, or the memory.
        """
        with fields_of("loss"):
            return dataclasses.replace(self, loss=self.loss.prepared(self.start))

    def with_flow(self, table: FlowTable) -> "Problem":
        """The same problem, integrated as another table says."""
        return dataclasses.replace(self, spec=msgspec.structs.replace(self.spec, flow=table))

    def beside(self, models: PyTree) -> dict[str, Array]:
        """What is kept beside models that have time first, by name: matrices that they stand for, and observables."""
        return self.matrices(models) | self.observed(models)

    def observed(self, models: PyTree) -> dict[str, Array]:
        """The observables of models that have time first, by name."""
        return {name: eqx.filter_vmap(of)(models) for name, of in self.spec.observables.items()}

    def matrices(self, models: PyTree) -> dict[str, Array]:
        """The matrices that a restricted flow's models or factors stand for, or their eigenvalues in the basis of the
        covariance, by name and with time first; none of other flows.
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
        """Integrate the flow; ``how`` are further arguments of `gradient_flow`, such as ``checkpoint``."""
        table = self.spec.flow
        fields = msgspec.structs.asdict(table).items()
        asked = {name: value for name, value in fields if value is not None and name != "restrict"}
        if table.stop is not None:
            asked["stop"] = Stop(excess=table.stop.excess, grad_norm=table.stop.grad_norm)
        return gradient_flow(self.loss, self.start, **asked, **how)


def _curve(name: str, observable: Observable) -> Curve:
    values = lambda trajectory, best: np.asarray(eqx.filter_vmap(observable)(trajectory.models))
    return Curve(name, f"{name} along the flow, as the file of the problem has it.", values)


def _reduced(model: FactoredMultiHeadAttention | LinearTransformerBlock) -> MultiHeadAttention:
    return model.reduced()


@contextlib.contextmanager
def fields_of(table: str) -> Iterator[None]:
    """Name the table before the argument that an error names."""
    try:
        yield
    except ValueError as error:
        raise ProblemError(f"{table}.{error}") from None
