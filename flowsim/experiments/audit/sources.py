"""What a verdict is computed by: the digests of the source files that it depends on, their comments and docstrings left
out.
"""

import ast
import functools
import hashlib
import pathlib
import sys
import tokenize
from collections.abc import Iterable, Iterator

from flowsim.claims import Claim

_PACKAGE = pathlib.Path(__file__).parents[2]
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
    """The digest of all that states a claim: of its paper or, for a file of a user's own, of that with what it imports
    within its folder. A paper counts as a whole, since a claim's hypotheses and sides may come from any of its modules.
    """
    paper, module = claim.id.partition(".")[0], claim.compare.__module__
    if (_PACKAGE / "papers" / paper / "__init__.py").is_file():
        return paper_digest(paper)
    file = getattr(sys.modules.get(module), "__file__", None)
    return "" if file is None else _closure_digest(module, pathlib.Path(file))


def paper_digest(paper: str) -> str:
    """The digest of a paper's package and of all that it imports within the papers."""
    name = f"{_PAPERS}.{paper}"
    return _closure_digest(name, _PACKAGE / "papers" / paper / "__init__.py")


@functools.cache
def _closure_digest(module: str, file: pathlib.Path) -> str:
    # A file of a user's own is no part of a package, and what it imports lies beside it.
    folder = None if module.startswith(f"{_PAPERS}.") else file.parent
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
