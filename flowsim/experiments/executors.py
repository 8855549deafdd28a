"""Where independent units of work are computed: in this process, in others of this machine, or by any scheduler that
has ``submit(function, *arguments).result()``.
"""

import concurrent.futures
import contextlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import connection
from typing import Any, Protocol, runtime_checkable

from flowsim._core.checks import refuse
from flowsim._core.compiler import setup
from flowsim._core.documents import software

_TRIES = 3


@runtime_checkable
class Executor(Protocol):
    """What computes units of work: one of ``concurrent.futures``, of dask's ``Client.get_executor()``, of submitit."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        """Begin fn(*args); what is returned has a ``result()``."""


class Processes:
    """Processes of this machine, each with its own JAX; one that dies is replaced."""

    def __init__(self, count: int):
        # JAX has threads, which a fork does not survive.
        self.count, self._context = count, multiprocessing.get_context("spawn")
        self._ending, self._held_open = self._context.Pipe(duplex=False)
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
        # What they are still at is asked for no more.
        self._held_open.close()

    def _fresh(self) -> concurrent.futures.ProcessPoolExecutor:
        return concurrent.futures.ProcessPoolExecutor(
            self.count, mp_context=self._context, initializer=_begin, initargs=(self._ending,)
        )


def _begin(ending: connection.Connection) -> None:
    """What a process does first: prepare JAX, and see to it that it ends when it is needed no more, or with the process
    that asked for it.
    """
    threading.Thread(target=_end_with, args=(ending,), daemon=True).start()
    setup()


def _end_with(ending: connection.Connection) -> None:
    """End this process with the one that holds the other end open."""
    connection.wait([ending])
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


class Call:
    """function(*arguments) on an executor; made again where its process dies, two times at most.

    **Arguments:** function: of a module, so that it can be found by name elsewhere.
    """

    def __init__(self, executor: Executor, function: Callable[..., Any], arguments: tuple[Any, ...]):
        self._executor, self._function, self._arguments, self._tries = executor, function, arguments, 0
        self.future = self._begin()

    def result(self) -> Any:
        """What it gives, or raises; `BrokenExecutor` where it ends its process each time."""
        return self.future.result()

    def has_ended(self) -> bool:
        """Whether its result is there; False of an executor whose results can only be waited for."""
        return isinstance(self.future, concurrent.futures.Future) and self.future.done()

    def cancel(self) -> None:
        """Ask for it no more, where the executor can be told."""
        getattr(self.future, "cancel", lambda: None)()

    def made_again(self) -> bool:
        """Whether the process that was at it died, and another is at it now."""
        dead = self.has_ended() and isinstance(self.future.exception(), concurrent.futures.BrokenExecutor)
        if not dead or self._tries == _TRIES:
            return False
        self.future = self._begin()
        return True

    def _begin(self) -> Any:
        self._tries += 1
        return self._executor.submit(_on_a_worker, software(), self._function, self._arguments)


def first_finished(calls: Sequence[Call], timeout: float | None = None) -> list[Call]:
    """Those of some calls that are finished, as soon as one is or the time is up, in seconds; of an executor whose
    results can only be waited for, the first.
    """
    if not all(isinstance(call.future, concurrent.futures.Future) for call in calls):
        return list(calls[:1])
    futures = [call.future for call in calls]
    concurrent.futures.wait(futures, timeout, concurrent.futures.FIRST_COMPLETED)
    return [call for call in calls if call.has_ended() and not call.made_again()]


def gathered(
    executor: Executor, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]
) -> Iterator[tuple[int, Any]]:
    """The results of function(*call) with the numbers of the calls, as they come.

    **Raises:** as `Call` does.
    """
    pending = {Call(executor, function, arguments): number for number, arguments in enumerate(calls)}
    while pending:
        for call in first_finished(list(pending)):
            yield pending.pop(call), call.result()


def _on_a_worker(expected: Mapping[str, str], function: Callable[..., Any], call: tuple[Any, ...]) -> Any:
    """The function's result, from a process with the same packages: digits of different ones are not mixed."""
    setup()
    ours = software()
    for name, here in expected.items():
        if ours.get(name) != here:
            refuse("a worker", f"one with {name} {here}, as the process that asks has", f"it has {ours.get(name)}")
    return function(*call)
