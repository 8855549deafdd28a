"""Draws the results of searches: both sides of a statement where it fails, the growth of its best constant, and
which hypotheses it needs.
"""

import os
import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from flowsim._core.text import in_tex
from flowsim.claims import Judgement
from flowsim.experiments.ablation import Ablation, AbstractRow
from flowsim.experiments.search.counterexample import Counterexample
from flowsim.experiments.search.sharpening import Growth, Sharpening
from flowsim.report.plots import positive, save, styled
from flowsim.report.plots.axes import few_ticks
from flowsim.report.plots.names import name_of
from flowsim.report.plots.verdicts import COLOURS, sides, sides_of

_WIDTH, _HEIGHT = 3.6, 3.2  # inches, of a panel
_MOST_COLUMNS = 3
_LINE = 80  # characters, in a line of a statement
_WIDE = 10.0  # the ratio of the ends from which an axis is logarithmic
_ROW, _LIFT = 0.55, 0.15  # inches for a hypothesis, and of a row between what stands and what fails
_NAME = 34  # characters, in a line of a hypothesis
_FARTHEST = 1e3  # factors beyond are drawn here
_MARKERS = (
    ("o", COLOURS[Judgement.HOLDS], "the statement stands"),
    ("x", COLOURS[Judgement.VIOLATED], "it fails"),
)
_SLIGHT = 0.05  # a smaller power is not written


def draw_counterexample(found: Counterexample, path: str | os.PathLike) -> None:
    """Draw both sides of a claim along the flow that violates it, or at the points that the claim compares."""
    with styled():
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        axes, both = figure.add_subplot(), sides_of(found.claim, found.evidence)
        _two_sides(axes, found) if both.value.size == 1 else sides(ax=axes, verdict=found.verdict, both=both)
        save(figure, path)


def draw_growth(found: Sharpening, path: str | os.PathLike) -> None:
    """Draw the best constant, divided by the theorem's, against each parameter that has several values."""
    with styled():
        shown = [growth for growth in found.growth if len(growth.values) > 1]
        columns = min(len(shown), _MOST_COLUMNS)
        rows = -(-len(shown) // columns)
        figure = Figure(figsize=(_WIDTH * columns + 0.6, _HEIGHT * rows + 0.4), layout="constrained")
        figure.suptitle(f"{found.claim.id} [{found.claim.form}]: best constant over the theorem's")
        for place, growth in enumerate(shown):
            _growth(figure.add_subplot(rows, columns, place + 1), growth)
        save(figure, path)


def draw_ablation(found: Ablation, path: str | os.PathLike) -> None:
    """Draw the problems that an ablation tried: by how much each violates the hypotheses or bounds, and whether the
    statement fails there.

    There are up to three plots: for problems that violate one hypothesis, for those that violate several, and for
    those beyond a bound of the space of problems.
    """
    with styled():
        panels = [
            (title, label, [row for row in rows if row.misses])
            for title, label, rows in (
                ("without one hypothesis", "factor by which the hypothesis is missed", found.hypotheses),
                ("without several hypotheses", "factor by which the hypotheses are missed", found.together),
                ("beyond a bound of the space", "factor beyond the bound", found.bounds),
            )
        ]
        shown = [panel for panel in panels if panel[2]] or panels[:1]
        heights = [0.9 + _ROW * max(len(rows), 1) for _, _, rows in shown]
        figure = Figure(figsize=(7.2, 0.9 + sum(heights)), layout="constrained")
        figure.suptitle(f"{found.claim.id} [{found.claim.form}]")
        grid = figure.add_gridspec(len(shown), 1, height_ratios=heights)
        for place, (title, label, rows) in enumerate(shown):
            _marks(figure.add_subplot(grid[place]), title, label, rows)
        handles = [Line2D([], [], linestyle="none", marker=m, color=c, label=n) for m, c, n in _MARKERS]
        figure.legend(handles=handles, fontsize="small", loc="outside lower right", ncols=len(handles))
        save(figure, path)


def _marks(axes: Axes, title: str, label: str, rows: Sequence[AbstractRow]) -> None:
    axes.set_title(title, fontsize="medium")
    for place, row in enumerate(rows):
        for fails, (marker, colour, _) in enumerate(_MARKERS):
            x = [min(factor, _FARTHEST) for factor, failed in row.misses if failed == bool(fails)]
            axes.plot(x, [place + _LIFT * (2 * fails - 1)] * len(x), marker, color=colour, alpha=0.6)
    axes.set_yticks(range(len(rows)), [textwrap.fill(row.name, _NAME) for row in rows], parse_math=False)
    axes.set_xscale("log")
    axes.set_xlabel(label)
    axes.invert_yaxis()
    axes.margins(y=0.1)


def _two_sides(axes: Axes, found: Counterexample) -> None:
    """Draw the two sides as bars with their values, with the statement below."""
    both = {"value": found.value, "bound": found.bound}
    bars = axes.barh(list(both), list(both.values()), height=0.5, color=("C0", "C1"), hatch=("", "//"), alpha=0.8)
    axes.bar_label(bars, [in_tex(side) for side in both.values()], padding=4)
    axes.set_title(f"{found.claim.id} [{found.claim.form}]: {found.verdict.verdict}, margin {found.verdict.margin:.3g}")
    axes.axvline(0, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.margins(x=0.25)
    statement = textwrap.fill(found.claim.text, _LINE)
    axes.set_xlabel(f"{statement}\nat {found.verdict.where_text()}", parse_math=False)


def _growth(axes: Axes, growth: Growth) -> None:
    x, y = np.asarray(growth.values), positive(np.asarray(growth.factors))
    axes.plot(x, y, color="C0", marker="o", label="best over the others")
    axes.axhline(1.0, color="C1", linestyle="--", label="the theorem's constant")
    if np.min(x) > 0 and np.max(x) > _WIDE * np.min(x):
        axes.set_xscale("log")
    if np.nanmax(y, initial=1.0) > _WIDE * np.nanmin(y, initial=1.0):
        axes.set_yscale("log")
    few_ticks(axes, x)
    axes.set_xlabel(name_of(growth.name))
    axes.set_ylabel("factor")
    if abs(growth.slope) >= _SLIGHT:
        axes.set_title(f"power {growth.slope:.2f}", fontsize="medium")
    axes.margins(y=0.15)
    axes.legend(fontsize="small")
