"""Spaces of problems to search, with fields that are fixed and axes that are free."""

import abc
import copy
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from jaxtyping import PyTree

from flowsim._core import checks
from flowsim._core.types import Tables, Values
from flowsim.problem import toml

Maker = Callable[..., tuple[Any, PyTree]]

_FEW = 10  # times the low end, from which on values of an axis are geometric
_SHAPES = ("dimension", "loops", "layers", "heads")


@dataclasses.dataclass(frozen=True)
class AbstractRange(abc.ABC):
    """Numbers from low to high, both finite.

    **Raises:** `ValueError` if there are no such numbers.
    """

    low: Any
    high: Any

    def __post_init__(self):
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            checks.refuse("an axis", "from a finite number to one that is at least as large", f"it is {self}")

    @property
    def geometric(self) -> bool:
        """Whether values are spread evenly over their logarithms."""
        return self.low > 0 and self.high >= _FEW * self.low

    @abc.abstractmethod
    def holds(self, value: Any) -> bool:
        """Whether a value is on the axis."""


@dataclasses.dataclass(frozen=True)
class Whole(AbstractRange):
    """The whole numbers from low to high; see `AbstractRange`."""

    low: int
    high: int

    def holds(self, value: Any) -> bool:
        return isinstance(value, int) and self.low <= value <= self.high


@dataclasses.dataclass(frozen=True)
class Real(AbstractRange):
    """The numbers from low to high; see `AbstractRange`."""

    low: int | float
    high: int | float

    def holds(self, value: Any) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high


@dataclasses.dataclass(frozen=True)
class Choice:
    """One of some values."""

    values: tuple[Any, ...]

    def holds(self, value: Any) -> bool:
        """Whether a value is on the axis."""
        return value in self.values


@dataclasses.dataclass(frozen=True)
class Each:
    """A number for each dimension of the task, of which there are as many as the axis `Space.sized_by` says."""

    of: Real

    def holds(self, value: Any) -> bool:
        """Whether a value is on the axis."""
        return all(map(self.of.holds, value))


Axis = Whole | Real | Choice | Each


@dataclasses.dataclass(frozen=True)
class Space:
    """Problems that differ in some of their fields.

    axes: what is free, by the name of its field in a problem file, ``task.context_length``; problem: the tables of the
    problem file that all share; make: for a model and a loss that no problem file knows, (axis=value, ..) -> (loss,
    start) in place of the problem, each axis then having the name of an argument; shapes: the axes that change the
    shape of an array, by default those of dimensions, loops, layers and heads: what differs in these is compiled apart;
    sized_by: the axis, or the field of the problem, that says how many numbers an `Each` has.

    **Raises:** `ValueError` unless there is either a problem or a function that makes one; where an `Each` has no size.
    """

    axes: Mapping[str, Axis]
    problem: Tables = dataclasses.field(default_factory=dict)
    make: Maker | None = None
    shapes: tuple[str, ...] | None = None
    sized_by: str = "dimension"

    def __post_init__(self):
        if bool(self.problem) == (self.make is not None):
            checks.refuse("a space", "given a problem, or a function that makes one, and not both", "it is not")
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
        """d of the task at values of the axes."""
        known = {**dict(toml.flat(self.problem)), **values}
        return next((int(value) for name, value in known.items() if name.rpartition(".")[2] == self.sized_by), 1)

    def tables(self, values: Values) -> dict[str, Any]:
        """The tables of the problem file at values of the axes; a start has no higher rank than the dimension."""
        tables = copy.deepcopy(dict(self.problem))
        for name, value in values.items():
            toml.assign(tables, name, min(value, self.dimension(values)) if name == "init.rank" else value)
        return tables

    def over(self, axes: Mapping[str, Axis]) -> "Space":
        """The space with other values of some of its axes; a range of one that has a number a dimension is of each."""
        new = {
            name: Each(Real(axis.low, axis.high))
            if isinstance(self.axes.get(name), Each) and isinstance(axis, Whole | Real)
            else axis
            for name, axis in axes.items()
        }
        return dataclasses.replace(self, axes={**self.axes, **new})
