"""Files that are written whole or not at all, and refused if they were changed afterwards."""

import contextlib
import errno
import hashlib
import io
import json
import os
import pathlib
import platform
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import IO

import numpy as np
from jaxtyping import ArrayLike

from flowsim._core.checks import refuse
from flowsim._core.text import in_short, one_line
from flowsim._core.types import Document

try:
    import fcntl
except ImportError:  # Windows has no fcntl
    fcntl = None

_SEAL = "sha256"
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # errors of a disk without locks


class DamagedFileError(ValueError):
    """Raised on a file that was changed after it was written, or that flowsim did not write.

    The message names the file.
    """

    def __init__(self, message: str):
        super().__init__(one_line(message))


class DamagedFileWarning(UserWarning):
    """Warns that a damaged file was ignored."""


def read_arrays(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """All arrays of an npz file that `write_arrays` wrote, by name.

    **Raises:** `DamagedFileError`, even if a single digit was changed; `OSError` if the disk cannot read the file.
    """
    content = bytes_of(path)
    found = {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise zipfile.BadZipFile("its arrays are compressed, and flowsim never compresses")
            entries = {entry: archive.read(entry) for entry in archive.namelist()}
            # A file of another program has no checksum.
            if archive.comment != _seal_of(entries):
                raise zipfile.BadZipFile("its checksum does not match its content")
            for entry, array in entries.items():
                found[entry.removesuffix(".npy")] = np.lib.format.read_array(io.BytesIO(array), allow_pickle=False)
    except Exception as error:  # zipfile, zlib and NumPy may raise anything on a wrong byte
        raise DamagedFileError(f"{path} is damaged or was not written by flowsim ({in_short(error):.100})") from None
    return found


def write_arrays(path: str | os.PathLike, arrays: Mapping[str, ArrayLike]) -> None:
    """Write arrays by name to an npz file, whole or not at all. Arrays that would need pickle are refused."""
    write_whole(path, lambda file: pack_arrays(file, arrays))


def pack_arrays(file: IO[bytes], arrays: Mapping[str, ArrayLike]) -> None:
    """Write an npz archive with a digest of its arrays. Unlike `numpy.savez`, it allows any name for an array."""
    entries = {}
    for name, array in arrays.items():
        entry = io.BytesIO()
        np.lib.format.write_array(entry, np.asarray(array), allow_pickle=False)
        entries[f"{name}.npy"] = entry.getbuffer()
    with zipfile.ZipFile(file, "w") as archive:
        archive.comment = _seal_of(entries)
        for name, entry in entries.items():
            with archive.open(name, "w", force_zip64=True) as stream:
                stream.write(entry)


def _seal_of(entries: Mapping[str, bytes | memoryview]) -> bytes:
    digest = hashlib.sha256()
    for name, entry in entries.items():
        digest.update(f"{name}\0{len(entry)}\0".encode())
        digest.update(entry)
    return f"{_SEAL} {digest.hexdigest()}".encode()


def bytes_of(path: str | os.PathLike) -> bytes:
    """The content of a file.

    **Raises:** `OSError` on a pipe or a device, where reading could wait forever.
    """
    path = pathlib.Path(path)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "not a file, but a pipe or a device", str(path))
    return path.read_bytes()


def read_document(path: str | os.PathLike) -> Document:
    """The object of a JSON file.

    **Raises:** `DamagedFileError` if the file is not JSON or holds no object; `OSError` if the disk cannot read it.
    """
    content = bytes_of(path)
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} is damaged or was not written by flowsim ({in_short(error):.100})") from None
    if not isinstance(document, dict):
        raise DamagedFileError(f"{path} is damaged or was not written by flowsim (it holds no JSON object)")
    return document


def read_sealed(path: str | os.PathLike) -> Document:
    """The object of a JSON file that `write_sealed` wrote.

    **Raises:** `DamagedFileError`, even if a single digit was changed; `OSError` if the disk cannot read the file.
    """
    document = read_document(path)
    if document.pop(_SEAL, None) != _digest(document):
        raise DamagedFileError(
            f"{path} is damaged or was not written by flowsim (its checksum does not match its content)"
        )
    return document


def write_sealed(path: str | os.PathLike, document: Document) -> None:
    """Write a JSON object with a digest of itself, whole or not at all."""
    # Without indentation, which would make writing much slower.
    text = json.dumps(document | {_SEAL: _digest(document)})
    write_whole(path, lambda file: file.write(text.encode()))


def _digest(document: Document) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def write_whole(path: str | os.PathLike, write: Callable[[IO[bytes]], object]) -> None:
    """Replace a file as a whole: write a temporary file in the same folder, flush it to the disk, rename it.

    **Raises:** `OSError` if a folder, a device or a pipe is there, which a file would replace.
    """
    path = pathlib.Path(path)
    _require_no_other(path)
    temporary = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _require_no_other(path: pathlib.Path) -> None:
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "a folder is there", str(path))
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "a device or a pipe is there", str(path))


def refuse_taken(field: str, *paths: str | os.PathLike) -> None:
    """Refuse paths to which no file can be written, before the work whose results the files will hold.

    A path is refused if a folder, a device or a pipe is there, or if the folder that should contain it is a file.

    **Arguments:** field: the argument that gives the paths, for the message.

    **Raises:** `ProblemError`
    """
    for path in map(pathlib.Path, paths):
        try:
            _require_no_other(path)
            if path.parent.exists() and not path.parent.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, "its folder is a file")
        except OSError as error:
            refuse(field, "where files can be written", f"{path}: {error.strerror}")


def remove_parts_of_the_dead(folder: str | os.PathLike) -> None:
    """Remove the temporary files of `write_whole` that killed processes of this machine left in a folder.

    Files of running processes are kept.
    """
    for path in pathlib.Path(folder).glob(f".*.{platform.node()}.*.part"):
        *_, process, _ = path.name.split(".")
        try:
            os.kill(int(process), 0)
        except ProcessLookupError:
            path.unlink(missing_ok=True)
        except (ValueError, OSError):  # not a file of `write_whole`, or a process of another user
            continue


@contextlib.contextmanager
def held(folder: str | os.PathLike, *, shared: bool = False) -> Iterator[bool]:
    """A context that locks a folder for this process. Its value is False if another process holds the lock.

    The lock ends with the context, or with the process even if the process is killed. On a disk without locks the
    value is always True.

    **Arguments:** shared: whether other processes that pass ``shared``, too, may hold the lock at the same time.
    """
    if fcntl is None:
        yield True
        return
    path, kind = pathlib.Path(folder) / ".lock", fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    while True:
        # O_NONBLOCK, because opening a pipe of this name would wait for its other end.
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o666)
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES, *_NO_LOCKS):
                raise
            yield error.errno in _NO_LOCKS
            return
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), path.stat()):
                break
        # Between open and flock another process ended and removed this file: try again.
        os.close(lock)
    try:
        yield True
    finally:
        # A shared file stays: other processes may still hold it, and later ones must see their lock.
        if not shared:
            path.unlink(missing_ok=True)
        os.close(lock)


@contextlib.contextmanager
def folder_of(out: str | os.PathLike) -> Iterator[None]:
    """A context in which errors of writing to a folder become a `ProblemError`, except the error of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        refuse("--out", "a folder that can be written to", f"{out}: {error.strerror}")


@contextlib.contextmanager
def at_work_in(folder: str | os.PathLike, what: str, *, shared: bool = False) -> Iterator[None]:
    """A context that makes a folder and locks it as `held` does.

    **Arguments:**

    - folder: the path of the folder.
    - what: the kind of work, such as "run", for the message.
    - shared: see `held`.

    **Raises:** `ProblemError` if another process is at work in the folder, or if the folder cannot be written to.
    """
    with contextlib.ExitStack() as hold:
        with folder_of(folder):
            pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
            alone = hold.enter_context(held(folder, shared=shared))
        if not alone:
            refuse("--out", f"a folder in which no other {what} is at work", f"one is in {folder}")
        yield


def ignore_damaged(error: DamagedFileError, instead: str) -> None:
    """Warn that a damaged file is ignored, and say what happens instead."""
    warnings.warn(f"{error}: {instead}", DamagedFileWarning, stacklevel=3)
