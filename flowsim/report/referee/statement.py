"""The page with what a referee needs to know about one claim. `review` gathers its content."""

import dataclasses
import math
import pathlib
from collections.abc import Iterator, Sequence

from flowsim._core import VERSION
from flowsim._core.latex import escaped, latex
from flowsim._core.text import counted, number_text
from flowsim.claims import Claim, Judgement, Verdict
from flowsim.claims.deciding.verdict import own_stop
from flowsim.experiments.ablation import Ablation, ablate
from flowsim.experiments.audit import Entry, Kept, judge_all
from flowsim.experiments.certification import Certificates, Record, counterexample_of, with_certificates
from flowsim.experiments.search import Refutation, refute
from flowsim.papers.data import fault_of, latex_of_name
from flowsim.report.documents import summary
from flowsim.report.facts import looseness, sharp_constants, with_sharp
from flowsim.report.referee.pages import AbstractPage, Section, Table

CERTIFICATES, RECORD, SEARCH = "certificates", "certified", "search"
_SHARE = 1 / 3  # of the time, for certificates, for the search and for the hypotheses each
_RELATIONS = {"<=": r"$\le$", ">=": r"$\ge$", "<": "$<$", ">": "$>$", "=": "$=$"}


@dataclasses.dataclass(frozen=True)
class Review(AbstractPage):
    """All results about a claim.

    **Fields:**

    - claims: the forms of the claim. The first is the form under review.
    - entries: the verdicts on all forms, on their problems.
    - search: the result of the search for a counterexample; None if there was no search.
    - known: the file of a known counterexample, or None.
    - ablation: which hypotheses the claim needs; None if this was not searched.
    """

    claims: Sequence[Claim]
    entries: Sequence[Entry]
    search: Refutation | None
    known: pathlib.Path | None
    ablation: Ablation | None

    @property
    def claim(self) -> Claim:
        """The claim in the form under review, printed or corrected."""
        return self.claims[0]

    def verdicts(self, claim: Claim) -> list[Verdict]:
        """Return the verdicts on one form of the claim."""
        return [entry.verdict for entry in self.entries if entry.claim is claim]

    @property
    def lines(self) -> tuple[str, str, str]:
        """Three lines for a review, in LaTeX: the verdict, the hypotheses, and what was not checked."""
        return _verdict_line(self), _hypotheses_line(self), f"Not checked: {'; '.join(_not_checked(self))}."

    @property
    def title(self) -> str:
        """The title of the page, in LaTeX."""
        return escaped(f"{self.claim.source}: what flowsim {VERSION} finds")

    def sections(self) -> list[Section]:
        """Return the sections of the page, without empty ones."""
        parts = [
            Section("Summary", list(self.lines)),
            Section("Statement", [f"{escaped(_name(claim))}: {latex(claim.statement)}" for claim in self.claims]),
            Section("Verdicts", list(_verdict_parts(self))),
            Section("Hypotheses", list(_hypothesis_parts(self))),
            Section("Counterexample", list(_counterexample_parts(self))),
            Section("Sharp constants", _sharp_parts(self)),
            Section("Not checked", [f"{line[0].upper()}{line[1:]}." for line in _not_checked(self)]),
        ]
        return [section for section in parts if section.parts]


def review(
    claims: Sequence[Claim],
    out: pathlib.Path,
    *,
    budget: float,
    problems: int | None = None,
    seed: int = 0,
) -> Review:
    """Judge a claim on its problems, try certificates, search for a counterexample, and find which hypotheses are
    needed. Bars show the progress.

    There is no search for a counterexample if one is known, and no search for hypotheses if the claim fails
    although all of them are met. A claim that declares no space of problems is not searched at all.

    **Arguments:**

    - claims: the forms of the claim. The searches use the first.
    - out: the folder for certificates and a counterexample.
    - budget: the time in seconds for certificates and searches; verdicts take further time.
    - problems: the number of problems of each search, instead of a time limit; None for the time limit.
    - seed: the seed of the random draws.

    **Raises:** `ContradictionError` if a certificate shows the opposite of a verdict.
    """
    claim, known = claims[0], counterexample_of(claims[0])
    certificates = Certificates(out / CERTIFICATES, _SHARE * budget / len(claims))
    record = Record(out / RECORD)
    for one in claims:
        if (row := record.row(one)) is not None and not certificates.has(one, row):
            record.forget(one)
    entries = with_certificates(judge_all(claims), record, Kept(None), certificates)
    options = {"budget": _SHARE * budget, "problems": problems, "seed": seed, "progress": True}
    search = refute(claim, **options, out=out / SEARCH) if claim.spaces and known is None else None
    found = Review(tuple(claims), tuple(entries), search, known, ablation=None)
    verdicts = found.verdicts(claim)
    violated = any(verdict.verdict is Judgement.VIOLATED for verdict in verdicts)
    # Of a statement that fails although its hypotheses are met, nothing is learned from problems that miss one.
    fails = violated or known is not None or (search is not None and search.counterexample is not None)
    if fails or not claim.spaces or not any(verdict.hypotheses for verdict in verdicts):
        return found
    return dataclasses.replace(found, ablation=ablate(claim, **options))


def _name(claim: Claim) -> str:
    return claim.source if claim.form == "printed" else f"{claim.source}, corrected"


def _problem(entry: Entry) -> str:
    return entry.name or entry.problem.heading


def _verdict_line(of: Review) -> str:
    verdicts = of.verdicts(of.claim)
    said = f"{of.claim.source}{' as printed' if of.claim.form == 'printed' else ', corrected'} ({of.claim.id}): "
    said += f"{summary(verdicts)}, of {counted(len(verdicts), 'problem')}"
    shown = [verdict for verdict in verdicts if verdict.certified]
    said += f"; {shown[0].certified_text()} by a certificate on one of them" if shown else "; measured, not proved"
    known = ((verdict.margin, place) for place, verdict in enumerate(verdicts) if verdict.margin is not None)
    margin, place = min(known, default=(math.nan, -1))
    if place >= 0:
        worst = verdicts[place]
        said += f"; least margin {number_text(margin, '+.3g')}, numerical error {number_text(worst.floor, '.0e')}"
        if worst.verdict is Judgement.VIOLATED and (fault := fault_of(worst)) is not None:
            said += f"; {fault.weight.in_words}"
    return f"{escaped(said)}{''.join(_looseness(verdicts))}."


def _looseness(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Say for each constant of the statement by which factor the sharp constant differs from it. Texts in LaTeX."""
    found: dict[str, list[float]] = {}
    for _, name, *pair in with_sharp(verdicts):
        if (times := looseness(*pair)) is not None:
            found.setdefault(name, []).append(times)
    for name, times in found.items():
        factors = " to ".join(dict.fromkeys(f"{factor:.3g}" for factor in (min(times), max(times))))
        yield f"; the sharp {latex_of_name(name)} is {factors} times that of the statement"


def _hypotheses_line(of: Review) -> str:
    if of.ablation is None:
        names = dict.fromkeys(h.name for verdict in of.verdicts(of.claim) for h in verdict.hypotheses)
        return f"Hypotheses: {', '.join(map(latex_of_name, names)) or 'none'}."
    groups: dict[str, list[str]] = {}
    for row in (*of.ablation.hypotheses, *(row for row in of.ablation.together if row.problems)):
        groups.setdefault(row.verdict, []).append(" with ".join(map(latex_of_name, row.names)))
    said = "; ".join(f"{verdict}: {', '.join(names)}" for verdict, names in groups.items())
    return f"Hypotheses, searched on {counted(of.ablation.problems, 'problem')}: {said}."


def _not_checked(of: Review) -> Iterator[str]:
    verdicts = of.verdicts(of.claim)
    yield "the argument of the proof, and problems other than those named here"
    if stop := own_stop(verdicts):
        yield escaped(stop[0].lower() + stop[1:].rstrip("."))
    for reason in dict.fromkeys(verdict.uncertified for verdict in verdicts if verdict.uncertified):
        yield f"no certificate, as {escaped(reason)}"
    if not of.claim.spaces:
        yield "no search for a counterexample or for hypotheses, as the claim declares no set of problems"
    elif of.ablation is None and any(verdict.hypotheses for verdict in verdicts):
        yield "which hypotheses are needed, as the statement fails with all of them met"
    if any((fault := fault_of(verdict)) and fault.extraction for verdict in verdicts):
        yield "the printed page: the fault may be that of the text as it was extracted from the PDF"


def _verdict_parts(of: Review) -> Iterator[str | Table]:
    columns = ("form", "problem", "verdict", "certificate", "margin", "at", "numerical error", "tightness")
    rows = [
        (
            entry.verdict.form,
            _problem(entry),
            str(entry.verdict.verdict),
            entry.verdict.certified_text(),
            number_text(entry.verdict.margin, "+.3g"),
            entry.verdict.where_text(),
            number_text(entry.verdict.floor, ".0e"),
            number_text(entry.verdict.tightness),
        )
        for entry in of.entries
    ]
    yield Table(columns, [tuple(map(escaped, row)) for row in rows])
    yield from (f"{escaped(_name(claim))}: {escaped(claim.note)}" for claim in of.claims if claim.note)


def _hypothesis_parts(of: Review) -> Iterator[str | Table]:
    for entry in of.entries:
        if entry.claim is of.claim and entry.verdict.hypotheses:
            yield escaped(f"On the problem {_problem(entry)}:")
            rows = [
                (
                    latex_of_name(one.name),
                    escaped(number_text(float(one.value))),
                    _RELATIONS[one.relation],
                    escaped(number_text(float(one.bound))),
                    "yes" if one.met else "no",
                )
                for one in entry.verdict.hypotheses
            ]
            yield Table(("condition", "value", "", "bound", "met"), rows)
    if of.ablation is not None:
        yield from (escaped(line) for line in of.ablation.lines)


def _counterexample_parts(of: Review) -> Iterator[str | Table]:
    if of.known is not None:
        place = f"docs/counterexamples/{of.known.name}"
        yield escaped(f"A counterexample is known: flowsim run {place} --claims {of.claim.id} --out DIR")
    elif of.search is not None and of.search.counterexample is not None:
        yield escaped(of.search.counterexample.erratum)
        if of.search.counterexample.problem is not None:
            yield escaped(f"flowsim run {SEARCH}/counterexample.toml --claims {of.claim.id} --out DIR")
    elif of.search is not None:
        yield escaped(" ".join(line.strip() for line in str(of.search).splitlines() if line[:2] != "  "))


def _sharp_parts(of: Review) -> list[str | Table]:
    return [
        f"{latex_of_name(label)}: {escaped(text)} ({escaped(_problem(entry))})"
        for entry in of.entries
        for label, text in sharp_constants([entry.verdict]).items()
    ]
