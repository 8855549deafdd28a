"""Writes a function for a certificate, as a list of operations on arrays.

An operation is [name, indices of the operations that are its inputs, parameter]. The checker defines each name. In
a certificate arrays are flat, row by row. An operation that only moves entries is written as "take", with their
indices.
"""

import functools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from flint import arb
from jaxtyping import Float, Int

from flowsim._core.types import Document, Params

Parameter: TypeAlias = "str | int | list[int] | list[str] | None"

NOWHERE = -1  # the number of an operation whose value is not finite
_LEAST = 128  # the exponent of the power of two that stands for a bound of zero
_DIGITS = 12  # of a number that is written in a statement; one with more of them was computed, and rounded


class Array(NamedTuple):
    """The value of an operation.

    **Fields:**

    - shape: its shape.
    - place: the index of the operation in the list, or `NOWHERE` for a value that is not finite.
    - known: the value in float64 if it depends on no input of the function; else None.
    """

    shape: tuple[int, ...]
    place: int
    known: Float[np.ndarray, "..."] | None

    @property
    def size(self) -> int:
        """The number of entries."""
        return math.prod(self.shape)


Value = Array | np.ndarray | jax.Array  # an array of whole numbers, truth values or random keys is known


def decimals(values: Float[np.ndarray, "..."]) -> list[str]:
    """Return each number as text: the shortest decimal that rounds to it, written as a fraction."""
    return list(map(_decimal, np.ravel(values).tolist()))


@functools.lru_cache(maxsize=2**16)
def _decimal(value: float) -> str:
    return str(Fraction(repr(float(value))))


def is_rounded(text: str) -> bool:
    """Whether a number, given as text, has so many digits that it counts as rounded."""
    return len(str(Fraction(text).numerator).strip("-0")) > _DIGITS


class Writer:
    """Writes a list of operations. Equal operations are written once.

    **Arguments:** given: the numbers that are exact although they have many digits; None if all numbers are exact.
    """

    def __init__(self, given: frozenset[float] | None = None):
        self.given = given
        self.operations: list[list[Any]] = []
        self.known: dict[str, list[str] | Document] = {}  # of inputs: their decimals, or the program that computes them
        self._places: dict[str, int] = {}
        self._sources: dict[int, tuple[list[Array], np.ndarray]] = {}

    def write(
        self,
        name: str,
        arguments: Sequence[Array],
        parameter: Parameter,
        shape: tuple[int, ...],
        known: np.ndarray | None = None,
    ) -> Array:
        """Write an operation, unless an equal one was written before.

        **Arguments:**

        - name, parameter: see the checker.
        - arguments: the inputs.
        - shape: the shape of the result.
        - known: its value in float64 if it depends on no input of the function.

        **Returns:** the result of the operation.
        """
        if any(argument.place == NOWHERE for argument in arguments):
            # A number divided by infinity is zero, and what is infinite itself is nowhere.
            if name != "div" or known is None or np.any(known):
                return Array(shape, NOWHERE, known)
            name, arguments, parameter = "number", [], decimals(known)
        operation = [name, [argument.place for argument in arguments], parameter]
        key = repr(operation)
        if key not in self._places:
            self._places[key] = len(self.operations)
            self.operations.append(operation)
        return Array(shape, self._places[key], known)

    def array(self, value: Value) -> Array:
        """Return a value as an `Array`. If it is not one yet, an operation with its numbers is written."""
        if isinstance(value, Array):
            return value
        values = np.asarray(value, dtype=float)
        if values.size and np.all(np.isnan(values)):
            return self.binary("div", self.array(np.ones(values.shape)), self.array(np.zeros(values.shape)))
        if not np.all(np.isfinite(values)):
            return Array(values.shape, NOWHERE, values)
        return self.write("number", [], decimals(values), values.shape, values)

    def read(self, values: Float[np.ndarray, "..."]) -> Array:
        """Write constants of a function. Those that were rounded are marked by the operation "near"."""
        flat = np.ravel(values)
        rounded = np.asarray([self._was_rounded(value) for value in flat], dtype=bool)
        if not np.any(rounded):
            return self.array(values)
        # Two numbers that were rounded to the same float64 may differ: no list of them is written twice.
        texts = [str(len(self.operations)), *decimals(flat[rounded])]
        near = self.write("near", [], texts, (int(np.sum(rounded)),), flat[rounded])
        places = np.where(rounded, np.cumsum(rounded) - 1, near.size + np.cumsum(~rounded) - 1)
        return self.taken([near, self.array(flat[~rounded])], places.reshape(values.shape))

    def _was_rounded(self, value: float) -> bool:
        if self.given is None or not math.isfinite(value) or float(value) in self.given:
            return False
        return is_rounded(decimals(np.asarray(value))[0])

    def taken(self, arrays: Sequence[Array], indices: Int[np.ndarray, "..."]) -> Array:
        """Write a "take" of entries of some arrays.

        A "take" of the result of another "take" is written as one "take" of the original arrays.

        **Arguments:** arrays: the arrays, which are flattened and concatenated; indices: the indices of the entries
        in the concatenation, in the shape of the result.
        """
        sources, places, begin = [], [], 0
        for array in arrays:
            inner, flat = self._sources.get(array.place, ([array], np.arange(array.size)))
            sources += inner
            places.append(begin + flat)
            begin += sum(one.size for one in inner)
        flat = np.concatenate(places)[indices.reshape(-1)]
        begins = np.cumsum([0, *[one.size for one in sources]])
        which = np.searchsorted(begins, flat, side="right") - 1
        used = np.unique(which)
        new_begins = np.cumsum([0, *[sources[k].size for k in used]])[:-1]
        flat = flat - begins[which] + new_begins[np.searchsorted(used, which)]
        sources, known = [sources[k] for k in used], None
        if all(one.known is not None for one in sources):
            values = np.concatenate([np.ravel(one.known) for one in sources] or [np.zeros(0)])
            known = values[flat].reshape(indices.shape)
        if len(sources) == 1 and np.array_equal(flat, np.arange(sources[0].size)):
            return Array(indices.shape, sources[0].place, known)
        found = self.write("take", sources, flat.tolist(), indices.shape, known)
        if found.place != NOWHERE:
            self._sources[found.place] = sources, flat
        return found

    def joined(self, arrays: Sequence[Array]) -> Array:
        """Concatenate the entries of arrays to one flat array."""
        return self.taken(arrays, np.arange(sum(array.size for array in arrays)))

    def reshaped(self, array: Array, shape: tuple[int, ...]) -> Array:
        """Reshape an array."""
        return self.taken([array], np.arange(array.size).reshape(shape))

    def chosen(self, which: np.ndarray, first: Array, second: Array) -> Array:
        """Write a "take" of entries of ``first`` where a known condition is true, and of ``second`` elsewhere."""
        places = np.arange(first.size).reshape(first.shape)
        return self.taken([first, second], np.where(which, places, places + first.size))

    def spread(self, array: Array, shape: tuple[int, ...]) -> Array:
        """Broadcast an array to a shape."""
        if array.shape == shape:
            return array
        return self.taken([array], np.broadcast_to(np.arange(array.size).reshape(array.shape), shape))

    def binary(self, name: str, x: Array, y: Array) -> Array:
        """Write an operation of `BINARY` on the entries of two arrays, which are broadcast to one shape."""
        shape = np.broadcast_shapes(x.shape, y.shape)
        x, y = self.spread(x, shape), self.spread(y, shape)
        known = None
        if x.known is not None and y.known is not None:
            with np.errstate(all="ignore"):
                known = np.asarray(BINARY[name](x.known, y.known), dtype=float)
        return self.write(name, [x, y], None, shape, known)

    def selected(self, which: Array, yes: Array, no: Array) -> Array:
        """Write a "select" of entries of ``yes`` where a computed condition is 1, and of ``no`` where it is 0."""
        shape = np.broadcast_shapes(which.shape, yes.shape, no.shape)
        nothing = self.array(np.full(shape, np.nan))  # an infinite number that is not chosen does no harm
        yes, no = (nothing if one.place == NOWHERE else self.spread(one, shape) for one in (yes, no))
        which = self.spread(which, shape)
        known = None
        if which.known is not None and yes.known is not None and no.known is not None:
            known = np.where(which.known == 1.0, yes.known, no.known)
        return self.write("select", [which, yes, no], None, shape, known)

    def unary(self, name: str, x: Array, parameter: Parameter = None) -> Array:
        """Write an operation of `UNARY`, or "power" with a whole exponent as its parameter, on each entry."""
        known = None
        if x.known is not None:
            with np.errstate(all="ignore"):
                known = np.asarray(x.known**parameter if name == "power" else UNARY[name](x.known))
        return self.write(name, [x], parameter, x.shape, known)

    def power(self, x: Array, exponent: int) -> Array:
        """Write x^exponent for each entry, for a whole exponent."""
        if exponent < 0:
            return self.binary("div", self.number(1.0), self.power(x, -exponent))
        return self.array(np.ones(x.shape)) if exponent == 0 else self.unary("power", x, exponent)

    def number(self, value: float) -> Array:
        """Write a scalar constant."""
        return self.array(np.asarray(value))

    def summed(self, x: Array, axes: Sequence[int]) -> Array:
        """Write the sum of an array over some axes."""
        kept = [axis for axis in range(len(x.shape)) if axis not in axes]
        shape = tuple(x.shape[axis] for axis in kept)
        count = math.prod(x.shape[axis] for axis in axes)
        if count == 0:
            return self.array(np.zeros(shape))
        moved = self.taken([x], np.arange(x.size).reshape(x.shape).transpose(*kept, *axes))
        with np.errstate(all="ignore"):
            known = None if x.known is None else np.asarray(np.sum(x.known, axis=tuple(axes)))
        if count == 1:
            return Array(shape, moved.place, known)
        ones = self.array(np.ones(count))
        return self.write("dot", [moved, ones], [1, math.prod(shape), count, 1], shape, known)

    def contracted(self, params: Params, a: Array, b: Array) -> Array:
        """Write the product that JAX's `dot_general` computes with parameters ``params``."""
        (a_inner, b_inner), (a_batch, b_batch) = params["dimension_numbers"]
        a_free = [axis for axis in range(len(a.shape)) if axis not in (*a_inner, *a_batch)]
        b_free = [axis for axis in range(len(b.shape)) if axis not in (*b_inner, *b_batch)]
        sizes = lambda array, axes: [array.shape[axis] for axis in axes]
        shape = (*sizes(a, a_batch), *sizes(a, a_free), *sizes(b, b_free))
        how = [math.prod(sizes(*one)) for one in ((a, a_batch), (a, a_free), (a, a_inner), (b, b_free))]
        left = self.taken([a], np.arange(a.size).reshape(a.shape).transpose(*a_batch, *a_free, *a_inner))
        right = self.taken([b], np.arange(b.size).reshape(b.shape).transpose(*b_batch, *b_inner, *b_free))
        known = None
        if left.known is not None and right.known is not None:
            batch, rows, inner, columns = how
            with np.errstate(all="ignore"):
                known = left.known.reshape(batch, rows, inner) @ right.known.reshape(batch, inner, columns)
            known = known.reshape(shape)
        return self.write("dot", [left, right], how, shape, known)


BINARY = {"above": np.greater, "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
UNARY = {
    **{"exp": np.exp, "log": np.log, "sqrt": np.sqrt, "sin": np.sin, "cos": np.cos},
    "erf": np.vectorize(math.erf, otypes=[float]),
}


def exactly(x: arb) -> str:
    """Write an exact number as text for the checker, such as ``3p-2`` for 3 * 2^-2."""
    mantissa, exponent = x.man_exp()
    return f"{int(mantissa)}p{int(exponent)}"


def above(bound: arb) -> arb:
    """Return a number of few binary digits that is above a bound."""
    if not bound.is_finite():
        return bound.upper()
    if bound.is_zero():
        return arb((1, -_LEAST))  # as the checker divides by it
    mantissa, exponent = bound.upper().man_exp()
    shift = max(int(mantissa).bit_length() - 24, 0)
    return arb(((int(mantissa) >> shift) + 1, int(exponent) + shift))
