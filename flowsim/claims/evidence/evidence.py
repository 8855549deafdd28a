"""All that the claims on one flow are judged by."""

import functools
from collections.abc import Callable

import numpy as np

from flowsim.claims.claim import Claim, Comparison
from flowsim.claims.evidence.case import Case
from flowsim.claims.evidence.comparing import compared
from flowsim.claims.evidence.narrow import stepped_over
from flowsim.claims.evidence.repetitions import AbstractRepetitions
from flowsim.claims.evidence.series import merged, shifted, shortened
from flowsim.claims.hypotheses import Hypothesis
from flowsim.flow.gradient_flow import start_alone
from flowsim.flow.trajectory import Status
from flowsim.losses.closed_form import is_closed_form
from flowsim.losses.sampled.monte_carlo import MonteCarloLoss

_BELOW = 1e-9  # of the loss, by which it may fall below its minimum by rounding
_FURTHER = 1e6, 9.0  # times its time, by which a flow is prolonged if it can be
_OUTPUTS = 48  # then


class Evidence(AbstractRepetitions):
    """The repetitions of a flow, each as claims read it; takes what `AbstractRepetitions` takes."""

    @functools.cached_property
    def cases(self) -> tuple["Case", "Case", "Case"]:
        """The three solves from the roughest on, each ready for comparisons; the last two are solved when used."""
        return (
            Case(self, lambda evidence: evidence.trajectory),
            Case(self, lambda evidence: evidence.reference),
            Case(self, lambda evidence: evidence.confirmation),
        )

    @functools.cached_property
    def alone(self) -> "Case":
        """The start alone, for claims that read no more."""
        return Case(self, lambda evidence: start_alone(evidence.loss, evidence.trajectory.start))

    @functools.cached_property
    def before_kink(self) -> "Evidence":
        """The same up to a kink at which a more accurate solve ended."""
        solves = (self.reference, self.confirmation)
        end = min(float(run.t[-1]) for run in solves if run.status is Status.KINK)
        return Evidence(self.loss, shortened(self.trajectory, int(np.sum(np.asarray(self.trajectory.t) <= end))))

    @functools.cached_property
    def prolonged(self) -> "Case | None":
        """The flow until a million or ten times the time of its end; None where it does not get there."""
        run = self.trajectory
        if run.t.size == 1 or run.status is Status.STATIONARY:
            return None
        end = float(run.t[-1])
        long = end or -float(run.t[0])
        for times in _FURTHER:
            # From where its steps are now, as something may come between.
            first, last = np.log10((end - float(run.t[-2])) / long), np.log10(times)
            further = self._from(self.loss, run, run.t.size - 1, long * np.logspace(first, last, _OUTPUTS))
            if further.status.finished:
                longer = merged([run, shifted(further, end, float(run.dissipated[-1]))])
                return Case(self, lambda evidence, longer=longer: longer)
        return None

    @functools.cached_property
    def stepped_over(self) -> str:
        """What to say where the solver's steps went over a wall or a pit of the loss; nothing where they did not, or
        where the loss is a closed form of flowsim's, which has neither.
        """
        time = None if is_closed_form(self.stated) else stepped_over(self.cases[0])
        if time is None:
            return ""
        time += self.steepest
        return f"The loss changes more within a step of the solver, at t = {time:.4g}, than from one step to the next."

    @functools.cached_property
    def no_descent(self) -> str:
        """What to say where the flow is not down the gradient of its loss; nothing where it is."""
        if isinstance(self.loss, MonteCarloLoss) or self.system.descends(self.system.encode(self.trajectory.end)):
            return ""
        return "The gradient that JAX takes is not that of the loss: it has stop_gradient or slopes of its own in it."

    @property
    def too_low(self) -> str:
        """What to say where an exact loss falls below the minimum that it states; nothing where it does not."""
        run, stated = self.trajectory, float(self.stated.minimum)
        loss = np.asarray(run.loss)
        lowest = int(np.argmin(loss))
        # Of a loss without a known minimum the difference is NaN.
        if isinstance(self.loss, MonteCarloLoss) or not stated - loss[lowest] > _BELOW * np.max(np.abs(loss)):
            return ""
        reached = f"{loss[lowest]:.6g} at t = {run.t[lowest]:.4g}"
        return f"The loss states that its minimum is {stated:.6g}, and is {reached}."

    def hypotheses(self, claim: Claim) -> tuple[Hypothesis, ...]:
        """The conditions of a claim's statement, which several claims may have in common."""
        # With the function itself: an identity is one's own only as long as one lives.
        key, conditions = id(claim.hypotheses), claim.hypotheses
        if key not in self._conditions:
            self._conditions[key] = conditions, tuple(conditions(self.stated, self.trajectory.start))
        return self._conditions[key][1]

    @functools.cached_property
    def _conditions(self) -> dict[int, tuple[Callable, tuple[Hypothesis, ...]]]:
        return {}

    def reads_more_than_the_start(self, claim: Claim) -> bool:
        """Whether a claim that says it reads the start of a flow alone reads more of it."""
        if self.trajectory.status is Status.STATIONARY:
            return False
        if any(t > 0 for t in self.times_of(claim)):
            return True
        alone, *others = self._at_the_start(claim)
        return any(alone.slack.shape != one.slack.shape or not _same(alone, one, slice(None)) for one in others)

    def reads_the_start_first(self, claim: Claim) -> bool:
        """Whether the first of what a claim compares reads the start alone, as of a series along the flow."""
        if any(t > 0 for t in self.times_of(claim)):
            return False
        alone, *others = self._at_the_start(claim)
        return all(_same(alone, one, slice(1)) for one in others)

    def _at_the_start(self, claim: Claim) -> tuple[Comparison, ...]:
        """The comparison on the start alone, on the flow, and where other times and numbers follow the start."""
        runs = self.alone.padded, self.cases[0].padded, self.cases[0].astray
        return tuple(compared(claim, self.stated, run) for run in runs)


def _same(one: Comparison, other: Comparison, rows: slice) -> bool:
    alike = np.array_equal(one.slack[rows], other.slack[rows], equal_nan=True)
    return alike and np.array_equal(one.promised[rows], other.promised[rows])
