"""The search for a problem that breaks a claim."""

import dataclasses
import hashlib
import json
import math
import os
import pathlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from flowsim._core.checks import refuse
from flowsim._core.documents import plain, write_json
from flowsim._core.files import DamagedFileError, read_document
from flowsim._core.numbers import value_text
from flowsim._core.progress import progress_bar
from flowsim._core.types import Values
from flowsim.claims import Claim
from flowsim.claims.spaces import Axis, Space
from flowsim.experiments.search.counterexample import Counterexample, confirmed, shrunk
from flowsim.experiments.search.descent import descend
from flowsim.experiments.search.points import Point, Sampler
from flowsim.experiments.search.screening import Margin, Screen

PROGRESS = "search.json"
_FORMAT = 2  # of the file
_DESCENTS = 8  # batches between two descents
_CANDIDATES = 3  # of a batch, that are judged
_VERDICTS = 3  # that are told, of what failed at first sight alone


@dataclasses.dataclass(frozen=True)
class Refutation:
    """What a search for a counterexample found.

    counterexample: None where there is none; problems: how many were looked at; met: how many of them met the
    hypotheses; promising: at how many of these the statement promises anything; doubtful: how many failed at first
    sight but not by their verdict, by what that is; least: the smallest margin that was seen, hypotheses met, and
    where; excluded: how many problems each hypothesis excluded; seconds: spent.
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

    def __str__(self) -> str:
        name = f"{self.claim.id} [{self.claim.form}]"
        seen = f"{self.problems} problems, {self.met} of which met the hypotheses, in {self.seconds:.0f} s"
        if self.counterexample is not None:
            return f"{name}: counterexample found among {seen}.\n{self.counterexample.erratum}"
        lines = [f"{name}: no counterexample among {seen}."]
        if self.least is not None:
            margin, values = self.least
            where = ", ".join(f"{key} = {value_text(value)}" for key, value in values.items())
            lines.append(f"The smallest margin is {margin:.3g}, at {where}.")
        for verdict, count in Counter(self.doubtful).most_common(_VERDICTS):
            lines.append(
                f"{count} of them failed at first sight, but by {'its' if count == 1 else 'their'} verdict: {verdict}"
            )
        if self.met and not self.promising:
            lines.append("The statement promised nothing at any of them.")
        elif self.promising < self.met:
            lines.append(f"The statement promised something at {self.promising} of them.")
        return "\n".join(lines)


def refute(
    claim: Claim,
    *,
    over: Mapping[str, Axis] | None = None,
    budget: int | float = 600,
    seed: int = 0,
    out: str | os.PathLike | None = None,
    progress: bool = False,
) -> Refutation:
    """Look for a problem that meets a claim's hypotheses and breaks it.

    Problems are drawn from the claim's spaces in batches; those where it fails at first sight are judged, by every
    route, and the first that is violated is made as small as it can be.

    **Arguments:** claim: its ``spaces`` are searched; over: other values of their axes, by name; budget: seconds,
    looked at after every batch; seed: of what is drawn; out: a folder for search.json, from which the same search goes
    on after its last batch, and for the counterexample; progress: show a bar.

    **Raises:** `ValueError` where the claim has no spaces or no such axis, the budget is too short for one batch, or no
    problem that was looked at meets the hypotheses.
    """
    spaces = restrict_spaces(claim, over or {})
    folder = None if out is None else pathlib.Path(out)
    search = Search(claim, spaces, seed, budget, folder)
    found = None
    with progress_bar(claim.id, round(budget), unit="s", shown=progress) as bar:
        while found is None and (not search.problems or search.goes_on()):
            found = search.batch()
            bar.update(max(0, min(round(search.seconds), round(budget)) - bar.n))
    if not search.met:
        refuse_excluded(claim, search.excluded, search.problems)
    result = search.result(found)
    if folder is not None and found is not None:
        found.save(folder)
    return result


def restrict_spaces(claim: Claim, over: Mapping[str, Axis]) -> tuple[Space, ...]:
    """The spaces of a claim that have all of these axes, with these values.

    **Raises:** `ProblemError` where there is none.
    """
    if not claim.spaces:
        refuse(f"the claim {claim.id}", "one with a space of problems to search", "it declares none")
    for name in over:
        known = sorted({axis for space in claim.spaces for axis in space.axes})
        if name not in known:
            refuse("--over", f"over an axis of {claim.id} ({', '.join(known)})", f'it is over "{name}"')
    spaces = tuple(space.over(over) for space in claim.spaces if set(over) <= set(space.axes))
    if not spaces:
        refuse("--over", f"over axes that one space of {claim.id} has together", f"it is over {', '.join(over)}")
    return spaces


def refuse_excluded(claim: Claim, excluded: Counter[str], problems: int) -> NoReturn:
    """Refuse a space of whose problems none meets the hypotheses, by the one that excludes all, or those that together
    do.

    **Arguments:** excluded: how many problems each hypothesis excluded; problems: how many were looked at.
    """
    names = [name for name, count in excluded.most_common() if count == problems]
    which = f'"{names[0]}" excludes all' if names else f"these together exclude all: {'; '.join(excluded)}"
    came = f"of the {problems} problems that were looked at {which}"
    refuse("the space", f"one with problems that meet the hypotheses of {claim.id}", came)


class Search:
    """The state of a search, from batch to batch; the same batches follow from the same seed."""

    def __init__(
        self, claim: Claim, spaces: Sequence[Space], seed: int, budget: int | float, folder: pathlib.Path | None = None
    ):
        self._budget, self._folder, self._spent = budget, folder, 0.0
        self._identity = plain(
            {"format": _FORMAT, "claim": claim.id, "form": claim.form, "spaces": repr(spaces), "seed": seed}
        )
        self._replay: list[dict[str, Any]] = self._loaded()
        self.claim, self.screen = claim, Screen(claim, spaces)
        self._samplers = [Sampler(space, place, seed) for place, space in enumerate(spaces)]
        # A sampler of its own, as those of the search remember what they drew.
        first = [Sampler(space, place, seed).draw(2).points[0] for place, space in enumerate(spaces)]
        self._lanes = [self.screen.lanes(point) for point in first]
        self._done: list[dict[str, Any]] = []
        # What is compiled first serves every batch, and counts for none.
        self._begin = time.monotonic()
        self.problems = self.met = self.promising = 0
        self.doubtful: Counter[str] = Counter()
        self.excluded: Counter[str] = Counter()
        self.least: tuple[float, Point] | None = None
        self._refused = math.inf

    @property
    def seconds(self) -> float:
        """Spent, on earlier goes too."""
        return self._spent + time.monotonic() - self._begin

    def goes_on(self) -> bool:
        """Whether there is time for another batch."""
        return bool(self._replay) or self.seconds < self._budget

    def batch(self) -> Counterexample | None:
        """Look at the next batch; the counterexample in it, made small, if there is one."""
        index = len(self._done)
        sampler = self._samplers[index % len(self._samplers)]
        batch = sampler.draw(self._lanes[index % len(self._samplers)])
        kept = self._replay.pop(0) if self._replay else None
        points = batch.points
        margins = self._within_budget(points) if kept is None else _margins(kept["margins"])
        sampler.learn(batch, [margin.objective for margin in margins])
        self._note(points, margins)
        if kept is not None:
            extra = [Point(place, values) for place, values in kept["descent"]]
            self._note(extra, _margins(kept["descent_margins"]))
            self._refused = math.inf if kept["refused"] is None else kept["refused"]
            self.doubtful = Counter(kept["doubtful"])
            self._done.append(kept)
            return None
        extra = []
        if index % _DESCENTS == _DESCENTS - 1 and self.least is not None:
            extra = descend(self.screen, self.least[1])
        below = self.screen.margins(extra)
        self._note(extra, below)
        found = self._judged([*points, *extra], [*margins, *below])
        self._done.append(
            {
                "margins": [list(margin) for margin in margins],
                "descent": [[point.space, point.values] for point in extra],
                "descent_margins": [list(margin) for margin in below],
                "refused": self._refused,
                "doubtful": dict(self.doubtful),
            }
        )
        if found is None:
            self._save()
        return found

    def result(self, found: Counterexample | None) -> Refutation:
        """What was found in all."""
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
            self.seconds,
        )

    def _judged(self, points: Sequence[Point], margins: Sequence[Margin]) -> Counterexample | None:
        """The first of the worst points that is a counterexample, made small if it stays one."""
        order = sorted(range(len(points)), key=lambda index: margins[index].objective)
        candidates = [index for index in order if margins[index].clear and not margins[index].unmet]
        for index in candidates[:_CANDIDATES]:
            # What failed no worse than what a verdict has refused is not asked for again.
            if margins[index].margin >= 2 * self._refused:
                continue
            found = confirmed(self.screen, points[index])
            if isinstance(found, str):
                self.doubtful[found] += 1
                self._refused = min(self._refused, margins[index].margin)
                continue
            smaller = confirmed(self.screen, shrunk(self.screen, points[index]))
            return found if isinstance(smaller, str) else smaller
        return None

    def _within_budget(self, points: list[Point]) -> list[Margin]:
        """The margins of a batch; the first batch must be finished in the budget."""
        if self._done:
            return self.screen.margins(points)
        margins = []
        share = -(-len(points) // 4)
        for first in range(0, len(points), share):
            part = points[first : first + share]
            margins += self.screen.margins(part)
            if self.seconds > self._budget and len(margins) < len(points):
                came = f"{len(margins)} of its {len(points)} problems took {self.seconds:.0f} s"
                refuse("--budget", "long enough for one batch", f"it is {self._budget:g} s, and {came}")
        return margins

    def _note(self, points: Sequence[Point], margins: Sequence[Margin]) -> None:
        for point, margin in zip(points, margins, strict=True):
            self.problems += 1
            self.excluded.update(margin.unmet)
            if margin.unmet:
                continue
            self.met += 1
            if math.isfinite(margin.margin):
                self.promising += 1
                if self.least is None or margin.margin < self.least[0]:
                    self.least = margin.margin, point

    def _loaded(self) -> list[dict[str, Any]]:
        """The finished batches of the same search in the folder."""
        if self._folder is None or not (file := self._folder / PROGRESS).exists():
            return []
        try:
            kept = read_document(file)
        except (OSError, DamagedFileError) as error:
            refuse("--out", "a folder with a search that can be read", f"{error}: remove it, or take another folder")
        if kept.get("search") != self._identity:
            refuse("--out", "the folder of this same search", f"{file} is of another: take another folder")
        if kept.pop("sha256", None) != _digest(kept):
            refuse("--out", "a folder with a search that can be read", f"{file} is damaged: remove it, or take another")
        self._spent = kept["seconds"]
        return kept["batches"]

    def _save(self) -> None:
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            document = {"search": self._identity, "seconds": self.seconds, "batches": plain(self._done)}
            write_json(self._folder / PROGRESS, document | {"sha256": _digest(document)})


def _digest(document: Values) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _margins(rows: Sequence[Sequence[Any]]) -> list[Margin]:
    """Margins as JSON has them, where null stands for what is not finite."""
    number = lambda value: math.nan if value is None else float(value)
    return [Margin(number(m), number(f), clear, tuple(unmet), number(d)) for m, f, clear, unmet, d in rows]
