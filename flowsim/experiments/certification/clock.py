"""A time limit for Python code that does not check the time itself."""

import contextlib
import signal
import threading
import types
from collections.abc import Iterator

_AGAIN = 0.25  # seconds after which an interruption is tried again
_WHOLE = ("jax", "jaxlib")  # packages that are not interrupted


class TimeUpError(Exception):
    """Raised in a context of `within` when its time is up."""


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """A context that ends with `TimeUpError` when its time is up.

    A call of JAX is not interrupted, since this could leave JAX in a broken state. If the time is up during a call,
    the context ends soon after the call returns. There is no limit on systems without timers, and outside the main
    thread.

    **Arguments:** seconds: the limit; if it is not positive, the time is up at once.
    """
    if seconds <= 0:
        raise TimeUpError
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    over = interrupted = False

    def up(number: int, frame: types.FrameType | None) -> None:
        nonlocal interrupted
        if not over and not _in_the_middle(frame):
            interrupted = True
            raise TimeUpError

    before = signal.signal(signal.SIGALRM, up)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
        yield
    except Exception as error:
        # Interrupted code may raise another exception instead of `TimeUpError`.
        if interrupted:
            raise TimeUpError from error
        raise
    finally:
        over = True
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _in_the_middle(frame: types.FrameType | None) -> bool:
    """Whether JAX or jaxlib is at work in a frame or in one of its callers."""
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] in _WHOLE:
            return True
        frame = frame.f_back
    return False
