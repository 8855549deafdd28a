"""A problem file: the TOML form of task, model, start, loss and flow, checked field by field."""

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import jax.numpy as jnp
import msgspec

from flowsim import _checks, _toml, flow, initialization
from flowsim._kinds import Count, Matrix, Number, Positive, Seed, Threshold, Tolerance, Vector
from flowsim._task_tables import NewPromptTable, TaskTable
from flowsim._toml import AbstractTable, refuse
from flowsim._toml import ProblemError as ProblemError
from flowsim.losses import LinearAttentionLoss, RandomCovarianceLoss
from flowsim.models import LinearAttention
from flowsim.tasks import LinearRegression, RandomCovarianceRegression
from flowsim.trajectory import Trajectory


class ModelTable(AbstractTable, frozen=True):
    """[model]: the in-context model."""

    architecture: Literal["linear-attention"] = "linear-attention"


class InitTable(AbstractTable, frozen=True):
    """[init]: the start. Which fields go with which kind is in ``_STARTS``."""

    kind: Literal[
        "balanced", "balanced-indefinite", "unbalanced", "zeros", "scaled-identity", "random", "explicit"
    ] = "balanced"  # fmt: skip
    scale: Positive | None = None
    theta: Matrix | None = None
    rank: Count | None = None
    seed: Seed | None = None
    U11: Matrix | None = None
    u_minus1: Number | None = None
    u12: Vector | None = None
    u21: Vector | None = None

    def given(self) -> dict[str, Any]:
        """The fields that are not left out, beside the kind."""
        fields = msgspec.structs.asdict(self).items()
        return {name: value for name, value in fields if value is not None and name != "kind"}

    def resolved(self, d: int) -> "InitTable":
        """With rank and seed where a matrix is drawn; nothing that the kind would ignore."""
        known, given = _STARTS[self.kind], self.given()
        for name in known.needed:
            if name not in given:
                refuse(f"init.{name}", _FIELDS[f"init.{name}"].expected, f'it is missing (kind = "{self.kind}")')
        for name in given:
            if name not in known.needed + known.allowed:
                refuse(f"init.{name}", f'left out with kind = "{self.kind}"', "it is given")
            if name in ("rank", "seed") and self.theta is not None:
                refuse(f"init.{name}", "left out where theta is given", "it is given")
        if self.rank is not None and self.rank > d:
            refuse("init.rank", f"at most the dimension, {d}", f"it is {self.rank}")
        drawn = () if self.theta is not None else known.allowed
        defaults = {name: value for name, value in {"rank": d, "seed": 0}.items() if name in drawn}
        return msgspec.structs.replace(self, **(defaults | given))

    def start(self, d: int) -> LinearAttention:
        """The model of this table, resolved, in dimension d.

        **Raises:** `ValueError` naming the argument.
        """
        return self.start_with(d, self.scale, self.seed)

    def start_with(self, d: int, scale: Any, seed: Any) -> LinearAttention:
        """The model with another scale and seed, which may be traced: one program makes many starts."""
        known, given = _STARTS[self.kind], self.given()
        given |= {name: value for name, value in {"scale": scale, "seed": seed}.items() if name in given}
        if self.kind == "explicit":
            shapes = {"U11": (d, d), "u_minus1": (), "u12": (d,), "u21": (d,)}
            return known.make(**{name: _checks.as_array(name, value, shapes[name]) for name, value in given.items()})
        if "theta" not in known.allowed:
            return known.make(**given, dimension=d)
        if self.theta is not None:
            return known.make(scale, _checks.as_array("theta", self.theta, (d, None)))
        return known.make(scale, initialization.random_theta(d, given.get("rank", d), seed))


@dataclasses.dataclass(frozen=True)
class _Start:
    """A kind of start: what makes it, the fields that it needs, and those that it may have."""

    make: Callable[..., LinearAttention]
    needed: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()


_STARTS = {
    "balanced": _Start(initialization.balanced, ("scale",), ("theta", "rank", "seed")),
    # Drawn square and not as a factor, so that it has no rank to choose.
    "balanced-indefinite": _Start(initialization.balanced_indefinite, ("scale",), ("theta", "seed")),
    "unbalanced": _Start(initialization.unbalanced, ("scale",), ("theta", "rank", "seed")),
    "zeros": _Start(initialization.zeros),
    "scaled-identity": _Start(initialization.scaled_identity, ("scale",)),
    "random": _Start(initialization.random, ("scale",), ("seed",)),
    "explicit": _Start(LinearAttention, ("U11", "u_minus1"), ("u12", "u21")),
}


class LossTable(AbstractTable, frozen=True):
    """[loss]: how the population loss is evaluated."""

    kind: Literal["exact"] = "exact"


class StopTable(AbstractTable, frozen=True):
    """flow.stop: the excess relative to the start's, the gradient norm to the largest seen."""

    excess: Threshold = 1e-12
    grad_norm: Threshold = 1e-10


class FlowTable(AbstractTable, frozen=True):
    """[flow]: how far to integrate, and how accurately."""

    times: Vector = ()
    t1: Positive | None = None
    rtol: Tolerance = 1e-9
    atol: Positive | None = None
    solver: Literal["auto", "implicit", "explicit"] = "auto"
    stop: StopTable | None = None
    budget_seconds: Positive | None = None

    def resolved(self) -> "FlowTable":
        """With the stops where they are what ends the flow; no time beyond t1."""
        with _fields_of("flow"):
            times = _checks.increasing_times("times", self.times)
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
        return spec_of(_toml.parse(text), overrides)

    def to_toml(self) -> str:
        """The file that reads back as this problem, bit for bit."""
        return _toml.write(msgspec.to_builtins(self))

    def build(self) -> "Problem":
        """Task, loss and start of this problem.

        **Raises:** `ProblemError` where the mathematics does not allow a value; `ValueError` without float64.
        """
        _checks.require_float64()
        with _fields_of("task"):
            task = self.task.build()
        with _fields_of("init"):
            start = self.init.start(task.dimension)
        loss = LinearAttentionLoss(task) if isinstance(task, LinearRegression) else RandomCovarianceLoss(task)
        if self.test is None:
            return Problem(self, task, loss, start)
        with _fields_of("test"):
            test = self.test.task(task)
        if isinstance(test, LinearRegression) and test.shifts and (jnp.any(start.u12 != 0) or jnp.any(start.u21 != 0)):
            refuse(f"test.{test.shifts[0]}", "left out where u12 or u21 is not zero", "it is given")
        return Problem(self, task, loss, start, test)


_FIELDS = _toml.fields(ProblemSpec)


@dataclasses.dataclass(frozen=True)
class Problem:
    """A problem ready to be integrated; test: the law of other prompts, None where none are asked for."""

    spec: ProblemSpec
    task: LinearRegression | RandomCovarianceRegression
    loss: LinearAttentionLoss | RandomCovarianceLoss
    start: LinearAttention
    test: LinearRegression | RandomCovarianceRegression | None = None

    def run(self, **how: Any) -> Trajectory:
        """Integrate the flow; ``how`` are further arguments of `gradient_flow`, such as ``checkpoint``."""
        table = self.spec.flow
        asked = {name: value for name, value in msgspec.structs.asdict(table).items() if value is not None}
        if table.stop is not None:
            asked["stop"] = flow.Stop(excess=table.stop.excess, grad_norm=table.stop.grad_norm)
        return flow.gradient_flow(self.loss, self.start, **asked, **how)


def spec_of(tables: Mapping[str, Any], overrides: Sequence[str] = ()) -> ProblemSpec:
    """A problem from nested mappings, as TOML gives them, with overrides such as ``init.scale=0.3``.

    **Raises:** `ProblemError` in one line that names the field, what was expected and what came.
    """
    tables = copy.deepcopy(dict(tables))
    for assignment in overrides:
        _toml.override(tables, assignment)
    for name, value in _toml.flat(tables):
        if name not in ("task.context_length", "test.length") and not _toml.is_finite(value):
            refuse(name, "finite", "it holds NaN or infinity")
    spec = _toml.decode(tables, ProblemSpec)
    task = spec.task.resolved()
    test = None if spec.test is None else spec.test.resolved()
    return ProblemSpec(task, spec.model, spec.init.resolved(task.size), spec.loss, spec.flow.resolved(), test)


def differing_field(one: ProblemSpec, other: ProblemSpec) -> str | None:
    """The first field in which two problems differ. The wall-clock budget, which changes no result, may differ."""
    left, right = (dict(_toml.flat(msgspec.to_builtins(spec))) for spec in (one, other))
    names = [name for name in left | right if name != "flow.budget_seconds"]
    return next((name for name in names if left.get(name) != right.get(name)), None)


@contextlib.contextmanager
def _fields_of(table: str) -> Iterator[None]:
    """Name the table before the argument that an error names."""
    try:
        yield
    except ValueError as error:
        raise ProblemError(f"{table}.{error}") from None
