"""A problem that a user's function ``make(**fields) -> (loss, model)`` in a Python file defines."""

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
from flowsim._core.functions import ADDRESS, is_known_to_all, known_by_value, program_as_text, values_as_text
from flowsim._core.types import Document, Tables
from flowsim.flow.recording import check_model
from flowsim.flow.trajectory import Trajectory, weights
from flowsim.losses import AbstractPopulationLoss
from flowsim.losses.sampled.monte_carlo import MonteCarloLoss, prepared
from flowsim.problem import toml
from flowsim.problem.architecture import Curve
from flowsim.problem.base import AbstractSpec, FlowTable, Kind, Observable, Problem
from flowsim.problem.own.files import blaming, is_place, module_at, module_of, objects_of, place_of, split
from flowsim.problem.toml import Flag, Number, Word

OBSERVABLES = "OBSERVABLES"

_Whole = Annotated[int, Meta(description="a whole number")]
_Numbers = Annotated[
    tuple[float | tuple[float, ...], ...], Meta(description="a list of numbers, or of lists of numbers")
]
_KINDS: dict[type, object] = {bool: Flag, int: _Whole, float: Number, str: Word, list: _Numbers, tuple: _Numbers}
_TRACED: set[tuple[Hashable, ...]] = set()  # structures of problems that were traced without errors
_TABLES: dict[tuple[str, str], type["AbstractUserSpec"]] = {}


class AbstractUserSpec(AbstractSpec, frozen=True, kw_only=True):
    """The description of a problem that a user's function defines, with all defaults filled in.

    Each function has its own subclass, with the arguments of the function as additional fields.

    **Fields:**

    - make: the place of the function, ``/place/of/FILE.py:make``.
    - sha256: the digest of the file and of the user's files that it imports and reads.
    - flow: how far and how accurately to integrate.
    """

    make: Word
    sha256: Word
    flow: FlowTable = FlowTable()

    @property
    def fields(self) -> dict[str, object]:
        """The values of the arguments of the function, by name."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if name not in _OURS}

    @property
    def identity(self) -> str:
        flow = msgspec.structs.replace(self.flow, budget_seconds=None)
        text = msgspec.structs.replace(self, make=split(self.make)[1], flow=flow).to_toml()
        return hashlib.sha256(text.encode()).hexdigest()

    def identity_with(self, loss: AbstractPopulationLoss, start: PyTree) -> str:
        # The function may read a file, or whatever else the digest of its module does not know.
        leaves, structure = jax.tree.flatten((loss, start))
        given = [leaf.function if isinstance(leaf, _Named) else leaf for leaf in leaves]
        made = [str(structure), *map(values_as_text, given)]
        if ADDRESS.search(made[0]) or not all(map(is_known_to_all, given)):
            both = lambda loss, model: (loss(model), loss.gradient(model))
            made.append(program_as_text(both, prepared(loss, start), start))
        return hashlib.sha256(ADDRESS.sub("", "\0".join([self.identity, *made])).encode()).hexdigest()

    @property
    def content(self) -> str:
        return f"{self.to_toml()}\0{self.build().identity}"

    @property
    def only_device(self) -> str:
        return f"with a loss of {pathlib.Path(self.make).name}, which one device computes"

    @property
    def headline(self) -> Sequence[tuple[str, object]]:
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

    def start_from_tables(self) -> PyTree | None:
        return None

    def own(self, kind: type[Kind]) -> list[Kind]:
        return objects_of(self._module, kind)

    def build(self, *, mesh: jax.sharding.Mesh | None = None) -> Problem:
        """Call the user's function, which returns the loss and the start, and check both. The mesh is not used.

        **Raises:** `ProblemError` if the function raises, or returns something else than a loss and a model that
        can flow. `ValueError` if float64 is not enabled.
        """
        checks.require_float64()
        path, name = split(self.make)
        function = getattr(self._module, name)
        with blaming(path, self.make, "a function that gives (loss, model)"):
            made = function(**{name: _as_lists(value) for name, value in self.fields.items()})
        if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], AbstractPopulationLoss)):
            kinds = [type(part).__name__ for part in (made if isinstance(made, tuple) else [made])]
            came = f"the function at line {_line(function)} returns ({', '.join(kinds)})"
            refuse(self.make, "a function that returns (loss, model), with an AbstractPopulationLoss", came)
        loss, model = made
        loss, model = jax.tree.map(lambda leaf: _named(leaf, self), (loss, model))
        with blaming(path, self.make, "a function that gives a loss and a model that flow"):
            check_model(model)
            alike = (path, self.sha256, *_shapes((loss, model)))
            # All cells of a sweep have one structure, so only one of them is traced.
            if not _is_in(_TRACED, alike) and not isinstance(loss, MonteCarloLoss):
                eqx.filter_eval_shape(lambda model: (loss(model), loss.excess(model), loss.gradient(model)), model)
        if not _is_in(_TRACED, alike):
            self._check_observables(path, model)
            # The file may have switched debugging on.
            checks.refuse_debugging()
            with contextlib.suppress(TypeError):  # from a leaf without a hash
                _TRACED.add(alike)
        return Problem(self, getattr(loss, "task", None), loss, model)

    @property
    def _module(self) -> types.ModuleType:
        module = module_at(split(self.make)[0], self.sha256)
        assert module is not None, "the file of a problem was executed"
        return module

    def _check_observables(self, path: str, model: PyTree) -> None:
        """Refuse observables whose names are not words or are in use, or whose values are not float64 scalars.

        **Raises:** `ProblemError` naming the file.
        """
        given, place = self.observables, f"{OBSERVABLES} of {path}"
        if not isinstance(given, Mapping):
            refuse(place, "names with functions of the model", f"it is {type(given).__name__}")
        taken = {*weights(model), *Trajectory.__dataclass_fields__, "metadata"}
        for name, function in given.items():
            # Files of figures have these names.
            word = isinstance(name, str) and re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII) and len(name) <= 100
            if not word or name in taken:
                refuse(place, "names that are ASCII words and not taken by other arrays", f"one is {name!r:.60}")
            with blaming(path, place, "functions of the model"):
                value = eqx.filter_eval_shape(function, model)
            if getattr(value, "shape", None) != () or value.dtype != jnp.float64:
                came = f"{name} gives {getattr(value, 'dtype', type(value).__name__)}{getattr(value, 'shape', '')}"
                refuse(place, "functions of the model that give a float64 scalar", came)


_OURS = AbstractUserSpec.__struct_fields__


class _Named:
    """A wrapper of a function among the leaves of a loss or a model. Its repr is the same in every process.

    Wrappers of functions that compute the same are equal, so that one program is compiled for all cells of a sweep.
    """

    def __init__(self, function: Callable, spec: AbstractUserSpec):
        self.function, self._spec = function, spec
        self._value = known_by_value(function)

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        return self.function(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Named) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)

    @property
    def holds(self) -> bool:
        """Whether the function still computes the same as when it was wrapped; see `known_by_value`.

        False if this cannot be known.
        """
        return not isinstance(self._value, int) and known_by_value(self.function) == self._value

    def __repr__(self) -> str:
        return f"{getattr(self.function, '__qualname__', type(self.function).__qualname__)} of {self._spec.identity}"


def still_holds(problem: Problem) -> bool:
    """Whether the functions in a problem's loss and start compute the same as when the problem was built.

    A later call of the user's function ``make`` may change global values that they use.
    """
    leaves = jax.tree.leaves((problem.loss, problem.start))
    return all(leaf.holds for leaf in leaves if isinstance(leaf, _Named))


def _shapes(tree: PyTree) -> tuple[Hashable, ...]:
    """The structure of a pytree, the shapes and types of its arrays, and its other leaves."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, *[(leaf.shape, leaf.dtype.name) if eqx.is_array(leaf) else leaf for leaf in leaves]


def _is_in(known: set, value: tuple) -> bool:
    """Whether a set contains a value. False if the value cannot be hashed."""
    try:
        return value in known
    except TypeError:
        return False


def _named(leaf: PyTree, spec: AbstractUserSpec) -> PyTree:
    return _Named(leaf, spec) if callable(leaf) and not eqx.is_array(leaf) else leaf


def spec_of(tables: Tables) -> AbstractUserSpec:
    """The description of the problem of tables with a field ``make``, with all defaults filled in.

    **Raises:** `ProblemError` in one line that names the field, or the file and the line.
    """
    given = signed(tables)
    kind, defaults = _table_of(given["make"], given["sha256"])
    spec = toml.decode(defaults | given, kind)
    if spec.flow.restrict is not None:
        refuse("flow.restrict", "left out with a function of your own", "it is given")
    return msgspec.structs.replace(spec, flow=spec.flow.resolved())


def table_of(tables: Tables) -> type[AbstractUserSpec]:
    """The subclass of `AbstractUserSpec` for the function that the tables name as ``make``."""
    given = signed(tables)
    return _table_of(given["make"], given["sha256"])[0]


def signed(tables: Tables) -> Document:
    """The tables with the absolute place of the user's function as ``make`` and its file's digest as ``sha256``.

    **Raises:** `ProblemError` if ``make`` is neither a place nor a function in a file, if the file cannot be
    executed, or if its digest differs from the one in the tables.
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
        refuse("sha256", f"that of {path}, {digest}", "it differs: the file has changed, or a file that it imports")
    return {**tables, "make": f"{path}:{name}", "sha256": digest}


def _table_of(place: str, digest: str) -> tuple[type[AbstractUserSpec], Document]:
    """The subclass of `AbstractUserSpec` with the arguments of a function as fields, and the defaults by name.

    **Arguments:** place: FILE.py:NAME; digest: of the file.

    **Raises:** `ProblemError` if the file has no function of this name, or an argument cannot be a field.
    """
    file, name = split(place)
    function = getattr(module_at(file, digest), name, None)
    if not inspect.isfunction(function):
        refuse(place, "the name of a function in the file", f"there is no function {name}")
    with blaming(file, place, "a function whose annotations can be read"):
        parameters = inspect.signature(function, eval_str=True).parameters
    fields, defaults = {}, {}
    taken = [name for name in dir(AbstractUserSpec) if not name.startswith("_")]
    for argument in parameters.values():
        if argument.kind in (argument.POSITIONAL_ONLY, argument.VAR_POSITIONAL, argument.VAR_KEYWORD):
            refuse(place, "a function whose arguments can be given by name", f"line {_line(function)} has {argument}")
        if argument.name in taken or argument.name.startswith("_"):
            expected = f"a function of arguments without a leading _, and not {', '.join(taken)}"
            refuse(place, expected, f"one is {argument.name}")
        fields[argument.name] = _kind_of(argument, place, _line(function))
        if argument.default is not argument.empty:
            defaults[argument.name] = argument.default
    key = place, digest
    if key not in _TABLES:
        # `msgspec.defstruct` has no bases with abstract methods.
        kind: Any = type(AbstractUserSpec)
        _TABLES[key] = kind(name, (AbstractUserSpec,), {"__annotations__": fields}, frozen=True, kw_only=True)
    return _TABLES[key], defaults


def _line(function: types.FunctionType) -> int:
    return function.__code__.co_firstlineno


def _kind_of(argument: inspect.Parameter, place: str, line: int) -> object:
    """The type of the field for an argument: from its annotation, else from its default value, else a number.

    **Arguments:** argument: of the function; place, line: of the function, for messages.

    **Raises:** `ProblemError` if problem files cannot hold values of the type.
    """
    given = argument.annotation
    if given is argument.empty:
        given = float if argument.default is argument.empty else type(argument.default)
    kind = _KINDS.get(typing.get_origin(given) or given)
    if kind is None:
        known = ", ".join(one.__name__ for one in _KINDS)
        refuse(place, f"a function of arguments that are {known}", f"{argument.name} of line {line} is {given!r:.60}")
    return kind


def _as_lists(value: object) -> object:
    return [_as_lists(part) for part in value] if isinstance(value, tuple) else value
