"""How many threads numerical work takes."""

import contextlib
import functools
import importlib
import os

import threadpoolctl


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def blas_in_one_thread() -> contextlib.AbstractContextManager:
    """Let BLAS and LAPACK take one thread meanwhile, in all of this process.

    Decompositions of a few hundred rows gain nothing from a second thread, which waits for work in a loop and so takes
    a core from XLA.
    """
    return _libraries().limit(limits=1, user_api="blas")


@functools.cache
def _libraries() -> threadpoolctl.ThreadpoolController:
    importlib.import_module("scipy.linalg")  # whose LAPACK JAX calls: only what is loaded is found
    return threadpoolctl.ThreadpoolController()
