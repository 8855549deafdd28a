"""What every command does before and after its work: switch on float64 and the compilation cache, check the memory,
and say in one line why it stops.
"""

import functools
import math
import os
import pathlib
import sys
import types
import warnings
from collections.abc import Callable

from flowsim._core.text import TRACEBACK, in_short, one_line, out_of_memory, said_by

FINISHED, BAD_INPUT, UNFINISHED, INTERRUPTED = 0, 2, 3, 130
# GB of addresses, without which JAX aborts or hangs. Measured: a run takes 1.85 with one processor, 2.18 with two.
_LEAST_MEMORY, _A_PROCESSOR = 1.5, 0.34


class Ended(SystemExit):
    """Ends a command with an exit status, after its message was printed."""


def prepare_jax() -> None:
    """Switch on float64 and the compilation cache. Call this before the first array is created.

    **Raises:** `Ended`, after printing why: float64 is switched off, the memory is limited too much, or the
    environment has a value that JAX refuses.
    """
    if (given := os.environ.get("JAX_ENABLE_X64", "1")).lower() not in ("1", "t", "true", "y", "yes", "on"):
        off = given.lower() in ("0", "f", "false", "n", "no", "off")
        came = "JAX_ENABLE_X64 switches it off" if off else f'JAX_ENABLE_X64 is "{given}"'
        line = f"float64 must be switched on, but {came}: unset it or set JAX_ENABLE_X64=1"
        raise Ended(stop(BAD_INPUT, line))
    # More processors take less than in proportion.
    least = _LEAST_MEMORY + _A_PROCESSOR * min(os.cpu_count() or 1, 2)
    if (limit := _address_space()) < least:
        came = f"it is limited to {limit:.3g} GB: raise the limit (ulimit -v unlimited)"
        raise Ended(stop(BAD_INPUT, f"the memory must be at least {least:.3g} GB, which JAX reserves, but {came}"))
    _make_do_without_home()
    from flowsim._core.compiler import prepare_compiler

    try:
        prepare_compiler()
        import jax
    except ValueError as error:  # another variable that JAX reads
        line = f"the environment must be one that JAX takes, but it says: {in_short(error)}"
        raise Ended(stop(BAD_INPUT, line)) from None
    jax.config.update("jax_enable_x64", True)
    from flowsim._core.checks import refuse_debugging

    refuse_debugging()
    from flowsim._core.files import DamagedFileWarning

    warnings.simplefilter("always", DamagedFileWarning)


def stop(status: int, line: str) -> int:
    """Print one line that says why a command stops; return its exit status."""
    print(f"flowsim: {one_line(line)}", file=sys.stderr, flush=True)
    return status


def interrupted(number: int, frame: types.FrameType | None) -> None:
    """Handle SIGINT by ending the process at once.

    Ending at once is safe, since the files of a run are complete at any time. A KeyboardInterrupt would be
    swallowed by JAX's callbacks, or would crash them.
    """
    os.write(
        sys.stderr.fileno(), b"\nflowsim: interrupted; a run continues with --resume, a search with the same command\n"
    )
    os._exit(INTERRUPTED)


def _address_space() -> float:
    """The limit on the address space of this process, in GB."""
    try:
        import resource
    except ImportError:  # on systems without such limits
        return math.inf
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return math.inf if limit == resource.RLIM_INFINITY else limit / 1e9


def _make_do_without_home() -> None:
    """Give Matplotlib a temporary folder for its settings if the user has no home folder."""
    try:
        pathlib.Path.home()
    except RuntimeError:
        if "MPLCONFIGDIR" not in os.environ:
            import atexit
            import shutil
            import tempfile

            os.environ["MPLCONFIGDIR"] = folder = tempfile.mkdtemp(prefix="flowsim-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)


def guarded(command: Callable[..., int]) -> Callable[..., int]:
    """Wrap a command so that SystemExit or another exit, raised by a user's file, becomes a `RuntimeError`."""

    @functools.wraps(command)
    def call(*args: object, **options: object) -> int:
        try:
            return command(*args, **options)
        except (Exception, Ended):
            raise
        except BaseException as error:
            raise RuntimeError(in_short(error)) from error

    return call


def explained(error: Exception) -> tuple[int, str]:
    """Return the exit status and the line to print for an error: bad input, or stopped by an unexpected error.

    **Raises:** the unexpected error itself, with its traceback, if FLOWSIM_TRACEBACK=1 is set.
    """
    from flowsim._core.checks import ProblemError
    from flowsim._core.documents import ForeignFileError
    from flowsim._core.files import DamagedFileError
    from flowsim.problem.own.files import own_line

    if isinstance(error, ProblemError | DamagedFileError | ForeignFileError):
        return BAD_INPUT, str(error)
    if "JAX_PLATFORMS" in os.environ and "nable to initialize backend" in said_by(error):
        platforms = os.environ["JAX_PLATFORMS"]
        return BAD_INPUT, f'JAX_PLATFORMS must be platforms that JAX finds here, but it is "{platforms}": {error}'
    if os.environ.get(TRACEBACK) == "1":
        raise error
    what = in_short(error)
    if out_of_memory(error):
        why = f"not enough memory ({what})"
    else:
        line = own_line(error)
        why = f"{line} raises {what}" if line else f"{what} ({TRACEBACK}=1 shows where)"
    return UNFINISHED, f"stopped: {why}; earlier files are complete, and a run continues with --resume"


def warned(otherwise: Callable[..., None], message: Warning | str, category: type[Warning], *rest: object) -> None:
    """Print a warning of flowsim in one line. Pass any other warning to ``otherwise``, the usual
    `warnings.showwarning`.
    """
    if category.__module__.startswith("flowsim."):
        stop(FINISHED, str(message))
    else:
        otherwise(message, category, *rest)
