"""Draws the loss along a flow, with its plateaus."""

import functools
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes

from flowsim._core.text import in_tex
from flowsim.claims.critical_points.plateaus import Plateau, plateaus
from flowsim.flow.trajectory import Trajectory
from flowsim.report.plots.flows import on_axes

_AROUND = 0.35  # of the time from the first escape to the last arrival: shown before and after


def of_plateaus(trajectory: Trajectory) -> dict[str, Callable[..., Axes]]:
    """Return {"plateaus": draw}, where ``draw`` takes axes and draws on them the flow with its plateaus.

    Return an empty dictionary if there are fewer than two plateaus, or if a drop comes so late that float64 times
    counted from the start are too coarse to resolve it.
    """
    if trajectory.counted is not None or len(found := plateaus(trajectory)) < 2:
        return {}
    return {"plateaus": functools.partial(staircase, trajectory=trajectory, found=found)}


@on_axes
def staircase(axes: Axes, trajectory: Trajectory, found: Sequence[Plateau]) -> Axes:
    """Draw the loss over time from the end of the first plateau to the start of the last. Plateaus are shaded and
    labelled by their levels.

    Time is linear or logarithmic, whichever shows the shortest plateau wider.

    **Arguments:**

    - axes: the axes to draw on; callers give them as ``ax``.
    - trajectory: the flow.
    - found: its plateaus.
    """
    stays = np.asarray([(plateau.enter, plateau.leave) for plateau in found])
    edges = np.unique(stays[(stays > 0) & np.isfinite(stays)])
    between = stays[(stays[:, 0] > 0) & np.isfinite(stays[:, 1])]
    scale = "log" if _narrowest(np.log(between), np.log(edges)) > _narrowest(between, edges) else "linear"
    seen = edges if scale == "linear" else np.log(edges)
    around = _AROUND * (seen[-1] - seen[0])
    span = seen[0] - around, seen[-1] + around
    first, last = (max(span[0], 0.0), span[1]) if scale == "linear" else np.exp(span)
    t, loss = np.asarray(trajectory.t), np.asarray(trajectory.loss)
    # There are few steps where little happens: the last level is extended beyond them.
    axes.plot(np.append(t, max(last, t[-1])), np.append(loss, loss[-1]), color="C0", linestyle="-")
    for number, plateau in enumerate(found):
        begin = max(plateau.enter, first)
        # Neighbours have two shades, since the drops between them may be too short to be seen.
        axes.axvspan(begin, min(plateau.leave, last), facecolor="C2", alpha=(0.14, 0.28)[number % 2], linewidth=0)
        label = in_tex(plateau.level) + ("" if plateau.index is None else f"\nindex {plateau.index}")
        # After the plateau is entered the loss is below its level.
        axes.annotate(label, (begin, plateau.level), (4, 3), textcoords="offset points", va="bottom")
    axes.set_xscale(scale)
    axes.set_xlim(first, last)
    axes.margins(y=0.25)
    axes.set_xlabel(r"flow time  $t$")
    axes.set_ylabel("loss  $L$")
    return axes


def _narrowest(between: np.ndarray, edges: np.ndarray) -> float:
    """Return the length of the shortest interval, divided by the time from the first edge to the last.

    **Arguments:** between: (k, 2), the beginning and the end of each interval; edges: times in ascending order.
    """
    return float(np.min(np.diff(between), initial=np.inf) / (edges[-1] - edges[0]))
