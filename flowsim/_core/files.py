"""Files: written whole or not at all, and read back as they were written or refused in one line that names the file."""

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
from typing import IO, Any

import numpy as np
from jaxtyping import ArrayLike

from flowsim._core.checks import refuse
from flowsim._core.lines import in_short, one_line
from flowsim._core.types import Document

try:
    import fcntl
except ImportError:  # where files are locked otherwise
    fcntl = None

_SEAL = "sha256"
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # of a disk that has none


class DamagedFileError(ValueError):
    """A file that is not as it was written; the message names it."""

    def __init__(self, message: str):
        super().__init__(one_line(message))


class DamagedFileWarning(UserWarning):
    """A damaged file that is done without."""


def read_arrays(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """All arrays of an npz file that `write_arrays` wrote, by name.

    **Raises:** `DamagedFileError`, also where a digit is another; `OSError` where the disk does not give its bytes.
    """
    content = bytes_of(path)
    found = {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise zipfile.BadZipFile("its arrays are compressed, which flowsim does not do")
            entries = {entry: archive.read(entry) for entry in archive.namelist()}
            # Another writer does not know of it.
            if archive.comment != _seal_of(entries):
                raise zipfile.BadZipFile("its checksum is not that of what it holds")
            for entry, array in entries.items():
                found[entry.removesuffix(".npy")] = np.lib.format.read_array(io.BytesIO(array), allow_pickle=False)
    except Exception as error:  # a wrong byte may be met anywhere in zipfile, zlib and NumPy
        raise DamagedFileError(f"{path} is damaged or no file of flowsim ({in_short(error):.100})") from None
    return found


def write_arrays(path: str | os.PathLike, arrays: Mapping[str, ArrayLike]) -> None:
    """Write an npz file, whole or not at all; it holds no pickle."""
    write_whole(path, lambda file: pack_arrays(file, arrays))


def pack_arrays(file: IO[bytes], arrays: Mapping[str, ArrayLike]) -> None:
    """Write the archive that an npz file is, with a digest of itself; unlike `numpy.savez`, which has arguments of its
    own, under any names.
    """
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
    """What is in a file; one that another program feeds, such as a pipe, would be waited for."""
    path = pathlib.Path(path)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "no file, but a pipe or a device", str(path))
    return path.read_bytes()


def read_document(path: str | os.PathLike) -> Document:
    """The object of a JSON file.

    **Raises:** `DamagedFileError`; `OSError` where the disk does not give its bytes.
    """
    content = bytes_of(path)
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} is damaged or no file of flowsim ({in_short(error):.100})") from None
    if not isinstance(document, dict):
        raise DamagedFileError(f"{path} is damaged or no file of flowsim (it holds no JSON object)")
    return document


def read_sealed(path: str | os.PathLike) -> Document:
    """The object of a JSON file that `write_sealed` wrote.

    **Raises:** `DamagedFileError`, also where a digit is another; `OSError` where the disk does not give its bytes.
    """
    document = read_document(path)
    if document.pop(_SEAL, None) != _digest(document):
        raise DamagedFileError(f"{path} is damaged or no file of flowsim (its checksum is not that of what it says)")
    return document


def write_sealed(path: str | os.PathLike, document: Document) -> None:
    """Write a JSON object with a digest of itself, whole or not at all."""
    # Without indents, which take longer than what is written.
    text = json.dumps(document | {_SEAL: _digest(document)})
    write_whole(path, lambda file: file.write(text.encode()))


def _digest(document: Document) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def write_whole(path: str | os.PathLike, write: Callable[[IO[bytes]], Any]) -> None:
    """Replace a file whole: write beside it, flush to the disk, rename."""
    path = pathlib.Path(path)
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


def remove_parts_of_the_dead(folder: str | os.PathLike) -> None:
    """Remove what processes of this machine were writing to a folder with `write_whole` when they were killed; others
    may be at work there.
    """
    for path in pathlib.Path(folder).glob(f".*.{platform.node()}.*.part"):
        *_, process, _ = path.name.split(".")
        try:
            os.kill(int(process), 0)
        except ProcessLookupError:
            path.unlink(missing_ok=True)
        except (ValueError, OSError):  # of another's name, or a process that is not ours
            continue


@contextlib.contextmanager
def held(folder: str | os.PathLike, *, shared: bool = False) -> Iterator[bool]:
    """Whether this process alone is at work in a folder, or with others that share it, which it is until the end,
    however that comes; where the disk has no locks, as if it were.
    """
    if fcntl is None:
        yield True
        return
    path, kind = pathlib.Path(folder) / ".lock", fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    while True:
        # Without waiting for somebody at the other end, where this is a pipe.
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
        # Another process ended between the two, and took its lock away.
        os.close(lock)
    try:
        yield True
    finally:
        # Others may share it, and those who come later are to meet them there.
        if not shared:
            path.unlink(missing_ok=True)
        os.close(lock)


@contextlib.contextmanager
def at_work_in(folder: str | os.PathLike, what: str, *, shared: bool = False) -> Iterator[None]:
    """Hold a folder, as `held` does; what is done there is named in the refusal.

    **Raises:** `ProblemError` where another process is at work in it.
    """
    with held(folder, shared=shared) as alone:
        if not alone:
            refuse("--out", f"a folder in which no other {what} is at work", f"one is in {folder}")
        yield


def done_without(error: DamagedFileError, instead: str) -> None:
    """Warn of a damaged file, and say what is done instead."""
    warnings.warn(f"{error}: {instead}", DamagedFileWarning, stacklevel=3)
