"""Writes verdicts as a LaTeX table for a paper."""

from collections.abc import Sequence

from flowsim._core import VERSION
from flowsim._core.latex import escaped, latex, number_in_latex
from flowsim._core.text import number_text
from flowsim.claims import Judgement, Verdict

_LONGEST = 8  # rows, of several lines each, on one page

_HEAD = r"""% Verdicts of flowsim {version}. Take it in with \input{{verdicts}}; it needs the packages {packages}.
% "flowsim cite" prints the BibTeX entries of the papers and of flowsim.
{{\small\setlength{{\tabcolsep}}{{4pt}}
\begin{{{table}}}{{@{{}}p{{0.18\linewidth}}p{{0.375\linewidth}}lrr@{{}}}}
  \toprule
  Source & Statement & Verdict & Margin & Floor \\
  \midrule
{end_of_head}"""
_FOOT = r"""  \bottomrule
\end{{{table}}}}}
"""


def verdicts_table(verdicts: Sequence[Verdict]) -> str:
    """Return the text of verdicts.tex: a row with source, statement, verdict, margin and floor for every statement
    that applies. The table is a tabular, or a longtable if it does not fit on a page.
    """
    rows = [_row(verdict) for verdict in verdicts if verdict.verdict is not Judgement.NOT_APPLICABLE]
    long = len(rows) > _LONGEST
    table = "longtable" if long else "tabular"
    packages = f"amsmath, amssymb, booktabs{' and longtable' if long else ''}"
    head = _HEAD.format(version=VERSION, packages=packages, table=table, end_of_head="  \\endhead\n" if long else "")
    return head + "".join(rows) + _FOOT.format(table=table)


def _row(verdict: Verdict) -> str:
    source = verdict.source if verdict.form == "printed" else f"{verdict.source}, corrected"
    shown = [verdict.certified_text()] if verdict.certified else []
    cells = (
        rf"\raggedright {escaped(source)}",
        rf"\raggedright {latex(verdict.statement)}",
        escaped(", ".join([verdict.verdict_text().replace("-", " "), *shown])),
        number_in_latex(number_text(verdict.margin, "+.2g")),
        number_in_latex(number_text(verdict.floor, ".0e")),
    )
    return f"  {' & '.join(cells)} \\\\ \\addlinespace\n"
