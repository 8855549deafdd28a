"""The results of an ablation: a row for each hypothesis of a claim and for each bound of its spaces."""

import abc
import dataclasses
import math
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from flowsim._core.documents import plain, versions, write_json
from flowsim._core.text import counted, value_text
from flowsim._core.types import Document
from flowsim.claims import Claim
from flowsim.experiments.search.counterexample import Counterexample

FILE = "ablation.json"
_FAR = 1e3  # larger factors are not reported
_LATE = "the time ended before any of them was judged: give it more"


class AbstractRow(abc.ABC):
    """The results for problems that miss a hypothesis, or that are beyond a bound.

    **Fields:**

    - misses: for each problem, the factor by which it misses the hypotheses or exceeds the bound, and whether the
      statement seems to fail there.
    """

    misses: tuple[tuple[float, bool], ...]

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The hypotheses, or the bound, in words."""

    @property
    def problems(self) -> int:
        """The number of problems tried. They meet all hypotheses except those that the row is about."""
        return len(self.misses)

    @property
    def fails(self) -> int:
        """The number of problems of the row at which the statement seems to fail."""
        return sum(failed for _, failed in self.misses)


@dataclasses.dataclass(frozen=True)
class Ablated(AbstractRow):
    """The results for one hypothesis, or for several that are dropped together.

    **Fields:**

    - names: the hypotheses in words.
    - counterexample: a problem that violates the statement and meets all hypotheses except these; None if none was
      found.
    - misses: for each problem, the factor by which it misses these hypotheses, and whether the statement seems to
      fail.
    - least: the least margin of these problems; NaN if there are none.
    - late: whether the time ended before any failure was judged.
    - small: whether the time sufficed to simplify the counterexample.
    """

    names: tuple[str, ...]
    counterexample: Counterexample | None
    misses: tuple[tuple[float, bool], ...]
    least: float
    late: bool = False
    small: bool = True

    @property
    def name(self) -> str:
        """The hypotheses in words."""
        return " and ".join(self.names)

    @property
    def factor(self) -> float:
        """The least factor by which the hypotheses are missed at a problem where the statement seems to fail.
        Infinite if there is no such problem.
        """
        return min((factor for factor, failed in self.misses if failed), default=math.inf)

    @property
    def verdict(self) -> str:
        """The result: "needed"; "not found needed"; "not judged" if the time ended before any failure was judged;
        or "never unmet alone" if no problem violates exactly these hypotheses. Several hypotheses are "needed" if
        one of them is.
        """
        if self.counterexample is not None:
            return "needed"
        if self.late:
            return "not judged"
        return "not found needed" if self.problems else "never unmet alone"

    def __str__(self) -> str:
        several = len(self.names) > 1
        if self.counterexample is not None:
            needed = "one of them is needed. Without them" if several else "needed. Without it"
            said = f"{self.name}: {needed} the statement fails at {self.counterexample.where}"
            if 1 < self.factor < _FAR:
                by = f"{self.factor - 1:.2g} of its size" if self.factor < 2 else f"a factor of {self.factor:.3g}"
                said += f"; the nearest failure misses {'them' if several else 'it'} by {by}"
            return f"{said}." if self.small else f"{said}; the time ended before that was made small."
        if not self.problems:
            return f"{self.name}: never unmet {'by themselves' if several else 'alone'}, in no problem that was tried."
        if self.late:
            return f"{self.name}: {_seeming(self.fails)} of {counted(self.problems, 'problem')}, but {_LATE}."
        fails = f"; {_seeming(self.fails)} of them, but none was judged violated" if self.fails else ""
        tried = f"{counted(self.problems, 'problem')}, with a least margin of {self.least:.3g}"
        return f"{self.name}: not found needed in {tried}{fails}."

    def document(self) -> Document:
        """The row in ablation.json."""
        own = {"hypotheses": self.names, "verdict": self.verdict, "problems": self.problems, "fails": self.fails}
        return own | {"factor": self.factor, "least": self.least, "counterexample": _document(self.counterexample)}


@dataclasses.dataclass(frozen=True)
class Widened(AbstractRow):
    """The results beyond one end of an axis of the claim's spaces.

    **Fields:**

    - axis: the name of the axis.
    - upper: whether the end is the upper one.
    - bound: the value at this end.
    - reach: the farthest value beyond the bound that was allowed.
    - counterexample: a problem beyond the bound that meets all hypotheses and violates the statement. Its values of
      the other axes are in the space. None if none was found.
    - stands: the value of this axis nearest to the counterexample at which no failure was found, while the other
      axes have the values of the counterexample; None if it was not searched for, or if the statement also fails at
      the bound.
    - inside: whether the counterexample is at the bound itself, hence in the space.
    - misses: for each problem, how far beyond the bound it is, as a factor, and whether the statement seems to fail
      there.
    - least: the least margin of these problems; NaN if there are none.
    - late: whether the time ended before any failure was judged.
    - why: the reason why no problem beyond the bound could be tried; empty if some were tried.
    """

    axis: str
    upper: bool
    bound: float
    reach: float
    counterexample: Counterexample | None = None
    stands: Any = None
    inside: bool = False
    misses: tuple[tuple[float, bool], ...] = ()
    least: float = math.nan
    late: bool = False
    why: str = ""

    @property
    def name(self) -> str:
        """The bound as a condition, such as "d <= 10"."""
        return f"{self.axis} {'<=' if self.upper else '>='} {value_text(self.bound)}"

    @property
    def verdict(self) -> str:
        """The result, where "it" is the bound: "fails beyond it", "fails at it", "stands beyond it" if no failure
        was found, "not judged" if the time ended before any failure was judged, or "not tried".
        """
        if self.counterexample is not None:
            return "fails at it" if self.inside else "fails beyond it"
        if self.late:
            return "not judged"
        return "stands beyond it" if self.problems else "not tried"

    def __str__(self) -> str:
        if self.counterexample is not None and self.inside:
            return f"{self.name}: the statement fails at it, too, hence in the space: {self.counterexample.where}."
        if self.counterexample is not None:
            said = f"{self.name}: the statement fails beyond it, the nearest at {self.counterexample.where}"
            if self.stands is not None:
                said += f"; not seen to fail at {self.axis} = {value_text(self.stands)}, the rest the same"
            return f"{said}."
        if not self.problems:
            return f"{self.name}: not tried, as {self.why}."
        tried = f"{counted(self.problems, 'problem')} {'up' if self.upper else 'down'} to {value_text(self.reach)}"
        if self.late:
            return f"{self.name}: {_seeming(self.fails)} of {tried}, but {_LATE}."
        fails = f"; {_seeming(self.fails)} of them, but none was judged violated" if self.fails else ""
        return f"{self.name}: not seen to fail beyond it in {tried}, with a least margin of {self.least:.3g}{fails}."

    def document(self) -> Document:
        """The row in ablation.json."""
        names = ("axis", "upper", "bound", "reach", "verdict", "problems", "fails", "least", "stands", "why")
        return {name: getattr(self, name) for name in names} | {"counterexample": _document(self.counterexample)}


def _seeming(fails: int) -> str:
    return f"the statement seemed to fail in {fails}"


def _document(found: Counterexample | None) -> Document | None:
    return None if found is None else found.document()


@dataclasses.dataclass(frozen=True)
class Ablation:
    """The result of an ablation: which hypotheses, and which bounds of its spaces of problems, a claim needs.

    **Fields:**

    - claim: the claim.
    - hypotheses: a row for each hypothesis.
    - together: a row for each pair of hypotheses neither of which was found needed, then one for each larger set
      with a hypothesis that is never unmet alone or in a pair.
    - bounds: a row for each bound of the claim's spaces.
    - problems: the number of problems tried.
    - seconds: the time spent.
    """

    claim: Claim
    hypotheses: tuple[Ablated, ...]
    together: tuple[Ablated, ...]
    bounds: tuple[Widened, ...]
    problems: int
    seconds: float

    @property
    def lines(self) -> list[str]:
        """The table, with a line for each row. Rows of several hypotheses that no problem misses share a line.
        Bounds that were not tried for the same reason share a line, too.
        """
        return [line for _, lines in self._sections() for line in lines]

    def __str__(self) -> str:
        text = [f"{self.claim.id} [{self.claim.form}], {self.problems} problems in {self.seconds:.0f} s:"]
        for title, lines in self._sections():
            text += [f"  {title}:", *(f"    {line}" for line in lines)] if lines else []
        return "\n".join(text)

    def _sections(self) -> Iterator[tuple[str, list[str]]]:
        yield "without one hypothesis", list(map(str, self.hypotheses))
        untried = [row.name for row in self.together if not row.problems]
        never = [f"Never unmet by themselves, in no problem that was tried: {'; '.join(untried)}."] if untried else []
        yield "without several hypotheses", [*(str(row) for row in self.together if row.problems), *never]
        yield "beyond a bound of the space", list(self._widened())

    def _widened(self) -> Iterator[str]:
        reasons: dict[str, list[str]] = {}
        for row in self.bounds:
            if row.verdict == "not tried":
                reasons.setdefault(row.why, []).append(row.name)
            else:
                yield str(row)
        yield from (f"{'; '.join(names)}: not tried, as {why}." for why, names in reasons.items())

    def document(self) -> Document:
        """The contents of ablation.json."""
        head = {"id": self.claim.id, "form": self.claim.form, "statement": self.claim.text}
        rows: dict[str, Sequence[Ablated | Widened]] = {
            "hypotheses": self.hypotheses,
            "together": self.together,
            "bounds": self.bounds,
        }
        tables = {name: [row.document() for row in of] for name, of in rows.items()}
        return plain(head | tables | {"problems": self.problems, "versions": versions()})

    def save(self, folder: str | os.PathLike) -> None:
        """Write ablation.json."""
        write_json(pathlib.Path(folder) / FILE, self.document())
