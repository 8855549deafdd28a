"""Gives axes readable ticks and labels, for times, for small ranges, and for few values."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from flowsim._core.text import in_tex

_CURVED = 3.0  # the ratio of its ends below which a logarithmic axis becomes linear
_FEW = 8  # values that are all ticks
_FLOW_TIME = r"flow time  $t$"


def readable(figure: Figure) -> None:
    """Make a logarithmic axis linear if its ends differ by less than a factor of 3, since all its ticks would have
    the same label.
    """
    for axes in figure.axes:
        for scale, limits, become in (
            (axes.get_xscale(), axes.get_xlim(), axes.set_xscale),
            (axes.get_yscale(), axes.get_ylim(), axes.set_yscale),
        ):
            low, high = sorted(limits)
            if scale == "log" and 0 < low < high < _CURVED * low:
                become("linear")


def count_steps(figure: Figure) -> None:
    """Label the time axes of a figure with the number of steps of gradient descent, instead of flow time."""
    for axes in figure.axes:
        axes.set_xlabel(axes.get_xlabel().replace(_FLOW_TIME, r"steps  $k$"))


def few_ticks(axes: Axes, values: Sequence[float] | np.ndarray) -> None:
    """Put the ticks of the horizontal axis at the given values, if these are few."""
    if len(values) <= _FEW:
        axes.set_xticks(np.asarray(values), [in_tex(value) for value in values])
        axes.xaxis.set_minor_locator(NullLocator())


def time_axis(axes: Axes, t: np.ndarray, scale: str = "log") -> Axes:
    """Label and scale the time axis.

    A logarithmic axis has time 0 at its left end. If the times begin below 0, they are relative to the steepest
    point of a late drop, and the label says so.

    **Arguments:** axes: the axes, on which everything else is drawn; t: the output times, (T,); scale: "log" or
    "linear".
    """
    if t[0] < 0:
        axes.set_xlabel(rf"flow time  $t - t_*$,  steepest at $t_*$ = {in_tex(-t[0])}")
        first, linear, share, ticks = t[0], max(t[-1], -t[-2]), 2.0, 5
    else:
        axes.set_xlabel(_FLOW_TIME)
        first, linear, share, ticks = 0.0, t[1] if t.size > 1 else 0.0, 0.5, 15
    if scale == "log" and linear:
        # Linear up to the first power of ten, so that 0 is the only tick there.
        axes.set_xscale("symlog", linthresh=10.0 ** np.ceil(np.log10(linear)), linscale=share)
        locator: Any = axes.xaxis.get_major_locator()
        locator.set_params(numticks=ticks)
    if linear:
        axes.set_xlim(max(first, -linear) if scale == "linear" else first, t[-1])
    axes.margins(y=0.15)
    return axes
