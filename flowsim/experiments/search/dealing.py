"""The units of a search, dealt out to this process or to others, and taken in always in the same order."""

import dataclasses
import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flowsim import papers
from flowsim._core.checks import refuse
from flowsim.claims import Claim
from flowsim.experiments.executors import Call, Executor, first_finished
from flowsim.experiments.search.clock import Clock
from flowsim.experiments.search.points import restrict_spaces
from flowsim.experiments.search.screening import Screen
from flowsim.problem.own.files import digest_of, find_own, home_of, module_of, split, texts_of
from flowsim.problem.spaces import Axis

_AHEAD = 32  # units that wait for their turn, or are at work
_GLANCE = 1.0  # seconds between two looks at the clock

Look = Callable[[Screen, Any, Clock], Any]  # what is found of a unit
_SCREENS: dict[str, Screen] = {}


def known_by(number: int) -> int:
    """How many units, the first of all, are known when the unit of a number is drawn: half of those before it.

    So a search draws the same units for any number of workers, and as many as are finished can be at work.
    """
    return number // 2


@dataclasses.dataclass(frozen=True)
class SpacePlace:
    """What is searched, by names that another process can look up, as not every claim can be sent.

    place: FILE.py:NAME of a claim of the user's own; sha256: of its files; over: other values of axes; longest: seconds
    of a flow that is integrated alone.
    """

    id: str
    form: str
    place: str | None
    sha256: str | None
    over: tuple[tuple[str, Axis], ...]
    longest: float | None

    @staticmethod
    def of(claim: Claim, over: Mapping[str, Axis], longest: float | None) -> "SpacePlace":
        """Where a claim is found.

        **Raises:** `ProblemError` where it is neither flowsim's nor at the top level of a Python file.
        """
        known = any(claim is one for one in papers.ALL_CLAIMS)
        home = None if known else home_of(claim)
        if not known and home is None:
            refuse(
                f"the claim {claim.id}",
                "flowsim's, or at the top level of a Python file, to be found by other processes",
                "it is neither",
            )
        place = sha256 = None
        if home is not None:
            module, name = home
            place, sha256 = f"{os.path.abspath(str(module.__file__))}:{name}", digest_of(texts_of(module))
        return SpacePlace(claim.id, claim.form, place, sha256, tuple(over.items()), longest)

    def screen(self) -> Screen:
        """The screen of this process for it, which keeps what it has compiled."""
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
            refuse(self.place, "as the process that asks has it", "on a worker the file is another")
        return find_own(self.place, Claim)


def dealt(
    draw: Callable[[], Any | None],
    here: Callable[[Any], Any],
    elsewhere: tuple[Executor, SpacePlace, Look] | None,
    clock: Clock,
    goes_on: Callable[[], bool],
    taken: int = 0,
) -> Iterator[tuple[Any, Any]]:
    """Unit after unit with what is found of it, one at least; each is to be taken in before the next is asked for.

    When the time is up, what workers have finished by then follows, and what they are at is left.

    **Arguments:** draw: the next unit, from what `known_by` says is known, or None after the last; here: what is found
    of one, by this process; elsewhere: what finds it instead; goes_on: whether more are looked at; taken: how many have
    been taken in on an earlier go.
    """
    if elsewhere is None:
        while (unit := draw()) is not None:
            yield unit, here(unit)
            if not goes_on():
                return
        return
    executor, place, look = elsewhere
    pending: deque[tuple[Any, Call]] = deque()
    first, last = taken, False
    try:
        while taken == first or goes_on():
            while not last and len(pending) < _AHEAD and known_by(taken + len(pending)) <= taken:
                if last := (unit := draw()) is None:
                    break
                pending.append((unit, Call(executor, look_elsewhere, (place, look, unit))))
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
    """Whether the first of some calls ends before the time is up, or at all."""
    while not first_finished(calls[:1], _GLANCE):
        for call in calls:
            call.made_again()
        if clock.is_up("looking at problems") and not always:
            return False
    return True


def look_elsewhere(place: SpacePlace, look: Look, unit: Any) -> Any:
    """What is found of a unit, in another process; its time is that of the process that asks."""
    return look(place.screen(), unit, Clock(math.inf))
