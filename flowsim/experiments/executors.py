"""Compute independent tasks in this process, in other processes of this machine, or on the workers of a scheduler.

A scheduler is any object with ``submit(function, *arguments).result()``.
"""

import concurrent.futures
import contextlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import connection
from typing import Any, Protocol, TypeVar, runtime_checkable

from flowsim._core.checks import refuse
from flowsim._core.compiler import setup
from flowsim._core.documents import software

Result = TypeVar("Result")
_TRIES = 3


@runtime_checkable
class Executor(Protocol):
    """The interface of objects that compute tasks: executors of ``concurrent.futures``, of dask
    (``Client.get_executor()``) or of submitit.
    """

    def submit(self, fn: Callable, /, *args: object) -> Any:
        """Start fn(*args). The returned object has a method ``result()``."""


class Processes:
    """An executor that computes tasks in processes of this machine, each with its own JAX.

    If a process dies, the next call of `submit` starts new processes. As a context manager it ends all processes on
    exit, even those that are still computing.

    **Arguments:** count: the number of processes.
    """

    def __init__(self, count: int):
        # JAX uses threads, which do not survive a fork.
        self.count, self._context = count, multiprocessing.get_context("spawn")
        self._ending, self._held_open = self._context.Pipe(duplex=False)
        self._pool = self._fresh()

    def submit(self, fn: Callable, /, *args: object) -> concurrent.futures.Future:
        """Start fn(*args) in one of the processes, and return its future."""
        try:
            return self._pool.submit(fn, *args)
        except concurrent.futures.BrokenExecutor:
            self._pool = self._fresh()
            return self._pool.submit(fn, *args)

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        # The processes end even if they are still at work.
        self._held_open.close()

    def _fresh(self) -> concurrent.futures.ProcessPoolExecutor:
        return concurrent.futures.ProcessPoolExecutor(
            self.count, mp_context=self._context, initializer=_begin, initargs=(self._ending,)
        )


def _begin(ending: connection.Connection) -> None:
    """Prepare JAX in a new process, and let the process end together with its parent.

    **Arguments:** ending: a connection whose other end the parent holds open.
    """
    threading.Thread(target=_end_with, args=(ending,), daemon=True).start()
    setup()


def _end_with(ending: connection.Connection) -> None:
    """End this process when the other end of the connection is closed."""
    connection.wait([ending])
    os._exit(1)


@contextlib.contextmanager
def executor_of(jobs: int, scheduler: str | None) -> Iterator[Executor | None]:
    """A context with the executor for the command line.

    **Arguments:** jobs: the number of processes; scheduler: the address of a dask scheduler, or None.

    **Returns:** None for one job, which means this process; `Processes` for several; or the executor of the
    scheduler.

    **Raises:** `ProblemError` for fewer than one process, for several processes together with a scheduler, for a
    scheduler that does not answer, or if dask is not installed.
    """
    if jobs < 1:
        refuse("--jobs", "a whole number of at least 1", f"it is {jobs}")
    if scheduler is not None:
        if jobs > 1:
            refuse("--jobs", "left out with --scheduler, whose workers are used", f"it is {jobs}")
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
    """A call function(*arguments) on an executor. If the process that computes it dies, `retried` repeats it, at
    most twice.

    **Arguments:**

    - executor: where the function is computed.
    - function: a function of a module, so that other processes can import it.
    - arguments: the arguments of the function.
    """

    def __init__(self, executor: Executor, function: Callable, arguments: tuple[object, ...]):
        self._executor, self._function, self._arguments, self._tries = executor, function, arguments, 0
        self.future = self._begin()

    def result(self) -> Any:
        """Wait for the call, and return the result of the function.

        **Raises:** `BrokenExecutor` if the process that computed the function died; otherwise what the function
        raises.
        """
        return self.future.result()

    def has_ended(self) -> bool:
        """Whether the function has returned or raised. Always False if the executor's futures are not those of
        ``concurrent.futures``.
        """
        return isinstance(self.future, concurrent.futures.Future) and self.future.done()

    def cancel(self) -> None:
        """Cancel the call, if the executor supports this."""
        getattr(self.future, "cancel", lambda: None)()

    def retried(self) -> bool:
        """Repeat the call if its process died, unless it was already started three times. Returns whether the call
        was repeated.
        """
        dead = self.has_ended() and isinstance(self.future.exception(), concurrent.futures.BrokenExecutor)
        if not dead or self._tries == _TRIES:
            return False
        self.future = self._begin()
        return True

    def _begin(self) -> Any:
        self._tries += 1
        return self._executor.submit(_on_a_worker, software(), self._function, self._arguments)


def first_finished(calls: Sequence[Call], timeout: float | None = None) -> list[Call]:
    """Wait until some calls have finished or the time is over, and return the finished calls.

    A call whose process died is started again and is not returned. If the executor's futures are not those of
    ``concurrent.futures``, the first call is returned without waiting.

    **Arguments:** calls: the calls; timeout: in seconds, None for no limit.
    """
    if not all(isinstance(call.future, concurrent.futures.Future) for call in calls):
        return list(calls[:1])
    futures = [call.future for call in calls]
    concurrent.futures.wait(futures, timeout, concurrent.futures.FIRST_COMPLETED)
    return [call for call in calls if call.has_ended() and not call.retried()]


def gathered(executor: Executor, function: Callable, calls: Sequence[tuple[object, ...]]) -> Iterator[tuple[int, Any]]:
    """Compute a function for several tuples of arguments, and yield the number of each call with its result as it
    finishes.

    **Arguments:**

    - executor: where the calls are computed.
    - function: the function.
    - calls: the arguments of each call. Calls are numbered from 0 in this order.

    **Raises:** as `Call.result`.
    """
    pending = {Call(executor, function, arguments): number for number, arguments in enumerate(calls)}
    while pending:
        for call in first_finished(list(pending)):
            yield pending.pop(call), call.result()


def _on_a_worker(expected: Mapping[str, str], function: Callable[..., Result], call: tuple[object, ...]) -> Result:
    """Compute a function in a process that must have the same versions of packages as the process that submitted
    the call. Results of different versions may differ.

    **Arguments:** expected: the versions by package; function: the function; call: its arguments.

    **Raises:** `ProblemError` if a version differs.
    """
    setup()
    ours = software()
    for name, here in expected.items():
        if ours.get(name) != here:
            refuse("a worker", f"one with {name} {here}, as in the process that started it", f"it has {ours.get(name)}")
    return function(*call)
