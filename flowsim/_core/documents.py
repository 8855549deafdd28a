"""JSON documents: what computed a result, its values in plain form, and strict files; and what notebooks show."""

import dataclasses
import enum
import functools
import hashlib
import html
import importlib
import importlib.metadata
import json
import math
import os
import pathlib
import platform
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import msgspec
import numpy as np

from flowsim._core import VERSION
from flowsim._core.checks import refuse
from flowsim._core.files import write_whole
from flowsim._core.lines import one_line

_PACKAGE = pathlib.Path(__file__).parents[1]
_NO_DIGITS = ("cli", "report")  # rooms on which no number depends


@functools.cache
def versions() -> dict[str, str]:
    """The packages that the digits of a result depend on, and Python."""
    found = {name: importlib.metadata.version(name) for name in ("jax", "equinox", "diffrax", "numpy")}
    return {"flowsim": VERSION, **found, "python": platform.python_version()}


@functools.cache
def software() -> dict[str, str]:
    """All that the digits of a result depend on beside its problem: the versions, the text of flowsim's modules, which
    may be edited within a version, and the kind of device.
    """
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        place = path.relative_to(_PACKAGE)
        if place.parts[0] not in _NO_DIGITS:
            digest.update(place.as_posix().encode() + b"\0" + path.read_bytes())
    return {**versions(), "flowsim's modules": digest.hexdigest()[:16], "device": jax.default_backend()}


class ForeignFileError(ValueError):
    """A file of something else, or that other software computed; the message names it."""

    def __init__(self, message: str):
        super().__init__(one_line(message))


def origin(identity: Any) -> str:
    """Where a result is from, for its file, as a text of JSON.

    **Arguments:** identity: of what was computed, as JSON has it; None where nothing tells it.
    """
    return json.dumps({"of": identity, "by": software()})


def require_origin(found: Any, identity: Any, field: str, what: str, path: str | os.PathLike) -> None:
    """Refuse a file whose `origin` is not that of what is computed now.

    **Arguments:** found: what the file says; field: what led to the file, for the message; what: such as "run".

    **Raises:** `ForeignFileError`
    """
    try:
        document = json.loads(str(found))
    except ValueError:
        document = None
    of, by = (document.get("of"), document.get("by")) if isinstance(document, dict) else (None, None)
    expected, came = f"empty or of this same {what}", f"{path} is of another"
    if of == identity:
        by = by if isinstance(by, Mapping) else {}
        name = next((name for name, here in software().items() if by.get(name) != here), None)
        if name is None:
            return
        expected = f"{expected}, computed by the same software"
        came = f"{path} was computed with {name} {by.get(name, '(not known)')}, and here it is {software()[name]}"
    raise ForeignFileError(f"{field} must be {expected}, but {came}: take another folder")


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
