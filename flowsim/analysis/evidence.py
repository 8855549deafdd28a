"""Judging: a claim against a trajectory, its more accurate repetitions, and the rounding of its own arithmetic."""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Iterable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from flowsim import _checks
from flowsim._systems import AbstractSystem, system_of
from flowsim.analysis.base import Claim, Comparison, Judgement, Relation, Verdict
from flowsim.flow import gradient_flow
from flowsim.losses import AbstractPopulationLoss
from flowsim.trajectory import Certificates, Settings, Status, Trajectory

_TIGHTEST = 1e-13
_LADDER_SAFETY = 4.0
_ROUNDING_SAFETY = 8.0
_ROUNDING = 4 * float(np.finfo(np.float64).eps)
_WORST_RESOLUTION = 1e-3  # an identity known no better than this is not judged
_WORST_ENERGY_DEFECT = 1e-3
_STUDENT_99 = {8: 3.499}  # two-sided, by the number of independent sets


class Evidence:
    """A trajectory with what is needed to trust it: the same flow solved again with tolerances 100 and 10,000 times
    tighter (1e-13 at the tightest), at the same times, each solved once and only when asked for.

    **Arguments:** loss, trajectory: of one flow; checkpoint: a folder for the chunks of the repetitions.
    """

    def __init__(
        self,
        loss: AbstractPopulationLoss,
        trajectory: Trajectory,
        *,
        checkpoint: str | os.PathLike | None = None,
        progress: bool = False,
    ):
        solver = trajectory.settings.solver
        if solver not in ("arrowhead", "implicit", "explicit"):
            _checks.fail("trajectory", "one of gradient_flow, to be solved again more accurately", f"it is of {solver}")
        self.loss = loss
        self.trajectory = trajectory
        self._checkpoint = None if checkpoint is None else pathlib.Path(checkpoint)
        self._progress = progress
        self._solver = "auto" if solver == "arrowhead" else solver

    @functools.cached_property
    def system(self) -> AbstractSystem:
        """The coordinates of the flow, in which its records are computed again from moved weights."""
        return system_of(self.loss, self.trajectory.start, self._solver)[0]

    @functools.cached_property
    def reference(self) -> Trajectory:
        """The flow at a hundredth of the tolerances."""
        return self._again(1, "reference")

    @functools.cached_property
    def confirmation(self) -> Trajectory:
        """The flow at a ten-thousandth of the tolerances, or at 1e-13."""
        return self._again(2, "confirmation")

    @functools.cached_property
    def cases(self) -> tuple["_Case", "_Case", "_Case"]:
        """The three solves from the roughest on, each ready for comparisons; the last two are solved when used."""
        return _Case(self, "trajectory"), _Case(self, "reference"), _Case(self, "confirmation")

    @functools.cached_property
    def replicates(self) -> list[tuple[AbstractPopulationLoss, Trajectory]]:
        """The flow of each independent estimate of a sampled loss, at the same times; empty for an exact loss."""
        losses = self.loss.replicates()
        runs = [self._solved(loss, self.trajectory.settings.rtol, None) for loss in losses]
        return [(loss, padded(run)) for loss, run in zip(losses, runs, strict=True)]

    def ladder(self) -> dict[str, float]:
        """Largest difference of the weights from the reference's, over their norm, at the tolerance of the run."""
        if not (self.trajectory.status.finished and self.reference.status.finished):
            return {}
        ours, theirs = (eqx.filter(run.models, eqx.is_inexact_array) for run in (self.trajectory, self.reference))
        squares = lambda tree: sum(
            np.sum(leaf.reshape(leaf.shape[0], -1) ** 2, axis=1) for leaf in jax.tree.leaves(tree)
        )
        gap = squares(jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), ours, theirs))
        size = np.max(squares(jax.tree.map(np.asarray, theirs)))
        return {f"{self.trajectory.settings.rtol:g}": float(np.sqrt(np.max(gap) / size)) if size > 0 else 0.0}

    def _again(self, rungs: int, name: str) -> Trajectory:
        tighter = max(self.trajectory.settings.rtol * 100.0**-rungs, _TIGHTEST)
        return self._solved(self.loss, tighter, name)

    def _solved(self, loss: AbstractPopulationLoss, rtol: float, name: str | None) -> Trajectory:
        """The flow of a loss from the same start at the same times; a name keeps its chunks."""
        if self.trajectory.status is Status.STATIONARY:
            return self.trajectory
        settings = self.trajectory.settings
        return gradient_flow(
            loss,
            self.trajectory.start,
            times=self.trajectory.t[1:],
            rtol=rtol,
            atol=settings.atol * rtol / settings.rtol,
            solver=self._solver,
            points_per_decade=0,
            checkpoint=None if self._checkpoint is None or name is None else self._checkpoint / name,
            progress=self._progress,
        )


def judge(
    claims: Iterable[Claim],
    loss: AbstractPopulationLoss,
    trajectory: Trajectory,
    *,
    checkpoint: str | os.PathLike | None = None,
    progress: bool = False,
) -> list[Verdict]:
    """Judge claims along one flow, in order; see `check`."""
    evidence = Evidence(loss, trajectory, checkpoint=checkpoint, progress=progress)
    return [judge_on(claim, evidence) for claim in claims]


def check(claim: Claim, loss: AbstractPopulationLoss, trajectory: Trajectory) -> Verdict:
    """Judge one claim along a flow.

    The numerical error of a margin is measured, not assumed: by solving the flow again more accurately, and by moving
    every weight by a few units in the last place. "holds" and "violated" need room beyond that error everywhere and
    somewhere; "violated" also survives a third, still more accurate solve. Everything else is "unresolved".

    **Arguments:** claim; loss, trajectory: of one flow.
    """
    return judge_on(claim, Evidence(loss, trajectory))


def judge_on(claim: Claim, evidence: Evidence) -> Verdict:
    """Judge one claim on evidence that several claims may share."""
    loss, run = evidence.loss, evidence.trajectory
    if foreign := claim.foreign(loss, run.start):
        return _verdict(claim, (foreign,), Judgement.NOT_APPLICABLE, None, {}, f"Not met: {foreign.name}.")
    hypotheses = tuple(claim.hypotheses(loss, run.start))
    verdict = functools.partial(_verdict, claim, hypotheses)
    if claim.along_flow and not run.status.finished:
        return verdict(Judgement.UNRESOLVED, None, {}, f"The integration did not finish ({run.status}).")
    rough, fine, finest = evidence.cases
    constants = {name: float(value) for name, value in _constants(claim, loss, rough).items()}
    finding = _find(claim, loss, rough, fine if claim.along_flow else rough)
    if any(not condition.met for condition in hypotheses):
        unmet = "; ".join(condition.name for condition in hypotheses if not condition.met)
        if all(condition.met or condition.unknown for condition in hypotheses):
            return verdict(Judgement.UNRESOLVED, finding, constants, f"A side is not known here: {unmet}.")
        return verdict(Judgement.NOT_APPLICABLE, finding, constants, f"Not met: {unmet}. {_alone(finding)}")
    if not claim.along_flow or finding.judgement in (Judgement.HOLDS, Judgement.VACUOUS):
        return verdict(finding.judgement, finding, constants)
    sharper = _find(claim, loss, fine, finest)
    if finding.judgement is Judgement.VIOLATED and sharper.judgement is not Judgement.VIOLATED:
        reason = "A violation at the asked tolerance did not survive a more accurate solve."
        return verdict(Judgement.UNRESOLVED, sharper, constants, reason)
    return verdict(sharper.judgement, sharper, constants)


@dataclasses.dataclass(frozen=True)
class _Finding:
    judgement: Judgement
    margin: float | None = None
    where: float | str | None = None
    floor: float | None = None
    tightness: float | None = None
    note: str = ""


class _Case:
    """One solve, with its time repeated at the end up to a power of two, so that few shapes are ever compiled."""

    def __init__(self, evidence: Evidence, name: str):
        self._evidence, self._name = evidence, name

    @property
    def run(self) -> Trajectory:
        return getattr(self._evidence, self._name)

    @functools.cached_property
    def padded(self) -> Trajectory:
        return padded(self.run)

    @property
    def replicates(self) -> list[tuple[AbstractPopulationLoss, Trajectory]]:
        return self._evidence.replicates

    @functools.cached_property
    def nudged(self) -> list[Trajectory]:
        """The padded solve with everything recomputed from its weights: as they are, and with each moved by a few units
        in the last place, up and down in turn.
        """
        return [self._recomputed(amount) for amount in (0.0, _ROUNDING, -_ROUNDING)]

    def _recomputed(self, amount: float) -> Trajectory:
        def move(leaf):
            if not eqx.is_inexact_array(leaf):
                return leaf
            signs = np.where(np.arange(leaf.size) % 2 == 0, 1.0, -1.0).reshape(leaf.shape)
            return jnp.asarray(np.asarray(leaf) * (1 + amount * signs))

        models = jax.tree.map(move, self.padded.models)
        value, excess, grad_norm_sq = _evaluate(self._evidence.system, models)
        dissipated = jnp.asarray(np.asarray(self.padded.dissipated) * (1 + amount))
        return dataclasses.replace(
            self.padded, models=models, loss=value, excess=excess, grad_norm_sq=grad_norm_sq, dissipated=dissipated
        )


_SHORTEST = 64
_NO_CERTIFICATES = Certificates(energy_defect=0.0, balance_drift=None, steps=0, rejected_steps=0)
_NO_SETTINGS = Settings(solver="", rtol=0.0, atol=0.0)


def _find(claim: Claim, loss: AbstractPopulationLoss, rough: _Case, fine: _Case) -> _Finding:
    """The verdict of the fine solve, with the distance to the rough one as its error, hypotheses aside."""
    if claim.along_flow and not (rough.run.status.finished and fine.run.status.finished):
        return _Finding(Judgement.UNRESOLVED, note=f"A more accurate solve did not finish ({fine.run.status}).")
    if claim.along_flow and fine.run.certificates.energy_defect > _WORST_ENERGY_DEFECT:
        defect = fine.run.certificates.energy_defect
        return _Finding(Judgement.UNRESOLVED, note=f"The energy balance is off by {defect:.1e}.")
    ours = _compare(claim, loss, fine.padded)
    error = _rounding(claim, loss, fine, ours)
    if claim.along_flow and rough is not fine:
        error = error + _solver_error(_compare(claim, loss, rough.padded), ours, fine.run.settings)
    if fine.replicates:
        error = error + _sampling_error(claim, fine.replicates, ours)
    slack, size, promised, allowance = ours.slack, ours.size, ours.promised, ours.allowance
    if not promised.any():
        return _Finding(Judgement.VACUOUS, note="The statement promises nothing here.")
    if not np.all(np.isfinite(slack[promised]) & np.isfinite(error[promised])):
        return _Finding(Judgement.UNRESOLVED, note="A side of the statement is not finite.")
    safe = np.where(size > 0, size, np.inf)
    room = slack + allowance
    worst = int(np.argmin(np.where(promised, slack / safe, np.inf)))
    if np.any(room[promised] < -error[promised]):
        judgement = Judgement.VIOLATED
        worst = int(np.argmin(np.where(promised, (room + error) / safe, np.inf)))
    elif claim.relation is Relation.IDENTITY:
        resolved = (error + allowance)[promised] <= _WORST_RESOLUTION * size[promised]
        judgement = Judgement.HOLDS if np.all(resolved) else Judgement.UNRESOLVED
    else:
        judgement = Judgement.HOLDS if np.all(room[promised] > error[promised]) else Judgement.UNRESOLVED
    return _Finding(
        judgement,
        margin=float(slack[worst] / safe[worst]),
        where=_place(worst, slack.size, fine, claim.along_flow),
        floor=float((error[worst] + allowance[worst]) / safe[worst]),
        tightness=float(ours.tightness[worst]) or None,
    )


def padded(run: Trajectory) -> Trajectory:
    """A trajectory with its end repeated up to a power of two of output times."""
    length = 2 ** int(np.ceil(np.log2(max(run.t.size, _SHORTEST))))

    def stretch(leaf):
        leaf = np.asarray(leaf)
        return jnp.asarray(np.concatenate([leaf, np.repeat(leaf[-1:], length - leaf.shape[0], axis=0)]))

    series = (run.t, run.loss, run.excess, run.grad_norm_sq, run.dissipated)
    t, value, excess, grad_norm_sq, dissipated = (stretch(leaf) for leaf in series)
    models = jax.tree.map(lambda leaf: stretch(leaf) if eqx.is_array(leaf) else leaf, run.models)
    # What is static in a trajectory would be compiled in.
    return Trajectory(t, models, value, excess, grad_norm_sq, dissipated, _NO_CERTIFICATES, _NO_SETTINGS, Status.TIME)


def _place(index: int, length: int, case: _Case, along_flow: bool) -> float | str:
    """A time, or the number of a point; points of a claim along the flow may follow the times."""
    times = case.padded.t.size
    if length == times or (along_flow and index < times < length):
        return float(case.padded.t[index])
    if along_flow and length > times:
        index, length = index - times, length - times
    return f"point {index + 1} of {length}" if length > 1 else "one point"


def _compare(claim: Claim, loss: AbstractPopulationLoss, run: Trajectory) -> Comparison:
    """The claim's comparison, on the host; compiled unless it draws prompts, for which N must be a number."""
    comparison = _compiled(claim.compare, loss, run) if claim.along_flow else claim.compare(loss, run)
    return jax.tree.map(np.asarray, comparison)


def _constants(claim: Claim, loss: AbstractPopulationLoss, case: _Case) -> dict:
    function = claim.constants
    return _compiled(function, loss, case.padded) if claim.along_flow else function(loss, case.padded)


@eqx.filter_jit
def _compiled(function, loss, run):
    return function(loss, run)


def _solver_error(rough: Comparison, fine: Comparison, settings: Settings) -> np.ndarray:
    """Error of the fine slack: its distance to the rough one, relative, and never shrinking in time, since two solves
    can agree by chance at one time; and at least the tolerance, which no solver is asked to beat.
    """
    scale = np.maximum(fine.scale, np.finfo(float).tiny)
    relative = np.abs(rough.slack - fine.slack) / scale
    return (_LADDER_SAFETY * np.maximum.accumulate(relative) + settings.rtol) * scale


def _sampling_error(
    claim: Claim, replicates: list[tuple[AbstractPopulationLoss, Trajectory]], ours: Comparison
) -> np.ndarray:
    """Error of the slack from the draws of a sampled loss: half its 99% interval over independent sets of draws, and
    how far their mean lies from the slack of all draws together, which is their bias.
    """
    slacks = np.stack([_compare(claim, loss, run).slack for loss, run in replicates])
    spread = np.std(slacks, axis=0, ddof=1) / np.sqrt(len(replicates))
    return _STUDENT_99[len(replicates)] * spread + np.abs(np.mean(slacks, axis=0) - ours.slack)


def _rounding(claim: Claim, loss: AbstractPopulationLoss, case: _Case, ours: Comparison) -> np.ndarray:
    """Error of the slack from rounding: how far it moves when every weight moves by a few units in the last place."""
    moved = [np.abs(_compare(claim, loss, nudged).slack - ours.slack) for nudged in case.nudged]
    return _ROUNDING_SAFETY * np.max(moved, axis=0) + _ROUNDING * ours.scale


@eqx.filter_jit
def _evaluate(system: AbstractSystem, models: PyTree):
    arrays, rest = eqx.partition(models, eqx.is_array)

    def one(arrays):
        record = system.record(system.encode(eqx.combine(arrays, rest)))
        return record.loss, record.excess, record.grad_norm_sq

    return jax.lax.map(one, arrays)


def _alone(finding: _Finding) -> str:
    if finding.judgement is Judgement.HOLDS:
        return "Its conclusion holds all the same."
    if finding.judgement is Judgement.VIOLATED:
        return "Its conclusion fails here."
    return ""


def _verdict(
    claim: Claim, hypotheses: tuple, judgement: Judgement, finding: _Finding | None, constants: dict, reason: str = ""
) -> Verdict:
    finding = _Finding(judgement) if finding is None else finding
    note = " ".join(part for part in (claim.note, reason, finding.note) if part)
    return Verdict(
        id=claim.id,
        source=claim.source,
        form=claim.form,
        statement=claim.statement,
        verdict=judgement,
        margin=finding.margin,
        where=finding.where,
        floor=finding.floor,
        tightness=finding.tightness,
        hypotheses=hypotheses,
        constants=constants,
        note=note,
    )


def find_claims(claims: Sequence[Claim], identifier: str) -> list[Claim]:
    """Every form of the claim with that id, or of all its parts.

    **Raises:** `ValueError` with the nearest id where there is none.
    """
    found = [claim for claim in claims if claim.id == identifier or claim.id.startswith(f"{identifier}.")]
    if not found:
        known = sorted({name for claim in claims for name in (claim.id, claim.id.rpartition(".")[0])})
        _checks.fail(
            "claim id",
            "one of those `flowsim claims` lists",
            f'it is "{identifier}"{_checks.nearest(identifier, known)}',
        )
    return found
