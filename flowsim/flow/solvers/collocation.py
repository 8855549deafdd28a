"""Radau IIA, the collocation method behind every implicit step: its nodes, its error estimate, its polynomial."""

import functools

import diffrax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim._core.types import Scalar

STAGES = 5
ORDER = 2 * STAGES - 1

# The scale of the estimate is a matter of convention: with these two the error of a step is found to be at most about
# it, on stiff stretches too, where it is of the estimate's order and not of the method's.
ESTIMATE_WEIGHT = 0.01
DAMPING = 0.1


@functools.cache
def radau_tableau() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Radau IIA with `STAGES` stages: nodes c, matrix A, and weights of the error estimate.

    The nodes are the zeros of P_s - P_{s-1} (Legendre, on [0, 1]); A integrates the interpolating polynomial; the
    estimate is proportional to the divided difference of the field over 0 and the nodes, so of order s.

    **Source:** Hairer and Wanner, Solving Ordinary Differential Equations II, sections IV.5 and IV.8.
    """
    legendre = np.polynomial.legendre
    roots = np.real(legendre.legroots([0] * (STAGES - 1) + [-1, 1]))  # newer NumPy gives them as complex numbers
    nodes = np.sort((roots + 1) / 2)
    nodes[-1] = 1.0
    powers = np.arange(1, STAGES + 1)
    matrix = np.linalg.solve(np.vander(nodes, STAGES, increasing=True).T, (nodes[:, None] ** powers / powers).T).T
    points = np.concatenate([[0.0], nodes])
    gaps = points[:, None] - points + np.eye(STAGES + 1)
    differences: np.ndarray = 1 / np.prod(gaps, axis=1)
    return nodes, matrix, differences / differences[0]


NODES = np.append(0.0, radau_tableau()[0])


class AbstractRadau(diffrax.AbstractAdaptiveSolver):
    """Radau IIA on (weights, energy dissipated), its error a number in units of the tolerance. Its steps end where the
    step sizes say, and nobody interpolates within them.
    """

    term_structure = diffrax.ODETerm
    interpolation_cls = diffrax.LocalLinearInterpolation

    def order(self, terms):
        """Of the method at the ends of steps."""
        return ORDER

    def error_order(self, terms):
        """Of the estimate of its error."""
        return STAGES + 1

    def func(self, terms, t0, y0, args):
        """The field."""
        return terms.vf(t0, y0, args)


def lagrange(x: Float[Array, " points"]) -> Float[Array, "points nodes"]:
    """The values at x of the polynomials that are 1 at one of 0 and the nodes, and 0 at the others."""
    gaps = NODES[:, None] - NODES[None, :] + np.eye(STAGES + 1)
    others = jnp.where(jnp.eye(STAGES + 1, dtype=bool)[None], 1.0, (x[:, None] - jnp.asarray(NODES)[None, :])[:, None])
    return jnp.prod(others, axis=2) / jnp.asarray(np.prod(gaps, axis=1))[None, :]


def after(length: Scalar, before: Scalar) -> Float[Array, "stages nodes"]:
    """What extrapolates from 0 and the nodes of a step to the stages of the next one, of some lengths."""
    return lagrange(1 + length / before * jnp.asarray(NODES[1:]))


def solve_small(matrix: list[list], right: list) -> list:
    """Solve a small linear system whose entries are arrays, one system an element, without pivoting.

    Unrolled, it compiles to a few fused loops; a batched LAPACK call costs more than the whole step.
    """
    size = len(right)
    matrix, right = [list(row) for row in matrix], list(right)
    for pivot in range(size):
        for row in range(pivot + 1, size):
            factor = matrix[row][pivot] / matrix[pivot][pivot]
            for column in range(pivot + 1, size):
                matrix[row][column] = matrix[row][column] - factor * matrix[pivot][column]
            right[row] = right[row] - factor * right[pivot]
    for row in reversed(range(size)):
        for column in range(row + 1, size):
            right[row] = right[row] - matrix[row][column] * right[column]
        right[row] = right[row] / matrix[row][row]
    return right
