"""What is needed to trust a trajectory: more accurate repetitions, moved weights, other samples."""

import dataclasses
import functools
import math
import os
import pathlib
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from flowsim._core import checks
from flowsim.claims.claim import Claim
from flowsim.claims.evidence.comparing import Panel, compared
from flowsim.claims.evidence.enclosing import CHEAP, COSTLY, Enclosed, Roundings, allowed_in, lost_in
from flowsim.claims.evidence.moving import ROUNDING, is_symmetric, moved, nudged, nudged_loss
from flowsim.claims.evidence.series import gap, merged, padded, padded_with, row_of, shifted, spoilt
from flowsim.flow.gradient_flow import gradient_flow, start_alone
from flowsim.flow.solvers.dense_kernel import STEPS_PER_DECADE
from flowsim.flow.systems import AbstractSystem, is_rounding, system_of
from flowsim.flow.trajectory import SAME, Status, Trajectory, times_asked
from flowsim.losses import AbstractPopulationLoss

_TIGHTEST = 1e-13
_DENSER = 1.5  # times as many steps in a decade, at least, as the solve before
_PARTED = 0.01  # of the largest weights: solves that are further apart than this at some time took different courses
_TAILS = 5  # points of a flow at which the tail of a sampled loss is looked at
ROUNDING_SAFETY = 8.0
_END_SAFETY = 4.0
_AT_REST = 256 * float(np.finfo(np.float64).eps)  # of the largest weight, within which a flow no longer moves
_NEAR_REST = 1e-4  # the same, within which what rounding leaves open is left open by rest
_UNTWISTED, _TWISTED = 1e-12, 1e-8  # of a matrix: an antisymmetric part that is rounding, and one that is not
_FURTHER = 9.0  # times its time, by which a flow is prolonged
_NO_TIMES = np.zeros(0)


class Evidence:
    """A trajectory with what is needed to trust it: the same flow solved again with tolerances 100 and 10,000 times
    tighter (1e-13 at the tightest) and shorter steps, at the same times, each solved once and only when asked for. They
    start from weights moved by a few hundred units in the last place, the one up and the other down, so that what
    rounding alone decides is not taken for decided. A trajectory without the solver's steps is solved with them first.

    **Arguments:** loss, trajectory: of one flow; claims: those that will be judged on it, which are compared together;
    checkpoint: a folder for the chunks of the repetitions.
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
        self.loss = loss.prepared(trajectory.start)
        self.trajectory = trajectory
        self._checkpoint = None if checkpoint is None else pathlib.Path(checkpoint)
        self._progress = progress
        self._claims = tuple(claims)
        self._solver = "auto" if solver in ("arrowhead", "in-turns") else solver
        if not trajectory.settings.with_steps and trajectory.t.size > 1 and trajectory.status.finished:
            self.trajectory = self._with_steps()

    @functools.cached_property
    def system(self) -> AbstractSystem:
        """The coordinates of the flow, in which its records are computed again from moved weights."""
        return system_of(self.loss, self.trajectory.start, self._solver)[0]

    @property
    def stated(self) -> AbstractPopulationLoss:
        """The loss that claims read: the exact one of the same problem, where that is known beside a sampled one."""
        return self.loss.stated()

    @functools.cached_property
    def panel(self) -> Panel:
        """The claims that are compared together: all those along the flow that speak of it."""
        return Panel([claim for claim in self._claims if claim.along_flow and self._is_spoken_of(claim)])

    def _is_spoken_of(self, claim: Claim) -> bool:
        try:
            return claim.foreign(self.stated, self.trajectory.start) is None
        except Exception:
            # It will be said where this claim is judged, and is nothing to the others.
            return False

    @functools.cached_property
    def reference(self) -> Trajectory:
        """The flow at a hundredth of the tolerances."""
        return self._again(1, "reference")

    @functools.cached_property
    def confirmation(self) -> Trajectory:
        """The flow at a ten-thousandth of the tolerances, or at 1e-13."""
        return self._again(2, "confirmation")

    @functools.cached_property
    def cases(self) -> tuple["Case", "Case", "Case"]:
        """The three solves from the roughest on, each ready for comparisons; the last two are solved when used."""
        return (
            Case(self, lambda evidence: evidence.trajectory),
            Case(self, lambda evidence: evidence.reference),
            Case(self, lambda evidence: evidence.confirmation),
        )

    @functools.cached_property
    def replicates(self) -> list[tuple[AbstractPopulationLoss, Trajectory]]:
        """The flow of each independent estimate of a sampled loss, at the same times, with that loss; empty for an
        exact loss.
        """
        return [(loss, self._solved(loss, self.trajectory.settings.rtol)) for loss in self.loss.replicates()]

    def times_of(self, claim: Claim) -> list[float]:
        """The times at which a claim asks for the model."""
        with times_asked() as times:
            try:
                eqx.filter_eval_shape(claim.compare, self.stated, self.cases[0].padded)
            except Exception:
                # It will be said where the claim is compared.
                return sorted(set(times))
        return sorted(set(times))

    def asked(self, claim: Claim) -> np.ndarray:
        """Those of them that are no output times yet, and before the end."""
        t = np.asarray(self.trajectory.t)
        times = [one for one in self.times_of(claim) if 0 < one < t[-1] and np.min(np.abs(t - one)) > SAME * one]
        return np.asarray(times)

    def reads_more_than_the_start(self, claim: Claim) -> bool:
        """Whether a claim that says it reads the start of a flow alone reads more of it."""
        if self.trajectory.t.size == 1 or self.trajectory.status is Status.STATIONARY:
            return False
        found = compared(claim, self.stated, self.cases[0].beheaded)
        if found.promised.any() and np.all(np.isfinite(found.slack[found.promised])):
            return False
        alone = compared(claim, self.stated, self.alone.padded)
        same = alone.slack.shape == found.slack.shape and np.array_equal(alone.slack, found.slack, equal_nan=True)
        return not (same and np.array_equal(alone.promised, found.promised))

    @functools.cached_property
    def alone(self) -> "Case":
        """The start alone, for claims that read no more."""
        return Case(self, lambda evidence: start_alone(evidence.loss, evidence.trajectory.start))

    def way_to_go(self, end: PyTree) -> float:
        """A proved bound on how far the flow still goes from its end."""
        return self.system.way_to_go(self.system.encode(end), self.system.encode(self.trajectory.start))

    def is_rounding(self, model: PyTree) -> bool:
        """Whether the field at a model is rounding alone."""
        return bool(_is_rounding(self.system, self.system.encode(model)))

    def samples_matter(self, claim: Claim) -> bool:
        """Whether the loss or the flow that a claim reads may be known by samples only."""
        return claim.along_flow or self.stated is self.loss

    @functools.cached_property
    def distrust(self) -> str | None:
        """Why intervals along the flow of a sampled loss cannot be trusted; None where they can, or it is exact."""
        if not self.loss.sampled:
            return None
        run, fresh = self.trajectory, self.loss.fresh(self.trajectory.start)
        for index in np.unique(np.linspace(0, run.t.size - 1, _TAILS).astype(int)):
            if reason := self.loss.distrust(run.row(int(index)), fresh):
                return f"The samples do not tell the population loss: at t = {float(run.t[index]):.4g}, {reason}."
        return None

    @functools.cached_property
    def parted(self) -> str | None:
        """Why the course of the flow is not known: near a saddle, rounding decides where it goes. None where it is."""
        solves = (self.trajectory, self.reference)
        if not all(run.status.finished for run in solves):
            return None
        if any(map(_twists, solves)):
            return "Rounding leads the flow away from the symmetric matrices that it starts in."
        if np.max(gap(*solves)) <= _PARTED:
            return None
        # A drop at slightly different times parts two solves as well, but they end at one place.
        if not self.confirmation.status.finished or gap(self.reference, self.confirmation)[-1] <= _PARTED:
            return None
        return "A change of the start in its last digits sends the flow elsewhere: start clearly on one side."

    @functools.cached_property
    def prolonged(self) -> "Case | None":
        """The flow with one more output, ten times as late as its end; None where there is none."""
        run = self.trajectory
        if run.t.size == 1 or run.status is Status.STATIONARY:
            return None
        end = float(run.t[-1])
        further = self._from(self.loss, run, run.t.size - 1, np.asarray([_FURTHER * end]))
        if not further.status.finished:
            return None
        longer = merged([run, shifted(further, end, float(run.dissipated[-1]))])
        return Case(self, lambda evidence: longer)

    def with_times(self, loss: AbstractPopulationLoss, run: Trajectory, further: np.ndarray) -> Trajectory:
        """A flow with further times, each interval of it solved once more from its left end."""
        t = np.asarray(run.t)
        parts = [run]
        for left in (np.unique(np.searchsorted(t, further, side="right")) - 1).tolist():
            times = further[(further > t[left]) & (further < t[left + 1])] - t[left]
            part = self._from(loss, run, left, times)
            parts.append(shifted(part, float(t[left]), float(run.dissipated[left])))
        return merged(parts)

    def _from(self, loss: AbstractPopulationLoss, run: Trajectory, row: int, times: np.ndarray) -> Trajectory:
        """The flow that begins in a row of a solve, at further times, as accurately."""
        begin = jax.tree.map(lambda leaf: row_of(leaf, row) if eqx.is_array(leaf) else leaf, run.models)
        rtol, atol = run.settings.rtol, run.settings.atol
        return gradient_flow(loss, begin, times=times, rtol=rtol, atol=atol, solver=self._solver, points_per_decade=0)

    def ladder(self) -> dict[str, float]:
        """Largest difference of the weights from the reference's, over their norm, at the tolerance of the run."""
        if not (self.trajectory.status.finished and self.reference.status.finished):
            return {}
        return {f"{self.trajectory.settings.rtol:g}": float(np.max(gap(self.trajectory, self.reference)))}

    def _again(self, rungs: int, name: str) -> Trajectory:
        tighter = max(self.trajectory.settings.rtol * 100.0**-rungs, _TIGHTEST)
        start = moved(self.trajectory.start, 64 * ROUNDING * (-1) ** rungs)
        return self._solved(self.loss, tighter, name, start, round(STEPS_PER_DECADE * _DENSER**rungs))

    def _with_steps(self) -> Trajectory:
        """The flow with its steps among the output times."""
        run = self.trajectory
        again = gradient_flow(
            self.loss,
            run.start,
            times=np.asarray(run.t)[1:],
            t1=float(run.t[-1]),
            rtol=run.settings.rtol,
            atol=run.settings.atol,
            solver=self._solver,
        )
        return dataclasses.replace(again, status=run.status) if again.status.finished else run

    def _solved(
        self,
        loss: AbstractPopulationLoss,
        rtol: float,
        name: str | None = None,
        start: PyTree = None,
        steps_per_decade: int | None = None,
    ) -> Trajectory:
        """The flow of a loss at the same times, from the same start if none is given; a name keeps its chunks."""
        if self.trajectory.t.size == 1 and self.trajectory.status is not Status.STATIONARY:
            return start_alone(loss, self.trajectory.start)
        if self.trajectory.status is Status.STATIONARY:
            return self.trajectory
        settings = self.trajectory.settings
        return gradient_flow(
            loss,
            self.trajectory.start if start is None else start,
            times=np.asarray(self.trajectory.t)[1:],
            rtol=rtol,
            atol=settings.atol * rtol / settings.rtol,
            solver=self._solver,
            points_per_decade=0,
            steps_per_decade=steps_per_decade,
            checkpoint=None if self._checkpoint is None or name is None else self._checkpoint / name,
            progress=self._progress,
        )


def _twists(run: Trajectory) -> bool:
    """Whether a matrix that is symmetric at the start ceases to be, from rounding on."""
    for leaf in jax.tree.leaves(eqx.filter(run.models, eqx.is_inexact_array)):
        values = np.asarray(leaf)
        if values.ndim > 2 and is_symmetric(values[0]):
            twist = np.abs(values - np.swapaxes(values, -1, -2)).reshape(values.shape[0], -1).max(axis=1)
            size = np.abs(values).reshape(values.shape[0], -1).max(axis=1)
            begins = np.any((twist > 0) & (twist <= _UNTWISTED * size))
            if begins and np.any(twist > _TWISTED * size):
                return True
    return False


class Case:
    """One solve, or with further times, with its time repeated at the end up to a power of two, so that few shapes are
    ever compiled.
    """

    def __init__(self, evidence: Evidence, solve: Callable[[Evidence], Trajectory], further: np.ndarray = _NO_TIMES):
        self._evidence, self._solve, self._further = evidence, solve, further
        self._finer: dict[bytes, Case] = {}

    @property
    def panel(self) -> Panel:
        """The claims that are compared together on this solve."""
        return self._evidence.panel

    @functools.cached_property
    def run(self) -> Trajectory:
        """The solve; with an excess that is a difference computed in balls."""
        run = self._with_times(self._evidence.loss, self._solve(self._evidence))
        if not self._evidence.stated.subtracts:
            return run
        excess = self._enclosed(run, ()).exact().excess(COSTLY)
        return run if excess is None else dataclasses.replace(run, excess=jax.device_put(excess))

    def at(self, further: np.ndarray) -> "Case":
        """The same solve with further times."""
        if not further.size:
            return self
        return self._finer.setdefault(further.tobytes(), Case(self._evidence, self._solve, further))

    @functools.cached_property
    def settled(self) -> "Case":
        """The same solve with a bound on the way that it still has to go."""
        case = Case(self._evidence, self._solve, self._further)
        case.run, case.way = self.run, self._evidence.way_to_go(self.run.end)
        case.padded = dataclasses.replace(self.padded, way_to_go=jnp.asarray(case.way))
        return case

    way = math.inf

    @property
    def status(self) -> Status:
        """How the flow ended, which its repetitions follow to the same times."""
        return self._evidence.trajectory.status

    @property
    def end_error(self) -> float:
        """How far the weights at the end may be off."""
        ends = [self._evidence.trajectory.end, self._evidence.reference.end]
        one, other = (jax.tree.leaves(eqx.filter(end, eqx.is_inexact_array)) for end in ends)
        squares = sum(float(np.sum((np.asarray(a) - np.asarray(b)) ** 2)) for a, b in zip(one, other, strict=True))
        return _END_SAFETY * math.sqrt(squares)

    def too_late(self, claim: Claim) -> str:
        """What to say where a claim asks for the model at a time after the end."""
        end = float(self._evidence.trajectory.t[-1])
        late = [t for t in self._evidence.times_of(claim) if t > (1 + SAME) * end]
        return f"It asks for t = {late[0]:g}, and the flow ends at t = {end:.4g}: ask for a later t1." if late else ""

    @functools.cached_property
    def at_rest(self) -> int:
        """The first row from which on the flow moves by rounding alone; as many as there are rows where it never does,
        or where it rests for certain.
        """
        return self._moves_until(_AT_REST)

    @functools.cached_property
    def near_rest(self) -> int:
        """The same, where the flow is so near to rest that rounding shows."""
        return self._moves_until(_NEAR_REST)

    def _moves_until(self, distance: float) -> int:
        run = self.run
        if run.t.size == 1 or run.status is Status.STATIONARY or not self._evidence.is_rounding(run.end):
            return run.t.size
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(eqx.filter(run.models, eqx.is_inexact_array))]
        flat = np.concatenate([leaf.reshape(run.t.size, -1) for leaf in leaves], axis=1)
        still = np.max(np.abs(flat - flat[-1:]), axis=1) <= distance * np.max(np.abs(flat[-1]))
        return run.t.size - int(np.argmin(still[::-1])) if not still.all() else 0

    @functools.cached_property
    def poisoned(self) -> Trajectory:
        """The padded solve without an end: what reads it is no number."""

        return spoilt(self.padded, slice(-1, None))

    @functools.cached_property
    def beheaded(self) -> Trajectory:
        """The padded solve with its start alone: what reads more of it is no number."""
        return spoilt(self.padded, slice(1, None))

    @functools.cached_property
    def enclosed(self) -> Enclosed:
        """The solve in balls."""
        count = self.run.t.size
        base, *others = [(run.loss, run.excess, run.grad_norm_sq) for _, run in self.nudged]
        errors = []
        for place, one in enumerate(base):
            apart = [np.abs(np.asarray(other[place]) - np.asarray(one))[:count] for other in others]
            errors.append(ROUNDING_SAFETY * np.max(apart, axis=0) + ROUNDING * np.abs(np.asarray(one)[:count]))
        found = dataclasses.replace(self._enclosed(self.run, tuple(errors)), spread=allowed_in(self.run))
        slopes = found.slopes(CHEAP)
        if slopes is None:
            return found
        return found.wider(lost_in(slopes, np.asarray(self._slopes)[:count], np.asarray(self.run.t)))

    def _enclosed(self, run: Trajectory, errors: tuple[np.ndarray, ...]) -> Enclosed:
        evidence = self._evidence
        system = None if evidence.loss.sampled else evidence.system
        rounding = Roundings() if evidence.stated.derived else Roundings(loss=0.0)
        return Enclosed(system, evidence.stated, run, errors, self.way, rounding)

    @functools.cached_property
    def padded(self) -> Trajectory:
        """The solve with its end repeated."""
        return padded(self.run, self._evidence.trajectory.t.size)

    def has_times(self, claim: Claim, rows: int) -> bool:
        """Whether a comparison with so many rows has one for each time. A claim that reads the start alone may have as
        many points as there are times: then it is compared at the start alone, which changes the number of times.
        """
        if claim.along_flow or rows != self.padded.t.size:
            return rows == self.padded.t.size
        alone = start_alone(self._evidence.loss, self.run.start)
        return compared(claim, self._evidence.stated, alone).slack.shape[0] != rows

    def replicates(self, claim: Claim) -> list[tuple[AbstractPopulationLoss, Trajectory]]:
        """What the claim reads of the flows of independent samples, where it reads any."""
        if not self._evidence.samples_matter(claim):
            return []
        return self._parts

    @functools.cached_property
    def _parts(self) -> list[tuple[AbstractPopulationLoss, Trajectory]]:
        pairs = self._evidence.replicates
        return [
            (loss.stated(), padded(self._with_times(loss, run), self._evidence.trajectory.t.size))
            for loss, run in pairs
        ]

    @functools.cached_property
    def nudged(self) -> list[tuple[AbstractPopulationLoss, Trajectory]]:
        """The loss and the padded solve with everything recomputed from its weights: as they are, and with every number
        in both moved by a few units in the last place, up and down in turn.
        """
        loss = self._evidence.stated
        return [(nudged_loss(loss, amount), self._recomputed(amount)) for amount in (0.0, ROUNDING, -ROUNDING)]

    def _with_times(self, loss: AbstractPopulationLoss, run: Trajectory) -> Trajectory:
        return self._evidence.with_times(loss, run, self._further) if self._further.size else run

    def _recomputed(self, amount: float) -> Trajectory:
        models = nudged(self.padded.models, amount)
        value, excess, grad_norm_sq, _ = _evaluate(self._evidence.system, models)
        dissipated = jax.device_put(np.asarray(self.padded.dissipated) * (1 + amount))
        return padded_with(self.padded, models, value, excess, grad_norm_sq, dissipated)

    @functools.cached_property
    def _slopes(self) -> Float[Array, "T n"]:
        """The field at the weights of the padded solve."""
        return _evaluate(self._evidence.system, self.padded.models)[-1]


_is_rounding = eqx.filter_jit(is_rounding)


@eqx.filter_jit
def _evaluate(system: AbstractSystem, models: PyTree):
    arrays, rest = eqx.partition(models, eqx.is_array)

    def one(arrays):
        state = system.encode(eqx.combine(arrays, rest))
        record = system.record(state)
        return record.loss, record.excess, record.grad_norm_sq, _flat(system.field(state))

    return jax.lax.map(one, arrays)


def _flat(slopes: PyTree) -> Float[Array, " n"]:
    """The field as a vector; nothing of one that is too large to be had in balls."""
    flat = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(slopes)])
    return flat if flat.size <= CHEAP else flat[:0]
