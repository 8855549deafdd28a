"""Agreement between processes on several hosts that share the devices of a mesh.

All processes run the same program in step. A value that depends on the clock, the disk or the memory of one process
must be sent to all. Only numbers and text are sent, never code.
"""

import io
import json
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from flowsim._core.checks import ProblemError
from flowsim._core.files import pack_arrays
from flowsim._core.types import Document

Result = TypeVar("Result", bound=float | dict[str, np.ndarray] | None)

_OUTCOME, _NUMBER, _ARRAY = "outcome", "number", "array:"


def are_several(mesh: Mesh | None) -> bool:
    """Whether the devices of a mesh belong to more than one process."""
    return mesh is not None and mesh.is_multi_process


def is_first(mesh: Mesh | None) -> bool:
    """Whether this process is the one that writes and prints."""
    return not are_several(mesh) or jax.process_index() == 0


def by_first(mesh: Mesh | None, function: Callable[[], Result]) -> Result:
    """Call a function in the first process only, and return its result in all processes.

    **Raises:** in all processes, the exception that the function raises. In processes other than the first, an
    exception that is neither a `ProblemError` nor an `OSError` becomes a `RuntimeError`.
    """
    if not are_several(mesh):
        return function()
    packed, failure = b"", None
    if is_first(mesh):
        try:
            packed = pack(function())
        except Exception as error:
            packed, failure = _packed_error(error), error
    length = int(multihost_utils.broadcast_one_to_all(np.asarray(len(packed))))
    # The length is a power of two, so that few programs are compiled.
    message = np.zeros(1 << max(length - 1, 1023).bit_length(), np.uint8)
    message[: len(packed)] = np.frombuffer(packed, np.uint8)
    received = np.asarray(multihost_utils.broadcast_one_to_all(message)).tobytes()[:length]
    if failure is not None:
        raise failure
    return unpack(received)


def pack(result: float | Mapping[str, np.ndarray] | None) -> bytes:
    """A number, named arrays or None as the bytes of an npz file without pickle."""
    if isinstance(result, Mapping):
        return _archive({"kind": "arrays"}, {f"{_ARRAY}{name}": array for name, array in result.items()})
    if result is None:
        return _archive({"kind": "nothing"}, {})
    return _archive({"kind": _NUMBER}, {_NUMBER: np.asarray(float(result))})


def unpack(packed: bytes) -> Any:
    """The result that `pack` packed. If an exception was packed instead, it is raised."""
    with np.load(io.BytesIO(packed), allow_pickle=False) as file:
        arrays = dict(file)
    outcome = json.loads(str(arrays.pop(_OUTCOME)))
    if outcome["kind"] == "error":
        _raise(outcome)
    if outcome["kind"] == _NUMBER:
        return float(arrays[_NUMBER])
    if outcome["kind"] == "nothing":
        return None
    return {name.removeprefix(_ARRAY): array for name, array in arrays.items()}


def least(mesh: Mesh | None, value: float) -> float:
    """The smallest of the values that all processes of a mesh pass to this function."""
    return float(np.min(multihost_utils.process_allgather(np.asarray(value)))) if are_several(mesh) else value


def _packed_error(error: Exception) -> bytes:
    kind = "input" if isinstance(error, ProblemError) else "disk" if isinstance(error, OSError) else "other"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    number, file = (error.errno, error.filename) if isinstance(error, OSError) else (None, None)
    name = None if file is None else str(file)
    outcome = {"kind": "error", "of": kind, "name": type(error).__name__, "text": text, "errno": number, "file": name}
    return _archive(outcome, {})


def _raise(outcome: Document) -> NoReturn:
    if outcome["of"] == "input":
        raise ProblemError(outcome["text"])
    if outcome["of"] == "disk" and outcome["errno"] is not None:
        raise OSError(outcome["errno"], outcome["text"], outcome["file"])
    if outcome["of"] == "disk":
        raise OSError(outcome["text"])
    raise RuntimeError(f"the first process: {outcome['name']}: {outcome['text']}")


def _archive(outcome: Document, arrays: Mapping[str, np.ndarray]) -> bytes:
    file = io.BytesIO()
    pack_arrays(file, {_OUTCOME: np.asarray(json.dumps(outcome))} | dict(arrays))
    return file.getvalue()
