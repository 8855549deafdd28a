"""The same flows on both devices, alone and vmapped: their ends and verdicts, which are compared afterwards."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np

from benchmarks import fixed_covariance, general_flows
from benchmarks.gpu_parts.fields import looped
from benchmarks.gpu_parts.flows import arrowhead_flows, lanes_like
from benchmarks.gpu_parts.rows import Measures, Row, first_call
from flowsim import ALL_CLAIMS, MonteCarloLoss, find_claims, gradient_flow, judge
from flowsim.experiments.sweep import any_loss, arrowheads

CLAIMS = "zhang2023.lemma-5.3", "zhang2023.lemma-5.4", "zhang2023.lemma-a.5"


def measures(full: bool) -> Measures:
    """Ends of single flows, verdicts, and ends of flows in lanes beside the same lane alone."""
    yield "one layer, d = 16: end and verdicts", functools.partial(_one_layer, full)
    yield "arrowhead, d = 16: 8 lanes", functools.partial(_lanes, arrowheads.integrate, lambda: arrowhead_flows(8))
    if not full:
        return
    yield "looped, d = 5: end", lambda: _flow(*general_flows.layers("looped"))
    yield "looped, d = 5: 8 lanes", functools.partial(_lanes, any_loss.integrate, _looped_lanes)
    yield "sampled, three loops, d = 5: end", _sampled
    yield "4 heads, merged: end", lambda: _flow(*general_flows.merged(4, 4, 1e-3))


def _weights(tree: Any) -> list[float]:
    leaves = jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array))
    return np.concatenate([np.ravel(leaf) for leaf in leaves]).tolist()


def _one_layer(full: bool) -> Row:
    loss, start, t1 = fixed_covariance.problem(16 if full else 3)
    flow = gradient_flow(loss, start, t1=t1, rtol=1e-9)
    claims = [claim for name in CLAIMS for claim in find_claims(ALL_CLAIMS, name)]
    verdicts = judge(claims, loss, flow)
    words = [f"{verdict.id} {verdict.form} {verdict.verdict.value}" for verdict in verdicts]
    note = f"{len(words)} verdicts; {flow.certificates.steps} steps"
    return Row("", words=[str(flow.status), *words], numbers=_weights(flow.end), note=note)


def _flow(loss: Any, start: Any) -> Row:
    flow = gradient_flow(loss, start)
    return Row("", words=[str(flow.status)], numbers=_weights(flow.end), note=f"{flow.certificates.steps} steps")


def _looped_lanes() -> Any:
    loss, start = general_flows.layers("looped")
    return lanes_like(loss, start, 8)


def _sampled() -> Row:
    case = looped(5)
    loss = MonteCarloLoss(case.task, 2**14, method="covariances").prepared(case.model)
    flow = gradient_flow(loss, case.model, t1=0.3, rtol=1e-9, solver="explicit", points_per_decade=0)
    return Row("", words=[str(flow.status)], numbers=_weights(flow.end), note=f"{flow.certificates.steps} steps")


def _lanes(integrate: Callable[..., Any], make: Callable[[], Any]) -> Row:
    """Where lanes end, and how far that is from the end of the first alone."""
    given = make()
    cut = lambda lanes: jax.tree.map(lambda leaf: leaf[:lanes] if eqx.is_array(leaf) else leaf, given)
    (_, together), (_, alone) = (first_call(lambda lanes=lanes: integrate(*cut(lanes))) for lanes in (8, 1))
    summary, single = together[0], alone[0]
    numbers = [summary.t, summary.excess_start, summary.norm_sq, summary.convergence_time]
    gap = max(
        float(np.max(np.abs(np.asarray(a)[:1] / np.asarray(b) - 1)))
        for a, b in ((summary.t, single.t), (summary.norm_sq, single.norm_sq))
    )
    words = [str(code) for code in np.asarray(summary.status)]
    steps = np.asarray(summary.steps)
    note = f"alone and in a lane differ by {gap:.0e}; {steps.min()} to {steps.max()} steps"
    return Row("", words=words, numbers=np.concatenate([np.asarray(number) for number in numbers]).tolist(), note=note)
