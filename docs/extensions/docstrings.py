"""Docstrings of the package, which are Markdown with bold heads, as the reStructuredText that autodoc reads.

``**Arguments:** loss: the population loss; model: the start.`` becomes a list of fields, ``**Raises:**`` another one,
and names of flowsim in backticks become links.
"""

import inspect
import re
from typing import Any

from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

import flowsim

_ALIASES = {  # autodoc sees unions where the source has their names
    r"~?(?:jax\.)?jaxlib\._jax\.Array": "Array",
    r"Array \| ~numpy\.ndarray \| ~numpy\.bool \| ~numpy\.number \| bool \| int \| float \| complex": "ArrayLike",
    r"~jaxtyping\.Key\[Array, ''\]( \| ~jaxtyping\.UInt32\[Array, '\d'\])+": "Key",
    r"~jaxtyping\.": "",
}
_HEAD = re.compile(r"\*\*(\w+):\*\* ?")
_CODE = re.compile(r"(``.+?``|`[^`]+`)", re.DOTALL)
_PUBLIC = set(dir(flowsim))


def _converted(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    paragraphs = re.split(r"\n\s*\n", "\n".join(lines).strip())
    lines[:] = "\n\n".join(_paragraph(text, obj) for text in paragraphs).split("\n") + [""]


def _named(app: Sphinx, what: str, name: str, obj: Any, options: Any, *signature: str | None) -> tuple[str | None, ...]:
    return tuple(text and _with_aliases(text) for text in signature)


def _with_aliases(text: str) -> str:
    for union, alias in _ALIASES.items():
        text = re.sub(union, alias, text)
    return text


def _paragraph(text: str, obj: Any) -> str:
    head = _HEAD.match(text)
    if head is None:
        return _prose(text)
    kind, rest = head[1], " ".join(text[head.end() :].split())
    if kind == "Arguments":
        return "\n".join(f":param {name}: {_prose(about)}" for name, about in _arguments(rest, obj))
    if kind == "Raises":
        error, _, when = rest.partition(" ")
        return f":raises {error.strip('`')}: {_prose(when)}"
    if kind in ("Returns", "Yields"):
        return f":returns: {_prose(rest)}"
    return f"**{kind}:** {_prose(rest)}"


def _arguments(text: str, obj: Any) -> list[tuple[str, str]]:
    """What is said of each argument: a name, or several, begins anew where the signature knows it."""
    try:
        known = [name for name in inspect.signature(obj).parameters if name != "self"]
    except (TypeError, ValueError):
        known = []
    name = "|".join(map(re.escape, known)) or r"\w+"
    starts = list(re.finditer(rf"(?:^|(?<=[;.] ))\**((?:{name})(?:, \**(?:{name}))*): ", text))
    if not starts:
        return [("", text)]
    ends = [start.start() for start in starts[1:]] + [len(text)]
    return [(start[1], text[start.end() : end].strip(" ;.") + ".") for start, end in zip(starts, ends, strict=True)]


def _prose(text: str) -> str:
    """Prose, of which only code in backticks means anything to reStructuredText."""
    parts = []
    for place, part in enumerate(_CODE.split(text)):
        parts.append(_literal(part.strip("`")) if place % 2 else _escaped(part))
    return "".join(parts)


def _escaped(text: str) -> str:
    return re.sub(r"([\\*|_`])", r"\\\1", text)


def _literal(code: str) -> str:
    """Code, or a link where it is a public name; set off, as markup may not touch letters."""
    name = code.removeprefix("flowsim.").removesuffix("(..)").removesuffix("()")
    return rf"\ :py:obj:`~flowsim.{name}`\ " if name in _PUBLIC else rf"\ ``{code}``\ "


def setup(app: Sphinx) -> ExtensionMetadata:
    """Convert what autodoc reads."""
    app.connect("autodoc-process-docstring", _converted)
    app.connect("autodoc-process-signature", _named)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
