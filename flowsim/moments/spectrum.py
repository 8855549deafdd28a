"""The mean spectrum of W = (1/n) sum_{a <= n} z_a z_a^T, z_a ~ N(0, I_d): exact moments and Gauss quadrature.

All functions compute on the host, in whole numbers and in decimals with enough digits. n may be smaller than d, or
as large as 1e300.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from flowsim._core import checks

_FIRST_DIGITS = 64
_AGREEMENT, _NOTHING = Decimal("1e-20"), Decimal("1e-300")
_MOST_ITERATIONS = 50


class Quadrature(NamedTuple):
    """A rule sum_j w_j f(1 + y_j) for E tr f(W).

    **Fields:**

    - offsets: y_j, (m,), the nodes minus 1, increasing, to full relative precision.
    - weights: w_j > 0, (m,), with sum d.
    """

    offsets: np.ndarray
    weights: np.ndarray


class Recurrence(NamedTuple):
    """The recurrence of the monic orthogonal polynomials p_k of a measure.

        p_{k+1}(y) = (y - alpha_k) p_k(y) - beta_k p_{k-1}(y)

    **Fields:**

    - total: the mass of the measure.
    - shifts: alpha_0, .., alpha_{m-1}.
    - norms: beta_1, .., beta_{m-1} > 0.
    """

    total: Decimal
    shifts: list[Decimal]
    norms: list[Decimal]


def mean_trace_power(dimension: int, context_length: int | float, power: int) -> Fraction:
    """E tr W^m for m = ``power``, as an exact rational number. It is d for an infinite n.

    The power sum tr S^m of S = n W is a sum of zonal polynomials of the partitions kappa = (a, b, 1, .., 1) of m,
    whose expectations are known. Let f(2 kappa) be the number of standard tableaux of the shape (2a, 2b, 2, .., 2).
    Then

        E tr S^m = 1/(2m - 1)! sum_kappa f(2 kappa) prod'_s c(s) prod_s (d + c(s)) (n + c(s)).

    The products run over the boxes s = (i, j) of kappa, and prod' leaves out the box (1, 1). The content c(s) is 2
    (j - 1) - (i - 1).

    **Raises:** `ValueError` unless d >= 1 and m >= 0 are whole and n is a whole number of at least 1 or infinity.

    **Source:** Hanlon, Stanley and Stembridge, Some combinatorial aspects of the spectra of normally distributed
    random matrices (1992); Macdonald, Symmetric Functions and Hall Polynomials, sections VI.10 and VII.2.
    """
    d, n = checks.count("dimension", dimension), _length(context_length)
    m = _whole("power", power)
    if n is None or m == 0:
        return Fraction(d)
    return Fraction(_trace_powers(d, n, m)[m], n**m)


def mean_central_trace_power(dimension: int, context_length: int | float, power: int) -> Fraction:
    """E tr (W - I)^m for m = ``power``, as an exact rational number.

    **Raises:** as `mean_trace_power` does.
    """
    d, n = checks.count("dimension", dimension), _length(context_length)
    m = _whole("power", power)
    if n is None:
        return Fraction(d if m == 0 else 0)
    return _central_trace_powers(d, n, m)[m]


@functools.lru_cache(maxsize=256)
def spectral_quadrature(dimension: int, context_length: int | float, degree: int) -> Quadrature:
    """Gauss quadrature of f -> E tr f(W), exact for polynomials of the given degree.

    All weights are positive, so the expectation of a function f >= 0 has full relative precision, however small it is.
    An infinite n has one node, y = 0.

    **Arguments:**

    - dimension: d.
    - context_length: n, a whole number of at least 1 or infinity.
    - degree: at least 0.

    **Raises:** `ValueError` naming the argument.
    """
    degree = _whole("degree", degree)
    compute = lambda digits: itertools.chain(*precise_quadrature(dimension, context_length, degree, digits))
    offsets, weights = np.split(np.array(list(map(float, converged(compute, context_length)))), 2)
    for array in (offsets, weights):
        array.flags.writeable = False
    return Quadrature(offsets, weights)


def precise_quadrature(
    dimension: int, context_length: int | float, degree: int, digits: int
) -> tuple[list[Decimal], list[Decimal]]:
    """The offsets and the weights of `spectral_quadrature`, computed in decimals of ``digits`` digits.

    Rounding makes the last of these digits wrong.
    """
    if _length(context_length) is None:
        return [Decimal(0)], [Decimal(checks.count("dimension", dimension))]
    recurrence = spectral_recurrence(dimension, context_length, degree // 2 + 1, digits)
    nodes = zeros(recurrence, digits)
    with localcontext() as context:
        context.prec = digits
        return nodes, [recurrence.total / sum(squares(recurrence, y)) for y in nodes]


def converged(compute: Callable[[int], Iterable[Decimal]], context_length: int | float) -> list[Decimal]:
    """``compute(digits)`` with so large a number of digits that doubling it changes nothing in float64.

    **Arguments:**

    - compute: returns the values for a number of digits.
    - context_length: n. It sets the first number of digits, since numbers of size n^{-1/2} cancel to 1/n.
    """
    n = _length(context_length)
    digits = _FIRST_DIGITS + (0 if n is None else len(str(n)))
    coarse, fine = list(compute(digits)), list(compute(2 * digits))
    # A node may be zero, but no weight is this small.
    nothing = _NOTHING / (n or 1)
    while any(abs(a - b) > _AGREEMENT * max(abs(b), nothing) for a, b in zip(coarse, fine, strict=True)):
        digits *= 2
        coarse, fine = fine, list(compute(2 * digits))
    return fine


def spectral_recurrence(
    dimension: int, context_length: int | float, size: int, digits: int, *, times_x: bool = False
) -> Recurrence:
    """The recurrence of the measure f -> E tr f(W - I), by Chebyshev's algorithm on the exact moments.

    **Arguments:**

    - dimension: d.
    - context_length: n, finite.
    - size: the number of shifts.
    - digits: the number of digits of the decimals. Cancellation spoils some of them.
    - times_x: whether the measure is f -> E tr W f(W - I) instead.
    """
    d, n = checks.count("dimension", dimension), _length(context_length)
    if n is None:
        checks.refuse("context_length", "finite, as W = I has one eigenvalue", "it is inf")
    moments = _central_trace_powers(d, n, 2 * size)
    if times_x:
        moments = [moment + following for moment, following in itertools.pairwise(moments)]
    with localcontext() as context:
        context.prec = digits
        now = [Decimal(moment.numerator) / Decimal(moment.denominator) for moment in moments[: 2 * size]]
        before, total = [Decimal(0)] * len(now), now[0]
        shifts, norms = [now[1] / now[0]], []
        for k in range(1, size):
            beta = norms[-1] if norms else Decimal(0)
            after = [Decimal(0)] * len(now)
            for i in range(k, len(now) - k):
                after[i] = now[i + 1] - shifts[-1] * now[i] - beta * before[i]
            shifts.append(after[k + 1] / after[k] - now[k] / now[k - 1])
            norms.append(after[k] / now[k - 1])
            before, now = now, after
        return Recurrence(total, shifts, norms)


def zeros(recurrence: Recurrence, digits: int) -> list[Decimal]:
    """The zeros of p_m, increasing, where m is the number of shifts.

    They are the eigenvalues of the Jacobi matrix, refined by Newton's method.
    """
    alphas, betas = recurrence.shifts, recurrence.norms
    scale = abs(betas[0]).sqrt() if betas else Decimal(1)
    off = np.sqrt([abs(float(beta / scale**2)) for beta in betas])
    jacobi = np.diag([float(alpha / scale) for alpha in alphas]) + np.diag(off, 1) + np.diag(off, -1)
    starts = np.linalg.eigvalsh(jacobi)
    with localcontext() as context:
        context.prec = digits
        close = Decimal(10) ** -(digits // 2)
        return [_newton(recurrence, Decimal(float(start)) * scale, close) for start in starts]


def squares(recurrence: Recurrence, y: Decimal) -> list[Decimal]:
    """p_k(y)^2 for k = 0, .., m-1, where m is the number of shifts.

    Here the p_k are normalised to be orthonormal under the measure scaled to mass 1.
    """
    before, here, norm = Decimal(0), Decimal(1), Decimal(1)
    values = [Decimal(1)]
    for alpha, beta, following in zip(
        recurrence.shifts, [Decimal(0), *recurrence.norms], recurrence.norms, strict=False
    ):
        before, here = here, (y - alpha) * here - beta * before
        norm *= following
        values.append(here * here / norm)
    return values


def _newton(recurrence: Recurrence, y: Decimal, close: Decimal) -> Decimal:
    for _ in range(_MOST_ITERATIONS):
        before, here, slope_before, slope = Decimal(0), Decimal(1), Decimal(0), Decimal(0)
        for alpha, beta in zip(recurrence.shifts, [Decimal(0), *recurrence.norms], strict=True):
            after = (y - alpha) * here - beta * before
            slope_before, slope = slope, here + (y - alpha) * slope - beta * slope_before
            before, here = here, after
        step = here / slope
        y -= step
        # The error of y is now about the square of the step.
        if abs(step) <= close * abs(y):
            break
    return y


@functools.lru_cache(maxsize=256)
def _central_trace_powers(d: int, n: int, highest: int) -> list[Fraction]:
    powers = _trace_powers(d, n, highest)
    return [_central(n, powers, m) for m in range(highest + 1)]


def _central(n: int, powers: Sequence[int], m: int) -> Fraction:
    """E tr (W - I)^m, computed from E tr S^j for j <= m, where S = n W."""
    terms = (math.comb(m, j) * (-n) ** (m - j) * powers[j] for j in range(m + 1))
    return Fraction(sum(terms), n**m)


@functools.lru_cache(maxsize=256)
def _trace_powers(d: int, n: int, highest: int) -> list[int]:
    """E tr S^m for m = 0, .., ``highest``, where S = n W; see `mean_trace_power`."""
    factorial = [math.factorial(i) for i in range(2 * highest + 2)]
    double = [factorial[2 * i] // (2**i * factorial[i]) for i in range(highest + 1)]  # (2i - 1)!!
    # prod (v + c(s)) over the first row, the second row and the column below it, for every length.
    first = [_products(v, 2, highest) for v in (d, n)]
    second = [_products(v - 1, 2, highest) for v in (d, n)]
    column = [_products(v - 2, -1, highest) for v in (d, n)]

    def part(a: int, b: int, c: int) -> int:
        m = a + b + c
        contents = 2 ** (a - 1) * factorial[a - 1]
        if b == 0:
            return factorial[2 * m] // factorial[2 * a] * contents * first[0][a] * first[1][a]
        contents *= -double[b - 1] * (-1) ** c
        # The hook lengths of 2 kappa without a factor (c + 1)!, which cancels against the contents.
        hooks = (2 * a + c + 1) * (2 * a + c) * (2 * b + c) * (2 * b + c - 1)
        hooks *= factorial[2 * a - 1] * factorial[2 * b - 2] * factorial[c]
        tableaux = factorial[2 * m] * (2 * a - 2 * b + 1) // hooks
        products = first[0][a] * first[1][a] * second[0][b] * second[1][b] * column[0][c] * column[1][c]
        return tableaux * contents * products

    def shapes(m: int):
        yield m, 0, 0
        for b in range(1, m // 2 + 1):
            for a in range(b, m - b + 1):
                yield a, b, m - a - b

    return [d] + [sum(part(*shape) for shape in shapes(m)) // factorial[2 * m - 1] for m in range(1, highest + 1)]


def _products(start: int, step: int, highest: int) -> list[int]:
    """The products of the first 0, 1, .., ``highest`` numbers of the progression start, start + step, .."""
    values = [1]
    for i in range(highest):
        values.append(values[-1] * (start + step * i))
    return values


def _whole(name: str, x: int) -> int:
    if isinstance(x, bool) or x < 0:
        checks.refuse(name, "a whole number of at least 0", f"it is {x}")
    return x


def _length(context_length: int | float) -> int | None:
    """The context length n as an int; None for infinity.

    **Raises:** `ProblemError` if it is not a whole number of at least 1.
    """
    if context_length == math.inf:
        return None
    if not (context_length >= 1 and context_length == math.floor(context_length)):
        checks.refuse("context_length", "a whole number of at least 1, or inf", f"it is {context_length}")
    return int(context_length)
