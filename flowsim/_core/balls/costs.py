"""What a program takes: operations on numbers, and memory."""

import math
import os
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import jax
from jax.extend.core import JaxprEqn
from jax.interpreters.partial_eval import dce_jaxpr
from jaxtyping import Array

from flowsim._core.balls.enclosure import equations, operations
from flowsim._core.types import Document

# Times n a number of a matrix: of a factorization, and of an eigendecomposition.
_FACTORED = {"lu": 1, "cholesky": 1, "triangular_solve": 1, "qr": 2, "eigh": 10, "svd": 20}
_CGROUP = pathlib.Path("/sys/fs/cgroup/memory.max")


class Cost(NamedTuple):
    """operations: on numbers; memory: in bytes, nothing of a program that is not compiled."""

    operations: float
    memory: float


def cost_of(function: Callable, *shapes: jax.ShapeDtypeStruct, most_operations: float) -> Cost:
    """What a function of arrays takes; it is compiled where it takes no more than so many operations.

    **Raises:** what JAX raises where it cannot be traced.
    """
    traced = jax.make_jaxpr(function)(*shapes).jaxpr
    used, _ = dce_jaxpr(traced, [True] * len(traced.outvars), instantiate=True)
    taken = float(sum(repeats * _operations(eqn) for eqn, repeats in equations(used)))
    if taken > most_operations:
        return Cost(taken, 0.0)
    found = jax.jit(function).lower(*shapes).compile().memory_analysis()
    if found is None:
        return Cost(taken, 0.0)
    return Cost(taken, found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes)


def memory_of_device(array: Array) -> float:
    """The bytes that there are where an array is, used or not."""
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
