"""``{citation} PAPER`` and ``{statements} PAPER``: a paper, and its statements with their verdicts by docs/claims."""

import collections
import pathlib
import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from extensions.records import ORDER, VERDICT, sections_of
from flowsim.papers import ALL_CLAIMS, PAPERS
from flowsim.report.ledger import anchor_of
from flowsim.report.mathml import statement_in_html


class Citation(SphinxDirective):
    """The paper's authors, title, year and address, and how many of its statements came out how."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        (paper,) = (paper for paper in PAPERS if paper.id == self.arguments[0])
        address = f"[arXiv {paper.arxiv}](https://arxiv.org/abs/{paper.arxiv})"
        printed = [found for form, found in _verdicts(self, paper.id) if form == "printed"]
        worst = collections.Counter(_worst(found) for found in printed)
        counts = ", ".join(f"{verdict} {worst[verdict]}" for verdict in ORDER if worst[verdict])
        return self.parse_text_to_nodes(
            f"{paper.authors}, *{paper.title}* ({paper.year}), {address}.\n\n"
            f"**{len(printed)} printed statements judged, each by its worst verdict:** {counts}."
        )


class Statements(SphinxDirective):
    """A row for every statement and form: what it says, where it stands, its verdicts and a counterexample."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        paper = self.arguments[0]
        rows = ["| statement | says | verdicts |", "|---|---|---|"]
        claims = {(claim.id, claim.form): claim for claim in ALL_CLAIMS}
        for name, form, _, source, body in _sections(self, paper):
            # As HTML within Markdown, in which nothing of it is markup.
            html = statement_in_html(claims[name, form])
            says = re.sub(r"[*_`\[\]|~\\]", lambda found: f"&#{ord(found[0])};", html)
            found = collections.Counter(VERDICT.findall(body))
            verdicts = "<br>".join(f"{verdict} ({count})" for verdict, count in found.items())
            if weight := re.search(r"^- Weight: ([\w-]+)", body, re.MULTILINE):
                verdicts += f"<br>{weight[1]}"
            if certified := re.search(r"^- Certified: \*\*(.*?)\*\*", body, re.MULTILINE):
                verdicts += f"<br>{certified[1]}"
            if "Smallest counterexample found" in body:
                verdicts += f"<br>{{download}}`counterexample <../counterexamples/{name}.toml>`"
            title = f"[{name.removeprefix(f'{paper}.')}](../claims/{paper}.md#{anchor_of(name, form)})"
            where = source.removeprefix(f"{paper}, ")
            rows.append(f"| {title}<br>{form}; {where} | {says} | {verdicts} |")
        table = nodes.container(classes=["statements"])
        table += self.parse_text_to_nodes("\n".join(rows))
        return [table]


def _worst(found: list[str]) -> str:
    words = {verdict.split()[1] for verdict in found}
    return next(word for word in ORDER if word in words)


def _sections(directive: SphinxDirective, paper: str) -> list[tuple[str, str, str, str, str]]:
    docs = pathlib.Path(directive.env.srcdir)
    directive.env.note_dependency(str(docs / "claims" / f"{paper}.md"))
    return sections_of(docs, paper)


def _verdicts(directive: SphinxDirective, paper: str) -> list[tuple[str, list[str]]]:
    return [(form, VERDICT.findall(body)) for _, form, _, _, body in _sections(directive, paper)]


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directives."""
    app.add_directive("citation", Citation)
    app.add_directive("statements", Statements)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
