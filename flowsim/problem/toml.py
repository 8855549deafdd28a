"""Reading, overriding and writing typed TOML tables, with errors that name the field."""

import dataclasses
import json
import math
import re
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NoReturn, TypeVar

import msgspec

from flowsim._core import checks
from flowsim._core.checks import ProblemError as ProblemError
from flowsim._core.checks import refuse
from flowsim._core.types import Document, Tables


class AbstractTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A TOML table with typed fields. An optional field that is left out has its default, which is often None."""


# The types of fields. Errors quote their descriptions.
Number = Annotated[float, msgspec.Meta(description="a number")]
Positive = Annotated[float, msgspec.Meta(gt=0, description="a positive number")]
Tolerance = Annotated[float, msgspec.Meta(ge=1e-14, lt=1, description="at least 1e-14 and below 1")]
Nonnegative = Annotated[float, msgspec.Meta(ge=0, description="a number of at least 0")]
Threshold = Annotated[float, msgspec.Meta(ge=0, lt=1, description="at least 0 and below 1")]
Count = Annotated[int, msgspec.Meta(ge=1, description="a whole number of at least 1")]
Length = Annotated[int | float, msgspec.Meta(description="a whole number of at least 1")]
Ratio = Annotated[float, msgspec.Meta(ge=1, description="a number of at least 1")]
Seed = Annotated[int, msgspec.Meta(ge=0, lt=2**32, description="a whole number of at least 0 and below 2^32")]
Word = Annotated[str, msgspec.Meta(description="a word in quotation marks")]
Flag = Annotated[bool, msgspec.Meta(description="true or false")]
Vector = Annotated[tuple[float, ...], msgspec.Meta(description="a list of numbers")]
Matrix = Annotated[tuple[tuple[float, ...], ...], msgspec.Meta(description="a matrix (a list of rows)")]
Matrices = Annotated[
    tuple[tuple[float | tuple[float, ...], ...], ...],
    msgspec.Meta(description="a matrix (a list of rows), or a list of them for a model of several layers or heads"),
]
VectorOrMatrix = Annotated[
    tuple[float | tuple[float, ...], ...],
    msgspec.Meta(description="a list of numbers, or a list of rows for a model of several heads"),
]
NumberOrVector = Annotated[float, msgspec.Meta(description="a number")] | Vector

Table = TypeVar("Table", bound=AbstractTable)
_DEEPEST = 10  # levels of tables and lists


def parse(text: str) -> Document:
    """The tables of a TOML text.

    **Raises:** `ProblemError` if the text is not TOML.
    """
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a ValueError may also come from a number with too many digits
        refuse("the problem", "TOML", f"it is not: {error}")
    _check_depth("the problem", tables)
    return tables


def override(tables: Document, assignment: str) -> None:
    """Set one field of the tables in place by an assignment such as ``init.scale=0.3``.

    A value that is a bare word is read as text, since shells remove quotation marks.

    **Raises:** `ProblemError` if ``assignment`` does not have the form FIELD=VALUE.
    """
    name, equals, text = (part.strip() for part in assignment.partition("="))
    if not (name and equals) or len(f"{assignment}.".splitlines()) > 1:
        refuse("--set", "FIELD=VALUE in one line, such as init.scale=0.3", f"it is {assignment!r:.60}")
    assign(tables, name, read_value(name, text))


def read_value(name: str, text: str) -> Any:
    """The value that a TOML text stands for. A bare word is read as text.

    **Raises:** `ProblemError` naming the field ``name`` if the text is neither a value nor a bare word.
    """
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        if not re.fullmatch(r"[A-Za-z][\w-]*", text):
            refuse(name, "set to a TOML value", f"it is {text!r:.60}")
        return text
    _check_depth(name, value)
    return value


def _check_depth(name: str, value: object) -> None:
    """Refuse a value that is nested deeper than any field may be, so that recursive functions do not overflow.

    **Raises:** `ProblemError` naming the field ``name``.
    """
    layer = [value]
    for _ in range(_DEEPEST):
        layer = [
            part
            for parent in layer
            if isinstance(parent, dict | list)
            for part in (parent.values() if isinstance(parent, dict) else parent)
        ]
    if layer:
        refuse(name, f"nested at most {_DEEPEST - 1} deep", "it is deeper")


def assign(tables: Document, name: str, value: object) -> None:
    """Set the field with a dotted name, such as "init.scale", in place. Missing tables are created.

    **Raises:** `ProblemError` if the name has too many dots, or leads through a field that is not a table.
    """
    *parents, last = name.split(".")
    if len(parents) >= _DEEPEST:
        refuse(f"{name:.60}", "a known field", f"it has {len(parents)} dots")
    for parent in parents:
        tables = tables.setdefault(parent, {})
        if not isinstance(tables, dict):
            refuse(name, "a field of a table", f"{parent} is {write_value(tables):.60}")
    tables[last] = value


def decode(tables: Tables, kind: type[Table]) -> Table:
    """Convert nested mappings to a table of the class ``kind``.

    **Raises:** `ProblemError` in one line that names the field, what was expected and what was found.
    """
    try:
        return msgspec.convert(tables, kind)
    except msgspec.ValidationError as error:
        _explain(str(error), tables, fields(kind))


def write(tables: Tables) -> str:
    """Tables as a TOML text, from which `parse` makes equal tables. Fields with the value None are omitted."""
    given = {name: value for name, value in tables.items() if value is not None}
    parts = {name: value for name, value in given.items() if isinstance(value, Mapping)}
    top = _lines({name: value for name, value in given.items() if name not in parts})
    return "\n".join([*filter(None, [top]), *(f"[{name}]\n{_lines(part)}" for name, part in parts.items())])


def _lines(table: Tables) -> str:
    return "".join(f"{key} = {write_value(value)}\n" for key, value in table.items() if value is not None)


def write_value(value: object) -> str:
    """A value as TOML text. Floats are written in their shortest exact form."""
    if isinstance(value, Mapping):
        return "{" + _fields_in_line(value) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(write_value, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    # TOML and JSON write text the same way, except for one character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") if isinstance(value, str) else str(value)


def write_inline(table: AbstractTable) -> str:
    """The fields of a table in one line, to be read by people."""
    return _fields_in_line(msgspec.to_builtins(table))


def _fields_in_line(table: Tables) -> str:
    return ", ".join(f"{key} = {write_value(value)}" for key, value in table.items() if value is not None)


def flat(tables: Tables, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the value of every field that is not a table."""
    for key, value in tables.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def is_finite(value: object) -> bool:
    """Whether a value, which may be a nested list, contains neither NaN nor infinity."""
    if isinstance(value, list | tuple):
        return all(map(is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


@dataclasses.dataclass(frozen=True)
class Field:
    """The description of a field for messages.

    **Fields:** expected: what its value must be, in words; words: the texts that it accepts, if it accepts only
    some.
    """

    expected: str
    words: tuple[str, ...]


def fields(table: type[AbstractTable], prefix: str = "") -> dict[str, Field]:
    """The descriptions of all fields of a table and of the tables in it, by dotted name.

    **Arguments:** table: the class of the table; prefix: the text before each name, such as "task.".
    """
    found = {}
    for name, hint in typing.get_type_hints(table, include_extras=True).items():
        alternatives = typing.get_args(hint) if _is_union(hint) else (hint,)
        words = [typing.get_args(part) for part in alternatives if typing.get_origin(part) is Literal]
        expected = [_in_words(part) for part in alternatives if part is not types.NoneType]
        found[prefix + name] = Field(_either(expected), sum(words, ()))
        for part in alternatives:
            if isinstance(part, type) and issubclass(part, AbstractTable):
                found |= fields(part, f"{prefix}{name}.")
    return found


def _is_union(hint: object) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _in_words(hint: Any) -> str:
    """A type in words, for a message: its description, the words that it accepts, or the names of its fields."""
    if typing.get_origin(hint) is Annotated:
        return hint.__metadata__[0].description
    if typing.get_origin(hint) is Literal:
        return _either([f'"{word}"' for word in typing.get_args(hint)])
    return f"a table {{{', '.join(hint.__struct_fields__)}}}"


def _either(words: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _explain(message: str, tables: Tables, known: Mapping[str, Field]) -> NoReturn:
    """Raise a `ProblemError` for a message of the decoder, with the field and the known name nearest to it.

    **Arguments:** message: the message of the decoder; tables: the mappings that it refused; known: the
    descriptions of all fields, by dotted name.
    """
    what, _, where = message.partition(" - at `$")
    path = where.strip(".`")
    if word := re.search("field `(.*)`", what):
        name = f"{path}.{word[1]}".lstrip(".")
        if "missing" in what:
            refuse(name, known[name].expected, "it is missing")
        here = [field.rpartition(".")[2] for field in known if field.rpartition(".")[0] == path]
        hint = checks.nearest(word[1], here) or f"; known here: {', '.join(here)}"
        raise ProblemError(f"{name} is not a known field{hint}")
    name, *entries = path.replace("]", "").split("[")
    value: Any = tables
    for key in name.split("."):
        value = value[key]
    for entry in entries:
        value = value[int(entry)]
    hint = checks.nearest(value, known[name].words) if isinstance(value, str) else ""
    refuse(name, known[name].expected, f"{'it holds' if entries else 'it is'} {write_value(value):.60}{hint}")
