"""Draws the squared gradient against the loss, with the bound of a gradient dominance condition."""

import functools
from collections.abc import Callable, Iterable

import numpy as np
from jaxtyping import ArrayLike
from matplotlib.axes import Axes

from flowsim.claims.deciding.verdict import Verdict
from flowsim.claims.statements import dominance_floor, sharp_dominance
from flowsim.flow.trajectory import Trajectory
from flowsim.report.plots.flows import on_axes, positive


def of_verdicts(verdicts: Iterable[Verdict], trajectory: Trajectory) -> dict[str, Callable[..., Axes]]:
    """Return {"gradient-dominance": draw}, where ``draw`` takes axes and draws on them the condition of the first
    verdict about gradient dominance. Without such a verdict, return an empty dictionary.
    """
    names = ("constant", "power", "threshold")
    for verdict in verdicts:
        if all(name in verdict.constants for name in names):
            known = {name: verdict.constants[name] for name in names}
            return {"gradient-dominance": functools.partial(gradient_dominance, trajectory=trajectory, **known)}
    return {}


@on_axes
def gradient_dominance(
    axes: Axes, trajectory: Trajectory, *, constant: float, power: float, threshold: ArrayLike = 0.0
) -> Axes:
    """Draw |grad L|^2 against L on logarithmic axes, with the guaranteed lower bound c L^p, and with the line C L^p
    for the sharp constant C along this trajectory.

    The bound is guaranteed where L is at least a threshold. The loss decreases from right to left. Near a positive
    minimum the gradient vanishes and the loss does not, so that the curve drops steeply. The condition fails for
    losses below the point where the curve crosses the line of the bound.

    **Arguments:**

    - axes: the axes to draw on; callers give them as ``ax``.
    - trajectory: the flow.
    - constant, power, threshold: c, p, and the least L for which the bound is guaranteed.
    """
    loss, squared = (positive(side) for side in (trajectory.loss, trajectory.grad_norm_sq))
    shown = np.isfinite(loss * squared)
    if not np.any(shown):
        axes.text(0.5, 0.5, "no point with a gradient", ha="center", va="center", transform=axes.transAxes)
        return axes
    loss, squared, level = loss[shown], squared[shown], float(np.asarray(threshold))
    axes.plot(loss, squared, color="C0", linestyle="-", label="computed", marker="o" if loss.size == 1 else "")
    ends = np.array([loss.min(), loss.max()])
    sharp = float(sharp_dominance(trajectory.grad_norm_sq, trajectory.loss, power, level))
    if np.isfinite(sharp) and sharp > 0:
        part = np.maximum(ends, level)
        axes.plot(part, sharp * part**power, color="C2", linestyle="-.", label=f"sharp constant, {sharp:.3g}")
    label = rf"$c\,L^{{{power:.3g}}}$ with $c$ = {constant:.3g}"
    axes.plot(ends, constant * ends**power, color="C1", linestyle="--", label=label)
    fails = float(dominance_floor(trajectory.grad_norm_sq, trajectory.loss, constant, power))
    if fails > 0:
        axes.axvspan(loss.min(), fails, facecolor="C1", alpha=0.12, label=f"fails, up to $L$ = {fails:.3g}")
    if loss.min() < level < loss.max():
        axes.axvline(level, color="C3", linestyle=":", label=f"threshold, {level:.3g}")
    axes.set_xscale("log")
    axes.set_yscale("log")
    # A drop over many decades would hide everything else.
    axes.set_ylim(bottom=max(squared.min(), 1e-3 * min(constant * ends[0] ** power, squared.max())))
    axes.set_xlabel("loss  $L$")
    axes.set_ylabel(r"$\|\nabla L\|^2$")
    axes.legend(loc="lower right")
    return axes
