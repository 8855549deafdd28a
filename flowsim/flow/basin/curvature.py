"""Verified lower bounds on curvatures and singular values, and the bound on the length of a path that they give.

Let J = A + E and U^T A V = diag(s) + F, where U and V have k columns. Then the k-th largest singular value of J is
at least (min s - |F|)/(|U| |V|) - |E|, since |A V y| |U| >= |U^T A V y|. U and V come from a decomposition in
float64 and need not be exact: |F| and |U^T U - 1| are computed with bounds on their rounding. If J is symmetric,
U = V is square and min s > |F|, this is also a lower bound on all eigenvalues of J.
"""

import contextlib
import math
from collections.abc import Callable

import numpy as np

from flowsim._core.balls import floats
from flowsim._core.balls.enclosure import Traced, lower, upper
from flowsim._core.balls.floats import Wide, difference, norm, product, wide
from flowsim._core.balls.operations import Balls, UndecidedError, balls

_ROOM = 8.0  # the next cube has this many times the length of a path that leaves the present one
MORE = 1 + 1e-12  # a factor for the rounding of bounds computed in float64
MOST_IN_BALLS = 3e5  # operations; programs of more are evaluated in float64


def path(slope: float, flattest: Callable[[float], float]) -> float:
    """A bound on the length of the path that a flow takes from a point; infinite if no bound is found. The bound is
    |grad L| at the point, divided by the least curvature in a cube that provably contains the path.

    **Arguments:**

    - slope: an upper bound on |grad L| at the point.
    - flattest: maps half the width of a cube around the point to a lower bound on the curvature in the cube.
    """
    # The first radius assumes the curvature 1. If that cube is too large, the curvature at the point suggests the next.
    radii = [_ROOM * slope, 0.0]
    while radii:
        radius = radii.pop(0)
        try:
            curvature = flattest(radius)
        except UndecidedError:
            continue
        # Orthonormal bases and slopes have rounding errors.
        way = MORE * slope / curvature if curvature > 0 else math.inf
        if way < radius or way == 0:
            return way
        if curvature > 0:
            radii.insert(0, _ROOM * way)
    return math.inf


def around(traced: Traced, point: np.ndarray, radius: float = 0.0) -> Wide:
    """An enclosure of the values that a function takes on a cube.

    **Arguments:** traced: the function, of one array; point: the centre of the cube; radius: half its width.

    **Raises:** `UndecidedError` if the values are not bounded.
    """
    found = None
    if traced.operations > MOST_IN_BALLS:
        # What float64 enclosures do not know, balls may.
        with contextlib.suppress(UndecidedError):
            (found,) = floats.enclosed(traced, wide(point, radius))
    if found is None:
        within = traced.on(balls(point, radius))
        low, high = lower(within), upper(within)
        found = Wide((low + high) / 2, (high - low) / 2)
    if not np.all(np.isfinite(found.largest)):
        raise UndecidedError("a derivative is not bounded")
    return found


def least_singular_value(matrix: Wide, rank: int | None = None) -> float:
    """A lower bound on the singular value number ``rank`` of a matrix, counted from the largest. By default
    ``rank`` is the number of rows. The bound is 0 if there are fewer rows or columns than ``rank``.
    """
    middle, rest = matrix
    number = middle.shape[0] if rank is None else rank
    if not 0 < number <= min(middle.shape):
        return 0.0
    left, values, right = np.linalg.svd(middle, full_matrices=False)
    return _least(middle, rest, left[:, :number], values[:number], right[:number].T)


def least_eigenvalue(matrix: Wide) -> float:
    """A lower bound on all eigenvalues of a symmetric matrix. Only a positive result is a bound."""
    middle, rest = (matrix.middle + matrix.middle.T) / 2, (matrix.radius + matrix.radius.T) / 2
    values, vectors = np.linalg.eigh(middle)
    return _least(middle, rest + np.finfo(float).eps * np.abs(middle), vectors, values, vectors)


def least_contraction(hessian: Wide, step_size: float) -> float:
    """A number mu such that each step of gradient descent multiplies |grad L| by at most 1 - step_size mu. Only a
    positive result is guaranteed.

    **Arguments:** hessian: an enclosure of the Hessians along the step; step_size: eta.
    """
    most = np.eye(hessian.middle.shape[0]) * (2 / step_size)
    opposite = Wide(most - hessian.middle, hessian.radius + np.finfo(float).eps * (most + np.abs(hessian.middle)))
    return min(least_eigenvalue(hessian), least_eigenvalue(opposite))


def _least(middle: np.ndarray, rest: np.ndarray, left: np.ndarray, values: np.ndarray, right: np.ndarray) -> float:
    core = product(product(wide(left.T), wide(middle)), wide(right))
    least = float(np.min(values)) - norm(difference(core, wide(np.diag(values))).largest)
    stretch = _stretch(left) * _stretch(right)
    return least / (MORE * stretch) - MORE * norm(rest) if least > 0 and math.isfinite(stretch) else 0.0


def _stretch(columns: np.ndarray) -> float:
    """An upper bound on the norm of a matrix with columns that are nearly orthonormal; infinite if they are not."""
    off = norm(difference(product(wide(columns.T), wide(columns)), wide(np.eye(columns.shape[1]))).largest)
    return MORE * math.sqrt(1 + off) if off < 1 else math.inf


def vanishes(values: Balls) -> np.ndarray:
    """Which of the balls are exactly zero, as a mask."""
    return np.vectorize(lambda ball: bool(ball == 0), otypes=[bool])(values)


def length(values: np.ndarray) -> float:
    """The norm of a vector, computed without underflow of squares."""
    size = float(np.max(np.abs(values), initial=0.0))
    return size * float(np.linalg.norm(values / size)) if 0 < size < math.inf else size


def largest(values: Balls) -> np.ndarray:
    """Upper bounds on the absolute values of the numbers in each ball."""
    return np.asarray(np.maximum(np.abs(lower(values)), np.abs(upper(values))))
