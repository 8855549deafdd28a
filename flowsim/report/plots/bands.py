"""Draws the loss along a sampled flow in its confidence band."""

import functools
from collections.abc import Callable, Mapping

import numpy as np
from matplotlib.axes import Axes

from flowsim.claims.deciding.measuring import Band
from flowsim.flow.trajectory import Trajectory
from flowsim.report.plots.flows import on_axes


def of_band(trajectory: Trajectory, band: Mapping[str, Band]) -> dict[str, Callable[..., Axes]]:
    """Return {"loss-band": draw}, where ``draw`` takes axes and draws on them the loss in the band of
    `flowsim.confidence_band`. For an exact loss, which has no band, return an empty dictionary.
    """
    if not band:
        return {}
    return {"loss-band": functools.partial(loss_band, trajectory=trajectory, band=band)}


@on_axes
def loss_band(axes: Axes, trajectory: Trajectory, band: Mapping[str, Band]) -> Axes:
    """Draw the loss against log time, in its confidence band."""
    t, (low, high) = np.asarray(trajectory.t), band["loss"]
    axes.fill_between(t[1:], low[1:], high[1:], color="C0", alpha=0.3, lw=0, label="95% of the population's flow")
    axes.plot(t[1:], np.asarray(trajectory.loss)[1:], color="C0", linestyle="-", label="flow of all samples")
    axes.set_xscale("log")
    axes.set_xlabel("time  $t$")
    axes.set_ylabel("loss  $L$")
    axes.legend()
    return axes
