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
from flowsim._systems import norm_sq
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
        self.loss = loss
        self.trajectory = trajectory
        self._checkpoint = None if checkpoint is None else pathlib.Path(checkpoint)
        self._progress = progress

    @functools.cached_property
    def reference(self) -> Trajectory:
        """The flow at a hundredth of the tolerances."""
        return self._again(1, "reference")

    @functools.cached_property
    def confirmation(self) -> Trajectory:
        """The flow at a ten-thousandth of the tolerances, or at 1e-13."""
        return self._again(2, "confirmation")

    def ladder(self) -> dict[str, float]:
        """Largest difference of the weights from the reference's, over their norm, at the tolerance of the run."""
        if not (self.trajectory.status.finished and self.reference.status.finished):
            return {}
        ours, theirs = (eqx.filter(run.models, eqx.is_inexact_array) for run in (self.trajectory, self.reference))
        gap = jax.vmap(norm_sq)(jax.tree.map(jnp.subtract, ours, theirs))
        size = jnp.max(jax.vmap(norm_sq)(theirs))
        return {f"{self.trajectory.settings.rtol:g}": float(jnp.sqrt(jnp.max(gap) / size)) if size > 0 else 0.0}

    def _again(self, rungs: int, name: str) -> Trajectory:
        if self.trajectory.status is Status.STATIONARY:
            return self.trajectory
        settings = self.trajectory.settings
        tighter = max(settings.rtol * 100.0**-rungs, _TIGHTEST)
        return gradient_flow(
            self.loss,
            self.trajectory.start,
            times=self.trajectory.t[1:],
            rtol=tighter,
            atol=settings.atol * tighter / settings.rtol,
            solver="auto" if settings.solver == "arrowhead" else settings.solver,
            points_per_decade=0,
            checkpoint=None if self._checkpoint is None else self._checkpoint / name,
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
    hypotheses = tuple(claim.hypotheses(loss, run.start))
    verdict = functools.partial(_verdict, claim, hypotheses)
    if claim.along_flow and not run.status.finished:
        return verdict(Judgement.UNRESOLVED, None, {}, f"The integration did not finish ({run.status}).")
    constants = {name: float(value) for name, value in claim.constants(loss, run).items()}
    finding = _find(claim, loss, run, evidence.reference if claim.along_flow else run)
    if any(not condition.met for condition in hypotheses):
        unmet = "; ".join(condition.name for condition in hypotheses if not condition.met)
        return verdict(Judgement.NOT_APPLICABLE, finding, constants, f"Not met: {unmet}. {_alone(finding)}")
    if not claim.along_flow or finding.judgement in (Judgement.HOLDS, Judgement.VACUOUS):
        return verdict(finding.judgement, finding, constants)
    sharper = _find(claim, loss, evidence.reference, evidence.confirmation)
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


def _find(claim: Claim, loss: AbstractPopulationLoss, rough: Trajectory, fine: Trajectory) -> _Finding:
    """The verdict of the fine trajectory, with the distance to the rough one as its error, hypotheses aside."""
    if claim.along_flow and not (rough.status.finished and fine.status.finished):
        return _Finding(Judgement.UNRESOLVED, note=f"A more accurate solve did not finish ({fine.status}).")
    if claim.along_flow and fine.certificates.energy_defect > _WORST_ENERGY_DEFECT:
        defect = fine.certificates.energy_defect
        return _Finding(Judgement.UNRESOLVED, note=f"The energy balance is off by {defect:.1e}.")
    ours = _compare(claim, loss, fine)
    error = _rounding(claim, loss, fine, ours)
    if claim.along_flow and rough is not fine:
        error = error + _solver_error(_compare(claim, loss, rough), ours, fine.settings)
    slack, size = np.asarray(ours.slack), np.asarray(ours.size)
    promised, allowance = np.asarray(ours.promised), np.asarray(ours.allowance)
    if not promised.any():
        return _Finding(Judgement.VACUOUS, note="The statement promises nothing here.")
    if not np.all(np.isfinite(slack[promised]) & np.isfinite(error[promised])):
        return _Finding(Judgement.UNRESOLVED, note="A side of the statement is not finite.")
    safe = np.where(size > 0, size, np.inf)
    relative = np.where(promised, slack / safe, np.inf)
    worst = int(np.argmin(relative))
    room = slack + allowance
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
        where=_place(worst, slack.size, fine),
        floor=float((error[worst] + allowance[worst]) / safe[worst]),
        tightness=float(ours.tightness[worst]),
    )


def _place(index: int, length: int, run: Trajectory) -> float | str:
    if length == run.t.size and length > 1:
        return float(run.t[index])
    return f"point {index + 1} of {length}" if length > 1 else "one point"


def _compare(claim: Claim, loss: AbstractPopulationLoss, run: Trajectory) -> Comparison:
    """The claim's comparison, compiled once a claim and shape: the run's last time is repeated up to a power of two."""
    if not claim.along_flow:
        return claim.compare(loss, run)  # drawing prompts needs the context length as a number
    length = run.t.size
    padded = 2 ** int(np.ceil(np.log2(max(length, _SHORTEST))))
    stretch = lambda leaf: jnp.concatenate([leaf, jnp.repeat(leaf[-1:], padded - length, axis=0)])
    arrays, rest = eqx.partition((run.models, run.t, run.loss, run.excess, run.grad_norm_sq, run.dissipated), eqx.is_array)
    models, t, value, excess, grad_norm_sq, dissipated = eqx.combine(jax.tree.map(stretch, arrays), rest)
    # What is static in a trajectory would be compiled in.
    bare = Trajectory(t, models, value, excess, grad_norm_sq, dissipated, _NO_CERTIFICATES, _NO_SETTINGS, Status.TIME)
    comparison = _compiled_comparison(claim.compare, loss, bare)
    if comparison.slack.size != padded:
        return comparison
    return jax.tree.map(lambda leaf: leaf[:length], comparison)


_SHORTEST = 64
_NO_CERTIFICATES = Certificates(energy_defect=0.0, balance_drift=None, steps=0, rejected_steps=0)
_NO_SETTINGS = Settings(solver="", rtol=0.0, atol=0.0)


@eqx.filter_jit
def _compiled_comparison(compare, loss, run):
    return compare(loss, run)


def _solver_error(rough: Comparison, fine: Comparison, settings: Settings) -> np.ndarray:
    """Error of the fine slack: its distance to the rough one, relative, and never shrinking in time, since two solves
    can agree by chance at one time; and at least the tolerance, which no solver is asked to beat.
    """
    scale = np.maximum(np.asarray(fine.scale), np.finfo(float).tiny)
    relative = np.abs(np.asarray(rough.slack) - np.asarray(fine.slack)) / scale
    return (_LADDER_SAFETY * np.maximum.accumulate(relative) + settings.rtol) * scale


def _rounding(claim: Claim, loss: AbstractPopulationLoss, run: Trajectory, ours: Comparison) -> np.ndarray:
    """Error of the slack from rounding: how far it moves when every weight moves by a few units in the last place."""
    moved = []
    for sign in (0.0, 1.0, -1.0):
        nudged = _compare(claim, loss, _nudge(loss, run, sign * _ROUNDING))
        moved.append(np.abs(np.asarray(nudged.slack) - np.asarray(ours.slack)))
    return _ROUNDING_SAFETY * np.max(moved, axis=0) + _ROUNDING * np.asarray(ours.scale)


def _nudge(loss: AbstractPopulationLoss, run: Trajectory, amount: float) -> Trajectory:
    """The trajectory with its weights moved by a relative amount of alternating sign, and all else recomputed."""
    arrays, rest = eqx.partition(run.models, eqx.is_inexact_array)
    signs = lambda leaf: jnp.where(jnp.arange(leaf.size) % 2 == 0, 1.0, -1.0).reshape(leaf.shape)
    alternate = lambda leaf: leaf * (1 + amount * signs(leaf))
    models = eqx.combine(jax.tree.map(alternate, arrays), rest)
    value, excess, grad_norm_sq = _evaluate(loss, models)
    return dataclasses.replace(
        run, models=models, loss=value, excess=excess, grad_norm_sq=grad_norm_sq, dissipated=run.dissipated * (1 + amount)
    )


@eqx.filter_jit
def _evaluate(loss: AbstractPopulationLoss, models: PyTree):
    arrays, rest = eqx.partition(models, eqx.is_array)

    def one(arrays):
        model = eqx.combine(arrays, rest)
        return loss(model), loss.excess(model), norm_sq(eqx.filter(loss.gradient(model), eqx.is_inexact_array))

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
        known = sorted({claim.id for claim in claims})
        _checks.fail("claim id", "one of those `flowsim claims` lists", f'it is "{identifier}"{_checks.nearest(identifier, known)}')
    return found
