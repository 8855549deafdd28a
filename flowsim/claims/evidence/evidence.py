"""The evidence for the verdicts on all claims along one flow."""

import functools
from collections.abc import Callable

import numpy as np

from flowsim.claims.claim import Claim, Comparison
from flowsim.claims.declaring import reads_the_start_only
from flowsim.claims.evidence.case import Case
from flowsim.claims.evidence.comparing import compared
from flowsim.claims.evidence.narrow import stepped_over
from flowsim.claims.evidence.repetitions import AbstractRepetitions
from flowsim.claims.evidence.series import merged, shifted, shortened
from flowsim.claims.hypotheses import Hypothesis
from flowsim.claims.limits import takes_limit
from flowsim.flow.gradient_flow import start_alone
from flowsim.flow.trajectory import Status, Trajectory
from flowsim.losses import AbstractPopulationLoss
from flowsim.losses.closed_form import is_closed_form
from flowsim.losses.sampled.monte_carlo import MonteCarloLoss

_BELOW = 1e-9  # of the loss: it may be below its minimum by this much through rounding
_FURTHER = 1e6, 9.0  # the factors by which a flow is prolonged, the first that succeeds
_OUTPUTS = 48  # output times of the continuation


class Evidence(AbstractRepetitions):
    """A flow with its repetitions. Claims are compared on a `Case` of each of these solves.

    The arguments are those of `AbstractRepetitions`.
    """

    @functools.cached_property
    def cases(self) -> tuple["Case", "Case", "Case"]:
        """The cases of the trajectory, the reference and the confirmation, from the least to the most accurate
        solve. The last two are solved when they are first used.
        """
        return (
            Case(self, lambda evidence: evidence.trajectory),
            Case(self, lambda evidence: evidence.reference),
            Case(self, lambda evidence: evidence.confirmation),
        )

    @functools.cached_property
    def alone(self) -> "Case":
        """The case of the start alone, for claims that depend on nothing else."""
        return Case(self, lambda evidence: start_alone(evidence.loss, evidence.trajectory.start))

    @functools.cached_property
    def before_kink(self) -> "Evidence":
        """The evidence for the part of the flow before a kink of the loss at which a more accurate solve ended."""
        solves = (self.reference, self.confirmation)
        end = min(float(run.t[-1]) for run in solves if run.status is Status.KINK)
        return Evidence(self.loss, shortened(self.trajectory, int(np.sum(np.asarray(self.trajectory.t) <= end))))

    @functools.cached_property
    def prolonged(self) -> "Case | None":
        """The case of the flow continued to a million times its end time or, if that fails, to ten times. None if
        both fail.
        """
        run = self.trajectory
        if run.t.size == 1 or run.status is Status.STATIONARY:
            return None
        t = np.asarray(run.t)
        end = float(t[-1])
        for times in _FURTHER:
            # The continuation starts with steps of the present length, since something may happen soon.
            first, last = np.log10((end - float(t[-2])) / end), np.log10(times)
            further = self._from(self.loss, run, run.t.size - 1, end * np.logspace(first, last, _OUTPUTS))
            if further.status.finished:
                longer = merged(
                    [run, shifted(further, end + np.asarray(further.t), float(np.asarray(run.dissipated)[-1]))]
                )
                return Case(self, lambda evidence, longer=longer: longer)
        return None

    @functools.cached_property
    def stepped_over(self) -> str:
        """The message for a loss with a feature that a step of the solver passed over, such as a wall or a pit.

        Empty if no such feature is found, and for the closed-form losses of flowsim, which have none.
        """
        time = None if is_closed_form(self.stated) else stepped_over(self.cases[0])
        if time is None:
            return ""
        t = float(self.clock.since_start(time))
        return f"The loss has a feature that a step of the solver passed over, at t = {t:.4g}, such as a wall or a pit."

    @functools.cached_property
    def not_descending(self) -> str:
        """The message for a loss whose gradient in JAX is not its derivative, so that the flow does not follow the
        gradient. Empty for other losses, and for sampled ones.
        """
        if isinstance(self.loss, MonteCarloLoss) or self.system.descends(self.system.encode(self.trajectory.end)):
            return ""
        return "JAX does not return the gradient of this loss: it contains stop_gradient or a custom derivative."

    @property
    def below_minimum(self) -> str:
        """The message for an exact loss that falls below its declared minimum along the flow; else empty."""
        return "" if isinstance(self.loss, MonteCarloLoss) else below_minimum(self.stated, self.trajectory)

    def hypotheses(self, claim: Claim) -> tuple[Hypothesis, ...]:
        """The hypotheses of a claim on this loss and start, evaluated once for all claims that share them."""
        # The value holds the function, so that its id is not reused.
        key, conditions = id(claim.hypotheses), claim.hypotheses
        if key not in self._conditions:
            self._conditions[key] = conditions, tuple(conditions(self.stated, self.trajectory.start))
        return self._conditions[key][1]

    @functools.cached_property
    def _conditions(self) -> dict[int, tuple[Callable, tuple[Hypothesis, ...]]]:
        return {}

    def takes_limit(self, claim: Claim) -> bool:
        """Whether a claim depends on a value that `limit` returns; see `limits.takes_limit`."""
        key = id(claim.compare)
        if key not in self._limits:
            taken = claim.along_flow and takes_limit(claim.compare, self.stated, self.cases[0].padded)
            self._limits[key] = claim.compare, taken
        return self._limits[key][1]

    @functools.cached_property
    def _limits(self) -> dict[int, tuple[Callable, bool]]:
        return {}

    def reads_more_than_the_start(self, claim: Claim) -> bool:
        """Whether a claim uses numbers of the flow after the start, although it was declared to depend on the start
        alone.
        """
        # Comparisons of formulas at every size may cost far more than the flow.
        if self.trajectory.status is Status.STATIONARY or reads_the_start_only(claim):
            return False
        if any(t > 0 for t in self.times_of(claim)):
            return True
        alone, *others = self._at_the_start(claim)
        return any(alone.slack.shape != one.slack.shape or not _same(alone, one, slice(None)) for one in others)

    def reads_the_start_first(self, claim: Claim) -> bool:
        """Whether the first row of a claim's comparison depends on the start only, as in a series along a flow."""
        if any(t > 0 for t in self.times_of(claim)):
            return False
        alone, *others = self._at_the_start(claim)
        return all(_same(alone, one, slice(1)) for one in others)

    def _at_the_start(self, claim: Claim) -> tuple[Comparison, ...]:
        """The comparisons of a claim on three trajectories with the same start: the start alone, the flow, and one
        with random times and numbers after the start.
        """
        runs = self.alone.padded, self.cases[0].padded, self.cases[0].randomized
        return tuple(compared(claim, self.stated, run) for run in runs)


def below_minimum(stated: AbstractPopulationLoss, run: Trajectory) -> str:
    """The message for a loss that falls below its declared minimum along a run; empty if it does not.

    **Arguments:** stated: the loss, which is exact; run: the flow or descent.
    """
    minimum, loss = float(stated.minimum), np.asarray(run.loss)
    lowest = int(np.argmin(loss))
    # The difference is NaN if no minimum is known.
    if not minimum - loss[lowest] > _BELOW * np.max(np.abs(loss)):
        return ""
    reached = f"{loss[lowest]:.6g} at t = {run.t[lowest]:.4g}"
    return f"The loss declares the minimum {minimum:.6g}, but is {reached}: correct its minimum."


def _same(one: Comparison, other: Comparison, rows: slice) -> bool:
    same = np.array_equal(one.slack[rows], other.slack[rows], equal_nan=True)
    return same and np.array_equal(one.promised[rows], other.promised[rows])
