"""Comparisons of numbers that do not depend on an input: in ball arithmetic, then in rational numbers, never in
float64.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import flint
import numpy as np
from flint import arb, fmpq

from flowsim._core.balls.operations import UndecidedError
from flowsim.claims.proofs import checker
from flowsim.claims.proofs.writer import Array, Writer

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
    """The values of operations as the checker computes them, each computed once, and the comparisons that they decide.

    **Arguments:** writer: the writer of the operations.
    """

    def __init__(self, writer: Writer):
        self.writer = writer
        self._values: dict[Read, list[list | None]] = {checker.number: [], checker._rational: []}

    def compared(self, name: str, x: Array, y: Array) -> np.ndarray:
        """The truth values of a comparison, entry by entry.

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
                    values.append([read(text) for text in self.writer.known[parameter]])
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
