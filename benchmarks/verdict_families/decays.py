"""Flows far down, and bounds of zero.

- far-decay: x_i(t) = x_i(0) e^(-k_i t), and what other flows make of e^(-kt), relative to their own size when next to
  nothing of it is left; also ratios and logarithms;
- zero-bound: what stays above 0, or never rises, with nothing that says how large it is. What dips below 0 does so by
  little and not for long: z^3 - 2 a z^2 + (a^2 - d) z with z = e^(-kt) is z ((z - a)^2 - d).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from benchmarks.verdict_families import curves
from benchmarks.verdict_families.base import (
    HAS_VELOCITY,
    LITTLE,
    RESOLVED,
    Exact,
    Point,
    Problem,
    Stated,
    said,
    value_at_a_time,
    way,
)
from benchmarks.verdict_families.curves import SHAPES
from benchmarks.verdict_families.products import Parabola
from flowsim import FunctionLoss
from flowsim.claims.claim import at_least, at_most, equal

_FAINTEST = 1e-300


def _far(rng: np.random.Generator, timescale: float, furthest: float) -> tuple[dict[str, Any], float]:
    """A run to far out, and its length in timescales, of which there are at most so many."""
    length = float(np.exp(rng.uniform(np.log(5.0), np.log(furthest))))
    T = length * timescale
    kind = rng.integers(3)
    if kind == 0:
        return {"t1": T}, length
    times = [float(t) for t in np.sort(T * np.append(rng.uniform(0, 0.95, rng.integers(4)), 1.0))]
    return {"times": times} | ({"points_per_decade": 0} if kind == 1 else {}), length


def _decays_as(flow, number):
    own = number[:1] * jnp.exp(-number[1:] * flow.t[:, None])
    return equal(flow.models.x, own, jnp.abs(own))


def _is_at(model, number):
    return equal(model.x[None, :], number[None, :], jnp.abs(number[None, :]))


def _ratio_as(flow, number):
    own = number[0, 0] / number[0, 1] * jnp.exp((number[1, 1] - number[1, 0]) * flow.t)
    return equal(flow.models.x[:, 0] / flow.models.x[:, 1], own, jnp.abs(own))


def _logarithm_as(flow, number):
    own = jnp.log(jnp.abs(number[:1])) - number[1:] * flow.t[:, None]
    return equal(jnp.log(jnp.abs(flow.models.x)), own, 1 + jnp.abs(own))


def _decays_below(flow, number):
    return at_most(jnp.abs(flow.models.x), number[:1] * jnp.exp(-number[1:] * flow.t[:, None]))


def far_decay(rng: np.random.Generator) -> Problem:
    """Weights that decay each by itself, or one that does so in a function of its own."""
    return (_linear if rng.random() < 0.6 else _in_another_form)(rng)


def _linear(rng: np.random.Generator) -> Problem:
    """x_i(t) = x_i(0) e^(-k_i t)."""
    d = int(rng.choice([1, 2, 4]))
    k = 10 ** rng.uniform(-3, 3) * rng.uniform(0.3, 1.0, d)
    x = 10 ** rng.uniform(-8, 6) * rng.uniform(0.1, 1.0, d) * rng.choice([-1, 1], d)
    furthest = min(700.0, float(np.log(np.min(np.abs(x)) / _FAINTEST)))
    how, length = _far(rng, 1 / k.max(), furthest)
    loss = FunctionLoss(Parabola(jnp.asarray(k)), minimum=0.0 if rng.random() < 0.5 else None)

    def statements(flow) -> list[Stated]:
        T = float(flow.t[-1])
        seen = length < 30
        # So much off in half of the run.
        faster = k * (1 + RESOLVED / (k * T / 2))
        found = []
        forms = [("decay", _decays_as, 1.0)]
        # The logarithm is off by what the number is, over its size.
        forms += [("logarithm", _logarithm_as, 1 + float(np.max(np.abs(np.log(np.abs(x))) + k * T)))]
        forms += [("ratio", _ratio_as, 1.0)] if d > 1 else []
        for name, compare, bluntness in forms:
            factor = np.ones(d)
            factor[0] += 1.1 * RESOLVED * bluntness
            found.append(said(name, compare, np.stack([x, k]), None, identity=True, expected=seen))
            found.append(said(name, compare, np.stack([x * factor, k]), 0.0, identity=True))
        found.append(said("decay", _decays_as, np.stack([x, faster]), T / 2, identity=True, expected=seen))
        for wrong, fails in ((1, None), (-1, 0.0)):
            numbers = np.stack([np.abs(x) * (1 + wrong * LITTLE), k])
            found.append(said("bound", _decays_below, numbers, fails, expected=seen or fails == 0))
        found += value_at_a_time(_is_at, lambda t: x * np.exp(-k * t), T, expected=seen)
        return found

    def exact(t):
        return Exact(Point(jnp.asarray(x * np.exp(-np.outer(t, k)))))

    return Problem(loss, Point(jnp.asarray(x)), how, statements, exact, Point(jnp.zeros(d)))


def _as_it_is(y):
    return y


def _half_tangent(y):
    return jnp.tan(y / 2)


def _sine(y):
    return jnp.sinh(y)


def _half_sine(y):
    return jnp.sinh(y / 2)


def _growth(y):
    return -jnp.expm1(-y)


@dataclasses.dataclass(frozen=True)
class _Form:
    """g(x/s) = g(x(0)/s) e^(-kt)."""

    g: Callable

    def __call__(self, flow, number):
        own = number[1] * jnp.exp(-number[2] * flow.t)
        return equal(self.g(flow.models.x[:, 0] / number[0]), own, jnp.abs(own))


_FORMS = {
    "parabola": (_Form(_as_it_is), np.asarray, 1.0),
    "cosine": (_Form(_half_tangent), lambda y: np.tan(y / 2), 1.0),
    "log cosh": (_Form(_sine), np.sinh, 1.0),
    "softplus": (_Form(_half_sine), lambda y: np.sinh(y / 2), 0.25),
    "exponential": (_Form(_growth), lambda y: -np.expm1(-y), 1.0),
}


def _in_another_form(rng: np.random.Generator) -> Problem:
    """g(y(t)) = g(y(0)) e^(-kt)."""
    curve = curves.draw(rng, tuple(_FORMS))
    compare, g, share = _FORMS[next(name for name, shape in SHAPES.items() if shape is curve.shape)]
    rate = share * curve.rate
    how, length = _far(rng, 1 / rate, 650.0)
    y0 = float(curve.y(0.0))

    def statements(flow) -> list[Stated]:
        T = float(flow.t[-1])
        off = {None: (0.0, 0.0), 0.0: (RESOLVED, 0.0), T / 2: (0.0, RESOLVED / (rate * T / 2))}
        return [
            said(
                "decay in a form",
                compare,
                [curve.size, g(y0) * (1 + of_factor), rate * (1 + of_rate)],
                fails,
                identity=True,
                expected=length < 30 or fails == 0,
            )
            for fails, (of_factor, of_rate) in off.items()
        ]

    return Problem(curve.loss, curve.start, how, statements, curve.exact, curve.end)


def _sum(models):
    return jnp.sum(models.x, axis=-1)


def _first(models):
    return models.x[..., 0]


def _stays_positive(flow, number):
    return at_least(_sum(flow.models), 0.0)


def _first_stays_positive(flow, number):
    return at_least(_first(flow.models), 0.0)


def _never_rises(flow, number):
    return at_most(_sum(flow.velocity), 0.0)


def _stays_below_the_start(flow, number):
    return at_most(_sum(flow.models) - _sum(flow.models)[0], 0.0)


def zero_bound(rng: np.random.Generator) -> Problem:
    """A sum that dips below zero or nearly so, or one number that stays on its side."""
    return (_dip if rng.random() < 0.5 else _one_sided)(rng)


class Turned(eqx.Module):
    """(1/2) x' H x."""

    hessian: Array

    def __call__(self, model: Point) -> Array:
        return 0.5 * model.x @ self.hessian @ model.x


# An orthogonal matrix whose first row is (1, 1, 1)/sqrt 3.
_TURN = np.array([[1, 1, 1], [1, -1, 0], [1, 1, -2]]) / np.sqrt([[3], [2], [6]])


def _dip(rng: np.random.Generator) -> Problem:
    """z ((z - a)^2 - d) as the sum of three weights, as the first of them, or as minus the velocity of the sum."""
    rate, s = 10 ** rng.uniform(-3, 3), 10 ** rng.uniform(-8, 6)
    a = rng.uniform(0.05, 0.9)
    little = a**2 * (LITTLE if rng.random() < 0.5 else 10 ** rng.uniform(-5, -2))
    dips = rng.random() < 0.5
    d = little if dips else -little
    parts = s * np.array([a**2 - d, -2 * a, 1.0])
    k = rate * np.array([1.0, 2.0, 3.0])
    forms = {"sum": _stays_positive, "first": _first_stays_positive} | (
        {"velocity": _never_rises} if HAS_VELOCITY else {}
    )
    form = str(rng.choice([*forms]))
    x = parts / k * rate if form == "velocity" else parts
    if form == "first":
        loss = FunctionLoss(Turned(jnp.asarray(_TURN * k @ _TURN.T)), minimum=0.0)
        turn = _TURN
    else:
        loss, turn = FunctionLoss(Parabola(jnp.asarray(k)), minimum=0.0), np.eye(3)
    crossing = a + np.sqrt(little)
    fails = (0.0 if crossing >= 1 else -np.log(crossing) / rate) if dips else None
    how = way(rng, 1 / rate, furthest=100.0)

    def statements(flow) -> list[Stated]:
        reached = rate * float(flow.t[-1]) < 25
        told = fails is None and reached or fails is not None and fails < float(flow.t[-1])
        found = [said(f"stays positive ({form})", forms[form], 0.0, fails, expected=told)]
        if form == "sum":
            found.append(said("below the start", _stays_below_the_start, 0.0, *_rises(parts, float(flow.t[-1]), rate)))
        return found

    def exact(t):
        return Exact(Point(jnp.asarray((x * np.exp(-np.outer(t, k))) @ turn.T)))

    return Problem(loss, Point(jnp.asarray(turn @ x)), how, statements, exact, Point(jnp.zeros(3)))


def _rises(parts: np.ndarray, end: float, rate: float) -> tuple[float | None]:
    """When the sum of z, z^2 and z^3 times three numbers first exceeds what it is at z = 1; None if it never does."""
    # h(z) - h(1) has the root 1; the others are those of a quadratic.
    c1, c2, c3 = parts / np.max(np.abs(parts))
    roots = np.roots([c3, c3 + c2, c3 + c2 + c1])
    inside = [float(z.real) for z in roots if abs(z.imag) < 1e-12 and 0 < z.real < 1]
    # Just below z = 1 it is above h(1) where h'(1) < 0.
    if c1 + 2 * c2 + 3 * c3 < 0:
        return (0.0,)
    return (-np.log(max(inside)) / rate,) if inside else (None,)


def _level_stays_positive(flow, number):
    return at_least(curves.level(flow.models), 0.0)


def _level_never_passes_the_start(flow, number):
    level = curves.level(flow.models)
    return at_most(number * (level - level[0]), 0.0)


def _loss_never_rises(flow, number):
    return at_most(number * (flow.loss - flow.loss[0]), 0.0)


def _level_never_turns(flow, number):
    # On a line the radius falls where x dx/dt does.
    return at_most(number * jnp.sum(flow.velocity.x * flow.models.x, axis=-1), 0.0)


def _one_sided(rng: np.random.Generator) -> Problem:
    """A number that falls or rises for ever, and stays positive."""
    curve = curves.draw(rng)
    how = way(rng, curve.timescale)

    def statements(flow) -> list[Stated]:
        seen = float(flow.t[-1]) < 25 * curve.timescale
        found = [said("stays positive", _level_stays_positive, 0.0, None, expected=seen)]
        for sign, fails in ((curve.sign, None), (-curve.sign, 0.0)):
            found.append(said("side of the start", _level_never_passes_the_start, float(sign), fails, expected=seen))
            if HAS_VELOCITY:
                found.append(said("turns", _level_never_turns, float(sign), fails, expected=seen))
        found += [said("loss", _loss_never_rises, sign, fails) for sign, fails in ((1.0, None), (-1.0, 0.0))]
        return found

    return Problem(curve.loss, curve.start, how, statements, curve.exact, curve.end)
