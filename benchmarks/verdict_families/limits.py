"""Where a flow ends, read off its end, off the way still to go, or asked for as the limit.

- isolated minima of a parabola; continua: a product of weights that tends to 1 from any start, the unit circle, and
  least squares with fewer equations than weights (w(0) + A^+ (b - A w(0))); ill-conditioned least squares with the
  Hilbert matrix, solved in rationals of its floating-point entries.

The quantity is a weight, the norm of all, or a function of a weight that is not linear. Some runs end long before the
limit or on a plateau, and what is said of it is as true.
"""

import dataclasses
from collections.abc import Callable
from fractions import Fraction

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

import flowsim
from benchmarks.verdict_families.base import HAS_LIMITS, LITTLE, RESOLVED, Point, Problem, Stated, cut, said, way
from benchmarks.verdict_families.products import Factors, balanced_row, products
from flowsim import FunctionLoss
from flowsim.claims.claim import at_least, at_most, equal


def _first(model: PyTree) -> Array:
    return jnp.ravel(jax.tree.leaves(model)[0])[0]


def _steep(model: PyTree) -> Array:
    return 1000.0 * _first(model)


def _square(model: PyTree) -> Array:
    return _first(model) ** 2


def _growing(model: PyTree) -> Array:
    return jnp.exp(3 * jnp.tanh(_first(model)))


def _norm(model: PyTree) -> Array:
    return jnp.linalg.norm(jnp.ravel(jax.tree.leaves(model)[0]))


_QUANTITIES = (_first, _steep, _square, _growing, _norm)


@dataclasses.dataclass(frozen=True)
class _Ends:
    """The quantity at the end is a number, with or without the way still to go, or so is its limit."""

    quantity: Callable
    reads: str
    relation: Callable = equal

    def __call__(self, flow, number):
        if self.reads == "limit":
            value, allowance = flowsim.limit(flow, self.quantity)  # pyright: ignore[reportAttributeAccessIssue]
        else:
            value = self.quantity(flow.end)[None]
            allowance = flow.way_to_go if self.reads == "way" else 0.0
        if self.relation is equal:
            return equal(value, number[0], number[1], allowance=allowance)
        return self.relation(value, number[0], size=number[1], allowance=allowance)


_READS = ("end", "way") + (("limit",) if HAS_LIMITS else ())
_ENDS = {(quantity, reads): _Ends(quantity, reads) for quantity in _QUANTITIES for reads in _READS}
_SIDES = {
    (reads, sign): _Ends(_first, reads, relation)
    for reads in _READS
    for sign, relation in ((1, at_most), (-1, at_least))
}


def limits(rng: np.random.Generator) -> Problem:
    """A flow whose limit is known."""
    drawn = _FLOWS[rng.integers(len(_FLOWS))](rng)
    start, end = drawn.start, drawn.end
    loss = FunctionLoss(drawn.loss, minimum=0.0 if rng.random() < 0.5 else None)
    kind = rng.random()
    how = {} if kind < 0.4 else (cut if kind < 0.7 else way)(rng, drawn.fast)

    def statements(flow) -> list[Stated]:
        arrived = drawn.plain and (not how or float(flow.t[-1]) > 25 * drawn.slow)
        found = []
        for (quantity, reads), says in _ENDS.items():
            # By the end of a run that was cut somebody may mean where it was.
            if reads == "end" and how:
                continue
            value, first = float(quantity(end)), float(quantity(start))
            size = max(abs(value), abs(first))
            # Away from the start, where no run that ends early is.
            wrong = value + RESOLVED * size * (1 if value >= first else -1)
            # By the way still to go a person means a quantity that changes no faster than the weights.
            expected = arrived and (reads != "way" or quantity in (_first, _norm))
            found.append(said("limit", says, [value, size], None, identity=True, expected=expected))
            found.append(said("limit", says, [wrong, size], 0.0, identity=True, expected=expected))
        value, first = float(_first(end)), float(_first(start))
        size = max(abs(value), abs(first))
        for (reads, sign), says in _SIDES.items():
            right, wrong = (value + sign * part * LITTLE * size for part in (1, -1))
            # Of a run that ended on the way, a bound on its end may be true although one on the limit is false.
            if reads != "end":
                found.append(said("limit on a side", says, [right, size], None, expected=arrived))
                found.append(said("limit on a side", says, [wrong, size], 0.0, expected=arrived))
        return found

    return Problem(loss, start, how, statements, limit=end)


@dataclasses.dataclass(frozen=True)
class Flow:
    """A loss, a start and the limit; fast, slow: times in which something happens; plain: whether the flow gets there
    without a plateau, in a time that a person waits for.
    """

    loss: Callable
    start: PyTree
    end: PyTree
    fast: float
    slow: float
    plain: bool = True


class Bowl(eqx.Module):
    """(1/2) sum_i k_i (x_i - c_i)^2."""

    curvatures: Array
    center: Array

    def __call__(self, model: Point) -> Array:
        return 0.5 * jnp.sum(self.curvatures * (model.x - self.center) ** 2)


def _isolated(rng: np.random.Generator) -> Flow:
    """x -> c."""
    d = int(rng.choice([1, 3]))
    s = 10 ** rng.uniform(-6, 4)
    k = 10 ** rng.uniform(-2, 2) * 10 ** -rng.uniform(0, rng.choice([1, 4]), d)
    center, start = s * rng.standard_normal((2, d))
    loss = Bowl(jnp.asarray(k), jnp.asarray(center))
    return Flow(loss, Point(jnp.asarray(start)), Point(jnp.asarray(center)), 1 / k.max(), 1 / k.min())


def _continuum(rng: np.random.Generator) -> Flow:
    """Products of two to four positive weights: every difference of squares in a row is conserved."""
    count = int(rng.choice([2, 3, 4]))
    scale = 10 ** rng.uniform(-4 if count == 2 else -1.5, 0.5)
    w = scale * (np.ones(count) if rng.random() < 0.3 else rng.uniform(0.2, 1.0, count))
    ends = np.sqrt(balanced_row(w))
    fast, slow = 1 / np.sum(ends**-2), max(1.0, scale ** (2.0 - count))
    return Flow(products, Factors(jnp.asarray([w])), Factors(jnp.asarray([ends])), fast, slow, scale > 0.1)


class Circle(eqx.Module):
    """A (|x|^2 - s^2)^2 / 4."""

    amplitude: Array
    size: Array

    def __call__(self, model: Point) -> Array:
        return self.amplitude * (jnp.sum(model.x**2) - self.size**2) ** 2 / 4


def _circle(rng: np.random.Generator) -> Flow:
    """x -> s x / |x|."""
    d, s, amplitude = 2, 10 ** rng.uniform(-3, 3), 10 ** rng.uniform(-3, 3)
    x = rng.standard_normal(d)
    x *= s * 10 ** rng.uniform(-3, 0.5) / np.linalg.norm(x)
    end = s * x / np.linalg.norm(x)
    loss = Circle(jnp.asarray(amplitude), jnp.asarray(s))
    time = 1 / (amplitude * s**2)
    return Flow(loss, Point(jnp.asarray(x)), Point(jnp.asarray(end)), time, time)


class LeastSquares(eqx.Module):
    """(1/2) |Aw - b|^2."""

    matrix: Array
    target: Array

    def __call__(self, model: Point) -> Array:
        return 0.5 * jnp.sum((self.matrix @ model.x - self.target) ** 2)


def _underdetermined(rng: np.random.Generator) -> Flow:
    """w -> w(0) + A^+ (b - A w(0))."""
    rows, d = int(rng.choice([1, 2])), 3
    matrix = 10 ** rng.uniform(-2, 2) * rng.standard_normal((rows, d))
    start = rng.standard_normal(d)
    target = matrix @ rng.standard_normal(d)
    end = start + np.linalg.pinv(matrix) @ (target - matrix @ start)
    loss = LeastSquares(jnp.asarray(matrix), jnp.asarray(target))
    times = np.linalg.svd(matrix, compute_uv=False) ** -2
    return Flow(loss, Point(jnp.asarray(start)), Point(jnp.asarray(end)), float(times.min()), float(times.max()))


def _ill_conditioned(rng: np.random.Generator) -> Flow:
    """w -> A^-1 b, in rationals."""
    d = int(rng.choice([2, 3, 6, 12]))
    matrix = 1 / (1.0 + np.add.outer(np.arange(d), np.arange(d)))
    target = matrix @ rng.uniform(-1, 1, d)
    end = solved(matrix, target)
    loss = LeastSquares(jnp.asarray(matrix), jnp.asarray(target))
    slow = float(np.linalg.svd(matrix, compute_uv=False)[-1]) ** -2
    return Flow(loss, Point(jnp.asarray(rng.standard_normal(d))), Point(jnp.asarray(end)), 1.0, slow, d <= 3)


def solved(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The solution of linear equations, exactly, then rounded."""
    rows = [[*map(Fraction, row.tolist()), Fraction(float(b))] for row, b in zip(matrix, target, strict=True)]
    size = len(rows)
    for i in range(size):
        pivot = max(range(i, size), key=lambda k: abs(rows[k][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [entry / rows[i][i] for entry in rows[i]]
        for k in range(size):
            if k != i and rows[k][i]:
                factor = rows[k][i]
                rows[k] = [a - factor * b for a, b in zip(rows[k], rows[i], strict=True)]
    return np.array([float(row[-1]) for row in rows])


_FLOWS = (_isolated, _continuum, _circle, _underdetermined, _ill_conditioned)
