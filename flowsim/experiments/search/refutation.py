"""The search for a problem that violates a claim."""

import contextlib
import dataclasses
import math
import os
import pathlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, NoReturn

from flowsim._core.checks import refuse
from flowsim._core.documents import plain, versions
from flowsim._core.files import at_work_in
from flowsim._core.text import LINE, cut, value_text
from flowsim._core.types import Document, Values
from flowsim.claims import Claim
from flowsim.claims.spaces import Axis, Space
from flowsim.experiments.executors import Executor
from flowsim.experiments.search.batches import BatchResult, BatchUnit, look, look_on_worker_for_place
from flowsim.experiments.search.clock import Clock
from flowsim.experiments.search.counterexample import Counterexample, confirmed
from flowsim.experiments.search.kept import KeptUnits
from flowsim.experiments.search.points import Known, Point, remembered, restrict_spaces
from flowsim.experiments.search.screening import Margin, Screen
from flowsim.experiments.search.units import Look, SpacePlace, known_by, results_of

_DESCENTS = 8  # batches between two descents
_VERDICTS = 3  # verdicts that the summary describes, on points whose margin fails


@dataclasses.dataclass(frozen=True)
class Refutation:
    """The result of a search for a counterexample.

    **Fields:**

    - claim: the claim.
    - counterexample: None if none was found.
    - problems: the number of problems tried.
    - met: the number of problems that met the hypotheses.
    - promising: the number of problems that met the hypotheses and at which the statement asserts anything.
    - doubtful: how many problems had a margin that fails but a verdict other than "violated", by a description of
      the verdict.
    - least: the smallest margin of a problem that meets the hypotheses, and the values of that problem; None if no
      such margin is finite.
    - excluded: how many problems each hypothesis excluded.
    - seconds: the time spent.
    - unjudged: how many problems had a failing margin but were not judged in time.
    - small: whether the time sufficed to simplify the counterexample fully.
    """

    claim: Claim
    counterexample: Counterexample | None
    problems: int
    met: int
    promising: int
    doubtful: Mapping[str, int]
    least: tuple[float, Values] | None
    excluded: Mapping[str, int]
    seconds: float
    unjudged: int = 0
    small: bool = True

    def __str__(self) -> str:
        name = f"{self.claim.id} [{self.claim.form}]"
        stated = f"  {cut(self.claim.text, LINE)}"
        seen = f"{self.problems} problems, {self.met} of which met the hypotheses, in {self.seconds:.0f} s"
        if self.counterexample is not None:
            lines = [f"{name}: counterexample found among {seen}.", stated, self.counterexample.erratum]
            if not self.small:
                lines.append("The time ended before it was fully simplified: give it more.")
            return "\n".join(lines)
        lines = [f"{name}: no counterexample among {seen}.", stated]
        if self.least is not None:
            margin, values = self.least
            where = ", ".join(f"{key} = {value_text(value)}" for key, value in values.items())
            lines.append(f"The smallest margin is {margin:.3g}, at {where}.")
        for verdict, count in Counter(self.doubtful).most_common(_VERDICTS):
            lines.append(f"{count} of them had a failing margin, but were judged: {verdict}")
        if self.unjudged:
            lines.append(
                f"{self.unjudged} of them had a failing margin, but the time ended before a verdict: give it more."
            )
        if self.met and not self.promising:
            lines.append("The statement promised nothing at any of them.")
        elif self.promising < self.met:
            lines.append(f"The statement promised something at {self.promising} of those that met the hypotheses.")
        return "\n".join(lines)

    def document(self) -> Document:
        """The result for JSON, with the counterexample as in counterexample.json."""
        least = None if self.least is None else {"margin": self.least[0], "values": self.least[1]}
        counts = ("problems", "met", "promising", "doubtful", "excluded", "unjudged", "small", "seconds")
        return plain(
            {
                "id": self.claim.id,
                "form": self.claim.form,
                "statement": self.claim.text,
                "counterexample": None if self.counterexample is None else self.counterexample.document(),
                "least": least,
                **{name: getattr(self, name) for name in counts},
                "versions": versions(),
            }
        )


def refute(
    claim: Claim,
    *,
    over: Mapping[str, Axis] | None = None,
    budget: int | float = 600,
    problems: int | None = None,
    seed: int = 0,
    out: str | os.PathLike | None = None,
    progress: bool = False,
    executor: Executor | None = None,
) -> Refutation:
    """Search for a problem that meets a claim's hypotheses and violates the claim.

    Problems are drawn from the claim's spaces in batches. If the margin of a problem shows a failure beyond its
    error, the claim is judged there by several computations. The first problem on which all of them violate the
    claim is simplified. A batch depends only on the results of the first half of the batches before it, so that it
    is the same for any number of workers.

    **Arguments:**

    - claim: its ``spaces`` are searched.
    - over: axes that replace those of the spaces, by name.
    - budget: seconds. At most one more unit of work is done (see `Clock`).
    - problems: a number of problems instead. The result then depends on the seed and not on the clock.
    - seed: the seed of the draws.
    - out: a folder for the counterexample and for search.json, from which the same search resumes.
    - progress: whether to show a progress bar.
    - executor: computes batches instead of this process: anything with ``submit(function, *arguments).result()``.

    **Raises:** `ValueError` if the claim has no spaces, or none with the axes in ``over``, if workers cannot find
    the claim, if another search uses the folder, or if no problem that was tried meets the hypotheses.
    """
    clock = Clock(budget, problems)
    over, folder = over or {}, None if out is None else pathlib.Path(out)
    spaces = restrict_spaces(claim, over)
    workers = None
    if executor is not None:
        workers = executor, SpacePlace.of(claim, over, clock.longest), look_on_worker_for_place
    with contextlib.ExitStack() as stack:
        if folder is not None:
            stack.enter_context(at_work_in(folder, "search"))
        stack.enter_context(clock.shown(claim.id, progress))
        search, found = Search(claim, spaces, seed, clock, folder), None
        for found in search.batches(workers):
            if found is not None:
                break
        if not search.met:
            refuse_excluded(claim, search.excluded, search.problems)
        result = search.result(found)
        if folder is not None and found is not None:
            found.save(folder)
        return result


def refuse_excluded(claim: Claim, excluded: Counter[str], problems: int) -> NoReturn:
    """Raise `ProblemError` for a space in which no problem meets the hypotheses. The message names the hypothesis,
    or the hypotheses, that exclude all problems.

    **Arguments:**

    - claim: the claim.
    - excluded: how many problems each hypothesis excluded.
    - problems: the number of problems tried.
    """
    names = [name for name, count in excluded.most_common() if count == problems]
    which = f'"{names[0]}" excludes all' if names else f"these together exclude all: {'; '.join(excluded)}"
    came = f"of the {problems} problems that were tried {which}"
    refuse("the space", f"one with problems that meet the hypotheses of {claim.id}", came)


class _Known(NamedTuple):
    """What is known after a batch.

    **Fields:**

    - points: the points of this batch with their objectives.
    - least: the least margin in all batches so far, with its point, or None.
    - refused: the least margin so far of a point whose verdict is not "violated"; infinite without such a point.
    """

    points: list[Known]
    least: tuple[float, Point] | None
    refused: float


class Search:
    """The state of a search for a counterexample. The same seed gives the same batches.

    **Arguments:**

    - claim: the claim.
    - spaces: the spaces to search.
    - seed: the seed of the draws.
    - clock: the budget.
    - folder: the folder of search.json, or None.
    """

    def __init__(
        self, claim: Claim, spaces: Sequence[Space], seed: int, clock: Clock, folder: pathlib.Path | None = None
    ):
        self._clock, self._seed = clock, seed
        self.claim, self.screen = claim, Screen(claim, spaces, clock.longest)
        self._units = KeptUnits(folder, "counterexample", claim, spaces, seed, clock)
        self.problems = self.met = self.promising = self.unjudged = 0
        self.small = True
        self.doubtful: Counter[str] = Counter()
        self.excluded: Counter[str] = Counter()
        self.least: tuple[float, Point] | None = None
        self._refused = math.inf
        self._drawn, self._known = 0, [_Known([], None, math.inf)]

    def continues(self) -> bool:
        """Whether there is time for another batch."""
        return not self._clock.has_ended(self.problems)

    def batches(self, workers: tuple[Executor, SpacePlace, Look] | None = None) -> Iterator[Counterexample | None]:
        """Try batches as long as the time allows. Yields for each batch its simplified counterexample, or None.

        **Arguments:** workers: as in `results_of`.
        """
        for document in self._units.earlier:
            yield self._taken(BatchResult.of(document))
            # Batches of an earlier run take no time, but they count as problems.
            if self._clock.problems is not None and not self.continues():
                return
        if self._units.earlier and not self.continues():
            return
        self._drawn = len(self._units.done)
        here = lambda unit: look(self.screen, unit, self._clock)
        for _, looked in results_of(self._unit, here, workers, self._clock, self.continues, self._drawn):
            yield self._taken(looked)

    def _unit(self) -> BatchUnit:
        """The next batch to compute."""
        number, count = self._drawn, len(self.screen.spaces)
        self._drawn += 1
        known = self._known[: known_by(number) + 1]
        of_space = [one for earlier in known for one in earlier.points if one[0].space == number % count]
        return BatchUnit(
            place=number % count,
            batch=number // count,
            seed=self._seed,
            known=remembered(of_space),
            refused=known[-1].refused,
            least=known[-1].least,
            descends=number % _DESCENTS == _DESCENTS - 1,
        )

    def _taken(self, looked: BatchResult) -> Counterexample | None:
        """Record the result of a batch, and return its counterexample, or None. A counterexample that a worker
        found is confirmed here.
        """
        found, doubts = looked.found, list(looked.doubts)
        if looked.place is not None and found is None:
            found = confirmed(self.screen, looked.place)
            if isinstance(found, str):
                found, doubts = None, [*doubts, (found, -math.inf)]
        self._note([*looked.seen, *looked.below])
        self.doubtful.update(doubt for doubt, _ in doubts)
        self._refused = min([self._refused, *(margin for _, margin in looked.doubts)])
        self.unjudged += looked.unjudged
        self.small = looked.small
        points = [(point, margin.objective) for point, margin in looked.seen]
        self._known.append(_Known(points, self.least, self._refused))
        if found is None:
            self._units.add(looked.document())
        return found

    def result(self, found: Counterexample | None) -> Refutation:
        """The result of the whole search."""
        least = None if self.least is None else (self.least[0], dict(self.least[1].values))
        return Refutation(
            self.claim,
            found,
            self.problems,
            self.met,
            self.promising,
            self.doubtful,
            least,
            self.excluded,
            self._clock.seconds,
            self.unjudged,
            self.small,
        )

    def _note(self, seen: Iterable[tuple[Point, Margin]]) -> None:
        for point, margin in seen:
            self.problems += 1
            self.excluded.update(margin.unmet)
            if margin.unmet:
                continue
            self.met += 1
            if math.isfinite(margin.margin):
                self.promising += 1
                if self.least is None or margin.margin < self.least[0]:
                    self.least = margin.margin, point
