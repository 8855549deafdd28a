"""Problem files: task, model, start, loss and flow in TOML, checked field by field."""

import copy
import hashlib
import math
from collections.abc import Mapping, Sequence

import jax
import msgspec
from jaxtyping import PyTree

from flowsim._core import checks
from flowsim._core.checks import refuse
from flowsim._core.types import Document, Tables
from flowsim.losses.prompt_risk import check_model
from flowsim.problem import toml
from flowsim.problem.architecture import Curve, Task
from flowsim.problem.architectures import architecture_of
from flowsim.problem.base import AbstractSpec, FlowTable, Kind, Observable, Problem, fields_of
from flowsim.problem.init_table import InitTable
from flowsim.problem.model_table import LossTable, ModelTable
from flowsim.problem.own import problem as own
from flowsim.problem.task_tables import NewPromptTable, TaskTable
from flowsim.tasks import SpectralRegression


class ProblemSpec(AbstractSpec, frozen=True):
    """The description of a problem by the tables of a problem file, with all defaults filled in."""

    task: TaskTable
    model: ModelTable = ModelTable()
    init: InitTable = InitTable()
    loss: LossTable = LossTable()
    flow: FlowTable = FlowTable()
    test: NewPromptTable | None = None

    @staticmethod
    def from_toml(text: str, overrides: Sequence[str] = ()) -> "ProblemSpec":
        """Read the text of a problem file.

        **Arguments:** text: the text; overrides: assignments ``FIELD=VALUE`` that replace fields, such as
        ``init.scale=0.3``.

        **Raises:** `ProblemError` in one line that names the field, what was expected and what was found.
        """
        return _of_tables(_with(toml.parse(text), overrides))

    @property
    def identity(self) -> str:
        flow = msgspec.structs.replace(self.flow, budget_seconds=None)
        text = msgspec.structs.replace(self, flow=flow, test=None).to_toml()
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def only_device(self) -> str | None:
        kind = self.loss.kind
        return None if kind == "monte-carlo" else f'with loss.kind = "{kind}", which one device computes'

    @property
    def headline(self) -> Sequence[tuple[str, object]]:
        one_layer = self.model.architecture == "linear-attention"
        pairs = (
            ("", self.model.architecture),
            ("d", self.task.size),
            ("L", self.model.loops),
            ("k", None if self.model.loops else self.model.layers),
            ("N" if one_layer else "n", self.task.context_length),
            ("", f"{self.init.kind} start"),
            ("σ" if one_layer else "scale", self.init.scale),
        )
        return [pair for pair in pairs if pair[1]]

    @property
    def start_in_short(self) -> str:
        return toml.write_inline(self.init)

    @property
    def heading(self) -> str:
        tables = ("task", "init") if self.model == ModelTable() else ("task", "model", "init")
        return "\n".join(f"[{name}] {toml.write_inline(getattr(self, name))}" for name in tables)

    @property
    def curves(self) -> Mapping[str, Curve]:
        return architecture_of(self.model.architecture).curves if self.flow.restrict is None else {}

    @property
    def observables(self) -> Mapping[str, Observable]:
        return {}

    def own(self, kind: type[Kind]) -> list[Kind]:
        return []

    def start_from_tables(self) -> PyTree | None:
        return self._start(self._task())

    def _task(self) -> Task:
        with fields_of("task"):
            return self.task.spectrum() if self.flow.restrict == "eigenbasis" else self.task.build()

    def _start(self, task: Task) -> PyTree:
        known = architecture_of(self.model.architecture)
        with fields_of("init"):
            return known.make_start(self.init, task, self.model, self.flow.restrict)

    def build(self, *, mesh: jax.sharding.Mesh | None = None) -> Problem:
        checks.require_float64()
        known, task = architecture_of(self.model.architecture), self._task()
        start = self._start(task)
        with fields_of("loss" if self.loss.kind == "monte-carlo" else "model"):
            loss = known.make_loss(self.model, task, self.loss, self.flow.restrict, mesh)
        if self.test is None or isinstance(task, SpectralRegression):
            return Problem(self, task, loss, start)
        with fields_of("test"):
            test = self.test.task(task)
        with fields_of("init"):
            check_model(start, test)
        return Problem(self, task, loss, start, test)


def spec_of(tables: Tables, overrides: Sequence[str] = ()) -> AbstractSpec:
    """The description of a problem, from its tables as nested mappings in the form of TOML.

    If the tables have a field ``make``, a user's function defines the problem.

    **Arguments:** tables: the mappings; overrides: assignments that replace fields, such as ``init.scale=0.3``.

    **Raises:** `ProblemError` in one line that names the field, what was expected and what was found.
    """
    given = _with(tables, overrides)
    return own.spec_of(given) if "make" in given else _of_tables(given)


def unnamed(problem: Tables) -> Document:
    """The tables of one of a claim's problems without the field ``name``, which only reports use."""
    return {name: table for name, table in problem.items() if name != "name"}


def known_fields(tables: Tables) -> tuple[str, ...]:
    """The dotted names of all fields that a problem with these tables may have."""
    return tuple(toml.fields(own.table_of(tables) if "make" in tables else ProblemSpec))


def signed(tables: Tables) -> Document:
    """The tables. If they have a field ``make``, the place and the digest of the user's file are added."""
    return own.signed(tables) if "make" in tables else dict(tables)


def _with(tables: Tables, overrides: Sequence[str]) -> Document:
    """A copy of the tables in which assignments ``FIELD=VALUE`` have replaced fields.

    NaN is refused everywhere. Infinity is allowed only for context lengths and for the arguments of a user's
    function.

    **Raises:** `ProblemError` naming the field.
    """
    tables = copy.deepcopy(dict(tables))
    for assignment in overrides:
        toml.override(tables, assignment)
    for name, value in toml.flat(tables):
        own = "make" in tables and "." not in name
        if own and value in (math.inf, -math.inf):
            continue
        if name not in ("task.context_length", "test.length") and not toml.is_finite(value):
            refuse(name, "finite", "it holds NaN or infinity")
    return tables


def _of_tables(tables: Tables) -> ProblemSpec:
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


def differing_field(one: Tables, other: AbstractSpec) -> str | None:
    """The dotted name of the first field in which the tables ``one`` differ from the problem ``other``, or None.

    Two differences do not count: the wall-clock budget, which changes no result, and the folder of a user's file.
    """
    left, right = (dict(toml.flat(tables)) for tables in (one, toml.parse(other.to_toml())))
    for tables in (left, right):
        tables.pop("flow.budget_seconds", None)
        if "make" in tables:
            tables["make"] = str(tables["make"]).rpartition(":")[2]
    return next((name for name in right | left if left.get(name) != right.get(name)), None)
