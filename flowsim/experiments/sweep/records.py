"""What a map holds of each cell: what the theorem assumes and promises of it, and what became of it."""

from typing import Any

import numpy as np

from flowsim.flow.solvers.summary import CONVERGED, STATUSES
from flowsim.flow.trajectory import Status
from flowsim.papers.zhang2023.conditions import AssumptionValues, scale_hypothesis

OUTCOMES = ("global-minimum", "saddle", "other-critical-point", "unfinished", "undecided", "failed")
MARGINS = {"lemma-5.4.pl": "margin_pl", "lemma-5.4.rate": "margin_rate", "lemma-a.5": "margin_u_lower_bound",
           "lemma-a.4": "margin_u_positive"}  # fmt: skip
_NUMBERS = (
    "t_end", "excess_start", "excess_saddle", "excess_end", "grad_norm_end", "weights_norm_end", "escape_time",
    "convergence_time", "guaranteed_time", "mu", "u_lower_bound", "sharp_mu_pl", "sharp_mu_rate", "smallest_u",
    *MARGINS.values(), *(f"{name}_time" for name in MARGINS.values()), "smallest_margin", "smallest_margin_time",
    "closest_to_saddle", "energy_defect",
)  # fmt: skip
_WORDS = {"outcome": OUTCOMES, "status": tuple(STATUSES), "smallest_margin_name": ("", *MARGINS)}
DTYPES = (
    {"condition_met": np.dtype(bool), "assumption_met": np.dtype(bool)}
    | {name: np.dtype(f"<U{max(map(len, words))}") for name, words in _WORDS.items()}
    | {name: np.dtype(float) for name in _NUMBERS}
    | {"steps": np.dtype(int), "rejected_steps": np.dtype(int)}
)
MapRecord = dict[str, np.ndarray]

_AT_MINIMUM = 1e-6  # of the excess at the saddle
_AT_REST = 1e-8  # of the largest gradient norm
_STILL = 1e-3  # the fall of log excess over an e-fold of time
_AT_SADDLE = 1e-3  # of the weights' norm at the minimum


@np.errstate(invalid="ignore", over="ignore")  # of flows that could not be integrated
def record(summary: Any, promises: Any, scales: Any, rtol: np.ndarray) -> MapRecord:
    """Everything that a map holds of cells, which lead every array."""
    met = [
        (
            scale_hypothesis(float(scale)).met,
            all(part.met for part in AssumptionValues(*map(float, parts)).hypotheses()),
        )
        for scale, *parts in zip(promises.scale, *promises.assumption, strict=True)
    ]
    condition, assumption = np.asarray(met).T
    mu = promises.mu
    # Beyond the scale condition mu is negative, or positive as a product of two negative factors.
    promised = np.where(condition & (mu > 0), mu, np.nan)
    bound = np.sqrt(np.where(condition & (promises.u_lower_bound_sq > 0), promises.u_lower_bound_sq, np.nan))
    margins = {
        "margin_pl": (summary.pl.value / promised - 1, summary.pl.t),
        "margin_rate": (summary.rate.value / promised - 1, summary.rate.t),
        "margin_u_lower_bound": (summary.u.value / bound - 1, summary.u.t),
        "margin_u_positive": (summary.sign.value, summary.sign.t),
    }
    values = np.stack([np.where(np.isfinite(value), value, np.nan) for value, _ in margins.values()])
    times = np.where(np.isfinite(values), np.stack([t for _, t in margins.values()]), np.nan)
    # Lemma A.4 bounds by zero, so that its margin is not comparable: it counts where it is none.
    counted = np.isfinite(values) & np.stack([*np.ones((3, mu.size), dtype=bool), values[3] <= 0])
    known = np.any(counted, axis=0)
    smallest = np.argmin(np.where(counted, values, np.inf), axis=0)[None]
    pick = lambda rows: np.where(known, np.take_along_axis(rows, smallest, axis=0)[0], np.nan)
    guaranteed = np.where(assumption & (promised > 0), np.log(1 / CONVERGED) / promised, np.inf)
    # Where no minimum is known as weights, the start alone says what is small.
    known_size = np.where(scales.weights > 0, scales.weights, np.inf)
    start_size = np.sqrt(np.minimum(summary.norm_sq_start, known_size**2))
    closest = np.sqrt(summary.closest.value) / np.where(start_size > 0, start_size, 1.0)
    # Less energy than the excess can be computed to is none.
    least_energy = np.maximum(np.finfo(float).eps * summary.excess_start, np.finfo(float).tiny)
    found = {
        "condition_met": condition,
        "assumption_met": assumption,
        "outcome": _outcome(summary, scales, closest, rtol),
        "status": np.asarray([STATUSES[code].value for code in summary.status]),
        "smallest_margin_name": np.where(known, np.asarray(tuple(MARGINS))[smallest[0]], ""),
        "t_end": summary.t,
        "excess_start": summary.excess_start,
        "excess_saddle": scales.excess,
        "excess_end": summary.excess,
        "grad_norm_end": np.sqrt(summary.grad_norm_sq),
        "weights_norm_end": np.sqrt(summary.norm_sq),
        "escape_time": summary.escape_time,
        "convergence_time": summary.convergence_time,
        "guaranteed_time": guaranteed,
        "mu": mu,
        "u_lower_bound": bound,
        "sharp_mu_pl": summary.pl.value,
        "sharp_mu_rate": summary.rate.value,
        "smallest_u": summary.u.value,
        **{name: row for name, row in zip(margins, values, strict=True)},
        **{
            f"{name}_time": np.where(np.isfinite(row), t, np.nan)
            for name, row, t in zip(margins, values, times, strict=True)
        },
        "smallest_margin": pick(values),
        "smallest_margin_time": pick(times),
        "closest_to_saddle": closest,
        "energy_defect": summary.energy_defect / np.maximum(summary.dissipated, least_energy),
        "steps": summary.steps,
        "rejected_steps": summary.rejected_steps,
    }
    return {name: found[name].astype(dtype) for name, dtype in DTYPES.items()}


def _outcome(summary: Any, scales: Any, closest: np.ndarray, rtol: np.ndarray) -> np.ndarray:
    """Where the flow ended: docs/maps.md says each in words."""
    finished = np.asarray([STATUSES[code].finished for code in summary.status])
    stopped = np.asarray([STATUSES[code] in (Status.GRAD_NORM, Status.STATIONARY) for code in summary.status])
    largest = np.minimum(np.sqrt(summary.largest_grad_norm_sq), scales.gradient)
    slow = stopped | (np.sqrt(summary.grad_norm_sq) <= _AT_REST * largest)
    # In a flat valley the gradient is small too, but the excess falls as fast as time grows.
    still = summary.t * summary.grad_norm_sq <= _STILL * summary.excess
    at_rest = slow & (still | np.isnan(summary.excess))
    at_minimum = summary.excess <= _AT_MINIMUM * scales.excess
    size = np.where(scales.weights > 0, scales.weights, np.sqrt(summary.norm_sq_start))
    at_zero = np.sqrt(summary.norm_sq) <= _AT_SADDLE * size
    # On the saddle's stable set errors of size rtol grow as fast as the flow falls: they decide once it is this close.
    undecided = closest <= np.sqrt(rtol)
    conditions = [~finished, at_rest & ~at_minimum & at_zero, undecided, at_minimum, at_rest]
    names = ["failed", "saddle", "undecided", "global-minimum", "other-critical-point"]
    return np.select(conditions, names, "unfinished")
