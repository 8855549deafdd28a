"""Progress of what takes longer than two seconds: a bar on a terminal or in a notebook, else a line now and then."""

import sys
from typing import Any

from tqdm.auto import tqdm

_DELAY = 2.0  # seconds after which anything is shown
_BETWEEN_LINES = 10.0  # seconds


class _Lines:
    """A log, in which nothing is written over."""

    def __init__(self, stream: Any):
        self._stream = stream

    def write(self, text: str) -> None:
        """Write what is shown as a line of its own, and nothing for what only clears another."""
        shown = text.strip()
        if shown:
            self._stream.write(f"{shown}\n")

    def flush(self) -> None:
        """Flush the log."""
        self._stream.flush()


def progress_bar(what: str, total: int, *, unit: str = "it", shown: bool = True) -> tqdm:
    """A bar, to be updated by so many units at a time, which goes when it ends.

    **Arguments:** what: is done; total: how many units there are; shown: whether anything is.
    """
    written_over = sys.stderr.isatty() or tqdm.__mro__[1].__module__ == "tqdm.notebook"
    options: dict[str, Any] = {} if written_over else {"file": _Lines(sys.stderr), "mininterval": _BETWEEN_LINES}
    return tqdm(total=total, desc=what, unit=unit, disable=not shown, delay=_DELAY, leave=False, **options)
