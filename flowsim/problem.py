"""A problem file: the TOML form of task, model, start, loss and flow, checked field by field."""

import contextlib
import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jaxtyping import Array, Float
from msgspec import Meta

from flowsim import _checks, _toml, flow, initialization
from flowsim._toml import AbstractTable, refuse
from flowsim._toml import ProblemError as ProblemError
from flowsim.losses import LinearAttentionLoss
from flowsim.models import LinearAttention
from flowsim.tasks import LinearRegression
from flowsim.trajectory import Trajectory

# The kinds of value that a field can hold; an error quotes the description.
Number = Annotated[float, Meta(description="a number")]
Positive = Annotated[float, Meta(gt=0, description="a positive number")]
Tolerance = Annotated[float, Meta(ge=1e-14, lt=1, description="at least 1e-14 and below 1")]
Threshold = Annotated[float, Meta(ge=0, lt=1, description="at least 0 and below 1")]
Count = Annotated[int, Meta(ge=1, description="a whole number of at least 1")]
Length = Annotated[int | float, Meta(description="a whole number of at least 1")]
Ratio = Annotated[float, Meta(ge=1, description="a number of at least 1")]
Seed = Annotated[int, Meta(ge=0, lt=2**32, description="a whole number of at least 0 and below 2^32")]
Vector = Annotated[tuple[float, ...], Meta(description="a list of numbers")]
Matrix = Annotated[tuple[tuple[float, ...], ...], Meta(description="a matrix (a list of rows)")]


class Eigenvalues(AbstractTable, frozen=True):
    """A covariance by its spectrum: diagonal, or in the orthonormal basis that ``rotation_seed`` draws.

    The spectrum is listed, or geometric from 1 down to 1/condition in a dimension.
    """

    eigenvalues: Vector | None = None
    condition: Ratio | None = None
    dimension: Count | None = None
    rotation_seed: Seed | None = None

    @property
    def values(self) -> tuple[float, ...]:
        """The eigenvalues."""
        if self.eigenvalues is not None:
            return self.eigenvalues
        assert self.condition is not None and self.dimension is not None  # see `check`
        return tuple(np.geomspace(1.0, 1.0 / self.condition, self.dimension).tolist())

    def matrix(self) -> Float[Array, "d d"]:
        """Q diag(eigenvalues) Q^T, where Q = I without a seed."""
        values = jnp.asarray(self.values)
        if self.rotation_seed is None:
            return jnp.diag(values)
        rotation = jax.random.orthogonal(jax.random.key(self.rotation_seed), len(self.values))
        matrix = (rotation * values[None, :]) @ rotation.T
        return (matrix + matrix.T) / 2

    def check(self) -> None:
        """Refuse all but exactly one of the two forms."""
        where = "task.covariance"
        if self.eigenvalues is not None:
            for name in ("condition", "dimension"):
                if getattr(self, name) is not None:
                    refuse(f"{where}.{name}", "left out where eigenvalues are given", "it is given")
            if not all(value > 0 for value in self.eigenvalues):
                refuse(f"{where}.eigenvalues", "positive", f"the smallest is {min(self.eigenvalues):g}")
            return
        if self.condition is None and self.dimension is None:
            expected = "a list of numbers, unless condition and dimension are given"
            refuse(f"{where}.eigenvalues", expected, "it is missing")
        for name in ("condition", "dimension"):
            if getattr(self, name) is None:
                refuse(f"{where}.{name}", _FIELDS[f"{where}.{name}"].expected, "it is missing")


class TaskTable(AbstractTable, frozen=True):
    """[task]: the law of a prompt."""

    covariance: Matrix | Eigenvalues | Literal["identity"]
    context_length: Length | Literal["inf"]
    dimension: Count | None = None
    weights: Literal["isotropic"] = "isotropic"

    @property
    def size(self) -> int:
        """d."""
        if isinstance(self.covariance, Eigenvalues):
            return self.covariance.dimension or len(self.covariance.values)
        return self.dimension or len(self.covariance)

    def matrix(self) -> Float[Array, "rows columns"]:
        """The covariance, (d, d) if it is one."""
        if isinstance(self.covariance, Eigenvalues):
            return self.covariance.matrix()
        if self.covariance == "identity":
            return jnp.eye(self.size)
        return _checks.as_array("covariance", self.covariance, (None, None))

    def resolved(self) -> "TaskTable":
        """The length in one form; the dimension with the identity alone."""
        if self.covariance == "identity" and self.dimension is None:
            refuse("task.dimension", 'given with covariance = "identity"', "it is missing")
        if self.covariance != "identity" and self.dimension is not None:
            refuse("task.dimension", 'left out unless covariance = "identity"', "it is given")
        if isinstance(self.covariance, Eigenvalues):
            self.covariance.check()
        length = self.context_length
        if length in ("inf", math.inf):
            return msgspec.structs.replace(self, context_length="inf")
        # Beyond 2^53 a float64 no longer tells whole numbers apart.
        if not 1 <= length <= 2**53 or length != int(length):
            refuse("task.context_length", _FIELDS["task.context_length"].expected, f"it is {length!s:.60}")
        return msgspec.structs.replace(self, context_length=int(length))


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
            task = LinearRegression(self.task.matrix(), float(self.task.context_length))
        with _fields_of("init"):
            start = self.init.start(task.dimension)
        return Problem(self, task, LinearAttentionLoss(task), start)


_FIELDS = _toml.fields(ProblemSpec)


@dataclasses.dataclass(frozen=True)
class Problem:
    """A problem ready to be integrated."""

    spec: ProblemSpec
    task: LinearRegression
    loss: LinearAttentionLoss
    start: LinearAttention

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
        if name != "task.context_length" and not _toml.is_finite(value):
            refuse(name, "finite", "it holds NaN or infinity")
    spec = _toml.decode(tables, ProblemSpec)
    task = spec.task.resolved()
    return ProblemSpec(task, spec.model, spec.init.resolved(task.size), spec.loss, spec.flow.resolved())


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
