"""Polynomials that solve a stiff ODE x' = f(x) at collocation nodes, with many digits."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import flint
import numpy as np
import scipy.special
from flint import arb, arb_mat
from jaxtyping import Float

Numbers = list[arb]
Field = Callable[[Numbers], Numbers]

_BITS = 320  # for the coefficients of a method, which cancel
_ITERATIONS = 30
_CANCELLED = 10**-0.8  # for each stage: the loss of digits in the sum of a polynomial's terms
_SLOW = 1e-3  # the contraction at which the iteration is given up


class _Method(NamedTuple):
    """Radau's collocation method on [0, 1] with a given number of stages.

    **Fields:**

    - coefficients: the matrix that maps the slopes at the nodes to the coefficients of the polynomial through them.
    - integrals: the matrix that maps the slopes at the nodes to their integrals from 0 to each node.
    - rounded: ``integrals`` in float64.
    """

    coefficients: arb_mat
    integrals: arb_mat
    rounded: Float[np.ndarray, "stages stages"]


@functools.cache
def _method(stages: int) -> _Method:
    # Any nodes would do: their rounding changes the method and not what is proved of its polynomial.
    nodes = [*scipy.special.roots_jacobi(stages - 1, 1.0, 0.0)[0], 1.0]
    with flint.ctx.workprec(_BITS):
        points = [(1 + arb(float(node))) / 2 for node in nodes]
        inverse = arb_mat([[x**k for k in range(stages)] for x in points]).inv()
        whole = arb_mat([[x ** (k + 1) / (k + 1) for k in range(stages)] for x in points])
        integrals = whole * inverse
    rounded = np.asarray([[float(integrals[i, j]) for j in range(stages)] for i in range(stages)])
    return _Method(inverse.mid(), integrals.mid(), rounded)


def collocated(
    field: Field,
    start: Numbers,
    length: arb,
    jacobian: Float[np.ndarray, "n n"],
    stages: int,
    accuracy: float,
) -> list[Numbers] | None:
    """A polynomial p with p(0) = x(0) and p' = f(p) at Radau's nodes, whose degree is the number of stages.

    The length of the piece is limited by how fast the solution changes, not by the fastest rate of the field, since
    fast motions decay within the piece.

    **Arguments:**

    - field: f.
    - start: x(0), (n,).
    - length: the length of the piece of time.
    - jacobian: (n, n), symmetric, near the Jacobian of f on the piece.
    - stages: the number of nodes.
    - accuracy: the absolute error of p at the nodes at which the iteration ends.

    **Returns:** the coefficients of p for each entry of x, of the lowest power first; None if Newton's method with
    this one Jacobian does not converge.

    **Source:** Hairer and Wanner, Solving Ordinary Differential Equations II, sections IV.5 and IV.8, as for the
    solver of flows, which has fewer stages and runs in float64.
    """
    method, h = _method(stages), float(length)
    rates, basis = np.linalg.eigh((jacobian + jacobian.T) / 2)
    inverses = np.linalg.inv(np.eye(stages) - h * rates[:, None, None] * method.rounded)
    before = np.inf
    with flint.ctx.workprec(_BITS):
        begin = arb_mat([[x.mid() for x in start]] * stages)
        slopes = arb_mat([[x.mid() for x in field(start)]] * stages)
        for _ in range(_ITERATIONS):
            points = (begin + method.integrals * slopes * length).mid()
            off = arb_mat([[x.mid() for x in field(row)] for row in points.tolist()]) - slopes
            error = np.asarray([[float(x) for x in row] for row in off.tolist()])
            if not np.all(np.isfinite(error)):
                return None
            change = np.einsum("kij,jk->ik", inverses, error @ basis) @ basis.T
            slopes = (slopes + arb_mat(change.tolist())).mid()
            moved = h * float(np.max(np.abs(change)))
            if moved <= _CANCELLED**stages * accuracy:
                break
            if moved > _SLOW * before:
                return None
            before = moved
        else:
            return None
        speeds = method.coefficients * slopes
        shares = [length**k * (k + 1) for k in range(stages)]
        return [
            [x.mid(), *((speeds[k, i] / share).mid() for k, share in enumerate(shares))] for i, x in enumerate(start)
        ]
