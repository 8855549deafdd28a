"""The explicit method: Tsit5, or a stabilized method of order 4 with more stages if Tsit5 is unstable at a step.

The Jacobian of a gradient flow is symmetric, so stability is only needed on the negative real axis. With s stages
the stable interval has the length .35 s^2 - 3.5. The last four stages have a stability polynomial w of degree 4.
All other stages follow the three-term recurrence of the polynomials P that are orthogonal on the stable interval,
mapped to [-1, 1], with the weight w^2/sqrt(1 - x^2). Here w is chosen such that |w P| is at most about .9 on the
interval and the method has order 4. The last stages multiply the rounding errors of the others by w, which is about
s^8/6000 at the end of the interval. Therefore s is at most 16.

**Source:** Abdulle, Fourth order Chebyshev methods with recurrence relation (2002).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

from flowsim._core.types import Scalar

Weights = Float[Array, " n"]

_COUNTS = (5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16)  # of stages
_LAST = 4
_FIRST_GUESS = 1.62, 15.0, 21.4, 8.0  # of the zeros of w at `_GUESSED` stages, in units of the interval over s^2
_GUESSED = 12
_CLASSICAL = 1 / 2, 0, 1 / 2, 0, 0, 1, 1 / 6, 1 / 3, 1 / 3, 1 / 6  # Runge-Kutta of order 4: a21, a31, .., a43, b
_ESTIMATE = 2e-4  # z^4 of the estimate for y' = z y, by convention
_TSIT5_STABLE = 2.8  # the step of Tsit5 times the fastest rate, 3.5 less some caution
_CAUTION = 1.1  # times a rate that a power iteration finds, which is below the fastest
_FIELDS_OF_A_PRODUCT = 2  # of the Jacobian and a vector
_POWERS = 8  # of the Jacobian, before the first step


class Formula(NamedTuple):
    """The coefficients of the stabilized method with s stages, for y' = f(y) and a step of length h.

    **Fields:**

    - stable: the length of the stable interval, the largest stable h times the fastest rate of decay.
    - recurrence: (a, b, c) for each of the first s - 4 stages. With g_k the difference of stage k from the start y
      of the step, g_{k+1} = b g_k + a h f(y + g_k) - c g_{k-1}. Rows of zeros pad it to one shape for all s.
    - matrix: the last four stages as a Runge-Kutta method: rows 2 to 4 of its tableau, and its weights as the last
      row.
    - error: the coefficients of f at the last four stages and at the end of the step in the error estimate.
    """

    stable: float
    recurrence: Float[np.ndarray, "first 3"]
    matrix: Float[np.ndarray, "4 4"]
    error: Float[np.ndarray, " 5"]


@functools.cache
def formulas() -> tuple[Formula, ...]:
    """The stabilized methods for all numbers of stages in `_COUNTS`, in this order."""
    found: dict[int, Formula] = {}
    fewer, more = sorted((s for s in _COUNTS if s < _GUESSED), reverse=True), [s for s in _COUNTS if s >= _GUESSED]
    for counts in (fewer, more):
        # The numbers of one method are a guess of the next one's.
        zeros, last = np.asarray(_FIRST_GUESS), None
        for s in counts:
            found[s], zeros, last = _formula(s, zeros, last)
    return tuple(found[s] for s in _COUNTS)


def _formula(s: int, guess: np.ndarray, last: np.ndarray | None) -> tuple[Formula, np.ndarray, np.ndarray]:
    stable, first = 0.35 * s**2 - 3.5, s - _LAST

    def zeros_of(numbers: np.ndarray) -> np.ndarray:
        """The zeros of w as a function of x in [-1, 1], where x = 1 is the origin and x = -1 the end of the stable
        interval.
        """
        real, imaginary = numbers[:2], numbers[2:]
        return 1 - np.append(real + 1j * imaginary, real - 1j * imaginary) / s**2

    def conditions(numbers: np.ndarray) -> np.ndarray:
        """The residuals of the condition that the stability polynomial R = w P agrees with e^z up to z^4. They
        compare the power sums of the reciprocal zeros of R, which determine log R.
        """
        w = zeros_of(numbers)
        diagonal, beside = _recurrence(w, first)
        jacobi = np.diag(diagonal) + np.diag(beside[:-1], 1) + np.diag(beside[:-1], -1)
        reciprocal = 1 / ((1 - np.append(w, np.linalg.eigvalsh(jacobi))) * s**2)
        sums = np.real([np.sum(reciprocal**power) for power in (1, 2, 3, 4)])
        return sums - np.asarray([stable / (2 * s**2), 0, 0, 0])

    numbers = _solve(conditions, guess)
    w = zeros_of(numbers)
    recurrence = _scaled(*_recurrence(w, first), 2 / stable)
    rows = [np.zeros(first), np.zeros(first)]  # of the tableau, the first of them before the start
    for k, (a, b, c) in enumerate(recurrence):
        rows.append(b * rows[-1] + a * np.eye(first)[k] - c * rows[-2])
    taylor = np.poly1d(np.real(np.poly(w)))(np.poly1d([2 / stable, 1.0])).coeffs[::-1]
    powers = taylor[1:] / taylor[0]  # of z in w

    def tableau(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        matrix = np.zeros((s, s))
        matrix[:first, :first], matrix[first:, :first] = rows[1:-1], rows[-1]
        matrix[first:, first:][np.tril_indices(_LAST, -1)] = numbers[:6]
        return matrix, np.append(rows[-1], numbers[6:])

    def order(numbers: np.ndarray) -> np.ndarray:
        """The residuals of the conditions that the last four stages have the stability polynomial w, and that the
        whole method has order 4.
        """
        A, b = tableau(numbers)
        c, own, its = A.sum(axis=1), A[first:, first:], numbers[6:]
        ones = np.ones(_LAST)
        tall = [its @ np.linalg.matrix_power(own, k) @ ones for k in range(_LAST)] - powers
        bushy = [b @ c**2 - 1 / 3, b @ c**3 - 1 / 4, b @ (c * (A @ c)) - 1 / 8, b @ A @ c**2 - 1 / 12]
        return np.append(tall, bushy)

    numbers_last = _solve(order, powers[0] * np.asarray(_CLASSICAL) if last is None else last)
    A, b = tableau(numbers_last)
    c = A.sum(axis=1)
    stages = np.vstack([A[first:], b])  # and f at the end
    ends = stages.sum(axis=1)
    # The one combination of stages that is an error of order 3.
    error = np.linalg.svd(np.stack([ends**0, ends, ends**2, stages @ c]))[2][-1]
    error = error / (error @ stages @ A @ c)
    # At the end of the interval it is largest: a stiff component counts whole at most.
    error = error * min(_ESTIMATE, 1 / abs(_estimate(-stable, A, stages, error)))
    recurrence = np.pad(recurrence, ((0, max(_COUNTS) - s), (0, 0)))  # all of one shape
    return Formula(stable, recurrence, np.vstack([A[first + 1 :, first:], b[first:]]), error), numbers, numbers_last


def _estimate(z: float, A: np.ndarray, stages: np.ndarray, error: np.ndarray) -> float:
    """The error estimate of a step of length 1 for y' = z y from y = 1."""
    fields = z * np.linalg.solve(np.eye(len(A)) - z * A, np.ones(len(A)))
    return float(error @ (z * (1 + stages @ fields)))


def _recurrence(w: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The diagonal and off-diagonal entries (count,) of the Jacobi matrix for the weight |w|^2/sqrt(1 - x^2) on
    [-1, 1], by the procedure of Stieltjes. ``w`` holds the zeros of the polynomial w(x).
    """
    nodes = count + 8
    x = np.cos((2 * np.arange(nodes) + 1) * np.pi / (2 * nodes))
    measure = np.abs(np.prod(x[:, None] - w, axis=1)) ** 2
    measure /= np.sum(measure)
    diagonal, beside = np.zeros(count), np.zeros(count)
    before, now, last = np.zeros(nodes), np.ones(nodes), 0.0
    for k in range(count):
        diagonal[k] = measure @ (x * now**2)
        after = (x - diagonal[k]) * now - last * before
        last = beside[k] = np.sqrt(measure @ after**2)
        before, now = now, after / last
    return diagonal, beside


def _scaled(diagonal: np.ndarray, beside: np.ndarray, slope: float) -> np.ndarray:
    """The coefficients (a, b, c) of the recurrence P_{k+1} = (b + a z) P_k - c P_{k-1} in z = (x - 1)/slope, for
    the orthogonal polynomials scaled to be 1 at x = 1.

    **Arguments:** ``diagonal``, ``beside``: the diagonal and off-diagonal entries of their Jacobi matrix; slope:
    dx/dz.
    """
    values, last = [0.0, 1.0], 0.0
    for a, b in zip(diagonal, beside, strict=True):
        values.append(((1 - a) * values[-1] - last * values[-2]) / b)
        last = b
    before, now, after = (np.asarray(values[k : k + len(beside)]) for k in range(3))
    previous = np.append(0.0, beside[:-1])
    return np.stack([slope * now, (1 - diagonal) * now, previous * before], axis=1) / (beside * after)[:, None]


def _solve(conditions: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    """Solve conditions(x) = 0 by Newton's method from x, with derivatives by differences. If the system is
    underdetermined, each correction has the least norm.
    """
    for _ in range(50):
        left = conditions(x)
        if np.max(np.abs(left)) < 1e-14:
            return x
        moves = 1e-6 * np.maximum(1.0, np.abs(x)) * np.eye(x.size)
        slopes = [(conditions(x + move) - conditions(x - move)) / (2 * np.max(move)) for move in moves]
        x = x - np.linalg.lstsq(np.stack(slopes, axis=1), left, rcond=None)[0]
    return x


class Kept(NamedTuple):
    """The data that one step passes to the next.

    **Fields:**

    - slope: the field at the start of the next step.
    - direction, rate: estimates of the direction in which the flow decays fastest, and of the rate there.
    - fields: the number of evaluations of the field so far.
    """

    slope: Float[Array, " n"]
    direction: Float[Array, " n"]
    rate: Scalar
    fields: Int[Array, ""]


class Stabilized(diffrax.AbstractAdaptiveSolver):
    """A diffrax solver that steps by Tsit5, or by the stabilized method of order 4 if Tsit5 would be unstable."""

    term_structure = diffrax.ODETerm
    interpolation_cls = diffrax.LocalLinearInterpolation

    def order(self, terms):
        """The order of the method at the ends of steps."""
        return 4

    def error_order(self, terms):
        """The power of the step length to which the error estimate is proportional."""
        return 5

    def func(self, terms, t0, y0, args):
        """The velocity of (weights, dissipated energy)."""
        return terms.vf(t0, y0, args)

    def init(self, terms, t0, t1, y0, args):
        """The data for the first step, with the fastest rate of decay found by a power iteration."""
        field, y = _flat(terms, t0, y0, args)
        random = jax.random.rademacher(jax.random.key(0), y[:-1].shape, dtype=y.dtype)
        turn = lambda _, found: _turned(field, y, found[0])
        direction, rate = jax.lax.fori_loop(0, _POWERS, turn, (random, jnp.zeros(())))
        return Kept(field(y), direction, rate, jnp.asarray(1 + _POWERS * _FIELDS_OF_A_PRODUCT))

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        """Make one step, and estimate its error for each weight."""
        field, y = _flat(terms, t0, y0, args)
        _, unravel = ravel_pytree(y0)
        length, kept = jnp.asarray(t1 - t0), solver_state
        stable = length * kept.rate <= _TSIT5_STABLE
        end, error, kept = jax.lax.cond(
            stable, lambda: _tsit5(field, y, kept, length), lambda: _chebyshev(field, y, kept, length)
        )
        y1 = unravel(end)
        return y1, unravel(error), {"y0": y0, "y1": y1}, kept, diffrax.RESULTS.successful


def _tsit5(field: Callable, y: Weights, kept: Kept, length: Scalar) -> tuple[Weights, Weights, Kept]:
    """Make a step of Tsit5. Return its end, its error estimate and the data for the next step."""
    tableau = diffrax.Tsit5.tableau
    before, end, fields = _runge_kutta(field, y, kept.slope, length, jnp.asarray(_rows(tableau.a_lower)))
    # The last two stages are at one time, and differ in the direction that is least stable.
    difference = (end - before)[:-1]
    apart = jnp.linalg.norm(difference)
    rate = jnp.linalg.norm((fields[-1] - fields[-2])[:-1]) / jnp.where(apart > 0, apart, 1.0)
    error = length * (jnp.asarray(tableau.b_error) @ fields)
    return end, error, Kept(fields[-1], difference, rate, kept.fields + len(fields) - 1)


def _chebyshev(field: Callable, y: Weights, kept: Kept, length: Scalar) -> tuple[Weights, Weights, Kept]:
    """Make a step of the stabilized method, with the fewest stages that are stable. Return its end, its error
    estimate and the data for the next step. The error is infinite if the step is too long even for 16 stages.
    """
    direction, rate = _turned(field, y, kept.direction)
    columns = zip(*formulas(), strict=True)
    stable, recurrences, matrices, errors = (jnp.asarray(np.stack(column)) for column in columns)
    needed = jnp.searchsorted(stable, _CAUTION * length * rate)
    fits = needed < len(_COUNTS)
    one = jnp.where(fits, needed, 0)  # where none fits, the least work
    recurrence, count = recurrences[one], jnp.asarray(_COUNTS)[one]

    def extend(k: Array, both: tuple[Weights, Weights]) -> tuple[Weights, Weights]:
        before, now = both
        a, b, c = recurrence[k]
        return now, a * length * field(y + now) + b * now - c * before

    start = jnp.zeros_like(y), recurrence[0, 0] * length * kept.slope
    base = y + jax.lax.fori_loop(1, count - _LAST, extend, start)[1]
    _, end, fields = _runge_kutta(field, base, field(base), length, matrices[one])
    error = jnp.where(fits, length * (errors[one] @ fields), jnp.inf)
    return end, error, Kept(fields[-1], direction, rate, kept.fields + count + _FIELDS_OF_A_PRODUCT)


def _turned(field: Callable, y: Weights, direction: Float[Array, " m"]) -> tuple[Float[Array, " m"], Scalar]:
    """Make one step of the power iteration that estimates the fastest rate of decay.

    Let J be the Jacobian of the velocity of the weights, and v the normalized ``direction``. The last entry of y is
    the dissipated energy, and J leaves it out.

    **Returns:** J v and |J v|.
    """
    size = jnp.linalg.norm(direction)
    along = direction / jnp.where(size > 0, size, 1.0)
    turned = jax.jvp(lambda x: field(jnp.append(x, y[-1]))[:-1], (y[:-1],), (along,))[1]
    return turned, jnp.linalg.norm(turned)


def _runge_kutta(
    field: Callable, y: Weights, slope: Weights, length: Scalar, matrix: Float[Array, "stages stages"]
) -> tuple[Weights, Weights, Float[Array, "stages+1 n"]]:
    """Evaluate an explicit Runge-Kutta method.

    **Arguments:** field: the velocity; y, slope: the start and the field there; length: of the step; matrix: the
    rows of the tableau after the first, with the weights as the last row.

    **Returns:** the last stage, the end of the step, and the field at all stages and at the end.
    """

    def extend(i: Array, now: tuple[Weights, Weights, Array]) -> tuple[Weights, Weights, Array]:
        _, last, fields = now
        point = y + length * (matrix[i] @ fields[:-1])
        return last, point, fields.at[i + 1].set(field(point))

    fields = jnp.zeros((len(matrix) + 1, y.size)).at[0].set(slope)
    return jax.lax.fori_loop(0, len(matrix), extend, (y, y, fields))


def _rows(lower: Sequence[np.ndarray]) -> np.ndarray:
    """The rows of the strict lower triangle of a tableau, padded by zeros to equal length."""
    return np.stack([np.append(row, np.zeros(len(lower) - len(row))) for row in lower])


def _flat(terms: diffrax.AbstractTerm, t: Any, y: PyTree, args: Any) -> tuple[Callable, Weights]:
    """The field as a function of one vector, the weights followed by the dissipated energy, and this vector at y."""
    vector, unravel = ravel_pytree(y)
    return lambda x: ravel_pytree(terms.vf(t, unravel(x), args))[0], vector
