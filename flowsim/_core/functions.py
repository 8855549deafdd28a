"""Keys that show whether two functions compute the same, and a record of the times at which a flow is evaluated."""

import contextlib
import contextvars
import functools
import inspect
import operator
import pathlib
import re
import sys
import types
from collections.abc import Callable, Hashable, Iterator, Sequence

import equinox as eqx
import jax
import numpy as np
from jax.extend.core import ClosedJaxpr
from jaxtyping import Array, PyTree

from flowsim._core import checks

ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of an object in memory, which differs in each process
_MADE = "made by a library"


class _OpaqueError(Exception):
    """Raised on a function that uses an object which cannot be compared by its value."""


def known_by_value(function: object) -> Hashable:
    """A hashable key of a function. Functions with equal keys compute the same.

    The key contains the code of the function, and the values of everything that the function closes over or looks
    up by name. Functions that one factory returned in several calls have equal keys while these values are equal.
    For a function that uses an object without a comparable value, the key is the function's identity.
    """
    try:
        value = _essence(function, ())
        hash(value)
    except (_OpaqueError, TypeError, ValueError):  # a ValueError comes from a name that is not bound yet
        return id(function)
    return value


def values_as_text(function: object, code: bool = False) -> str:
    """The key of `known_by_value` as text without memory addresses, which is the same in all processes.

    **Arguments:** code: whether the text includes the code of functions.
    """
    return _as_text(known_by_value(function), code)


def program_as_text(function: Callable, *arguments: PyTree) -> str:
    """The operations of the program that JAX traces from a function, with all numbers in them, as text.

    The text has no memory addresses. It also tells apart functions that `known_by_value` knows only by their
    identity.

    **Arguments:** arguments: those with which the function is traced.
    """
    traced, *_ = eqx.filter_make_jaxpr(function)(*arguments)
    return ADDRESS.sub("", f"{traced.jaxpr}{[_as_text(_essence(one, ()), False) for one in _constants_of(traced)]}")


def _constants_of(traced: ClosedJaxpr) -> Iterator[Array]:
    """The constant arrays of a program and of all programs inside it."""
    yield from traced.consts
    for eqn in traced.jaxpr.eqns:
        for part in jax.tree.leaves(tuple(eqn.params.values()), is_leaf=lambda one: isinstance(one, ClosedJaxpr)):
            if isinstance(part, ClosedJaxpr):
                yield from _constants_of(part)


def _as_text(value: object, code: bool) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(_as_text(part, code) for part in value)})"
    if isinstance(value, types.CodeType):
        if not code:
            return ""
        # Numbers in a code object belong to it.
        constants = [_as_text(one, code) if isinstance(one, types.CodeType) else repr(one) for one in value.co_consts]
        return _as_text((value.co_code, value.co_names, tuple(constants)), code)
    return "" if type(value) is int else ADDRESS.sub("", repr(value))


def _essence(value: object, within: tuple[int, ...]) -> Hashable:
    if id(value) in within:
        return "within", within.index(id(value))
    part = functools.partial(_essence, within=(*within, id(value)))
    if isinstance(value, types.FunctionType) and not _of_library(value):
        names = _names(value.__code__)
        found = [(name, value.__globals__[name]) for name in names if name in value.__globals__]
        parts = [
            (name, part(other) if not inspect.ismodule(other) else _numbers_of(other, names)) for name, other in found
        ]
        closed = [part(cell.cell_contents) for cell in value.__closure__ or ()]
        rest = (value.__defaults__, value.__kwdefaults__, vars(value))
        return value.__code__, tuple(parts), tuple(closed), tuple(map(part, rest))
    # The exact type: a subclass may hold more than its value.
    if type(value) is np.ndarray or (isinstance(value, np.generic | jax.Array) and checks.is_concrete(value)):
        array = np.asarray(value)
        return array.shape, array.dtype.str, array.tobytes()
    if value is None or type(value) in (bool, int, float, complex, str, bytes):
        return type(value), repr(value)
    if isinstance(value, tuple | list) and type(value) in (tuple, list):
        return type(value), *map(part, value)
    if type(value) is dict:
        return dict, *[(part(key), part(item)) for key, item in value.items()]
    if isinstance(value, eqx.Module):
        leaves, structure = jax.tree.flatten(value)
        return structure, *map(part, leaves)
    if isinstance(value, functools.partial):
        return functools.partial, part(value.func), part(value.args), part(value.keywords)
    if isinstance(value, type):
        return _numbers_of(value, [name for name in vars(value) if not name.startswith("__")])
    # Functions of libraries do not change, so their identity is enough.
    library = isinstance(value, types.FunctionType | types.BuiltinFunctionType)
    if library or (type(value).__module__ or "").startswith("jax"):
        return "" if _is_in_its_module(value) else _MADE, type(value), id(value)
    raise _OpaqueError


def _is_in_its_module(value: object) -> bool:
    """Whether an object is found under its own name in its module, which belongs to a library or to flowsim.

    If it is not found, the library may have built it from functions of the user. An object without a name counts as
    found unless it can be called.
    """
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    file = pathlib.Path(getattr(module, "__file__", None) or "site-packages")
    with contextlib.suppress(AttributeError):
        held = operator.attrgetter(getattr(value, "__qualname__", ""))(module) is value
        return held and ("site-packages" in file.parts or pathlib.Path(__file__).parents[1] in file.parents)
    return not callable(value)


def _holds_made(value: Hashable) -> bool:
    return value is _MADE or (isinstance(value, tuple) and any(map(_holds_made, value)))


def is_known_to_all(function: object) -> bool:
    """Whether `values_as_text` describes everything that a function computes with.

    It does not if the function uses an object that is known only by its identity.
    """
    value = known_by_value(function)
    return not isinstance(value, int) and not _holds_made(value)


def _of_library(function: types.FunctionType) -> bool:
    """Whether a function belongs to flowsim or to an installed package, and not to the user."""
    file = pathlib.Path(function.__code__.co_filename)
    return "site-packages" in file.parts or pathlib.Path(__file__).parents[1] in file.parents


def _names(code: types.CodeType) -> list[str]:
    """The names that a code object looks up, and those that the code objects nested in it look up."""
    within = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return sorted(set(code.co_names).union(*map(_names, within)))


def _numbers_of(holder: types.ModuleType | type, names: Sequence[str]) -> Hashable:
    """The identity of a module or class, with the numbers, strings and arrays that it holds under given names."""
    plain = int | float | complex | str | np.ndarray | np.generic | jax.Array
    found = [(name, vars(holder)[name]) for name in names if isinstance(vars(holder).get(name), plain)]
    return id(holder), *[(name, _essence(value, ())) for name, value in found]


TIMES_ASKED: contextvars.ContextVar[tuple[list[float], ...]] = contextvars.ContextVar("asked", default=())


@contextlib.contextmanager
def times_asked() -> Iterator[list[float]]:
    """A context whose value is a list, which collects the times for which `Trajectory.at` is called inside it."""
    asked: list[float] = []
    token = TIMES_ASKED.set((*TIMES_ASKED.get(), asked))
    try:
        yield asked
    finally:
        TIMES_ASKED.reset(token)
