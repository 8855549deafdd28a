"""Flows of hundreds to thousands of weights: flowsim beside the peers that form no Hessian, at equal true error.

A step of `general_flows.py`. The peers are CVODE with GMRES and diffrax's Tsit5, at rtol 1e-9, with flowsim's own
field, compiled; one that is not through after a minute of work is given up. Errors are the largest of a weight at the
end, to flowsim's own solution at rtol 1e-12. Seconds are those of the CPU, which others that use the machine change
less than those of the clock.

By itself it measures what judging costs beside a flow; see `measure_judging`.

    python benchmarks/sizes.py
"""

import functools
import pathlib
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))  # to be run as a file, too
from benchmarks.measurements import Measurement, cvode, measure

_RTOLS = tuple(10 ** -(k / 2) for k in range(14, 21))
_GIVEN_UP = 60.0  # seconds
_MOST_STEPS = 10**6
_DIMENSIONS = 50, 100, 200, 500
_JUDGING = """All statements of zhang2023 on the flow of one layer of linear attention with d features, d^2 + 1 weights.

Each d in a process of its own, with nothing compiled before: seconds of the CPU with all that is compiled, and the peak
of the memory. The covariance has eigenvalues from 2 to 1/2 in a random basis; the start is balanced and of scale .02.
"""


class Layers(eqx.Module):
    """A linear network x -> W_L ... W_1 x."""

    W: jax.Array


class Diagonal(eqx.Module):
    """A diagonal linear network x -> <u^2 - v^2, x>."""

    u: jax.Array
    v: jax.Array


class _GivenUp(Exception):
    pass


def layers(d: int, depth: int) -> tuple[Any, Any]:
    """(1/2) E |(W_L ... W_1 - A) x|^2 of a target with singular values 2 to 1/2 and inputs of variances 1 to 1/4."""
    from flowsim import FunctionLoss

    rng = np.random.default_rng(0)
    rotation = lambda: np.linalg.qr(rng.standard_normal((d, d)))[0]
    target = jax.numpy.asarray(rotation() @ np.diag(np.linspace(2, 0.5, d)) @ rotation().T)
    variances = jax.numpy.asarray(np.geomspace(1, 0.25, d))

    def loss(model: Layers) -> jax.Array:
        product = model.W[0]
        for W in model.W[1:]:
            product = W @ product
        return jax.numpy.sum((product - target) ** 2 * variances[None]) / 2

    return FunctionLoss(loss, minimum=0.0), Layers(jax.numpy.asarray(0.1 * rng.standard_normal((depth, d, d))))


def diagonal(features: int, samples: int) -> tuple[Any, Any]:
    """Least squares by a diagonal network, of five features among many, from .01."""
    from flowsim import FunctionLoss

    rng = np.random.default_rng(0)
    inputs, weights = rng.standard_normal((samples, features)), np.zeros(features)
    weights[:5] = rng.standard_normal(5)
    X, y = jax.numpy.asarray(inputs), jax.numpy.asarray(inputs @ weights)
    loss = FunctionLoss(
        lambda model: jax.numpy.sum((X @ (model.u**2 - model.v**2) - y) ** 2) / (2 * samples), minimum=0.0
    )
    return loss, Diagonal(*[jax.numpy.full(features, 0.01)] * 2)


def attention(d: int) -> tuple[Any, Any]:
    """One head with merged keys and queries, at condition 10."""
    from flowsim import AttentionLoss, LinearRegression
    from flowsim.models import MergedHeads

    rng = np.random.default_rng(0)
    task = LinearRegression(np.diag(np.geomspace(1, 0.1, d)), 20)
    U = 0.1 / np.sqrt(d) * rng.standard_normal((1, d, d))
    model = MergedHeads(0.1 * rng.standard_normal(1), U)
    return AttentionLoss(task, model), model


def _clocked(run: Callable[[], Any]) -> tuple[float, Any]:
    """The least seconds of the CPU that a call takes, of as many as a spell allows, and its result; the first one
    compiles.
    """
    best, until = np.inf, time.process_time() + _GIVEN_UP / 20
    result = run()
    while not np.isfinite(best) or time.process_time() < until:
        begin = time.process_time()
        result = run()
        best = min(best, time.process_time() - begin)
    return best, result


def _gmres(field: Callable, start: np.ndarray, t1: float) -> tuple[float, np.ndarray | None]:
    """The seconds that CVODE takes with GMRES, and the end; None where it was given up."""
    begin = time.process_time()

    def slope(t: float, y: np.ndarray) -> np.ndarray:
        if time.process_time() > begin + _GIVEN_UP:
            raise _GivenUp
        return field(y)

    try:
        end = cvode(slope, start, t1, 1e-9).y[-1]
    except _GivenUp:
        return np.inf, None
    return time.process_time() - begin, end


def _tsit5(field: Callable, start: np.ndarray, t1: float) -> tuple[float, np.ndarray | None]:
    """The same of diffrax's Tsit5, given up after a million steps."""
    import diffrax
    import optimistix

    atol = 1e-9 * float(np.max(np.abs(start)))

    @jax.jit
    def run(y: jax.Array, end: float) -> tuple[jax.Array, jax.Array]:
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: field(y)),
            diffrax.Tsit5(),
            0.0,
            end,
            None,
            y,
            stepsize_controller=diffrax.PIDController(1e-9, atol, norm=optimistix.max_norm),
            adjoint=diffrax.ForwardMode(),
            max_steps=_MOST_STEPS,
            throw=False,
        )
        assert solution.ys is not None
        return solution.ys[-1], solution.result == diffrax.RESULTS.successful

    y = jax.numpy.asarray(start)
    seconds, (end, through) = _clocked(lambda: jax.block_until_ready(run(y, t1)))
    return (seconds, np.asarray(end)) if through else (np.inf, None)


def measure_sizes(flows: dict[str, Callable[[], tuple[Any, Any]]]) -> list[Measurement]:
    """Each flow to the end that flowsim finds, beside its peers."""
    from jax.flatten_util import ravel_pytree

    import flowsim
    from flowsim.flow.systems import loss_system

    found, ratios = [], []
    for name, make in flows.items():
        loss, model = make()
        system = loss_system(loss, model)
        start, unravel = ravel_pytree(system.encode(model))
        field = jax.jit(lambda y, system=system, unravel=unravel: ravel_pytree(system.field(unravel(y)))[0])
        flat = lambda run: np.asarray(ravel_pytree(eqx.filter(run.end, eqx.is_inexact_array))[0])
        t1 = float(flowsim.gradient_flow(loss, model).t[-1])
        reference = flat(flowsim.gradient_flow(loss, model, t1=t1, rtol=1e-12))
        theirs = {}
        for peer, solve in {"CVODE with GMRES": _gmres, "Tsit5": _tsit5}.items():
            seconds, end = solve(field, np.asarray(start), t1)
            theirs[peer] = (seconds, np.inf if end is None else float(np.max(np.abs(end - reference))))
        best = min(theirs, key=lambda peer: theirs[peer][0])
        for rtol in _RTOLS:
            run = lambda loss=loss, model=model, t1=t1, rtol=rtol: flowsim.gradient_flow(loss, model, t1=t1, rtol=rtol)
            seconds, solved = _clocked(run)
            error = float(np.max(np.abs(flat(solved) - reference)))
            if error <= theirs[best][1]:
                break
        # Of two that were given up the time until then is a lower bound.
        ratios.append(min(theirs[best][0], _GIVEN_UP) / seconds)
        beside = ", ".join(f"{peer} {s:.2f} s ({e:.0e})" for peer, (s, e) in theirs.items())
        note = f"flowsim {seconds:.2f} s ({error:.0e}, rtol {rtol:.0e}, {solved.settings.method}); {beside}"
        what = f"{name} ({start.size} weights), best peer without a Hessian over flowsim"
        found.append(Measurement(what, ratios[-1], "times", "at least", 1.0, note))
    mean = float(np.exp(np.mean(np.log(ratios))))
    return [*found, Measurement("geometric mean of sizes", mean, "times", "at least", 2.0)]


def measure_judging(d: int, quick: bool) -> list[Measurement]:
    """What judging costs beside the flow, of d features."""
    import flowsim
    from flowsim.claims import Judgement, judge
    from flowsim.experiments.run import claims_about

    rows = [f"eigenvalues = {np.geomspace(2, 0.5, d).tolist()}", "rotation_seed = 0"]
    start = f'[init]\nkind = "balanced"\nscale = 0.02\nrank = {d}\nseed = 0\n'
    text = f"[task]\ncontext_length = 10\ncovariance = {{{', '.join(rows)}}}\n{start}"
    problem = flowsim.ProblemSpec.from_toml(text).build().prepared()
    spent = lambda: sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    begin = spent()
    run = problem.run()
    flow, begin = spent() - begin, spent()
    verdicts = judge(claims_about(problem, None), problem.loss, run)
    seconds, peak = spent() - begin, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    about = [one for one in verdicts if one.verdict is not Judgement.NOT_APPLICABLE]
    open_ = sum(one.verdict is Judgement.UNRESOLVED for one in about)
    note = f"the flow {flow:.1f} s; {len(about)} statements speak of it, {open_} of them unresolved"
    return [
        Measurement(f"d = {d}, judging", seconds, "s", "at most", 120.0, note),
        Measurement(f"d = {d}, peak memory", peak, "GiB", "at most", 3.0),
    ]


def main(quick: bool = False) -> list[Measurement]:
    """Measure, print and, unless quick, write ``results/judging.md`` and ``.json``."""
    steps = tuple(functools.partial(measure_judging, d) for d in _DIMENSIONS[: 1 if quick else None])
    return measure(steps, quick, "judging", "Judging flows of many weights", _JUDGING)


if __name__ == "__main__":
    main()
