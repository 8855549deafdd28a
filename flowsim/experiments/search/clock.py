"""The budget of a search: a time limit or a number of problems."""

import contextlib
import copy
import math
import time
from collections.abc import Iterator

from tqdm.auto import tqdm

from flowsim._core.checks import refuse
from flowsim._core.progress import progress_bar

_LONGEST = 20.0  # seconds for a flow that is integrated alone


class Clock:
    """The time that a search has spent, including earlier runs, and the time that it may spend. A progress bar can
    show both.

    A search checks the clock before each unit of work: a batch of one compiled program, a flow, a step of a
    descent, or the verdict on a candidate. Hence it ends at most one unit late.

    **Arguments:** budget: the time limit in seconds; problems: a number of problems instead. The batch that reaches
    this number is finished, however long that takes.

    **Raises:** `ProblemError` for fewer than one problem.
    """

    def __init__(self, budget: int | float, problems: int | None = None):
        if problems is not None and problems < 1:
            refuse("problems", "a whole number of at least 1", f"it is {problems}")
        self.budget, self.problems, self.spent = budget if problems is None else math.inf, problems, 0.0
        self._begin = time.monotonic()
        self._bar: tqdm | None = None

    @property
    def seconds(self) -> float:
        """The seconds spent, including those of earlier runs."""
        return self.spent + time.monotonic() - self._begin

    @property
    def longest(self) -> float | None:
        """The time limit in seconds for a flow that is integrated alone; None if results must not depend on the
        time.
        """
        return _LONGEST if self.problems is None else None

    @contextlib.contextmanager
    def shown(self, what: str, shown: bool) -> Iterator[None]:
        """A context with a progress bar over the budget.

        **Arguments:** what: the title of the bar; shown: whether it is shown.
        """
        total, unit = (round(self.budget), "s") if self.problems is None else (self.problems, "problems")
        with progress_bar(what, total, unit=unit, shown=shown) as bar:
            self._bar = bar
            bar.bar_format = f"{{l_bar}}{{bar}}| {{n_fmt}} of {{total_fmt}} {unit}{{postfix}}"
            yield

    def tell(self, what: str, *, at_once: bool = True) -> None:
        """Update the progress bar.

        **Arguments:** what: the unit of work, in words; at_once: whether to redraw the bar now.
        """
        if self._bar is not None:
            self._bar.set_postfix_str(what, refresh=False)
            if self.problems is None:
                self._move_to(round(self.seconds), round(self.budget))
            if at_once and self._bar.n:
                self._bar.refresh()

    def until(self, seconds: float) -> "Clock":
        """A copy of the clock for a part of the search. Its budget ends when ``seconds`` are spent, or earlier with
        the whole budget.
        """
        part = copy.copy(self)
        part.budget = min(seconds, self.budget)
        return part

    def has_ended(self, problems: int) -> bool:
        """Whether a search that has evaluated this number of problems must end."""
        if self.problems is None:
            return self.is_up("looking at problems")
        self._move_to(problems, self.problems)
        return problems >= self.problems

    def _move_to(self, done: int, total: int) -> None:
        if self._bar is not None:
            self._bar.update(max(0, min(done, total) - self._bar.n))

    def is_up(self, what: str = "", spare: float = 0.0) -> bool:
        """Whether the time is over. Also updates the progress bar.

        **Arguments:** what: the next unit of work, for the progress bar; spare: the seconds that must be left.
        """
        self.tell(what, at_once=False)
        return self.seconds + spare >= self.budget
