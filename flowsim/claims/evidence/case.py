"""One solve of a flow in the forms that claims are compared on: padded, perturbed, with a false end, in balls."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from flowsim.claims.claim import Claim
from flowsim.claims.evidence.comparing import Panel, compared
from flowsim.claims.evidence.course import Course, velocities
from flowsim.claims.evidence.enclosing import CHEAP, COSTLY, Enclosed, OpenError, Roundings
from flowsim.claims.evidence.moving import (
    ROUNDING,
    allowed_in,
    drift_in,
    lost_in,
    noise_of,
    nudged_loss,
    nudged_rows,
)
from flowsim.claims.evidence.repetitions import AbstractRepetitions
from flowsim.claims.evidence.series import (
    Later,
    Made,
    Padded,
    is_large,
    made,
    padded,
    padded_with,
    randomized,
    scaled,
    taken,
    weights_of,
)
from flowsim.flow.basin import Tail
from flowsim.flow.gradient_flow import start_alone
from flowsim.flow.systems import AbstractSystem
from flowsim.flow.trajectory import SAME, Status, Trajectory
from flowsim.losses import AbstractPopulationLoss
from flowsim.losses.sampled.monte_carlo import MonteCarloLoss, stated

ROUNDING_SAFETY = 8.0
# Factors of the weights and |grad|^2, of the loss, and of t. Powers of two change no digits.
_OTHER_ENDS = (2.0**-50, 2.0**50, 1.0), (16.0, 2.0**-10, 4.0), (-16.0, 1.0, 1.0), (2.0**50, 2.0**-50, 2.0**20)
_OTHER_TIMES = 1.25
_AS_OTHERS = (-3.0, 0.25), (40.0, 0.5), (-1e-3, 2.0)  # factors of the weights and |grad|^2, and of the loss
_END_SAFETY = 4.0
_AT_REST = 256 * float(np.finfo(np.float64).eps)  # of the largest weight: a flow that moves less is at rest
_NEAR_REST = 1e-4  # of the largest weight: a flow this close to its end may be open because of rounding
_NO_TIMES = np.zeros(0)
AT_ONCE = 32  # spans of time that are enclosed at once
SPANS = 2 * AT_ONCE + 2  # rows of these: start, middles, spans, end
_REMEMBERED = 64  # enclosed spans that are kept
_FEW = 128  # weights: with more, a claim is compared without the others at its further times


class Case:
    """One solve of a flow at its output and ``further`` times, and modified copies for the comparison of claims."""

    def __init__(
        self,
        repetitions: AbstractRepetitions,
        solve: Callable[[AbstractRepetitions], Trajectory],
        further: np.ndarray = _NO_TIMES,
        traces: dict | None = None,
    ):
        self._repetitions, self._solve, self._further = repetitions, solve, further
        self._traces: dict = {} if traces is None else traces
        self._finer: dict[bytes, Case] = {}
        self._looks: dict[tuple[bytes, bytes], Enclosed] = {}
        self._thinned: dict[tuple[float, ...], Made[tuple[np.ndarray, Padded]]] = {}
        self._records: dict[float, tuple[Array, Array, Array]] = {}
        self._settled: dict[tuple[float, bool], Case] = {}

    @property
    def panel(self) -> Panel:
        """The panel of claims that are compared together on this solve. It is empty if the solve has further times
        and the model has more than 128 weights. Claims are then compared one by one.
        """
        alone = self._further.size and weights_of(self.run) > _FEW
        return self._repetitions.alone_panel if alone else self._repetitions.panel

    @functools.cached_property
    def run(self) -> Trajectory:
        """The trajectory of the solve. An excess that is the loss minus its minimum is computed in balls."""
        run = self._with_times(self._repetitions.loss, self._solve(self._repetitions))
        if not self._repetitions.stated.subtracts:
            return run
        excess = self._enclosed(run, ()).exact.excess(COSTLY)
        return run if excess is None else dataclasses.replace(run, excess=jax.device_put(excess))

    def at(self, further: np.ndarray) -> "Case":
        """This solve with further output times."""
        if not further.size:
            return self
        if further.tobytes() not in self._finer:
            if is_large(self.run):
                self._finer.clear()
            self._finer[further.tobytes()] = Case(self._repetitions, self._solve, further, self._traces)
        return self._finer[further.tobytes()]

    @functools.cached_property
    def settled(self) -> "Case":
        """This solve with a bound on the remaining length of the flow, computed if it is not known yet."""
        return self if self._unsettled else self.with_remaining(self._repetitions.way_to_go(self.run.end))

    def with_remaining(self, remaining: float, tail: Tail | None = None) -> "Case":
        """This solve with a bound on its remaining length and, if given, its continuation. The result is cached."""
        key = remaining, tail is not None
        if key in self._settled:
            return self._settled[key]
        case = Case(self._repetitions, self._solve, self._further, self._traces)
        case.run, case.remaining, case._unsettled, case._records = self.run, remaining, self, self._records
        case.tail = tail or self.tail
        case.padded = dataclasses.replace(self.padded, way_to_go=jax.device_put(remaining), tail=case.tail)
        self._settled[key] = case
        return case

    @functools.cached_property
    def continued(self) -> "Case | None":
        """This solve continued beyond its end towards the limit, from a known bound on its remaining length; None
        if that is not needed or fails.
        """
        tail = self._repetitions.tail_of(self.run, self.remaining)
        return None if tail is None else self.with_remaining(self.remaining, tail)

    tail: Tail | None = None
    remaining = math.inf
    _unsettled: "Case | None" = None

    @property
    def status(self) -> Status:
        """The status of the trajectory, and of its repetitions, which run to the same times."""
        return self._repetitions.trajectory.status

    @property
    def end_error(self) -> float:
        """An estimate of the error of the weights at the end: four times their distance from the reference."""
        ends = [self._repetitions.trajectory.end, self._repetitions.reference.end]
        one, other = (jax.tree.leaves(eqx.filter(end, eqx.is_inexact_array)) for end in ends)
        squares = sum(float(np.sum((np.asarray(a) - np.asarray(b)) ** 2)) for a, b in zip(one, other, strict=True))
        return _END_SAFETY * math.sqrt(squares)

    def times_of(self, claim: Claim) -> list[float]:
        """The times at which a claim evaluates the flow with ``flow.at``."""
        return self._repetitions.times_of(claim)

    def too_late(self, claim: Claim) -> str:
        """The message for a claim that evaluates the flow at a time after its end; empty for other claims."""
        end = float(np.asarray(self._repetitions.trajectory.t)[-1])
        late = [t for t in self.times_of(claim) if t > (1 + SAME) * end]
        return f"It needs t = {late[0]:g}, but the flow ends at t = {end:.4g}: ask for a later t1." if late else ""

    @functools.cached_property
    def at_rest(self) -> int:
        """The number of the first row after which the flow moves by rounding only. It equals the number of rows if
        there is no row of this kind, or if the field is exactly zero.
        """
        return self._moves_until(_AT_REST)

    @functools.cached_property
    def near_rest(self) -> int:
        """The first row from which on each weight differs from its value at the end by at most 1e-4 of the largest
        weight; the number of rows if the flow does not end at rest.
        """
        return self._moves_until(_NEAR_REST)

    def _moves_until(self, distance: float) -> int:
        run = self.run
        if run.t.size == 1 or run.status is Status.STATIONARY or not self._repetitions.is_rounding(run.end):
            return run.t.size
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(eqx.filter(run.models, eqx.is_inexact_array))]
        flat = np.concatenate([leaf.reshape(run.t.size, -1) for leaf in leaves], axis=1)
        still = np.max(np.abs(flat - flat[-1:]), axis=1) <= distance * np.max(np.abs(flat[-1]))
        return run.t.size - int(np.argmin(still[::-1])) if not still.all() else 0

    def is_row_by_row(self, claim: Claim) -> bool:
        """Whether a claim at each time depends on this time and the start only; see `Panel.is_row_by_row`."""
        return self.panel.is_row_by_row(claim, self._repetitions.stated, self.padded)

    @functools.cached_property
    def with_other_ends(self) -> Made[Padded]:
        """Copies of the padded solve with false numbers at the end, to test whether a comparison depends on the
        end.

        The first copy has NaN in its last row. The others have much smaller, much larger or negated weights in all
        rows that repeat the end. NaN alone does not suffice, since an inequality with NaN is false.
        """
        repeated = slice(self.run.t.size, None)
        last = functools.partial(scaled, self.padded, slice(-1, None), np.nan, np.nan)
        others = (functools.partial(scaled, self.padded, repeated, *factors) for factors in _OTHER_ENDS)
        return Made(*(functools.partial(self._lazily, make) for make in (last, *others)))

    @functools.cached_property
    def at_other_times(self) -> Trajectory:
        """The padded solve with the same weights at other times."""
        return dataclasses.replace(self.padded, t=jax.device_put(np.asarray(self.padded.t) * _OTHER_TIMES))

    @functools.cached_property
    def with_others(self) -> Made[Padded]:
        """Copies of the padded solve with false numbers at every second time, except at the start and the end."""
        others = slice(1, self.run.t.size - 1, 2)
        makers = (functools.partial(scaled, self.padded, others, *factors) for factors in _AS_OTHERS)
        return Made(*(functools.partial(self._lazily, make) for make in makers))

    def _lazily(self, make: Callable[[], Trajectory]) -> Padded:
        return Later(make, self.padded.t) if is_large(self.padded) else make()

    def thinned(self, asked: Sequence[float]) -> Made[tuple[np.ndarray, Padded]]:
        """Three pairs: the numbers of about a third of the rows, and the padded solve reduced to these rows. Both
        ends and the times ``asked`` are in all three.
        """
        key = tuple(asked)
        if key not in self._thinned:
            t = np.asarray(self.run.t)
            stays = np.isin(np.arange(t.size), [0, t.size - 1])
            for one in asked:
                stays |= np.abs(t - one) <= SAME * one
            phases = [np.flatnonzero(stays | (np.arange(t.size) % 3 == phase)) for phase in range(3)]
            third = lambda rows: (rows, self._lazily(lambda: taken(self.padded, rows)))
            self._thinned[key] = Made(*(functools.partial(third, rows) for rows in phases))
        return self._thinned[key]

    @functools.cached_property
    def randomized(self) -> Trajectory:
        """The padded solve with random times and numbers after the start. If a comparison changes on it, that
        comparison depends on more than the start.
        """
        return randomized(self.padded)

    @functools.cached_property
    def course(self) -> Course:
        """The solve as a function of time, interpolated between its output times."""
        # A trajectory from a file has no velocity.
        descent = self._repetitions.reference.descent
        assert descent is not None
        velocity = functools.partial(velocities, descent)
        here = velocity(self.padded.models)
        # A velocity that is rounding may lead far in the time of a long step.
        felt = lambda x, noise: np.where(np.abs(x) > ROUNDING_SAFETY * noise, x, 0.0)[: self.run.t.size]
        noise = noise_of(velocity, here, self.padded.models)
        return Course(self.run, jax.tree.map(felt, here, noise), self._repetitions.clock)

    @functools.cached_property
    def enclosed(self) -> Enclosed:
        """The solve in ball arithmetic, with the errors of rounding and those that the tolerance allows."""
        if self._unsettled is not None:
            return dataclasses.replace(self._unsettled.enclosed, remaining=self.remaining, tail=self.tail)
        count = self.run.t.size
        runs = (made(run) for _, run in self.nudged)
        base, *others = [(run.loss, run.excess, run.grad_norm_sq) for run in runs]
        # The error of a difference is relative to the numbers that were subtracted.
        sizes = [base[0], base[0] if self._repetitions.stated.subtracts else base[1], base[2]]
        errors = []
        for place, (one, size) in enumerate(zip(base, sizes, strict=True)):
            apart = [np.abs(np.asarray(other[place]) - np.asarray(one))[:count] for other in others]
            errors.append(ROUNDING_SAFETY * np.max(apart, axis=0) + ROUNDING * np.abs(np.asarray(size)[:count]))
        found = dataclasses.replace(self._enclosed(self.run, tuple(errors)), spread=allowed_in(self.run))
        slopes = found.slopes(CHEAP)
        if slopes is not None:
            found = found.wider(lost_in(slopes, np.asarray(self._slopes)[:count], self._lengths))
        both = lambda spread, drift: spread + drift[:count]
        return dataclasses.replace(found, spread=jax.tree.map(both, found.spread, self._drift))

    def within(self, low: np.ndarray, high: np.ndarray) -> Enclosed:
        """The solve on the time intervals [low_i, high_i], in balls that contain all weights on each.

        **Raises:** `OpenError` if the model has too many weights.
        """
        if SPANS * weights_of(self.run) > CHEAP:
            raise OpenError("there are too many weights")
        key = low.tobytes(), high.tobytes()
        if key not in self._looks:
            if len(self._looks) == _REMEMBERED:
                self._looks.clear()
            self._looks[key] = self.enclosed.within(self.course.spans(low, high, AT_ONCE))
        return self._looks[key]

    def _enclosed(self, run: Trajectory, errors: tuple[np.ndarray, ...]) -> Enclosed:
        repetitions = self._repetitions
        system = None if isinstance(repetitions.loss, MonteCarloLoss) else repetitions.system
        rounding = Roundings() if repetitions.stated.derived else Roundings(loss=0.0)
        stated, stay = repetitions.stated, repetitions.stay
        return Enclosed(
            system, stated, run, errors, self.remaining, self._is_identity, rounding, stay, traces=self._traces
        )

    def _is_identity(self, claim: Claim) -> bool:
        return bool(self.panel.compared(claim, self._repetitions.stated, self.padded).identity.all())

    @functools.cached_property
    def padded(self) -> Trajectory:
        """The solve with its last row repeated; see `series.padded`."""
        return padded(self.run, self._repetitions.trajectory.t.size)

    def has_as_many_points(self, claim: Claim) -> bool:
        """Whether a comparison has a fixed number of rows, which is at least that of the padded solve."""
        length = self.panel.compared(claim, self._repetitions.stated, self.padded).slack.shape[0]
        if length < self.padded.t.size:
            return False
        try:
            return self._enclosed(self.run, ()).length(claim, SPANS) == length
        except jax.errors.JAXTypeError:
            # The comparison leaves JAX, so that its shape cannot be computed.
            return False

    def has_times(self, claim: Claim, rows: int) -> bool:
        """Whether a comparison with ``rows`` rows has one row for each time of the padded solve.

        A claim that only depends on the start may have as many points as there are times. It is therefore also
        compared on the start alone, which has another number of times.
        """
        if claim.along_flow or rows != self.padded.t.size:
            return rows == self.padded.t.size
        alone = start_alone(self._repetitions.loss, self.run.start)
        return compared(claim, self._repetitions.stated, alone).slack.shape[0] != rows

    def replicates(self, claim: Claim) -> list[tuple[AbstractPopulationLoss, Trajectory]]:
        """For each independent sample set, its loss and flow; empty if the claim does not depend on samples."""
        if not self._repetitions.samples_matter(claim):
            return []
        return self._parts

    @functools.cached_property
    def _parts(self) -> list[tuple[AbstractPopulationLoss, Trajectory]]:
        pairs = self._repetitions.replicates
        return [
            (stated(loss), padded(self._with_times(loss, run), self._repetitions.trajectory.t.size))
            for loss, run in pairs
        ]

    @functools.cached_property
    def nudged(self) -> Made[tuple[AbstractPopulationLoss, Padded]]:
        """Three pairs of a loss and the padded solve with recomputed series: first unchanged, then with all numbers
        moved by a few units in the last place, with alternating signs and with the opposite signs.
        """
        loss = self._repetitions.stated
        losses = {amount: nudged_loss(loss, amount) for amount in (0.0, ROUNDING, -ROUNDING)}
        moved = lambda at: (losses[at], self._lazily(lambda: self._recomputed(at)))
        return Made(*(functools.partial(moved, at) for at in losses))

    def _with_times(self, loss: AbstractPopulationLoss, run: Trajectory) -> Trajectory:
        return self._repetitions.with_times(loss, run, self._further) if self._further.size else run

    def _recomputed(self, amount: float) -> Trajectory:
        models = nudged_rows(self.padded.models, amount, self._drift)
        if amount not in self._records:
            self._records[amount] = _evaluate(self._repetitions.system, models)[:3]
        value, excess, grad_norm_sq = self._records[amount]
        dissipated = jax.device_put(np.asarray(self.padded.dissipated) * (1 + amount))
        return padded_with(self.padded, models, value, excess, grad_norm_sq, dissipated)

    @property
    def _lengths(self) -> Float[np.ndarray, " steps"]:
        """(T - 1,) the time from each row to the next."""
        return self._repetitions.clock.lengths(np.asarray(self.run.t))

    @functools.cached_property
    def _slopes(self) -> Float[Array, "T n"]:
        """(T, n) the field at the weights of the padded solve."""
        return _evaluate(self._repetitions.system, self.padded.models)[-1]

    @functools.cached_property
    def _drift(self) -> PyTree:
        """For each array of weights of the padded solve, (T,) a bound on how far rounding of the field may have
        moved its weights.
        """
        system, models = self._repetitions.system, self.padded.models
        slopes, count = np.asarray(self._slopes), self.run.t.size
        # Samples are known less well than rounding.
        if isinstance(self._repetitions.loss, MonteCarloLoss) or slopes.size == 0 or count == 1:
            return jax.tree.map(lambda leaf: np.zeros(leaf.shape[0]), eqx.filter(models, eqx.is_inexact_array))
        noise = noise_of(lambda models: _evaluate(system, models)[-1], slopes, models)
        exactly = lambda: self._enclosed(self.run, ()).exact.slopes(COSTLY)
        drift = drift_in(system, self.run, self._lengths, slopes[:count], noise[:count], exactly)
        return jax.tree.map(lambda one: np.append(one, np.full(slopes.shape[0] - count, one[-1])), drift)


@eqx.filter_jit
def _evaluate(system: AbstractSystem, models: PyTree):
    arrays, rest = eqx.partition(models, eqx.is_array)

    def one(arrays):
        state = system.encode(eqx.combine(arrays, rest))
        record = system.record(state)
        return record.loss, record.excess, record.grad_norm_sq, _flat(system.field(state))

    return jax.lax.map(one, arrays)


def _flat(slopes: PyTree) -> Float[Array, " n"]:
    """The field as a vector; empty if it has more than 30,000 entries, too many for balls."""
    flat = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(slopes)])
    return flat if flat.size <= CHEAP else flat[:0]
