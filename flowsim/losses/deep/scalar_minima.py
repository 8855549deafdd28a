"""The best scalars a_i of deep linear transformers with matrices A_i = a_i S^-1, to full precision.

The loss is E tr q(W)^2 with q(x) = prod_i (1 - a_i x), where W is the sample covariance of n vectors z ~ N(0, I) in
d dimensions. Everything here is computed on the host in decimal arithmetic, so 1 - a_i and the loss are as accurate
at n = 1e30 as at n = 20.
"""

import functools
import math
from collections.abc import Iterable
from decimal import Decimal, localcontext
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from flowsim._core import checks
from flowsim.moments.spectrum import converged, precise_quadrature, spectral_recurrence, squares, zeros


def scalar_minimum(dimension: int, context_length: int | float, loops: int) -> tuple[float, float]:
    """The scalar a that minimises E tr (I - a W)^{2L}, and the minimum.

    The loss is convex in a. If n is infinite, a = 1 and the minimum is 0.

    **Arguments:**

    - dimension: d.
    - context_length: n, a whole number of at least 1 or infinity.
    - loops: L.

    **Raises:** `ValueError` naming the argument.
    """
    shortfall, value = precise_loop(dimension, context_length, loops)
    return float(1 - shortfall), float(value)


def scalar_shortfall(dimension: int, context_length: int | float, loops: int) -> float:
    """1 - a for the a of `scalar_minimum`, to full relative precision, which 1 - float(a) loses at large n."""
    return float(precise_loop(dimension, context_length, loops)[0])


def layer_minimum(dimension: int, context_length: int | float, layers: int) -> tuple[tuple[float, ...], float]:
    """The scalars a_1 <= .. <= a_k that minimise E tr prod_i (I - a_i W)^2, and the minimum.

    Over all polynomials q of degree k with q(0) = 1, the minimum of E tr q(W)^2 is the Christoffel function at 0 of
    mu, the mean spectrum of W. The k zeros of the best q are positive: they are the zeros of the k-th orthogonal
    polynomial of the measure x mu(dx). The a_i are the reciprocals of these zeros, so the minimum over the a_i is
    global. If n is infinite, all a_i = 1 and the minimum is 0.

    **Arguments:**

    - dimension: d.
    - context_length: n, a whole number of at least 1 or infinity.
    - layers: k.

    **Raises:** `ValueError` naming the argument.

    **Source:** Szego, Orthogonal Polynomials, section 3.1.
    """
    shortfalls, value = precise_layers(dimension, context_length, layers)
    return tuple(float(1 - shortfall) for shortfall in shortfalls), float(value)


class Split(NamedTuple):
    """Scalars a in more than double precision, each given by three floats.

    **Fields:**

    - scalars: the floats nearest to a.
    - shortfalls: the floats nearest to 1 - a.
    - remainders: the floats nearest to a - ``scalars``.
    """

    scalars: Float[np.ndarray, " k"]
    shortfalls: Float[np.ndarray, " k"]
    remainders: Float[np.ndarray, " k"]


def split(shortfalls: Iterable[Decimal]) -> Split:
    """The `Split` of scalars a, given 1 - a in decimals."""
    exact = [(1 - shortfall, shortfall) for shortfall in shortfalls]
    scalars = [float(a) for a, _ in exact]
    remainders = [float(a - Decimal(near)) for (a, _), near in zip(exact, scalars, strict=True)]
    return Split(np.array(scalars), np.array([float(shortfall) for _, shortfall in exact]), np.array(remainders))


@functools.lru_cache(maxsize=256)
def precise_loop(dimension: int, context_length: int | float, loops: int) -> tuple[Decimal, Decimal]:
    """e = 1 - a for the a of `scalar_minimum`, and the minimum, both in decimals.

    The loss is sum_j w_j (x_j e - y_j)^{2L} by quadrature with nodes x_j = 1 + y_j. Newton's method finds the zero
    of its derivative in e.
    """
    power = 2 * checks.count("loops", loops)

    def compute(digits: int) -> tuple[Decimal, Decimal]:
        offsets, weights = precise_quadrature(dimension, context_length, power, digits)
        with localcontext() as context:
            context.prec = digits
            points = [1 + y for y in offsets]
            # To the left of this start every term falls. The slope is convex, then concave: Newton's method converges.
            shortfall = max(y / x for y, x in zip(offsets, points, strict=True))
            step, noise = Decimal(1), Decimal(10) ** (3 - digits) * max(map(abs, offsets))
            while abs(step) > max(Decimal(10) ** -(digits // 2) * abs(shortfall), noise):
                terms = [(w, x, x * shortfall - y) for w, x, y in zip(weights, points, offsets, strict=True)]
                slope = sum(w * x * miss ** (power - 1) for w, x, miss in terms)
                bend = (power - 1) * sum(w * x * x * (miss ** (power - 2) if power > 2 else 1) for w, x, miss in terms)
                step = slope / bend if slope else Decimal(0)
                shortfall -= step
            misses = (x * shortfall - y for x, y in zip(points, offsets, strict=True))
            return shortfall, sum((w * miss**power for w, miss in zip(weights, misses, strict=True)), Decimal(0))

    shortfall, value = converged(compute, context_length)
    return shortfall, value


@functools.lru_cache(maxsize=256)
def precise_layers(dimension: int, context_length: int | float, layers: int) -> tuple[tuple[Decimal, ...], Decimal]:
    """1 - a_i for the a_i of `layer_minimum`, in the same order, and the minimum, all in decimals."""
    d, k = checks.count("dimension", dimension), checks.count("layers", layers)
    if context_length == math.inf:
        return (Decimal(0),) * k, Decimal(0)

    def compute(digits: int) -> list[Decimal]:
        spectrum = spectral_recurrence(d, context_length, k + 1, digits)
        offsets = zeros(spectral_recurrence(d, context_length, k, digits, times_x=True), digits)
        with localcontext() as context:
            context.prec = digits
            shortfalls = [y / (1 + y) for y in reversed(offsets)]
            return [*shortfalls, spectrum.total / sum(squares(spectrum, Decimal(-1)))]

    *shortfalls, value = converged(compute, context_length)
    return tuple(shortfalls), value
