"""What is needed to trust a trajectory: more accurate repetitions, moved weights, other samples."""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from flowsim._core import checks
from flowsim.claims.claim import Claim
from flowsim.claims.evidence.comparing import Panel, compared
from flowsim.flow.gradient_flow import gradient_flow, start_alone
from flowsim.flow.systems import AbstractSystem, system_of
from flowsim.flow.trajectory import Status, Trajectory, uncertified
from flowsim.losses import AbstractPopulationLoss

ROUNDING = 4 * float(np.finfo(np.float64).eps)

_TIGHTEST = 1e-13
_PARTED = 0.01  # of the largest weights: solves that are further apart than this at some time took different courses
_TAILS = 5  # points of a flow at which the tail of a sampled loss is looked at
_SHORTEST = 64
_SPARE = 40  # further times that a claim asks for before another shape is compiled
_NO_TIMES = np.zeros(0)


class Evidence:
    """A trajectory with what is needed to trust it: the same flow solved again with tolerances 100 and 10,000 times
    tighter (1e-13 at the tightest), at the same times, each solved once and only when asked for. They start from
    weights moved by a few hundred units in the last place, the one up and the other down, so that what rounding alone
    decides is not taken for decided.

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
            if reason := self.loss.distrust(run.at(int(index)), fresh):
                return f"The samples do not tell the population loss: at t = {float(run.t[index]):.4g}, {reason}."
        return None

    @functools.cached_property
    def parted(self) -> str | None:
        """Why the course of the flow is not known: near a saddle, rounding decides where it goes. None where it is."""
        solves = (self.trajectory, self.reference)
        if not all(run.status.finished for run in solves) or np.max(_gap(*solves)) <= _PARTED:
            return None
        # A drop at slightly different times parts two solves as well, but they end at one place.
        if not self.confirmation.status.finished or _gap(self.reference, self.confirmation)[-1] <= _PARTED:
            return None
        return "A change of the start in its last digits sends the flow elsewhere. Start further from what parts them."

    def with_times(self, loss: AbstractPopulationLoss, run: Trajectory, further: np.ndarray) -> Trajectory:
        """A flow with further times, each interval of it solved once more from its left end."""
        t, settings = np.asarray(run.t), run.settings
        parts = [run]
        for left in (np.unique(np.searchsorted(t, further, side="right")) - 1).tolist():
            times = further[(further > t[left]) & (further < t[left + 1])] - t[left]
            part = gradient_flow(
                loss,
                jax.tree.map(lambda leaf, left=left: _row(leaf, left) if eqx.is_array(leaf) else leaf, run.models),
                times=times,
                rtol=settings.rtol,
                atol=settings.atol,
                solver=self._solver,
                points_per_decade=0,
            )
            parts.append(_shifted(part, float(t[left]), float(run.dissipated[left])))
        return _merged(parts)

    def ladder(self) -> dict[str, float]:
        """Largest difference of the weights from the reference's, over their norm, at the tolerance of the run."""
        if not (self.trajectory.status.finished and self.reference.status.finished):
            return {}
        return {f"{self.trajectory.settings.rtol:g}": float(np.max(_gap(self.trajectory, self.reference)))}

    def _again(self, rungs: int, name: str) -> Trajectory:
        tighter = max(self.trajectory.settings.rtol * 100.0**-rungs, _TIGHTEST)
        return self._solved(self.loss, tighter, name, _moved(self.trajectory.start, 64 * ROUNDING * (-1) ** rungs))

    def _solved(
        self, loss: AbstractPopulationLoss, rtol: float, name: str | None = None, start: PyTree = None
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
            checkpoint=None if self._checkpoint is None or name is None else self._checkpoint / name,
            progress=self._progress,
        )


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
        """The solve."""
        return self._with_times(self._evidence.loss, self._solve(self._evidence))

    def at(self, further: np.ndarray) -> "Case":
        """The same solve with further times."""
        if not further.size:
            return self
        return self._finer.setdefault(further.tobytes(), Case(self._evidence, self._solve, further))

    @functools.cached_property
    def settled(self) -> "Case":
        """The same solve with a bound on the way that it still has to go."""
        case = Case(self._evidence, self._solve, self._further)
        end = self._evidence.system.encode(self.run.end)
        length = jnp.asarray(self._evidence.system.way_to_go(end))
        case.run, case.padded = self.run, dataclasses.replace(self.padded, way_to_go=length)
        return case

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
        value, excess, grad_norm_sq = _evaluate(self._evidence.system, models)
        dissipated = jax.device_put(np.asarray(self.padded.dissipated) * (1 + amount))
        return dataclasses.replace(
            self.padded, models=models, loss=value, excess=excess, grad_norm_sq=grad_norm_sq, dissipated=dissipated
        )


def _gap(ours: Trajectory, theirs: Trajectory) -> np.ndarray:
    """Distance of the weights of two solves at each time, over the largest norm."""
    squares = lambda tree: sum(
        np.sum(np.asarray(leaf).reshape(leaf.shape[0], -1) ** 2, axis=1) for leaf in jax.tree.leaves(tree)
    )
    one, other = (eqx.filter(run.models, eqx.is_inexact_array) for run in (ours, theirs))
    apart = squares(jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), one, other))
    largest = np.max(squares(other))
    return np.sqrt(apart / (largest if largest > 0 else 1.0))


def _moved(start: PyTree, amount: float) -> PyTree:
    """A start of which each number is moved by a relative amount of its own, so that no two that are equal or opposite
    stay so, except those of a symmetric matrix. Zeros stay zero.
    """

    def move(place: int, leaf):
        if not eqx.is_inexact_array(leaf):
            return leaf
        # A sum over the axes is the same for the entries (i, j) and (j, i), and of drawn numbers for no others.
        drawn = np.random.default_rng(place).uniform(0, 2 * np.pi, max(leaf.shape, default=0))
        phases = 1.0 + place + np.sum(drawn[np.indices(leaf.shape)], axis=0)
        return jax.device_put(np.asarray(leaf) * (1 + amount * np.cos(phases)))

    leaves, structure = jax.tree.flatten(start)
    return jax.tree.unflatten(structure, [move(place, leaf) for place, leaf in enumerate(leaves)])


def nudged(tree: PyTree, amount: float) -> PyTree:
    """A tree with its numbers moved by a relative amount, with signs that alternate, so that a symmetric matrix stays
    one.
    """

    def move(leaf):
        if not eqx.is_inexact_array(leaf):
            return leaf
        signs = 1.0 - 2.0 * (np.sum(np.indices(leaf.shape), axis=0) % 2)
        return jax.device_put(np.asarray(leaf) * (1 + amount * signs))

    return jax.tree.map(move, tree)


def nudged_loss(loss: AbstractPopulationLoss, amount: float) -> AbstractPopulationLoss:
    """A loss with its numbers moved, except whole ones, since lengths and dimensions are exact, and samples."""
    if loss.sampled:
        return loss

    def choose(leaf, moved):
        if not eqx.is_inexact_array(leaf):
            return leaf
        values = np.asarray(leaf)
        return jax.device_put(np.where(values == np.round(values), values, np.asarray(moved)))

    return jax.tree.map(choose, loss, nudged(loss, amount))


def padded(run: Trajectory, times: int = 0) -> Trajectory:
    """A trajectory with its end repeated up to a power of two of output times.

    **Arguments:** times: how many the flow has without the further ones of a claim, for which there is room.
    """
    least = max((times or run.t.size) + _SPARE, run.t.size, _SHORTEST)
    length = 1 << (least - 1).bit_length()

    def stretch(leaf):
        leaf = np.asarray(leaf)
        return jax.device_put(np.concatenate([leaf, np.repeat(leaf[-1:], length - leaf.shape[0], axis=0)]))

    t, value, excess, grad_norm_sq, dissipated = (stretch(leaf) for leaf in _series(run))
    models = jax.tree.map(lambda leaf: stretch(leaf) if eqx.is_array(leaf) else leaf, run.models)
    # What is static in a trajectory would be compiled in.
    return uncertified(t, models, value, excess, grad_norm_sq, dissipated)


def _series(run: Trajectory) -> tuple[Array, ...]:
    return run.t, run.loss, run.excess, run.grad_norm_sq, run.dissipated


def _shifted(part: Trajectory, t: float, dissipated: float) -> Trajectory:
    """What a flow adds to another that it begins in, at a time with what was dissipated until then."""
    later = lambda series, amount: jax.device_put(np.asarray(series) + amount)
    return dataclasses.replace(part, t=later(part.t, t), dissipated=later(part.dissipated, dissipated))


def _row(leaf: Array, row: int) -> Array:
    """An entry along the first axis; the program of jnp's own indexing is another for every length."""
    return jax.device_put(np.asarray(leaf)[row])


def _merged(parts: Sequence[Trajectory]) -> Trajectory:
    """The first of some flows with what the others, each from its second time on, add to it."""
    first, *others = parts
    order = np.argsort(np.concatenate([first.t, *[np.asarray(part.t)[1:] for part in others]]), kind="stable")
    join = lambda leaf, *more: jax.device_put(np.concatenate([leaf, *[np.asarray(x)[1:] for x in more]])[order])
    t, value, excess, grad_norm_sq, dissipated = (join(*leaves) for leaves in zip(*map(_series, parts), strict=True))
    models = jax.tree.map(
        lambda leaf, *more: join(leaf, *more) if eqx.is_array(leaf) else leaf,
        first.models,
        *[part.models for part in others],
    )
    unfinished = [part.status for part in others if not part.status.finished]
    return dataclasses.replace(
        first,
        t=t,
        models=models,
        loss=value,
        excess=excess,
        grad_norm_sq=grad_norm_sq,
        dissipated=dissipated,
        status=unfinished[0] if unfinished else first.status,
    )


@eqx.filter_jit
def _evaluate(system: AbstractSystem, models: PyTree):
    arrays, rest = eqx.partition(models, eqx.is_array)

    def one(arrays):
        record = system.record(system.encode(eqx.combine(arrays, rest)))
        return record.loss, record.excess, record.grad_norm_sq

    return jax.lax.map(one, arrays)
