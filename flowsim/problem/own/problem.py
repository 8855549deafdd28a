"""A problem of the user's own: a function ``make(**fields) -> (loss, model)`` in a Python file."""

import contextlib
import hashlib
import inspect
import os
import pathlib
import re
import types
import typing
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import msgspec
from jaxtyping import PyTree
from msgspec import Meta

from flowsim._core import checks
from flowsim._core.checks import refuse
from flowsim._core.functions import known_by_value
from flowsim._core.types import Tables
from flowsim.flow.arguments import check_model
from flowsim.flow.trajectory import Trajectory, weights
from flowsim.losses import AbstractPopulationLoss
from flowsim.problem import toml
from flowsim.problem.architecture import Curve
from flowsim.problem.base import AbstractSpec, FlowTable, Kind, Observable, Problem
from flowsim.problem.kinds import Flag, Number, Word
from flowsim.problem.own.files import blaming, is_place, module_at, module_of, objects_of, place_of, split

OBSERVABLES = "OBSERVABLES"

_Whole = Annotated[int, Meta(description="a whole number")]
_Numbers = Annotated[
    tuple[float | tuple[float, ...], ...], Meta(description="a list of numbers, or of lists of numbers")
]
_KINDS: dict[Any, Any] = {bool: Flag, int: _Whole, float: Number, str: Word, list: _Numbers, tuple: _Numbers}
_TRACED: set[tuple[Hashable, ...]] = set()  # problems of one structure that were found to flow
_TABLES: dict[tuple[str, str], type["AbstractUserSpec"]] = {}


class AbstractUserSpec(AbstractSpec, frozen=True, kw_only=True):
    """A problem of the user's own in its resolved form; a class for each function has its arguments as further fields.

    make: the file and the name of the function, ``/place/of/FILE.py:make``; sha256: of the file, and of what it
    imports of the user's own.
    """

    make: Word
    sha256: Word
    flow: FlowTable = FlowTable()

    @property
    def fields(self) -> dict[str, Any]:
        """The arguments of the function."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if name not in _OURS}

    @property
    def identity(self) -> str:
        flow = msgspec.structs.replace(self.flow, budget_seconds=None)
        text = msgspec.structs.replace(self, make=split(self.make)[1], flow=flow).to_toml()
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def only_device(self) -> str:
        return f"with a loss of {pathlib.Path(self.make).name}, which one device computes"

    @property
    def headline(self) -> Sequence[tuple[str, Any]]:
        return [("", pathlib.Path(self.make).name), *((name, toml.write_value(v)) for name, v in self.fields.items())]

    @property
    def start_in_short(self) -> str:
        return ", ".join(f"{name} = {toml.write_value(value)}" for name, value in self.fields.items()) or self.make

    @property
    def heading(self) -> str:
        return "\n".join(filter(None, [self.make, self.start_in_short if self.fields else ""]))

    @property
    def curves(self) -> Mapping[str, Curve]:
        return {}

    @property
    def observables(self) -> Mapping[str, Observable]:
        return getattr(self._module, OBSERVABLES, {})

    def own(self, kind: type[Kind]) -> list[Kind]:
        return objects_of(self._module, kind)

    def build(self, *, mesh: jax.sharding.Mesh | None = None) -> Problem:
        """Loss and start as the user's function gives them; a mesh is not used.

        **Raises:** `ProblemError` where it raises, or gives something else; `ValueError` without float64.
        """
        checks.require_float64()
        path, name = split(self.make)
        function = getattr(self._module, name)
        with blaming(path, self.make, "a function that gives (loss, model)"):
            made = function(**{name: _as_lists(value) for name, value in self.fields.items()})
        if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], AbstractPopulationLoss)):
            kinds = [type(part).__name__ for part in (made if isinstance(made, tuple) else [made])]
            came = f"that of line {_line(function)} gives ({', '.join(kinds)})"
            refuse(self.make, "a function that gives (loss, model), the loss one of flowsim's", came)
        loss, model = made
        loss, model = jax.tree.map(lambda leaf: _named(leaf, self), (loss, model))
        with blaming(path, self.make, "a function that gives a loss and a model that flow"):
            check_model(model)
            alike = (path, self.sha256, *_shapes((loss, model)))
            # The cells of a sweep are alike: one of them is traced.
            if not _is_in(_TRACED, alike) and not loss.sampled:
                eqx.filter_eval_shape(lambda model: (loss(model), loss.excess(model), loss.gradient(model)), model)
        if not _is_in(_TRACED, alike):
            self._check_observables(path, model)
            # Which the file may have switched on.
            checks.refuse_debugging()
            with contextlib.suppress(TypeError):  # of what a module of the user's holds
                _TRACED.add(alike)
        return Problem(self, getattr(loss, "task", None), loss, model)

    @property
    def _module(self) -> types.ModuleType:
        module = module_at(split(self.make)[0], self.sha256)
        assert module is not None, "a problem is made of a file that was executed"
        return module

    def _check_observables(self, path: str, model: PyTree) -> None:
        """Refuse observables whose names are taken, or whose values are no numbers."""
        given, place = self.observables, f"{OBSERVABLES} of {path}"
        if not isinstance(given, Mapping):
            refuse(place, "names with functions of the model", f"it is {type(given).__name__}")
        taken = {*weights(model), *Trajectory.__dataclass_fields__, "metadata"}
        for name, function in given.items():
            # Figures are called after them.
            word = isinstance(name, str) and re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII) and len(name) <= 100
            if not word or name in taken:
                refuse(place, "names that are ASCII words and not those of other arrays", f"one is {name!r:.60}")
            with blaming(path, place, "functions of the model"):
                value = eqx.filter_eval_shape(function, model)
            if getattr(value, "shape", None) != () or value.dtype != jnp.float64:
                came = f"{name} gives {getattr(value, 'dtype', type(value).__name__)}{getattr(value, 'shape', '')}"
                refuse(place, "functions of the model that give a float64 scalar", came)


_OURS = AbstractUserSpec.__struct_fields__


class _Named:
    """A function among the leaves of a loss or a model, by a name that is the same in every process; equal to others
    that compute the same, so that what is compiled for one cell of a sweep serves them all.
    """

    def __init__(self, function: Callable, spec: AbstractUserSpec):
        self.function, self._spec = function, spec
        self._value = known_by_value(function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Named) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)

    @property
    def holds(self) -> bool:
        """Whether it still computes what it did when it was made, as far as values can tell."""
        return not isinstance(self._value, int) and known_by_value(self.function) == self._value

    def __repr__(self) -> str:
        return f"{getattr(self.function, '__qualname__', type(self.function).__qualname__)} of {self._spec.identity}"


def still_holds(problem: Problem) -> bool:
    """Whether the functions of a problem compute what they did when it was built: by names that are looked up when they
    are called, another call of ``make`` may have changed that.
    """
    leaves = jax.tree.leaves((problem.loss, problem.start))
    return all(leaf.holds for leaf in leaves if isinstance(leaf, _Named))


def _shapes(tree: PyTree) -> tuple[Hashable, ...]:
    """The structure of a tree, the shapes of its arrays and its other leaves."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, *[(leaf.shape, leaf.dtype.name) if eqx.is_array(leaf) else leaf for leaf in leaves]


def _is_in(known: set[Any], value: Any) -> bool:
    """Whether a value is one of those known; one that has no hash is not."""
    try:
        return value in known
    except TypeError:
        return False


def _named(leaf: Any, spec: AbstractUserSpec) -> Any:
    return _Named(leaf, spec) if callable(leaf) and not eqx.is_array(leaf) else leaf


def spec_of(tables: Tables) -> AbstractUserSpec:
    """The problem of tables that name a function as ``make``, all of whose defaults are filled in.

    **Raises:** `ProblemError` in one line that names the field, or the file and its line.
    """
    given = signed(tables)
    kind, defaults = _table_of(given["make"], given["sha256"])
    spec = toml.decode(defaults | given, kind)
    if spec.flow.restrict is not None:
        refuse("flow.restrict", "left out with a function of your own", "it is given")
    return msgspec.structs.replace(spec, flow=spec.flow.resolved())


def table_of(tables: Tables) -> type[AbstractUserSpec]:
    """The table whose fields the arguments of the function are."""
    given = signed(tables)
    return _table_of(given["make"], given["sha256"])[0]


def signed(tables: Tables) -> dict[str, Any]:
    """The tables with the place of the user's file, and the digest of what is in it.

    **Raises:** `ProblemError` if it is not such a file, or not the one that the tables name.
    """
    make, digest = tables["make"], tables.get("sha256")
    if callable(make):
        make, digest = place_of(make)
    if not isinstance(make, str) or not is_place(make):
        refuse("make", "a function of a Python file, or its place FILE.py:NAME", f"it is {make!r:.60}")
    file, name = split(make)
    path = os.path.abspath(file)
    if not isinstance(digest, str) or module_at(path, digest) is None:
        digest = module_of(path)[1]
    if tables.get("sha256", digest) != digest:
        refuse("sha256", f"that of {path}, {digest}", "it is another: the file has changed, or one that it imports")
    return {**tables, "make": f"{path}:{name}", "sha256": digest}


def _table_of(place: str, digest: str) -> tuple[type[AbstractUserSpec], dict[str, Any]]:
    """The arguments of a function as a table, and the defaults that they have."""
    file, name = split(place)
    function = getattr(module_at(file, digest), name, None)
    if not inspect.isfunction(function):
        refuse(place, "the name of a function in the file", f"there is no function {name}")
    with blaming(file, place, "a function whose annotations can be read"):
        parameters = inspect.signature(function, eval_str=True).parameters
    fields, defaults = [], {}
    for argument in parameters.values():
        if argument.kind in (argument.POSITIONAL_ONLY, argument.VAR_POSITIONAL, argument.VAR_KEYWORD):
            refuse(place, "a function of arguments by name", f"line {_line(function)} has {argument}")
        if hasattr(AbstractUserSpec, argument.name) or argument.name.startswith("_"):
            taken = ", ".join(name for name in dir(AbstractUserSpec) if not name.startswith("_"))
            refuse(place, f"a function of arguments without a leading _, and not {taken}", f"one is {argument.name}")
        fields.append((argument.name, _kind_of(argument, place, _line(function))))
        if argument.default is not argument.empty:
            defaults[argument.name] = argument.default
    key = place, digest
    if key not in _TABLES:
        table: Any = msgspec.defstruct(name, fields, bases=(AbstractUserSpec,), frozen=True, kw_only=True)
        _TABLES[key] = table
    return _TABLES[key], defaults


def _line(function: Any) -> int:
    return function.__code__.co_firstlineno


def _kind_of(argument: inspect.Parameter, place: str, line: int) -> Any:
    """What a field can hold: by the annotation of the argument, else by its default, else a number."""
    given = argument.annotation
    if given is argument.empty:
        given = float if argument.default is argument.empty else type(argument.default)
    kind = _KINDS.get(typing.get_origin(given) or given)
    if kind is None:
        known = ", ".join(one.__name__ for one in _KINDS)
        refuse(place, f"a function of arguments that are {known}", f"{argument.name} of line {line} is {given!r:.60}")
    return kind


def _as_lists(value: Any) -> Any:
    return [_as_lists(part) for part in value] if isinstance(value, tuple) else value
