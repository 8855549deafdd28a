"""``{every-claim}`` and ``{claim-totals}``: a table of all claims that a browser filters, and how many came out how."""

import functools
import html
import pathlib

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from extensions.records import HEADS, STATEMENT, Row, controls, rows_of, totals
from flowsim.report.mathml import statement_in_html

PAGE = "every-claim"  # the page with the table, and its script in docs/_static
_rows_of = functools.cache(rows_of)


class EveryClaim(SphinxDirective):
    """The filters, and a row for every form of every statement."""

    def run(self) -> list[nodes.Node]:
        rows = _rows(self.env)
        lines = [f"| {' | '.join(HEADS)} |", "|" + "---|" * len(HEADS), *(row.markdown for row in rows)]
        (table,) = self.parse_text_to_nodes("\n".join(lines))
        head, *body = table.findall(nodes.row)
        head.insert(STATEMENT, nodes.entry("", nodes.paragraph("", "statement")))
        for element, row in zip(body, rows, strict=True):
            element["classes"] += row.classes
            element.insert(STATEMENT, nodes.entry("", nodes.raw("", _statement(row), format="html")))
        (group,) = table.findall(nodes.tgroup)
        group["cols"] += 1
        group.insert(STATEMENT, nodes.colspec(colwidth=1))
        open_ = '<div class="every-claim" role="region" aria-label="Every claim" tabindex="0">'
        return [nodes.raw("", part, format="html") for part in (controls(len(rows)), open_)] + [
            table,
            nodes.raw("", "</div>", format="html"),
        ]


class ClaimTotals(SphinxDirective):
    """A sentence with the counts, each of which links to its rows."""

    def run(self) -> list[nodes.Node]:
        page = self.env.app.builder.get_relative_uri(self.env.docname, PAGE)
        return self.parse_text_to_nodes(totals(_rows(self.env), page))


def _statement(row: Row) -> str:
    """The statement in one line, which opens to the whole, and in plain letters, which the search reads."""
    plain = html.escape(row.claim.text)
    whole = statement_in_html(row.claim)
    return f"<details><summary>{whole}</summary></details><span hidden>{plain}</span>"


def _rows(env: BuildEnvironment) -> list[Row]:
    docs = pathlib.Path(env.srcdir)
    for file in (*docs.glob("claims/*.md"), *docs.glob("certified/*.json")):
        env.note_dependency(str(file))
    return _rows_of(docs)


def _with_script(app: Sphinx, page: str, *_: object) -> None:
    if page == PAGE:
        app.add_js_file(f"{PAGE}.js", loading_method="defer")


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directives, and the script of the page."""
    app.add_directive("every-claim", EveryClaim)
    app.add_directive("claim-totals", ClaimTotals)
    app.connect("html-page-context", _with_script)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
