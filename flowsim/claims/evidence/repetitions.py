"""Repetitions of a flow that show how far it can be trusted: more accurate solves, perturbed starts, new
samples.
"""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from flowsim._core import checks
from flowsim._core.functions import times_asked
from flowsim.claims.claim import Claim
from flowsim.claims.evidence.comparing import Panel
from flowsim.claims.evidence.moving import ROUNDING, moved, twists
from flowsim.claims.evidence.series import gap, merged, shifted, shortened
from flowsim.claims.limits import tail_of
from flowsim.flow.basin import Tail, stay_at_zero
from flowsim.flow.gradient_flow import gradient_flow, start_alone
from flowsim.flow.solvers.clock import Clock, since_last_origin
from flowsim.flow.solvers.dense.kernel import STEPS_PER_DECADE
from flowsim.flow.solvers.kinks import BEFORE, rows_before_kink
from flowsim.flow.systems import AbstractSystem, Descent, LossSystem, ScaledSystem, is_rounding, rounded, system_of
from flowsim.flow.trajectory import SAME, Status, Trajectory
from flowsim.losses import AbstractPopulationLoss
from flowsim.losses.closed_form import is_closed_form
from flowsim.losses.sampled.monte_carlo import MonteCarloLoss, prepared, stated

_TIGHTEST = 1e-13
_DENSER = 1.5  # the factor of steps in a decade from one solve to the next, at least
# Solves have diverged if their ends differ by more than this fraction of the largest weights, this multiple of the
# tolerance, and this fraction of the distance of a less accurate solve.
_CLOSE, _ASKED, _LESS = 1e-6, 1e3, 0.1
_FAR = 0.01  # of the largest weights: a larger difference is not a solver error
_STILL = 1e-12  # of each weight: it moves by rounding
_TAILS = 5  # points of a flow at which the tail of a sampled loss is tested
_SHORT_STEPS = 3  # steps that a run has within `BEFORE` of a kink, at least


class AbstractRepetitions:
    """A trajectory and its repetitions: the same flow solved with tolerances 100 and 10,000 times tighter.

    The repetitions have shorter steps, the same output times, and tolerances of at least 1e-13; each is solved when
    it is first used. Their starts are perturbed by a few hundred units in the last place, in opposite directions,
    so that the solves differ if rounding decides where the flow goes. A trajectory that was recorded without the
    solver's steps is first solved again with them. A flow with a kink is judged up to the kink, which each solve
    meets at a slightly different time.

    Repetitions of a flow that leaves a saddle late reach the same weights at different times. The trajectory then
    uses the times of its ``clock``, and each repetition is compared at the points nearest to the trajectory.

    **Arguments:**

    - loss: the loss.
    - trajectory: its flow.
    - claims: the claims that will be judged on the flow; they are compared together.
    - checkpoint: the folder in which chunks of the repetitions are saved.
    - progress: whether to show a progress bar.
    """

    def __init__(
        self,
        loss: AbstractPopulationLoss,
        trajectory: Trajectory,
        *,
        claims: Sequence[Claim] = (),
        checkpoint: str | os.PathLike | None = None,
        progress: bool = False,
    ):
        solver = trajectory.settings.solver
        if solver not in ("arrowhead", "in-turns", "implicit", "explicit"):
            checks.refuse(
                "trajectory", "one of gradient_flow, to be solved again more accurately", f"it is of {solver}"
            )
        self.loss = prepared(loss, trajectory.start)
        self.trajectory, self.status = trajectory, trajectory.status
        self._checkpoint = None if checkpoint is None else pathlib.Path(checkpoint)
        self._progress = progress
        self._claims = tuple(claims)
        self._solver = "auto" if solver in ("arrowhead", "in-turns") else solver
        if not trajectory.settings.with_steps and trajectory.t.size > 1 and trajectory.status.finished:
            self.trajectory = self._with_steps()
        self.trajectory = self._before_kink(self.trajectory)
        self.late, self.clock = self.trajectory.counted is not None, Clock.of(self.trajectory)
        if self.late:
            self.trajectory = dataclasses.replace(self.trajectory, t=jax.device_put(self.clock.times))

    @functools.cached_property
    def system(self) -> AbstractSystem:
        """The flow in the coordinates of the solver, in which the series are recomputed from perturbed weights."""
        return system_of(self.loss, self.trajectory.start, self._solver)[0]

    @property
    def stated(self) -> AbstractPopulationLoss:
        """The loss that claims are about: for a sampled loss the exact loss of the same problem, if it is known."""
        return stated(self.loss)

    @functools.cached_property
    def panel(self) -> Panel:
        """The claims along the flow that cover this loss and model. They are compared together."""
        return Panel([claim for claim in self._claims if claim.along_flow and self._is_spoken_of(claim)])

    @functools.cached_property
    def alone_panel(self) -> Panel:
        """An empty `Panel`, for claims that are compared one by one."""
        return Panel()

    def _is_spoken_of(self, claim: Claim) -> bool:
        try:
            return claim.foreign(self.stated, self.trajectory.start) is None
        except Exception:
            # The verdict on this claim reports the exception; the other claims are not affected.
            return False

    @functools.cached_property
    def reference(self) -> Trajectory:
        """The flow with tolerances 100 times tighter, but not below 1e-13."""
        return self._again(1, "reference")

    @functools.cached_property
    def confirmation(self) -> Trajectory:
        """The flow with tolerances 10,000 times tighter, but not below 1e-13."""
        return self._again(2, "confirmation")

    @functools.cached_property
    def replicates(self) -> list[tuple[AbstractPopulationLoss, Trajectory]]:
        """Each independent estimate of a sampled loss, with its flow at the same times; empty for an exact loss."""
        return [(loss, self._solved(loss, self.trajectory.settings.rtol)) for loss in self.loss.replicates()]

    def times_of(self, claim: Claim) -> list[float]:
        """The times at which a claim evaluates the flow with ``flow.at``."""
        with times_asked() as times:
            try:
                eqx.filter_eval_shape(claim.compare, self.stated, self.trajectory)
            except Exception:
                # The comparison itself reports the exception.
                return sorted(set(times))
        return sorted(set(times))

    def asked(self, claim: Claim) -> np.ndarray:
        """The times at which a claim evaluates the flow, except output times and times after the end."""
        t = np.asarray(self.trajectory.t)
        times = [one for one in self.times_of(claim) if 0 < one < t[-1] and np.min(np.abs(t - one)) > SAME * one]
        return np.asarray(times)

    def way_to_go(self, end: PyTree) -> float:
        """A proved bound on the remaining length of the flow after the model ``end``."""
        return self.system.way_to_go(self.system.encode(end), self.system.encode(self.trajectory.start))

    def tail_of(self, run: Trajectory, remaining: float) -> Tail | None:
        """The continuation of a solve beyond its end, or None; see `limits.tail_of`.

        **Arguments:** run: the solve; remaining: a bound on its remaining length.
        """
        go_on = functools.partial(gradient_flow, self.loss, solver=self._solver)
        return tail_of(run, remaining, self.trajectory.settings.rtol, go_on, self.way_to_go)

    def is_rounding(self, model: PyTree) -> bool:
        """Whether the field at a model consists of rounding errors only."""
        return bool(_is_rounding(self.system, self.system.encode(model)))

    @functools.cached_property
    def stay(self) -> PyTree:
        """Truth values in the shape of the model: which weights stay zero, whatever values the other weights have.

        None if no weight is zero at all times, or if the loss is sampled.
        """
        weights = eqx.filter(self.trajectory.models, eqx.is_inexact_array)
        zero = jax.tree.map(lambda leaf: ~np.any(np.asarray(leaf) != 0, axis=0), weights)
        if isinstance(self.loss, MonteCarloLoss) or not any(np.any(one) for one in jax.tree.leaves(zero)):
            return None
        if not isinstance(self.system, LossSystem | ScaledSystem):
            # A system with fewer coordinates has none for these weights.
            return zero
        velocity = lambda model: eqx.filter(Descent(self.system)(model), eqx.is_inexact_array)
        rest = eqx.filter(self.trajectory.start, eqx.is_inexact_array, inverse=True)
        end = eqx.filter(self.trajectory.end, eqx.is_inexact_array)
        field = lambda weights: velocity(eqx.combine(weights, rest))
        return stay_at_zero(field, end, zero, is_one_formula=is_closed_form(self.loss))

    def samples_matter(self, claim: Claim) -> bool:
        """Whether the loss or the flow that a claim uses may depend on samples."""
        return claim.along_flow or self.stated is self.loss

    @functools.cached_property
    def distrust(self) -> str | None:
        """The reason why confidence intervals along the flow of a sampled loss cannot be trusted. None if they can
        be, or if the loss is exact.
        """
        if not isinstance(self.loss, MonteCarloLoss):
            return None
        # The fresh samples are for the end of the flow: at the start more weights may be zero, and more may be averaged
        # exactly.
        run, fresh = self.trajectory, self.loss.fresh(self.trajectory.end)
        for index in np.unique(np.linspace(0, run.t.size - 1, _TAILS).astype(int)):
            if reason := self.loss.distrust(run.row(int(index)), fresh):
                return f"The samples may be far from the population loss: at t = {float(run.t[index]):.4g}, {reason}."
        return None

    @functools.cached_property
    def diverged(self) -> str | None:
        """The reason why the true flow is not known, if rounding decides in which direction it leaves a saddle;
        else None.
        """
        solves = (self.trajectory, self.reference)
        if not all(run.status.finished for run in solves):
            return None
        # A trajectory from a file has no velocity.
        if any(twists(run, self.reference.descent) for run in solves):
            return "Rounding leads the flow away from the symmetric matrices at which it starts."
        close, apart = max(_CLOSE, _ASKED * self.trajectory.settings.rtol), gap(*solves)
        if np.max(apart) <= close or not self.confirmation.status.finished:
            return None
        # Drops at slightly different times separate two solves as well, but these meet again at the end; and an error
        # of the solver shrinks in a more accurate solve.
        nearer = gap(self.reference, self.confirmation)[-1] <= max(close, _LESS * apart[-1])
        if apart[-1] <= _FAR and nearer:
            return None
        return "A change of the last digits of the start changes where the flow ends: start clearly on one side."

    def with_times(self, loss: AbstractPopulationLoss, run: Trajectory, further: np.ndarray) -> Trajectory:
        """A flow with further output times. Each interval that contains some of them is solved again from its left
        end.
        """
        t = np.asarray(run.t)
        further = further[further < t[-1]]
        parts = [run]
        for left in (np.unique(np.searchsorted(t, further, side="right")) - 1).tolist():
            times = further[(further > t[left]) & (further < t[left + 1])]
            part = self._from(loss, run, left, self.clock.rate(t[left]) * (times - t[left]))
            if part.status is Status.LOST and _stands_still(run, left):
                part = dataclasses.replace(part, status=Status.STATIONARY)
            # Rates and origins would round them.
            at = np.append(t[left], times)[: part.t.size]
            parts.append(shifted(part, at, float(run.dissipated[left])))
        return merged(parts)

    def _from(self, loss: AbstractPopulationLoss, run: Trajectory, row: int, times: np.ndarray) -> Trajectory:
        """The flow from one row of a solve, at times counted from this row, with the tolerances of the solve."""
        begin, rtol, atol = run.row(row), run.settings.rtol, run.settings.atol or None
        return gradient_flow(loss, begin, times=times, rtol=rtol, atol=atol, solver=self._solver, points_per_decade=0)

    def ladder(self) -> dict[str, float]:
        """The error of the trajectory by its tolerance: {rtol: distance}. Empty if the trajectory or the reference
        failed.

        The distance is the largest one between weights of the trajectory and of the reference, relative to the
        largest norm.
        """
        if not (self.trajectory.status.finished and self.reference.status.finished):
            return {}
        return {f"{self.trajectory.settings.rtol:g}": float(np.max(gap(self.trajectory, self.reference)))}

    def _again(self, rungs: int, name: str) -> Trajectory:
        tighter = max(self.trajectory.settings.rtol * 100.0**-rungs, _TIGHTEST)
        start = moved(self.trajectory.start, 64 * ROUNDING * (-1) ** rungs)
        return self._solved(self.loss, tighter, name, start, round(STEPS_PER_DECADE * _DENSER**rungs))

    def _with_steps(self) -> Trajectory:
        run = self.trajectory
        again = gradient_flow(
            self.loss,
            run.start,
            times=np.asarray(run.t)[1:],
            t1=float(np.asarray(run.t)[-1]),
            rtol=run.settings.rtol,
            atol=run.settings.atol or None,
            solver=self._solver,
        )
        return dataclasses.replace(again, status=run.status) if again.status.finished else run

    def _before_kink(self, run: Trajectory) -> Trajectory:
        """The part of a run before a kink at its end, as if t1 were there; the whole run if it has no kink."""
        if run.status is Status.KINK:
            return shortened(run, run.t.size)
        t = np.asarray(run.t) if run.counted is None else since_last_origin(*map(np.asarray, run.counted))
        # Steps become this short only near a kink.
        short = int(np.sum(t > (1 - BEFORE) * t[-1])) > _SHORT_STEPS
        if isinstance(self.loss, MonteCarloLoss) or run.status not in (Status.EXCESS, Status.GRAD_NORM) or not short:
            return run
        before = rows_before_kink(self.system, t, lambda row: self.system.encode(run.row(row)))
        return run if before is None else shortened(run, before)

    def _solved(
        self,
        loss: AbstractPopulationLoss,
        rtol: float,
        name: str | None = None,
        start: PyTree = None,
        steps_per_decade: int | None = None,
    ) -> Trajectory:
        """Solve the flow of a loss at the output times of the trajectory.

        **Arguments:** name: the folder in ``checkpoint`` for the chunks of this solve, None for no checkpoint;
        start: default that of the trajectory.
        """
        if self.trajectory.t.size == 1 and self.trajectory.status is not Status.STATIONARY:
            return start_alone(loss, self.trajectory.start)
        if self.trajectory.status is Status.STATIONARY:
            return self.trajectory
        settings = self.trajectory.settings
        start, atol = self.trajectory.start if start is None else start, settings.atol * rtol / settings.rtol
        if self.late:
            return self._nearest_solve(loss, start, rtol, atol)
        return gradient_flow(
            loss,
            start,
            times=np.asarray(self.trajectory.t)[1:],
            rtol=rtol,
            atol=atol or None,
            solver=self._solver,
            points_per_decade=0,
            steps_per_decade=steps_per_decade,
            checkpoint=None if self._checkpoint is None or name is None else self._checkpoint / name,
            progress=self._progress,
        )

    def _nearest_solve(self, loss: AbstractPopulationLoss, start: PyTree, rtol: float, atol: float) -> Trajectory:
        """The flow of a loss from a start, at its points nearest to each row of the trajectory. It ends where a
        solve fails.

        From one row to the next it is solved for the time between the rows, and then corrected to the nearest
        point.
        """
        run = self.trajectory
        own = dataclasses.replace(run, settings=dataclasses.replace(run.settings, rtol=rtol, atol=atol))
        system, model, dissipated = system_of(loss, start, self._solver)[0], start, [0.0]
        weights, unfinished = [eqx.filter(start, eqx.is_inexact_array)], None
        for row, length in enumerate(self.clock.lengths(np.asarray(run.t)), start=1):
            part = gradient_flow(
                loss, model, times=[length], rtol=rtol, atol=atol or None, solver=self._solver, points_per_decade=0
            )
            if not part.status.finished:
                unfinished = part.status
                break
            model, gained = _nearest(system, part.end, run.row(row))
            weights.append(eqx.filter(model, eqx.is_inexact_array))
            dissipated.append(dissipated[-1] + float(part.dissipated[-1]) + float(gained))
        own = own if unfinished is None else dataclasses.replace(shortened(own, len(dissipated)), status=unfinished)
        models = eqx.combine(jax.tree.map(lambda *leaves: jax.device_put(np.stack(leaves)), *weights), own.models)
        loss_, excess, grad_norm_sq = _recorded(system, models)
        lost = excess[0] - excess if np.isfinite(excess[0]) else loss_[0] - loss_
        defect = float(np.max(np.abs(np.asarray(lost) - dissipated)) / max(*dissipated, np.finfo(float).tiny))
        return dataclasses.replace(
            own,
            models=models,
            loss=loss_,
            excess=excess,
            grad_norm_sq=grad_norm_sq,
            dissipated=jax.device_put(np.asarray(dissipated)),
            certificates=dataclasses.replace(own.certificates, energy_defect=defect),
        )


@eqx.filter_jit
def _nearest(system: AbstractSystem, model: PyTree, other: PyTree) -> tuple[PyTree, Array]:
    """The point of the flow through one model that is nearest to another model close by, and the energy dissipated
    up to that point. Distances are relative to the size of each weight.
    """
    state, there = system.encode(model), system.encode(other)
    # The field of weights at rest is rounding, which may exceed the field of tiny weights.
    field = jax.tree.map(lambda still, slope: jnp.where(still, 0.0, slope), rounded(system, state), system.field(state))
    (point, unravel), (aim, _), (slope, _) = map(ravel_pytree, (state, there, field))
    size = jnp.maximum(jnp.maximum(jnp.abs(point), jnp.abs(aim)), np.finfo(float).tiny)
    rate = slope / size
    speed = rate @ rate
    after = (rate @ ((aim - point) / size)) / jnp.where(speed > 0, speed, 1.0)
    return system.decode(unravel(point + after * slope)), after * (slope @ slope)


@eqx.filter_jit
def _recorded(system: AbstractSystem, models: PyTree) -> tuple[Array, Array, Array]:
    arrays, rest = eqx.partition(models, eqx.is_array)

    def one(arrays):
        record = system.record(system.encode(eqx.combine(arrays, rest)))
        return record.loss, record.excess, record.grad_norm_sq

    return jax.lax.map(one, arrays)


_is_rounding = eqx.filter_jit(is_rounding)


def _stands_still(run: Trajectory, row: int) -> bool:
    """Whether a flow moves by rounding errors only between a row and the next row."""
    weights = map(np.asarray, jax.tree.leaves(eqx.filter(run.models, eqx.is_inexact_array)))
    return all(np.allclose(leaf[row + 1], leaf[row], rtol=_STILL, atol=0.0) for leaf in weights)
