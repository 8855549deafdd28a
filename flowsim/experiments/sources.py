"""What a verdict is computed by: the digests of the source files that it depends on, their comments and docstrings left
out.
"""

import ast
import functools
import hashlib
import inspect
import pathlib
import sys
import tokenize
from collections.abc import Iterable, Iterator
from typing import Any

from flowsim._core.functions import known_by_value
from flowsim.claims import Claim
from flowsim.problem.user_problem import place_of

_PACKAGE = pathlib.Path(__file__).parents[1]
_PAPERS = "flowsim.papers"
# No verdict is computed by these; the papers are counted module by module.
_ASIDE = ("papers", "cli", "report", "experiments/search", "experiments/sweep")


@functools.cache
def core_digest() -> str:
    """The digest of all modules of the package that a verdict can depend on, except the papers'."""
    places = [path.relative_to(_PACKAGE) for path in sorted(_PACKAGE.rglob("*.py"))]
    inside = [place for place in places if not place.as_posix().startswith(tuple(f"{name}/" for name in _ASIDE))]
    return _digest(_PACKAGE / place for place in inside)


def claim_digest(claim: Claim) -> str:
    """The digest of all that states a claim: of its paper or, for one of a user's own, of the files that its functions
    and itself are in, with what they import within their folders. A paper counts as a whole, since a claim's hypotheses
    and sides may come from any of its modules.
    """
    paper = claim.id.partition(".")[0]
    if _file_of(claim.compare) is None and (_PACKAGE / "papers" / paper / "__init__.py").is_file():
        return paper_digest(paper)
    functions = [claim.compare, claim.hypotheses, claim.constants, claim.setting, *(one.make for one in claim.spaces)]
    files = {file for function in functions if (file := _file_of(function)) is not None}
    if (place := place_of(claim)) is not None:
        files.add(pathlib.Path(place.rpartition(":")[0]))
    # What was typed into a notebook is in no file.
    texts = [_closure_digest(file, file.read_bytes()) for file in sorted(files)] or map(_text_of, functions)
    return hashlib.sha256("".join(texts).encode()).hexdigest()


def _text_of(function: Any) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return repr(known_by_value(function))


def _file_of(function: Any) -> pathlib.Path | None:
    """The user's own file that a function is in, or a class of which it is an object."""
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    file = getattr(sys.modules.get(named.__module__), "__file__", None)
    if file is None or named.__module__.startswith("flowsim."):
        return None
    return pathlib.Path(file)


@functools.cache
def paper_digest(paper: str) -> str:
    """The digest of a paper's package and of all that it imports within the papers."""
    return _closure_digest(_PACKAGE / "papers" / paper / "__init__.py", None)


@functools.cache
def _closure_digest(file: pathlib.Path, text: bytes | None) -> str:
    """Of a file with all that it imports; ``text``: what is in one of a user's own, which may be edited meanwhile."""
    # A file of a user's own is no part of a package, and what it imports lies beside it.
    folder = None if text is None else file.parent
    found, left = {file}, [file]
    while left:
        for path in _imported(left.pop(), folder):
            if path not in found:
                found.add(path)
                left.append(path)
    return _digest(sorted(found))


def _imported(file: pathlib.Path, folder: pathlib.Path | None) -> Iterator[pathlib.Path]:
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            # A name may be a module of the package, or something that the package has.
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            if path := _path_of(name, folder):
                yield path


def _path_of(name: str, folder: pathlib.Path | None) -> pathlib.Path | None:
    """The file of a module within the papers, or within a folder."""
    if folder is None:
        if not name.startswith(f"{_PAPERS}."):
            return None
        name, folder = name.removeprefix(f"{_PAPERS}."), _PACKAGE / "papers"
    place = folder.joinpath(*name.split("."))
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


def _digest(files: Iterable[pathlib.Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(_code(path).encode()).digest())
    return digest.hexdigest()


def _code(file: pathlib.Path) -> str:
    """A module without its comments, its docstrings and other strings that are statements, and empty lines."""
    with tokenize.open(file) as stream:
        lines = stream.readlines()
    tokens = list(tokenize.generate_tokens(iter(lines).__next__))
    # Empty lines outside of strings are such tokens, too.
    aside = [token for token in tokens if token.type in (tokenize.COMMENT, tokenize.NL)]
    code = [token for token in tokens if token.type not in (tokenize.COMMENT, tokenize.NL)]
    begins = (True, *(token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT) for token in code))
    strings = [
        token
        for first, token, after in zip(begins, code, code[1:], strict=False)
        if first and token.type == tokenize.STRING and after.type == tokenize.NEWLINE
    ]
    for token in sorted([*aside, *strings], key=lambda token: token.start, reverse=True):
        (row, column), (end_row, end_column) = token.start, token.end
        left = (lines[row - 1][:column] + lines[end_row - 1][end_column:]).rstrip()
        lines[row - 1 : end_row] = [f"{left}\n"] if left else []
    return "".join(lines).rstrip("\n")
