"""Verdicts on claims, and how they are printed."""

import dataclasses
import enum
import math
from collections.abc import Sequence
from typing import Any

from flowsim._core import VERSION
from flowsim._core.documents import extra, html_table
from flowsim._core.latex import plain
from flowsim._core.text import number_text
from flowsim.claims.hypotheses import Hypothesis


class Judgement(enum.StrEnum):
    """The five possible verdicts on a claim."""

    HOLDS = "holds"
    VIOLATED = "violated"
    UNRESOLVED = "unresolved"
    VACUOUS = "vacuous"
    NOT_APPLICABLE = "not-applicable"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The verdict on a claim, with the numbers that it rests on. docs/verdicts.md explains every field.

    **Fields:**

    - id, source, form, statement: those of the claim.
    - verdict: the judgement.
    - margin: the least signed slack, relative to the size of the bound. None if the statement asserts nothing.
    - where: the point of the least margin: its time, for a descent its number of steps, or a description in words.
    - floor: the numerical error plus the allowance at this point, in the units of the margin.
    - tightness: the ratio of the two sides at this point.
    - hypotheses: the conditions of the statement.
    - constants: numbers by name.
    - note: the note of the claim, and the reason for the verdict.
    - until: the time up to which a statement for all t was judged. None if all later times are bounded too, or if
      the statement is not one for all t.
    - cut: whether ``until`` is the end of a run that did not meet a stopping rule, or the time from which on
      rounding hides the flow.
    - certified: "proved" or "refuted" if a certificate shows this. None if there is no certificate.
    - proved_until: the time up to which a statement along the flow is proved, infinite if it is proved for all t.
      None if it does not depend on a flow.
    - uncertified: why there is no certificate, if one was requested.
    - clock: the symbol of the time, "t" for a flow and "k" for a descent.
    """

    id: str
    source: str
    form: str
    statement: str
    verdict: Judgement
    margin: float | None
    where: float | str | None
    floor: float | None
    tightness: float | None
    hypotheses: tuple[Hypothesis, ...]
    constants: dict[str, float]
    note: str
    until: float | None = None
    cut: bool = False
    certified: str | None = None
    proved_until: float | None = None
    uncertified: str = ""
    clock: str = "t"

    @property
    def text(self) -> str:
        """The statement as plain text."""
        return plain(self.statement)

    def __str__(self) -> str:
        if self.margin is None:
            return f"{self.id} [{self.form}]: {self.in_words()}. {self.note}".rstrip(" .") + "."
        return (
            f"{self.id} [{self.form}]: {self.in_words()}, margin {self.margin:.3g} at {self.where_text()} "
            f"(numerical floor {self.floor:.1e})"
        )

    @property
    def contradicted(self) -> bool:
        """Whether a certificate shows the opposite of what was measured."""
        return (str(self.verdict), self.certified) in (("holds", "refuted"), ("violated", "proved"))

    def in_words(self) -> str:
        """The verdict with the time up to which it was judged and, if there is a certificate, its result."""
        judged = f"{self.verdict}{self._until()}"
        return f"{judged}, {self.certified_text()}" if self.certified else judged

    def certified_text(self) -> str:
        """The result of the certificate and, for a proof along a flow, the time up to which it holds; a dash if
        there is no certificate.
        """
        if self.certified is None or self.proved_until is None:
            return self.certified or "-"
        until = "for all t" if self.proved_until == math.inf else f"until t = {self.proved_until:.4g}"
        return f"{self.certified} {until}"

    def _until(self) -> str:
        return "" if self.until is None else f" until {self.clock} = {self.until:.4g}"

    def verdict_text(self) -> str:
        """The verdict. If the run was cut, also the time up to which it was judged."""
        return f"{self.verdict}{self._until()}" if self.cut else str(self.verdict)

    def where_text(self) -> str:
        """The point of the least margin as a text such as ``t = 3.2``; a dash if it is not known."""
        if self.where is None:
            return "-"
        return f"{self.clock} = {self.where:.4g}" if isinstance(self.where, float) else str(self.where)

    def _repr_html_(self) -> str:
        columns, (cells,) = _shown([self])
        return html_table((), [*zip(columns, cells, strict=True), ("statement", self.text)], self.note)


class Verdicts(list[Verdict]):
    """A list of verdicts, which a notebook shows as a table."""

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(*_shown(self), own_stop(self))

    def to_dataframe(self) -> Any:
        """A ``pandas.DataFrame`` with one row for each verdict. Its column ``unmet`` lists the hypotheses that are
        not met.

        **Raises:** `ProblemError` if pandas is not installed.
        """
        names = (
            "id",
            "source",
            "form",
            "statement",
            "verdict",
            "until",
            "certified",
            "proved_until",
            "margin",
            "where",
            "floor",
            "tightness",
            "note",
        )
        rows = [
            {name: getattr(verdict, name) for name in names}
            | {"verdict": str(verdict.verdict), "statement": verdict.text}
            | {"unmet": "; ".join(part.name for part in verdict.hypotheses if not part.met)}
            for verdict in self
        ]
        return extra("pandas").DataFrame(rows, columns=[*names, "unmet"])


_COLUMNS = ("claim", "form", "verdict", "margin", "where", "floor", "tightness")


def _shown(verdicts: Sequence[Verdict]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The names of the columns in a table of verdicts, and the cells of each row."""
    more = ("certified",) if certificates_asked(verdicts) else ()
    rows = [(*_cells(verdict), verdict.certified_text()) for verdict in verdicts]
    return (*_COLUMNS, *more), [row[: len(_COLUMNS) + len(more)] for row in rows]


def _cells(verdict: Verdict) -> tuple[str, ...]:
    numbers = (number_text(verdict.margin, "+.3g"), verdict.where_text(), number_text(verdict.floor, ".0e"))
    return verdict.id, verdict.form, verdict.verdict_text(), *numbers, number_text(verdict.tightness)


def certificates_asked(verdicts: Sequence[Verdict]) -> bool:
    """Whether a certificate was requested for any of the verdicts."""
    return any(verdict.certified or verdict.uncertified for verdict in verdicts)


def own_stop(verdicts: Sequence[Verdict]) -> str:
    """A sentence with the time up to which statements for all t were judged, for flows that met a stopping rule.

    The time is left out if it differs between verdicts. Empty if no verdict is about such a statement and flow.
    """
    times = {verdict.until for verdict in verdicts if verdict.until is not None and not verdict.cut}
    if not times:
        return ""
    at = f", t = {min(times):.4g}" if len(times) == 1 else ""
    return f"Statements for all t were judged up to the time at which the flow met a stopping rule{at}."


def citation(verdict: Verdict) -> str:
    """One line that cites a verdict, with its accuracy and the version of flowsim."""
    words = [f"{verdict.source} [{verdict.form}]: {verdict.in_words()}"]
    if verdict.margin is not None:
        at = "" if verdict.where is None else f" at {verdict.where_text()}"
        words.append(f"margin {number_text(verdict.margin)}{at}")
    if verdict.floor is not None:
        words.append(f"numerical floor {number_text(verdict.floor, '.0e')}")
    return f"{', '.join(words)}; flowsim {VERSION}"
