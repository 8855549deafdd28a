"""Progress bars. A terminal shows a bar at once; a log gets a line after two seconds and then every ten seconds."""

import sys
from typing import Any, TextIO

from tqdm.auto import tqdm

_BETWEEN_LINES = 10.0  # seconds
_DELAY = 2.0  # seconds before the first line in a log, where a refusal should stand alone


class _Lines:
    """A stream that writes each state of a bar as a line of a log, where a bar cannot overwrite itself."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> None:
        """Write the state of the bar on a new line. Text that only clears the bar or moves on is dropped."""
        shown = text.replace("\x1b[A", "").strip()
        if shown:
            self._stream.write(f"{shown}\n")

    def flush(self) -> None:
        """Flush the log."""
        self._stream.flush()


def progress_bar(what: str, total: int, *, unit: str = "it", shown: bool = True) -> tqdm:
    """A progress bar that disappears when it is closed.

    **Arguments:**

    - what: the name of the work, shown before the bar.
    - total: the number of units of work.
    - unit: the name of a unit.
    - shown: whether the bar is shown at all.
    """
    written_over = sys.stderr.isatty() or tqdm.__mro__[1].__module__ == "tqdm.notebook"
    log: dict[str, Any] = {"file": _Lines(sys.stderr), "mininterval": _BETWEEN_LINES, "delay": _DELAY}
    options = {} if written_over else log
    return tqdm(total=total, desc=what, unit=unit, disable=not shown, leave=False, **options)
