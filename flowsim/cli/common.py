"""What commands share: reading a problem, the folder they write to, the status they end with."""

import contextlib
import errno
import pathlib
from collections.abc import Iterable, Iterator, Sequence

from flowsim._core.checks import refuse
from flowsim.claims import Judgement, Verdict
from flowsim.flow.trajectory import Status
from flowsim.problem import Problem, ProblemSpec

FINISHED, VIOLATED, UNFINISHED = 0, 1, 3


def read(path: pathlib.Path, overrides: Sequence[str]) -> Problem:
    """The problem of a file, checked to the last field."""
    return ProblemSpec.from_toml(text_of(path), overrides).build()


def text_of(path: pathlib.Path) -> str:
    """The text of a problem file."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        refuse("PROBLEM.toml", "a text file that can be read", f"{path}: not UTF-8")
    except (OSError, ValueError) as error:  # the latter of a path that can be none
        refuse("PROBLEM.toml", "a text file that can be read", f"{path}: {getattr(error, 'strerror', error)}")


@contextlib.contextmanager
def folder_of(out: pathlib.Path) -> Iterator[None]:
    """Say that a folder cannot be written to; a full disk is not bad input."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        refuse("--out", "a folder that can be written to", f"{out}: {error.strerror}")


def exit_status(strict: bool, verdicts: Iterable[Verdict], statuses: Iterable[Status | None] = ()) -> int:
    """1 if a claim is violated and that counts, 3 if an integration was not finished, else 0."""
    if any(status is not None and not status.finished for status in statuses):
        return UNFINISHED
    return VIOLATED if strict and any(verdict.verdict is Judgement.VIOLATED for verdict in verdicts) else FINISHED
