"""What the pages about claims show, from the ledger and the package: rows, filters and totals. Sphinx is not needed."""

import collections
import dataclasses
import html
import pathlib
import re
from collections.abc import Iterable, Sequence

from flowsim.claims import Claim, Judgement
from flowsim.experiments.certification import counterexample_of
from flowsim.papers import PAPERS
from flowsim.papers.data import Weight
from flowsim.papers.paper import Paper
from flowsim.report.documents import MARKS
from flowsim.report.ledger import anchor_of
from flowsim.report.referee import Recorded, recorded

SECTION = re.compile(
    r"^## (\S+) \((\w+)\)\n\n> (.*?)\n\n- Source: (.*?)\n(.*?)(?=^## |^<!-- |\Z)", re.MULTILINE | re.DOTALL
)
VERDICT = re.compile(r"^\| .*? \| ([✓✗?∅–] [\w-]+) \| [^|]* \| [^|]* \|$", re.MULTILINE)
ORDER = (
    Judgement.VIOLATED,
    Judgement.UNRESOLVED,
    Judgement.HOLDS,
    Judgement.VACUOUS,
    Judgement.NOT_APPLICABLE,
)
FAULTS = {
    Weight.FALSE: "false",
    Weight.WRONG_CONSTANT: "wrong constant",
    Weight.CONDITION_LEFT_OUT: "lacks a condition",
    Weight.SLIP: "slip",
    "extraction": "perhaps not in the paper",
}
CERTIFIED = {"proved": "proved", "refuted": "refuted", "no": "no"}
# By the worst verdict of a claim on its problems, or by one that it has on some of them.
VERDICTS = {
    "violated": "violated on some problem",
    "unresolved": "unresolved on some, violated on none",
    "holds": "holds on all on which it applies",
    "vacuous": "vacuous on some",
    "not-applicable": "not applicable on some",
}
# What a row may be filtered by, with the label of the field and what may be chosen.
FILTERS = {
    "paper": ("Paper", {paper.id: paper.id for paper in PAPERS}),
    "form": ("Form", {"printed": "as printed", "corrected": "corrected"}),
    "verdict": ("Verdict", VERDICTS),
    "fault": ("What is wrong", FAULTS),
    "certified": ("Certified", CERTIFIED),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """One form of a statement, as the table of all claims shows it."""

    record: Recorded

    @property
    def claim(self) -> Claim:
        """The statement in this form."""
        return self.record.claim

    @property
    def paper(self) -> str:
        """The id of its paper."""
        return self.claim.id.partition(".")[0]

    @property
    def worst(self) -> Judgement:
        """The first of its verdicts in the order violated, unresolved, holds, vacuous, not applicable."""
        return next(verdict for verdict in ORDER if verdict in (self.record.counts or {}))

    @property
    def fault(self) -> str | None:
        """What is wrong with it, by a key of `FAULTS`; None if it is not known to fail."""
        if self.record.fault is None:
            return None
        return "extraction" if self.record.fault.extraction else self.record.fault.weight

    @property
    def values(self) -> dict[str, set[str]]:
        """What it is found by, under each of the `FILTERS`."""
        some = {Judgement.VACUOUS, Judgement.NOT_APPLICABLE} & set(self.record.counts or {})
        return {
            "paper": {self.paper},
            "form": {self.claim.form},
            "verdict": {self.worst, *some},
            "fault": {self.fault} if self.fault else set(),
            "certified": {self.record.certified or "no"},
        }

    @property
    def classes(self) -> list[str]:
        """Classes of its element, as the filters in the browser read them."""
        return sorted(f"{name}-{value}" for name, values in self.values.items() for value in values)

    @property
    def markdown(self) -> str:
        """Its cells in Markdown, but that of the statement, which is HTML: its place, verdicts, fault and files."""
        claim, counts = self.claim, self.record.counts or {}
        link = f"[{claim.id}](claims/{self.paper}.md#{anchor_of(claim.id, claim.form)})"
        where = re.sub(r"[*_\\|]", r"\\\g<0>", claim.source.removeprefix(f"{self.paper}, "))
        place = where if claim.form == "printed" else f"{claim.form}; {where}"
        verdicts = "<br>".join(f"{MARKS[verdict]} {verdict} ({count})" for verdict, count in counts.items())
        file = counterexample_of(claim)
        download = "" if file is None else f"{{download}}`counterexample <counterexamples/{file.name}>`"
        fault = "" if self.fault is None else FAULTS[self.fault]
        shown = "<br>".join(filter(None, (self.record.certified, download)))
        cells = (f"{link}<br>{place}", verdicts, fault, shown)
        return f"| {' | '.join(cells)} |"


HEADS = ("claim", "verdicts (problems)", "what is wrong", "certified")
STATEMENT = 1  # the place of its column, between those of the Markdown


def rows_of(docs: pathlib.Path, papers: Sequence[Paper] = PAPERS) -> list[Row]:
    """A row for each form of each statement.

    **Arguments:** docs: the folder with ``claims`` and ``certified``; papers: those whose statements they are.

    **Raises:** `ValueError` if a page of the ledger contradicts itself or the package.
    """
    rows = [Row(record) for paper in papers for record in recorded(paper, docs)]
    judged = {}
    for paper in papers:
        for name, form, _, _, body in sections_of(docs, paper.id):
            judged[name, form] = collections.Counter(Judgement(one.split()[1]) for one in VERDICT.findall(body))
    for row in rows:
        name = row.claim.id, row.claim.form
        if judged.get(name) != row.record.counts:
            raise ValueError(f"claims/{row.paper}.md counts other verdicts on {' '.join(name)} than its section has")
    return rows


def sections_of(docs: pathlib.Path, paper: str) -> list[tuple[str, str, str, str, str]]:
    """Id, form, statement, source and the rest of each section of a paper's page in the ledger."""
    return SECTION.findall((docs / "claims" / f"{paper}.md").read_text(encoding="utf-8"))


def query(**chosen: str) -> str:
    """The fragment of an address that chooses rows."""
    return "#" + "&".join(f"{name}={value}" for name, value in chosen.items())


def chosen(rows: Iterable[Row], **values: str) -> list[Row]:
    """The rows that the filters leave: those with each of the values."""
    return [row for row in rows if all(value in row.values[name] for name, value in values.items())]


def totals(rows: list[Row], page: str) -> str:
    """How many printed statements came out how, in Markdown, with links to the filtered table.

    **Arguments:** rows: those of `rows_of`; page: the address of the table.
    """

    def linked(text: str, **values: str) -> str:
        count = len(chosen(rows, form="printed", **values))
        address = html.escape(f"{page}{query(form='printed', **values)}")
        return f'<a href="{address}">{count} {text}</a>'

    printed, corrected = (len(chosen(rows, form=form)) for form in ("printed", "corrected"))
    kinds = {
        "false": "are false",
        "wrong-constant": "have a wrong constant",
        "condition-left-out": "lack a condition",
        "slip": "are slips",
        "extraction": "fail in the text extracted from the PDF, and perhaps not in the paper",
    }
    said = [linked(words, verdict="violated", fault=fault) for fault, words in kinds.items()]
    standing = [
        linked("hold on every problem on which they apply", verdict="holds"),
        linked("are unresolved on some", verdict="unresolved"),
        linked("are violated", verdict="violated"),
    ]
    return (
        f"{printed} printed statements of {len(PAPERS)} papers are judged, and {corrected} corrected forms. As "
        f"printed, {', '.join(standing[:-1])}, and {standing[-1]}. Of these, {', '.join(said[:-1])}, and {said[-1]}."
    )


def controls(rows: int) -> str:
    """The filters in HTML, hidden until the script of the page finds them."""
    fields = []
    for name, (label, choices) in FILTERS.items():
        options = ['<option value="">all</option>']
        options += [f'<option value="{value}">{html.escape(text)}</option>' for value, text in choices.items()]
        fields.append(f'<label>{label} <select name="{name}">{"".join(options)}</select></label>')
    fields.append(
        '<label>Text <input type="search" name="text" placeholder="words, all of which are in a row"></label>'
    )
    fields.append('<button type="reset">Show all</button>')
    shown = f'<output aria-live="polite">{rows} of {rows} rows</output>'
    return f'<form class="claim-filters" hidden>{"".join(fields)}{shown}</form>'
