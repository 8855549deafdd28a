"""Results of a finished run besides its verdicts, as texts with labels."""

import math
from collections.abc import Iterable, Iterator

from flowsim.claims import Evidence, Verdict, end_point, fit_rate
from flowsim.claims.deciding.iterates import DescentEvidence
from flowsim.flow.risk_curve import RiskCurve
from flowsim.flow.solvers.clock import counted
from flowsim.losses.deep.multi_layer import AbstractLayersLoss
from flowsim.losses.sampled.monte_carlo import MonteCarloLoss
from flowsim.papers import predictions_of
from flowsim.problem import Problem


def run_facts(problem: Problem, evidence: Evidence | DescentEvidence) -> dict[str, str]:
    """Gather results of a run besides its verdicts: the decay rate, the end point and its Hessian, and the
    accuracy.

    For a sampled loss, the decay rate is replaced by the loss at the end, with its error, and by whether the
    samples determine the population loss.

    **Returns:** texts by label; empty if the run is not finished.
    """
    trajectory, loss = evidence.trajectory, evidence.loss
    if not evidence.status.finished:
        return {}
    facts = {}
    if predictions_of(problem) is None and not math.isnan(problem.loss.minimum):
        facts["least known loss"] = f"{float(problem.loss.minimum):.10g} ({problem.loss.minimum_kind})"
    if isinstance(loss, MonteCarloLoss):
        facts["samples"] = f"{loss.samples} {loss.method}, in {loss.groups} replicates"
        facts["loss at the end"] = str(loss.estimate(trajectory.end))
        trust = evidence.distrust or "yes: light tails, and the same loss on fresh prompts"
        facts["do the samples determine the population loss"] = trust
    elif rate := fit_rate(trajectory):
        clock = "k = " if isinstance(evidence, DescentEvidence) else "t = "
        begin = f"{counted(trajectory)[1]:.3g} + " if trajectory.counted is not None else ""
        interval, window = f"{rate.low:.6g} to {rate.high:.6g}", f"{clock}{begin}{rate.t_from:.3g} to {rate.t_to:.3g}"
        facts["decay of the excess at the end"] = f"{rate.kind}, {rate.rate:.6g} ({interval}), {window}"
    end = end_point(loss, trajectory)
    if end and end.kind == "none":
        facts["end point, refined by Newton's method"] = (
            f"none: Newton's method does not converge, and moves by {end.distance:.2g}"
        )
    elif end:
        facts["end point, refined by Newton's method"] = (
            f"{end.kind}, excess {end.excess:.2g}, gradient norm {end.grad_norm:.1g}, {end.distance:.2g} away"
        )
        outside = loss.directions_outside(problem.start) if isinstance(loss, AbstractLayersLoss) else 0
        space = f", {outside} of them outside of the symmetric matrices" if outside else ""
        facts["Hessian there"] = f"{end.positive} positive, {end.negative} negative, {end.flat} flat directions{space}"
    for tolerance, gap in evidence.ladder().items():
        facts[f"change of the weights from rtol {tolerance} to a hundredth of it"] = f"{gap:.1e}"
    return facts


def test_facts(tested: RiskCurve) -> dict[str, str]:
    """Return the risk at the end of a flow on the prompts of the table [test], as a text by label."""
    levels = (
        f"{tested.limit:.6g} at the limit, {tested.best_linear_error:.6g} for the best linear predictor, "
        f"{tested.zero_predictor_error:.6g} for zero"
    )
    label = f"risk at the end on prompts of length {tested.test_length:g}"
    return {label: f"{tested.risk[-1]:.6g}; {levels}"}


def sharp_constants(verdicts: Iterable[Verdict]) -> dict[str, str]:
    """Return each sharp constant along the flow next to the constant of the theorem, as texts by label."""
    return {
        f"{verdict.id}, sharp {name}": f"{sharp:.6g}, in the theorem {value:.6g}"
        for verdict, name, value, sharp in with_sharp(verdicts)
    }


def with_sharp(verdicts: Iterable[Verdict]) -> Iterator[tuple[Verdict, str, float, float]]:
    """Iterate over the constants that have a known sharp value: the verdict, the name, the value, and the sharp
    value.
    """
    for verdict in verdicts:
        for name, value in verdict.constants.items():
            if f"sharp_{name}" in verdict.constants:
                yield verdict, name, value, verdict.constants[f"sharp_{name}"]


def looseness(value: float, sharp: float) -> float | None:
    """Return sharp/value, the sharp constant over the statement's; None unless both are positive and finite."""
    return sharp / value if 0 < value < math.inf and 0 < sharp < math.inf else None
