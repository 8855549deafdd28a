"""Verified bounds on curvatures and singular values, and the length of a path that these bound.

If J = A + E, and U^T A V = diag(s) + F with k columns in U and V, the k-th singular value of J, from the largest on, is
at least (min s - |F|)/(|U| |V|) - |E|: |A V y| |U| >= |U^T A V y|. The factors may be inexact: |F| and |U^T U - 1| are
computed with bounds on their rounding. The same bound holds for all eigenvalues, with U = V, if min s > |F|.
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
    """The length of a path that stays in some cube around a point, slope/curvature; infinite if no such cube is found.

    **Arguments:**

    - slope: a bound on |grad L| at the point.
    - flattest: the radius of a cube -> a lower bound on the curvature in it.
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
    """The values of a traced function of one array on a cube around a point.

    **Raises:** `UndecidedError` if they are not bounded.
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
    """A lower bound on the singular value number ``rank``, from the largest on: by default as many as there are rows.
    0 if there are fewer columns.
    """
    middle, rest = matrix
    number = middle.shape[0] if rank is None else rank
    if not 0 < number <= min(middle.shape):
        return 0.0
    left, values, right = np.linalg.svd(middle, full_matrices=False)
    return _least(middle, rest, left[:, :number], values[:number], right[:number].T)


def least_eigenvalue(matrix: Wide) -> float:
    """A lower bound on the eigenvalues of a symmetric matrix, if they are positive."""
    middle, rest = (matrix.middle + matrix.middle.T) / 2, (matrix.radius + matrix.radius.T) / 2
    values, vectors = np.linalg.eigh(middle)
    return _least(middle, rest + np.finfo(float).eps * np.abs(middle), vectors, values, vectors)


def least_contraction(hessian: Wide, step_size: float) -> float:
    """A lower bound on the mu for which each step of gradient descent multiplies gradients by at most 1 - step_size mu,
    if mu > 0.
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
    """A bound on the norm of a matrix whose columns are orthonormal up to rounding; infinite if they are not."""
    off = norm(difference(product(wide(columns.T), wide(columns)), wide(np.eye(columns.shape[1]))).largest)
    return MORE * math.sqrt(1 + off) if off < 1 else math.inf


def vanishes(values: Balls) -> np.ndarray:
    """Which balls are exactly zero."""
    return np.vectorize(lambda ball: bool(ball == 0), otypes=[bool])(values)


def length(values: np.ndarray) -> float:
    """The norm of a vector whose squares may underflow."""
    size = float(np.max(np.abs(values), initial=0.0))
    return size * float(np.linalg.norm(values / size)) if 0 < size < math.inf else size


def largest(values: Balls) -> np.ndarray:
    """Upper bounds of the sizes of balls."""
    return np.asarray(np.maximum(np.abs(lower(values)), np.abs(upper(values))))
