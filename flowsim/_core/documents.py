"""JSON documents: what computed a result, its values in plain form, and strict files; and what notebooks show."""

import dataclasses
import enum
import functools
import html
import importlib
import importlib.metadata
import json
import math
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import msgspec
import numpy as np

from flowsim._core import VERSION
from flowsim._core.checks import refuse
from flowsim._core.files import write_whole


@functools.cache
def versions() -> dict[str, str]:
    """What computed a result: the packages that its digits depend on, and Python."""
    found = {name: importlib.metadata.version(name) for name in ("jax", "equinox", "diffrax", "numpy")}
    return {"flowsim": VERSION, **found, "python": platform.python_version()}


def write_json(path: str | os.PathLike, document: Mapping[str, Any]) -> None:
    """Write strict JSON, whole or not at all.

    **Raises:** `ValueError` where a number is not finite; `plain` makes it null.
    """
    text = json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    write_whole(path, lambda file: file.write(text.encode()))


def plain(value: Any) -> Any:
    """The value as JSON holds it: arrays and tuples as lists, enumerations as their values, non-finite numbers null."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, msgspec.Struct):
        return plain(msgspec.to_builtins(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return plain(np.asarray(value).tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def extra(name: str) -> Any:
    """A package of the extra, imported.

    **Raises:** `ProblemError` where it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        refuse(name, "installed (pip install 'flowsim[notebook]')", "it is not")


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """A table, its texts escaped.

    **Arguments:** head: of the columns; empty for none.
    """
    line = lambda kind, cells: "<tr>" + "".join(f"<{kind}>{html.escape(cell)}</{kind}>" for cell in cells) + "</tr>"
    parts = [f"<caption>{html.escape(caption)}</caption>" if caption else ""]
    parts += [f"<thead>{line('th', head)}</thead>"] if head else []
    return f"<table>{''.join(parts)}<tbody>{''.join(line('td', row) for row in rows)}</tbody></table>"
