"""Digests of the source files that a verdict depends on, without comments and docstrings."""

import ast
import contextlib
import functools
import hashlib
import inspect
import io
import pathlib
import sys
import tokenize
import types
from collections.abc import Callable, Iterable, Iterator

from flowsim import papers
from flowsim._core.functions import values_as_text
from flowsim.claims import Claim
from flowsim.claims.declaring import Section
from flowsim.problem.own.files import Texts, home_of, texts_of

_PACKAGE = pathlib.Path(__file__).parents[1]
_PAPERS = "flowsim.papers"
# No verdict depends on these. Papers have a digest for each.
_EXCLUDED = ("papers", "cli", "report", "experiments/search", "experiments/sweep")


@functools.cache
def core_digest() -> str:
    """The digest of all modules of the package on which a verdict can depend, except the modules of papers."""
    places = [path.relative_to(_PACKAGE) for path in sorted(_PACKAGE.rglob("*.py"))]
    inside = [place for place in places if not place.as_posix().startswith(tuple(f"{name}/" for name in _EXCLUDED))]
    return _digest({_PACKAGE / place: (_PACKAGE / place).read_bytes() for place in inside})


def claim_digest(claim: Claim) -> str:
    """The digest of all sources that state a claim.

    For a claim of a paper, these are all modules of the paper, since hypotheses and sides may come from any of
    them, and the claim's statement and note. For a user's claim, they are the files of its functions and all files
    that these import and read, as they were when they were executed, and the values that the functions use.
    """
    if _is_of_a_paper(claim):
        said = f"{claim.statement}\0{claim.note}"  # docstrings, which the digest of a paper leaves out
        return hashlib.sha256(f"{paper_digest(claim.id.partition('.')[0])}\0{said}".encode()).hexdigest()
    functions = [claim.compare, claim.hypotheses, claim.constants, claim.setting, *(one.make for one in claim.spaces)]
    modules = [module for function in functions if (module := _module_of(function)) is not None]
    if (home := home_of(claim)) is not None:
        modules.append(home[0])
    texts = {path: text for module in modules for path, text in texts_of(module).items()}
    # A function that was typed into a notebook has no file. One of a file may use what the file got from elsewhere.
    parts = [_digest(texts), *map(values_as_text, functions)] if texts else map(_text_of, functions)
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def statement_digest(claim: Claim) -> str:
    """The digest of the modules that state a claim. It covers fewer modules than `claim_digest`.

    For a claim of a paper, these are the modules that declare the claim and all that they import from
    ``flowsim.papers``, and the statement. Hence a result about one section of a paper stays valid when another
    section changes. For a user's claim, this is `claim_digest`.
    """
    if not _is_of_a_paper(claim):
        return claim_digest(claim)
    prefix, files = f"{_PAPERS}.{claim.id.partition('.')[0]}.", []
    for name, module in sorted(sys.modules.items()):
        declared = (one for part in vars(module).values() if isinstance(part, Section) for one in part.claims)
        if name.startswith(prefix) and any(one is claim for one in declared):
            files.append(pathlib.Path(str(module.__file__)))
    return hashlib.sha256(f"{_reached_digest(tuple(files))}\0{claim.statement}".encode()).hexdigest()


def _is_of_a_paper(claim: Claim) -> bool:
    return any(claim is one for one in papers.ALL_CLAIMS)


def _text_of(function: Callable) -> str:
    """The source of a function that is not in a file, followed by all values that it uses."""
    source = ""
    with contextlib.suppress(OSError, TypeError):
        source = inspect.getsource(function)
    return source + values_as_text(function, code=True)


def _module_of(function: object) -> types.ModuleType | None:
    """The module of a user's file that defines a function, or that defines the class of a callable object. None if
    the module has no file or belongs to flowsim.
    """
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    module = sys.modules.get(named.__module__)
    if getattr(module, "__file__", None) is None or named.__module__.startswith("flowsim."):
        return None
    return module


def paper_digest(paper: str) -> str:
    """The digest of a paper's package and of all modules that it imports from ``flowsim.papers``."""
    return _reached_digest((_PACKAGE / "papers" / paper / "__init__.py",))


@functools.cache
def _reached_digest(files: tuple[pathlib.Path, ...]) -> str:
    return _digest(_reached(files))


def _reached(files: Iterable[pathlib.Path]) -> Texts:
    """The texts of some modules and of all modules that they import from ``flowsim.papers``, directly or
    indirectly, by path.
    """
    found = {file: file.read_bytes() for file in files}
    left = [*found]
    while left:
        for path in _imported(found[left.pop()]):
            if path not in found:
                found[path] = path.read_bytes()
                left.append(path)
    return found


def _imported(text: bytes) -> Iterator[pathlib.Path]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            # A name may be a module of the package, or an object in it.
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
            names = modules if all(map(_path_of, modules)) else [node.module, *modules]
        else:
            continue
        for name in names:
            if path := _path_of(name):
                yield path


def _path_of(name: str) -> pathlib.Path | None:
    """The path of a module in ``flowsim.papers``, or None for any other name."""
    if not name.startswith(f"{_PAPERS}."):
        return None
    place = (_PACKAGE / "papers").joinpath(*name.removeprefix(f"{_PAPERS}.").split("."))
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


def _digest(texts: Texts) -> str:
    digest = hashlib.sha256()
    for path in sorted(texts):
        text = _code(texts[path]).encode() if path.suffix == ".py" else texts[path]
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(text).digest())
    return digest.hexdigest()


def _code(text: bytes) -> str:
    """The source of a module without comments, docstrings, other strings that are statements, and empty lines."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(text).readline)
    lines = io.TextIOWrapper(io.BytesIO(text), encoding).readlines()
    tokens = list(tokenize.generate_tokens(iter(lines).__next__))
    # Empty lines outside of strings are NL tokens.
    left_out = [token for token in tokens if token.type in (tokenize.COMMENT, tokenize.NL)]
    code = [token for token in tokens if token.type not in (tokenize.COMMENT, tokenize.NL)]
    begins = (True, *(token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT) for token in code))
    strings = [
        token
        for first, token, after in zip(begins, code, code[1:], strict=False)
        if first and token.type == tokenize.STRING and after.type == tokenize.NEWLINE
    ]
    for token in sorted([*left_out, *strings], key=lambda token: token.start, reverse=True):
        (row, column), (end_row, end_column) = token.start, token.end
        left = (lines[row - 1][:column] + lines[end_row - 1][end_column:]).rstrip()
        lines[row - 1 : end_row] = [f"{left}\n"] if left else []
    return "".join(lines).rstrip("\n")
