"""What is narrower than a step of the solver.

- windows: a number passes a value, and a statement promises something only near it, or has a spike there;
- walls: a barrier in the loss, thinner than a step, at which a flow ends; and a valley so narrow that a start on its
  ridge, with equal weights, leaves it by rounding alone.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from benchmarks.verdict_families import curves
from benchmarks.verdict_families.base import LITTLE, Point, Problem, Stated, said, way
from benchmarks.verdict_families.curves import level
from flowsim import FunctionLoss
from flowsim.claims.claim import at_least, at_most

_SPIKE = 0.7  # of 1
_FEET = 20.0  # widths, beyond which a bell is nothing


def _below_near(flow, number):
    """x <= c while |x - m| <= w, of (c, m, w)."""
    x = level(flow.models)
    return at_most(x, number[0], promised=jnp.abs(x - number[1]) <= number[2])


def _above_near(flow, number):
    x = level(flow.models)
    return at_least(x, number[0], promised=jnp.abs(x - number[1]) <= number[2])


def _bell(flow, number):
    """exp(-((x - m)/w)^2) <= c, of (c, m, w)."""
    return at_most(jnp.exp(-(((level(flow.models) - number[1]) / number[2]) ** 2)), number[0])


def _peak(flow, number):
    """1/(1 + ((x - m)/w)^2) <= c, of (c, m, w)."""
    return at_most(1 / (1 + ((level(flow.models) - number[1]) / number[2]) ** 2), number[0])


def windows(rng: np.random.Generator) -> Problem:
    """A number that passes the middle of a window, or stops before it."""
    curve = curves.draw(rng)
    how = way(rng, curve.timescale, furthest=1e3, longest=1e6)
    width = 10 ** rng.uniform(-6, -1.5)

    def statements(flow) -> list[Stated]:
        end = float(flow.t[-1])
        middle = float(curve.level(min(end, 3 * curve.timescale) * rng.uniform(0.05, 1.2)))
        w = width * abs(middle)

        def reached(widths: float) -> float:
            value = middle + curve.sign * widths * w
            return float(curve.time(value)) if (float(curve.level(0.0)) - value) * curve.sign > 0 else 0.0

        # A number that stops within the window may do so by its last digits.
        leaves = not np.isfinite(curve.limit) or (middle - curve.sign * 2 * w - curve.limit) * curve.sign > 0
        inside = leaves and end >= reached(-1.01)
        found = []
        for sign, compare in ((1.0, _below_near), (-1.0, _above_near)):
            for right, fails in ((2 * w, None), (-2 * w, reached(1.0))):
                found.append(said("near a value", compare, [middle + sign * right, middle, w], fails, expected=inside))
        for compare, widths in ((_bell, np.sqrt(-np.log(_SPIKE))), (_peak, np.sqrt(1 / _SPIKE - 1))):
            for number, fails in ((1 + LITTLE, None), (_SPIKE, reached(float(widths)))):
                found.append(said("a spike", compare, [number, middle, w], fails, expected=inside))
        return found

    return Problem(curve.loss, curve.start, how, statements, curve.exact, curve.end)


def walls(rng: np.random.Generator) -> Problem:
    """A flow that a thin wall ends, or one along the ridge between two narrow valleys."""
    return (_wall if rng.random() < 0.6 else _ridge)(rng)


def _wall(rng: np.random.Generator) -> Problem:
    """x' = -k (x - a) until just before c, where a bell of the loss is too steep to be passed."""
    k, a, size = 10 ** rng.uniform(-2, 2), rng.uniform(-3, 3), 10 ** rng.uniform(-1, 1)
    c, x0 = a + size * rng.uniform(0.2, 0.6), a + size
    w = size * 10 ** rng.uniform(-6, -2.5)
    height = k * (c - a) * w * 10 ** rng.uniform(0.7, 3)  # its steepest slope is .86 height / w

    def function(model: Point):
        x = model.x[0]
        return k * (x - a) ** 2 / 2 + height * jnp.exp(-(((x - c) / w) ** 2))

    def statements(flow) -> list[Stated]:
        foot = c + _FEET * w
        passed = float(np.log((x0 - a) / (foot + LITTLE * size - a)) / k)
        return [
            said("stays before the wall", _stays_above, [c], None, expected=False),
            said("stays before the wall", _stays_above, [c + 0.01 * (a - c)], None, expected=False),
            said("stays far before the wall", _stays_above, [foot + 2 * LITTLE * size], passed, expected=False),
            said("comes to the minimum", _stays_above, [x0 - 0.1 * (x0 - c)], passed, expected=False),
        ]

    loss = FunctionLoss(function)
    return Problem(loss, Point(jnp.asarray([x0])), way(rng, 1 / k, furthest=50.0, longest=1e3), statements)


def _stays_above(flow, number):
    return at_least(level(flow.models), number[0])


def _ridge(rng: np.random.Generator) -> Problem:
    """x + y - 2 = s e^-kt and x = y for all t; x - y = +-w is where rounding leads to."""
    k, w = 10 ** rng.uniform(-1, 1), 10 ** rng.uniform(-5, -0.5)
    s = rng.uniform(-3, 3)

    def function(model: Point):
        x, y = model.x
        return k * (x + y - 2) ** 2 / 4 + k * ((x - y) ** 2 / w - w) ** 2

    def statements(flow) -> list[Stated]:
        return [said("x = y", _apart, [share * w], None, expected=False) for share in (0.5, 0.1, 1e-3)] + [
            said("the sum", _sum_within, [abs(s) * (1 + sign * LITTLE), k], None if sign > 0 else 0.0, expected=False)
            for sign in (1, -1)
        ]

    how: dict[str, Any] = {"t1": float(rng.uniform(1, 100)) / k}
    return Problem(FunctionLoss(function), Point(jnp.full(2, 1 + s / 2)), how, statements)


def _apart(flow, number):
    return at_most(jnp.abs(flow.models.x[:, 0] - flow.models.x[:, 1]), number[0])


def _sum_within(flow, number):
    return at_most(jnp.abs(jnp.sum(flow.models.x, axis=1) - 2), number[0] * jnp.exp(-number[1] * flow.t))
