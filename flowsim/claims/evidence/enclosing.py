"""Both sides of a claim in ball arithmetic, from weights and numbers with their rounding errors.

Balls have more digits than float64. They show what cancels in a loss, between weights or among the constants of a
statement.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import flint
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from flowsim._core.balls.centred import common, is_smooth, middles, nearer, not_negative
from flowsim._core.balls.enclosure import BITS, Traced, lower, rounded, upper
from flowsim._core.balls.operations import Balls, UndecidedError, balls
from flowsim.claims.claim import Claim
from flowsim.claims.evidence.bounds import Bounds, bounds_of
from flowsim.claims.evidence.course import Spans
from flowsim.claims.evidence.jumps import jumps_in
from flowsim.claims.evidence.moving import ROUNDING
from flowsim.claims.evidence.series import weights_of
from flowsim.claims.limits import End, ending_at
from flowsim.flow.basin import Tail
from flowsim.flow.recording import uncertified
from flowsim.flow.systems import AbstractSystem
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import AbstractPopulationLoss
from flowsim.losses.closed_form import is_closed_form

NOT_TRACED = "not traced"  # the entry of `Bounds.jumps` if the comparison cannot be traced
CHEAP, COSTLY = 3e4, 2e6  # limits on the number of operations


class OpenError(Exception):
    """Raised if a claim's sides cannot be computed in balls; the message says why. ``jumps`` is as in `Bounds`."""

    def __init__(self, message: str, jumps: tuple[str, ...] = ()):
        super().__init__(message)
        self.jumps = jumps


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows of a trajectory in balls, with time on the first axis. ``slopes`` is the field, (rows, weights)."""

    t: Balls
    models: PyTree
    loss: Balls
    excess: Balls
    grad_norm_sq: Balls
    dissipated: Balls
    slopes: Balls | None


class Roundings(NamedTuple):
    """The relative rounding errors of the weights, of the numbers in the loss, and of the constants in the
    statement. Numbers with few binary digits are exact.
    """

    weights: float = ROUNDING
    loss: float = ROUNDING
    statement: float = ROUNDING


@dataclasses.dataclass(frozen=True)
class Enclosed:
    """One solve of a flow or a descent in ball arithmetic, in which a number is a ball: a middle and a radius.

    Methods take the rows of the run to compute and a limit on the number of operations. They raise `OpenError` if a
    number cannot be computed in balls or is too costly.

    **Fields:**

    - system: the flow in its coordinates, None for a sampled loss.
    - loss: the loss that claims are about.
    - run: the solve.
    - errors: (T,) the measured errors of loss, excess and |grad L|^2, for a loss that cannot be computed in balls,
      and of the dissipated energy of a descent.
    - remaining: a bound on the remaining length of the flow after its end.
    - is_identity: claim -> whether it is an equality.
    - rounding: the relative rounding errors of numbers.
    - stay: which weights stay zero, in the shape of the model; None if not known.
    - spread: for each array of weights, (T,) a bound on its error beyond rounding.
    - times: the times of the rows, as balls, if the rows are spans of time.
    - iterates: the true iterates of a descent, and the energy dissipated until each; None for a flow.
    - tail: the continuation of the flow beyond its end, or None.
    - traces: a cache of traced functions.
    """

    system: AbstractSystem | None
    loss: AbstractPopulationLoss
    run: Trajectory
    errors: tuple[Float[np.ndarray, " T"], ...]
    remaining: float
    is_identity: Callable[[Claim], bool]
    rounding: Roundings = Roundings()
    stay: PyTree = None
    spread: PyTree = None
    times: Balls | None = None
    iterates: tuple[PyTree, Balls] | None = None
    tail: Tail | None = None
    traces: dict[tuple[object, ...], tuple[object, Traced]] = dataclasses.field(default_factory=dict, repr=False)
    _known: dict[tuple[bytes, bytes, float], Rows] = dataclasses.field(init=False, default_factory=dict, repr=False)

    def compared(self, claim: Claim, rows: np.ndarray, most_operations: float) -> Bounds:
        """The comparison of a claim in some rows, of which the last must be the end of the run."""
        return self._compared(claim, balls(np.asarray(self.run.t)[rows]), rows, np.zeros(rows.size), most_operations)

    def settled(self, claim: Claim, rows: np.ndarray, radius: float, most_operations: float) -> Bounds:
        """The comparison in some rows, with weights anywhere within ``radius`` of the end in the last row."""
        further = np.where(np.arange(rows.size) == rows.size - 1, radius, -1.0)
        # Where the flow was continued, its limit is nearer to that point than to the end.
        near = 1.0 if self.tail is None else (self.tail.way_to_go + radius - self.remaining) / radius
        return self._compared(claim, balls(np.asarray(self.run.t)[rows]), rows, further, most_operations, near=near)

    def beyond(self, claim: Claim, t: Balls, radius: float, most_operations: float) -> Bounds:
        """The comparison at the start, the end, and later times ``t`` with weights within ``radius`` of the end."""
        rows = np.asarray([0, *[-1] * (t.size + 1)])
        times = np.concatenate([balls(np.asarray(self.run.t)[[0, -1]]), t])
        return self._compared(claim, times, rows, np.where(np.arange(rows.size) > 1, radius, -1.0), most_operations)

    def within(self, spans: Spans) -> "Enclosed":
        """This solve at the rows of `Spans`, without rounding errors. Recorded series are unknown there."""
        errors = (np.full(spans.t.size, np.inf),) * 3
        return dataclasses.replace(self.exact, run=spans.run, times=spans.t, spread=spans.spread, errors=errors)

    def between(self, claim: Claim, most_operations: float) -> Bounds:
        """The comparison of a claim in all rows of a solve that `within` returned."""
        assert self.times is not None
        rows = np.arange(self.times.size)
        return self._compared(claim, self.times, rows, np.zeros(rows.size), most_operations, look_between=False)

    def records(self, most_operations: float) -> tuple[Balls, Balls]:
        """The loss and |grad L|^2 in all rows."""
        found = self._all(most_operations)
        if found is None:
            raise OpenError("the loss cannot be computed in balls")
        return found[0], found[2]

    @functools.cached_property
    def exact(self) -> "Enclosed":
        """This solve without rounding errors and without ``spread``: all numbers are taken as exact."""
        return dataclasses.replace(self, rounding=Roundings(0.0, 0.0, 0.0), spread=None)

    @functools.cached_property
    def unrounded(self) -> "Enclosed":
        """This solve with all rounding errors set to zero. ``spread`` is zero in rows where it is below rounding."""
        weights = eqx.filter(self.run.models, eqx.is_inexact_array)
        largest = lambda leaf: np.max(np.abs(np.asarray(leaf)).reshape(leaf.shape[0], -1), axis=1, initial=0.0)
        more = lambda leaf, spread: np.where(spread > ROUNDING * largest(leaf), spread, 0.0)
        return dataclasses.replace(self.exact, spread=jax.tree.map(more, weights, self.spread))

    def wider(self, further: Float[np.ndarray, " T"]) -> "Enclosed":
        """This solve with errors of all weights that are larger by ``further`` in each row."""
        weights = eqx.filter(self.run.models, eqx.is_inexact_array)
        known = jax.tree.map(lambda leaf: np.zeros(further.size), weights) if self.spread is None else self.spread
        return dataclasses.replace(self, spread=jax.tree.map(lambda one: one + further, known))

    def widest(self, claim: Claim, rows: np.ndarray, place: tuple[int, ...]) -> str:
        """The source of rounding that widens the slack at one entry the most: "weights", "loss" or "statement"."""
        widths = {}
        for source, rounding in self.rounding._asdict().items():
            alone = Roundings(0.0, 0.0, 0.0)._replace(**{source: rounding})
            spread = self.spread if source == "weights" else None
            found = dataclasses.replace(self, rounding=alone, spread=spread).compared(claim, rows, COSTLY)
            widths[source] = float(np.nan_to_num(found.high[place] - found.low[place], nan=np.inf))
        return max(widths, key=lambda source: widths[source])

    def slopes(self, most_operations: float) -> Balls | None:
        """(T, n) the field in all rows; None if it cannot be computed in balls."""
        return (self._all(most_operations) or (None,))[-1]

    def excess(self, most_operations: float) -> Float[np.ndarray, " T"] | None:
        """(T,) the excess in all rows, in float64; None if it cannot be computed in balls."""
        found = self._all(most_operations)
        return None if found is None else (lower(found[1]) + upper(found[1])) / 2

    def _all(self, most_operations: float) -> tuple[Balls, ...] | None:
        rows = np.arange(self.run.t.size)
        try:
            return self._recorded(self._around(rows, np.zeros(rows.size), most_operations), rows, most_operations)
        except (UndecidedError, jax.errors.JAXTypeError):
            return None

    def _around(self, rows: np.ndarray, further: np.ndarray, most_operations: float) -> PyTree:
        """The weights in some rows as balls, each wider by ``further``. Weights that stay zero are exact."""
        weights = eqx.filter(self.run.models, eqx.is_inexact_array)
        if rows.size * self._size > most_operations:
            raise UndecidedError("there are too many weights", is_costly=True)
        spread = jax.tree.map(lambda leaf: np.zeros(leaf.shape[0]), weights) if self.spread is None else self.spread
        stay = jax.tree.map(lambda leaf: False, weights) if self.stay is None else self.stay

        def around(leaf, spread, stays, exact):
            values = np.asarray(leaf)
            room = np.reshape(spread[rows] + np.maximum(further, 0.0), (-1, *[1] * (values.ndim - 1)))
            moves = np.any(values != 0, axis=0) | np.logical_not(stays)
            radius = self.rounding.weights * np.abs(values[rows]) + np.where(moves, room, 0.0)
            if self.iterates is None:
                return balls(values[rows], radius)
            with flint.ctx.workprec(BITS):
                return np.asarray(exact[rows] + balls(np.zeros(radius.shape), radius), dtype=object)

        return jax.tree.map(around, weights, spread, stay, weights if self.iterates is None else self.iterates[0])

    @functools.cached_property
    def _size(self) -> int:
        return weights_of(self.run)

    def _rest(self, rows: np.ndarray) -> PyTree:
        at = lambda leaf: np.asarray(leaf)[rows] if eqx.is_array(leaf) else leaf
        return jax.tree.map(at, eqx.filter(self.run.models, eqx.is_inexact_array, inverse=True))

    def _compared(
        self,
        claim: Claim,
        t: Balls,
        rows: np.ndarray,
        further: np.ndarray,
        most_operations: float,
        *,
        look_between: bool = True,
        near: float = 1.0,
    ) -> Bounds:
        """The comparison in some rows. A row with ``further`` > 0 stands for later times; its balls are wider by
        that much. With ``look_between``, operations that jump from row to row are listed; ``near`` is as in `End`.
        """
        jumps: tuple[str, ...] = ()
        whole = rows.size == self.run.t.size and not np.any(further > 0)
        try:
            traced = self._trace(claim, rows.size, near)
            if COSTLY <= most_operations < traced.operations and rows.size * self._size <= most_operations:
                # That is seen without making balls.
                weights = eqx.filter(self.run.models, eqx.is_inexact_array)
                shapes = (self._numbers, (t,) * (5 + len(self._sizes(rows))), weights)
                jumps = jumps_in(traced, shapes, whole, most_operations) if look_between else ()
                raise UndecidedError(f"{traced.operations:.1e} operations are too many", is_costly=True)
            known = self._rows(t, rows, further, most_operations)
            series = (known.t, known.loss, known.excess, known.grad_norm_sq, known.dissipated, *self._sizes(rows))
            given = (self._numbers, series, known.models)
            jumps = jumps_in(traced, given, whole, most_operations) if look_between else ()
            slack, promised, allowance, scale, size, difference = traced.on(
                *given,
                # The eigenvectors of the middle of a ball suffice if the ball contains rounding only.
                proved=bool(np.any(further > 0)) or not look_between,
                open_branches=True,
                rounding=self.rounding.statement,
                most_operations=most_operations,
                # Both sides of an identity belong to one matrix, so that the middles suffice.
                of_middles=self.is_identity(claim),
            )
        except UndecidedError as error:
            raise OpenError(str(error), jumps) from error
        except (jax.errors.JAXTypeError, TypeError, ValueError) as error:
            raise OpenError(str(error), (NOT_TRACED,)) from error
        return bounds_of(slack, promised, allowance, scale, size, difference, jumps)

    def length(self, claim: Claim, rows: int) -> int:
        """The number of points of a claim's comparison for this number of rows. Raises what JAX raises."""
        return (*self._trace(claim, rows).shapes[0], 1)[0]

    def _trace(self, claim: Claim, rows: int, near: float = 1.0) -> Traced:
        """The traced claim, a function (numbers of the loss, series, weights) -> parts of a `Comparison`."""
        arrays, fixed = eqx.partition(self.loss, eqx.is_inexact_array)
        rest = self._rest(np.zeros(rows, dtype=int))
        end = End.of(self.run.end, self.remaining, self.tail, near)  # known, as it is not inside a trace

        def sides(arrays, series, models):
            t, loss, excess, grad_norm_sq, dissipated, *sizes = series
            weights = eqx.combine(models, rest)
            run = uncertified(t, weights, loss, excess, grad_norm_sq, dissipated, self.run.descent, *sizes)
            run = dataclasses.replace(run, way_to_go=jnp.asarray(self.remaining))
            with ending_at(end):
                ours = claim.compare(eqx.combine(arrays, fixed), run)
            return ours.slack, ours.promised, ours.allowance, ours.scale, ours.size, ours.value - ours.bound

        at_rows = lambda leaf: jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), float)
        weights = jax.tree.map(at_rows, eqx.filter(self.run.models, eqx.is_inexact_array))
        series = (at_rows(self.run.t),) * (5 + (self.run.step_size is not None))
        return self._traced((claim, self.remaining, self.tail, near), rows, sides, arrays, series, weights)

    def _sizes(self, rows: np.ndarray) -> tuple[Balls, ...]:
        """The step sizes of a descent in some rows, as balls; empty for a flow."""
        known = self.run.step_size
        return () if known is None else (rounded(np.asarray(known)[rows], self.rounding.loss),)

    @functools.cached_property
    def _numbers(self) -> PyTree:
        return _as_known(self.loss, self.rounding.loss)

    @functools.cached_property
    def _numbers_of_system(self) -> PyTree:
        return _as_known(self.system, self.rounding.loss)

    def _traced(self, of: tuple[object, ...], rows: int, function: Callable[..., PyTree], *given: PyTree) -> Traced:
        """The traced function, cached for all calls with the same objects ``of`` and the same number of rows."""
        # The value holds the objects, so that their ids are not reused.
        key = *(one if isinstance(one, bool | float) else id(one) for one in of), rows
        if key not in self.traces:
            self.traces[key] = of, Traced(function, *given)
        return self.traces[key][1]

    def _rows(self, t: Balls, rows: np.ndarray, further: np.ndarray, most_operations: float) -> Rows:
        """The rows in balls: series from the weights or, if balls fail for the loss, the recorded series."""
        key = rows.tobytes(), further.tobytes(), most_operations
        if (known := self._known.get(key)) is None:
            known = self._found_at(t, rows, further, most_operations)
            if rows.size * self._size <= CHEAP:
                self._known[key] = known
        return dataclasses.replace(known, t=t)

    def _found_at(self, t: Balls, rows: np.ndarray, further: np.ndarray, most_operations: float) -> Rows:
        models, later = self._around(rows, further, most_operations), further > 0
        try:
            proved = bool(np.any(later))
            loss, excess, grad_norm_sq, slopes = self._recorded(models, rows, most_operations, proved=proved)
        except UndecidedError as error:
            # Measured errors are not bounds. They are used only for a loss that balls cannot evaluate at any cost.
            if error.is_costly and most_operations < COSTLY and np.isfinite(self.errors[0]).all():
                raise
            recorded = (self.run.loss, self.run.excess, self.run.grad_norm_sq)
            pairs = zip(recorded, self.errors, strict=True)
            # The loss at the end is not that at later times.
            at = lambda one, error: balls(np.asarray(one)[rows], np.where(later, np.inf, error[rows]))
            (loss, excess, grad_norm_sq), slopes = (at(*pair) for pair in pairs), None
        grad_norm_sq, excess = not_negative(grad_norm_sq), not_negative(excess)
        # The loss decreases along the flow.
        least = float(self.loss.minimum)
        loss, excess = _fallen(loss, least, later), _fallen(excess, least - least, later)
        # A span of time has infinite errors, since nothing is recorded of it.
        error = np.where(later, np.inf, self.errors[0][rows] if slopes is None else 0.0)
        dissipated = balls(np.asarray(self.run.dissipated)[rows], error)
        if self.iterates is not None:
            error = np.where(later, np.inf, self.errors[-1][rows] if self.rounding.loss else 0.0)
            dissipated = self.iterates[1][rows] + balls(np.zeros(rows.size), error)
        elif slopes is not None and rows[0] == 0:
            above = loss if np.isnan(float(np.asarray(self.run.excess)[0])) else excess
            dissipated = above[:1] - above
        return Rows(t, models, loss, excess, grad_norm_sq, dissipated, slopes)

    def _recorded(
        self, models: PyTree, rows: np.ndarray, most_operations: float, *, proved: bool = False
    ) -> tuple[Balls, ...]:
        if self.system is None:
            raise UndecidedError("the loss is sampled")
        fixed = eqx.filter(self.system, eqx.is_inexact_array, inverse=True)
        arrays, rest = self._numbers_of_system, self._rest(rows)

        def record(all_of_it, arrays, models):
            one = functools.partial(_seen, eqx.combine(arrays, fixed), all_of_it)
            return eqx.filter_vmap(one)(eqx.combine(models, rest))

        def carried_out(all_of_it, models):
            function, of = functools.partial(record, all_of_it), (self.system, all_of_it)
            traced = self._traced(of, rows.size, function, arrays, models)
            if not (all_of_it or is_smooth(traced)):
                raise UndecidedError("the loss is not smooth")
            most, rounding = most_operations, self.rounding.loss
            return traced.on(arrays, models, proved=proved, open_branches=True, rounding=rounding, most_operations=most)

        loss, excess, states, grad_norm_sq, slopes = carried_out(True, models)
        if not is_closed_form(self.loss):
            with contextlib.suppress(UndecidedError):
                *series, middle = carried_out(False, middles(models))
                pairs = zip((loss, excess), series, strict=True)
                loss, excess = (nearer(one, there, states, middle, slopes) for one, there in pairs)
        return loss, excess, grad_norm_sq, slopes


# Traced once for any number of rows.
@eqx.filter_jit
def _seen(system: AbstractSystem, all_of_it: bool, model: PyTree) -> tuple[Array, ...]:
    state = system.encode(model)
    found = system.record(state)
    flat = lambda state: jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(state)])
    series = found.loss, found.excess, flat(state)
    return (*series, found.grad_norm_sq, flat(system.field(state))) if all_of_it else series


def _fallen(series: Balls, least: float, later: Bool[np.ndarray, " rows"]) -> Balls:
    """Bound the later rows of a decreasing series: they lie between ``least``, its least value (NaN if unknown),
    and the last row before them.
    """
    if math.isnan(least) or not later.any():
        return series
    last = series[int(np.argmax(later)) - 1] if np.argmax(later) else series[0]
    room = flint.arb(least).union(last)
    return np.asarray([common(ball, room) if after else ball for ball, after in zip(series, later, strict=True)])


def _as_known(module: PyTree, rounding: float) -> PyTree:
    """The numbers of a module as balls with this relative rounding error."""
    return jax.tree.map(lambda leaf: rounded(leaf, rounding), eqx.filter(module, eqx.is_inexact_array))
