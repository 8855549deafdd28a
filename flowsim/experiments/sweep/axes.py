"""The axes of a sweep: the fields of a problem that vary, and their values."""

import copy
import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from flowsim._core.checks import refuse
from flowsim._core.text import listed
from flowsim._core.types import Tables
from flowsim.problem import AbstractSpec, spec_of, toml

Value = bool | int | float | str | list | dict
_FORMS = "geom:FROM:TO:COUNT, lin:FROM:TO:COUNT, FIRST:LAST or a list such as 5,10,20"
_LARGEST_WHOLE = 2**53
_MOST = 10**6  # values of an axis


@dataclasses.dataclass(frozen=True)
class GridAxis:
    """An axis of a sweep.

    **Fields:** field: the dotted name of a field of a problem file; values: the values of this field.
    """

    field: str
    values: tuple[Value, ...]

    @staticmethod
    def parse(text: str) -> "GridAxis":
        """An axis from a text such as ``init.scale=geom:1e-3:1:31``. Other forms of the values are ``lin:0:1:11``,
        ``2:200`` and ``5,10,20``.

        **Raises:** `ProblemError` in one line.
        """
        field, equals, form = (part.strip() for part in text.partition("="))
        if not (field and equals and form):
            refuse("--over", f"FIELD=VALUES, the values {_FORMS}", f"it is {text!r}")
        return GridAxis.of(field, _parsed(field, form))

    @staticmethod
    def of(field: str, values: Iterable[Any] | str) -> "GridAxis":
        """An axis from a field and its values, which can be given as a text, as in `parse`.

        **Raises:** `ProblemError` if there are no values, if two are equal, or if a problem file cannot hold one.
        """
        if isinstance(values, str):
            return GridAxis.parse(f"{field}={values}")
        if field == "flow.budget_seconds":
            refuse("a sweep", "over fields that change results", f"it is over {field}")
        found = tuple(_plain(value) for value in values)
        if not found:
            refuse(field, "swept over at least one value", "there is none")
        for value in found:
            if not isinstance(value, Value):
                refuse(field, "swept over values of a problem file", f"one is {value!s:.60}")
        for index, value in enumerate(found):
            if value in found[:index]:
                refuse(field, "swept over different values", f"{toml.write_value(value):.60} is there twice")
        return GridAxis(field, found)

    def as_text(self, index: int) -> str:
        """The value with this index on the axis, as an override ``FIELD=VALUE``."""
        value = self.values[index]
        return f"{self.field}={value if isinstance(value, str) else toml.write_value(value)}"


def _parsed(field: str, form: str) -> list[Any]:
    kind, *rest = form.split(":")
    if kind in ("geom", "lin"):
        try:
            low, high, count = rest
            low, high, count = float(low), float(high), int(count)
        except ValueError:
            refuse(field, f"swept over {kind}:FROM:TO:COUNT", f"it is {form!r}")
        if not 1 <= count <= _MOST or not (math.isfinite(low) and math.isfinite(high)):
            refuse(field, f"swept over 1 to {_MOST} values between finite numbers", f"it is {form!r}")
        if kind == "geom" and not (low > 0 and high > 0):
            refuse(field, "swept geometrically between positive numbers", f"it is {form!r}")
        return (np.geomspace if kind == "geom" else np.linspace)(low, high, count).tolist()
    if re.fullmatch(r"[+-]?\d{1,18}:[+-]?\d{1,18}", form):
        first, last = map(int, form.split(":"))
        if not first <= last < first + _MOST:
            refuse(field, f"swept over FIRST:LAST, 1 to {_MOST} values", f"it is {form!r}")
        return list(range(first, last + 1))
    if ":" in form:
        refuse(field, f"swept over {_FORMS}", f"it is {form!r:.60}")
    return [toml.read_value(field, part) for part in listed(form)]


def _plain(value: Any) -> Any:
    """A value as in TOML. A float with an integer value becomes an integer, which fits fields of both types."""
    value = value.tolist() if isinstance(value, np.generic | np.ndarray) else value
    if isinstance(value, float) and value.is_integer() and abs(value) <= _LARGEST_WHOLE:
        return int(value)
    return value


def grid_shape(axes: Iterable[GridAxis]) -> tuple[int, ...]:
    """The number of cells along each axis."""
    return tuple(len(axis.values) for axis in axes)


def specs(tables: Tables, axes: tuple[GridAxis, ...]) -> Iterator[AbstractSpec]:
    """The problems of all cells of a sweep. The last axis varies fastest.

    **Arguments:** tables: the problem that all cells share; axes: the axes of the sweep.

    **Raises:** `ProblemError` in one line that names the field, if a problem is not valid.
    """
    for values in itertools.product(*(axis.values for axis in axes)):
        cell = copy.deepcopy(dict(tables))
        for axis, value in zip(axes, values, strict=True):
            toml.assign(cell, axis.field, value)
        yield spec_of(cell)
