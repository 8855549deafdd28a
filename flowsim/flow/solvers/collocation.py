"""Radau IIA, the collocation method of the implicit solvers: its coefficients, error estimate and extrapolation."""

import functools

import diffrax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim._core.types import Scalar

STAGES = 5
ORDER = 2 * STAGES - 1

# The scale of the estimate is a convention. With these two numbers the error of a step is at most about the estimate,
# also on stiff stretches, where it has the order of the estimate and not that of the method.
ESTIMATE_WEIGHT = 0.01
DAMPING = 0.1


@functools.cache
def radau_tableau() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The coefficients of Radau IIA with s = `STAGES` stages: the nodes, (s,), the matrix A, (s, s), and the
    weights of the error estimate, (s + 1,).

    The nodes are the zeros of P_s - P_{s-1}, with the Legendre polynomials P on [0, 1]. A maps values at the nodes
    to the integrals of their interpolating polynomial from 0 to each node. The estimate is proportional to the
    divided difference of the field over 0 and the nodes: for steps of length h it has the order h^{s+1}.

    **Source:** Hairer and Wanner, Solving Ordinary Differential Equations II, sections IV.5 and IV.8.
    """
    legendre = np.polynomial.legendre
    roots = np.real(legendre.legroots([0] * (STAGES - 1) + [-1, 1]))  # newer NumPy returns them as complex numbers
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
    """A diffrax solver by Radau IIA for the state (weights, dissipated energy). The error of a step is one number,
    in units of the tolerance. Steps are not interpolated.
    """

    term_structure = diffrax.ODETerm
    interpolation_cls = diffrax.LocalLinearInterpolation

    def order(self, terms):
        """The order of the method at the ends of steps."""
        return ORDER

    def error_order(self, terms):
        """The power of the step length to which the error estimate is proportional."""
        return STAGES + 1

    def func(self, terms, t0, y0, args):
        """The velocity of (weights, dissipated energy)."""
        return terms.vf(t0, y0, args)


def lagrange(x: Float[Array, " points"]) -> Float[Array, "points nodes"]:
    """The values at points x of the Lagrange polynomials for 0 and the nodes, one polynomial in each column."""
    gaps = NODES[:, None] - NODES[None, :] + np.eye(STAGES + 1)
    others = jnp.where(jnp.eye(STAGES + 1, dtype=bool)[None], 1.0, (x[:, None] - jnp.asarray(NODES)[None, :])[:, None])
    return jnp.prod(others, axis=2) / jnp.asarray(np.prod(gaps, axis=1))[None, :]


def after(length: Scalar, before: Scalar) -> Float[Array, "stages nodes"]:
    """The matrix that extrapolates values at 0 and the nodes of the last step to the nodes of the next step.

    **Arguments:** length: the length of the next step; before: the length of the last step.
    """
    return lagrange(1 + length / before * jnp.asarray(NODES[1:]))


def solve_small(matrix: list[list], right: list) -> list:
    """Solve many small linear systems at once by elimination without pivoting.

    The loops are unrolled, so that XLA fuses them. A batched LAPACK call would cost more than the rest of a step.

    **Arguments:** matrix: a list of rows, each a list of arrays; right: a list of arrays. Each element of the
    arrays belongs to one system.

    **Returns:** the solutions, as a list of arrays.
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
