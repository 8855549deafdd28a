"""Times as pairs of an origin and the time since. If a flow leaves a saddle late, float64 cannot resolve the drop in
times from the start, but it can in times from an origin shortly before.
"""

import dataclasses

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
    """Times in which a flow can be drawn, and the time that is their zero.

    Usually these are the output times from the start, and 0. If the flow leaves a saddle late, they are counted from
    its steepest point after the last origin, and the second value is the time of that point.
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


@dataclasses.dataclass(frozen=True)
class Clock:
    """The times at which a flow is judged. They increase from row to row, even during drops that are so late that
    float64 cannot resolve them.

    After the last origin they count from it. Before it, each step takes one unit.

    **Fields:**

    - times: (T,) at the rows of the flow.
    - rates: (T,) the time that passes in a unit after each row.
    - from_start: (T,) the times from the start.
    """

    times: Times
    rates: Times
    from_start: Times

    @staticmethod
    def of(run: Trajectory) -> "Clock":
        """The clock of a flow."""
        if run.counted is None:
            t = np.asarray(run.t)
            return Clock(t, np.ones(t.size), t)
        origins, since = map(np.asarray, run.counted)
        # The row at the last origin counts its own time from the one before.
        row = max(_last_origin(origins, since) - 1, 0)
        times = np.concatenate([np.arange(-row, 1.0), since[row + 1 :]])
        return Clock(times, np.append(lengths(run)[:row], np.ones(since.size - row)), origins + since)

    def rate(self, t: float | np.ndarray) -> np.ndarray:
        """The time that passes in a unit after each of these times."""
        return np.asarray(self.rates[np.searchsorted(self.times, t, side="right") - 1])

    def lengths(self, t: Times) -> Float[np.ndarray, " steps"]:
        """The time from each to the next of increasing times, among which are those of all rows."""
        return np.diff(t) * self.rate(t[:-1])

    def since_start(self, t: float | np.ndarray) -> np.ndarray:
        """These times, counted from the start of the flow."""
        if self.from_start is self.times:
            return np.asarray(t)
        beyond = np.maximum(np.asarray(t) - self.times[-1], 0.0)
        return np.asarray(np.interp(t, self.times, self.from_start) + beyond)


def _last_origin(origins: Times, since: Times) -> int:
    return int(np.max(np.flatnonzero(origin_moves(origins, since)) + 1, initial=0))
