"""Enclosures: JAX functions evaluated in ball arithmetic, so that their values are proved.

A ball is a number with a bound on its error (`flint.arb`). The operations that JAX traces run on arrays of balls,
with more digits than float64. The results contain the function's values at all points of the given balls.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import flint
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Primitive, Var
from jax.interpreters.partial_eval import dce_jaxpr
from jaxtyping import ArrayLike, PyTree

from flowsim._core.balls.array_moves import MOVES, PLAIN
from flowsim._core.balls.loops import all_turns
from flowsim._core.balls.operations import (
    BRANCHING,
    OPERATIONS,
    PROVED,
    REMEMBERED,
    ROUNDING_TO_INTEGERS,
    Balls,
    UndecidedError,
    Value,
    as_balls,
    asked_of_each,
    balls,
    is_balls,
    is_open,
    is_unknown,
    selection,
)
from flowsim._core.balls.reading import CALLS, pairs_the_same, parts_of_scan, programs_of
from flowsim._core.types import Params

BITS = 128
MOST_OPERATIONS = 2e7

_SHORT = 2.0**24  # numbers of at most 24 binary digits are taken as exact


def lower(values: Balls) -> np.ndarray:
    """Lower bounds on the numbers in balls, in float64."""
    bounds = np.vectorize(lambda ball: float(ball.lower()), otypes=[float])(values)
    return np.asarray(np.nextafter(bounds, -np.inf))


def upper(values: Balls) -> np.ndarray:
    """Upper bounds on the numbers in balls, in float64."""
    bounds = np.vectorize(lambda ball: float(ball.upper()), otypes=[float])(values)
    return np.asarray(np.nextafter(bounds, np.inf))


def truth(values: Value) -> tuple[np.ndarray, np.ndarray]:
    """Where truth values may be true, and where they certainly are true. Undecided values are balls."""
    if not is_balls(values):
        return np.asarray(values), np.asarray(values)
    return upper(values) > 0.5, lower(values) > 0.5


def rounded(values: ArrayLike, relative: float) -> Balls:
    """Balls of a relative radius around numbers rounded to float64. Numbers of few binary digits are exact."""
    values = np.asarray(values, dtype=float)
    sizes = np.where(np.isfinite(values), np.abs(values), 0.0)
    mantissa = np.frexp(sizes)[0] * _SHORT
    return balls(values, np.where(mantissa == np.round(mantissa), 0.0, relative * sizes))


def enclose(
    function: Callable[..., PyTree],
    *arguments: PyTree,
    proved: bool = True,
    open_branches: bool = False,
    rounding: float = 0.0,
    most_operations: float = MOST_OPERATIONS,
) -> PyTree:
    """The values of a function of float64 arrays, as arrays of balls. Booleans and whole numbers are not converted.

    **Arguments:**

    - function: from trees of float64 arrays to a tree of arrays.
    - arguments: trees of arrays of balls, or of numbers, which are taken as exact.
    - proved: whether the balls must contain the values. Programs that diagonalize matrices are then refused.
      Otherwise eigenvectors, and roots of balls around zero, have many digits but no bound on their error.
    - open_branches: whether a comparison that the balls do not decide gives a ball from 0 to 1, and a selection by
      this ball gives the hull of the cases. Values are then enclosed, but derivatives of functions that jump are
      not.
    - rounding: the relative radius of the constants in the function; see `rounded`.
    - most_operations: the largest number of operations on numbers that is allowed.

    **Raises:** `UndecidedError` if an operation is unknown, a comparison is undecided or the operations are too
    many; what JAX raises if the function cannot be traced.
    """
    traced = Traced(function, *arguments)
    return traced.on(
        *arguments,
        proved=proved,
        open_branches=open_branches,
        rounding=rounding,
        most_operations=most_operations,
    )


class Traced:
    """The trace of a function for arguments of given shapes. It can be inspected, and evaluated on balls.

    **Raises:** what JAX raises if the function cannot be traced.
    """

    def __init__(self, function: Callable[..., PyTree], *arguments: PyTree):
        leaves, structure = jax.tree.flatten(arguments)
        shapes = [jax.ShapeDtypeStruct(np.shape(leaf), jnp.float64) for leaf in leaves]
        closed, self._out = jax.make_jaxpr(function, return_shape=True)(*jax.tree.unflatten(structure, shapes))
        # Operations that no output depends on are removed.
        jaxpr, _ = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
        self.jaxpr, self.consts = jaxpr, closed.consts
        self.shapes = [var.aval.shape for var in jaxpr.outvars]  # pyright: ignore[reportAttributeAccessIssue]
        self._together: dict[int, ClosedJaxpr | None] = {}

    @functools.cached_property
    def equations(self) -> list[tuple[JaxprEqn, int]]:
        """Every operation of the program, with how often it runs. A loop of unknown length is taken to run once."""
        return list(equations(self.jaxpr))

    @functools.cached_property
    def operations(self) -> float:
        """How many operations on numbers the program takes."""
        return float(sum(repeats * operations(eqn) for eqn, repeats in self.equations))

    def on(
        self,
        *arguments: PyTree,
        proved: bool = True,
        open_branches: bool = False,
        rounding: float = 0.0,
        most_operations: float = MOST_OPERATIONS,
        of_middles: bool = False,
        choices: list[tuple[JaxprEqn, Value]] | None = None,
        bits: int = BITS,
    ) -> PyTree:
        """The values on arrays of numbers or balls.

        **Arguments:** those of `enclose`, and

        - of_middles: whether eigenvalues and eigenvectors are those of the midpoints of a matrix.
        - choices: a list to which pairs are appended. For a selection, or for a boolean that becomes a number, the
          pair is the operation and its condition. For a rounding to an integer, it is the operation and whether the
          integer is known.
        - bits: the precision of the midpoints.
        """
        if self.operations > most_operations:
            raise UndecidedError(f"{self.operations:.1e} operations are too many", is_costly=True)
        if proved and any(eqn.primitive.name == "eigh" for eqn, _ in self.equations):
            raise UndecidedError("nothing is proved where matrices are diagonalized")
        leaves = jax.tree.leaves(arguments)
        with flint.ctx.workprec(bits):
            given = [leaf if np.asarray(leaf).dtype == object else balls(leaf) for leaf in leaves]
            arithmetic = _Arithmetic(proved, of_middles, open_branches, rounding, choices, self._together)
            results = arithmetic.run(self.jaxpr, self.consts, [np.asarray(leaf) for leaf in given])
        return jax.tree.unflatten(jax.tree.structure(self._out), results)


def equations(jaxpr: Jaxpr, repeats: int = 1) -> Iterator[tuple[JaxprEqn, int]]:
    """Every operation of a program and of the programs that it calls, with how often it runs."""
    for eqn in jaxpr.eqns:
        yield eqn, repeats
        inside = repeats * (eqn.params.get("length", 1) if eqn.primitive.name == "scan" else 1)
        for program in programs_of(eqn):
            yield from equations(program, inside)


def operations(eqn: JaxprEqn) -> int:
    """How many operations on numbers one operation on arrays takes. A product inside a sum counts as one."""
    numbers = [var for var in eqn.outvars if getattr(var.aval, "dtype", None) == jnp.float64]
    size = sum(math.prod(_shape(var)) for var in numbers)
    if eqn.primitive.name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        return size * math.prod(_shape(eqn.invars[0])[axis] for axis in contracted)
    return size


def _shape(var: Var | Literal) -> tuple[int, ...]:
    return getattr(var.aval, "shape", ())


def _open(program: ClosedJaxpr | Jaxpr) -> tuple[Jaxpr, Sequence[ArrayLike]]:
    return (program.jaxpr, program.consts) if isinstance(program, ClosedJaxpr) else (program, ())


def _array(value: Value) -> Value:
    """The value as an array. NumPy returns a single ball in place of an array of balls without axes."""
    return np.asarray(value, dtype=object) if isinstance(value, flint.arb) else value


def _is_truth(var: Var | Literal) -> bool:
    return getattr(var.aval, "dtype", None) == jnp.bool_


def is_key(value: object) -> bool:
    """Whether a value is a key of JAX's random numbers."""
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


@dataclasses.dataclass(frozen=True)
class _Arithmetic:
    """Runs programs on balls; see `Traced.on`. ``together`` caches `all_turns` by identity of a loop's body."""

    proved: bool
    of_middles: bool
    open_branches: bool
    rounding: float
    choices: list[tuple[JaxprEqn, Value]] | None
    together: dict[int, ClosedJaxpr | None]

    def run(self, jaxpr: Jaxpr, consts: Sequence[ArrayLike], arguments: Sequence[Value]) -> list[Value]:
        values: dict[Var, Value] = {}

        def read(var: Var | Literal) -> Value:
            return self._lifted(var.val) if isinstance(var, Literal) else values[var]

        values.update(zip(jaxpr.constvars, map(self._lifted, consts), strict=True))
        values.update(zip(jaxpr.invars, map(_array, arguments), strict=True))
        for eqn in jaxpr.eqns:
            outputs = self._apply(eqn, [read(var) for var in eqn.invars])
            values.update(zip(eqn.outvars, map(_array, outputs), strict=True))
        return [read(var) for var in jaxpr.outvars]

    def _lifted(self, value: Any) -> Value:
        """A value that JAX computed, with float64 numbers as balls."""
        if is_key(value):
            return value
        array = np.asarray(value)
        return rounded(array, self.rounding) if array.dtype == np.float64 else array

    def _call(self, program: ClosedJaxpr | Jaxpr, arguments: Sequence[Value]) -> list[Value]:
        jaxpr, consts = _open(program)
        return self.run(jaxpr, consts, arguments)

    def _apply(self, eqn: JaxprEqn, inputs: list[Value]) -> list[Value]:
        name, params = eqn.primitive.name, eqn.params
        if name in CALLS:
            program = next(params[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in params)
            return self._call(program, inputs)
        if name in self._CONTROL:
            return self._CONTROL[name](self, params, inputs)
        keys = any(map(is_key, inputs))
        chosen = name == "select_n" or (name == "convert_element_type" and _is_truth(eqn.invars[0]))
        if chosen and self.choices is not None:
            self.choices.append((eqn, inputs[0]))
        if name == "select_n" and is_balls(inputs[0]):
            return [selection(*inputs)]
        if name in MOVES and not keys:
            outputs = MOVES[name](params, *inputs)
            return list(map(_array, outputs)) if eqn.primitive.multiple_results else [outputs]
        if not any(map(is_balls, inputs)):
            if name in PLAIN and not keys:
                return [self._lifted(PLAIN[name](params, *inputs))]
            outputs = eqn.primitive.bind(*inputs, **params)
            return [self._lifted(value) for value in (outputs if eqn.primitive.multiple_results else [outputs])]
        if name in _MOVES_BY_PLACE:
            return _moved(eqn, inputs)
        if name not in OPERATIONS:
            raise UndecidedError(f"{name} is not known in ball arithmetic")
        if name in ("eq", "ne") and eqn.invars[0] is eqn.invars[1]:
            # JAX tests for NaN by x != x.
            asked = name == "ne"
            return [asked_of_each(lambda ball: None if is_unknown(ball) else ball.is_nan() is asked, inputs[0])]
        if name == "mul" and eqn.invars[0] is eqn.invars[1]:
            # A ufunc of one argument would write into arrays that were broadcast.
            name, inputs = "square", [inputs[0].copy()]
        if name == "eigh" and self.of_middles:
            inputs = [np.asarray(np.frompyfunc(lambda ball: ball.mid(), 1, 1)(inputs[0]), dtype=object)]
        outputs = (PROVED if self.proved else OPERATIONS)[name](params, *inputs)
        if self.choices is not None and name in ROUNDING_TO_INTEGERS:
            self.choices.append((eqn, asked_of_each(lambda ball: ball.is_integer() or None, outputs)))
        if name == "dot_general" and _is_sum_of_squares(eqn):
            outputs = OPERATIONS["max"]({}, outputs, 0.0)
        if not self.open_branches:
            _refuse_open(name, inputs, outputs)
        return list(outputs) if eqn.primitive.multiple_results else [outputs]

    def _scan(self, params: Params, inputs: list[Value]) -> list[Value]:
        if self.choices is None and (program := self._all_turns(params)) is not None:
            return self._call(program, inputs)
        constants, carried = parts_of_scan(params)
        fixed, carry, rows = inputs[:constants], inputs[constants : constants + carried], inputs[constants + carried :]
        order = range(params["length"])
        kept: list[list[Value]] = []
        for i in reversed(order) if params["reverse"] else order:
            outputs = self._call(params["jaxpr"], [*fixed, *carry, *[row[i] for row in rows]])
            carry = outputs[:carried]
            kept.append(outputs[carried:])
        if params["reverse"]:
            kept.reverse()
        if not kept:
            columns = _open(params["jaxpr"])[0].outvars[carried:]
            return [*carry, *[np.zeros((0, *_shape(var)), dtype=object) for var in columns]]
        return [*carry, *[np.stack([np.asarray(value) for value in column]) for column in zip(*kept, strict=True)]]

    def _all_turns(self, params: Params) -> ClosedJaxpr | None:
        body = params["jaxpr"]
        if id(body) not in self.together:
            self.together[id(body)] = all_turns(params)
        return self.together[id(body)]

    def _while(self, params: Params, inputs: list[Value]) -> list[Value]:
        of_condition, of_body = params["cond_nconsts"], params["body_nconsts"]
        condition = inputs[:of_condition]
        body = inputs[of_condition : of_condition + of_body]
        carry = inputs[of_condition + of_body :]
        while _known(self._call(params["cond_jaxpr"], [*condition, *carry])[0]):
            carry = self._call(params["body_jaxpr"], [*body, *carry])
        return carry

    def _solve(self, params: Params, inputs: list[Value]) -> list[Value]:
        lengths = params["const_lengths"]
        before = lengths.matvec + lengths.vecmat
        constants = inputs[before : before + lengths.solve]
        return self._call(params["jaxprs"].solve, [*constants, *inputs[sum(lengths) :]])

    def _branch(self, params: Params, inputs: list[Value]) -> list[Value]:
        chosen = int(np.clip(int(inputs[0]), 0, len(params["branches"]) - 1))
        return self._call(params["branches"][chosen], inputs[1:])

    _CONTROL = {"scan": _scan, "while": _while, "cond": _branch, "custom_linear_solve": _solve}


def _known(condition: Value) -> bool:
    if is_open(condition) or np.ndim(condition):
        raise UndecidedError("the number of turns of a loop is open")
    return bool(np.all(np.asarray(condition) == 1))


def _is_sum_of_squares(eqn: JaxprEqn) -> bool:
    """Whether a dot_general sums the squares of the entries of an array."""
    axes = sum(len(of_first) for of_first, _ in eqn.params["dimension_numbers"])
    return eqn.invars[0] is eqn.invars[1] and axes == len(_shape(eqn.invars[0])) and pairs_the_same(eqn.params)


def _refuse_open(name: str, inputs: list[Value], outputs: Value) -> None:
    """Raise `UndecidedError` if balls do not decide a comparison, or on which side of a jump a value lies."""
    if name in BRANCHING and is_balls(outputs):
        raise UndecidedError(f"{inputs[0]} and {inputs[1]} cannot be compared")
    # A conversion to a float is not a comparison: it returns its input.
    if name == "convert_element_type" and is_balls(outputs) and outputs is not inputs[0]:
        raise UndecidedError(f"whether {inputs[0]} is zero is open")
    if name in ROUNDING_TO_INTEGERS and not all(ball.is_integer() for ball in np.ravel(outputs)):
        raise UndecidedError(f"the {name} of {inputs[0]} is open")
    if name == "atan2":
        y, x = (as_balls(value) for value in inputs)
        if np.any(np.frompyfunc(lambda y, x: y.contains(0) and not x > 0, 2, 1)(y, x)):
            raise UndecidedError("the angle of a point may jump")


def _moved(eqn: JaxprEqn, inputs: list[Value]) -> list[Value]:
    """Apply an operation that only moves numbers: JAX moves the indices by which the balls are looked up."""
    kinds = tuple((value.shape, None if is_balls(value) else (value.dtype.str, value.tobytes())) for value in inputs)
    params = tuple(sorted(_for_places(eqn.params).items()))
    numbers = [value.reshape(-1) for value in inputs if is_balls(value)]
    source = np.concatenate([*numbers, np.asarray([flint.arb.nan()], dtype=object)])
    return [source[places] for places in _places_after(eqn.primitive, params, kinds)]


@functools.lru_cache(REMEMBERED)
def _places_after(primitive: Primitive, params: tuple, kinds: tuple) -> list[np.ndarray]:
    """The index of the ball that an operation moves to each entry of its outputs; -1 where it fills in NaN.

    Indices run through all inputs that hold balls. Cached, since JAX is slow here and loops repeat operations.

    **Arguments:**

    - primitive, params: the operation.
    - kinds: the shape of each input, with None if it holds balls, else with its type and bytes.
    """
    places, offset = [], 0
    for shape, plain in kinds:
        size = math.prod(shape)
        if plain is None:
            places.append(np.arange(offset, offset + size).reshape(shape))
            offset += size
        else:
            places.append(np.frombuffer(plain[1], dtype=plain[0]).reshape(shape))
    outputs = primitive.bind(*map(jax.device_put, places), **dict(params))
    outputs = outputs if primitive.multiple_results else [outputs]
    return [np.clip(np.asarray(out), -1, offset) for out in outputs]


def _for_places(params: Params) -> Params:
    # A gather outside its array reads NaN, which is appended as the last ball, at index -1.
    return params | {"fill_value": -1} if "fill_value" in params else params


_MOVES_BY_PLACE = frozenset(["dynamic_update_slice", "gather", "scatter"])
