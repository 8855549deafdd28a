"""Confidence bands along the flow of a sampled loss."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from flowsim.claims.evidence.repetitions import AbstractRepetitions
from flowsim.flow.trajectory import Trajectory, weights
from flowsim.losses.sampled.confidence import half_width

Band = tuple[Float[np.ndarray, "T ..."], Float[np.ndarray, "T ..."]]


def confidence_band(evidence: AbstractRepetitions, level: float = 0.95) -> dict[str, Band]:
    """The lower and upper ends of a confidence band for the flow of the population loss, by the name of a series.

    The series are loss, excess, grad_norm_sq and every weight. The band is centred at the flow of all samples. Its half
    width is that of a confidence interval for the mean over independent samples, plus the distance of this mean from
    the centre, which estimates the bias of flows of fewer samples. The level holds at each time separately. The result
    is empty if the loss is exact.

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
    """The ends of a band as arrays, NAME_low and NAME_high."""
    return {f"{name}_{end}": sides[end == "high"] for name, sides in band.items() for end in ("low", "high")}


def _series(run: Trajectory) -> dict[str, np.ndarray]:
    series = {name: np.asarray(getattr(run, name)) for name in ("loss", "excess", "grad_norm_sq")}
    return series | {name: np.asarray(leaf) for name, leaf in weights(run.models).items()}
