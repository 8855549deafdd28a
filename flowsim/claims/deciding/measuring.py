"""Measure the errors of a slack from rounding, from samples and from the spacing of the output times, and the error
of a flow from samples.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from flowsim.claims.claim import Claim, Comparison
from flowsim.claims.evidence import ROUNDING, Case
from flowsim.claims.evidence.case import ROUNDING_SAFETY
from flowsim.claims.evidence.comparing import compared
from flowsim.claims.evidence.repetitions import AbstractRepetitions
from flowsim.flow.trajectory import Status, Trajectory, weights
from flowsim.losses import AbstractPopulationLoss
from flowsim.losses.sampled.confidence import bonferroni_quantile, half_width

Band = tuple[Float[np.ndarray, "T ..."], Float[np.ndarray, "T ..."]]

_CONFIDENCE = 0.99  # for all points of a statement together
_THINNED = 2.0  # times the change of a slack when two thirds of the times are left out


def sampling_error(
    claim: Claim, replicates: list[tuple[AbstractPopulationLoss, Trajectory]], ours: Comparison
) -> np.ndarray:
    """The error of each slack that comes from the samples of the loss.

    It is half the width of the confidence interval over independent samples, plus the distance of their mean from
    the slack of all samples together, which estimates the bias.

    **Arguments:**

    - claim: the claim.
    - replicates: for each independent sample set, its loss and flow.
    - ours: the comparison on the flow of all samples together.
    """
    slacks = np.stack([compared(claim, loss, run).slack for loss, run in replicates])
    spread = np.std(slacks, axis=0, ddof=1) / np.sqrt(len(replicates))
    # Each point has a confidence interval, and the level holds for all of them together (Bonferroni).
    quantile = bonferroni_quantile(_CONFIDENCE, int(np.sum(ours.promised)), len(replicates))
    return quantile * spread + np.abs(np.mean(slacks, axis=0) - ours.slack)


def discretization_error(claim: Claim, loss: AbstractPopulationLoss, case: Case, ours: Comparison) -> np.ndarray:
    """The error of a slack that combines several times, as an integral or a largest value does.

    It is twice the change of the slack when two thirds of the times are left out. Zero for a claim that compares
    each time by itself.
    """
    if not claim.along_flow or case.run.status is Status.STATIONARY or case.is_row_by_row(claim):
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
    """The error of each slack that comes from rounding: eight times its change when all weights and all numbers of
    the loss move by a few units in the last place.
    """
    moved = [np.abs(case.panel.compared(claim, nudged, run).slack - ours.slack) for nudged, run in case.nudged]
    found = ROUNDING_SAFETY * np.max(moved, axis=0) + ROUNDING * ours.scale
    return np.where(np.isinf(ours.slack), 0.0, found)


def confidence_band(evidence: AbstractRepetitions, level: float = 0.95) -> dict[str, Band]:
    """A confidence band for the flow of the population loss: (lower end, upper end) by the name of a series.

    The series are loss, excess, grad_norm_sq and every weight, with time on the first axis. The band is centred at
    the flow of all samples. Its half width is half the width of a confidence interval for the mean over independent
    samples, plus the distance of this mean from the centre, which estimates the bias of flows of fewer samples. The
    level holds at each time separately. The result is empty if the loss is exact.

    **Arguments:**

    - evidence: the flow with its repetitions on independent samples.
    - level: the confidence level.
    """
    runs = [run for _, run in evidence.replicates]
    if not runs:
        return {}
    length, ours = evidence.trajectory.t.size, _series(evidence.trajectory)
    parts = [_series(run) for run in runs]
    band = {}
    for name, values in ours.items():
        stacked = np.stack([part[name][:length] for part in parts])
        half = half_width(stacked, level) + np.abs(np.mean(stacked, axis=0) - values)
        band[name] = (values - half, values + half)
    return band


def ends(band: Mapping[str, Band]) -> dict[str, np.ndarray]:
    """The two ends of a confidence band by name: ``NAME_low`` and ``NAME_high`` for the series NAME."""
    return {f"{name}_{end}": sides[end == "high"] for name, sides in band.items() for end in ("low", "high")}


def _series(run: Trajectory) -> dict[str, np.ndarray]:
    series = {name: np.asarray(getattr(run, name)) for name in ("loss", "excess", "grad_norm_sq")}
    return series | {name: np.asarray(leaf) for name, leaf in weights(run.models).items()}
