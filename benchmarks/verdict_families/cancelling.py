"""Differences of large terms: in the loss near its minimum, and in what a claim compares.

- cancelling-loss: losses such as 1 - cos x or C + x^2/2, whose excess is small beside the terms that it is made of.
  |grad L|^2 / (L - min L) is monotone along each of these flows, and so is the rate of the decay until t, so that the
  sharp constants are those at the start and at the limit;
- cancelling-claim: a^2 - b^2, which a product of two factors conserves, beside numbers that differ from it by a few
  units in the last place (compared in rationals); x - b where b is large; terms that cancel whatever the flow does.
"""

from fractions import Fraction

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from benchmarks.verdict_families import curves
from benchmarks.verdict_families.base import LITTLE, RESOLVED, Point, Problem, Stated, first_time, said, way
from benchmarks.verdict_families.curves import SHAPES
from benchmarks.verdict_families.sides import decays, dominates
from flowsim import FunctionLoss
from flowsim.claims.claim import at_least, at_most, equal

_EPS = float(np.finfo(float).eps)
_CANCEL = tuple(name for name in SHAPES if name != "escape")


def _dominates_throughout(flow, number):
    return at_least(flow.grad_norm_sq, number * flow.excess)


def _is_dominated(flow, number):
    return at_most(flow.grad_norm_sq, number * flow.excess)


def _decays_no_faster(flow, number):
    bound = flow.excess[0] * jnp.exp(-number * flow.t)
    return at_least(flow.excess, bound, size=bound)


def cancelling_loss(rng: np.random.Generator) -> Problem:
    """A f((x - c)/s) + C, with C up to a million times A and c up to a million times s."""
    shape = SHAPES[str(rng.choice(_CANCEL))]
    y0 = float(np.exp(rng.uniform(*np.log(shape.starts))))
    s, rate = 10 ** rng.uniform(-4, 4), 10 ** rng.uniform(-3, 3)
    amplitude = rate * s**2
    offset = amplitude * 10 ** rng.uniform(0, 6) * rng.choice([0, 0, 1, -1])
    center = s * 10 ** rng.uniform(0, 6) * rng.choice([0, 0, 1, -1]) * (not shape.plane)
    curve = curves.scaled(rng, shape, y0, s, rate, knows=True, center=float(center), offset=float(offset))
    how = way(rng, curve.timescale)

    def ratio(y):
        excess = float(shape.excess(y))
        return rate * (float(shape.slope(y)) ** 2 / excess if excess > 0 else 2 * shape.curvature)

    def error(y):
        """Of the ratio, from the rounding of the excess and of x."""
        of_excess = (abs(offset) / amplitude + 1) / max(float(shape.excess(y)), 1e-300)
        return 8 * _EPS * (of_excess + (abs(center) / s + y) / max(abs(y - shape.limit), 1e-300))

    y0 = float(curve.y(0.0))
    first, last = ratio(y0), 2 * shape.curvature * rate

    def rate_until(t):
        return float(np.log(shape.excess(y0) / shape.excess(curve.y(t))) / t)

    def first_beyond(number, sign):
        """When the ratio first is below a number (sign 1), or above it (-1)."""
        if sign * (first - number) < 0:
            return 0.0
        if sign * (last - number) >= 0:
            return None
        return first_time(lambda t: sign * (ratio(curve.y(t)) - number) < 0, curve.timescale)

    def statements(flow) -> list[Stated]:
        # Later on y is at its limit to all digits.
        T = min(float(flow.t[-1]), 5 * curve.timescale / max(shape.curvature, 1.0))
        end = float(curve.y(float(flow.t[-1])))
        found = []
        for name, compares, sign in (
            ("gradient dominance", (dominates, _dominates_throughout), 1),
            ("bounded gradient", (_is_dominated,), -1),
        ):
            compare = compares[rng.integers(len(compares))]
            sharp = (min(first, last) if sign > 0 else max(first, last), ratio(curve.y(T)))
            # At the limit of a power there is nothing to be little of.
            for number in (number for number in sharp if number > 1e-6 * first):
                for wrong in (-1, 1):
                    asked = number * (1 + sign * wrong * LITTLE)
                    fails = first_beyond(asked, sign)
                    clear = LITTLE if fails == 0 else max(abs(ratio(end) / asked - 1), LITTLE / 2)
                    seen = 10 * error(y0 if fails == 0 else end) < clear
                    found.append(said(name, compare, asked, fails, expected=seen))
        # The rate until t lies between the ratio at the start and that at t, on which side it stays.
        slower, faster = min(first, last), max(first, last)
        room = (abs(rate_until(T) - rate_until(T / 2)) + LITTLE * rate_until(T)) * T / 2
        visible = error(curve.y(T)) < 1e-6
        if slower > 1e-6 * first:
            found.append(said("decay", decays, slower * (1 - LITTLE), None, expected=visible))
        found.append(said("decay", decays, faster * (1 + LITTLE), 0.0, expected=visible and room > 1e-6))
        found.append(said("decay no faster", _decays_no_faster, faster * (1 + LITTLE), None, expected=visible))
        if first >= last:
            number = rate_until(T) * (1 - LITTLE)
            found.append(said("decay no faster", _decays_no_faster, number, 0.0, expected=visible and room > 1e-6))
        return found

    return Problem(curve.loss, curve.start, how, statements, curve.exact, curve.end)


class Layers(eqx.Module):
    """a, b: (d,)."""

    a: Array
    b: Array


class Product(eqx.Module):
    """(a.b - m)^2 / 2."""

    target: Array

    def __call__(self, model: Layers) -> Array:
        return 0.5 * (jnp.sum(model.a * model.b) - self.target) ** 2


def _squares(flow) -> Array:
    return jnp.sum(flow.models.a**2 - flow.models.b**2, axis=-1)


def _products(flow) -> Array:
    a, b = flow.models.a, flow.models.b
    return a[:, 0] * a[:, -1] - b[:, 0] * b[:, -1]


def _factors(flow) -> Array:
    return jnp.sum((flow.models.a - flow.models.b) * (flow.models.a + flow.models.b), axis=-1)


def _squares_apart(flow, number):
    return at_least(_squares(flow), number[0], size=number[1])


def _squares_apart_by_itself(flow, number):
    return at_least(_squares(flow), number[0])


def _factors_apart(flow, number):
    return at_least(_factors(flow), number[0], size=number[1])


def _products_apart(flow, number):
    return at_least(_products(flow), number[0], size=number[1])


def _squares_no_further_apart(flow, number):
    return at_most(_squares(flow), number[0], size=number[1])


def _is_conserved(flow, number):
    return equal(_squares(flow), number[0], number[1])


def cancelling_claim(rng: np.random.Generator) -> Problem:
    """Two factors, a number far from zero, or terms that cancel."""
    return (_two_factors, _far_from_zero, _identically_zero)[rng.integers(3)](rng)


def _two_factors(rng: np.random.Generator) -> Problem:
    """a_i a_j - b_i b_j is conserved."""
    d = int(rng.choice([1, 1, 2]))
    scale = 10 ** rng.uniform(-6, 4)
    a = scale * rng.uniform(0.3, 1.0, d)
    b = a * (1 - 10 ** rng.uniform(-8, -0.1, d))
    target = scale**2 * 10 ** rng.uniform(-1, 1)
    loss = FunctionLoss(Product(jnp.asarray(target)), minimum=0.0 if rng.random() < 0.5 else None)
    how = way(rng, 1 / target, longest=1e5)
    size = float(np.sum(a**2))
    squares, products = gaps(a, b)

    def statements(flow) -> list[Stated]:
        found = []
        for wrong in (-1, 1):
            # From a few units in the last place to what nobody overlooks.
            room = 10 ** rng.uniform(0, 4) * _EPS if rng.random() < 0.7 else 10 ** rng.uniform(-10, -4)
            for compare, gap, sign in (
                (_squares_apart, squares, 1),
                (_squares_apart_by_itself, squares, 1),
                (_factors_apart, squares, 1),
                (_products_apart, products, 1),
                (_squares_no_further_apart, squares, -1),
            ):
                number = float(gap) + sign * wrong * room * size
                fails = None if sign * (gap - Fraction(number)) >= 0 else 0.0
                found.append(said("squares apart", compare, [number, size], fails, expected=room > 1e-7))
        for off, fails in ((0.0, None), (RESOLVED, 0.0)):
            numbers = [float(squares) + off * size, size]
            found.append(said("conserved", _is_conserved, numbers, fails, identity=True))
        return found

    return Problem(loss, Layers(jnp.asarray(a), jnp.asarray(b)), how, statements)


def gaps(a: np.ndarray, b: np.ndarray) -> tuple[Fraction, Fraction]:
    """|a|^2 - |b|^2 and the product of the first and last of a less that of b, exactly."""
    a_, b_ = ([Fraction(float(x)) for x in side] for side in (a, b))
    squares = sum((x**2 - y**2 for x, y in zip(a_, b_, strict=True)), Fraction(0))
    return squares, a_[0] * a_[-1] - b_[0] * b_[-1]


def _is_above(flow, number):
    return at_least(curves.level(flow.models), number[1])


def _is_further_than(flow, number):
    return at_least(curves.level(flow.models) - number[0], number[1] - number[0])


def _approaches(flow, number):
    own = number[1] * jnp.exp(-number[2] * flow.t)
    return equal(curves.level(flow.models) - number[0], own, jnp.abs(own))


def _far_from_zero(rng: np.random.Generator) -> Problem:
    """x = b + (x(0) - b) e^(-kt) with a large b."""
    s, rate = 10 ** rng.uniform(-4, 4), 10 ** rng.uniform(-3, 3)
    b = s * 10 ** rng.uniform(1, 10)
    y0 = float(np.exp(rng.uniform(*np.log(SHAPES["parabola"].starts))))
    curve = curves.scaled(rng, SHAPES["parabola"], y0, s, rate, knows=bool(rng.random() < 0.5), center=b)
    how = way(rng, curve.timescale, furthest=100.0)
    apart = float(curve.start.x[0]) - b

    def statements(flow) -> list[Stated]:
        T = float(flow.t[-1])
        clear = apart * np.exp(-rate * T) > 1e5 * _EPS * b
        found = [said("above the limit", _is_further_than, np.array([b, b]), None, expected=clear)]
        for time in (T * rng.uniform(0, 1), T * (1 + 10 ** rng.uniform(-3, 1))):
            number = b + apart * np.exp(-rate * time)
            # As it was rounded: x stays above b itself.
            fails = curve.time(number) if number > b else None
            compare = _is_above if rng.random() < 0.5 else _is_further_than
            found.append(said("above a number", compare, np.array([b, number]), fails, expected=clear))
        for off, fails in ((0.0, None), (RESOLVED, 0.0)):
            numbers = np.array([b, apart * (1 + off), rate])
            found.append(said("approach", _approaches, numbers, fails, identity=True, expected=clear or fails == 0))
        return found

    return Problem(curve.loss, curve.start, how, statements, curve.exact, curve.end)


def _difference_of_squares(flow, number):
    x, large = curves.level(flow.models), number[0]
    return at_least((x + large) ** 2 - (x - large) ** 2 - 4 * x * large, number[1], size=number[2])


def _large_logarithm(flow, number):
    x = curves.level(flow.models)
    return at_most(jnp.log(jnp.exp(x) + jnp.exp(-x)) - x, number[0] * jnp.exp(-2 * x))


def _large_logarithm_from_below(flow, number):
    x = curves.level(flow.models)
    return at_least(jnp.log(jnp.exp(x) + jnp.exp(-x)) - x, number[0] * jnp.exp(-2 * x))


def _identically_zero(rng: np.random.Generator) -> Problem:
    """(x + B)^2 - (x - B)^2 - 4xB = 0, and u/(1 + u) < log(e^x + e^-x) - x < u = e^(-2x)."""
    large = rng.random() < 0.5
    s, rate = (10 ** rng.uniform(-4, 4), 10 ** rng.uniform(-3, 3)) if large else (1.0, 10 ** rng.uniform(-3, 3))
    y0 = float(np.exp(rng.uniform(*np.log((0.1, 3.0) if large else (2.0, 30.0)))))
    curve = curves.scaled(rng, SHAPES["parabola"], y0, s, rate, knows=bool(rng.random() < 0.5))
    how = way(rng, curve.timescale)

    def statements(flow) -> list[Stated]:
        if not large:
            seen = y0 < 5
            return [
                said("logarithm", _large_logarithm, [1.0], None, expected=seen),
                said("logarithm", _large_logarithm_from_below, [1.0], 0.0, expected=seen),
                said("logarithm", _large_logarithm_from_below, [0.5], None, expected=False),
                said("logarithm", _large_logarithm, [0.5], 0.0, expected=seen),
            ]
        B = s * 10 ** rng.uniform(0, 6)
        room = 10 ** rng.uniform(0, 4) * _EPS if rng.random() < 0.7 else 10 ** rng.uniform(-9, -4)
        return [
            said("zero", _difference_of_squares, [B, sign * room * B**2, B**2], fails, expected=room > 1e-9)
            for sign, fails in ((-1, None), (1, 0.0))
        ]

    return Problem(curve.loss, curve.start, how, statements, curve.exact, Point(jnp.zeros(1)))
