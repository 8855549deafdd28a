"""Documents that hold results: the software behind a result, JSON files, and HTML tables for notebooks."""

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
from types import ModuleType
from typing import Any

import jax
import msgspec
import numpy as np

from flowsim._core import VERSION
from flowsim._core.checks import refuse
from flowsim._core.files import write_whole
from flowsim._core.text import one_line

_PACKAGE = pathlib.Path(__file__).parents[1]
_NO_DIGITS = ("cli", "report")  # rooms that change no number


@functools.cache
def versions() -> dict[str, str]:
    """The versions of flowsim, Python and the packages that the digits of a result depend on, by name."""
    found = {name: importlib.metadata.version(name) for name in ("jax", "equinox", "diffrax", "numpy")}
    return {"flowsim": VERSION, **found, "python": platform.python_version()}


@functools.cache
def software() -> dict[str, str]:
    """Everything that the digits of a result depend on, except the problem, by name.

    These are the versions, a digest of flowsim's modules (which may be edited within a version), and the kind of
    device. Modules of ``cli`` and ``report`` are left out of the digest, since they change no digits.
    """
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        place = path.relative_to(_PACKAGE)
        if place.parts[0] not in _NO_DIGITS:
            digest.update(place.as_posix().encode() + b"\0" + path.read_bytes())
    return {**versions(), "flowsim's modules": digest.hexdigest()[:16], "device": jax.default_backend()}


class ForeignFileError(ValueError):
    """Raised on a file of another computation or of other software. The message names the file."""

    def __init__(self, message: str):
        super().__init__(one_line(message))


def origin(identity: object) -> str:
    """The origin of a result, as JSON text for its file: what was computed, and by which software.

    **Arguments:** identity: what was computed, as a JSON value, or None.
    """
    return json.dumps({"of": identity, "by": software()})


def require_origin(found: object, identity: object, field: str, what: str, path: str | os.PathLike) -> None:
    """Refuse a file unless its origin is the same computation by the same software.

    **Arguments:**

    - found: the origin that the file holds; see `origin`.
    - identity: what is computed now; see `origin`.
    - field: the argument that names the file, for the message.
    - what: the kind of computation, such as "run", for the message.
    - path: the path of the file, for the message.

    **Raises:** `ForeignFileError`
    """
    try:
        document = json.loads(str(found))
    except ValueError:
        document = None
    of, by = (document.get("of"), document.get("by")) if isinstance(document, dict) else (None, None)
    expected, came = f"empty or of this same {what}", f"{path} belongs to another {what}"
    if of == identity:
        by = by if isinstance(by, Mapping) else {}
        name = next((name for name, here in software().items() if by.get(name) != here), None)
        if name is None:
            return
        expected = f"{expected}, computed by the same software"
        came = f"{path} was computed with {name} {by.get(name, '(not known)')}, and here it is {software()[name]}"
    raise ForeignFileError(f"{field} must be {expected}, but {came}: take another folder")


def write_json(path: str | os.PathLike, document: Mapping[str, object]) -> None:
    """Write a strict JSON file, whole or not at all.

    **Raises:** `ValueError` if a number is not finite; `plain` turns such numbers into null.
    """
    text = json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    write_whole(path, lambda file: file.write(text.encode()))


def plain(value: object) -> Any:
    """A value converted to JSON's types.

    Arrays and tuples become lists, enumerations their values, records and mappings objects, non-finite numbers
    null.
    """
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


def extra(name: str) -> ModuleType:
    """Import a package that only ``flowsim[notebook]`` installs, and return it.

    **Raises:** `ProblemError` if it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        refuse(name, "installed (pip install 'flowsim[notebook]')", "it is not")


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """An HTML table. The texts in it are escaped.

    **Arguments:**

    - head: the titles of the columns; empty for a table without a head.
    - rows: the cells of each row.
    - caption: shown above the table if it is not empty.
    """
    line = lambda kind, cells: "<tr>" + "".join(f"<{kind}>{html.escape(cell)}</{kind}>" for cell in cells) + "</tr>"
    parts = [f"<caption>{html.escape(caption)}</caption>" if caption else ""]
    parts += [f"<thead>{line('th', head)}</thead>"] if head else []
    return f"<table>{''.join(parts)}<tbody>{''.join(line('td', row) for row in rows)}</tbody></table>"
