"""JAX's operations on arrays of balls.

A comparison that the balls do not decide gives a ball from 0 to 1. A selection by this ball gives the hull of the
cases.
"""

import functools
import math
import operator
from collections.abc import Callable
from typing import TypeAlias

import flint
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from flowsim._core.balls import matrices
from flowsim._core.types import Params

Balls = np.ndarray  # of flint.arb
Value: TypeAlias = np.ndarray  # Balls, or an array of another type than float64

REMEMBERED = 4096  # how many operations that move numbers are cached


class UndecidedError(ArithmeticError):
    """Raised on an unknown operation, on a comparison that the balls do not decide, and on too many operations.

    **Fields:** is_costly: whether the operations were too many.
    """

    def __init__(self, message: str, *, is_costly: bool = False):
        super().__init__(message)
        self.is_costly = is_costly


_ball = np.frompyfunc(flint.arb, 2, 1)


def balls(values: ArrayLike, radii: ArrayLike = 0.0) -> Balls:
    """Balls with the given centres and radii."""
    return np.asarray(_ball(np.asarray(values, dtype=float), np.asarray(radii, dtype=float)), dtype=object)


def is_balls(value: Value) -> bool:
    """Whether a value is an array of balls."""
    return isinstance(value, np.ndarray) and value.dtype == object


def as_balls(value: Value) -> Balls:
    """Numbers as exact balls. Balls are returned unchanged."""
    return value if is_balls(value) else balls(value)


def _each(function: Callable, arguments: int) -> Callable:
    """Turn a function of single balls into an operation on arrays, whose first argument is JAX's parameters.

    **Arguments:** arguments: the number of arrays.
    """
    universal = np.frompyfunc(function, arguments, 1)
    return lambda params, *inputs: np.asarray(universal(*map(as_balls, inputs)), dtype=object)


def _method(name: str) -> Callable:
    return _each(operator.methodcaller(name), 1)


_OPEN = flint.arb(0.5, 0.5)


def _comparison(certainly: Callable, certainly_not: Callable) -> Callable:
    def compare(a: flint.arb, b: flint.arb) -> bool | None:
        if certainly(a, b):
            return True
        return False if certainly_not(a, b) else None

    universal = np.frompyfunc(compare, 2, 1)

    return lambda params, a, b: _truths(universal(as_balls(a), as_balls(b)))


def _truths(found: ArrayLike | None) -> Value:
    """Truth values as booleans, or as balls if one of them is None.

    None means undecided and becomes the ball [0, 1]; then True and False become the exact balls 1 and 0.
    """
    found = np.asarray(found, dtype=object)
    if all(one is not None for one in np.ravel(found)):
        return found.astype(bool)
    as_ball = lambda one: _OPEN if one is None else flint.arb(int(one))
    return np.asarray(np.frompyfunc(as_ball, 1, 1)(found), dtype=object)


def asked_of_each(question: Callable[[flint.arb], bool | None], x: Balls) -> Value:
    """The truth values of a predicate on each ball. The predicate returns None if the ball leaves it undecided."""
    return _truths(np.frompyfunc(question, 1, 1)(x))


def is_unknown(ball: flint.arb) -> bool:
    """Whether a ball is neither finite nor exact, so that its number may be anything, even infinity or NaN.

    An exact infinity or NaN is known.
    """
    return not (ball.is_finite() or ball.is_exact())


def selection(which: Value, *cases: Value) -> Value:
    """JAX's select_n for a condition that may be a ball. If it is undecided, the hull of both cases is returned.

    **Raises:** `UndecidedError` if the cases are neither float64 numbers nor booleans.
    """
    if not all(case.dtype in (object, np.float64, bool) for case in cases):
        raise UndecidedError("which whole number is selected is open")

    def choose(which: flint.arb, first: flint.arb, second: flint.arb) -> flint.arb:
        if which == 0 or which == 1:
            return second if which == 1 else first
        return first.union(second)

    return _each(choose, 3)({}, np.broadcast_to(which, cases[0].shape), *cases)


def is_open(value: Value) -> bool:
    """Whether an array of truth values has an entry that is neither certainly true nor certainly false."""
    return is_balls(value) and not all(one == 0 or one == 1 for one in np.ravel(value))


def _sign(x: flint.arb) -> flint.arb:
    return x.sgn() if x.is_finite() else flint.arb.nan()


def power(x: flint.arb, exponent: int) -> flint.arb:
    """x^exponent for a whole exponent, by multiplication. flint's power is NaN for some balls that contain zero."""
    if exponent < 0:
        return 1 / power(x, -exponent)
    if exponent % 2 == 0:
        # By the modulus, so that an even power is not negative.
        x = abs(x)
    found, factor = flint.arb(1), x
    while exponent:
        found = found * factor if exponent & 1 else found
        exponent >>= 1
        factor = factor * factor if exponent else factor
    return found


_LARGEST_WHOLE = 2**53  # largest exponent: beyond it, float64 has no odd numbers
_NEGATIVE = flint.arb(2) ** -24  # how far, relatively, rounding of its radius may take a ball from 0 below zero


def _pow(x: flint.arb, exponent: flint.arb) -> flint.arb:
    if exponent.is_integer() and abs(exponent) <= _LARGEST_WHOLE:
        return power(x, int(float(exponent)))
    if x.contains(0) and exponent > 0:
        # Only the numbers in the ball that are not negative have this power.
        return flint.arb(0).union(x.upper() ** exponent)
    return x**exponent


def _sqrt(x: flint.arb) -> flint.arb:
    return flint.arb(0).union(x.upper().sqrt()) if x.contains(0) else x.sqrt()


def _of_all(root: Callable) -> Callable:
    """A root or a power that is NaN for every ball that contains a number at which the function is not defined."""

    def of_all(x: flint.arb, *exponent: flint.arb) -> flint.arb:
        whole = any(one.is_integer() for one in exponent)
        return root(x, *exponent) if whole or x > 0 or _begins_at_zero(x) else flint.arb.nan()

    return of_all


def _begins_at_zero(x: flint.arb) -> bool:
    """Whether a ball extends so little below zero that only the rounding of its radius can be the reason."""
    return bool(-x.lower() <= _NEGATIVE * x.upper())


def _logistic(x: flint.arb) -> flint.arb:
    return 1 / (1 + (-x).exp())


def _cube_root(x: flint.arb) -> flint.arb:
    return -(-x).root(3) if x < 0 else x.root(3)


def _sum(params: Params, x: Balls) -> Balls:
    axes = tuple(params["axes"])
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    length = math.prod(x.shape[axis] for axis in axes)
    rows = x.transpose(*kept, *axes).reshape(*[x.shape[axis] for axis in kept], length)
    total = np.frompyfunc(operator.add, 2, 1).reduce(rows, axis=-1, initial=flint.arb(0))
    return np.asarray(total, dtype=object)


def _reduction(choose: Callable, empty: float | None = None) -> Callable:
    universal = np.frompyfunc(choose, 2, 1)
    reduced = universal.reduce if empty is None else functools.partial(universal.reduce, initial=flint.arb(empty))

    def reduce(params: Params, x: Balls) -> Balls:
        for axis in sorted(params["axes"], reverse=True):
            x = np.asarray(reduced(x, axis=axis), dtype=object)
        return x

    return reduce


def _cumulative(choose: Callable) -> Callable:
    universal = np.frompyfunc(choose, 2, 1)

    def accumulate(params: Params, x: Balls) -> Balls:
        along = np.flip(x, params["axis"]) if params["reverse"] else x
        total = np.asarray(universal.accumulate(along, axis=params["axis"]), dtype=object)
        return np.flip(total, params["axis"]) if params["reverse"] else total

    return accumulate


def _converted(params: Params, x: Balls) -> Value:
    if jnp.issubdtype(params["new_dtype"], jnp.floating):
        return x
    if np.dtype(params["new_dtype"]) == np.bool_:
        return asked_of_each(_as_truth, x)
    whole = np.asarray(np.frompyfunc(_truncated, 1, 1)(x), dtype=object)
    if any(value is None for value in whole.reshape(-1)):
        raise UndecidedError("a ball contains more than one whole number")
    return np.asarray(whole, dtype=float).astype(params["new_dtype"])


def _as_truth(ball: flint.arb) -> bool | None:
    if ball.is_finite() and ball == 0:
        return False
    return True if ball.is_finite() and not ball.contains(0) else None


def _truncated(ball: flint.arb) -> flint.fmpz | int | None:
    """The integer part that all numbers in a ball have; None if their integer parts differ."""
    if abs(ball) < 1:
        return 0
    whole = ball.floor() if ball > 0 else ball.ceil()
    return whole.unique_fmpz() if ball.is_finite() and not ball.contains(0) else None


def _scattered_sum(params: Params, operand: Value, indices: Value, updates: Value) -> Balls:
    """JAX's scatter-add: add each update to the entry of the operand that its index names."""
    operand, updates = as_balls(operand), as_balls(updates)
    total = operand.reshape(-1).copy()
    kind = (indices.shape, indices.dtype.str, indices.tobytes())
    where = _scattered_to(tuple(sorted(params.items())), operand.shape, kind, updates.shape)
    for place, update in zip(where, updates.reshape(-1), strict=True):
        if place >= 0:  # updates outside the operand are dropped
            total[place] = total[place] + update
    return total.reshape(operand.shape)


@functools.lru_cache(REMEMBERED)
def _scattered_to(params: tuple, operand: tuple[int, ...], indices: tuple, updates: tuple[int, ...]) -> list[int]:
    """The flat index of the operand's entry to which each update is added, or -1 for an update that is dropped.

    The transpose of scatter-add is a gather. Applied to an operand whose entries are numbered, it returns these
    indices.

    **Arguments:**

    - params: the parameters of the operation.
    - operand, updates: their shapes.
    - indices: their shape, type and bytes.
    """
    shape, kind, content = indices
    at = jnp.asarray(np.frombuffer(content, dtype=kind).reshape(shape))
    blank, size = jnp.zeros(operand), int(np.prod(operand))
    add = lambda values: jax.lax.scatter_add_p.bind(blank, at, values, **dict(params))
    (where,) = jax.linear_transpose(add, jax.ShapeDtypeStruct(updates, jnp.float64))(
        1.0 + jnp.arange(size, dtype=float).reshape(operand)
    )
    return (np.asarray(where).reshape(-1).astype(int) - 1).tolist()


_larger, _smaller = (lambda a, b: a.max(b)), (lambda a, b: a.min(b))
_METHODS = (
    *("rsqrt", "ceil", "floor", "exp", "expm1", "log", "log1p", "erf", "erfc", "lgamma", "digamma"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
)
OPERATIONS: dict[str, Callable] = {
    **{name: _each(operator.add, 2) for name in ("add", "add_any")},
    "sub": _each(operator.sub, 2),
    "mul": _each(operator.mul, 2),
    "div": _each(operator.truediv, 2),
    "pow": _each(_pow, 2),
    # Truth values are 0, 1, or a ball that holds both.
    **{name: _each(_larger, 2) for name in ("max", "or")},
    **{name: _each(_smaller, 2) for name in ("min", "and")},
    "not": _each(lambda a: 1 - a, 1),
    "clamp": _each(lambda low, x, high: x.max(low).min(high), 3),
    "neg": _each(operator.neg, 1),
    "abs": _each(abs, 1),
    "sign": _each(_sign, 1),
    "square": _each(lambda a: power(a, 2), 1),
    "one_minus_square": _each(lambda a: 1 - power(a, 2), 1),
    "integer_pow": lambda params, x: _each(lambda ball: power(ball, params["y"]), 1)(params, x),
    "sqrt": _each(_sqrt, 1),
    "cbrt": _each(_cube_root, 1),
    "exp2": _each(lambda a: flint.arb(2) ** a, 1),
    "logistic": _each(_logistic, 1),
    "atan2": _each(lambda y, x: flint.arb.atan2(y, x), 2),
    **{name: _method(name) for name in _METHODS},
    "erf_inv": _method("erfinv"),
    "eq": _comparison(lambda a, b: bool(a == b), lambda a, b: bool(a != b)),
    "ne": _comparison(lambda a, b: bool(a != b), lambda a, b: bool(a == b)),
    "lt": _comparison(operator.lt, operator.ge),
    "le": _comparison(operator.le, operator.gt),
    "gt": _comparison(operator.gt, operator.le),
    "ge": _comparison(operator.ge, operator.lt),
    "is_finite": lambda params, x: asked_of_each(lambda ball: None if is_unknown(ball) else bool(ball.is_finite()), x),
    "convert_element_type": _converted,
    "reduce_sum": _sum,
    "reduce_prod": _reduction(operator.mul, empty=1.0),
    **{name: _reduction(_larger) for name in ("reduce_max", "reduce_or")},
    **{name: _reduction(_smaller) for name in ("reduce_min", "reduce_and")},
    "cumsum": _cumulative(operator.add),
    "cumprod": _cumulative(operator.mul),
    "cummax": _cumulative(_larger),
    "cummin": _cumulative(_smaller),
    "dot_general": lambda params, a, b: matrices.contraction(params, as_balls(a), as_balls(b)),
    "scatter-add": _scattered_sum,
    "lu": matrices.lu,
    "cholesky": matrices.cholesky,
    "triangular_solve": matrices.triangular_solve,
    "eigh": matrices.eigh,
}
# The operations when balls must contain all values.
PROVED = OPERATIONS | {"sqrt": _each(_of_all(_sqrt), 1), "pow": _each(_of_all(_pow), 2)}
BRANCHING = ("eq", "ne", "lt", "le", "gt", "ge")
ROUNDING_TO_INTEGERS = ("sign", "floor", "ceil")
