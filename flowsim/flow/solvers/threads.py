"""How many threads numerical work takes."""

import contextlib
import functools
import importlib
import os
import threading
from collections.abc import Iterator

import threadpoolctl

_limiting = threading.Lock()


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def blas_in_one_thread() -> Iterator[None]:
    """Let BLAS and LAPACK take one thread meanwhile, in all of this process.

    Decompositions of a few hundred rows gain nothing from a second thread, which waits for work in a loop and so takes
    a core from XLA. Of blocks that overlap in several threads the first one alone sets the limit and takes it back:
    each would restore what it found, the last one the limit itself.
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
    importlib.import_module("scipy.linalg")  # whose LAPACK JAX calls: only what is loaded is found
    return threadpoolctl.ThreadpoolController()
