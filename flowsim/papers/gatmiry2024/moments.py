"""gatmiry2024's control of E W^k: both sides of Lemmas 4.2, 4.3, A.2, A.5 and A.7, from exact rational moments."""

import collections
import functools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from flowsim.claims.claim import Comparison, at_least, at_most
from flowsim.flow.trajectory import Trajectory
from flowsim.moments.words import Terms, expected_traces
from flowsim.papers.gatmiry2024.lemma_settings import Loss, Shape, shape

Spectrum = tuple[Fraction, ...]


@functools.cache
def _trace_power(power: int) -> Terms:
    """E tr (W A)^k."""
    return expected_traces({("WA" * power,): 1}, "A")


@functools.lru_cache(maxsize=512)
def moment_errors(eigenvalues: Spectrum, multiplicities: tuple[int, ...], length: int | None, power: int) -> Spectrum:
    """alpha^{(j)} - lambda_j^k of E[(M^{1/2} W M^{1/2})^k] = sum_j alpha^{(j)} u_j u_j^T, exactly, for each eigenvalue.

    As d tr (W M)^k = k tr((W M)^{k-1} W dM), alpha^{(j)} = (lambda_j / k) d/d lambda_j of E tr (W M)^k, in which every
    term but the first carries a power of 1/n.
    """
    sums = [sum(m * x**i for x, m in zip(eigenvalues, multiplicities, strict=True)) for i in range(power + 1)]
    totals = [Fraction(0)] * len(eigenvalues)
    for (order, words), coefficient in _trace_power(power).items():
        if order == 0 or length is None:
            continue
        lengths = collections.Counter(map(len, words))
        weight = Fraction(coefficient, length**order)
        for size, count in lengths.items():
            rest = math.prod((sums[i] ** (c - (i == size)) for i, c in lengths.items()), start=weight * count * size)
            for j, x in enumerate(eigenvalues):
                totals[j] += rest * x**size
    return tuple(total / power for total in totals)


def residual_errors(eigenvalues: Spectrum, multiplicities: tuple[int, ...], length: int | None, power: int) -> Spectrum:
    """beta^{(i)} - (1 - lambda_i)^k of E[(I - M^{1/2} W M^{1/2})^k], exactly."""
    totals = [Fraction(0)] * len(eigenvalues)
    for j in range(1, power + 1):
        errors = moment_errors(eigenvalues, multiplicities, length, j)
        totals = [total + math.comb(power, j) * (-1) ** j * error for total, error in zip(totals, errors, strict=True)]
    return tuple(totals)


def _within(known: Shape, errors: Sequence[Spectrum], bounds: Sequence[float]) -> Comparison:
    """|error| <= bound for every k and eigenvalue; nothing is promised at n = infinity, where both are zero."""
    sizes = jnp.asarray([[abs(float(error)) for error in row] for row in errors]).reshape(-1)
    limits = jnp.repeat(jnp.asarray(bounds), len(errors[0]))
    return at_most(sizes, limits, promised=known.length is not None)


def _powers(known: Shape) -> range:
    return range(1, 2 * known.loops + 1)


def _with_accuracy(known: Shape, power: int) -> float:
    """delta^k with the delta of section 3.5."""
    return known.accuracy**power


def _with_first_order(known: Shape, power: int) -> float:
    """4 k d / sqrt(n), which the appendix writes delta^k, and delta."""
    return known.first_order(power)


def _moments(bound: Callable[[Shape, int], float]) -> Callable[[Loss, Trajectory], Comparison]:
    def compare(loss: Loss, trajectory: Trajectory) -> Comparison:
        known = shape(loss)
        largest = float(known.eigenvalues[0])
        errors = [moment_errors(known.eigenvalues, known.multiplicities, known.length, k) for k in _powers(known)]
        return _within(known, errors, [bound(known, k) * largest**k for k in _powers(known)])

    return compare


def _spectra(known: Shape) -> list[tuple[Spectrum, tuple[int, ...]]]:
    """Eigenvalues of A^{1/2} S A^{1/2} for A = I, 100 I, S^-1 and 2 S^-1; only they matter."""
    same, values = known.multiplicities, known.eigenvalues
    ones = ((Fraction(1),), (known.dimension,))
    twos = ((Fraction(2),), (known.dimension,))
    return [(values, same), (tuple(100 * x for x in values), same), ones, twos]


def _residuals(bound: Callable[[Shape, int], float]) -> Callable[[Loss, Trajectory], Comparison]:
    def compare(loss: Loss, trajectory: Trajectory) -> Comparison:
        known, parts = shape(loss), []
        for values, counts in _spectra(known):
            errors = [residual_errors(values, counts, known.length, k) for k in _powers(known)]
            largest = float(values[0])
            parts.append(_within(known, errors, [bound(known, k) * (largest + 1) ** k for k in _powers(known)]))
        return jax.tree.map(lambda *series: jnp.concatenate(series), *parts)

    return compare


moment_controls = _moments(_with_accuracy)
moment_controls_first_order = _moments(_with_first_order)
eigenvalue_approximation = _residuals(_with_accuracy)
eigenvalue_approximation_first_order = _residuals(_with_first_order)


def isotropic_errors(known: Shape) -> list[Fraction]:
    """alpha_{n,d,k} - 1 of E W^k = alpha I, for k = 1, .., 2L."""
    one, counts = (Fraction(1),), (known.dimension,)
    return [moment_errors(one, counts, known.length, k)[0] for k in _powers(known)]


def isotropic_moments(loss: Loss, trajectory: Trajectory) -> Comparison:
    """1 <= alpha_{n,d,k} <= 1 + 4 k d / sqrt(n), minus 1 throughout. At k = 1 alpha is 1, so that the lower bound, an
    equality, is left out.
    """
    known = shape(loss)
    errors = jnp.asarray([float(error) for error in isotropic_errors(known)])
    bounds = jnp.asarray([known.first_order(k) for k in _powers(known)])
    finite = known.length is not None
    upper = at_most(errors, bounds, promised=finite)
    lower = at_least(errors, 0.0, size=1.0, promised=finite & (np.arange(errors.size) > 0))
    return jax.tree.map(lambda *series: jnp.concatenate(series), upper, lower)


def isotropic_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The constant 4, the sharp one here, and alpha - 1 over its leading term k (k - 1)(d + 1)/(2n) at k = 2L."""
    known = shape(loss)
    errors, n = isotropic_errors(known), math.inf if known.length is None else known.length
    sharp = max(
        4 * float(error) / max(known.first_order(k), 1e-300) for k, error in zip(_powers(known), errors, strict=True)
    )
    k, d = 2 * known.loops, known.dimension
    leading = k * (k - 1) * (d + 1) / (2 * n)
    return {
        "constant": jnp.asarray(4.0),
        "sharp_constant": jnp.asarray(sharp),
        "over_leading_term": jnp.asarray(float(errors[-1]) / leading if leading else 1.0),
    }


def moment_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """delta, and the least n at which |alpha^{(j)} - lambda_j^k| <= delta^k lambda_1^k for all k <= 2L, by doubling and
    bisection.
    """
    known = shape(loss)

    def met(n: int) -> bool:
        there = Shape(known.loops, known.dimension, n, known.eigenvalues, known.multiplicities)
        largest = float(known.eigenvalues[0])
        return all(
            max(map(float, moment_errors(known.eigenvalues, known.multiplicities, n, k)))
            <= there.accuracy**k * largest**k
            for k in _powers(known)
        )

    high = 1
    while not met(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if met(middle) else (middle, high)
    return {"delta": jnp.asarray(known.accuracy), "holds_from_n": jnp.asarray(float(high))}
