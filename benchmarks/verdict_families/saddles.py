"""Flows that pass a saddle, or go into one, as the last digits of the start decide.

In units of their own, x' = -a (x - c) and y' = y - y^3, so that y^2 is logistic and stays 0 where it is 0. The loss
a (x - c)^2 / 2 + (y^2 - 1)^2 / 4 is had in x and y; in (x + y, x - y), where a start with equal weights has y = 0
exactly; or in a matrix, where y is its antisymmetric part and x its symmetric one.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import flowsim
from benchmarks.verdict_families.base import (
    HAS_LIMITS,
    LITTLE,
    RESOLVED,
    Exact,
    Point,
    Problem,
    Stated,
    first_time,
    said,
    way,
)
from flowsim import FunctionLoss
from flowsim.claims.claim import at_least, at_most, equal

_FORMS = ("straight", "turned", "matrix")


class Saddle(eqx.Module):
    """a (x - c)^2 / 2 + (y^2 - 1)^2 / 4 in units s."""

    amplitude: Array
    curvature: Array
    center: Array
    size: Array
    form: str = eqx.field(static=True)

    def __call__(self, model: Point) -> Array:
        across, apart = parts(model.x / self.size, self.form)
        bowl = 0.5 * self.curvature * jnp.sum((across - self.center) ** 2)
        well = (apart**2 - 1) ** 2 / 4
        return self.amplitude * (bowl + well)


def parts(x: Array, form: str) -> tuple[Array, Array]:
    """x and y of weights, of unit length: y is antisymmetric in a turned pair, or in a matrix."""
    if form == "straight":
        return x[:1], x[1]
    if form == "turned":
        return x[:1] / jnp.sqrt(2.0) + x[1:] / jnp.sqrt(2.0), (x[0] - x[1]) / jnp.sqrt(2.0)
    across = jnp.stack([x[0, 0], x[1, 1], (x[0, 1] + x[1, 0]) / jnp.sqrt(2.0)])
    return across, (x[0, 1] - x[1, 0]) / jnp.sqrt(2.0)


def _weights(across: np.ndarray, apart: np.ndarray, form: str) -> np.ndarray:
    """The weights that have such parts, (T, ..)."""
    if form == "straight":
        return np.stack([across[:, 0], apart], axis=1)
    if form == "turned":
        return np.stack([across[:, 0] + apart, across[:, 0] - apart], axis=1) / np.sqrt(2.0)
    upper, lower = (across[:, 2] + apart) / np.sqrt(2.0), (across[:, 2] - apart) / np.sqrt(2.0)
    return np.stack([across[:, 0], upper, lower, across[:, 1]], axis=1).reshape(-1, 2, 2)


def _last(models: Point) -> Array:
    """The weight that y decides, of models with time first."""
    return models.x[:, 1] if models.x.ndim == 2 else models.x[:, 0, 1]


def _last_of_one(model: Point) -> Array:
    return model.x[1] if model.x.ndim == 1 else model.x[0, 1]


def _ends_at(flow, number):
    return equal(_last_of_one(flow.end)[None], number[0], number[1])


def _ends_at_with_the_way(flow, number):
    return equal(_last_of_one(flow.end)[None], number[0], number[1], allowance=flow.way_to_go)


def _has_the_limit(flow, number):
    value, allowance = flowsim.limit(flow, _last_of_one)  # pyright: ignore[reportAttributeAccessIssue]
    return equal(value, number[0], number[1], allowance=allowance)


def _apart(flow) -> Array:
    x = flow.models.x
    if x.ndim == 3:
        return x[:, 0, 1] - x[:, 1, 0]
    return x[:, 0] - x[:, 1]


def _stays_symmetric(flow, number):
    return at_most(jnp.abs(_apart(flow)), number[0])


def _is_symmetric(flow, number):
    return equal(_apart(flow), 0.0, number[0])


def _stays_small(flow, number):
    return at_most(jnp.abs(flow.models.x[:, 1]), number[0])


def _stays_costly(flow, number):
    return at_least(flow.loss, number[0])


def saddles(rng: np.random.Generator) -> Problem:
    """A start on the stable manifold of a saddle, or next to it."""
    form = str(rng.choice(_FORMS))
    s, rate, a = 10 ** rng.uniform(-4, 4), 10 ** rng.uniform(-3, 3), 10 ** rng.uniform(-1, 1)
    count = 3 if form == "matrix" else 1
    center = rng.uniform(0.2, 2.0, count)
    aside = float(rng.choice([0.0, 0.0, 1e-16, 1e-14, 1e-12, 1e-9, 1e-6, 1e-3])) * rng.choice([-1, 1])
    begin = center + rng.uniform(-1, 1, count)
    x = s * _weights(begin[None], np.array([aside]), form)[0]
    if aside == 0 and form == "turned":
        x[1] = x[0]
    if aside == 0 and form == "matrix":
        x[1, 0] = x[0, 1]
    # As the start was rounded: the difference of two numbers that are nearly the same is exact.
    y0 = float(x[1] if form == "straight" else (x[0] - x[1] if form == "turned" else x[0, 1] - x[1, 0]) / np.sqrt(2))
    y0 /= s
    begin = np.asarray(parts(jnp.asarray(x / s), form)[0])
    amplitude, curvature, middle, unit = (jnp.asarray(number) for number in (rate * s**2, a, center, s))
    known = 0.0 if rng.random() < 0.5 else None
    loss = FunctionLoss(Saddle(amplitude, curvature, middle, unit, form), minimum=known)
    how = way(rng, 1 / rate, longest=1e4)

    def across(t):
        return center + (begin - center) * np.exp(-a * rate * np.asarray(t, dtype=float))[..., None]

    def apart(t):
        t = np.asarray(t, dtype=float)
        return 0 * t if y0 == 0 else np.sign(y0) / np.sqrt(1 + (y0**-2.0 - 1) * np.exp(-2 * rate * t))

    limit = s * _weights(center[None], np.array([np.sign(y0)]), form)[0]

    def costs(t):
        return rate * s**2 * (a * np.sum((across(t) - center) ** 2) / 2 + (apart(t) ** 2 - 1) ** 2 / 4)

    def statements(flow) -> list[Stated]:
        end = float(flow.t[-1])
        last = float(limit[1] if form != "matrix" else limit[0, 1])
        # A person sees where the flow goes where it does so by itself, and nothing was rounded away.
        clear = abs(y0) > 1e-7 and not how
        # How far y = 1 is from y = 0 in the last weight.
        side = s * {"straight": 1.0, "turned": -np.sqrt(0.5), "matrix": np.sqrt(0.5)}[form]
        found = []
        for compare in (_ends_at, _ends_at_with_the_way) + ((_has_the_limit,) if HAS_LIMITS else ()):
            # By the end of a run that was cut somebody may mean where it was.
            if compare is not _ends_at or not how:
                found.append(said("limit", compare, [last, s], None, identity=True, expected=clear))
            if compare is not _ends_at:
                wrong = last + RESOLVED * s
                found.append(said("limit", compare, [wrong, s], 0.0, identity=True, expected=clear))
                # The saddle, for those that pass it, and a valley behind it, for those that do not.
                other = last - side * float(np.sign(y0)) if y0 != 0 else last + side
                found.append(said("limit", compare, [other, s], 0.0, identity=True, expected=clear))
        apart_by = s if form == "straight" else s * np.sqrt(2.0)
        small = _stays_small if form == "straight" else _stays_symmetric
        for part in (0.5, 1e-3, 10 * abs(y0) if 0 < abs(y0) < 0.01 else 0.1):
            passes = first_time(lambda t, part=part: abs(float(apart(t))) > part, 1 / rate) if y0 != 0 else None
            if part > 1.5 * abs(y0):
                seen = passes is not None and passes < end and clear
                found.append(said("small", small, [part * apart_by], passes, expected=seen))
        found.append(said("small", small, [(1 + LITTLE) * apart_by], None, expected=False))
        saddle = rate * s**2 / 4
        costly = saddle * rng.uniform(0.1, 0.9)
        passes = first_time(lambda t: costs(t) < costly, 1 / rate) if y0 != 0 else None
        found.append(said("costly", _stays_costly, [costly], passes, expected=clear and passes is not None))
        if y0 == 0:
            found.append(said("costly", _stays_costly, [saddle * (1 - LITTLE)], None, expected=False))
            found.append(said("costly", _stays_costly, [saddle * (1 + LITTLE)], *_until(costs, saddle, rate)))
            if form != "straight":
                found.append(said("symmetric", _is_symmetric, [s], None, identity=True, expected=False))
        return found

    def exact(t):
        return Exact(Point(jnp.asarray(s * _weights(across(t), apart(t), form))))

    return Problem(loss, Point(jnp.asarray(x)), how, statements, exact, Point(jnp.asarray(limit)))


def _until(costs, saddle: float, rate: float) -> tuple[float | None]:
    """When the loss, which falls to that of the saddle, is no longer above that by little."""
    return (first_time(lambda t: costs(t) < saddle * (1 + LITTLE), 1 / rate),)
