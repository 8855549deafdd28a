"""Flows of one number whose closed form is known, and with it when each value is reached.

A shape f of y has the flow y' = -f'(y) in units of its own; the loss A f(x / s) of x has y = x / s at A t / s^2. The
number is x itself, or the radius of a point in the plane.
"""

import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from benchmarks.verdict_families.base import Exact, Point
from flowsim import FunctionLoss

Real = Callable[..., float]


@dataclasses.dataclass(frozen=True)
class Shape:
    """A function with the closed form of its flow, for y > 0.

    f: of a vector, as a user writes it, with the minimum or infimum 0, exactly; at: (y0, t) -> y; when: (y0, y) -> t,
    what `at` inverts; slope: y -> f'(y); excess: y -> f(y) without cancellation; limit: of y; starts: from where to
    where they are drawn, geometrically; slows: whether |f'| falls along the flow; plane: whether y is a radius.
    """

    f: Callable[[Array], Array]
    at: Callable
    when: Real
    slope: Callable
    excess: Callable
    starts: tuple[float, float]
    curvature: float
    limit: float = 0.0
    slows: bool = True
    plane: bool = False


class Shaped(eqx.Module):
    """A f((x - c) / s) + C."""

    shape: Callable = eqx.field(static=True)
    amplitude: Array
    size: Array
    center: Array
    offset: Array

    def __call__(self, model: Point) -> Array:
        return self.amplitude * self.shape((model.x - self.center) / self.size) + self.offset


@dataclasses.dataclass(frozen=True)
class Curve:
    """The flow of a shape with all that is asked of it.

    y: time -> y; level: time -> the number; time: a value -> when it is reached; slope, excess: value -> |grad L|,
    L - min L; rate, timescale: of y; size: s; sign: 1 where the number falls and -1 where it rises.
    """

    shape: Shape
    loss: FunctionLoss
    start: Point
    y: Callable
    level: Callable
    time: Callable[[float], float]
    slope: Callable
    excess: Callable
    rate: float
    size: float
    limit: float
    sign: int

    @property
    def timescale(self) -> float:
        """Of y."""
        return 1 / self.rate

    def exact(self, t: np.ndarray) -> Exact:
        """The closed form at some times."""
        y, models = self.y(t), Point(jnp.asarray(self.level(t)[:, None] * _direction(self.start)))
        of_slope, of_excess = self.rate * self.size, self.rate * self.size**2
        return Exact(models, of_excess * self.shape.excess(y), (of_slope * self.shape.slope(y)) ** 2)

    @property
    def end(self) -> Point | None:
        """The model as t -> infinity, where there is one."""
        return Point(jnp.asarray(self.limit * _direction(self.start))) if np.isfinite(self.limit) else None


def level(models: Point) -> Array:
    """The number of models with time first, or of one: x, or the radius."""
    return models.x[..., 0] if models.x.shape[-1] == 1 else jnp.linalg.norm(models.x, axis=-1)


def _direction(start: Point) -> np.ndarray:
    x = np.asarray(start.x)
    return np.ones(1) if x.size == 1 else x / np.linalg.norm(x)


def _logistic(y0, t):
    return 1 / (1 + (1 / y0 - 1) * np.exp(-t))


SHAPES = {
    "parabola": Shape(
        lambda y: 0.5 * jnp.sum(y**2),
        lambda y0, t: y0 * np.exp(-t),
        lambda y0, y: np.log(y0 / y),
        lambda y: y,
        lambda y: y**2 / 2,
        (0.1, 3.0),
        1.0,
    ),
    "quartic": Shape(
        lambda y: jnp.sum(y**4) / 4,
        lambda y0, t: (y0**-2.0 + 2 * t) ** -0.5,
        lambda y0, y: (y**-2.0 - y0**-2.0) / 2,
        lambda y: y**3,
        lambda y: y**4 / 4,
        (0.1, 3.0),
        0.0,
    ),
    "sextic": Shape(
        lambda y: jnp.sum(y**6) / 6,
        lambda y0, t: (y0**-4.0 + 4 * t) ** -0.25,
        lambda y0, y: (y**-4.0 - y0**-4.0) / 4,
        lambda y: y**5,
        lambda y: y**6 / 6,
        (0.3, 2.0),
        0.0,
    ),
    "logistic, rising": Shape(
        lambda y: jnp.sum(2 * y**3 - 3 * y**2 + 1),
        lambda y0, t: _logistic(y0, 6 * t),
        lambda y0, y: np.log((1 / y0 - 1) / (1 / y - 1)) / 6,
        lambda y: 6 * y * (y - 1),
        lambda y: (y - 1) ** 2 * (2 * y + 1),
        (1e-6, 0.9),
        6.0,
        limit=1.0,
        slows=False,
    ),
    "logistic, falling": Shape(
        lambda y: jnp.sum(2 * y**3 - 3 * y**2 + 1),
        lambda y0, t: _logistic(y0, 6 * t),
        lambda y0, y: np.log((1 - 1 / y0) / (1 - 1 / y)) / 6,
        lambda y: 6 * y * (y - 1),
        lambda y: (y - 1) ** 2 * (2 * y + 1),
        (1.1, 5.0),
        6.0,
        limit=1.0,
    ),
    "escape": Shape(
        lambda y: jnp.sum(jnp.exp(-y)),
        lambda y0, t: np.log(np.exp(y0) + t),
        lambda y0, y: np.exp(y) - np.exp(y0),
        lambda y: -np.exp(-y),
        lambda y: np.exp(-y),
        (0.1, 3.0),
        0.0,
        limit=np.inf,
    ),
    "circle, rising": Shape(
        lambda y: (jnp.sum(y**2) - 1) ** 2 / 4,
        lambda y0, t: np.sqrt(_logistic(y0**2, 2 * t)),
        lambda y0, y: np.log((y0**-2.0 - 1) / (y**-2.0 - 1)) / 2,
        lambda y: y * (y**2 - 1),
        lambda y: (y**2 - 1) ** 2 / 4,
        (1e-4, 0.9),
        2.0,
        limit=1.0,
        slows=False,
        plane=True,
    ),
    "circle, falling": Shape(
        lambda y: (jnp.sum(y**2) - 1) ** 2 / 4,
        lambda y0, t: np.sqrt(_logistic(y0**2, 2 * t)),
        lambda y0, y: np.log((1 - y0**-2.0) / (1 - y**-2.0)) / 2,
        lambda y: y * (y**2 - 1),
        lambda y: (y**2 - 1) ** 2 / 4,
        (1.1, 3.0),
        2.0,
        limit=1.0,
        plane=True,
    ),
    "cosine": Shape(
        lambda y: jnp.sum(1 - jnp.cos(y)),
        lambda y0, t: 2 * np.arctan(np.tan(y0 / 2) * np.exp(-t)),
        lambda y0, y: np.log(np.tan(y0 / 2) / np.tan(y / 2)),
        np.sin,
        lambda y: 2 * np.sin(y / 2) ** 2,
        (0.1, 1.5),
        1.0,
    ),
    "log cosh": Shape(
        lambda y: jnp.sum(jnp.log(jnp.cosh(y))),
        lambda y0, t: np.arcsinh(np.sinh(y0) * np.exp(-t)),
        lambda y0, y: np.log(np.sinh(y0) / np.sinh(y)),
        np.tanh,
        lambda y: np.log1p(2 * np.sinh(y / 2) ** 2),
        (0.1, 5.0),
        1.0,
    ),
    "softplus": Shape(
        lambda y: jnp.sum(jnp.log((1 + jnp.exp(y)) / 2) - y / 2),
        lambda y0, t: 2 * np.arcsinh(np.sinh(y0 / 2) * np.exp(-t / 4)),
        lambda y0, y: 4 * np.log(np.sinh(y0 / 2) / np.sinh(y / 2)),
        lambda y: np.tanh(y / 2) / 2,
        lambda y: np.log1p(2 * np.sinh(y / 4) ** 2),
        (0.1, 5.0),
        0.25,
    ),
    "exponential": Shape(
        lambda y: jnp.sum(jnp.exp(y) - y - 1),
        lambda y0, t: -np.log1p(np.expm1(-y0) * np.exp(-t)),
        lambda y0, y: np.log(np.expm1(-y0) / np.expm1(-y)),
        np.expm1,
        lambda y: _without_two_terms(y),
        (0.1, 3.0),
        1.0,
    ),
}


def _without_two_terms(y):
    """e^y - 1 - y."""
    y = np.asarray(y, dtype=float)
    series = sum(y**n / np.prod(np.arange(1.0, n + 1)) for n in range(2, 12))
    return np.where(np.abs(y) < 0.1, series, np.expm1(y) - y)


def draw(rng: np.random.Generator, names: tuple[str, ...] = tuple(SHAPES), *, told: float = 0.5) -> Curve:
    """A curve of some shape in units of its own; ``told``: how often the loss knows its minimum."""
    shape = SHAPES[str(rng.choice(names))]
    y0 = float(np.exp(rng.uniform(*np.log(shape.starts))))
    s, rate = 10 ** rng.uniform(-8, 6), 10 ** rng.uniform(-3, 3)
    return scaled(rng, shape, y0, s, rate, knows=bool(rng.random() < told))


def scaled(
    rng: np.random.Generator,
    shape: Shape,
    y0: float,
    s: float,
    rate: float,
    *,
    knows: bool,
    center: float = 0.0,
    offset: float = 0.0,
) -> Curve:
    """The curve of a shape from y0 in units s of the number, with a rate of y."""
    if shape.plane:
        angle = rng.uniform(0, 2 * np.pi)
        start = s * y0 * np.array([np.cos(angle), np.sin(angle)])
    else:
        start = np.array([center + s * y0])
    # What is known is known of the start as it was rounded.
    y0 = float(np.linalg.norm(start)) / s if shape.plane else float((start[0] - center) / s)
    amplitude = rate * s**2
    function = Shaped(shape.f, *(jnp.asarray(float(number)) for number in (amplitude, s, center, offset)))
    y = lambda t: shape.at(y0, rate * np.asarray(t, dtype=float))
    return Curve(
        shape,
        FunctionLoss(function, minimum=offset if knows else None),
        Point(jnp.asarray(start)),
        y,
        level=lambda t: center + s * y(t),
        time=lambda x: float(shape.when(y0, (x - center) / s)) / rate,
        slope=lambda x: np.abs(rate * s * shape.slope((x - center) / s)),
        excess=lambda x: amplitude * shape.excess((x - center) / s),
        rate=rate,
        size=s,
        limit=center + s * shape.limit,
        sign=1 if y0 > shape.limit else -1,
    )
