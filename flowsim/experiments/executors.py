"""Where independent units of work are computed: in this process, in others of this machine, or by any scheduler that
has ``submit(function, *arguments).result()``.
"""

import concurrent.futures
import contextlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from flowsim._core.checks import refuse
from flowsim._core.compile_cache import setup
from flowsim._core.documents import versions

_TRIES = 3


@runtime_checkable
class Executor(Protocol):
    """What computes units of work: one of ``concurrent.futures``, of dask's ``Client.get_executor()``, of submitit."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        """Begin fn(*args); what is returned has a ``result()``."""


class Processes:
    """Processes of this machine, each with its own JAX; one that dies is replaced."""

    def __init__(self, count: int):
        self.count = count
        self._pool = self._fresh()

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> concurrent.futures.Future:
        """Begin fn(*args) in one of the processes."""
        try:
            return self._pool.submit(fn, *args)
        except concurrent.futures.BrokenExecutor:
            self._pool = self._fresh()
            return self._pool.submit(fn, *args)

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _fresh(self) -> concurrent.futures.ProcessPoolExecutor:
        # JAX has threads, which a fork does not survive.
        context = multiprocessing.get_context("spawn")
        return concurrent.futures.ProcessPoolExecutor(self.count, mp_context=context, initializer=_begin)


def _begin() -> None:
    """What a process does first: prepare JAX, and see to it that it ends with the one that asked for it."""
    setup()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextlib.contextmanager
def executor_of(jobs: int, scheduler: str | None) -> Iterator[Executor | None]:
    """What the command line asks for: this process alone, several of this machine, or the workers of a dask scheduler.

    **Raises:** `ProblemError` for fewer than one process, a scheduler that does not answer, or without dask.
    """
    if jobs < 1:
        refuse("--jobs", "a whole number of at least 1", f"it is {jobs}")
    if scheduler is not None:
        if jobs > 1:
            refuse("--jobs", "left out with --scheduler, whose workers do the work", f"it is {jobs}")
        try:
            from distributed import Client  # pyright: ignore[reportMissingImports]
        except ImportError:
            refuse("--scheduler", "left out unless dask is installed (pip install distributed)", "it is given")
        try:
            client = Client(scheduler, timeout=20)
        except (OSError, ValueError) as error:
            refuse("--scheduler", "the address of a dask scheduler", f"{scheduler} does not answer ({error})")
        with client:
            yield client.get_executor()
    elif jobs > 1:
        with Processes(jobs) as processes:
            yield processes
    else:
        yield None


def gathered(
    executor: Executor, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]
) -> Iterator[tuple[int, Any]]:
    """The results of function(*call) with the numbers of the calls, as they come. A call whose process died is made
    again, two times at most.

    **Arguments:** function: of a module, so that it can be found by name elsewhere.

    **Raises:** whatever a call raises, and `BrokenExecutor` where one ends its process each time.
    """
    tries = [0] * len(calls)

    def begin(number: int) -> Any:
        tries[number] += 1
        return executor.submit(_on_a_worker, versions(), function, calls[number])

    pending = {begin(number): number for number in range(len(calls))}
    while pending:
        if all(isinstance(future, concurrent.futures.Future) for future in pending):
            done, _ = concurrent.futures.wait(pending, return_when=concurrent.futures.FIRST_COMPLETED)
        else:
            done = [next(iter(pending))]
        for future in done:
            number = pending.pop(future)
            try:
                yield number, future.result()
            except concurrent.futures.BrokenExecutor:
                if tries[number] == _TRIES:
                    raise
                pending[begin(number)] = number


def _on_a_worker(expected: Mapping[str, str], function: Callable[..., Any], call: tuple[Any, ...]) -> Any:
    """The function's result, from a process with the same packages: digits of different ones are not mixed."""
    setup()
    ours = versions()
    for name, version in expected.items():
        if ours[name] != version:
            refuse("a worker", f"one with {name} {version}, as the process that asks has", f"it has {ours[name]}")
    return function(*call)
