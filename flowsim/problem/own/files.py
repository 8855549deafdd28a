"""Loading users' Python files.

A file is identified by a digest of its content and of the user's files that it imports and reads. It is executed
once for each digest.
"""

import ast
import contextlib
import functools
import hashlib
import importlib.machinery
import inspect
import os
import pathlib
import re
import sys
import sysconfig
import traceback
import types
from collections.abc import Callable, Iterator, Mapping

from flowsim._core.checks import ProblemError, refuse
from flowsim._core.files import bytes_of
from flowsim._core.text import in_short
from flowsim.problem.base import Kind
from flowsim.problem.own import reading

Texts = Mapping[pathlib.Path, bytes]

_FORM = re.compile(r"(.+\.py):(\w+)$")
_STDLIB = pathlib.Path(sysconfig.get_path("stdlib"))
_MODULES: dict[tuple[str, str], types.ModuleType] = {}  # by path and digest, so that a file defines a class once
_EXECUTED: dict[str, Texts] = {}  # the files of modules that were executed here, by the name of the module
_IMPORTED: dict[pathlib.Path, bytes] = {}  # the content of files when a file that was executed here imported them


def is_place(text: str) -> bool:
    """Whether a text has the form FILE.py:NAME."""
    return _FORM.fullmatch(text) is not None


def split(place: str) -> tuple[str, str]:
    """FILE.py and NAME of a place FILE.py:NAME."""
    file, _, name = place.rpartition(":")
    return file, name


def find_own(place: str, kind: type[Kind]) -> Kind:
    """The object at a place FILE.py:NAME, which must be an instance of ``kind``. The file is executed if necessary.

    **Raises:** `ProblemError` if the file cannot be executed, or has no instance of ``kind`` with this name.
    """
    file, name = split(place)
    module, _ = module_of(os.path.abspath(file))
    found = getattr(module, name, None)
    if not isinstance(found, kind):
        known = [key for key, value in vars(module).items() if isinstance(value, kind)]
        refuse(f"{file}:NAME", f"the name of a {kind.__name__} there ({', '.join(known)})", f'it is "{name}"')
    return found


def own_objects(file: str, kind: type[Kind]) -> list[Kind]:
    """The global objects of a Python file that are instances of ``kind``, without duplicates."""
    return objects_of(module_of(os.path.abspath(file))[0], kind)


def objects_of(module: types.ModuleType, kind: type[Kind]) -> list[Kind]:
    """The global objects of a module that are instances of ``kind``, without duplicates."""
    return list({id(value): value for value in vars(module).values() if isinstance(value, kind)}.values())


def home_of(thing: object) -> tuple[types.ModuleType, str] | None:
    """The module and the name of an object that is global in a loaded Python file, or None for other objects."""
    for module in list(sys.modules.values()):
        names = vars(module) if isinstance(module, types.ModuleType) else {}
        file = names.get("__file__")
        if isinstance(file, str) and file.endswith(".py"):
            for name, value in list(names.items()):
                if value is thing:
                    return module, name
    return None


def place_of(function: Callable[..., object]) -> tuple[str, str]:
    """The place FILE.py:NAME of a function, and the digest under which `module_at` finds its module from then on.

    **Raises:** `ProblemError` if the function is not at the top level of a Python file, or the file has changed.
    """
    module, name = sys.modules.get(function.__module__), getattr(function, "__name__", "")
    file = getattr(module, "__file__", None)
    if module is None or file is None or getattr(module, name, None) is not function:
        refuse("make", "a function at the top level of a Python file", f"it is {function!r:.60}")
    path = os.path.abspath(file)
    digest = digest_of(texts_of(module))
    _MODULES.setdefault((path, digest), module)
    return f"{path}:{name}", digest


def module_at(path: str, digest: str) -> types.ModuleType | None:
    """The loaded module of a file with this digest, or None."""
    return _MODULES.get((path, digest))


def module_of(path: str) -> tuple[types.ModuleType, str]:
    """The module of a file with its current content, and the digest. The file is executed once for each digest.

    While the file is executed, it can import from its folder. The digest also covers the user's files that it
    imports, and those that it reads while it is executed.

    **Raises:** `ProblemError` if the file cannot be read or executed.
    """
    sources = _read(path)
    texts = _with_data(sources)
    digest = digest_of(texts)
    if (path, digest) in _MODULES:
        return _MODULES[path, digest], digest
    main, *others = texts
    _forget_if_changed({other: texts[other] for other in others})
    module = types.ModuleType(f"{main.stem}_{hashlib.sha256(f'{path} {digest}'.encode()).hexdigest()}")
    module.__file__ = path
    sys.modules[module.__name__] = module  # dataclasses look for it there
    sys.path.insert(0, os.path.dirname(path))
    # Python would use outdated bytecode for a file that was edited twice within a second.
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    reading.forget(main)
    try:
        with blaming(path, path, "a Python file that can be executed"), reading.watched():
            exec(compile(texts[main], path, "exec", dont_inherit=True), vars(module))
    except ProblemError:
        sys.modules.pop(module.__name__, None)
        raise
    finally:
        sys.dont_write_bytecode = writes
        # The file may have removed the folder itself.
        with contextlib.suppress(ValueError, AttributeError):
            sys.path.remove(os.path.dirname(path))
    texts = _with_data(sources)
    digest = digest_of(texts)
    _EXECUTED[module.__name__] = texts
    _IMPORTED.update((other, texts[other]) for other in texts if other != main)
    return _MODULES.setdefault((path, digest), module), digest


def texts_of(module: types.ModuleType) -> Texts:
    """The contents that a module's file, and the user's files that it imports and reads, had when they were
    executed.

    **Raises:** `ProblemError` if one of the files has detectably changed since then.
    """
    if module.__name__ in _EXECUTED:
        return _EXECUTED[module.__name__]
    texts = _read(os.path.abspath(str(module.__file__)))
    _refuse_changed(module, texts[next(iter(texts))])
    for path, text in texts.items():
        for other in _modules_in(path):
            if other.__name__ not in _EXECUTED:
                _refuse_changed(other, text)
    return texts


def digest_of(texts: Texts) -> str:
    """The SHA-256 digest of the contents of files, and of the names of all files except the first.

    For a single file it is the digest of its bytes.
    """
    (_, text), *others = texts.items()
    digest = hashlib.sha256(text)
    for path, other in others:
        digest.update(f"\0{path.name}\0".encode() + hashlib.sha256(other).digest())
    return digest.hexdigest()


@contextlib.contextmanager
def blaming(path: str, name: str, expected: str) -> Iterator[None]:
    """A context that turns an error from a user's file into a `ProblemError`.

    The message names the last line of the file in the traceback.

    **Arguments:** path: the file; name, expected: the subject of the message, and what it must be.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        lines = _lines_of(error, path)
        where = f"line {lines[-1]} raises" if lines else "it raises"
        raise ProblemError(f"{name} must be {expected}, but {where} {in_short(error)}") from error


def own_line(error: BaseException) -> str | None:
    """The last line of a user's file in the traceback of an error or of its cause, as text, or None."""
    files = {str(path) for texts in _EXECUTED.values() for path in texts}
    frames = [frame for one in (error, error.__cause__) if one for frame in traceback.extract_tb(one.__traceback__)]
    own = [frame for frame in frames if frame.filename in files]
    return f"line {own[-1].lineno} of {own[-1].filename}" if own else None


def _lines_of(error: BaseException, path: str) -> list[int]:
    """The numbers of the lines of a file in the traceback of an error."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    if isinstance(error, SyntaxError) and error.filename == path:
        lines.append(error.lineno)
    return [line for line in lines if line is not None]


def _read(path: str) -> dict[pathlib.Path, bytes]:
    """The current content of a file, followed by the current contents of the user's files that it imports.

    **Raises:** `ProblemError` if the file cannot be read.
    """
    file = pathlib.Path(path)
    try:
        found = {file: bytes_of(file)}
    except (OSError, ValueError) as error:  # a ValueError comes from a text that cannot be a path
        refuse(path, "a Python file that can be read", f"reading it fails: {getattr(error, 'strerror', error)}")
    given = [pathlib.Path(os.path.abspath(place)) for place in sys.path or () if isinstance(place, str)]
    folders = [file.parent, *filter(_is_own, given)]
    left = [file]
    while left:
        for other in _imported(left.pop(), found, folders):
            # A file that cannot be read cannot be imported either.
            with contextlib.suppress(OSError):
                found[other] = bytes_of(other)
                left.append(other)
    first, *others = found
    return {name: found[name] for name in (first, *sorted(others, key=lambda path: (path.name, path)))}


def _with_data(sources: Texts) -> dict[pathlib.Path, bytes]:
    """The given files, followed by the current contents of the files that their code has read; see `reading`."""
    found = {**sources}
    for path in sorted(set[pathlib.Path]().union(*map(reading.read_by, sources)), key=lambda path: (path.name, path)):
        # A file that was removed changes the digest, too.
        with contextlib.suppress(OSError):
            if path not in found:
                found[path] = bytes_of(path)
    return found


def _is_own(folder: pathlib.Path) -> bool:
    return not ({"site-packages", "dist-packages"} & {*folder.parts} or _STDLIB in (folder, *folder.parents))


def _imported(file: pathlib.Path, found: Texts, folders: list[pathlib.Path]) -> Iterator[pathlib.Path]:
    """Yield the files that a file imports and that are not in ``found``, from the given folders."""
    for level, name in _names_in(found[file]):
        within, parts = [file.parents[level - 1]] if 0 < level <= len(file.parents) else folders, name.split(".")
        for length in range(1, len(parts) + 1):
            places = (folder.joinpath(*parts[:length]) for folder in within)
            files = (path for place in places for path in (place / "__init__.py", place.with_name(f"{place.name}.py")))
            path = next((path for path in files if path.is_file()), None)
            if path is not None and path not in found:
                yield path


@functools.lru_cache(maxsize=256)
def _names_in(text: bytes) -> tuple[tuple[int, str], ...]:
    """The dotted names that a file imports, each with the number of leading dots of a relative import.

    A name may stand for a module, or for an object in a module. Imports of flowsim are left out.
    """
    found = []
    # Text that is not Python is refused when it is executed.
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                found += [(0, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = [node.module] if node.module else []
                found += [(node.level, ".".join([*base, alias.name])) for alias in node.names]
    return tuple((level, name) for level, name in found if level or name.partition(".")[0] != "flowsim")


def _modules_in(path: pathlib.Path) -> list[types.ModuleType]:
    """The loaded modules that Python has imported from a file."""
    return [
        module
        for module in list(sys.modules.values())
        if isinstance(module, types.ModuleType) and vars(module).get("__file__") == str(path)
    ]


def _forget_if_changed(texts: Texts) -> None:
    """Remove the modules of files from ``sys.modules`` if one file has changed, so that all are imported again.

    **Raises:** `ProblemError` if a changed file was not imported by a user's file but by other code.
    """
    changed = any(_IMPORTED.get(path, text) != text for path, text in texts.items())
    for path, text in texts.items():
        for module in _modules_in(path):
            if path not in _IMPORTED:
                _refuse_changed(module, text)
            elif changed:
                del sys.modules[module.__name__]


def _refuse_changed(module: types.ModuleType, text: bytes) -> None:
    """Refuse a module whose functions or constants differ from those in ``text``, the current content of its file.

    Other changes are not detected.

    **Raises:** `ProblemError` naming the file and the first difference.
    """
    # Other loaders may change the code of a file.
    if type(module.__spec__ and module.__spec__.loader) not in (importlib.machinery.SourceFileLoader, type(None)):
        return
    path = os.path.abspath(str(module.__file__))
    with blaming(path, path, "a Python file as it was when it was imported"):
        tree, code = ast.parse(text), compile(text, path, "exec", dont_inherit=True)
    known, functions = set(_codes(code)), [*filter(inspect.isfunction, vars(module).values())]
    changed = [one.__name__ for one in functions if one.__code__.co_filename == path and one.__code__ not in known]
    changed += [name for name, value in _constants(tree) if repr(vars(module).get(name, value)) != repr(value)]
    if changed:
        refuse(path, "as it was when it was imported", f"{changed[0]} is another now: import it again")


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _codes(part)


def _constants(tree: ast.Module) -> Iterator[tuple[str, object]]:
    """Yield the names that a file assigns exactly once, at its top level, to a constant, each with the constant."""
    stored = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant | ast.UnaryOp):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name) and stored.count(target.id) == 1:
                    with contextlib.suppress(ValueError):
                        yield target.id, ast.literal_eval(node.value)
