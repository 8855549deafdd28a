"""Enclosures: a JAX function in ball arithmetic, so that what is found is proved.

A ball is a number with a bound of its error (`flint.arb`). The operations that JAX traces are carried out on arrays of
balls with more digits than float64 has: the values at all points of the given balls are in the balls that come out.
"""

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import flint
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jaxtyping import PyTree

from flowsim._core.balls import matrices
from flowsim._core.balls.array_moves import MOVES, PLAIN

BITS = 128
_MOST_OPERATIONS = 2 * 10**7

Balls = np.ndarray  # of flint.arb
Value = Any  # Balls, or an array of what is no float64


class UndecidedError(ArithmeticError):
    """An operation that is not known in ball arithmetic, or a comparison that the balls leave open."""


def balls(values: Any, radii: Any = 0.0) -> Balls:
    """Balls about numbers, with these radii."""
    make = np.frompyfunc(lambda value, radius: flint.arb(float(value), float(radius)), 2, 1)
    return np.asarray(make(np.asarray(values, dtype=float), np.asarray(radii, dtype=float)), dtype=object)


def lower(values: Balls) -> np.ndarray:
    """Lower bounds of balls in float64."""
    bounds = np.vectorize(lambda ball: float(ball.lower()), otypes=[float])(values)
    return np.asarray(np.nextafter(bounds, -np.inf))


def upper(values: Balls) -> np.ndarray:
    """Upper bounds of balls in float64."""
    bounds = np.vectorize(lambda ball: float(ball.upper()), otypes=[float])(values)
    return np.asarray(np.nextafter(bounds, np.inf))


def enclose(function: Callable[..., PyTree], *arguments: PyTree, proved: bool = True) -> PyTree:
    """The values of a function of float64 arrays, as arrays of balls; booleans and whole numbers as they are.

    **Arguments:** arguments: trees of arrays of numbers, which are taken as exact, or of balls; proved: whether the
    balls have to hold the values, and not only to know them to more digits, where matrices are diagonalized.

    **Raises:** `UndecidedError` where an operation is not known, or a comparison is left open; what JAX raises where
    the function cannot be traced.
    """
    leaves, structure = jax.tree.flatten(arguments)
    shapes = [jax.ShapeDtypeStruct(np.shape(leaf), jnp.float64) for leaf in leaves]
    closed, out = jax.make_jaxpr(function, return_shape=True)(*jax.tree.unflatten(structure, shapes))
    equations = list(_equations(closed.jaxpr))
    if (count := sum(repeats * _operations(eqn) for eqn, repeats in equations)) > _MOST_OPERATIONS:
        raise UndecidedError(f"{count:.1e} operations are too many")
    if proved and any(eqn.primitive.name == "eigh" for eqn, _ in equations):
        raise UndecidedError("nothing is proved where matrices are diagonalized")
    with flint.ctx.workprec(BITS):
        given = [leaf if np.asarray(leaf).dtype == object else balls(leaf) for leaf in leaves]
        results = _run(closed.jaxpr, closed.consts, [np.asarray(leaf) for leaf in given])
    return jax.tree.unflatten(jax.tree.structure(out), results)


def _equations(jaxpr: Jaxpr, repeats: int = 1) -> Iterator[tuple[JaxprEqn, int]]:
    """Every operation of a program and how often it is carried out; once in a loop of unknown length."""
    for eqn in jaxpr.eqns:
        yield eqn, repeats
        inside = repeats * (eqn.params.get("length", 1) if eqn.primitive.name == "scan" else 1)
        for value in jax.tree.leaves(eqn.params, is_leaf=_is_program):
            if _is_program(value):
                yield from _equations(_open(value)[0], inside)


def _operations(eqn: JaxprEqn) -> int:
    """How many operations on numbers an operation on arrays takes."""

    def shape(var: Any) -> tuple[int, ...]:
        return getattr(var.aval, "shape", ())

    numbers = [var for var in eqn.outvars if getattr(var.aval, "dtype", None) == jnp.float64]
    size = sum(math.prod(shape(var)) for var in numbers)
    if eqn.primitive.name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        return size * math.prod(shape(eqn.invars[0])[axis] for axis in contracted)
    return size


def _is_program(value: Any) -> bool:
    return isinstance(value, ClosedJaxpr | Jaxpr)


def _open(program: ClosedJaxpr | Jaxpr) -> tuple[Jaxpr, Sequence[Any]]:
    return (program.jaxpr, program.consts) if isinstance(program, ClosedJaxpr) else (program, ())


def _call(program: ClosedJaxpr | Jaxpr, arguments: Sequence[Value]) -> list[Value]:
    jaxpr, consts = _open(program)
    return _run(jaxpr, consts, arguments)


def _run(jaxpr: Jaxpr, consts: Sequence[Any], arguments: Sequence[Value]) -> list[Value]:
    values: dict[Any, Value] = {}

    def read(var: Any) -> Value:
        return _lifted(var.val) if isinstance(var, Literal) else values[var]

    values.update(zip(jaxpr.constvars, map(_lifted, consts), strict=True))
    values.update(zip(jaxpr.invars, map(_array, arguments), strict=True))
    for eqn in jaxpr.eqns:
        outputs = _apply(eqn, [read(var) for var in eqn.invars])
        values.update(zip(eqn.outvars, map(_array, outputs), strict=True))
    return [read(var) for var in jaxpr.outvars]


def _lifted(value: Any) -> Value:
    """What JAX computed, with float64 numbers as balls."""
    if _is_key(value):
        return value
    array = np.asarray(value)
    return balls(array) if array.dtype == np.float64 else array


def _array(value: Value) -> Value:
    """NumPy makes a number of an array without axes."""
    return np.asarray(value) if isinstance(value, flint.arb) else value


def _is_key(value: Any) -> bool:
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def _is_balls(value: Value) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == object


def _apply(eqn: JaxprEqn, inputs: list[Value]) -> list[Value]:
    name, params = eqn.primitive.name, eqn.params
    if name in _CALLS:
        program = next(params[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in params)
        return _call(program, inputs)
    if name in _CONTROL:
        return _CONTROL[name](params, inputs)
    keys = any(map(_is_key, inputs))
    if name in MOVES and not keys:
        return [MOVES[name](params, *inputs)]
    if not any(map(_is_balls, inputs)):
        if name in PLAIN and not keys:
            return [_lifted(PLAIN[name](params, *inputs))]
        outputs = eqn.primitive.bind(*inputs, **params)
        return [_lifted(value) for value in (outputs if eqn.primitive.multiple_results else [outputs])]
    if name in _MOVES_BY_PLACE:
        return _moved(eqn, inputs)
    if name not in _OPERATIONS:
        raise UndecidedError(f"{name} is not known in ball arithmetic")
    outputs = _OPERATIONS[name](params, *inputs)
    return list(outputs) if eqn.primitive.multiple_results else [outputs]


def _moved(eqn: JaxprEqn, inputs: list[Value]) -> list[Value]:
    """An operation that only moves numbers: it moves their places, and they follow."""
    places, offset, numbers = [], 0, []
    for value in inputs:
        if _is_balls(value):
            places.append(np.arange(offset, offset + value.size).reshape(value.shape))
            offset += value.size
            numbers.append(value.reshape(-1))
        else:
            places.append(value)
    outputs = eqn.primitive.bind(*map(jnp.asarray, places), **_for_places(eqn.params))
    outputs = outputs if eqn.primitive.multiple_results else [outputs]
    source = np.concatenate([*numbers, np.asarray([flint.arb.nan()], dtype=object)])
    return [source[np.clip(np.asarray(out), -1, source.size - 1)] for out in outputs]


def _for_places(params: dict[str, Any]) -> dict[str, Any]:
    # What lies outside of the array that a gather reads is NaN, which has the last place.
    return params | {"fill_value": -1} if "fill_value" in params else params


def _each(function: Callable, arguments: int) -> Callable:
    """An operation entry by entry."""
    universal = np.frompyfunc(function, arguments, 1)
    return lambda params, *inputs: np.asarray(universal(*map(_as_balls, inputs)), dtype=object)


def _as_balls(value: Value) -> Balls:
    return value if _is_balls(value) else balls(value)


def _comparison(certainly: Callable, certainly_not: Callable) -> Callable:
    def compare(a: flint.arb, b: flint.arb) -> bool:
        if certainly(a, b):
            return True
        if certainly_not(a, b):
            return False
        raise UndecidedError(f"{a} and {b} cannot be compared")

    universal = np.frompyfunc(compare, 2, 1)
    return lambda params, a, b: np.asarray(universal(_as_balls(a), _as_balls(b)), dtype=bool)


def _same(a: flint.arb, b: flint.arb) -> bool:
    return bool(a == b)


def _apart(a: flint.arb, b: flint.arb) -> bool:
    return bool(a != b)


def _sign(x: flint.arb) -> flint.arb:
    if x > 0 or x < 0 or x == 0:
        return x.sgn()
    raise UndecidedError(f"the sign of {x} is open")


def _integer_power(params: dict[str, Any], x: Balls) -> Balls:
    return np.asarray(np.frompyfunc(lambda ball: ball ** params["y"], 1, 1)(x), dtype=object)


def _sum(params: dict[str, Any], x: Balls) -> Balls:
    axes = tuple(params["axes"])
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    rows = x.transpose(*kept, *axes).reshape(*[x.shape[axis] for axis in kept], -1)
    total = np.frompyfunc(operator.add, 2, 1).reduce(rows, axis=-1, initial=flint.arb(0))
    return np.asarray(total, dtype=object)


def _reduction(choose: Callable) -> Callable:
    universal = np.frompyfunc(choose, 2, 1)

    def reduce(params: dict[str, Any], x: Balls) -> Balls:
        for axis in sorted(params["axes"], reverse=True):
            x = np.asarray(universal.reduce(x, axis=axis), dtype=object)
        return x

    return reduce


def _cumulative_sum(params: dict[str, Any], x: Balls) -> Balls:
    along = np.flip(x, params["axis"]) if params["reverse"] else x
    total = np.cumsum(along, axis=params["axis"])
    return np.flip(total, params["axis"]) if params["reverse"] else total


def _converted(params: dict[str, Any], x: Balls) -> Value:
    if jnp.issubdtype(params["new_dtype"], jnp.floating):
        return x
    whole = np.asarray(np.frompyfunc(lambda ball: ball.unique_fmpz(), 1, 1)(x), dtype=object)
    if any(value is None for value in whole.reshape(-1)):
        raise UndecidedError("which whole number a ball stands for is open")
    return np.asarray(whole, dtype=float).astype(params["new_dtype"])


def _scattered_sum(params: dict[str, Any], operand: Value, indices: Value, updates: Value) -> Balls:
    """scatter-add: the transpose of the gather that says where each update goes."""
    operand, updates = _as_balls(operand), _as_balls(updates)
    bind = jax.lax.scatter_add_p.bind
    blank = jnp.zeros(operand.shape)
    add = lambda values: bind(blank, jnp.asarray(indices), values, **params)
    (where,) = jax.linear_transpose(add, jax.ShapeDtypeStruct(updates.shape, jnp.float64))(
        1.0 + jnp.arange(operand.size, dtype=float).reshape(operand.shape)
    )
    total = operand.reshape(-1).copy()
    for place, update in zip(np.asarray(where).reshape(-1).astype(int), updates.reshape(-1), strict=True):
        if place > 0:  # what falls outside is dropped
            total[place - 1] = total[place - 1] + update
    return total.reshape(operand.shape)


def _scan(params: dict[str, Any], inputs: list[Value]) -> list[Value]:
    if "ft_in" in params:  # JAX 0.12
        constants, carried, _ = (len(part) for part in params["ft_in"].unpack())
    else:
        constants, carried = params["num_consts"], params["num_carry"]
    fixed, carry, rows = inputs[:constants], inputs[constants : constants + carried], inputs[constants + carried :]
    order = range(params["length"])
    kept: list[list[Value]] = []
    for i in reversed(order) if params["reverse"] else order:
        outputs = _call(params["jaxpr"], [*fixed, *carry, *[row[i] for row in rows]])
        carry = outputs[:carried]
        kept.append(outputs[carried:])
    if params["reverse"]:
        kept.reverse()
    return [*carry, *[np.stack([np.asarray(value) for value in column]) for column in zip(*kept, strict=True)]]


def _while(params: dict[str, Any], inputs: list[Value]) -> list[Value]:
    of_condition, of_body = params["cond_nconsts"], params["body_nconsts"]
    condition = inputs[:of_condition]
    body = inputs[of_condition : of_condition + of_body]
    carry = inputs[of_condition + of_body :]
    while _call(params["cond_jaxpr"], [*condition, *carry])[0]:
        carry = _call(params["body_jaxpr"], [*body, *carry])
    return carry


def _solve(params: dict[str, Any], inputs: list[Value]) -> list[Value]:
    lengths = params["const_lengths"]
    before = lengths.matvec + lengths.vecmat
    constants = inputs[before : before + lengths.solve]
    return _call(params["jaxprs"].solve, [*constants, *inputs[sum(lengths) :]])


def _branch(params: dict[str, Any], inputs: list[Value]) -> list[Value]:
    chosen = int(np.clip(int(inputs[0]), 0, len(params["branches"]) - 1))
    return _call(params["branches"][chosen], inputs[1:])


_CALLS = {"jit", "pjit", "closed_call", "core_call", "remat", "checkpoint", "custom_jvp_call", "custom_vjp_call"}
_CONTROL = {"scan": _scan, "while": _while, "cond": _branch, "custom_linear_solve": _solve}
_MOVES_BY_PLACE = frozenset(
    ["dynamic_slice", "dynamic_update_slice", "gather", "pad", "scatter", "split", "stack", "tile", "unstack"],
)
_larger, _smaller = (lambda a, b: a.max(b)), (lambda a, b: a.min(b))
_OPERATIONS: dict[str, Callable] = {
    **{name: _each(operator.add, 2) for name in ("add", "add_any")},
    "sub": _each(operator.sub, 2),
    "mul": _each(operator.mul, 2),
    "div": _each(operator.truediv, 2),
    "pow": _each(operator.pow, 2),
    "max": _each(_larger, 2),
    "min": _each(_smaller, 2),
    "neg": _each(operator.neg, 1),
    "abs": _each(abs, 1),
    "sign": _each(_sign, 1),
    "square": _each(lambda a: a**2, 1),
    "one_minus_square": _each(lambda a: 1 - a**2, 1),
    "integer_pow": _integer_power,
    **{
        name: _each(operator.methodcaller(name), 1)
        for name in (
            "sqrt",
            "rsqrt",
            "ceil",
            "floor",
            "exp",
            "expm1",
            "log",
            "log1p",
            "sin",
            "cos",
            "tan",
            "tanh",
            "erf",
        )
    },
    "erf_inv": _each(operator.methodcaller("erfinv"), 1),
    "eq": _comparison(_same, _apart),
    "ne": _comparison(_apart, _same),
    "lt": _comparison(operator.lt, operator.ge),
    "le": _comparison(operator.le, operator.gt),
    "gt": _comparison(operator.gt, operator.le),
    "ge": _comparison(operator.ge, operator.lt),
    "is_finite": lambda params, x: np.vectorize(lambda ball: bool(ball.is_finite()), otypes=[bool])(x),
    "convert_element_type": _converted,
    "reduce_sum": _sum,
    "reduce_prod": _reduction(operator.mul),
    "reduce_max": _reduction(_larger),
    "reduce_min": _reduction(_smaller),
    "cumsum": _cumulative_sum,
    "dot_general": lambda params, a, b: matrices.contraction(params, _as_balls(a), _as_balls(b)),
    "scatter-add": _scattered_sum,
    "lu": matrices.lu,
    "cholesky": matrices.cholesky,
    "triangular_solve": matrices.triangular_solve,
    "eigh": matrices.eigh,
}
