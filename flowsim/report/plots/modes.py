"""Draws what a flow learns: the singular values of its matrices over time, and the matrices themselves."""

import functools
from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import ArrayLike
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import TwoSlopeNorm

from flowsim._core.types import Options
from flowsim.experiments.modes import learned, matrices_of
from flowsim.flow.solvers.clock import counted
from flowsim.flow.trajectory import Trajectory, weights
from flowsim.report.plots.axes import time_axis
from flowsim.report.plots.flows import Sized, on_axes, positive

_SMALL = 1e-14  # of the largest: a singular value that is rounding
_GAP = 0.12  # between two matrices, of a matrix's width


def of_matrices(trajectory: Trajectory, limits: Mapping[str, ArrayLike]) -> dict[str, Callable[..., Axes]]:
    """Return {"modes": draw, "weights": draw}. Each ``draw`` takes axes and draws on them: the first what `modes`
    draws, the second what `matrices` draws.

    The dictionary is empty if the model has no matrix, or only matrices that are too large to be drawn. With a
    single output time it has no "weights".

    **Arguments:** trajectory: the flow; limits: the predicted limits of weights, by name.
    """
    if not (found := matrices_of(weights(trajectory.models))):
        return {}
    size = 1.2 + 1.9 * (2 + bool(_limits(found, limits))), 0.4 + 1.9 * len(found)
    pictures: dict[str, Callable[..., Axes]] = {"modes": functools.partial(modes, trajectory=trajectory)}
    if trajectory.t.size > 1:
        pictures["weights"] = Sized(functools.partial(matrices, trajectory=trajectory, limits=limits), size)
    return pictures


@on_axes
def modes(axes: Axes, trajectory: Trajectory) -> Axes:
    """Draw the singular values of each matrix of a model over time. For one layer of linear attention draw the
    eigenvalues of u_{-1} U11 instead, or its singular values if it is not symmetric.
    """
    t, shown = counted(trajectory)[0], learned(trajectory.models)
    for index, (name, (values, _)) in enumerate(shown.items()):
        look: Options = {"color": f"C{index % 6}", "marker": "o" if t.size == 1 else ""}
        for number, curve in enumerate(values.T):
            axes.plot(t, curve, label=name if number == 0 else None, lw=1.1, **look)
    kinds = {kind for _, kind in shown.values()}
    axes.set_ylabel(" and ".join(sorted(kinds)))
    every = np.concatenate([values.ravel() for values, _ in shown.values()])
    if np.all(every >= 0) and np.any(every > 0):
        least = positive(np.where(every > _SMALL * every.max(), every, np.nan))
        if np.nanmax(least) > 20 * np.nanmin(least):
            axes.set_yscale("log")
            axes.set_ylim(bottom=np.nanmin(least) / 2)
    if any(shown):  # a model that is an array has no name
        axes.legend(fontsize=8, ncols=2 if len(shown) > 3 else 1)
    return time_axis(axes, t)


@on_axes
def matrices(axes: Axes, trajectory: Trajectory, limits: Mapping[str, ArrayLike]) -> Axes:
    """Draw the matrices of a model at the start, at the end and, if the limit is known, in the limit. All share one
    colour scale.

    **Arguments:**

    - axes: the axes to draw on; callers give them as ``ax``.
    - trajectory: the flow.
    - limits: the predicted limits of weights, by name. Those of weights that are not drawn are ignored.
    """
    found = matrices_of(weights(trajectory.models))
    states = {"start": {name: m[0] for name, m in found.items()}, "end": {name: m[-1] for name, m in found.items()}}
    if known := _limits(found, limits):
        states["limit"] = known
    largest = max(float(np.max(np.abs(matrix))) for state in states.values() for matrix in state.values()) or 1.0
    colours = ScalarMappable(TwoSlopeNorm(0, -largest, largest), "RdBu_r")
    step = 1 + _GAP
    for column, (label, state) in enumerate(states.items()):
        left = column * step
        for row, name in enumerate(found):
            if name in state:
                place = left, left + 1, -row * step - 1, -row * step
                axes.imshow(colours.to_rgba(state[name]), extent=place, interpolation="nearest")
        axes.annotate(label, (left + 0.5, 0), (0, 4), textcoords="offset points", ha="center")
    for row, name in enumerate(found):
        axes.annotate(name, (0, -row * step - 0.5), (-6, 0), textcoords="offset points", ha="right", va="center")
    axes.set(xlim=(-0.02, len(states) * step), ylim=(-len(found) * step + _GAP - 0.02, 0.02), aspect="equal")
    axes.set_axis_off()
    axes.figure.colorbar(colours, ax=axes, shrink=0.9, pad=0.02)
    return axes


def _limits(found: Mapping[str, np.ndarray], limits: Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
    """Return the limits of those matrices that are drawn, by the matrices' names."""
    known = matrices_of({name: np.asarray(limit, dtype=float)[None] for name, limit in limits.items()})
    return {name: known[name][0] for name in found if name in known and known[name][0].shape == found[name].shape[1:]}
