"""The columns of a map about each flow: where it ended, how long it took, and how accurately it was integrated."""

import numpy as np

from flowsim.flow.solvers.summary import STATUSES, Scales, Summary
from flowsim.flow.trajectory import Status

OUTCOMES = ("global-minimum", "saddle", "other-critical-point", "unfinished", "undecided", "failed")
_NUMBERS = (
    "t_end", "excess_start", "excess_saddle", "excess_end", "grad_norm_end", "weights_norm_end", "escape_time",
    "convergence_time", "sharp_mu_pl", "sharp_mu_rate", "closest_to_saddle", "energy_defect",
)  # fmt: skip
_WORDS = {"outcome": OUTCOMES, "status": tuple(STATUSES)}
# Columns about flows; those about claims follow.
DTYPES = (
    {name: np.dtype(f"<U{max(map(len, words))}") for name, words in _WORDS.items()}
    | {name: np.dtype(float) for name in _NUMBERS}
    | {"steps": np.dtype(int), "rejected_steps": np.dtype(int)}
)
MapRecord = dict[str, np.ndarray]

AT_MINIMUM = 1e-6  # of the excess at the saddle
_AT_REST = 1e-8  # of the largest gradient norm
_STILL = 1e-3  # the decrease of log excess while time grows by e
_AT_SADDLE = 1e-3  # of the norm of the weights at the minimum


@np.errstate(invalid="ignore", over="ignore")  # some flows could not be integrated
def record(summary: Summary, scales: Scales, rtol: np.ndarray) -> MapRecord:
    """The columns of a map about flows, with one row for each cell.

    **Arguments:**

    - summary: the summaries of the flows.
    - scales: the natural scales of their losses.
    - rtol: the tolerance of each flow.
    """
    # If no model of least loss is known, only the start shows which weights are small.
    known_size = np.where(scales.weights > 0, scales.weights, np.inf)
    start_size = np.sqrt(np.minimum(summary.norm_sq_start, known_size**2))
    closest = np.sqrt(summary.closest.value) / np.where(start_size > 0, start_size, 1.0)
    # An energy below the rounding of the excess counts as zero.
    least_energy = np.maximum(np.finfo(float).eps * summary.excess_start, np.finfo(float).tiny)
    found = {
        "outcome": _outcome(summary, scales, closest, rtol),
        "status": np.asarray([STATUSES[code].value for code in summary.status]),
        "t_end": summary.t,
        "excess_start": summary.excess_start,
        "excess_saddle": scales.excess,
        "excess_end": summary.excess,
        "grad_norm_end": np.sqrt(summary.grad_norm_sq),
        "weights_norm_end": np.sqrt(summary.norm_sq),
        "escape_time": summary.escape_time,
        "convergence_time": summary.convergence_time,
        "sharp_mu_pl": summary.pl.value,
        "sharp_mu_rate": summary.rate.value,
        "closest_to_saddle": closest,
        "energy_defect": summary.energy_defect / np.maximum(summary.dissipated, least_energy),
        "steps": summary.steps,
        "rejected_steps": summary.rejected_steps,
    }
    return {name: found[name].astype(dtype) for name, dtype in DTYPES.items()}


def _outcome(summary: Summary, scales: Scales, closest: np.ndarray, rtol: np.ndarray) -> np.ndarray:
    """The outcome of each flow: one of `OUTCOMES`, by the limits in docs/maps.md.

    **Arguments:**

    - summary, scales, rtol: as for `record`.
    - closest: the least norm of the weights along each flow, over the smaller of the norms at the start and at the
      minimum.
    """
    finished = np.asarray([STATUSES[code].finished for code in summary.status])
    stopped = np.asarray([STATUSES[code] in (Status.GRAD_NORM, Status.STATIONARY) for code in summary.status])
    largest = np.minimum(np.sqrt(summary.largest_grad_norm_sq), scales.gradient)
    slow = stopped | (np.sqrt(summary.grad_norm_sq) <= _AT_REST * largest)
    # In a flat valley the gradient is small too, but the excess decreases as fast as time grows.
    still = summary.t * summary.grad_norm_sq <= _STILL * summary.excess
    at_rest = slow & (still | np.isnan(summary.excess))
    at_minimum = summary.excess <= AT_MINIMUM * scales.excess
    size = np.where(scales.weights > 0, scales.weights, np.sqrt(summary.norm_sq_start))
    at_zero = np.sqrt(summary.norm_sq) <= _AT_SADDLE * size
    # On the stable set of a saddle errors of size rtol grow as fast as the flow decays. They decide its course once it
    # is this close.
    undecided = closest <= np.sqrt(rtol)
    # The distance is infinite if zero weights are not a saddle.
    at_saddle = at_rest & ~at_minimum & at_zero & np.isfinite(closest)
    conditions = [~finished, at_saddle, undecided, at_minimum, at_rest]
    names = ["failed", "saddle", "undecided", "global-minimum", "other-critical-point"]
    return np.select(conditions, names, "unfinished")
