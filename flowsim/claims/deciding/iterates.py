"""The evidence for statements about gradient descent: true iterates in ball arithmetic, and perturbed descents."""

import dataclasses
import functools
import math

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from flowsim._core import checks
from flowsim._core.balls.enclosure import upper
from flowsim._core.balls.operations import balls
from flowsim.claims.claim import Claim
from flowsim.claims.evidence import ROUNDING, Evidence, below_minimum
from flowsim.claims.evidence.case import ROUNDING_SAFETY
from flowsim.claims.evidence.comparing import compared
from flowsim.claims.evidence.enclosing import Enclosed, Roundings
from flowsim.claims.hypotheses import Hypothesis
from flowsim.flow.descent import Iteration, descended, true_iterates
from flowsim.flow.gradient_flow import start_alone
from flowsim.flow.recording import uncertified
from flowsim.flow.systems import LossSystem, loss_system
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import AbstractPopulationLoss
from flowsim.losses.sampled.monte_carlo import MonteCarloLoss, prepared, stated

MOST = 5e6  # operations in balls
CLEARLY = 100.0  # times its measured error: without balls a smaller margin is not decided
SAME_ROUNDED = 1e-12  # of the larger side: what differs by less differs by rounding
_SHORT = 2.0**24  # numbers of at most 24 binary digits are taken as exact, as in balls


class DescentEvidence:
    """The evidence for statements about a descent: the true iterates in balls, or else descents with perturbed weights.

    **Arguments:**

    - loss: the loss.
    - trajectory: the descent, with all of its iterates.

    **Raises:** `ValueError` if iterates are missing.
    """

    def __init__(self, loss: AbstractPopulationLoss, trajectory: Trajectory):
        if not np.array_equal(np.asarray(trajectory.t), np.arange(trajectory.t.size)):
            checks.refuse("trajectory", "a descent with all of its iterates (without `at`)", "some are missing")
        self.loss, self.trajectory = prepared(loss, trajectory.start), trajectory
        self.status, self.stated = trajectory.status, stated(self.loss)

    @functools.cached_property
    def alone(self) -> Evidence:
        """The evidence for the start alone, for statements that depend on nothing else."""
        return Evidence(self.loss, start_alone(self.loss, self.trajectory.start))

    @functools.cached_property
    def run(self) -> Trajectory:
        """The descent without its certificates, so that comparisons on it can be compiled."""
        if self.trajectory.descent is not None:
            return _bare(self.trajectory)
        # A file does not say whether later steps are like those that were made.
        steps = eqx.tree_at(lambda one: one.step_size, self.again()[1].descent, jax.device_put(np.asarray(np.nan)))
        return _bare(dataclasses.replace(self.trajectory, descent=steps))

    @functools.cached_property
    def system(self) -> LossSystem | None:
        """The loss as a function of its weights; None if it is sampled, or if weights have different learning
        rates.
        """
        system = loss_system(self.loss, self.trajectory.start)
        return system if isinstance(system, LossSystem) and not isinstance(self.loss, MonteCarloLoss) else None

    def again(self, amount: float = 0.0, shaken: float = 0.0) -> tuple[AbstractPopulationLoss, Trajectory]:
        """The loss that claims are about and the descent on it, both with perturbations of the size of rounding.

        **Arguments:**

        - amount: the relative perturbation of every rounded number of the loss, the start and the step sizes.
        - shaken: the relative perturbation of the weights after every step.
        """
        run = self.trajectory
        sampled = isinstance(self.loss, MonteCarloLoss)
        loss = self.loss if sampled else _moved(self.loss, amount)
        start, sizes = _moved(run.start, amount), np.asarray(_moved(run.step_size, amount))
        found = descended(loss, start, sizes, run.settings, np.arange(run.t.size), shaken)
        return self.stated if sampled else stated(loss), _bare(found)

    @functools.cached_property
    def moved(self) -> list[tuple[AbstractPopulationLoss, Trajectory]]:
        """Two pairs of a loss and a descent. The numbers of the loss and the start are perturbed by rounding, in
        opposite directions.
        """
        return [self.again(amount) for amount in (ROUNDING, -ROUNDING)]

    @functools.cached_property
    def shaken(self) -> list[tuple[AbstractPopulationLoss, Trajectory]]:
        """Two pairs of a loss and a descent, perturbed as in `moved`. The weights are also perturbed after every
        step.
        """
        return [self.again(amount, amount) for amount in (ROUNDING, -ROUNDING)]

    @functools.cached_property
    def replicates(self) -> list[tuple[AbstractPopulationLoss, Trajectory]]:
        """A loss and a descent for each independent sample set."""
        run = self.trajectory
        sizes, counts = np.asarray(run.step_size), np.arange(run.t.size)
        parts = [(loss, descended(loss, run.start, sizes, run.settings, counts)) for loss in self.loss.replicates()]
        return [(stated(loss), _bare(one)) for loss, one in parts]

    @functools.cached_property
    def differs(self) -> bool:
        """Whether the iterates of the trajectory differ from those of gradient descent on this loss by more than
        rounding.
        """
        again = self.again()[1]
        rounding = _apart(_weights(again), [_weights(one) for _, one in self.shaken])
        off = _apart(_weights(self.run), [_weights(again)])
        pairs = zip(jax.tree.leaves(off), jax.tree.leaves(rounding), jax.tree.leaves(_weights(self.run)), strict=True)
        least = lambda leaf: SAME_ROUNDED * np.max(np.abs(np.asarray(leaf)), initial=0.0)
        return any(bool(np.any(apart > CLEARLY * known + least(leaf))) for apart, known, leaf in pairs)

    @functools.cached_property
    def enclosed(self) -> Enclosed | None:
        """The true iterates in ball arithmetic; None if they cannot be enclosed.

        The balls contain the iterates for all problems whose numbers differ from the given ones by rounding.
        """
        found = None if self.system is None else true_iterates(self.system, self.trajectory, MOST)
        if found is None:
            return None
        moved = [(_weights(one), one.dissipated) for _, one in self.moved]
        known = _apart((_weights(self.run), self.run.dissipated), moved)
        spread, energy = jax.tree.map(lambda one: ROUNDING_SAFETY * one, known)
        nothing = np.full(self.run.t.size, np.inf)
        return Enclosed(
            system=self.system,
            loss=self.stated,
            run=self.run,
            errors=(nothing, nothing, nothing, energy),
            remaining=math.inf,
            is_identity=lambda claim: bool(compared(claim, self.stated, self.run).identity.all()),
            rounding=Roundings(weights=0.0),
            spread=spread,
            iterates=found,
        )

    @functools.cached_property
    def remaining(self) -> float:
        """A proved bound on the distance from the last iterate to all later iterates, and to their limit."""
        descent, enclosed = self.trajectory.descent, self.enclosed
        if enclosed is None or not isinstance(descent, Iteration):
            return math.inf
        assert enclosed.iterates is not None
        last = jax.tree.leaves(jax.tree.map(lambda leaf: leaf[-1:], enclosed.iterates[0]))
        recorded = [np.asarray(leaf)[-1:] for leaf in jax.tree.leaves(_weights(self.run))]
        spreads = [one[-1] for one in jax.tree.leaves(enclosed.spread)]
        off = [upper(np.abs(a - balls(b))) + one for a, b, one in zip(last, recorded, spreads, strict=True)]
        apart = math.sqrt(sum(float(np.sum(one**2)) for one in off))
        return descent.way_to_go(self.trajectory.end, self.trajectory.start, apart)

    @property
    def below_minimum(self) -> str:
        """The message for an exact loss that falls below its declared minimum; else empty."""
        return below_minimum(self.stated, self.trajectory) if self.system is not None else ""

    def hypotheses(self, claim: Claim) -> tuple[Hypothesis, ...]:
        """The hypotheses of a claim on this loss, and on the descent or its start."""
        given = self.trajectory if claim.of_descent else self.trajectory.start
        return tuple(claim.hypotheses(self.stated, given))

    def samples_matter(self, claim: Claim) -> bool:
        """Whether the loss is sampled and a claim uses numbers that depend on the samples."""
        return isinstance(self.loss, MonteCarloLoss) and (claim.along_flow or self.stated is self.loss)

    @functools.cached_property
    def distrust(self) -> str | None:
        """The reason why confidence intervals at the start of the descent cannot be trusted; None if they can
        be.
        """
        return self.alone.distrust

    @property
    def not_descending(self) -> str:
        """The message for a loss whose gradient in JAX is not its derivative; else empty. See `Evidence`."""
        return self.alone.not_descending

    def ladder(self) -> dict[str, float]:
        """An empty dictionary. For a flow it has the error by tolerance, but a descent has no tolerance."""
        return {}


def _bare(run: Trajectory) -> Trajectory:
    series = (run.t, run.models, run.loss, run.excess, run.grad_norm_sq, run.dissipated, run.descent, run.step_size)
    # The bound on the way to go is computed when it is asked for.
    return dataclasses.replace(uncertified(*series), way_to_go=math.inf)


def _weights(run: Trajectory) -> PyTree:
    return eqx.filter(run.models, eqx.is_inexact_array)


def _moved(tree: PyTree, amount: float) -> PyTree:
    """A tree whose numbers are perturbed by a relative amount with alternating signs. Numbers of at most 24 binary
    digits are exact, and stay unchanged.
    """

    def move(leaf):
        if not eqx.is_inexact_array(leaf):
            return leaf
        values = np.asarray(leaf)
        mantissa = np.frexp(values)[0] * _SHORT
        signs = 1.0 - 2.0 * (np.sum(np.indices(values.shape), axis=0) % 2)
        return jax.device_put(np.where(mantissa == np.round(mantissa), values, values * (1 + amount * signs)))

    return jax.tree.map(move, tree)


def _apart(series: PyTree, others: list[PyTree]) -> PyTree:
    """For each array, (T,) the largest distance of an entry from the same entry in other descents; infinite after
    the end of the shortest descent.
    """

    def one_array(leaf, *more):
        found = np.full(leaf.shape[0], 0.0)
        for other in more:
            rows = min(leaf.shape[0], other.shape[0])
            off = np.abs(np.asarray(other)[:rows] - np.asarray(leaf)[:rows]).reshape(rows, -1)
            found[:rows] = np.maximum(found[:rows], np.max(off, axis=1, initial=0.0))
            found[rows:] = np.inf
        return found

    return jax.tree.map(one_array, series, *others)
