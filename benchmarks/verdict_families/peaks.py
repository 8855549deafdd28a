"""Bounds just above and just below what is reached for a moment alone, between the outputs of a run that has few.

With the product q of the weights of a row, |grad L|^2 is a function of q alone in all of these:

- n equal factors: n (1 - q)^2 q^(2 - 2/n), which is largest at q = (n - 1)/(2n - 1);
- two factors with u^2 - v^2 = c, on the saddle's side or from u = 0: (1 - q)^2 sqrt(c^2 + 4 q^2);
- two rows of equal factors with targets m: sum_i 2 q_i (m_i - q_i)^2, where each q_i is logistic;
- the valley u = v^2 of (u - v^2)^2 / 2, where v e^(2u) is conserved: r^2 (1 + 4 v^2) with r = u - v^2;
- a weight A (e^(-at) - e^(-bt)).
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy.integrate
import scipy.optimize
from jaxtyping import Array

from benchmarks.verdict_families.base import LITTLE, Exact, Point, Problem, Stated, few_times, said
from benchmarks.verdict_families.decays import Turned
from benchmarks.verdict_families.products import Factors, products
from flowsim import FunctionLoss
from flowsim.claims.claim import at_most


def _gradient_below(flow, number):
    return at_most(flow.grad_norm_sq, number)


def _first_below(flow, number):
    return at_most(flow.models.x[:, 0], number)


def _way(rng: np.random.Generator, peak: float) -> dict[str, Any]:
    """A run with few outputs, mostly past the peak, and with none next to it where they are asked for."""
    kind = rng.choice(["itself", "sparse", "t1", "before"])
    if kind == "itself":
        return {}
    if kind == "before":
        return {"t1": peak * rng.uniform(0.1, 0.95)}
    if kind == "t1":
        return {"t1": peak * 10 ** rng.uniform(0.3, 2), "points_per_decade": 0}
    times = [t for t in few_times(rng, peak, 30.0) if not 0.7 < t / peak < 1.4]
    return {"times": times or [2 * peak], "points_per_decade": 0}


def _about(compare: Callable, highest: float, peak: float, seen: bool = True) -> Callable[[Any], list[Stated]]:
    return lambda flow: [
        said("peak", compare, highest * (1 + LITTLE), None, expected=seen),
        said("peak", compare, highest * (1 - LITTLE), peak, expected=seen),
    ]


def _largest(function: Callable[[Any], Any], low: float, high: float) -> tuple[float, float]:
    """Where a function of one number is largest between two, and its value."""
    grid = np.concatenate([np.linspace(low, high, 2001), low + (high - low) * np.geomspace(1e-9, 1.0, 2001)])
    grid = np.unique(grid)
    place = int(np.argmax(function(grid)))
    bounds = float(grid[max(place - 1, 0)]), float(grid[min(place + 1, grid.size - 1)])
    found = scipy.optimize.fminbound(lambda x: -function(x), *bounds, xtol=1e-12 * (bounds[1] - bounds[0]))
    best = max([float(grid[place]), np.asarray(found).item()], key=lambda x: float(function(x)))
    return best, float(function(best))


def _time(speed: Callable[[float], float], begin: float, end: float) -> float:
    """How long something takes from one value to another at a speed that its value sets; of few values, many scales."""
    if begin == end:
        return 0.0
    parts = np.linspace(begin, end, 9)
    if begin > 0 and end > 4 * begin:
        parts = np.geomspace(begin, end, 9)
    inverse = lambda x: 1 / speed(x)
    found = 0.0
    for one, next_one in zip(parts, parts[1:], strict=False):
        found += scipy.integrate.quad(inverse, one, next_one, epsabs=0.0, epsrel=1e-10)[0]
    return float(found)


def peaks(rng: np.random.Generator) -> Problem:
    """A peak of the gradient, or of a weight."""
    return (_equal_factors, _two_factors, _two_rows, _valley, _hump)[rng.integers(5)](rng)


def _equal_factors(rng: np.random.Generator) -> Problem:
    """w' = (1 - w^n) w^(n - 1)."""
    n = int(rng.choice([2, 3]))
    w0 = 10 ** rng.uniform(-6 if n == 2 else -2.5, -0.5)
    top = (n - 1) / (2 * n - 1)
    highest = n * (1 - top) ** 2 * top ** (2 - 2 / n)
    peak = _time(lambda w: (1 - w**n) * w ** (n - 1), w0, top ** (1 / n))
    loss = FunctionLoss(products, minimum=0.0 if rng.random() < 0.5 else None)
    start = Factors(jnp.full((1, n), w0))
    ends = Factors(jnp.ones((1, n)))
    return Problem(loss, start, _way(rng, peak), _about(_gradient_below, highest, peak), limit=ends)


def _two_factors(rng: np.random.Generator) -> Problem:
    """q' = (1 - q) sqrt(c^2 + 4 q^2)."""
    v = 10 ** rng.uniform(-1.5, 0.0)
    u = 0.0 if rng.random() < 0.3 else v * rng.uniform(-0.9, 0.9)
    c, q0 = u**2 - v**2, u * v
    squares = lambda q: np.sqrt(c**2 + 4 * q**2)
    top, highest = _largest(lambda q: (1 - q) ** 2 * squares(q), q0, 1 - 1e-9)
    peak = _time(lambda q: (1 - q) * squares(q), q0, top)
    loss = FunctionLoss(products, minimum=0.0 if rng.random() < 0.5 else None)
    ends = np.sqrt((squares(1.0) + np.array([c, -c])) / 2)
    start, timescale = Factors(jnp.asarray([[u, v]])), peak if peak > 0 else 1.0
    return Problem(
        loss, start, _way(rng, timescale), _about(_gradient_below, highest, peak), limit=Factors(jnp.asarray([ends]))
    )


class Targets(eqx.Module):
    """(1/2) sum_i (prod_j w_ij - m_i)^2."""

    targets: Array

    def __call__(self, model: Factors) -> Array:
        return 0.5 * jnp.sum((jnp.prod(model.w, axis=1) - self.targets) ** 2)


def _two_rows(rng: np.random.Generator) -> Problem:
    """q_i = m_i / (1 + (m_i/q_i(0) - 1) e^(-2 m_i t))."""
    m = 10 ** rng.uniform(-1, 1) * np.array([1.0, 10 ** rng.uniform(-1.5, 0.0)])
    w = np.sqrt(m) * 10 ** rng.uniform(-4, -0.5, 2)

    def q(t):
        return m / (1 + (m / w**2 - 1) * np.exp(-2 * m * np.asarray(t, dtype=float)[..., None]))

    gradient = lambda t: np.sum(2 * q(t) * (m - q(t)) ** 2, axis=-1)
    # Of one row alone the peak is at q = m/3.
    each = np.log((m / w**2 - 1) / 2) / (2 * m)
    around = [(max(0.0, t - 6 / rate), t + 6 / rate) for t, rate in zip(each, m, strict=True)]
    peak, highest = max((_largest(gradient, *one) for one in around), key=lambda found: found[1])
    loss = FunctionLoss(Targets(jnp.asarray(m)), minimum=0.0 if rng.random() < 0.5 else None)

    def exact(t):
        return Exact(Factors(jnp.asarray(np.repeat(np.sqrt(q(t))[..., None], 2, axis=-1))))

    ends = Factors(jnp.asarray(np.repeat(np.sqrt(m)[:, None], 2, axis=1)))
    start = Factors(jnp.asarray(np.repeat(w[:, None], 2, axis=1)))
    return Problem(loss, start, _way(rng, peak), _about(_gradient_below, highest, peak), exact, ends)


class Valley(eqx.Module):
    """u, v: numbers."""

    u: Array
    v: Array


def _across(model: Valley) -> Array:
    return 0.5 * (model.u - model.v**2) ** 2


def _valley(rng: np.random.Generator) -> Problem:
    """u' = -r and v' = 2 v r with r = u - v^2 > 0: v grows as u falls, and r does not fall as fast."""
    u0 = rng.uniform(3.0, 8.0)
    v0 = 10 ** rng.uniform(-3, -0.5)
    v = lambda u: v0 * np.exp(2 * (u0 - u))
    last = float(scipy.optimize.root_scalar(lambda u: u - v(u) ** 2, bracket=(0.0, u0), xtol=1e-15).root)
    gradient = lambda u: (u - v(u) ** 2) ** 2 * (1 + 4 * v(u) ** 2)
    top, highest = _largest(gradient, last, u0)
    peak = _time(lambda x: u0 - x - v(u0 - x) ** 2, 0.0, u0 - top)
    loss = FunctionLoss(_across, minimum=0.0 if rng.random() < 0.5 else None)
    start, end = (Valley(jnp.asarray(u), jnp.asarray(float(v(u)))) for u in (u0, last))
    timescale = peak if peak > 0 else 1.0
    return Problem(loss, start, _way(rng, timescale), _about(_gradient_below, highest, peak), limit=end)


def _hump(rng: np.random.Generator) -> Problem:
    """The first of two weights at an angle of 45 degrees to the axes of a parabola."""
    s, rate, ratio = 10 ** rng.uniform(-8, 6), 10 ** rng.uniform(-3, 3), 10 ** rng.uniform(0.1, 5)
    a, b = rate, rate * ratio
    peak = float(np.log(ratio) / (b - a))
    highest = s * (np.exp(-a * peak) - np.exp(-b * peak))
    hessian = np.array([[a + b, a - b], [a - b, a + b]]) / 2
    loss = FunctionLoss(Turned(jnp.asarray(hessian)), minimum=0.0 if rng.random() < 0.5 else None)

    def exact(t):
        slow, fast = s * np.exp(-a * t), s * np.exp(-b * t)
        return Exact(Point(jnp.asarray(np.stack([slow - fast, slow + fast], axis=1))))

    start = Point(jnp.asarray([0.0, 2 * s]))
    return Problem(loss, start, _way(rng, peak), _about(_first_below, highest, peak), exact, Point(jnp.zeros(2)))
