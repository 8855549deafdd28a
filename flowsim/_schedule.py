"""When a run gives output, and when it ends."""

import dataclasses
import heapq
from collections.abc import Iterator

import numpy as np

from flowsim import _checks
from flowsim._recording import Chunk
from flowsim.trajectory import Status

HORIZON_DECADES = 18


@dataclasses.dataclass(frozen=True)
class Stop:
    """Where a run without t1 ends by itself; both are relative, and 0 is never met.

    excess: to the start's excess; grad_norm: to the largest gradient norm seen.
    """

    excess: float = 1e-12
    grad_norm: float = 1e-10

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            if not 0 <= value < 1:
                _checks.fail(f"stop.{name}", "at least 0 and below 1", f"it is {value}")


def output_times(first: float, per_decade: int, requested: np.ndarray, t1: float | None) -> Iterator[float]:
    """Logarithmic times from ``first`` on, with the requested ones among them, up to t1 or the horizon."""
    count = per_decade * HORIZON_DECADES
    grid = (first * 10 ** (k / per_decade) for k in range(count))
    exact = {*requested.tolist(), *([] if t1 is None else [t1])}
    last = 0.0
    for t in heapq.merge(sorted(exact), grid):
        if t1 is not None and t > t1:
            return
        close = any(abs(t - other) < 1e-6 * t for other in exact) or t < (1 + 1e-6) * last
        if t in exact or not close:
            yield t
            last = t


def first_stop(chunks: list[Chunk], stop: Stop, earliest: float) -> tuple[int, Status | None]:
    """Where in the last chunk a stop is first met, as the length to keep and the status; None where it is not."""
    start, last = chunks[0].record, chunks[-1]
    before = max(np.max(chunk.record.grad_norm_sq) for chunk in chunks[:-1])
    largest = np.maximum(np.maximum.accumulate(last.record.grad_norm_sq), before)
    late = last.t >= earliest
    excess_met = late & (stop.excess > 0) & (last.record.excess <= stop.excess * start.excess[0])
    grad_met = late & (last.record.grad_norm_sq <= stop.grad_norm**2 * largest)
    met = np.flatnonzero(excess_met | grad_met)
    if not met.size:
        return last.t.size, None
    return int(met[0]) + 1, Status.EXCESS if excess_met[met[0]] else Status.GRAD_NORM


def percent(chunks: list[Chunk], stop: Stop, t1: float | None) -> int:
    """How far a run is: in log time towards t1, else in log excess towards its stop."""
    if t1 is not None:
        first, now = chunks[1].t[0], chunks[-1].t[-1]
        return int(100 * np.log(now / first) / max(np.log(t1 / first), 1e-9))
    start, now = chunks[0].record.excess[0], chunks[-1].record.excess[-1]
    if not (start > 0 and now > 0 and stop.excess > 0):
        return 0
    return int(np.clip(100 * np.log(start / now) / np.log(1 / stop.excess), 0, 99))
