"""Losses whose gradient jumps or bends, with closed forms on either side.

The loss A f((x - c) / s) of one weight has y = (x - c) / s at A t / s^2, as in `curves`; y falls to a kink, where it
rests or goes on at another pace. Of a neuron v relu(w) with v < 0, w falls to 0 and dies.
"""

import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from benchmarks.verdict_families.base import LITTLE, RESOLVED, Exact, Point, Problem, Stated, cut, said, way
from benchmarks.verdict_families.curves import Shaped
from flowsim import FunctionLoss
from flowsim.claims.claim import at_least, at_most, equal


@dataclasses.dataclass(frozen=True)
class Bent:
    """A function with a kink, for y from its start down to 0.

    f: of a vector, at least 0; at: (y0, t) -> y, for NumPy or jax.numpy, given third; when: (y0, y) -> t; dominated:
    the largest m with f'^2 >= m f wherever y gets, None where f' may be anything there; broken: y from which on that is
    false of an m larger by little, None where it is not.
    """

    f: Callable
    at: Callable
    when: Callable
    dominated: float | None = None
    broken: float | None = None


def _bent_by(factor: float) -> Bent:
    """f' = y above 1, and so many times y below."""

    def at(y0, t, xp=np):
        turn = xp.log(y0)
        return xp.where(t < turn, y0 * xp.exp(-t), xp.exp(-factor * (t - turn)))

    return Bent(
        lambda y: jnp.sum(jnp.where(y > 1, y**2 / 2 + (factor - 1) / 2, factor * y**2 / 2)),
        at,
        lambda y0, y: np.log(y0 / y) if y > 1 else np.log(y0) - np.log(y) / factor,
        # f'^2/f falls to 2/factor above 1 where that is less than 2, and is twice the factor below.
        dominated=min(2 / factor, 2 * factor),
        broken=1.0 if factor < 1 else np.sqrt((1 + LITTLE) / (1 - LITTLE / (factor - 1))),
    )


KINKS = {
    "modulus": Bent(
        lambda y: jnp.sum(jnp.abs(y)),
        lambda y0, t, xp=np: xp.maximum(y0 - t, 0.0),
        lambda y0, y: y0 - y,
    ),
    "modulus and square": Bent(
        lambda y: jnp.sum(jnp.abs(y) + y**2 / 2),
        lambda y0, t, xp=np: xp.maximum((1 + y0) * xp.exp(-t) - 1, 0.0),
        lambda y0, y: np.log((1 + y0) / (1 + y)),
        dominated=2.0,
    ),
    "hinge": Bent(
        lambda y: jnp.sum(jnp.maximum(0.0, y)),
        lambda y0, t, xp=np: xp.maximum(y0 - t, 0.0),
        lambda y0, y: y0 - y,
    ),
    "squared hinge": Bent(
        lambda y: jnp.sum(jnp.maximum(0.0, y) ** 2) / 2,
        lambda y0, t, xp=np: y0 * xp.exp(-t),
        lambda y0, y: np.log(y0 / y),
        dominated=2.0,
        broken=np.inf,
    ),
    "Huber": Bent(
        lambda y: jnp.sum(jnp.where(jnp.abs(y) < 1, y**2 / 2, jnp.abs(y) - 0.5)),
        lambda y0, t, xp=np: xp.where(t < y0 - 1, y0 - t, xp.exp(-xp.maximum(t - (y0 - 1), 0.0))),
        lambda y0, y: y0 - y if y > 1 else y0 - 1 - np.log(y),
    ),
    "steeper below": _bent_by(3.0),
    "flatter below": _bent_by(0.25),
    "neuron": Bent(
        lambda y: jnp.sum((jax.nn.relu(y + 1) - 1) ** 2) / 2,
        lambda y0, t, xp=np: y0 * xp.exp(-t),
        lambda y0, y: np.log(y0 / y),
        dominated=2.0,
        broken=np.inf,
    ),
}


def _y(flow, number):
    """y, of the weight."""
    return (flow.models.x[:, 0] - number[0]) / number[1]


def _stays_above(flow, number):
    return at_least(_y(flow, number), number[2], size=number[3])


def _below_from(flow, number):
    return at_most(_y(flow, number), number[2], promised=flow.t >= number[4], size=number[3])


def _dominates(flow, number):
    return at_least(flow.grad_norm_sq, number[2] * flow.loss)


def _loss_decays(flow, number):
    bound = flow.loss[0] * jnp.exp(-number[2] * flow.t)
    return at_most(flow.loss, bound, size=bound)


@dataclasses.dataclass(frozen=True)
class _Follows:
    """y is the closed form, to within a part of its start."""

    shape: Bent

    def __call__(self, flow, number):
        own = self.shape.at(number[3], flow.t * number[2], jnp)
        return equal(_y(flow, number), own, number[3])


_FOLLOWS = {name: _Follows(shape) for name, shape in KINKS.items()}


def kinks(rng: np.random.Generator) -> Problem:
    """One weight with a kink, or a neuron that dies."""
    return (_one_weight if rng.random() < 0.8 else _dying)(rng)


def _one_weight(rng: np.random.Generator) -> Problem:
    name = str(rng.choice([*KINKS]))
    shape = KINKS[name]
    y0 = float(rng.uniform(1.2, 5.0))
    s, rate = 10 ** rng.uniform(-4, 4), 10 ** rng.uniform(-3, 3)
    center = s * float(rng.choice([0.0, 0.0, 1.0, -3.0]))
    x = np.array([center + s * y0])
    y0 = float((x[0] - center) / s)
    numbers = (rate * s**2, s, center, 0.0)
    loss = FunctionLoss(Shaped(shape.f, *map(jnp.asarray, numbers)), minimum=0.0 if rng.random() < 0.5 else None)
    how = (cut if rng.random() < 0.3 else way)(rng, 1 / rate)
    rests = shape.when(y0, 0.0) / rate if shape.at(y0, 50.0) == 0 else np.inf

    def statements(flow) -> list[Stated]:
        end = float(flow.t[-1])
        found = []
        # Rests at a kink, and what is small beside 1 or beside the center, cost more than a person would spend.
        calm = end < 0.9 * rests if np.isfinite(rests) else center == 0 and name != "neuron"
        calm = calm or rate * end < 1
        follows = _FOLLOWS[name]
        # Off by so much while it is at least half of the start.
        for off, fails in ((0.0, None), (2.2 * RESOLVED, 0.0)):
            row = [center, s, rate, y0 * (1 + off)]
            found.append(said("closed form", follows, row, fails, identity=True, expected=calm or fails == 0))
        found.append(said("stays above", _stays_above, [center, s, -LITTLE * y0, y0], None, expected=calm))
        for T in (min(end, 1.5 / rate) * rng.uniform(0, 1), min(end, 2 / rate) * 10 ** rng.uniform(-2, 1)):
            c = float(shape.at(y0, rate * T))
            early = c > 1e-3 and end > T
            for right in (True, False):
                little = LITTLE * y0 * (1 if right else -1)
                row = [center, s, c + little, y0, T]
                found.append(said("once the time is", _below_from, row, None if right else T, expected=early))
            if 0 < c < y0:
                passed = shape.when(y0, c) / rate
                found.append(said("stays above", _stays_above, [center, s, c, y0], passed, expected=early))
        if name in ("modulus", "hinge"):
            # 1 - t/y(0) <= e^(-t/y(0))
            found.append(said("decay", _loss_decays, [0.0, 0.0, rate / y0], None, expected=calm))
        if shape.dominated is None:
            return found
        sharp = rate * shape.dominated
        found.append(said("dominance", _dominates, [0.0, 0.0, sharp * (1 - LITTLE)], None, expected=calm))
        found.append(said("decay", _loss_decays, [0.0, 0.0, sharp * (1 - LITTLE)], None, expected=calm))
        if shape.broken is not None:
            fails = 0.0 if shape.broken > y0 else shape.when(y0, shape.broken) / rate
            found.append(said("dominance", _dominates, [0.0, 0.0, sharp * (1 + LITTLE)], fails, expected=fails < end))
        return found

    def exact(t):
        y = jnp.asarray(shape.at(y0, rate * t))
        if name == "neuron":  # which adds 1 to y, so that digits are lost
            height, slope = y**2 / 2, y
        else:
            height, slope = jax.vmap(shape.f)(y[:, None]), jax.vmap(jax.grad(shape.f))(y[:, None])[:, 0]
        models = Point((center + s * y)[:, None])
        return Exact(models, np.asarray(rate * s**2 * height), np.asarray((rate * s * slope) ** 2))

    return Problem(loss, Point(jnp.asarray(x)), how, statements, exact, Point(jnp.asarray([center])))


class Neuron(eqx.Module):
    """v, w: numbers."""

    v: Array
    w: Array


def _neuron(model: Neuron) -> Array:
    return 0.5 * (model.v * jax.nn.relu(model.w) - 1) ** 2


def _loses_at_least(flow, number):
    return at_least(flow.loss, number)


def _is_alive(flow, number):
    return at_least(flow.models.w, number)


def _outgoing_below(flow, number):
    return at_most(flow.models.v, number)


def _dying(rng: np.random.Generator) -> Problem:
    """v = -sqrt(D) cosh h and w = sqrt(D) sinh h, until h = 0, as v^2 - w^2 = D stays.

    h' = -(1 + D sinh(2h)/2) is -(D/2) (g - a)(g - b) / (2g) of g = e^(2h), so that (g - a)/(g - b) decays with the rate
    D (a - b) / 2.
    """
    h, D = rng.uniform(0.2, 1.5), 10 ** rng.uniform(-1, 1)
    v, w = -np.sqrt(D) * np.cosh(h), np.sqrt(D) * np.sinh(h)
    b = -2 / D - np.hypot(2 / D, 1.0)
    a = -1 / b
    ratio = lambda h: (np.exp(2 * h) - a) / (np.exp(2 * h) - b)
    time = lambda low: float(np.log(ratio(h) / ratio(low)) * 2 / (D * (a - b)))
    dies = time(0.0)

    def exact(t):
        left = ratio(h) * np.exp(-D * (a - b) / 2 * t)
        now = np.log(np.maximum((a - left * b) / (1 - left), 1.0)) / 2
        return Exact(Neuron(jnp.asarray(-np.sqrt(D) * np.cosh(now)), jnp.asarray(np.sqrt(D) * np.sinh(now))))

    how = (cut if rng.random() < 0.3 else way)(rng, dies)
    loss = FunctionLoss(_neuron, minimum=0.0 if rng.random() < 0.3 else None)
    last = -np.sqrt(D)

    def statements(flow) -> list[Stated]:
        early = float(flow.t[-1]) < 0.9 * dies
        found = [
            said("loses", _loses_at_least, 0.5 * (1 - LITTLE), None, expected=early),
            said("alive", _is_alive, -LITTLE * w, None, expected=early),
            said("outgoing", _outgoing_below, last * (1 - LITTLE), None, expected=early),
        ]
        part = h * rng.uniform(0.05, 0.95)
        loses = 0.5 * (D * np.sinh(2 * part) / 2 + 1) ** 2
        found.append(said("loses", _loses_at_least, loses, time(part)))
        found.append(said("alive", _is_alive, np.sqrt(D) * np.sinh(part), time(part)))
        found.append(said("outgoing", _outgoing_below, -np.sqrt(D) * np.cosh(part), time(part)))
        found.append(said("loses", _loses_at_least, 0.5 * (1 + LITTLE), dies, expected=early))
        return found

    start, end = (Neuron(jnp.asarray(a), jnp.asarray(b)) for a, b in ((v, w), (last, 0.0)))
    return Problem(loss, start, how, statements, exact, end)
