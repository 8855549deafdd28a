"""A problem file: the TOML form of task, model, start, loss and flow, checked field by field."""

import contextlib
import copy
import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import msgspec
from jaxtyping import Array, PyTree

from flowsim._core import checks
from flowsim._core.checks import ProblemError as ProblemError
from flowsim._core.checks import refuse
from flowsim._core.types import Tables
from flowsim.flow.gradient_flow import Stop, gradient_flow
from flowsim.flow.trajectory import Trajectory, weights
from flowsim.losses import AbstractPopulationLoss
from flowsim.models import FactoredMultiHeadAttention, LinearTransformerBlock, MultiHeadAttention
from flowsim.problem import toml
from flowsim.problem.architecture import Curve
from flowsim.problem.architectures import architecture_of
from flowsim.problem.init_table import InitTable as InitTable
from flowsim.problem.kinds import Positive, Threshold, Tolerance, Vector
from flowsim.problem.model_table import LossTable, ModelTable
from flowsim.problem.task_tables import NewPromptTable, TaskTable
from flowsim.problem.toml import AbstractTable
from flowsim.tasks import LinearRegression, RandomCovarianceRegression, SpectralRegression


class StopTable(AbstractTable, frozen=True):
    """flow.stop: the excess relative to the start's, the gradient norm to the largest seen."""

    excess: Threshold = 1e-12
    grad_norm: Threshold = 1e-10


class FlowTable(AbstractTable, frozen=True):
    """[flow]: how far to integrate, and how accurately.

    restrict: "inverse-covariance" to matrices A_i = a_i covariance^-1 and B_i = b_i I, among which the flow is that of
    ahn2023's Theorems 4 and 5; "eigenbasis" to matrices that are diagonal in the eigenbasis of the covariance, which
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
        with _fields_of("flow"):
            times = checks.increasing_times("times", self.times)
        if self.t1 is None:
            return msgspec.structs.replace(self, stop=self.stop or StopTable())
        if times.size and times[-1] > self.t1:
            refuse("flow.times", f"at most t1 = {self.t1:g}", f"it holds {times[-1]:g}")
        if self.stop is not None:
            refuse("flow.stop", "left out where t1 is given, as the flow then ends at t1 alone", "it is given")
        return self


class ProblemSpec(AbstractTable, frozen=True):
    """A problem in its resolved form: every default that the file left open is filled in."""

    task: TaskTable
    model: ModelTable = ModelTable()
    init: InitTable = InitTable()
    loss: LossTable = LossTable()
    flow: FlowTable = FlowTable()
    test: NewPromptTable | None = None

    @staticmethod
    def from_toml(text: str, overrides: Sequence[str] = ()) -> "ProblemSpec":
        """Read a problem file; each override is ``FIELD=VALUE``, such as ``init.scale=0.3``.

        **Raises:** `ProblemError` in one line that names the field, what was expected and what came.
        """
        return spec_of(toml.parse(text), overrides)

    def to_toml(self) -> str:
        """The file that reads back as this problem, bit for bit."""
        return toml.write(msgspec.to_builtins(self))

    @property
    def identity(self) -> str:
        """A digest of all that the flow depends on: neither the prompts of [test] nor the wall-clock budget."""
        flow = msgspec.structs.replace(self.flow, budget_seconds=None)
        text = msgspec.structs.replace(self, flow=flow, test=None).to_toml()
        return hashlib.sha256(text.encode()).hexdigest()

    def build(self, *, mesh: jax.sharding.Mesh | None = None) -> "Problem":
        """Task, loss and start of this problem.

        **Arguments:** mesh: devices that share the samples of a loss that is known by samples, as in `MonteCarloLoss`.

        **Raises:** `ProblemError` where the mathematics does not allow a value; `ValueError` without float64.
        """
        checks.require_float64()
        known = architecture_of(self.model.architecture)
        with _fields_of("task"):
            task = self.task.spectrum() if self.flow.restrict == "eigenbasis" else self.task.build()
        with _fields_of("init"):
            start = known.make_start(self.init, task, self.model, self.flow.restrict)
        with _fields_of("loss" if self.loss.kind == "monte-carlo" else "model"):
            loss = known.make_loss(self.model, task, self.loss, self.flow.restrict, mesh)
        if self.test is None or isinstance(task, SpectralRegression):
            return Problem(self, task, loss, start)
        with _fields_of("test"):
            test = self.test.task(task)
        if isinstance(test, LinearRegression) and test.shifts and (jnp.any(start.u12 != 0) or jnp.any(start.u21 != 0)):
            refuse(f"test.{test.shifts[0]}", "left out where u12 or u21 is not zero", "it is given")
        return Problem(self, task, loss, start, test)


@dataclasses.dataclass(frozen=True)
class Problem:
    """A problem ready to be integrated.

    task: the law of the prompts, of a class in `flowsim.tasks`; loss: of one in `flowsim.losses`; test: the law of
    other prompts, None where none are asked for.
    """

    spec: ProblemSpec
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
        """The figures that the architecture has of its own, by name; none on a set that the flow is restricted to."""
        known = architecture_of(self.spec.model.architecture)
        return known.curves if self.spec.flow.restrict is None and self.minimizer is not None else {}

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


def spec_of(tables: Tables, overrides: Sequence[str] = ()) -> ProblemSpec:
    """A problem from nested mappings, as TOML gives them, with overrides such as ``init.scale=0.3``.

    **Raises:** `ProblemError` in one line that names the field, what was expected and what came.
    """
    tables = copy.deepcopy(dict(tables))
    for assignment in overrides:
        toml.override(tables, assignment)
    for name, value in toml.flat(tables):
        if name not in ("task.context_length", "test.length") and not toml.is_finite(value):
            refuse(name, "finite", "it holds NaN or infinity")
    spec = toml.decode(tables, ProblemSpec)
    loss = spec.loss.resolved()
    known = architecture_of(spec.model.architecture)
    task = spec.task.resolved(known.laws_of_weights[0])
    model = known.resolved_model(spec.model, task, loss, symmetric=spec.init.symmetric, restrict=spec.flow.restrict)
    test = None if spec.test is None else spec.test.resolved()
    if test is not None and model.architecture != "linear-attention":
        refuse("test", f'left out with architecture = "{model.architecture}"', "it is given")
    init = known.resolved_start(spec.init, task.size, model, spec.flow.restrict)
    return ProblemSpec(task, model, init, loss, spec.flow.resolved(), test)


def differing_field(one: ProblemSpec, other: ProblemSpec) -> str | None:
    """The first field in which two problems differ. The wall-clock budget, which changes no result, may differ."""
    left, right = (dict(toml.flat(msgspec.to_builtins(spec))) for spec in (one, other))
    names = [name for name in left | right if name != "flow.budget_seconds"]
    return next((name for name in names if left.get(name) != right.get(name)), None)


def _reduced(model: FactoredMultiHeadAttention | LinearTransformerBlock) -> MultiHeadAttention:
    return model.reduced()


@contextlib.contextmanager
def _fields_of(table: str) -> Iterator[None]:
    """Name the table before the argument that an error names."""
    try:
        yield
    except ValueError as error:
        raise ProblemError(f"{table}.{error}") from None
