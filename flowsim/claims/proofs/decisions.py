"""Decides comparisons of numbers that depend on no input of a program: in ball arithmetic, then in rational
numbers, never in float64.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import flint
import jax.numpy as jnp
import numpy as np
from flint import arb, fmpq
from jax.extend.core import JaxprEqn

from flowsim._core.balls.operations import UndecidedError
from flowsim.claims.proofs import checker
from flowsim.claims.proofs.writer import NOWHERE, Array, Writer

_BITS = 256
_UNDECIDED = "it compares numbers that are too near to each other"
Read: TypeAlias = Callable[[str], Any]
# Of each comparison of x and y: what x > y, x < y and x = y make of it.
_COMPARED = {
    "gt": (True, False, False),
    "lt": (False, True, False),
    "ge": (True, False, True),
    "le": (False, True, True),
    "eq": (False, False, True),
    "ne": (True, True, False),
}


class Decisions:
    """Decides comparisons from the values that the checker computes for operations. Each value is computed once.

    **Arguments:** writer: the `Writer` of the operations.
    """

    def __init__(self, writer: Writer):
        self.writer = writer
        self._values: dict[Read, list[list | None]] = {checker.number: [], checker._rational: []}

    def compared(self, name: str, x: Array, y: Array) -> np.ndarray:
        """The truth values of a comparison of x and y, entry by entry.

        **Arguments:** name: "gt", "lt", "ge", "le", "eq" or "ne"; x, y: the two sides.

        **Raises:** `UndecidedError` if two entries are too close to each other.
        """
        signs = self.signs(x, y)
        if np.any(np.isnan(signs)):
            raise UndecidedError(_UNDECIDED)
        more, less, same = _COMPARED[name]
        return np.where(signs > 0, more, np.where(signs < 0, less, same))

    def signs(self, x: Array, y: Array) -> np.ndarray:
        """The sign of x - y, entry by entry, or NaN if it cannot be decided."""
        shape = np.broadcast_shapes(x.shape, y.shape)
        x, y = self.writer.spread(x, shape), self.writer.spread(y, shape)
        signs = np.full(x.size, np.nan)
        for read in self._values:
            given = self._of(read, x), self._of(read, y)
            signs = np.asarray([s if s == s else _sign(a, b) for s, a, b in zip(signs, *given, strict=True)])
            if not np.any(np.isnan(signs)):
                break
        return signs.reshape(shape)

    def rounded_down(self, x: Array) -> np.ndarray:
        """The largest whole number that is at most x, entry by entry.

        **Raises:** `UndecidedError` if an entry is too close to a whole number.
        """
        found = [_floor(value) for value in self._of(checker._rational, x)]
        return np.asarray(found, dtype=float).reshape(x.shape)

    def place(self, eqn: JaxprEqn, x: Array) -> np.ndarray:
        """The index of the largest or the least entry along an axis, for entries that depend on no input. If
        several entries are equal, the index of the first.

        **Arguments:** eqn: an "argmax" or "argmin" of JAX; x: its input.

        **Raises:** `UndecidedError` if entries depend on an input or are too close to each other, or if float64
        gives another index.
        """
        if x.known is None or np.any(np.isnan(x.known)):
            raise UndecidedError(f"certificates do not have the operation {eqn.primitive.name} of numbers that move")
        found = np.asarray(eqn.primitive.bind(jnp.asarray(x.known), **eqn.params))
        (axis,) = eqn.params["axes"]
        places = np.take_along_axis(np.arange(x.size).reshape(x.shape), np.expand_dims(found, axis), axis)
        ahead = self.signs(self.writer.taken([x], places), x) * (1 if eqn.primitive.name == "argmax" else -1)
        is_before = np.arange(x.size).reshape(x.shape) < places
        if not np.all(np.where(is_before, ahead > 0, ahead >= 0)):
            raise UndecidedError("the largest of several numbers is not decided")
        return found

    def converted(self, x: Array, kind: np.dtype) -> np.ndarray:
        """The values of numbers that depend on no input, prepared for a conversion to another type: rounded toward
        zero for whole numbers, 1 or 0 for truth values, and unchanged otherwise.

        **Arguments:** x: the numbers; kind: the new type.

        **Raises:** `UndecidedError` if an entry is too close to a number at which the result jumps.
        """
        assert x.known is not None
        if not (np.issubdtype(kind, np.integer) or kind == np.bool_):
            return x.known
        zero = self.writer.number(0.0)
        if kind == np.bool_:
            return 1.0 * self.compared("ne", x, zero)
        down, up = self.rounded_down(x), -self.rounded_down(self.writer.binary("sub", zero, x))
        return np.where(self.compared("lt", x, zero), up, down)

    def unless_rounded(self, name: str, x: Array) -> Array:
        """The exponent of a power ("pow"), or the matrix of an eigenvalue problem ("eigh"), without its float64
        value if this value would mislead.

        It would if float64 rounds the exponent or, for a matrix that is diagonal in float64, if float64 rounds
        other entries to zero or changes the order of the diagonal.
        """
        if x.known is None or x.place == NOWHERE or self._is_written(x):
            return x
        try:
            same = self._is_float64(x) if name == "pow" else self._is_ordered(x)
        except UndecidedError:
            same = False
        return x if same else x._replace(known=None)

    def _is_written(self, x: Array) -> bool:
        """Whether all entries of an array are constants that are written in the program."""
        name, arguments, _ = self.writer.operations[x.place]
        of = [self.writer.operations[i][0] for i in arguments] if name == "take" else [name]
        return set(of) <= {"number"}

    def _is_float64(self, x: Array) -> bool:
        assert x.known is not None
        return bool(np.all(np.isfinite(x.known)) and np.all(self.compared("eq", x, self.writer.array(x.known))))

    def _is_ordered(self, matrix: Array) -> bool:
        """Whether a matrix that is diagonal in float64 is exactly diagonal, with its entries in the order that they
        have in float64. True if the matrix is not diagonal in float64.
        """
        assert matrix.known is not None
        n, places = matrix.shape[-1], np.arange(matrix.size).reshape(matrix.shape)
        outside = ~np.eye(n, dtype=bool)
        if np.any(matrix.known[..., outside]):
            return True
        order = np.argsort(np.diagonal(matrix.known, axis1=-2, axis2=-1), axis=-1, kind="stable")
        inside = np.take_along_axis(np.diagonal(places, axis1=-2, axis2=-1), order, -1)
        taken = lambda where: self.writer.taken([matrix], where)
        are_zero = self.compared("eq", taken(places[..., outside]), self.writer.number(0.0))
        return bool(np.all(are_zero) and np.all(self.compared("le", taken(inside[..., :-1]), taken(inside[..., 1:]))))

    def _of(self, read: Read, array: Array) -> list:
        if array.place < 0:
            raise UndecidedError(_UNDECIDED)
        values = self._values[read]
        with flint.ctx.workprec(_BITS):
            for name, arguments, parameter in self.writer.operations[len(values) : array.place + 1]:
                given = [values[i] for i in arguments]
                moves = name == "input" and parameter not in self.writer.known
                if moves or any(one is None for one in given):
                    values.append(None)
                elif name == "input":
                    exact = self.writer.known[parameter]
                    is_computed = isinstance(exact, dict)
                    values.append(checker.Program(exact, read)() if is_computed else [*map(read, exact)])
                else:
                    values.append(checker.apply(name, given, parameter, read))
        found = values[array.place]
        if found is None:
            raise UndecidedError(_UNDECIDED)
        return found


def _sign(x: Any, y: Any) -> float:
    return 0.0 if x is y else 1.0 if x > y else -1.0 if x < y else 0.0 if x == y else np.nan


def _floor(x: Any) -> float:
    if isinstance(x, fmpq):
        return float(x.floor())
    low, high = arb(x).lower().floor(), arb(x).upper().floor()
    if not low == high:
        raise UndecidedError(_UNDECIDED)
    return float(low)
