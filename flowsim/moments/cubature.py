"""A cubature for the law of the Wishart matrix W = (1/n) sum_{a <= n} z_a z_a^T with z_a ~ N(0, I_d).

The cubature has weights w_p and matrices T_p such that E g(W) = sum_p w_p g(T_p T_p^T) for polynomials g.

By Bartlett's decomposition n W = L L^T for a lower triangular L, (d, min(n, d)), with independent entries. Entries
below the diagonal are normal, and those on it are chi with n, n - 1, .. degrees of freedom. The signs of the
columns of L are free, so a polynomial in W is a polynomial in the normal entries and the squares of the diagonal
entries. Products of Gauss rules are therefore exact.
"""

import functools
import itertools
import math
from decimal import Decimal, localcontext
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from flowsim._core import checks
from flowsim.moments.spectrum import Recurrence, squares, zeros

_DIGITS = 60


class Cubature(NamedTuple):
    """A rule sum_p w_p g(T_p T_p^T) for E g(W).

    **Fields:**

    - factors: T_p, (points, d, min(n, d)).
    - weights: w_p > 0, (points,), with sum 1.
    """

    factors: Float[np.ndarray, "points d m"]
    weights: Float[np.ndarray, " points"]


def cubature_size(dimension: int, context_length: int | float, degree: int) -> int:
    """The number of points of `wishart_cubature`, which has the same arguments."""
    d = checks.count("dimension", dimension)
    if math.isinf(context_length):
        return 1
    columns = min(d, int(context_length))
    below = sum(d - 1 - i for i in range(columns))
    return (degree // 2 + 1) ** columns * (degree + 1) ** below


@functools.lru_cache(maxsize=16)
def wishart_cubature(dimension: int, context_length: int | float, degree: int) -> Cubature:
    """A cubature for E g(W), exact for polynomials g of the given degree in the entries of W.

    All weights are positive. An infinite n has one point, W = I. The number of points, `cubature_size`, grows fast:
    at degree 8 it is 225 for d = 2 and 91,125 for d = 3.

    **Arguments:**

    - dimension: d.
    - context_length: n, a whole number of at least 1 or infinity.
    - degree: at least 0.

    **Raises:** `ValueError` naming the argument.

    **Source:** Muirhead, Aspects of Multivariate Statistical Theory (1982), section 3.2.
    """
    d = checks.count("dimension", dimension)
    if math.isinf(context_length):
        return Cubature(np.eye(d)[None], np.ones(1))
    n = checks.count("context_length", int(context_length))
    columns = min(d, n)
    places = [(i, j) for j in range(columns) for i in range(j, d)]
    rules = []
    for i, j in places:
        nodes, weights = chi_square_rule(n - j, degree) if i == j else _normal(degree)
        rules.append((np.sqrt(nodes) if i == j else nodes, weights))
    entries = np.array(list(itertools.product(*(nodes for nodes, _ in rules))))
    factors = np.zeros((entries.shape[0], d, columns))
    for (i, j), values in zip(places, entries.T, strict=True):
        factors[:, i, j] = values / math.sqrt(n)
    weights = np.prod(np.array(list(itertools.product(*(weights for _, weights in rules)))), axis=1)
    return Cubature(factors, weights)


def chi_square_rule(freedom: int, degree: int) -> tuple[np.ndarray, np.ndarray]:
    """The nodes and weights of Gauss's rule for the chi-square law, exact for polynomials of the given degree.

    The nodes are twice the nodes for the Gamma law of shape ``freedom``/2.

    **Arguments:** freedom: the degrees of freedom.
    """
    shape, size = Decimal(freedom) / 2, degree // 2 + 1
    shifts = [2 * k + shape for k in range(size)]
    nodes, weights = _gauss(Recurrence(Decimal(1), shifts, [k * (k + shape - 1) for k in range(1, size)]))
    return 2 * nodes, weights


def _normal(degree: int) -> tuple[np.ndarray, np.ndarray]:
    """The nodes and weights of Gauss's rule for N(0, 1), exact to twice the given degree.

    The degree in the normal entries is twice the degree in W.
    """
    return _gauss(Recurrence(Decimal(1), [Decimal(0)] * (degree + 1), [Decimal(k) for k in range(1, degree + 1)]))


def _gauss(recurrence: Recurrence) -> tuple[np.ndarray, np.ndarray]:
    nodes = zeros(recurrence, _DIGITS)
    with localcontext() as context:
        context.prec = _DIGITS
        weights = [recurrence.total / sum(squares(recurrence, node)) for node in nodes]
    return np.array(list(map(float, nodes))), np.array(list(map(float, weights)))
