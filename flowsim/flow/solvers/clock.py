"""Times of a flow as pairs of an origin and the time since this origin.

If a flow leaves a saddle late, times from the start are too large for float64 to resolve the drop of the loss.
Times from an origin shortly before the drop resolve it.
"""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float

from flowsim.flow.trajectory import Trajectory

Times = Float[np.ndarray, " T"]


def origin_moves(origins: Times, since: Times) -> Bool[np.ndarray, " steps"]:
    """For each row except the last, whether the next row counts time from a later origin.

    **Arguments:** origins, since: (T,) the origin of each row, and its time since this origin.
    """
    return (np.diff(origins) > 0) | (np.diff(since) < 0)


def since_last_origin(origins: Times, since: Times) -> Times:
    """(T,) the time of each row since the last of all origins, 0 for rows before this origin.

    **Arguments:** origins, since: as for `origin_moves`.
    """
    row = _last_origin(origins, since)
    return np.append(np.zeros(row), since[row:])


def lengths(run: Trajectory) -> Times:
    """(T - 1,) the time from each output time to the next, also where float64 cannot resolve it from the start."""
    if run.counted is None:
        return np.diff(np.asarray(run.t))
    origins, since = map(np.asarray, run.counted)
    return since[1:] - np.where(origin_moves(origins, since), 0.0, since[:-1])


def counted(run: Trajectory) -> tuple[Times, float]:
    """Times at which a flow can be drawn, one for each row, and the time of the flow at which they are zero.

    Usually the result is the output times and 0. If the flow leaves a saddle late, the times are counted from the
    row of largest |grad L| after the last origin, and the second value is the time of that row.
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
    """A clock for a flow. Its readings increase from row to row, even during drops of the loss that are so late
    that float64 cannot resolve them in times from the start.

    After the last origin the clock shows the time since this origin. Before it, each step takes one unit of the
    clock.

    **Fields:**

    - times: (T,) the readings of the clock at the rows of the flow.
    - rates: (T,) the time of the flow that passes in one unit of the clock after each row.
    - from_start: (T,) the times of the rows from the start of the flow.
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
        """The time of the flow that passes in one unit of the clock, after each reading t."""
        return np.asarray(self.rates[np.searchsorted(self.times, t, side="right") - 1])

    def lengths(self, t: Times) -> Float[np.ndarray, " steps"]:
        """The times of the flow that pass between consecutive readings t. These must increase and include
        ``times``.
        """
        return np.diff(t) * self.rate(t[:-1])

    def since_start(self, t: float | np.ndarray) -> np.ndarray:
        """The times from the start of the flow at readings t."""
        if self.from_start is self.times:
            return np.asarray(t)
        beyond = np.maximum(np.asarray(t) - self.times[-1], 0.0)
        return np.asarray(np.interp(t, self.times, self.from_start) + beyond)


def _last_origin(origins: Times, since: Times) -> int:
    return int(np.max(np.flatnonzero(origin_moves(origins, since)) + 1, initial=0))
