"""Errors of a slack that are measured: from rounding, from samples, and from the spacing of the times."""

from collections.abc import Sequence

import numpy as np

from flowsim.claims.claim import Claim, Comparison
from flowsim.claims.evidence import ROUNDING, Case
from flowsim.claims.evidence.case import ROUNDING_SAFETY
from flowsim.claims.evidence.comparing import compared
from flowsim.flow.trajectory import Status, Trajectory
from flowsim.losses import AbstractPopulationLoss
from flowsim.losses.sampled.confidence import bonferroni_quantile

_CONFIDENCE = 0.99  # for all points of a statement together
_THINNED = 2.0  # times the change of a slack when two thirds of the times are left out


def sampling_error(
    claim: Claim, replicates: list[tuple[AbstractPopulationLoss, Trajectory]], ours: Comparison
) -> np.ndarray:
    """The error of the slack from the samples of the loss.

    It is half the confidence interval over independent samples, plus the distance of their mean from the slack of all
    samples together, which estimates the bias.
    """
    slacks = np.stack([compared(claim, loss, run).slack for loss, run in replicates])
    spread = np.std(slacks, axis=0, ddof=1) / np.sqrt(len(replicates))
    # Each point has a confidence interval, and the level holds for all of them together (Bonferroni).
    quantile = bonferroni_quantile(_CONFIDENCE, int(np.sum(ours.promised)), len(replicates))
    return quantile * spread + np.abs(np.mean(slacks, axis=0) - ours.slack)


def discretization_error(claim: Claim, loss: AbstractPopulationLoss, case: Case, ours: Comparison) -> np.ndarray:
    """The error of a slack that combines several times, as an integral or a largest value does: its change when two
    thirds of the times are left out.
    """
    if not claim.along_flow or case.run.status is Status.STATIONARY:
        return np.zeros(ours.slack.shape)
    error = _thinned(claim, loss, case, ours, ())
    if np.all(np.isfinite(error)):
        return error
    # Times that the claim asks for may be among those left out.
    return _thinned(claim, loss, case, ours, case.times_of(claim))


def _thinned(
    claim: Claim, loss: AbstractPopulationLoss, case: Case, ours: Comparison, asked: Sequence[float]
) -> np.ndarray:
    error, length, times = np.zeros(ours.slack.shape), ours.slack.shape[0], case.padded.t.size
    points = np.arange(times if length >= times else 0, length)  # that are not times
    for kept, run in case.thinned(asked):
        other = case.panel.compared(claim, loss, run)
        if other.slack.shape != ours.slack.shape:
            return np.full(ours.slack.shape, np.inf)
        series = length >= times
        rows, found = (np.append(first, points) if series else points for first in (kept, np.arange(kept.size)))
        moved = np.nan_to_num(_THINNED * np.abs(other.slack[found] - ours.slack[rows]), nan=np.inf)
        same = (other.slack[found] == ours.slack[rows]) | ~ours.promised[rows]
        moved = np.where(same, 0.0, moved)
        error[rows] = np.maximum(error[rows], np.where(other.promised[found] == ours.promised[rows], moved, np.inf))
    return error


def rounding_error(claim: Claim, case: Case, ours: Comparison) -> np.ndarray:
    """The error of the slack from rounding: its change when every weight and every number of the loss moves by a few
    units in the last place.
    """
    moved = [np.abs(case.panel.compared(claim, nudged, run).slack - ours.slack) for nudged, run in case.nudged]
    found = ROUNDING_SAFETY * np.max(moved, axis=0) + ROUNDING * ours.scale
    return np.where(np.isinf(ours.slack), 0.0, found)
