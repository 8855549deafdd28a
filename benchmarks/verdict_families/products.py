"""Losses of a user's own whose flows conserve something, or are linear.

- factors: (1/2) sum_i (prod_j w_ij - 1)^2, with its minimum told or not. What is conserved leaves the limit, which
  bisection finds;
- quadratic: (1/2) sum_i k_i x_i^2, condition to 1e6, solved by exponentials.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jaxtyping import Array

from benchmarks.verdict_families.base import (
    LITTLE,
    Exact,
    Point,
    Problem,
    Stated,
    cut,
    first_time,
    said,
    value_at_a_time,
    way,
)
from benchmarks.verdict_families.sides import (
    decays,
    dominates,
    ends_at_the_minimum,
    has_size,
    has_the_limit_size,
    tends_to_the_minimum,
)
from flowsim import FunctionLoss


class Factors(eqx.Module):
    """w: (rows, factors)."""

    w: Array


def products(model: Factors) -> Array:
    """(1/2) sum_i (prod_j w_ij - 1)^2."""
    return 0.5 * jnp.sum((jnp.prod(model.w, axis=1) - 1) ** 2)


def factors(rng: np.random.Generator) -> Problem:
    """w_ij^2 - w_ik^2 is conserved, and every product of a row with positive factors tends to 1."""
    rows, count = int(rng.choice([1, 2])), int(rng.choice([2, 3]))
    scale = 10 ** rng.uniform(-6 if count == 2 else -3, 0.5)
    shape = np.ones((rows, count)) if rng.random() < 0.4 else rng.uniform(0.2, 1.0, (rows, count))
    w = scale * shape * np.append(1.0, rng.uniform(0.2, 1.0, rows - 1))[:, None]
    known = rng.random() < 0.6
    loss = FunctionLoss(products, minimum=0.0 if known else None)
    how = way(rng, scale ** (2 - count), longest=1e6)
    ends = np.sqrt(np.array([balanced_row(row) for row in w]))
    limit = float(np.linalg.norm(ends))

    def statements(flow) -> list[Stated]:
        found = has_the_limit_size(limit, expected=not how)
        found.append(said("minimum", tends_to_the_minimum, 1e-6 * flow.loss[0], None, expected=not how))
        if not how and known:
            found.append(said("end", ends_at_the_minimum, 1e-6 * flow.excess[0], None))
        if known:
            at_start = float(flow.grad_norm_sq[0] / flow.excess[0])
            found.append(said("gradient dominance", dominates, at_start * (1 + LITTLE), 0.0))
        return found

    return Problem(loss, Factors(jnp.asarray(w)), how, statements, limit=Factors(jnp.asarray(ends)))


def balanced_row(row: np.ndarray) -> np.ndarray:
    """The squares at the limit: those at the start and one number more, whose product is 1."""
    offsets = row**2 - np.min(row**2)
    bracket = {"bracket": (-80.0, 10.0), "xtol": 1e-15, "rtol": 1e-15}
    found = scipy.optimize.root_scalar(lambda z: np.prod(offsets + np.exp(z)) - 1, **bracket)
    return offsets + np.exp(found.root)


class Parabola(eqx.Module):
    """(1/2) sum_i k_i x_i^2."""

    curvatures: Array

    def __call__(self, model: Point) -> Array:
        return 0.5 * jnp.sum(self.curvatures * model.x**2)


def quadratic(rng: np.random.Generator) -> Problem:
    """x_i(t) = x_i(0) exp(-k_i t)."""
    d = int(rng.choice([2, 4]))
    k = 10 ** rng.uniform(-2, 2) * 10 ** -rng.uniform(0, rng.choice([1, 6]), d)
    x = 10 ** rng.uniform(-8, 3) * rng.standard_normal(d)
    loss = FunctionLoss(Parabola(jnp.asarray(k)), minimum=0.0 if rng.random() < 0.7 else None)
    how = (way if rng.random() < 0.7 else cut)(rng, 1 / k.max())

    def weights(t):
        """What k_i x_i(t)^2 is of its sum, and the logarithm of the sum."""
        logs = np.log(k * x**2) - 2 * k * t
        return np.exp(logs - logs.max()), float(logs.max())

    def ratio(t):
        """|grad L|^2 / (L - min L): it falls, by the inequality of Cauchy and Schwarz, towards twice the least k."""
        parts, _ = weights(t)
        return 2 * np.sum(k * parts) / np.sum(parts)

    def rate(t):
        """That of the decay until t: it falls, since log L is convex, towards twice the least k."""
        (first, scale), (then, later) = weights(0.0), weights(t)
        return (np.log(np.sum(first)) + scale - np.log(np.sum(then)) - later) / t

    def statements(flow) -> list[Stated]:
        T = float(flow.t[-1])
        then = x * np.exp(-k * T)
        found = []
        if np.isfinite(float(flow.excess[0])):
            visible = bool(np.sum(k * then**2) > 1e-20 * np.sum(k * x**2))
            # What a rate that is off by little does in a short time is below what a solver knows.
            long = visible and rate(T) * T > 0.01
            for name, compare, value, seen in (
                ("gradient dominance", dominates, ratio, visible),
                ("decay", decays, rate, long),
            ):
                for number in (value(T) * (1 - LITTLE), value(T) * (1 + LITTLE)):
                    # Both are at first what the ratio is then, and fall to twice the least k.
                    if number > ratio(0.0):
                        fails = 0.0
                    elif number > 2 * k.min() * (1 + 1e-12):
                        fails = first_time(lambda t, value=value, number=number: t > 0 and value(t) < number, T)
                    else:
                        fails = None
                    found.append(said(name, compare, number, fails, expected=seen))
        found += value_at_a_time(has_size, lambda t: np.linalg.norm(x * np.exp(-k * t)), T, expected=k.min() * T < 30)
        little = 1e-9 * float(flow.loss[0])
        found += [said("minimum", tends_to_the_minimum, little, None, expected=not how)]
        found += [said("minimum", tends_to_the_minimum, -little, 0.0, expected=not how)]
        if not how and np.isfinite(float(flow.excess[0])):
            found.append(said("end", ends_at_the_minimum, 1e-6 * flow.excess[0], None))
        return found

    def exact(t):
        return Exact(Point(jnp.asarray(x * np.exp(-np.outer(t, k)))))

    return Problem(loss, Point(jnp.asarray(x)), how, statements, exact, Point(jnp.zeros(d)))
