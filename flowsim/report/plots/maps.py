"""Draws the map of a sweep: where each flow ends, how long it takes, and which margin is smallest.

A map with one axis is drawn as lines. With two axes it is drawn as images, with the first axis horizontal. With
more axes there is a row of images for each combination of values of the other axes. A boundary line shows where the
hypotheses of the claims are met. All cells have equal size, and nothing is shown by colour alone.
"""

import itertools
import os
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.collections import LineCollection
from matplotlib.colors import ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.textpath import TextPath
from matplotlib.ticker import LogLocator, MaxNLocator

from flowsim._core.text import in_tex, value_text
from flowsim._core.types import Options
from flowsim.experiments.sweep.axes import GridAxis
from flowsim.experiments.sweep.maps import Map
from flowsim.experiments.sweep.records import OUTCOMES
from flowsim.report.plots import positive, save, styled
from flowsim.report.plots.names import name_of

# The grey value and the symbol of an outcome.
_LOOKS = {
    "global-minimum": ("#f3efe6", ""),
    "saddle": ("#4a83bd", "o"),
    "other-critical-point": ("#8f2d12", "^"),
    "unfinished": ("#c9c9c9", "_"),
    "undecided": ("#7a7a7a", "d"),
    "failed": ("#000000", "x"),
}
_BOUNDARY: Options = {"color": "#8f2d12", "linestyle": "--", "linewidth": 1.6}
_EDGE: Options = _BOUNDARY | {"linestyle": "-"}  # drawn cell by cell, in pieces too short for dashes
_DARK = ("saddle", "other-critical-point", "undecided", "failed")
_TIMES: dict[str, tuple[str, Options]] = {
    "convergence_time": (r"excess below $10^{-6}$ of the start's", {"color": "C0", "linestyle": "-"}),
    "escape_time": ("left the saddle", {"color": "C3", "linestyle": "-."}),
}
_PROMISED: Options = {"color": "C1", "linestyle": "--"}
_STYLES = ("-", "--", "-.", ":")
_MOST_ROWS = 8
_FEW = 8  # values of an axis that are all labelled
_NONE = "#dcdcdc"
_PANEL = 2.3  # inches, the shorter side of an image
_APART = 6.0  # points, between the labels of ticks
_COLUMNS = 5  # in the legend
_LONGEST = 18  # characters, in a list that is a label


def draw(found: Map, path: str | os.PathLike) -> None:
    """Draw a map into a file, in the format of the path's suffix. A partial file is never visible."""
    with styled():
        save(figure(found), path)


def figure(found: Map) -> Figure:
    """Return the figure of a map."""
    return _lines(found) if len(found.axes) == 1 else _images(found)


def _margins(found: Map) -> dict[str, np.ndarray]:
    """Return the margins of each claim that makes a statement in at least one cell, by name."""
    names = [name.removeprefix("met_") for name in found.quantities if name.startswith("met_")]
    margins = {name: found[f"margin_{name}"] for name in names}
    return {name: values for name, values in margins.items() if np.any(np.isfinite(values))}


def _further_times(found: Map) -> list[str]:
    """Return the names of the times that papers add to a map."""
    own = ("margin_", "smallest_", *_TIMES)
    return [name for name in found.quantities if name.endswith("_time") and not name.startswith(own)]


def met(found: Map) -> np.ndarray:
    """Return, for each cell, whether the hypotheses of all claims are met. Claims that make no statement in any
    cell are ignored.
    """
    return np.all([found[f"met_{name}"] for name in _margins(found)], axis=0) & np.ones(found.shape, dtype=bool)


def _lines(found: Map) -> Figure:
    (axis,) = found.axes
    place = np.arange(len(axis.values))
    drawn = Figure(figsize=(6.0, 6.6))
    outcome, times, margins = drawn.subplots(3, 1, sharex=True, height_ratios=(1, 2.2, 2.2))
    known = [name for name in OUTCOMES if np.any(found["outcome"] == name)]
    for height, name in enumerate(known):
        here = found["outcome"] == name
        marker = _LOOKS[name][1] or "s"
        outcome.plot(place[here], np.full(here.sum(), height), marker, color="black", mfc=_LOOKS[name][0])
    outcome.set_yticks(range(len(known)), [name.replace("-", " ") for name in known])
    outcome.set_ylim(-0.6, len(known) - 0.4)
    of_papers = {name: (name.removesuffix("_time").replace("_", " "), _PROMISED) for name in _further_times(found)}
    for name, (label, style) in (_TIMES | of_papers).items():
        values = positive(found[name])
        if np.any(np.isfinite(values)):
            times.plot(place, values, label=label, marker=".", **style)
    times.set_yscale("log")
    times.set_ylabel(r"flow time  $t$")
    _legend(times)
    # Of many margins, those nearest to failing.
    least = sorted(_margins(found).items(), key=lambda item: np.nanmin(item[1]))[: len(_STYLES)]
    for (name, values), style in zip(least, _STYLES, strict=False):
        margins.plot(place, values, linestyle=style, marker=".", label=name)
    margins.axhline(0, color="black", linewidth=0.8)
    lowest = min([np.nanmin(line.get_ydata(), initial=0) for line in margins.lines])
    margins.set_yscale("symlog", linthresh=1)
    margins.set_ylim(bottom=2 * lowest - 0.3)
    margins.set_ylabel("margin, relative to the bound")
    _legend(margins)
    held = met(found)
    for panel in (outcome, times, margins):
        for edge in np.flatnonzero(np.diff(held)) + 0.5:
            panel.axvline(edge, **_BOUNDARY)
    _ticks(margins.xaxis, axis, 2 * _PANEL, 0.0)
    margins.set_xlabel(name_of(axis.field))
    if _margins(found):
        drawn.legend([Line2D([], [], **_BOUNDARY)], [_condition(held)], loc="outside upper right")
    return drawn


def _images(found: Map) -> Figure:
    slices = list(itertools.product(*(range(n) for n in found.shape[2:])))
    shown = [slices[i] for i in np.unique(np.linspace(0, len(slices) - 1, _MOST_ROWS).round().astype(int))]
    drawn = Figure(figsize=(11.0, 1.3 + 2.9 * len(shown)))
    panels = drawn.subplots(len(shown), 3, sharex=True, sharey=True, squeeze=False)
    times, margins = positive(found["convergence_time"]), positive(found["smallest_margin"])
    held = met(found)
    for row, index in zip(panels, shown, strict=True):
        at = (slice(None), slice(None), *index)
        _outcomes(row[0], found["outcome"][at])
        _mesh(drawn, row[1], times[at], _norm(times), r"time to $10^{-6}$ of the start's excess")
        _mesh(drawn, row[2], margins[at], _norm(margins), "smallest margin")
        _symbols(row[2], found["smallest_margin"][at] <= 0, "x", "black")
        for panel in row:
            panel.add_collection(LineCollection(_edges(held[at]), **_EDGE))
            panel.grid(False)
            _ticks(panel.xaxis, found.axes[0], _PANEL)
            _ticks(panel.yaxis, found.axes[1], _PANEL)
        values = [
            f"{name_of(axis.field)} = {value_text(axis.values[place])}"
            for axis, place in zip(found.axes[2:], index, strict=True)
        ]
        row[0].set_ylabel(name_of(found.axes[1].field))
        row[0].set_title("\n".join(values), loc="left", fontsize="medium")
    for panel in panels[-1]:
        panel.set_xlabel(name_of(found.axes[0].field))
    known = [name for name in OUTCOMES if np.any(found["outcome"] == name)]
    handles: list[Any] = [_swatch(name) for name in known]
    labels = [name.replace("-", " ") for name in known]
    if _margins(found):
        handles.append(Line2D([], [], **_EDGE))
        labels.append(_condition(held))
    if np.any(found["smallest_margin"] <= 0):
        handles.append(Line2D([], [], linestyle="", marker="x", color="black"))
        labels.append("margin not positive")
    together = {tuple: HandlerTuple(ndivide=1)}
    drawn.legend(handles, labels, handler_map=together, loc="outside upper left", ncols=_COLUMNS)
    if len(shown) < len(slices):
        drawn.supxlabel(f"{len(shown)} of {len(slices)} slices", fontsize="small")
    return drawn


def _outcomes(axes: Axes, names: np.ndarray) -> None:
    codes = np.select([names == name for name in OUTCOMES], range(len(OUTCOMES)))
    colours = ListedColormap([_LOOKS[name][0] for name in OUTCOMES])
    axes.pcolormesh(codes.T, cmap=colours, norm=Normalize(-0.5, len(OUTCOMES) - 0.5))
    for name, (_, symbol) in _LOOKS.items():
        if symbol:
            _symbols(axes, names == name, symbol, "white" if name in _DARK else "black")
    if (names == names.flat[0]).all():
        # A panel of one colour would look empty.
        name = str(names.flat[0])
        text = f"all {names.size} cells:\n{name.replace('-', ' ')}"
        back: Options = {"facecolor": _LOOKS[name][0], "edgecolor": "none"}
        colour = "white" if name in _DARK else "black"
        axes.text(0.5, 0.5, text, color=colour, ha="center", va="center", transform=axes.transAxes, bbox=back)


def _mesh(figure: Figure, axes: Axes, values: np.ndarray, norm: Normalize | None, label: str) -> None:
    axes.set_facecolor(_NONE)
    if norm is None:
        axes.text(0.5, 0.5, f"no {label}", ha="center", va="center", transform=axes.transAxes)
        return
    image = axes.pcolormesh(np.ma.masked_invalid(values).T, cmap="cividis", norm=norm)
    figure.colorbar(image, ax=axes, label=label, pad=0.02)


def _symbols(axes: Axes, here: np.ndarray, symbol: str, colour: str) -> None:
    """Draw a symbol in the middle of each cell where ``here`` is true."""
    x, y = np.nonzero(here)
    size = float(np.clip(90 / max(here.shape), 1.5, 7))
    axes.plot(x + 0.5, y + 0.5, linestyle="", marker=symbol, color=colour, mfc="none", markersize=size)


def _edges(held: np.ndarray) -> list[list[tuple[int, int]]]:
    """Return the sides between cells where a condition holds and cells where it does not, each as its two end
    points.
    """
    across = [[(i + 1, j), (i + 1, j + 1)] for i, j in np.argwhere(held[1:] != held[:-1]).tolist()]
    along = [[(i, j + 1), (i + 1, j + 1)] for i, j in np.argwhere(held[:, 1:] != held[:, :-1]).tolist()]
    return across + along


def _ticks(axis: XAxis | YAxis, swept: GridAxis, room: float, offset: float = 0.5) -> None:
    """Set readable ticks on an axis of the figure.

    They are at powers of ten if the values are geometric, and else at every value if the labels fit. Otherwise some
    of the numbers are labelled, or words are slanted.

    **Arguments:**

    - axis: the axis of the figure.
    - swept: the axis of the sweep.
    - room: the width for all labels in inches.
    - offset: the position of a tick within its cell, in cells.
    """
    values, places = swept.values, np.arange(len(swept.values)) + offset
    numbers = np.asarray(values, dtype=float) if all(_is_number(value) for value in values) else None
    if numbers is not None and len(values) > 2 and np.all(np.diff(numbers) > 0):
        if _is_geometric(numbers):
            ticks, scale, label = LogLocator(numticks=8).tick_values(numbers[0], numbers[-1]), np.log, _power
        elif len(values) > _FEW:
            ticks, scale, label = MaxNLocator(7).tick_values(numbers[0], numbers[-1]), np.asarray, _short
        else:
            ticks, scale, label = numbers, np.asarray, _short
        inside = ticks[(ticks >= numbers[0] * (1 - 1e-9)) & (ticks <= numbers[-1] * (1 + 1e-9))]
        at, labels = np.interp(scale(inside), scale(numbers), places), [label(tick) for tick in inside.tolist()]
    else:
        at, labels = places, [_short(value, f"value {number}") for number, value in enumerate(values, 1)]
    upright = isinstance(axis, XAxis)
    sizes = [_size(label)[0 if upright else 1] for label in labels]
    step = max(1, int(np.ceil((max(sizes) + _APART) * len(labels) / (72 * room))))
    if numbers is None and upright and step > 1 and len(labels) <= _FEW:
        words = [label.replace("\n", "") for label in labels]
        axis.set_ticks(at.tolist(), words, rotation=30, ha="right", rotation_mode="anchor")
    else:
        axis.set_ticks(at[::step].tolist(), labels[::step])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))


def _is_geometric(numbers: np.ndarray) -> bool:
    """Whether ascending numbers span more than a factor of 30, and either have equal ratios or are more than 8."""
    if not (numbers[0] > 0 and numbers[-1] / numbers[0] > 30):
        return False
    steps = np.diff(np.log(numbers))
    return len(numbers) > _FEW or bool(np.ptp(steps) <= 1e-3 * np.max(steps))


def _size(label: str) -> tuple[float, float]:
    """Return the width and height of a label in points."""
    lines = [TextPath((0, 0), line, size=matplotlib.rcParams["font.size"]).get_extents() for line in label.split("\n")]
    return max(line.width for line in lines), sum(line.height + 3 for line in lines)


def _power(value: float) -> str:
    return f"$10^{{{round(np.log10(value))}}}$"


def _short(value: Any, otherwise: str = "") -> str:
    """Format a value as a label. A long list is replaced by ``otherwise``."""
    if isinstance(value, list | dict):
        text = value_text(value)
        return text if len(text) <= _LONGEST else otherwise
    if isinstance(value, str | bool):
        return str(value).replace("-", "-\n", 1) if len(str(value)) > 10 else str(value)
    return in_tex(value)


def _swatch(name: str) -> tuple[Line2D, ...]:
    colour, symbol = _LOOKS[name]
    square = Line2D([], [], linestyle="", marker="s", markersize=10, mec="black", mew=0.5, mfc=colour)
    over = Line2D([], [], linestyle="", marker=symbol, color="white" if name in _DARK else "black", mfc="none")
    return (square, over) if symbol else (square,)


def _condition(held: np.ndarray) -> str:
    if np.all(held) or not np.any(held):
        return f"hypotheses of the claims: met {'everywhere' if np.all(held) else 'nowhere'}"
    return "edge of the hypotheses of the claims"


def _norm(values: np.ndarray) -> Normalize | None:
    """Return a logarithmic norm if the finite values span a factor of ten, else a linear one; None if no value is
    finite.
    """
    if not np.any(np.isfinite(values)):
        return None
    low, high = np.nanmin(values), np.nanmax(values)
    return LogNorm(low, high) if high >= 10 * low else Normalize(low, high if high > low else 1.1 * low)


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
