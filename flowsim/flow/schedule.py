"""The rules by which a run ends, the search for its first stop, and its progress."""

import dataclasses
import math
from collections.abc import Callable

import jax
import numpy as np
from jaxtyping import PyTree

from flowsim._core import checks
from flowsim.flow.recording import Chunk, Role
from flowsim.flow.solvers.integration import NEVER, Ending, ending
from flowsim.flow.trajectory import Status

HORIZON_DECADES = 18
RESTING = 16  # eps of the largest gradient: a flow with a smaller one may be at rest
_AGAIN = 1.1  # the factor of time after which a flow that leaves a saddle is tested again
SUBTRACTED = 64  # eps of the loss: the error of an excess that is a difference


@dataclasses.dataclass(frozen=True)
class Stop:
    """The thresholds at which a run without t1 ends. A threshold of 0 is never met.

    If the minimum is known and the loss is still above it, a small gradient belongs to a plateau. Then the run ends
    only if the gradient is below its rounding error.

    **Fields:**

    - excess: the run ends if the excess loss is at most this fraction of the excess loss at the start.
    - grad_norm: the run ends if the gradient norm is at most this fraction of the largest gradient norm so far.
    """

    excess: float = 1e-12
    grad_norm: float = 1e-10

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            if not 0 <= value < 1:
                checks.refuse(f"stop.{name}", "at least 0 and below 1", f"it is {value}")


class StopSearch:
    """Finds the first stop of a run, chunk by chunk. Only the ends of steps are tested, so that requested times
    never change where a run ends.

    **Arguments:**

    - stop: the stopping rules, None if only the last time ends the run.
    - start: the first chunk, which holds the start alone.
    - earliest: the time before which the run does not end.
    - rests: (state, largest |grad L| so far) -> whether the gradient at the state consists of rounding.
    - leaves: (state, whether its gradient consists of rounding) -> whether the flow leaves the state, as at a
      saddle.
    """

    def __init__(
        self,
        stop: Stop | None,
        start: Chunk,
        earliest: float,
        rests: Callable[[PyTree, float], bool],
        leaves: Callable[[PyTree, bool], bool],
    ):
        self._stop, self._earliest, self._rests, self._leaves = stop, earliest, rests, leaves
        self._leaving = 0.0  # since the origin
        self._excess = start.record.excess[0]
        self._largest = self._latest = start.record.grad_norm_sq[0]
        self._met: tuple[float, Status] | None = None

    def ending(self) -> Ending:
        """The conditions under which the solver ends the next chunk early. Whether the run ends there is decided by
        `first`.
        """
        stop = self._stop
        if stop is None:
            return NEVER
        if self._met is not None:
            return ending(max(self._met[0], self._earliest), math.inf, math.inf, math.inf, math.inf, 0.0)
        excess = stop.excess * self._excess if stop.excess > 0 else -math.inf
        rounding = (RESTING * np.finfo(float).eps) ** 2 * self._largest
        # A flow that continued with a smaller gradient is not at rest.
        rounding = -math.inf if self._latest <= rounding else rounding
        small = stop.grad_norm**2 * self._largest
        return ending(self._earliest, excess, small, self._least, rounding, self._leaving)

    def first(self, chunk: Chunk) -> tuple[int, Status | None]:
        """The number of rows of a chunk that belong to the run, and the status if the run ends in the chunk, else
        None.
        """
        if self._stop is None:
            return chunk.t.size, None
        row = 0
        if self._met is None and (found := self._look(self._stop, chunk)) is not None:
            row, status = found
            self._met = chunk.t[row], status
        self._largest = max([self._largest, *chunk.largest[-1:]])
        self._latest = min([np.inf, *chunk.record.grad_norm_sq[-1:]])
        if chunk.anew:
            self._leaving = 0.0
        if self._met is None:
            return chunk.t.size, None
        late = row + np.flatnonzero((chunk.roles > Role.TO_GO_ON)[row:] & (chunk.t >= self._earliest)[row:])
        return (int(late[0]) + 1, self._met[1]) if late.size else (chunk.t.size, None)

    @property
    def _least(self) -> float:
        """The excess loss above which a small gradient belongs to a plateau."""
        return max(self._stop.excess if self._stop else 0.0, Stop.excess) * float(self._excess)

    def _look(self, stop: Stop, chunk: Chunk) -> tuple[int, Status] | None:
        record = chunk.record
        largest = np.maximum(chunk.largest, self._largest)
        small_excess = (stop.excess > 0) & (record.excess <= stop.excess * self._excess)
        # The square of a tiny gradient, and its share, may underflow to zero.
        threshold = stop.grad_norm**2 * largest
        small_gradient = (threshold > 0) & (record.grad_norm_sq <= threshold)
        # Above a known minimum a small gradient belongs to a plateau, unless it is rounding. An excess that is a
        # difference has the rounding of the loss.
        rounding = SUBTRACTED * np.finfo(float).eps * np.abs(record.loss)
        least = np.maximum(self._least, rounding)
        for row in np.flatnonzero((chunk.roles == Role.REGULAR) & (small_excess | small_gradient)):
            if small_excess[row]:
                return int(row), Status.EXCESS
            if record.excess[row] <= least[row]:
                return int(row), Status.GRAD_NORM
            # The flow may still leave a saddle there. This is tested from time to time.
            state = jax.tree.map(lambda leaf, row=row: leaf[row], record.state)
            known = not np.isnan(record.excess[row])
            if chunk.since[row] < self._leaving or (known and not self._rests(state, float(np.sqrt(largest[row])))):
                continue
            if not self._leaves(state, known):
                return int(row), Status.GRAD_NORM
            self._leaving = _AGAIN * chunk.since[row]
        return None


def percent(chunks: list[Chunk], stop: Stop, t1: float | None) -> int:
    """The progress of a run in percent, on a logarithmic scale: of the time towards t1 or, without t1, of the
    excess loss towards its stop. If the minimum is not known, |grad L| takes the place of the excess loss.

    **Arguments:** chunks: all chunks so far; stop: the stopping rules; t1: the time of the end, or None.
    """
    if t1 is not None:
        first, now = chunks[1].t[0], chunks[-1].t[-1]
        return int(100 * np.log(now / first) / max(np.log(t1 / first), 1e-9))
    start, now, share = chunks[0].record.excess[0], chunks[-1].record.excess[-1], stop.excess
    if np.isnan(start):
        start = max(chunk.largest[-1] for chunk in chunks)
        now, share = chunks[-1].record.grad_norm_sq[-1], stop.grad_norm**2
    if not (start > 0 and now > 0 and share > 0):
        return 0
    return int(np.clip(100 * np.log(start / now) / np.log(1 / share), 0, 99))
