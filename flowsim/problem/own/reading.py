"""A record of the data files that users' Python files read while they are executed."""

import contextlib
import functools
import importlib.util
import os
import pathlib
import sys
import sysconfig
from collections.abc import Iterator
from types import FrameType

import jax

_PACKAGE = str(pathlib.Path(__file__).parents[2])
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_OF_THE_SYSTEM = ("/proc", "/sys", "/dev", "/etc")
_READ: dict[pathlib.Path, set[pathlib.Path]] = {}  # by the file whose code was at work
_watched = 0  # files that are executed at present


def read_by(path: pathlib.Path) -> set[pathlib.Path]:
    """The user's files that a Python file has read while it was executed, itself or through code that it called."""
    return _READ.get(path, set())


def forget(path: pathlib.Path) -> None:
    """Delete the record of a file before it is executed again."""
    _READ.pop(path, None)


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """A context that records the user's files which are opened for reading inside it."""
    global _watched
    _install()
    _watched += 1
    try:
        yield
    finally:
        _watched -= 1


@functools.cache
def _install() -> None:
    # Once, since Python has no way to remove it.
    sys.addaudithook(_note)


def _note(event: str, arguments: tuple) -> None:
    if not _watched or event != "open":
        return
    # An error in here would become one of the user's file.
    with contextlib.suppress(Exception):
        opened, mode, flags = arguments
        reads = any(letter in mode for letter in "r+") if isinstance(mode, str) else not flags & os.O_WRONLY
        path = _own(os.path.abspath(os.fsdecode(opened))) if reads and not isinstance(opened, int) else None
        if path is None:
            return
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            reader = frame.f_code.co_filename
            if reader.endswith(".py") and not _of_library(reader):
                _READ.setdefault(pathlib.Path(os.path.abspath(reader)), set()).add(path)
            frame = frame.f_back


def _own(name: str) -> pathlib.Path | None:
    """The path of a file if it is a user's file, else None. For bytecode it is the path of the source.

    Files of libraries, of the system and of JAX's compilation cache do not count, nor do files in hidden folders,
    where programs keep caches.
    """
    with contextlib.suppress(ValueError, NotImplementedError):  # from a file that is not bytecode
        name = importlib.util.source_from_cache(name)
    path, compiled = pathlib.Path(name), jax.config.values["jax_compilation_cache_dir"]
    if compiled and pathlib.Path(compiled) in path.parents:
        return None
    if _of_library(name) or name.startswith(_OF_THE_SYSTEM) or any(part.startswith(".") for part in path.parent.parts):
        return None
    return path


def _of_library(name: str) -> bool:
    inside = any(name.startswith(f"{folder}{os.sep}") for folder in (_PACKAGE, *_LIBRARIES))
    return inside or bool({"site-packages", "dist-packages"} & {*pathlib.Path(name).parts})
