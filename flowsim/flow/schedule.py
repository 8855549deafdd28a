"""When a run gives output, and when it ends."""

import dataclasses
import heapq
from collections.abc import Callable, Iterator

import jax
import numpy as np
from jaxtyping import PyTree

from flowsim._core import checks
from flowsim.flow.recording import Chunk, Role, distinct
from flowsim.flow.trajectory import Status

HORIZON_DECADES = 18
_SUBTRACTED = 64  # eps of the loss, of which an excess by subtraction is made


@dataclasses.dataclass(frozen=True)
class Stop:
    """Where a run without t1 ends by itself; both are relative, and 0 is never met.

    excess: to the start's excess; grad_norm: to the largest gradient norm along the flow. Where the minimum is known, a
    small gradient above it is a plateau and ends nothing until nothing is left of it but rounding.
    """

    excess: float = 1e-12
    grad_norm: float = 1e-10

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            if not 0 <= value < 1:
                checks.refuse(f"stop.{name}", "at least 0 and below 1", f"it is {value}")


def output_times(first: float, per_decade: int, requested: np.ndarray, t1: float | None) -> Iterator[float]:
    """Logarithmic times from ``first`` on, with the requested ones among them, up to t1 or the horizon. Of requested
    times that are equal to rounding there is the last.
    """
    count = per_decade * HORIZON_DECADES
    grid = (first * 10 ** (k / per_decade) for k in range(count))
    asked = np.unique([*requested, *([] if t1 is None else [t1])])
    exact = set(asked[distinct(asked)].tolist())
    last = 0.0
    for t in heapq.merge(sorted(exact), grid):
        if t1 is not None and t > t1:
            return
        close = any(abs(t - other) < 1e-6 * t for other in exact) or t < (1 + 1e-6) * last
        if t in exact or not close:
            yield t
            last = t


@dataclasses.dataclass(frozen=True)
class Grid:
    """The regular output times of a run, first 10^(k/per_decade), at which alone stops are looked for: which other
    times are asked for never changes where a run ends.
    """

    first: float
    per_decade: int

    def holds(self, t: np.ndarray) -> np.ndarray:
        """Which times are of the grid, to the width within which `output_times` takes two times for one."""
        place = self.per_decade * np.log10(t / self.first)
        return (np.abs(place - np.round(place)) <= 1e-6 * self.per_decade) & (self.per_decade > 0)


class StopSearch:
    """Looks for the first stop of a run, a chunk after the other.

    **Arguments:** stop: what ends the run; start: its first chunk; earliest: the time before which it does not end.
    """

    def __init__(self, stop: Stop, start: Chunk, earliest: float):
        self._stop, self._earliest = stop, earliest
        self._excess = start.record.excess[0]
        self._largest = start.record.grad_norm_sq[0]
        self._met: tuple[float, Status] | None = None

    def first(self, chunk: Chunk, rests: Callable[[PyTree, float], bool]) -> tuple[int, Status | None]:
        """How much of a chunk to keep, and how the run ended in it; None where it did not.

        **Arguments:** rests: (state, largest |grad|) -> whether nothing is left of the field there but rounding.
        """
        if self._met is None:
            self._met = self._look(chunk, rests)
        self._largest = max([self._largest, *chunk.largest[-1:]])
        if self._met is None:
            return chunk.t.size, None
        t, status = self._met
        late = np.flatnonzero((chunk.roles > Role.TO_GO_ON) & (chunk.t >= max(t, self._earliest)))
        return (int(late[0]) + 1, status) if late.size else (chunk.t.size, None)

    def _look(self, chunk: Chunk, rests: Callable[[PyTree, float], bool]) -> tuple[float, Status] | None:
        record, stop = chunk.record, self._stop
        largest = np.maximum(chunk.largest, self._largest)
        small_excess = (stop.excess > 0) & (record.excess <= stop.excess * self._excess)
        small_gradient = record.grad_norm_sq <= stop.grad_norm**2 * largest
        # Above a minimum that is known a small gradient is a plateau, unless nothing of it is left. A minimum that is
        # subtracted from the loss leaves rounding of the loss.
        rounding = _SUBTRACTED * np.finfo(float).eps * np.abs(record.loss)
        least = np.maximum(max(stop.excess, Stop.excess) * self._excess, rounding)
        at_minimum = np.isnan(record.excess) | (record.excess <= least)
        for row in np.flatnonzero((chunk.roles == Role.REGULAR) & (small_excess | small_gradient)):
            if small_excess[row]:
                return chunk.t[row], Status.EXCESS
            state = jax.tree.map(lambda leaf, row=row: leaf[row], record.state)
            if at_minimum[row] or rests(state, float(np.sqrt(largest[row]))):
                return chunk.t[row], Status.GRAD_NORM
        return None


def percent(chunks: list[Chunk], stop: Stop, t1: float | None) -> int:
    """How far a run is: in log time towards t1, else in log excess towards its stop."""
    if t1 is not None:
        first, now = chunks[1].t[0], chunks[-1].t[-1]
        return int(100 * np.log(now / first) / max(np.log(t1 / first), 1e-9))
    start, now = chunks[0].record.excess[0], chunks[-1].record.excess[-1]
    if not (start > 0 and now > 0 and stop.excess > 0):
        return 0
    return int(np.clip(100 * np.log(start / now) / np.log(1 / stop.excess), 0, 99))
