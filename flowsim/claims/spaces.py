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
    """The numbers from low to high, both finite.

    **Raises:** `ValueError` if there are no such numbers.
    """

    low: float
    high: float

    def __post_init__(self):
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            checks.refuse("an axis", "from a finite number to one that is at least as large", f"it is {self}")

    @property
    def geometric(self) -> bool:
        """Whether values are drawn or spaced geometrically."""
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
    """A finite list of values."""

    values: tuple[Any, ...]

    def holds(self, value: object) -> bool:
        """Whether a value is on the axis."""
        return value in self.values


@dataclasses.dataclass(frozen=True)
class Each:
    """A vector with one number for each dimension; `Space.sized_by` names the axis with the dimension."""

    of: Real

    def holds(self, value: object) -> bool:
        """Whether a value is on the axis."""
        return isinstance(value, Iterable) and all(map(self.of.holds, value))


Axis = Whole | Real | Choice | Each


@dataclasses.dataclass(frozen=True)
class Space:
    """A set of problems that a statement covers.

    **Fields:**

    - axes: what varies, by the name of its field in a problem file, such as ``task.context_length``.
    - problem: the tables of the problem file with all fixed fields.
    - make: (axis=value, ..) -> (loss, start), instead of a problem, for losses that a problem file cannot describe. The
      axes are its arguments.
    - shapes: the axes that change the shape of an array, default dimensions, loops, layers and heads. Problems that
      differ in these are compiled separately.
    - sized_by: the axis, or the field of the problem, with the length of each `Each`.

    **Raises:** `ValueError` unless exactly one of a problem and a function is given, or if an `Each` has no length.
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
        """d of the task at these values of the axes."""
        known = {**_flat(self.problem), **values}
        return next((int(value) for name, value in known.items() if name.rpartition(".")[2] == self.sized_by), 1)

    def tables(self, values: Values) -> Document:
        """The tables of the problem file at these values of the axes. The rank of a start is at most the dimension."""
        tables = copy.deepcopy(dict(self.problem))
        for name, value in values.items():
            toml.assign(tables, name, min(value, self.dimension(values)) if name == "init.rank" else value)
        return tables

    def over(self, axes: Mapping[str, Axis]) -> "Space":
        """The space with other values for some axes. A range given for an axis of vectors applies to each of their
        entries.
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
