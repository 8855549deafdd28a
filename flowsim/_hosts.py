"""What processes on several hosts do once, or agree on, when they share the devices of a mesh.

All run the same program in step: whatever depends on the clock, the disk or the memory of one must be known to all.
"""

import pickle
from collections.abc import Callable
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

Result = TypeVar("Result")


def are_several(mesh: Mesh | None) -> bool:
    """Whether the devices of a mesh belong to more than one process."""
    return mesh is not None and mesh.is_multi_process


def is_first(mesh: Mesh | None) -> bool:
    """Whether this process is the one that writes and prints."""
    return not are_several(mesh) or jax.process_index() == 0


def by_first(mesh: Mesh | None, function: Callable[[], Result]) -> Result:
    """What the function gives, or raises, in the first process: it is called nowhere else."""
    if not are_several(mesh):
        return function()
    packed = b""
    if is_first(mesh):
        try:
            packed = pickle.dumps((function(), None))
        except Exception as error:
            packed = pickle.dumps((None, error))
    length = int(multihost_utils.broadcast_one_to_all(np.asarray(len(packed))))
    # A power of two, so that few programs are compiled.
    message = np.zeros(1 << max(length - 1, 1023).bit_length(), np.uint8)
    message[: len(packed)] = np.frombuffer(packed, np.uint8)
    result, error = pickle.loads(np.asarray(multihost_utils.broadcast_one_to_all(message)).tobytes())
    if error is not None:
        raise error
    return result


def least(mesh: Mesh | None, value: float) -> float:
    """The least of the values that the processes have."""
    return float(np.min(multihost_utils.process_allgather(np.asarray(value)))) if are_several(mesh) else value
