"""Starts that rest, in truth or in rounding alone.

- rounding-rest: the gradient is zero in double precision and not in truth, as that of (tanh x - 1/2)^2 at x = 20. The
  flow moves, if slowly, and how long it takes to another place is an integral;
- resting: the start is a minimum, a saddle or a maximum exactly, or some of its weights are zero and stay so.
"""

import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.integrate
from jaxtyping import Array

import flowsim
from benchmarks.verdict_families.base import HAS_LIMITS, LITTLE, RESOLVED, Exact, Point, Problem, Stated, said, way
from benchmarks.verdict_families.sides import decays
from flowsim import FunctionLoss
from flowsim.claims.claim import at_least, at_most, equal

_LARGE = 2.0**54  # beside which a number below 1 is lost


@dataclasses.dataclass(frozen=True)
class Lost:
    """A function whose gradient is lost in rounding at a start.

    f: as a user writes it; speed: y -> -y', as it is; starts: from where to where; limit: of y; lowest: a value that
    the flow takes its time to.
    """

    f: Callable[[Array], Array]
    speed: Callable[[float], float]
    starts: tuple[float, float]
    limit: float
    lowest: Callable[[float], float]


LOST = {
    "tanh": Lost(
        lambda y: (jnp.tanh(y) - 0.5) ** 2 / 2,
        lambda y: (np.tanh(y) - 0.5) / np.cosh(y) ** 2,
        (15.0, 40.0),
        float(np.arctanh(0.5)),
        lambda y: max(y - 8.0, 1.0),
    ),
    "sigmoid": Lost(
        lambda y: (jax.nn.sigmoid(y) - 0.25) ** 2 / 2,
        lambda y: (1 / (1 + np.exp(-y)) - 0.25) / (2 + np.exp(y) + np.exp(-y)),
        (30.0, 60.0),
        float(-np.log(3.0)),
        lambda y: y - 16.0,
    ),
    "lost beside a large number": Lost(
        lambda y: ((y + _LARGE) - _LARGE) ** 2 / 2, lambda y: y, (0.01, 0.9), 0.0, lambda y: y * 1e-3
    ),
    "logarithm": Lost(
        lambda y: jnp.log(1 + y) ** 2 / 2,
        lambda y: np.log1p(y) / (1 + y),
        (1e-20, 1e-16),
        0.0,
        lambda y: y * 1e-3,
    ),
    "root": Lost(
        lambda y: (jnp.sqrt(1 + y) - 1) ** 2 / 2,
        # sqrt(1 + y) - 1 = y / (sqrt(1 + y) + 1)
        lambda y: y / (np.sqrt(1 + y) + 1) / (2 * np.sqrt(1 + y)),
        (1e-20, 1e-16),
        0.0,
        lambda y: y * 1e-3,
    ),
    "square of a cosine": Lost(
        lambda y: (1 - jnp.cos(y)) ** 2 / 2,
        lambda y: 2 * np.sin(y / 2) ** 2 * np.sin(y),
        (1e-10, 1e-8),
        0.0,
        lambda y: y * 1e-2,
    ),
}


class Scaled(eqx.Module):
    """A f(x)."""

    f: Callable = eqx.field(static=True)
    amplitude: Array

    def __call__(self, model: Point) -> Array:
        return self.amplitude * self.f(model.x[0])


def passage(lost: Lost, begin: float, end: float) -> float:
    """How long y takes from one place to another below it, at amplitude 1."""
    # Most of the time passes at the start where the speed grows on the way, and at the end where it falls.
    places = begin - (begin - end) * np.append(0.0, np.geomspace(1e-6, 1.0, 13))
    if end < 0.1 * begin:
        places = np.geomspace(begin, end, 13)
    pairs = zip(places[1:], places, strict=False)
    parts = [scipy.integrate.quad(lambda y: 1 / lost.speed(y), *p, epsabs=0.0, epsrel=1e-10)[0] for p in pairs]
    return float(sum(parts))


def _stays_above(flow, number):
    return at_least(flow.models.x[:, 0], number)


def _stays_below(flow, number):
    return at_most(flow.models.x[:, 0], number)


def _stays_slow(flow, number):
    return at_most(flow.grad_norm_sq, number)


def _first(model: Point) -> Array:
    return model.x[0]


def _ends_at(flow, number):
    return equal(flow.end.x[:1], number[0], number[1])


def _ends_at_with_the_way(flow, number):
    return equal(flow.end.x[:1], number[0], number[1], allowance=flow.way_to_go)


def _has_the_limit(flow, number):
    value, allowance = flowsim.limit(flow, _first)  # pyright: ignore[reportAttributeAccessIssue]
    return equal(value, number[0], number[1], allowance=allowance)


_LIMITS = (_ends_at_with_the_way,) + ((_has_the_limit,) if HAS_LIMITS else ())


def rounding_rest(rng: np.random.Generator) -> Problem:
    """A number that falls, where rounding says that it rests."""
    lost = LOST[str(rng.choice([*LOST]))]
    y0 = float(np.exp(rng.uniform(*np.log(lost.starts))))
    rate = 10 ** rng.uniform(-3, 3)
    loss = FunctionLoss(Scaled(lost.f, jnp.asarray(rate)), minimum=0.0 if rng.random() < 0.5 else None)
    how = way(rng, 1 / rate, longest=1e14)

    def statements(flow) -> list[Stated]:
        say = lambda name, compare, number, fails, **more: said(name, compare, number, fails, expected=False, **more)
        c = y0 - (y0 - lost.lowest(y0)) * rng.uniform(0.01, 1.0)
        passes = passage(lost, y0, c) / rate
        size = max(abs(lost.limit), y0)
        found = [
            say("above", _stays_above, c, passes),
            say("above", _stays_above, lost.limit - LITTLE * y0, None),
            say("below", _stays_below, y0 * (1 + LITTLE), None),
        ]
        # By the end of a run that was cut somebody may mean where it was.
        found += [] if how else [say("limit", _ends_at, [lost.limit, size], None, identity=True)]
        for compare in _LIMITS:
            found.append(say("limit", compare, [lost.limit, size], None, identity=True))
            found.append(say("limit", compare, [y0, size], 0.0, identity=True))
        # In the tails of tanh and of the sigmoid the gradient grows on the way.
        if lost.speed(c) > lost.speed(y0):
            found.append(say("slow", _stays_slow, (rate * lost.speed(c)) ** 2, passes))
        else:
            found.append(say("slow", _stays_slow, (rate * lost.speed(y0)) ** 2 * (1 + LITTLE), None))
        return found

    return Problem(loss, Point(jnp.asarray([y0])), how, statements, limit=Point(jnp.asarray([lost.limit])))


def _bowl(x: Array) -> Array:
    return 0.5 * jnp.sum(x**2)


def _quartic(x: Array) -> Array:
    return jnp.sum(x**4) / 4


def _saddle(x: Array) -> Array:
    return 0.5 * x[0] ** 2 + (x[1] ** 2 - 1) ** 2 / 4


def _product(x: Array) -> Array:
    return 0.5 * (x[0] * x[1] - 1) ** 2


def _top(x: Array) -> Array:
    return jnp.sum(1 + jnp.cos(x))


class Whole(eqx.Module):
    """A f(x) of all weights."""

    f: Callable = eqx.field(static=True)
    amplitude: Array

    def __call__(self, model: Point) -> Array:
        return self.amplitude * self.f(model.x)


def _dominates_throughout(flow, number):
    return at_least(flow.grad_norm_sq, number * flow.excess)


def _loses_at_least(flow, number):
    return at_least(flow.loss, number)


def _second_is(flow, number):
    return equal(flow.models.x[:, 1], number[0], number[1])


def _second_above(flow, number):
    return at_least(flow.models.x[:, 1], number)


def _second_below(flow, number):
    return at_most(flow.models.x[:, 1], number)


def resting(rng: np.random.Generator) -> Problem:
    """A start that stays where it is, as a whole or in its second weight."""
    amplitude = 10 ** rng.uniform(-6, 6)
    power = 2.0 ** int(rng.integers(-6, 7))
    # The function, the start, and its height above the minimum 0.
    kinds: list[tuple[Callable, list[float], float]] = [
        (_bowl, [0.0, 0.0], 0.0),
        (_quartic, [0.0, 0.0], 0.0),
        (_saddle, [0.0, float(rng.choice([-1, 1]))], 0.0),
        (_saddle, [0.0, 0.0], 0.25),
        (_product, [power, 1 / power], 0.0),
        (_product, [0.0, 0.0], 0.5),
        (_top, [0.0, 0.0], 4.0),
        (_bowl, [float(rng.uniform(0.5, 2.0)), 0.0], np.nan),
        (_saddle, [float(rng.uniform(0.5, 2.0)), 0.0], np.nan),
    ]
    f, x, height = kinds[rng.integers(len(kinds))]
    loss = FunctionLoss(Whole(f, jnp.asarray(amplitude)), minimum=0.0 if rng.random() < 0.7 else None)
    known = bool(jnp.isfinite(loss.minimum))
    how = way(rng, 1 / amplitude)
    size = max(np.abs(x)) or 1.0

    def statements(flow) -> list[Stated]:
        second = x[1]
        found = [
            said("second", _second_is, [second, size], None, identity=True),
            said("second", _second_is, [second + RESOLVED * size, size], 0.0, identity=True),
            said("second above", _second_above, second, None),
            said("second above", _second_above, second + LITTLE * size, 0.0),
            said("second below", _second_below, second, None),
            said("second below", _second_below, second - LITTLE * size, 0.0),
        ]
        if not np.isfinite(height):
            return found
        for compare in (_ends_at, *_LIMITS):
            found.append(said("limit", compare, [x[0] + RESOLVED * size, size], 0.0, identity=True))
            found.append(said("limit", compare, [x[0], size], None, identity=True))
        if known:
            low = height == 0
            found.append(said("dominance", _dominates_throughout, amplitude, None if low else 0.0))
            found.append(said("dominance", _dominates_throughout, 0.0, None))
            # Above a minimum nothing decays; at it, 0 <= 0.
            found.append(said("decay", decays, 1.0 / max(float(flow.t[-1]), 1.0), None if low else 0.0))
        lost = amplitude * (height if np.isfinite(height) else 0.0)
        found.append(said("loses", _loses_at_least, lost * (1 - LITTLE), None))
        if lost > 0:
            found.append(said("loses", _loses_at_least, lost * (1 + LITTLE), 0.0))
        return found

    def exact(t):
        return Exact(Point(jnp.asarray(np.repeat(np.asarray(x)[None], t.size, axis=0))))

    start = Point(jnp.asarray(x))
    whole = np.isfinite(height)
    return Problem(loss, start, how, statements, exact if whole else None, start if whole else None)
