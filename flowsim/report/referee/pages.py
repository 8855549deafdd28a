"""Writes a page for a review as HTML, Markdown and LaTeX, from sections of texts and tables in LaTeX."""

import abc
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from flowsim._core import VERSION
from flowsim._core.documents import versions
from flowsim._core.files import write_whole
from flowsim._core.latex import plain, text_and_formulas, unescaped
from flowsim.report.ledger import escaped as escaped_in_markdown
from flowsim.report.mathml import in_html
from flowsim.report.page import template

_VERT = r"\\vert "
_BAR = re.compile(r"(?<!\\)[|]")
_PACKAGES = "amsmath, amssymb, array, booktabs and longtable"
_DOT = re.compile(r"(?<=[a-z0-9])[.](?=[a-z]{2})")  # inside an id
_MAY_BREAK = r".\\allowbreak{}"


class Table(NamedTuple):
    """A table of texts in LaTeX.

    **Fields:**

    - columns: the titles of the columns.
    - rows: the cells of each row.
    - widths: the widths of the columns in percent, for a table with long cells. LaTeX writes such a table as a
      list.
    """

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    widths: tuple[int, ...] = ()


class Section(NamedTuple):
    """A title with its texts in LaTeX and its tables."""

    title: str
    parts: list[str | Table]


class AbstractPage(abc.ABC):
    """A page for a review. ``str(page)`` is a few lines of plain text to paste into a review."""

    @property
    @abc.abstractmethod
    def title(self) -> str:
        """The title of the page, in LaTeX."""

    @property
    @abc.abstractmethod
    def lines(self) -> tuple[str, ...]:
        """A few lines in LaTeX for a review; ``str(page)`` is the same lines as plain text."""

    @abc.abstractmethod
    def sections(self) -> list[Section]:
        """Return the sections of the page. The first one repeats ``lines``."""

    def __str__(self) -> str:
        return "\n".join(_by_parts(line, lambda formula: plain(f"${formula}$"), unescaped) for line in self.lines)

    def save(self, folder: pathlib.Path) -> list[pathlib.Path]:
        """Write referee.html, referee.md and referee.tex to a folder; return their paths."""
        sections, written = self.sections(), []
        for suffix, form in (("html", _in_html), ("md", _in_markdown), ("tex", _in_latex)):
            path, text = folder / f"referee.{suffix}", form(self.title, sections)
            write_whole(path, lambda file, text=text: file.write(text.encode()))
            written.append(path)
        return written


def _in_html(title: str, sections: Sequence[Section]) -> str:
    return template("referee.html.jinja").render(
        title=in_html(title), sections=_written(sections, in_html), versions=versions()
    )


def _written(sections: Sequence[Section], form: Callable[[str], str]) -> list[Section]:
    """Convert all texts of some sections with the function ``form``, from LaTeX to another format."""

    def part(one: str | Table) -> str | Table:
        if isinstance(one, str):
            return form(one)
        return one._replace(columns=tuple(map(form, one.columns)), rows=[tuple(map(form, row)) for row in one.rows])

    return [Section(section.title, [part(one) for one in section.parts]) for section in sections]


def _in_markdown(title: str, sections: Sequence[Section]) -> str:
    lines = [f"# {_markdown(title)}"]
    for section in _written(sections, _markdown):
        lines.append(f"## {section.title}")
        for part in section.parts:
            if isinstance(part, str):
                lines.append(f"- {part}")
            else:
                rows = [part.columns, ("---",) * len(part.columns), *part.rows]
                lines.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
    return "\n\n".join(lines) + "\n"


def _markdown(text: str) -> str:
    r"""Convert LaTeX to Markdown. Bars in formulas become ``\vert``, since a bar would end a cell of a table."""
    return _by_parts(
        text, lambda formula: f"${_BAR.sub(_VERT, formula)}$", lambda part: escaped_in_markdown(unescaped(part))
    )


def _by_parts(latex: str, formula: Callable[[str], str], text: Callable[[str], str]) -> str:
    """Convert the formulas of a LaTeX text with one function and the texts between them with another."""
    parts = text_and_formulas(latex)
    return "".join(formula(part) if place % 2 else text(part) for place, part in enumerate(parts))


def _in_latex(title: str, sections: Sequence[Section]) -> str:
    head = rf"% flowsim {VERSION}. Take it in with \input{{referee}}; it needs {_PACKAGES}."
    # Long formulas break only if lines may be loose.
    lines = [head, r"\begingroup\sloppy", rf"\section*{{{title}}}"]
    for section in sections:
        lines.append(rf"\subsection*{{{section.title}}}")
        for part in section.parts:
            if isinstance(part, str):
                lines.append(f"{part}\n")
            else:
                lines.append(_list_in_latex(part) if part.widths else _table_in_latex(part))
    return "\n".join([*lines, r"\endgroup", ""])


def _list_in_latex(of: Table) -> str:
    """Write a table as a LaTeX list with an item for each row. The first column is the label of the item."""
    items = []
    for name, *cells in of.rows:
        named = zip(of.columns[1:], cells, strict=True)
        lines = ["", *(rf"    \emph{{{column}:}} {_DOT.sub(_MAY_BREAK, cell)}" for column, cell in named if cell)]
        items.append(rf"  \item[{{{name}}}] \mbox{{}}" + " \\newline\n".join(lines))
    return "\n".join([r"\begin{description}", *items, r"\end{description}", ""])


def _table_in_latex(of: Table) -> str:
    """Write a table as a LaTeX longtable, which can continue on the next page."""
    cells = list(zip(of.columns, *of.rows, strict=True))
    sizes = [max(max(map(len, cell.split() or [""])) for cell in column) for column in cells]
    share = (1 - 0.025 * (len(sizes) - 1)) / sum(sizes)  # between columns 8 pt, of 345 in an article
    columns = "".join(rf">{{\raggedright\arraybackslash}}p{{{share * size:.3f}\linewidth}}" for size in sizes)
    head, *body = (f"  {_DOT.sub(_MAY_BREAK, ' & '.join(row))} \\\\" for row in (of.columns, *of.rows))
    lines = [
        rf"{{\footnotesize\setlength{{\tabcolsep}}{{4pt}}\begin{{longtable}}{{@{{}}{columns}@{{}}}}",
        r"  \toprule",
        head,
        r"  \midrule\endhead",
        *body,
        r"  \bottomrule",
        r"\end{longtable}}",
    ]
    return "\n".join(lines) + "\n"
