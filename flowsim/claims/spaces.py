"""The set of problems that a statement covers: fields with fixed values, and axes that vary."""

import abc
import copy
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jaxtyping import PyTree

from flowsim._core import checks
from flowsim._core.types import Document, Tables, Values
from flowsim.losses import AbstractPopulationLoss
from flowsim.problem import toml

Maker = Callable[..., tuple[AbstractPopulationLoss, PyTree]]

_FEW = 10  # the ratio of the ends from which on an axis is geometric
_SHAPES = ("dimension", "loops", "layers", "heads")


@dataclasses.dataclass(frozen=True)
class AbstractRange(abc.ABC):
    """An axis with all numbers from ``low`` to ``high``.

    **Raises:** `ValueError` unless both are finite and low <= high.
    """

    low: float
    high: float

    def __post_init__(self):
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            checks.refuse("an axis", "from a finite number to one that is at least as large", f"it is {self}")

    @property
    def geometric(self) -> bool:
        """Whether values are drawn and spaced on a logarithmic scale, which is so if 0 < 10 low <= high."""
        return self.low > 0 and self.high >= _FEW * self.low

    @abc.abstractmethod
    def holds(self, value: object) -> bool:
        """Whether a value is on the axis."""


@dataclasses.dataclass(frozen=True)
class Whole(AbstractRange):
    """The whole numbers from low to high; see `AbstractRange`."""

    low: int
    high: int

    def holds(self, value: object) -> bool:
        return isinstance(value, int) and self.low <= value <= self.high


@dataclasses.dataclass(frozen=True)
class Real(AbstractRange):
    """The numbers from low to high; see `AbstractRange`."""

    low: int | float
    high: int | float

    def holds(self, value: object) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high


@dataclasses.dataclass(frozen=True)
class Choice:
    """An axis with a finite list of values."""

    values: tuple[Any, ...]

    def holds(self, value: object) -> bool:
        """Whether a value is on the axis."""
        return value in self.values


@dataclasses.dataclass(frozen=True)
class Each:
    """An axis of vectors: one number in the range ``of`` for each dimension. `Space.sized_by` names the dimension's
    axis.
    """

    of: Real

    def holds(self, value: object) -> bool:
        """Whether a value is a vector whose entries are all in the range ``of``. Its length is not checked."""
        return isinstance(value, Iterable) and all(map(self.of.holds, value))


Axis = Whole | Real | Choice | Each


@dataclasses.dataclass(frozen=True)
class Space:
    """A set of problems that a statement covers.

    **Fields:**

    - axes: what varies, by the name of its field in a problem file, such as ``task.context_length``.
    - problem: the tables of the problem file with all fixed fields.
    - make: (axis=value, ..) -> (loss, start), instead of ``problem``, for losses that a problem file cannot
      describe. The axes are the arguments of this function.
    - shapes: the axes that change the shape of an array, default dimensions, loops, layers and heads. Problems that
      differ in these are compiled separately.
    - sized_by: the axis, or the field of the problem, that gives the length of the vectors of all `Each` axes.

    **Raises:** `ValueError` unless exactly one of ``problem`` and ``make`` is given, or if ``make`` is given with
    an `Each` axis but without the axis ``sized_by``.
    """

    axes: Mapping[str, Axis]
    problem: Tables = dataclasses.field(default_factory=dict)
    make: Maker | None = None
    shapes: tuple[str, ...] | None = None
    sized_by: str = "dimension"

    def __post_init__(self):
        if bool(self.problem) == (self.make is not None):
            given = "both" if self.problem else "neither"
            checks.refuse("a space", "given either a problem or a function that makes one", f"{given} was given")
        each = [name for name, axis in self.axes.items() if isinstance(axis, Each)]
        if each and self.make is not None and self.sized_by not in self.axes:
            checks.refuse(f"sized_by of a space with Each ({each[0]})", "one of its axes", f'it is "{self.sized_by}"')

    @property
    def shaping(self) -> tuple[str, ...]:
        """The axes that change the shape of an array."""
        if self.shapes is not None:
            return self.shapes
        return tuple(name for name in self.axes if name.rpartition(".")[2] in (*_SHAPES, self.sized_by))

    def dimension(self, values: Values) -> int:
        """The dimension d of the task at given values of the axes; 1 if neither an axis nor the problem gives
        it.
        """
        known = {**_flat(self.problem), **values}
        return next((int(value) for name, value in known.items() if name.rpartition(".")[2] == self.sized_by), 1)

    def tables(self, values: Values) -> Document:
        """The tables of the problem file at given values of the axes. A rank ``init.rank`` above the dimension is
        lowered to it.
        """
        tables = copy.deepcopy(dict(self.problem))
        for name, value in values.items():
            toml.assign(tables, name, min(value, self.dimension(values)) if name == "init.rank" else value)
        return tables

    def over(self, axes: Mapping[str, Axis]) -> "Space":
        """A copy of the space in which some axes have other values. A range that replaces an `Each` axis applies to
        every entry of its vectors.
        """
        new = {
            name: Each(Real(axis.low, axis.high))
            if isinstance(self.axes.get(name), Each) and isinstance(axis, Whole | Real)
            else axis
            for name, axis in axes.items()
        }
        return dataclasses.replace(self, axes={**self.axes, **new})


def _flat(tables: Tables, prefix: str = "") -> Document:
    found: Document = {}
    for key, value in tables.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return found
