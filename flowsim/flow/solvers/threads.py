"""The number of cores for numerical work, and a context that limits BLAS to one thread."""

import contextlib
import functools
import importlib
import os
import threading
from collections.abc import Iterator

import threadpoolctl

_limiting = threading.Lock()


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def blas_in_one_thread() -> Iterator[None]:
    """A context in which BLAS and LAPACK use one thread, in the whole process.

    Decompositions of a few hundred rows gain nothing from a second thread. It would wait in a loop and so take a
    core from XLA. If several threads enter this context at once, only the first one sets and resets the limit.
    """
    if not _limiting.acquire(blocking=False):
        yield
        return
    try:
        with _libraries().limit(limits=1, user_api="blas"):
            yield
    finally:
        _limiting.release()


@functools.cache
def _libraries() -> threadpoolctl.ThreadpoolController:
    importlib.import_module("scipy.linalg")  # JAX calls its LAPACK, and only loaded libraries are found
    return threadpoolctl.ThreadpoolController()
