"""Files: written whole or not at all, and read back as they were written or refused in one line that names the file."""

import io
import json
import os
import pathlib
import warnings
import zipfile
from collections.abc import Callable
from typing import IO, Any

import numpy as np

from flowsim._core.lines import in_short, one_line
from flowsim._core.types import Document


class DamagedFileError(ValueError):
    """A file that is not as it was written; the message names it."""

    def __init__(self, message: str):
        super().__init__(one_line(message))


class DamagedFileWarning(UserWarning):
    """A damaged file that is done without."""


def read_arrays(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """All arrays of an npz file by name.

    **Raises:** `DamagedFileError`; `OSError` where the disk does not give its bytes.
    """
    content = pathlib.Path(path).read_bytes()
    found = {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            # A wrong length of a name in the directory hides what follows it.
            if len(archive.namelist()) != int.from_bytes(content[-12:-10], "little"):
                raise zipfile.BadZipFile("some of its arrays are lost")
            for entry in archive.namelist():
                # Read to the end, where its checksum is looked at, before any of it is believed.
                array = io.BytesIO(archive.read(entry))
                found[entry.removesuffix(".npy")] = np.lib.format.read_array(array, allow_pickle=False)
    except Exception as error:  # a wrong byte may be met anywhere in zipfile, zlib and NumPy
        raise DamagedFileError(f"{path} is damaged or no file of flowsim ({in_short(error):.100})") from None
    return found


def read_document(path: str | os.PathLike) -> Document:
    """The object of a JSON file.

    **Raises:** `DamagedFileError`; `OSError` where the disk does not give its bytes.
    """
    content = pathlib.Path(path).read_bytes()
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} is damaged or no file of flowsim ({in_short(error):.100})") from None
    if not isinstance(document, dict):
        raise DamagedFileError(f"{path} is damaged or no file of flowsim (it holds no JSON object)")
    return document


def write_whole(path: str | os.PathLike, write: Callable[[IO[bytes]], Any]) -> None:
    """Replace a file whole: write beside it, flush to the disk, rename."""
    path = pathlib.Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def done_without(error: DamagedFileError, instead: str) -> None:
    """Warn of a damaged file, and say what is done instead."""
    warnings.warn(f"{error}: {instead}", DamagedFileWarning, stacklevel=3)
