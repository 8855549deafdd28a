"""Compute the units of work of a search in this process or on workers, and collect their results in a fixed
order.
"""

import dataclasses
import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from flowsim import papers
from flowsim._core.checks import refuse
from flowsim.claims import Claim
from flowsim.claims.spaces import Axis
from flowsim.experiments.executors import Call, Executor, first_finished
from flowsim.experiments.search.clock import Clock
from flowsim.experiments.search.points import restrict_spaces
from flowsim.experiments.search.screening import Screen
from flowsim.problem.own.files import digest_of, find_own, home_of, module_of, split, texts_of

_AHEAD = 32  # units that wait or are computed at one time
_GLANCE = 1.0  # seconds between two checks of the clock

Unit = TypeVar("Unit")
Found = TypeVar("Found")
Look = Callable[[Screen, Unit, Clock], Found]  # the result of a unit
_SCREENS: dict[str, Screen] = {}


def known_by(number: int) -> int:
    """The number of units whose results are known when the unit with this number is drawn: half of the units before
    it.

    Hence a search draws the same units for any number of workers, and there can be as many busy workers as finished
    units.
    """
    return number // 2


@dataclasses.dataclass(frozen=True)
class SpacePlace:
    """The claim and the spaces of a search, by names that a worker can look up, since not every claim can be
    pickled.

    **Fields:**

    - id, form: the id and the form of the claim.
    - place: FILE.py:NAME of a user's claim, else None.
    - sha256: the digest of the files of a user's claim, else None.
    - over: axes that replace those of the spaces, by field.
    - longest: the time limit in seconds for a flow that is integrated alone.
    """

    id: str
    form: str
    place: str | None
    sha256: str | None
    over: tuple[tuple[str, Axis], ...]
    longest: float | None

    @staticmethod
    def of(claim: Claim, over: Mapping[str, Axis], longest: float | None) -> "SpacePlace":
        """The names by which a worker finds a claim and its spaces.

        **Arguments:**

        - claim: the claim.
        - over: axes that replace those of its spaces, by field.
        - longest: the time limit in seconds for a flow that is integrated alone.

        **Raises:** `ProblemError` if the claim is neither one of flowsim's nor at the top level of a Python file.
        """
        known = any(claim is one for one in papers.ALL_CLAIMS)
        home = None if known else home_of(claim)
        if not known and home is None:
            refuse(
                f"the claim {claim.id}",
                "one of flowsim's, or at the top level of a Python file, so that workers can find it",
                "it is neither",
            )
        place = sha256 = None
        if home is not None:
            module, name = home
            place, sha256 = f"{os.path.abspath(str(module.__file__))}:{name}", digest_of(texts_of(module))
        return SpacePlace(claim.id, claim.form, place, sha256, tuple(over.items()), longest)

    def screen(self) -> Screen:
        """The screen for the claim in this process. It is created once and keeps its compiled programs."""
        key = repr(self)
        if key not in _SCREENS:
            _SCREENS.clear()
            claim = self._claim()
            _SCREENS[key] = Screen(claim, restrict_spaces(claim, dict(self.over)), self.longest)
        return _SCREENS[key]

    def _claim(self) -> Claim:
        if self.place is None:
            return next(one for one in papers.ALL_CLAIMS if (one.id, one.form) == (self.id, self.form))
        if module_of(split(self.place)[0])[1] != self.sha256:
            refuse(self.place, "the same file on all machines", "it differs on a worker")
        return find_own(self.place, Claim)


def results_of(
    draw: Callable[[], Unit | None],
    here: Callable[[Unit], Found],
    workers: tuple[Executor, SpacePlace, Look[Unit, Found]] | None,
    clock: Clock,
    continues: Callable[[], bool],
    taken: int = 0,
) -> Iterator[tuple[Unit, Found]]:
    """Compute units, and yield each with its result, in the order in which they are drawn. At least one unit is
    computed.

    The caller must process a result before it asks for the next. After the time is over, only results that workers
    have finished by then are yielded.

    **Arguments:**

    - draw: returns the next unit, drawn from the results that `known_by` allows, or None after the last.
    - here: unit -> its result, in this process.
    - workers: the executor, the `SpacePlace`, and the function that computes a result on a worker; None to use
      ``here``.
    - clock: the budget.
    - continues: returns whether to continue.
    - taken: the number of units that an earlier run has processed.
    """
    if workers is None:
        while (unit := draw()) is not None:
            yield unit, here(unit)
            if not continues():
                return
        return
    executor, place, look = workers
    pending: deque[tuple[Unit, Call]] = deque()
    first, last = taken, False
    try:
        while taken == first or continues():
            while not last and len(pending) < _AHEAD and known_by(taken + len(pending)) <= taken:
                if last := (unit := draw()) is None:
                    break
                pending.append((unit, Call(executor, look_on_worker, (place, look, unit))))
            if not pending:
                return
            if not _is_waited_for([call for _, call in pending], clock, taken == first):
                break
            unit, call = pending.popleft()
            yield unit, call.result()
            taken += 1
        if clock.problems is None:
            yield from ((unit, call.result()) for unit, call in list(pending) if call.has_ended())
    finally:
        for _, call in pending:
            call.cancel()


def _is_waited_for(calls: list[Call], clock: Clock, always: bool) -> bool:
    """Wait for the first call. Returns whether it ends before the time is over.

    **Arguments:** calls: the pending calls; clock: the budget; always: whether to wait even if the time is over.
    """
    while not first_finished(calls[:1], _GLANCE):
        for call in calls:
            call.retried()
        if clock.is_up("looking at problems") and not always:
            return False
    return True


def look_on_worker(place: SpacePlace, look: Look[Unit, Found], unit: Unit) -> Found:
    """The result of a unit on a worker. The computation has no time limit here: the process that submits the unit
    stops waiting for it.
    """
    return look(place.screen(), unit, Clock(math.inf))
