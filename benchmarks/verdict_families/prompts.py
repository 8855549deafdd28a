"""Single layers of linear attention, which flowsim knows well.

- one-weight: a prompt of one dimension. With s = u + U and m = u - U the product sm is conserved, and s^2 follows a
  logistic equation, so that every number along the flow has a closed form;
- one-layer: several dimensions, condition to 1e6. The limit is that which balance leaves, in rationals of the spectrum;
  values at a time are those of SciPy's DOP853.
"""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.integrate

from benchmarks.verdict_families.base import (
    LITTLE,
    Exact,
    Problem,
    Stated,
    first_time,
    said,
    value_at_a_time,
)
from benchmarks.verdict_families.sides import (
    dominates,
    ends_at_the_minimum,
    has_size,
    has_the_limit_size,
    tends_to_the_minimum,
)
from flowsim import LinearAttention, LinearAttentionLoss, LinearRegression, Stop


def _how(rng: np.random.Generator, timescale: float) -> dict:
    kind = rng.integers(4)
    if kind == 0:
        return {"t1": timescale * 10 ** rng.uniform(-2, 1)}
    if kind == 1:
        return {"stop": Stop(excess=10 ** rng.uniform(-6, -1), grad_norm=10 ** rng.uniform(-6, -1))}
    return {}


def one_weight(rng: np.random.Generator) -> Problem:
    """L = (a/2) (u U)^2 - b u U + .. in closed form: x = s^2 has dx/dt = -(a/2) (x - x_+) (x - x_-)."""
    lam, length = 10 ** rng.uniform(-3, 3), int(10 ** rng.uniform(0, 6))
    loss = LinearAttentionLoss(LinearRegression([[lam]], length))
    a, b = (lam + 2 * lam / length) * lam**2, lam**2
    scale = 10 ** rng.uniform(-8, 3)
    u = scale * (1.0 if rng.random() < 0.3 else 10 ** rng.uniform(-2, 2)) * rng.choice([1, 1, -1])
    U = scale * (1.0 if rng.random() < 0.3 else 10 ** rng.uniform(-2, 2)) * rng.choice([1, 1, -1])
    s, m = u + U, u - U
    c = s * m
    middle = 2 * b / a
    high = middle + np.hypot(middle, c)
    low = -(c**2) / high if high > 0 else 0.0
    timescale = 1 / (a * (high - low))
    how = _how(rng, timescale)

    def square(t):
        if s == 0 or t == np.inf:
            return 0.0 if s == 0 else high
        # Every term is positive, so that nothing cancels: with high much less than s^2 the ratio of the logistic
        # equation is 1 to nine digits.
        exponent = -(a / 2) * (high - low) * t
        gone, left = -np.expm1(exponent), np.exp(exponent)
        return (s**2 * (high - low * left) - high * low * gone) / ((s**2 - low) * gone + (high - low) * left)

    def curvature(x):
        return a * (x + (c**2 / x if x > 0 else m**2))

    def norm(x):
        return np.sqrt((x + (c**2 / x if x > 0 else 0.0)) / 2)

    def first_below(number):
        """When the curvature, convex in x, first is below a number."""
        if curvature(s**2) < number:
            return 0.0
        # It falls towards |c| alone, so that it is least there, at the limit, or at the start.
        nearest = abs(c) if (s**2 - abs(c)) * (high - abs(c)) < 0 else high
        if curvature(nearest) >= number:
            return None
        rising = high > s**2
        passed = lambda t: curvature(square(t)) < number or (square(t) > nearest if rising else square(t) < nearest)
        return first_time(passed, timescale)

    def statements(flow) -> list[Stated]:
        end = float(flow.t[-1])
        x0, x1 = s**2, square(end)
        found = []
        if s != 0:
            turn = [abs(c)] if min(x0, x1) < abs(c) < max(x0, x1) else []
            sharp = min(curvature(x) for x in (x0, x1, *turn))
            for number in (sharp * (1 - LITTLE), sharp * (1 + LITTLE)):
                found.append(said("gradient dominance", dominates, number, first_below(number)))
            found += value_at_a_time(has_size, lambda t: norm(square(t)), end)
        limit = norm(square(np.inf)) if s != 0 else 0.0
        if limit > 0:
            found += has_the_limit_size(limit, expected=not how)
        # From s = 0 the flow goes to the saddle, whose excess is b^2/(2a).
        threshold = 1e-6 * float(flow.excess[0])
        there = s != 0 or b**2 / (2 * a) <= threshold
        fails = None if there else 0.0
        minimum = float(loss.minimum) + threshold
        found.append(said("minimum", tends_to_the_minimum, minimum, fails, expected=not how))
        if not how:
            found.append(said("end", ends_at_the_minimum, threshold, fails))
        return found

    def exact(t):
        root = np.copysign(np.sqrt([square(time) for time in t]), s)
        other = np.full(t.size, m) if s == 0 else c / root
        models = jax.vmap(lambda U, u: LinearAttention(U[None, None], u))
        return Exact(models(jnp.asarray((root - other) / 2), jnp.asarray((root + other) / 2)))

    root = np.copysign(np.sqrt(high), s)
    end = LinearAttention([[(root - c / root) / 2]], (root + c / root) / 2) if s != 0 else None
    return Problem(loss, LinearAttention([[U]], u), how, statements, exact if s != 0 else None, end)


def one_layer(rng: np.random.Generator) -> Problem:
    """U in the eigenbasis; u^2 - |U|^2 = c is conserved, and u U -> 1/gamma."""
    d, length = int(rng.choice([2, 3])), int(10 ** rng.uniform(0, 6))
    lam = 10 ** rng.uniform(-2, 2) * 10 ** -np.append(rng.uniform(0, rng.choice([1, 6]), d - 1), 0.0)
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0] if rng.random() < 0.5 else np.eye(d)
    loss = LinearAttentionLoss(LinearRegression(basis * lam @ basis.T, length))
    lam = np.linalg.eigvalsh(np.asarray(loss.task.covariance))
    scale = 10 ** rng.uniform(-8, 1)
    factor = rng.standard_normal((d, d))
    shape = factor @ factor.T / np.linalg.norm(factor @ factor.T)
    balanced = rng.random() < 0.5
    u = scale * (1.0 if balanced else 10 ** rng.uniform(-2, 2))
    start = LinearAttention(scale * shape, u)
    gamma = lam + (lam + lam.sum()) / length
    c = u**2 - scale**2 * np.sum(shape**2)
    root = np.sqrt(c**2 + 4 * float(np.sum(gamma**-2.0)))
    limit = np.sqrt(root)  # u^2 + |U|^2 at u^2 = (c + root)/2
    how = _how(rng, 1 / (gamma[-1] * lam[-1] ** 2 * limit**2))
    stiff = lam[-1] > 30 * lam[0] or "t1" not in how

    def field(t, y):
        U, u = y[:-1].reshape(d, d), y[-1]
        residual = u * gamma[:, None] * U - np.eye(d)
        weight = np.outer(lam, lam) * residual
        return np.append(-u * weight, -np.sum(weight * U))

    def solved(times):
        """The flow at increasing times from 0 on, in the eigenbasis and in units of the start."""
        vectors = np.linalg.eigh(np.asarray(loss.task.covariance))[1]
        y0 = np.append((vectors.T @ (scale * shape) @ vectors).reshape(-1), u)
        scaled = lambda t, y: field(t, u * y) / u
        found = scipy.integrate.solve_ivp(scaled, (0, times[-1]), y0 / u, "DOP853", times, rtol=1e-13, atol=1e-15)
        return found.y.T

    def statements(flow) -> list[Stated]:
        end = float(flow.t[-1])
        found = has_the_limit_size(limit, expected=not how)
        minimum = float(loss.minimum) + 1e-6 * float(flow.excess[0])
        found.append(said("minimum", tends_to_the_minimum, minimum, None, expected=not how))
        if not how:
            found.append(said("end", ends_at_the_minimum, 1e-6 * flow.excess[0], None))
        at_start = float(flow.grad_norm_sq[0] / flow.excess[0])
        found.append(said("gradient dominance", dominates, at_start * (1 + LITTLE), 0.0))
        times = np.append(0.0, np.geomspace(1e-6, 1.0, 400) * end)
        if stiff:
            return found
        states = solved(times)
        found += value_at_a_time(has_size, lambda t: u * np.linalg.norm(solved(np.array([0.0, t]))[-1]), end)
        residuals = u**2 * states[:, -1, None, None] * gamma[:, None] * states[:, :-1].reshape(-1, d, d) - np.eye(d)
        excess = 0.5 * np.sum(np.outer(lam / gamma, lam) * residuals**2, axis=(1, 2))
        slopes = np.sum(np.asarray([field(0.0, u * y) for y in states]) ** 2, axis=1)
        if np.min(excess) > 1e-10 * np.max(excess):
            least = int(np.argmin(slopes / excess))
            number = slopes[least] / excess[least] * (1 + LITTLE)
            found.append(said("gradient dominance", dominates, number, float(times[least])))
        return found

    u_end = np.sqrt((c + root) / 2)
    vectors = np.linalg.eigh(np.asarray(loss.task.covariance))[1]
    end = LinearAttention(vectors / (gamma * u_end) @ vectors.T, u_end)
    return Problem(loss, start, how, statements, limit=end)
