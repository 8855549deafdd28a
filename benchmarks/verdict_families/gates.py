"""What changes its formula, or speaks of all times together, where no time of a run shows it.

- gates: a weight that another one follows, once that has passed a threshold: the loss is another formula from there on;
- together: statements about all times so far, about all times, and about one time for all others.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.integrate
from jax.flatten_util import ravel_pytree
from jax.scipy.special import erf
from jaxtyping import Array

from benchmarks.verdict_families import curves
from benchmarks.verdict_families.base import LITTLE, RESOLVED, TINY, Problem, Stated, said, way
from benchmarks.verdict_families.curves import level
from flowsim import FunctionLoss
from flowsim.claims.claim import at_least, at_most, equal

_WIDTH = 0.04  # of a gate that opens gradually, beside what the weight has to go to it


class Follower(eqx.Module):
    """a, b: numbers."""

    a: Array
    b: Array


class Follows(eqx.Module):
    """k (a - 2)^2/2 + q (b - h g(a - 1))^2/2, with a gate g that is zero below 0."""

    gate: str = eqx.field(static=True)
    k: Array
    q: Array
    h: Array

    def __call__(self, model: Follower) -> Array:
        behind = model.b - self.h * GATES[self.gate](model.a - 1)
        return self.k * (model.a - 2) ** 2 / 2 + self.q * behind**2 / 2


GATES = {
    "relu": jax.nn.relu,
    "maximum": lambda z: jnp.maximum(z, 0.0),
    "where": lambda z: jnp.where(z > 0, z, 0.0),
    "square": lambda z: jnp.where(z > 0, z**2, 0.0),
    "root": lambda z: (z + jnp.sqrt(z**2)) / 2,
    "power": lambda z: (z + (z**2) ** 0.5) / 2,
    "logarithm": lambda z: (z + jnp.exp(jnp.log(z**2) / 2)) / 2,
    "erf": lambda z: (1 + erf(z / _WIDTH)) / 2,
    "tanh": lambda z: (1 + jnp.tanh(z / _WIDTH)) / 2,
    "sign": lambda z: (1 + jnp.sign(z)) / 2,
    "floor": lambda z: jnp.maximum(jnp.floor(1 + z), 0.0),
    "angle": lambda z: jnp.arctan2(z, -1e3) / (2 * jnp.pi) + 0.5,
}


def _follower_below(flow, number):
    return at_most(flow.models.b, number, size=1.0)


def _follower_above(flow, number):
    return at_least(flow.models.b, number, size=1.0)


def _follower_is(flow, number):
    return equal(flow.models.b, number, 1.0)


def gates(rng: np.random.Generator) -> Problem:
    """a = 2 - (2 - a0) e^-kt until it is 1, and b = 0 until then."""
    gate = str(rng.choice(list(GATES)))
    k = 10 ** rng.uniform(-3, 3)
    function = Follows(gate, *(jnp.asarray(x) for x in (k, k * 10 ** rng.uniform(-0.5, 1.5), rng.uniform(0.5, 3.0))))
    a0 = rng.uniform(-1.0, 0.2)
    opens = float(np.log(2 - a0) / k)
    start = Follower(jnp.asarray(a0), jnp.asarray(0.0))
    ends = float(function.h * GATES[gate](jnp.asarray(1.0)))
    reached = _times(function, opens, [0.5 * ends, 0.9 * ends, RESOLVED])

    def statements(flow) -> list[Stated]:
        early = float(flow.t[-1]) < 0.9 * opens
        return [
            said("follower below", _follower_below, 0.5 * ends, reached[0], expected=early),
            said("follower below", _follower_below, 0.9 * ends, reached[1], expected=early),
            said("follower is zero", _follower_is, 0.0, reached[2], identity=True, expected=early),
            said("follower below", _follower_below, ends + LITTLE, None, expected=False),
            said("follower above", _follower_above, -LITTLE, None, expected=early),
        ]

    # Of the runs that end by themselves most see the gate: half of them end before it.
    how = {"t1": opens * rng.uniform(0.01, 0.99)} if rng.random() < 0.5 else way(rng, opens, longest=1e4)
    return Problem(FunctionLoss(function), start, how, statements)


def _times(function: Follows, opens: float, values: list[float]) -> list[float]:
    """By when b has come to values, to a hundredth of what has passed since the gate, by SciPy from just before it."""
    unravel = ravel_pytree(Follower(jnp.zeros(()), jnp.zeros(())))[1]
    field = lambda t, y: -np.asarray(ravel_pytree(_slope(function, unravel(jnp.asarray(y))))[0])
    k = float(function.k)
    begin = opens - 8 * _WIDTH / k
    times = opens + np.geomspace(1e-6, 60, 2000) / k
    found = scipy.integrate.solve_ivp(
        field,
        (begin, times[-1]),
        [2 - np.exp(8 * _WIDTH), 0.0],
        "LSODA",
        times,
        rtol=1e-11,
        atol=1e-13,
        max_step=0.1 / k,
    )
    return [float(times[np.argmax(found.y[1] >= value)]) for value in values]


_slope = eqx.filter_jit(lambda function, model: jax.grad(lambda one: function(one))(model))


def _so_far(flow, number):
    """The largest number so far."""
    return at_most(jax.lax.cummax(number[1] * level(flow.models)), number[0])


def _way_so_far(flow, number):
    """The length of the way so far."""
    steps = jnp.abs(jnp.diff(level(flow.models)))
    return at_most(jnp.append(0.0, jnp.cumsum(steps)), number[0], size=number[1])


def _whole_way(flow, number):
    return at_most(jnp.sum(jnp.abs(jnp.diff(level(flow.models))))[None], number[0], size=number[1])


def _largest(flow, number):
    return at_most(jnp.max(number[1] * level(flow.models))[None], number[0])


def _any_beyond(flow, number):
    beyond = jnp.any(number[1] * level(flow.models) > number[0])
    return at_most(beyond.astype(float)[None], 0.5)


def _backwards(flow, number):
    """The number, and what it is as long before the end."""
    x = number[1] * level(flow.models)
    return at_most(jnp.maximum(x, x[::-1]), number[0])


def _dissipated(flow, number):
    """The sum of |grad L|^2 from the left is no less than the loss that is lost where the gradient falls."""
    lost = jnp.append(0.0, jnp.cumsum(jnp.diff(flow.t) * flow.grad_norm_sq[:-1]))
    return at_most(lost, number[0], size=number[0])


def _given_a_time(time: float):
    """What is said of all times if the number is beyond another at one of them."""

    def compare(flow, number):
        there = number[2] * level(flow.at(time))
        return at_most(number[2] * level(flow.models), number[0], promised=there > number[1])

    return compare


def together(rng: np.random.Generator) -> Problem:
    """A monotone number, in statements about more than one time."""
    curve = curves.draw(rng, tuple(name for name in curves.SHAPES if name != "escape"))
    how = way(rng, curve.timescale, furthest=1e3, longest=1e6)
    x0, limit, sign = float(curve.level(0.0)), curve.limit, float(-curve.sign)  # which is 1 where the number rises
    size = abs(limit - x0)

    def statements(flow) -> list[Stated]:
        end = float(flow.t[-1])
        seen = float(curve.level(end))
        # Values before the end, after it, and beyond the limit.
        between = [x0 + (seen - x0) * rng.uniform(0.1, 0.9), seen + (limit - seen) * rng.uniform(0.1, 0.9)]
        never = limit + sign * LITTLE * max(limit, size)
        found = [
            said("largest so far", _so_far, [sign * never, sign], None, expected=False),
            said("backwards", _backwards, [sign * never, sign], None, expected=False),
            said("way so far", _way_so_far, [size * (1 + LITTLE), size], None, expected=False),
            said("whole way", _whole_way, [size * (1 + LITTLE), size], None, expected=False),
            said("largest", _largest, [sign * never, sign], None, expected=False),
            said("any beyond", _any_beyond, [sign * never, sign], None, expected=False),
        ]
        for value in between:
            if not np.isfinite(value) or abs(value - limit) < 1e-6 * size or abs(value - x0) < 1e-6 * size:
                continue
            passed = curve.time(value)
            say = lambda name, compare, number, fails: said(name, compare, number, fails, expected=False)
            found += [
                say("largest so far", _so_far, [sign * value, sign], passed),
                say("backwards", _backwards, [sign * value, sign], passed),
                say("way so far", _way_so_far, [abs(value - x0), size], passed),
                say("whole way", _whole_way, [abs(value - x0), size], 0.0),
                say("largest", _largest, [sign * value, sign], 0.0),
                say("any beyond", _any_beyond, [sign * value, sign], 0.0),
            ]
            lost = float(curve.excess(x0) - curve.excess(value))
            if curve.shape.slows and lost > TINY:
                found.append(say("dissipated", _dissipated, [lost], passed))
            time = 2.0 ** np.floor(np.log2(passed)) if passed > 0 else 0.0
            there = sign * float(curve.level(time))
            if time > 0 and abs(there) > TINY:
                compare, low = _given_a_time(float(time)), there - 1e-3 * abs(there)
                found.append(say("given a time", compare, [sign * value, low, sign], passed))
                found.append(say("given a time", compare, [sign * never, low, sign], None))
        return found

    return Problem(curve.loss, curve.start, how, statements, curve.exact, curve.end)
