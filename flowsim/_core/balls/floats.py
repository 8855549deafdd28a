"""Enclosures in float64: a midpoint and a radius for each number, with all rounding errors in the radius.

They are less precise than the balls of `enclosure`, but their matrices are multiplied hundreds of times faster. The
rounding error of a sum of n products, in any order, is at most n u/(1 - n u) times the sum of the products'
absolute values, where u = 2^-53.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jaxtyping import ArrayLike

from flowsim._core.balls.array_moves import MOVES, PLAIN
from flowsim._core.balls.enclosure import Traced, lower, upper
from flowsim._core.balls.operations import PROVED, UndecidedError, balls
from flowsim._core.balls.reading import CALLS
from flowsim._core.types import Params

MOST_OPERATIONS = 1e11
_MOST_NUMBERS = 3e7  # in one array
_MOST_BALLS = 3e5  # in one array
_UNIT = np.finfo(float).eps / 2
_LEAST = 1e-300  # more than what is lost by underflow in any sum of products
_ENTRYWISE = {
    *("div", "sqrt", "rsqrt", "exp", "expm1", "log", "log1p", "logistic", "erf", "erfc", "pow", "sin", "cos", "tan"),
    *("atan", "sinh", "cosh", "tanh", "asinh", "one_minus_square"),
}


class Wide(NamedTuple):
    """Numbers that are known to within a radius.

    **Fields:** middle, radius: arrays of one shape.
    """

    middle: np.ndarray
    radius: np.ndarray

    @property
    def largest(self) -> np.ndarray:
        """Upper bounds on the absolute values."""
        return (np.abs(self.middle) + self.radius) * (1 + 4 * _UNIT)


def wide(values: ArrayLike, radius: float = 0.0) -> Wide:
    """Enclosures around ``values`` with one common radius."""
    middle = np.asarray(values, dtype=float)
    return Wide(middle, np.full(middle.shape, radius))


def norm(sizes: np.ndarray) -> float:
    """An upper bound on the Frobenius norm of an array, from bounds on the absolute values of its entries."""
    largest = float(np.max(np.abs(sizes), initial=0.0))
    if not 0 < largest < math.inf:
        return largest
    return largest * float(np.linalg.norm(sizes / largest)) * (1 + (sizes.size + 8) * _UNIT) + _LEAST


def product(a: Wide, b: Wide) -> Wide:
    """An enclosure of the product of two matrices, or of each pair of matrices in two batches."""
    inner = a.middle.shape[-1]
    sizes, factor = np.abs(b.middle), _rounding(inner)
    radius = factor * (np.abs(a.middle) @ sizes) + _LEAST
    if b.radius.any():
        radius = radius + np.abs(a.middle) @ b.radius
    if a.radius.any():
        radius = radius + a.radius @ (sizes + b.radius)
    return Wide(a.middle @ b.middle, radius * (1 + 2 * factor))


def difference(a: Wide, b: Wide) -> Wide:
    """An enclosure of a - b."""
    middle = a.middle - b.middle
    return Wide(middle, (a.radius + b.radius + _UNIT * np.abs(middle)) * (1 + 8 * _UNIT))


def enclosed(traced: Traced, *arguments: Wide) -> list[Wide]:
    """Enclosures of the outputs of a traced program, as a flat list.

    **Raises:** `UndecidedError` if an operation is unknown in this arithmetic, or if there are too many operations
    or numbers.
    """
    if traced.operations > MOST_OPERATIONS:
        raise UndecidedError(f"{traced.operations:.1e} operations are too many", is_costly=True)
    with np.errstate(all="ignore"):
        return [_as_wide(one) for one in _run(traced.jaxpr, traced.consts, arguments)]


Value = Wide | np.ndarray  # whole numbers and truth values have no radius


def _as_wide(value: object) -> Wide:
    return value if isinstance(value, Wide) else wide(np.asarray(value))


def _lifted(value: object) -> Value:
    array = np.asarray(value)
    return wide(array) if array.dtype == np.float64 else array


def _run(jaxpr: Jaxpr, consts: Sequence[object], arguments: Sequence[Value]) -> list[Value]:
    values: dict[Var, Value] = dict(zip(jaxpr.constvars, map(_lifted, consts), strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))
    # Jacobians have large arrays: each is forgotten after it is read last.
    last = {var: place for place, eqn in enumerate(jaxpr.eqns) for var in eqn.invars if isinstance(var, Var)}
    kept = {var for var in jaxpr.outvars if isinstance(var, Var)}
    read = lambda var: _lifted(var.val) if isinstance(var, Literal) else values[var]
    for place, eqn in enumerate(jaxpr.eqns):
        if any(math.prod(getattr(var.aval, "shape", ())) > _MOST_NUMBERS for var in eqn.outvars):
            raise UndecidedError("an array has too many numbers", is_costly=True)
        values.update(zip(eqn.outvars, _apply(eqn, [read(var) for var in eqn.invars]), strict=True))
        for var in eqn.invars:
            if isinstance(var, Var) and last[var] == place and var not in kept:
                values.pop(var, None)
    return [read(var) for var in jaxpr.outvars]


def _apply(eqn: JaxprEqn, inputs: list[Value]) -> list[Value]:
    name, params = eqn.primitive.name, eqn.params
    if name in CALLS:
        program = next(params[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in params)
        inner, consts = (program.jaxpr, program.consts) if isinstance(program, ClosedJaxpr) else (program, ())
        return _run(inner, consts, inputs)
    if not any(isinstance(one, Wide) for one in inputs):
        if (plain := PLAIN.get(name) or MOVES.get(name)) is None or eqn.primitive.multiple_results:
            raise UndecidedError(f"{name} is not known in float64 enclosures")
        return [_lifted(plain(params, *inputs))]
    if name in MOVES or name in _BY_PLACE:
        move = MOVES.get(name) or (lambda params, *given: eqn.primitive.bind(*given, **params))
        moved = [move(params, *[one[i] if isinstance(one, Wide) else one for one in inputs]) for i in (0, 1)]
        parts = moved if eqn.primitive.multiple_results else [[one] for one in moved]
        return [Wide(np.asarray(middle), np.asarray(radius)) for middle, radius in zip(*parts, strict=True)]
    if name == "convert_element_type" and params["new_dtype"] == jnp.float64:
        return inputs
    if name in _OPERATIONS:
        return [_OPERATIONS[name](params, *map(_as_wide, inputs))]
    if name not in _ENTRYWISE or math.prod(_as_wide(inputs[0]).middle.shape) > _MOST_BALLS:
        raise UndecidedError(f"{name} is not known in float64 enclosures")
    found = PROVED[name](params, *[balls(*_as_wide(one)) for one in inputs])
    low, high = lower(found), upper(found)
    return [Wide((low + high) / 2, (high - low) / 2 + 4 * _UNIT * np.maximum(np.abs(low), np.abs(high)) + _LEAST)]


def _rounding(terms: int) -> float:
    return 1.01 * (terms + 4) * _UNIT


def _sum(params: Params, x: Wide) -> Wide:
    axes = tuple(params["axes"])
    factor = _rounding(math.prod(x.middle.shape[axis] for axis in axes))
    radius = np.sum(x.radius, axis=axes) + factor * np.sum(np.abs(x.middle), axis=axes)
    return Wide(np.asarray(np.sum(x.middle, axis=axes)), np.asarray(radius * (1 + 2 * factor)))


def _plus(params: Params, a: Wide, b: Wide) -> Wide:
    return difference(a, Wide(-b.middle, b.radius))


def _times(params: Params, a: Wide, b: Wide) -> Wide:
    middle = a.middle * b.middle
    radius = np.abs(a.middle) * b.radius + a.radius * (np.abs(b.middle) + b.radius) + _UNIT * np.abs(middle)
    return Wide(middle, radius * (1 + 8 * _UNIT) + _LEAST)


def _power(params: Params, x: Wide) -> Wide:
    if params["y"] < 1:
        raise UndecidedError("a power below one is not known in float64 enclosures")
    found = x
    for _ in range(params["y"] - 1):
        found = _times(params, found, x)
    return found


def _contraction(params: Params, a: Wide, b: Wide) -> Wide:
    (a_contracted, b_contracted), (a_batch, b_batch) = params["dimension_numbers"]
    a_free = [axis for axis in range(a.middle.ndim) if axis not in (*a_contracted, *a_batch)]
    b_free = [axis for axis in range(b.middle.ndim) if axis not in (*b_contracted, *b_batch)]
    of_a, of_b = a.middle.shape, b.middle.shape
    sizes = lambda shape, axes: math.prod(shape[axis] for axis in axes)
    batch, inner = sizes(of_a, a_batch), sizes(of_a, a_contracted)
    left = [x.transpose(*a_batch, *a_free, *a_contracted).reshape(batch, sizes(of_a, a_free), inner) for x in a]
    right = [x.transpose(*b_batch, *b_contracted, *b_free).reshape(batch, inner, sizes(of_b, b_free)) for x in b]
    found = product(Wide(*left), Wide(*right))
    shape = [*(of_a[axis] for axis in (*a_batch, *a_free)), *(of_b[axis] for axis in b_free)]
    return Wide(*(x.reshape(shape) for x in found))


_BY_PLACE = {"gather", "dynamic_update_slice"}
_OPERATIONS: dict[str, Callable[..., Wide]] = {
    **{name: _plus for name in ("add", "add_any")},
    "sub": lambda params, a, b: difference(a, b),
    "mul": _times,
    "neg": lambda params, x: Wide(-x.middle, x.radius),
    "square": lambda params, x: _times(params, x, x),
    "integer_pow": _power,
    "reduce_sum": _sum,
    "dot_general": _contraction,
}
