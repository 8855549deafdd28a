"""The cost of a program: how many operations on numbers it takes, and how much memory."""

import math
import os
import pathlib
from collections.abc import Callable

import jax
from jax.extend.core import JaxprEqn
from jax.interpreters.partial_eval import dce_jaxpr
from jaxtyping import Array, PyTree

from flowsim._core.balls.enclosure import equations, operations
from flowsim._core.types import Document

# Times n a number of a matrix: of a factorization, and of an eigendecomposition.
_FACTORED = {"lu": 1, "cholesky": 1, "triangular_solve": 1, "qr": 2, "eigh": 10, "svd": 20}
_CGROUP = pathlib.Path("/sys/fs/cgroup/memory.max")


def operations_of(function: Callable, *shapes: PyTree) -> float:
    """How many operations on numbers a function takes.

    **Arguments:** shapes: the arguments of the function, or abstract arrays of their shapes.

    **Raises:** the exceptions of JAX if it cannot trace the function.
    """
    traced = jax.make_jaxpr(function)(*shapes).jaxpr
    used, _ = dce_jaxpr(traced, [True] * len(traced.outvars), instantiate=True)
    return float(sum(repeats * _operations(eqn) for eqn, repeats in equations(used)))


def memory_of(program: jax.stages.Compiled) -> float:
    """The memory that a program needs, in bytes; 0 if it is not known."""
    found = program.memory_analysis()
    if found is None:
        return 0.0
    return found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes


def memory_of_device(array: Array) -> float:
    """The total memory of the device that holds an array, in bytes.

    Where JAX does not report it, this is the memory of the machine, or the limit of the control group if that is
    smaller.
    """
    (device, *_) = array.devices()
    known: Document = device.memory_stats() or {}
    if "bytes_limit" in known:
        return known["bytes_limit"]
    try:
        limit = _CGROUP.read_text().strip()
        most = float(limit) if limit != "max" else math.inf
    except (OSError, ValueError):
        most = math.inf
    return min(most, float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")))


def _operations(eqn: JaxprEqn) -> float:
    name = eqn.primitive.name
    if name in _FACTORED:
        shape = eqn.invars[0].aval.shape  # pyright: ignore[reportAttributeAccessIssue]
        return _FACTORED[name] * math.prod(shape) * shape[-1]
    return operations(eqn) * (2 if name == "dot_general" else 1)
