"""Times as pairs of an origin and the time since. If a flow leaves a saddle late, float64 cannot resolve the drop in
times from the start, but it can in times from an origin shortly before.
"""

import numpy as np
from jaxtyping import Bool, Float

from flowsim.flow.trajectory import Trajectory

Times = Float[np.ndarray, " T"]


def origin_moves(origins: Times, since: Times) -> Bool[np.ndarray, " steps"]:
    """For each row except the last, whether the next row counts time from a later origin."""
    return (np.diff(origins) > 0) | (np.diff(since) < 0)


def since_last_origin(origins: Times, since: Times) -> Times:
    """The time since the last origin, 0 before it."""
    row = _last_origin(origins, since)
    return np.append(np.zeros(row), since[row:])


def lengths(run: Trajectory) -> Times:
    """The time from each output time to the next."""
    if run.counted is None:
        return np.diff(np.asarray(run.t))
    origins, since = map(np.asarray, run.counted)
    return since[1:] - np.where(origin_moves(origins, since), 0.0, since[:-1])


def counted(run: Trajectory) -> tuple[Times, float]:
    """The output times of a flow from the start, and 0. If the flow leaves a saddle late, the times are from its
    steepest point after the last origin, and the second value is the time of that point.
    """
    if run.counted is None:
        return np.asarray(run.t), 0.0
    origins, since = map(np.asarray, run.counted)
    row = _last_origin(origins, since)
    row += int(np.argmax(np.asarray(run.grad_norm_sq)[row:]))
    steps = lengths(run)
    before, after = np.cumsum(steps[:row][::-1])[::-1], np.cumsum(steps[row:])
    times = np.concatenate([-before, [0.0], after])
    return times, float(-times[0])


def _last_origin(origins: Times, since: Times) -> int:
    return int(np.max(np.flatnonzero(origin_moves(origins, since)) + 1, initial=0))
