"""A bound on the remaining length of a flow in a valley, where minima may form a continuum.

Let L = q(p(x)), where q is quadratic with least curvature lambda > 0. Suppose that the Jacobian of p has full row
rank on a ball, with least singular value sigma. Let mu = lambda sigma^2. Then

    |grad L|^2 >= sigma^2 |grad q|^2 >= 2 mu (L - min q),

so that the path has length at most sqrt(2 (L - min q)/mu) <= |grad q|/(lambda sigma), if this is less than the
radius of the ball. For a sum of squares, p is the vector r of residuals, and the bound is |r|/sigma. For a
quadratic loss, p(x) = x and sigma = 1 everywhere, so that no ball is needed.

For a sum of squares |A x - b|^2, where A may have any rank, the flow never moves along the kernel of A. Let sigma
be the least nonzero singular value of A. Then the path has length at most |grad L|/(2 sigma^2). The rank of A is
computed exactly, after scaling A to a matrix of whole numbers.
"""

import math
from collections.abc import Callable

import flint
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from flowsim._core.balls.enclosure import Traced
from flowsim._core.balls.floats import norm
from flowsim._core.balls.operations import UndecidedError
from flowsim._core.balls.squares import Quadratic, quadratic_of, residuals_of
from flowsim.flow.basin.curvature import MORE, around, least_eigenvalue, least_singular_value, path

_MOST_IN_RANK = 128  # rows and columns

Vector = Float[Array, " n"]


def in_a_valley(loss: Callable[[PyTree], Array], state: PyTree) -> float:
    """A bound on the length of the path from a state to the limit; infinite if no suitable ball is found."""
    point, unravel = ravel_pytree(state)
    point = np.asarray(point)
    of_weights = lambda x: loss(unravel(x))
    quadratic, residuals = quadratic_of(of_weights, point), residuals_of(of_weights, point)
    found = [(quadratic.inner, quadratic)] if residuals is None else [(residuals, None), (quadratic.inner, quadratic)]
    size = lambda one: jax.eval_shape(one[0], point).size
    # The fewer values there are, the sooner their Jacobian has full row rank.
    for inner, outer in sorted(found, key=size):
        if size((inner, outer)) <= point.size:
            try:
                length = _by(inner, outer, point)
            except UndecidedError:
                continue
            if math.isfinite(length):
                return length
    return _of_any_rank(residuals, quadratic, point) if residuals is not None and quadratic.is_plain else math.inf


def _by(inner: Callable[[Vector], Vector], outer: Quadratic | None, point: np.ndarray) -> float:
    """A bound on the length of the path for the loss outer(inner(x)), or |inner(x)|^2 if ``outer`` is None;
    infinite if no bound is found.
    """
    values = Traced(inner, point)
    if outer is None:
        reach = norm(around(values, point).largest)
    else:
        (size,) = values.shapes[0]
        curvature = least_eigenvalue(around(Traced(jax.jacfwd(jax.grad(outer.outer)), jnp.zeros(size)), np.zeros(size)))
        if curvature <= 0:
            return math.inf
        reach = _steepest(outer, point) / curvature
        if outer.is_plain:
            return reach
    jacobian = Traced(jax.jacfwd(inner), point)

    def steepness(radius: float) -> float:
        around(values, point, radius)  # derivatives do not show the branches
        return least_singular_value(around(jacobian, point, radius))

    return path(reach, steepness)


def _steepest(loss: Quadratic, point: np.ndarray) -> float:
    """An upper bound on |grad q| at p(x), where the loss is q(p(x)) and x is the point."""
    return MORE * norm(around(Traced(lambda x: jax.grad(loss.outer)(loss.inner(x)), point), point).largest)


def _of_any_rank(residuals: Callable[[Vector], Vector], loss: Quadratic, point: np.ndarray) -> float:
    """A bound on the length of the path for a sum of squares of affine residuals. It is infinite if the Jacobian of
    the residuals is not known exactly, or too large.
    """
    jacobian = Traced(jax.jacfwd(residuals), point)
    if point.size > _MOST_IN_RANK or jacobian.shapes[0][0] > _MOST_IN_RANK:
        return math.inf
    exact = jacobian.on(np.zeros(point.size))
    if not all(ball.is_exact() and ball.is_finite() for ball in np.ravel(exact)):
        return math.inf
    parts = [[tuple(map(int, ball.man_exp())) for ball in row] for row in exact]
    least = min(exponent for row in parts for _, exponent in row)
    rank = flint.fmpz_mat([[mantissa << (exponent - least) for mantissa, exponent in row] for row in parts]).rank()
    # The other singular values are zero exactly, whatever their rounding shows.
    steepness = least_singular_value(around(jacobian, np.zeros(point.size)), rank)
    return MORE * _steepest(loss, point) / (2 * steepness**2) if steepness > 0 else math.inf
