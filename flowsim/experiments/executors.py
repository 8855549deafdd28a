"""Where independent tasks are computed: in this process, in other processes of this machine, or by a scheduler with
``submit(function, *arguments).result()``.
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
    """Anything that computes tasks: an executor of ``concurrent.futures``, of dask (``Client.get_executor()``) or of
    submitit.
    """

    def submit(self, fn: Callable, /, *args: object) -> Any:
        """Start fn(*args). The returned object has a method ``result()``."""


class Processes:
    """Processes of this machine, each with its own JAX. A process that dies is replaced."""

    def __init__(self, count: int):
        # JAX uses threads, which do not survive a fork.
        self.count, self._context = count, multiprocessing.get_context("spawn")
        self._ending, self._held_open = self._context.Pipe(duplex=False)
        self._pool = self._fresh()

    def submit(self, fn: Callable, /, *args: object) -> concurrent.futures.Future:
        """Start fn(*args) in one of the processes."""
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
    """Prepare JAX in a new process, and let the process end together with its parent."""
    threading.Thread(target=_end_with, args=(ending,), daemon=True).start()
    setup()


def _end_with(ending: connection.Connection) -> None:
    """End this process when the other end of the connection is closed."""
    connection.wait([ending])
    os._exit(1)


@contextlib.contextmanager
def executor_of(jobs: int, scheduler: str | None) -> Iterator[Executor | None]:
    """The executor for the command line: None for this process, several processes, or the workers of a dask scheduler.

    **Arguments:** jobs: the number of processes; scheduler: the address of a dask scheduler.

    **Raises:** `ProblemError` for fewer than one process, for a scheduler that does not answer, or if dask is not
    installed.
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
    """function(*arguments) on an executor. If its process dies, the call is repeated up to two times.

    **Arguments:**

    - executor: where it is computed.
    - function: a function of a module, so that other processes can import it.
    - arguments: its arguments.
    """

    def __init__(self, executor: Executor, function: Callable, arguments: tuple[object, ...]):
        self._executor, self._function, self._arguments, self._tries = executor, function, arguments, 0
        self.future = self._begin()

    def result(self) -> Any:
        """The result of the function, or its exception; `BrokenExecutor` if its process died each time."""
        return self.future.result()

    def has_ended(self) -> bool:
        """Whether the result is available. Always False for an executor whose results can only be waited for."""
        return isinstance(self.future, concurrent.futures.Future) and self.future.done()

    def cancel(self) -> None:
        """Cancel the call, if the executor supports this."""
        getattr(self.future, "cancel", lambda: None)()

    def retried(self) -> bool:
        """Whether its process died and the call was repeated."""
        dead = self.has_ended() and isinstance(self.future.exception(), concurrent.futures.BrokenExecutor)
        if not dead or self._tries == _TRIES:
            return False
        self.future = self._begin()
        return True

    def _begin(self) -> Any:
        self._tries += 1
        return self._executor.submit(_on_a_worker, software(), self._function, self._arguments)


def first_finished(calls: Sequence[Call], timeout: float | None = None) -> list[Call]:
    """The finished calls, as soon as there is one or the timeout is over. For an executor whose results can only be
    waited for, the first call.

    **Arguments:** calls; timeout: in seconds.
    """
    if not all(isinstance(call.future, concurrent.futures.Future) for call in calls):
        return list(calls[:1])
    futures = [call.future for call in calls]
    concurrent.futures.wait(futures, timeout, concurrent.futures.FIRST_COMPLETED)
    return [call for call in calls if call.has_ended() and not call.retried()]


def gathered(executor: Executor, function: Callable, calls: Sequence[tuple[object, ...]]) -> Iterator[tuple[int, Any]]:
    """The numbers of calls with their results, in the order in which they finish.

    **Arguments:**

    - executor: where they are computed.
    - function: the function.
    - calls: the arguments of each call.

    **Raises:** as `Call`.
    """
    pending = {Call(executor, function, arguments): number for number, arguments in enumerate(calls)}
    while pending:
        for call in first_finished(list(pending)):
            yield pending.pop(call), call.result()


def _on_a_worker(expected: Mapping[str, str], function: Callable[..., Result], call: tuple[object, ...]) -> Result:
    """The result of the function in a process with the same packages, since results of different versions may
    differ.
    """
    setup()
    ours = software()
    for name, here in expected.items():
        if ours.get(name) != here:
            refuse("a worker", f"one with {name} {here}, as in the process that started it", f"it has {ours.get(name)}")
    return function(*call)
