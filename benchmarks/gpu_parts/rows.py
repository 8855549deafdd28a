"""What a part of `benchmarks/gpu.py` measures: rows, each by a function of its own, so that one may fail alone."""

import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

CPU_LANES = 8  # flows in lockstep in one thread of a CPU


@dataclasses.dataclass
class Row:
    """One quantity on one device.

    seconds: of one unit; bound: the seconds a unit that arithmetic and memory allow; numbers, words: what the two
    devices must agree in; took: seconds of everything, compilation included.
    """

    what: str
    seconds: float | None = None
    unit: str = ""
    bound: float | None = None
    numbers: list[float] | None = None
    words: list[str] | None = None
    note: str = ""
    part: str = ""
    device: str = ""
    took: float = 0.0


Measures = Iterator[tuple[str, Callable[[], Row]]]


def on_gpu() -> bool:
    """Whether this process computes on a GPU."""
    import jax

    return jax.default_backend() == "gpu"


def timed(run: Callable[[], Any], spell: float) -> float:
    """The least seconds that a run takes until all is computed; it runs at least twice, until a spell is over."""
    import jax

    best, count = np.inf, 0
    until = time.perf_counter() + spell
    while count < 2 or time.perf_counter() < until:
        begin = time.perf_counter()
        jax.block_until_ready(run())
        best, count = min(best, time.perf_counter() - begin), count + 1
    return float(best)


def first_call(run: Callable[[], Any]) -> tuple[float, Any]:
    """The seconds of a first call, which compiles, and its result."""
    import jax

    begin = time.perf_counter()
    result = jax.block_until_ready(run())
    return time.perf_counter() - begin, result


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
