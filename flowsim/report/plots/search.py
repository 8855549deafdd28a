"""Pictures of what a search found: both sides of a statement where it breaks, and how its best constant grows."""

import os

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from flowsim.experiments.search.counterexample import Counterexample
from flowsim.experiments.search.sharpening import Growth, Sharpening
from flowsim.report.plots import STYLE, save

_WIDTH, _HEIGHT = 3.6, 3.2  # inches, of a panel
_MOST_COLUMNS = 3
_MARKS = 16  # along a flow
_WIDE = 10.0  # ratio of the ends of an axis that is drawn by its logarithm
_SLIGHT = 0.05  # power, below which none is written


def draw_counterexample(found: Counterexample, path: str | os.PathLike) -> None:
    """Draw both sides of a claim along the flow that breaks it, or at the points that it is judged at."""
    with matplotlib.style.context(["default", str(STYLE)]):
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        _sides(figure.add_subplot(), found)
        save(figure, path)


def draw_growth(found: Sharpening, path: str | os.PathLike) -> None:
    """Draw what the bound may be multiplied by against each parameter, beside the theorem's own constant."""
    with matplotlib.style.context(["default", str(STYLE)]):
        shown = [growth for growth in found.growth if len(growth.values) > 1]
        columns = min(max(len(shown), 1), _MOST_COLUMNS)
        rows = -(-max(len(shown), 1) // columns)
        figure = Figure(figsize=(_WIDTH * columns + 0.6, _HEIGHT * rows + 0.4), layout="constrained")
        figure.suptitle(f"{found.claim.id} [{found.claim.form}]: best constant over the theorem's")
        for place, growth in enumerate(shown):
            _growth(figure.add_subplot(rows, columns, place + 1), growth)
        save(figure, path)


def _sides(axes: Axes, found: Counterexample) -> None:
    value, bound = found.sides
    t = np.asarray(found.run.t)
    along = found.claim.along_flow and value.size >= t.size > 1
    x = t if along else np.arange(1, value.size + 1)
    value, bound = value[: x.size], bound[: x.size]
    style = "-" if along else "none"
    every = max(1, x.size // _MARKS) if along else 1
    axes.plot(x, value, color="C0", marker="o", markersize=4, markevery=every, linestyle=style, label="value")
    label = "what the statement says of it"
    axes.plot(x, bound, color="C1", marker="x", markersize=6, markevery=every, linestyle=style, label=label)
    axes.set_xlabel(r"flow time  $t$" if along else "point that the statement is judged at")
    axes.set_ylabel("the two sides")
    shown = np.concatenate([side[np.isfinite(side)] for side in (value, bound)])
    if shown.size and np.min(shown) > 0 and np.max(shown) > 100 * np.min(shown):
        axes.set_yscale("log")
    if along:
        axes.set_xscale("symlog", linthresh=float(t[1]))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(f"{found.claim.id} [{found.claim.form}]: {found.verdict.verdict}, margin {found.verdict.margin:.3g}")
    axes.margins(0.1)
    axes.legend()


def _growth(axes: Axes, growth: Growth) -> None:
    x, y = np.asarray(growth.values), np.asarray(growth.factors)
    axes.plot(x, y, color="C0", marker="o", label="best over the others")
    axes.axhline(1.0, color="C1", linestyle="--", label="the theorem's constant")
    if np.min(x) > 0 and np.max(x) > _WIDE * np.min(x):
        axes.set_xscale("log")
    if np.max(y) > _WIDE * min(1.0, np.min(y)):
        axes.set_yscale("log")
    axes.set_xlabel(growth.name)
    axes.set_ylabel("factor")
    if abs(growth.slope) >= _SLIGHT:
        axes.set_title(f"power {growth.slope:.2f}", fontsize="medium")
    axes.margins(y=0.15)
    axes.legend(fontsize="small")
