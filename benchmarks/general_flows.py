"""Flows without an arrowhead: flowsim beside LSODA, BDF and CVODE, and random starts at every scale.

Eight flows to the same end. The peers are scipy's LSODA and BDF and the CVODE of SUNDIALS (`pip install
'flowsim[benchmarks]'`), with flowsim's own field and Jacobian, compiled, at rtol 1e-9 and atol 1e-9 times the start's
largest weight. Errors are the largest of a weight at the end, to a reference at rtol 1e-12. flowsim's time is that of
`gradient_flow` at the loosest of rtol 1e-7, 1e-8 and 1e-9 whose error is at most that of the fastest peer.

Then flows of 520 to 10,001 weights beside CVODE with GMRES and diffrax's Tsit5 (`sizes.py`), in seconds of the CPU.

Then random starts like that of each flow, eight in lockstep on each core, as a sweep integrates them, at rtol 1e-8,
beside CVODE's cost for one. Then 100 random starts at each of the scales 1e-1 to 1e-8 of two-layer and three-factor
scalar networks and of four heads of linear attention with merged and separate keys and queries: whether each reaches
the known minimum, and how far off is the time at which half of the excess is lost, by LSODA at rtol 1e-11.

Then weights many decades apart in one flow: how far off, relative, are the times at which each leaves its saddle, at
scales from 1e-1 to 1e-160, by the exact solution; and that of three factors, to 1e-60.

    python benchmarks/general_flows.py
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
from benchmarks.fixed_covariance import best_of
from benchmarks.measurements import Measurement, cvode, measure
from benchmarks.sizes import attention, diagonal, measure_sizes
from benchmarks.sizes import layers as linear_layers

LENGTH = 31
RTOLS = (1e-7, 1e-8, 1e-9)
SWEEP_RTOL = 1e-8
SWEPT = 64  # starts like that of each flow
STARTS = 100  # of each model at each scale
SCALES = tuple(10.0**-k for k in range(1, 9))
FURTHER_SCALES = (1e-1, 1e-8, 1e-12, 1e-16, 1e-20, 1e-30, 1e-40, 1e-60, 1e-80, 1e-100, 1e-130, 1e-160)
LEAST_OF_THREE = 1e-60  # of the scales of three factors, whose |grad|^2 is its fourth power
STRENGTHS = (4.0, 1.0, 0.25)


class Merged(eqx.Module):
    """Heads v_h U_h."""

    v: jax.Array
    U: jax.Array

    def matrix(self) -> jax.Array:
        """sum_h v_h U_h."""
        return jax.numpy.einsum("h,hij->ij", self.v, self.U)


class Separate(eqx.Module):
    """Heads v_h k_h q_h^T of rank one."""

    v: jax.Array
    k: jax.Array
    q: jax.Array

    def matrix(self) -> jax.Array:
        """sum_h v_h k_h q_h^T."""
        return jax.numpy.einsum("h,hi,hj->ij", self.v, self.k, self.q)


class Factors(eqx.Module):
    """A scalar linear network x -> w_1 ... w_L x."""

    w: jax.Array


class Pairs(eqx.Module):
    """Scalar linear networks of two layers, x_i -> a_i b_i x_i."""

    a: jax.Array
    b: jax.Array


@functools.cache
def head_loss(d: int) -> Any:
    """(1/2) E (yhat - w^T x_q)^2 of yhat = (1/N sum_n y_n x_n)^T M x_q, M the matrix of the heads, w ~ N(0, I), and the
    covariance diag(4, 2, 1, .5, ...).
    """
    import jax.numpy as jnp

    from flowsim import FunctionLoss

    lam = 4 * 0.5 ** np.arange(d)
    gamma = (1 + 1 / LENGTH) * lam + np.sum(lam) / LENGTH
    first, second = jnp.asarray(np.outer(gamma * lam, lam)), jnp.asarray(np.diag(lam**2))

    def loss(model: Any) -> jax.Array:
        M = model.matrix()
        return jnp.sum(first * M**2) / 2 - jnp.sum(second * M) + np.sum(lam) / 2

    return FunctionLoss(loss, minimum=float(np.sum(lam) - np.sum(lam**2 / gamma)) / 2)


@functools.cache
def product_loss() -> Any:
    """(w_1 ... w_L - 1)^2 / 2."""
    import jax.numpy as jnp

    from flowsim import FunctionLoss

    return FunctionLoss(lambda model: (jnp.prod(model.w) - 1) ** 2 / 2, minimum=0.0)


def merged(heads: int, d: int, scale: float, seed: int = 0) -> tuple[Any, Any]:
    """Heads with merged keys and queries from random weights, and their loss."""
    rng = np.random.default_rng(seed)
    draw = lambda *shape: jax.numpy.asarray(scale * rng.standard_normal(shape))
    return head_loss(d), Merged(draw(heads), draw(heads, d, d))


def separate(heads: int, d: int, scale: float, seed: int = 0) -> tuple[Any, Any]:
    """Heads with separate keys and queries of rank one from random weights, and their loss."""
    rng = np.random.default_rng(seed)
    draw = lambda *shape: jax.numpy.asarray(scale * rng.standard_normal(shape))
    return head_loss(d), Separate(draw(heads), draw(heads, d), draw(heads, d))


def factors(count: int, scale: float, seed: int) -> tuple[Any, Any]:
    """A scalar network from random weights, and its loss."""
    rng = np.random.default_rng(seed)
    return product_loss(), Factors(jax.numpy.asarray(scale * rng.standard_normal(count)))


def all_weights(d: int, condition: float, scale: float) -> tuple[Any, Any]:
    """One layer of linear attention from random weights, all of them, and its loss."""
    from flowsim import LinearAttentionLoss, LinearRegression, initialization

    task = LinearRegression(np.diag(np.geomspace(1, 1 / condition, d)), 20)
    return LinearAttentionLoss(task), initialization.random(scale, d, 0)


def layers(kind: str) -> tuple[Any, Any]:
    """A looped layer, or three layers, of ahn2023 and gatmiry2024 at d = 5, and its loss."""
    from flowsim import LinearRegression, LoopedAttention, LoopedLoss, MultiLayerAttention, MultiLayerLoss
    from flowsim.initialization import deep

    task = LinearRegression(np.diag(np.geomspace(1, 0.25, 5)), 20, weights="inverse-covariance")
    if kind == "looped":
        return LoopedLoss(task, 3), LoopedAttention(deep.symmetric(0.1, 5, seed=0), loops=3)
    return MultiLayerLoss(task, 3), MultiLayerAttention(deep.symmetric(0.1, 5, seed=0, layers=3))


def prior_mean() -> tuple[Any, Any]:
    """Five heads with a trained guess, prior mean 2, d = 5, and their loss."""
    from flowsim import LinearRegression
    from flowsim.initialization import deep
    from flowsim.losses import MultiHeadLoss
    from flowsim.models import MultiHeadAttention

    d, heads = 5, 5
    task = LinearRegression(np.eye(d), 10, prior_mean=2 * np.ones(d))
    like = MultiHeadAttention(
        np.zeros((heads, d + 1)), np.zeros((heads, d + 1, d + 1)), w=np.ones(d), bias=0.0, trainable=True
    )
    start = deep.heads(0.1, like, 0)
    return MultiHeadLoss(task, start), start


FLOWS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "4 heads, merged, d = 4, scale 1e-3": lambda: merged(4, 4, 1e-3),
    "all weights random, d = 4, condition 10": lambda: all_weights(4, 10.0, 0.1),
    "all weights random, d = 12, condition 100, scale .01": lambda: all_weights(12, 100.0, 0.01),
    "looped, L = 3, d = 5": lambda: layers("looped"),
    "3 layers, d = 5": lambda: layers("layers"),
    "5 heads with prior mean 2, d = 5": prior_mean,
    "4 heads, separate, d = 4, scale 1e-6": lambda: separate(4, 4, 1e-6),
    "8 heads, separate, d = 8, scale 1e-3": lambda: separate(8, 8, 1e-3),
}
LARGE: dict[str, Callable[[], tuple[Any, Any]]] = {
    "8 heads, merged, d = 8, scale 1e-3": lambda: merged(8, 8, 1e-3),
    "diagonal network of 300 features": lambda: diagonal(300, 100),
    "8 heads, merged, d = 11, scale 1e-3": lambda: merged(8, 11, 1e-3),
    "8 heads, merged, d = 15, scale 1e-3": lambda: merged(8, 15, 1e-3),
    "3 linear layers of width 30": lambda: linear_layers(30, 3),
    "one head, merged, d = 100": lambda: attention(100),
}
MODELS: dict[str, Callable[[float, int], tuple[Any, Any]]] = {
    "two layers": lambda scale, seed: factors(2, scale, seed),
    "three factors": lambda scale, seed: factors(3, scale, seed),
    "4 heads, merged": lambda scale, seed: merged(4, 4, scale, seed),
    "4 heads, separate": lambda scale, seed: separate(4, 4, scale, seed),
}


def beside(scale: float) -> tuple[Any, Any, list[float], Callable[[Any, int], float]]:
    """A weight that is not small beside a tiny one, w' = w (1 - w^2): the loss, the start, the time at which the tiny
    one is 1/2, and how late it is by the model then.
    """
    from flowsim import FunctionLoss

    loss = FunctionLoss(lambda m: (m.w[0] - 1) ** 2 / 2 + (m.w[1] ** 2 - 1) ** 2 / 4, minimum=0.0)
    logit = lambda x: float(np.log(x**2) - np.log1p(-(x**2))) / 2
    start = Factors(jax.numpy.asarray([0.0, scale]))
    return loss, start, [logit(0.5) - logit(scale)], lambda m, i: logit(0.5) - logit(float(m.w[1]))


def pairs(*strengths: float) -> Callable[[float], tuple[Any, Any, list[float], Callable[[Any, int], float]]]:
    """The same of networks of two layers from a = b, of which x = a b has x' = 2 x (s - x): when each is half of s."""
    from flowsim import FunctionLoss

    s = np.asarray(strengths)

    def made(scale: float):
        loss = FunctionLoss(lambda m: jax.numpy.sum((m.a * m.b - s) ** 2) / 2, minimum=0.0)
        full = jax.numpy.full(s.size, scale)
        times = [float((np.log(q - scale**2) - 2 * np.log(scale)) / (2 * q)) for q in s]

        def lateness(model: Any, i: int) -> float:
            x = float(model.a[i] * model.b[i])
            return float((np.log(s[i] - x) - np.log(x)) / (2 * s[i]))

        return loss, Pairs(full, full), times, lateness

    return made


def half_of_three_factors(scale: float) -> float:
    """How far off, relative, is the time at which half of the excess of three equal factors is lost, where x' = x^2
    (1 - x^3): at about 1/scale, while the drop is as short at every scale.
    """
    import flowsim
    from flowsim.flow.solvers.summary import crossing

    run = flowsim.gradient_flow(product_loss(), Factors(jax.numpy.full(3, scale)))
    time = lambda x: -1 / x - np.log1p(-x) / 3 + np.log(x * x + x + 1) / 6 - np.arctan((2 * x + 1) / 3**0.5) / 3**0.5
    t = time((1 - 0.5**0.5 * (1 - scale**3)) ** (1 / 3)) - time(scale)
    found = float(crossing(run.t, run.excess, run.grad_norm_sq, run.excess[0] / 2))
    return abs(found / t - 1) if run.status.finished else np.inf


class _Peers:
    """The field of a flow and its Jacobian, compiled, for solvers that call them from Python."""

    def __init__(self, loss: Any, start: Any):
        from jax.flatten_util import ravel_pytree

        from flowsim.flow.systems import loss_system

        system = loss_system(loss, start)
        y, unravel = ravel_pytree(system.encode(start))
        slope = lambda y: ravel_pytree(system.field(unravel(y)))[0]
        self.start, self.field, self.jacobian = np.asarray(y), jax.jit(slope), jax.jit(jax.jacfwd(slope))
        jax.block_until_ready((self.field(y), self.jacobian(y)))  # compiled

    def scipy(self, method: str, t1: float, rtol: float, at: np.ndarray | None = None) -> np.ndarray:
        """The weights at the end, or at some times in rows, by a solver of scipy."""
        from scipy.integrate import solve_ivp

        found = solve_ivp(
            lambda t, y: np.asarray(self.field(y)),
            (0, t1),
            self.start,
            method=method,
            jac=lambda t, y: np.asarray(self.jacobian(y)),
            rtol=rtol,
            atol=rtol * np.max(np.abs(self.start)),
            t_eval=[t1] if at is None else at,
        )
        return found.y.T[-1] if at is None else found.y.T

    def cvode(self, t1: float, rtol: float) -> np.ndarray:
        """The weights at the end by CVODE."""
        return cvode(lambda t, y: self.field(y), self.start, t1, rtol, self.jacobian).y[-1]


def measure_flows(quick: bool) -> list[Measurement]:
    """Each flow beside its peers, at equal true error."""
    import flowsim

    found, ratios, at_equal = [], [], None
    spell = 0.3 if quick else 2.0
    for name, make in list(FLOWS.items())[:: 7 if quick else 1]:
        loss, start = make()
        begin = time.perf_counter()
        whole = flowsim.gradient_flow(loss, start)
        first_call = time.perf_counter() - begin
        t1, peers = float(whole.t[-1]), _Peers(loss, start)
        reference = peers.cvode(t1, 1e-12)
        runs = {
            "LSODA": lambda peers=peers, t1=t1: peers.scipy("LSODA", t1, 1e-9),
            "BDF": lambda peers=peers, t1=t1: peers.scipy("BDF", t1, 1e-9),
            "CVODE": lambda peers=peers, t1=t1: peers.cvode(t1, 1e-9),
        }
        theirs = {}
        for peer, run in runs.items():
            run()
            seconds, end = best_of(run, spell)
            theirs[peer] = (seconds, float(np.max(np.abs(end - reference))))
        best = min(theirs, key=lambda peer: theirs[peer][0])
        for rtol in RTOLS:
            flow = lambda loss=loss, start=start, t1=t1, rtol=rtol: flowsim.gradient_flow(loss, start, t1=t1, rtol=rtol)
            flow()  # to compile
            seconds, run = best_of(flow, spell)
            end = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(eqx.filter(run.end, eqx.is_array))])
            error = float(np.max(np.abs(end - reference)))
            at_equal = (seconds, error, rtol)
            if error <= theirs[best][1]:
                break
        assert at_equal is not None
        seconds, error, rtol = at_equal
        ratios.append(theirs[best][0] / seconds)
        beside = ", ".join(f"{peer} {1e3 * s:.0f} ms ({e:.0e})" for peer, (s, e) in theirs.items())
        note = f"flowsim {1e3 * seconds:.1f} ms ({error:.0e}, rtol {rtol:.0e}), first call {first_call:.1f} s; {beside}"
        what = f"{name} ({peers.start.size} weights), best peer over flowsim"
        found.append(Measurement(what, ratios[-1], "times", "at least", 1.0, note))
    mean = float(np.exp(np.mean(np.log(ratios))))
    return [*found, Measurement("geometric mean", mean, "times", "at least", 2.0)]


def measure_large(quick: bool) -> list[Measurement]:
    """Flows of many weights beside the peers that form no Hessian."""
    return measure_sizes(dict(list(LARGE.items())[:: 5 if quick else 1]))


def measure_sweep(quick: bool) -> list[Measurement]:
    """Many starts like that of each flow in lockstep, as a sweep integrates them, beside CVODE's cost for that one."""
    import flowsim
    from flowsim.experiments.sweep import any_loss
    from flowsim.flow.solvers.summary import STATUSES

    found, ratios, rng = [], [], np.random.default_rng(0)
    for name, make in list(FLOWS.items())[:: 7 if quick else 1]:
        loss, start = make()
        lanes = any_loss.most_lanes()
        groups = [_lanes_like(loss, start, lanes, rng) for _ in range(1 if quick else SWEPT // lanes)]
        run = lambda groups=groups: any_loss.at_once(
            lambda given: jax.block_until_ready(any_loss.integrate(*given)), groups
        )
        begin = time.perf_counter()
        run()
        first_call = time.perf_counter() - begin
        seconds, found_there = best_of(run, 0.3 if quick else 2.0)
        seconds /= lanes * len(groups)
        codes = np.concatenate([np.asarray(summary.status) for summary, *_ in found_there])
        told = sum(code >= 0 and STATUSES[code].finished for code in codes)
        t1, peers = float(flowsim.gradient_flow(loss, start).t[-1]), _Peers(loss, start)
        theirs, _ = best_of(lambda peers=peers, t1=t1: peers.cvode(t1, 1e-9), 0.3 if quick else 2.0)
        ratios.append(theirs / seconds)
        note = f"flowsim {1e3 * seconds:.2f} ms, CVODE {1e3 * theirs:.0f} ms; {codes.size} flows, "
        note += f"{told} of them finished, first call {first_call:.0f} s"
        found.append(Measurement(f"{name}, CVODE over a flow in lockstep", ratios[-1], "times", "at least", 20.0, note))
    mean = float(np.exp(np.mean(np.log(ratios))))
    return [*found, Measurement("geometric mean in lockstep", mean, "times", "at least", 20.0)]


def _lanes_like(loss: Any, start: Any, lanes: int, rng: np.random.Generator) -> tuple[Any, Any, Any]:
    """What `any_loss.integrate` takes of random starts like one."""
    from flowsim.flow.solvers.summary import Ends

    size = lambda leaf: np.sqrt(np.mean(np.square(leaf)))
    draw = lambda leaf: jax.numpy.asarray(size(leaf) * rng.standard_normal((lanes, *leaf.shape)))
    starts = jax.tree.map(lambda leaf: draw(leaf) if eqx.is_inexact_array(leaf) else leaf, start)
    stack = lambda leaf: jax.numpy.stack([leaf] * lanes) if eqx.is_array(leaf) else leaf
    losses = jax.tree.map(stack, loss)
    return losses, starts, Ends(*[jax.numpy.full(lanes, number) for number in (np.inf, 0.0, 1e-12, 1e-10, SWEEP_RTOL)])


def measure_starts(quick: bool) -> list[Measurement]:
    """Random starts at every scale."""
    import flowsim

    found = []
    count, checked = (3, 1) if quick else (STARTS, 2)
    for name, make in MODELS.items():
        failed, late, begin = [], 0.0, time.perf_counter()
        flows = 0
        for scale in SCALES[:: 7 if quick else 1]:
            for seed in range(count):
                loss, start = make(scale, seed)
                run = flowsim.gradient_flow(loss, start)
                flows += 1
                if not (run.status.finished and run.excess[-1] <= 1e-9 * run.excess[0]):
                    failed.append(f"scale {scale:g}, seed {seed}: {run.status}")
                elif seed < checked:
                    late = max(late, _lateness(loss, start, run))
        seconds = (time.perf_counter() - begin) / flows
        note = f"{flows} starts, {seconds:.2f} s each with all that is around it; " + "; ".join(failed[:3])
        found.append(Measurement(f"{name}, starts that do not reach the minimum", len(failed), "", "at most", 0, note))
        found.append(Measurement(f"{name}, time of the half excess, off by", late, "", "at most", 1e-3))
    return found


def measure_scales(quick: bool) -> list[Measurement]:
    """Weights many decades apart: the error of the times at which they leave their saddles, by scale."""
    import flowsim

    def leaving(make: Callable[[float], Any], scale: float) -> float:
        loss, start, times, lateness = make(scale)
        run = flowsim.gradient_flow(loss, start, times=times)
        late = [abs(lateness(run.at(t), i)) / t if t <= run.t[-1] else np.inf for i, t in enumerate(times)]
        return max(late) if run.status.finished else np.inf

    found = []
    problems = {
        "a tiny weight beside 1": functools.partial(leaving, beside),
        "one of two layers": functools.partial(leaving, pairs(1.0)),
        "three of two layers": functools.partial(leaving, pairs(*STRENGTHS)),
        "three factors": half_of_three_factors,
    }
    for name, error in problems.items():
        scales = [scale for scale in FURTHER_SCALES if name != "three factors" or scale >= LEAST_OF_THREE]
        errors = {scale: error(scale) for scale in scales[:: len(scales) - 1 if quick else 1]}
        note = ", ".join(f"{scale:.0e}: {error:.0e}" for scale, error in errors.items())
        found.append(Measurement(f"{name}, time of leaving, off by", max(errors.values()), "", "at most", 1e-6, note))
    return found


def _lateness(loss: Any, start: Any, run: Any) -> float:
    """How far off, relative, is the time at which half of the excess is lost."""
    from jax.flatten_util import ravel_pytree

    import flowsim

    row = int(np.argmax(run.excess <= run.excess[0] / 2))
    times = np.linspace(run.t[row - 1], 1.01 * run.t[row], 402)[1:]
    ours = flowsim.gradient_flow(loss, start, times=times, points_per_decade=0)
    _, unravel = ravel_pytree(start)
    states = _Peers(loss, start).scipy("LSODA", times[-1], 1e-11, times)
    theirs = np.asarray(jax.lax.map(lambda y: loss.excess(unravel(y)), jax.numpy.asarray(states)))
    half = lambda excess: float(np.interp(-run.excess[0] / 2, -excess, times))
    return abs(half(np.asarray(ours.excess)[1:]) / half(theirs) - 1)


def measure_memory(quick: bool) -> list[Measurement]:
    """A flow of two thousand weights."""
    import flowsim

    loss, start = merged(8, 6 if quick else 15, 1e-3)
    begin = time.perf_counter()
    run = flowsim.gradient_flow(loss, start, rtol=1e-7)
    note = f"{time.perf_counter() - begin:.0f} s, {run}".replace("\n", ";")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return [Measurement("a flow of 1,808 weights, peak memory", peak, "GiB", "at most", 2.0, note)]


def main(quick: bool = False) -> list[Measurement]:
    """Measure, print and, unless quick, write ``results/general_flows.md`` and ``.json``."""
    steps = (measure_flows, measure_large, measure_sweep, measure_starts, measure_scales, measure_memory)
    return measure(steps, quick, "general_flows", "Flows without an arrowhead", __doc__ or "")


if __name__ == "__main__":
    main()
