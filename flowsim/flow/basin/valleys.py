"""The rest of the way in a valley, whose floor may be a continuum of minima.

If L = q(p(x)), with q quadratic of least curvature lambda > 0, and the Jacobian of p has full row rank on a ball, with
least singular value sigma, then |grad L|^2 >= sigma^2 |grad q|^2 >= 2 mu (L - min q), mu = lambda sigma^2. The path has
length at most sqrt(2 (L - min q)/mu) <= |grad q|/(lambda sigma), if that is less than the radius. A sum of squares has
p = r, its residuals, and the length |r|/sigma. A quadratic loss has p = x: sigma = 1 everywhere, and no ball is needed.
"""

import math
from collections.abc import Callable

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

Vector = Float[Array, " n"]


def in_a_valley(loss: Callable[[PyTree], Array], state: PyTree) -> float:
    """A bound on the length of the path to the limit; infinite if no ball is found."""
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
    return math.inf


def _by(inner: Callable[[Vector], Vector], outer: Quadratic | None, point: np.ndarray) -> float:
    """The bound for a quadratic of ``inner``; for its square, if ``outer`` is None."""
    values = Traced(inner, point)
    if outer is None:
        reach = norm(around(values, point).largest)
    else:
        (size,) = values.shapes[0]
        curvature = least_eigenvalue(around(Traced(jax.jacfwd(jax.grad(outer.outer)), jnp.zeros(size)), np.zeros(size)))
        if curvature <= 0:
            return math.inf
        slope = Traced(lambda x: jax.grad(outer.outer)(inner(x)), point)
        reach = MORE * norm(around(slope, point).largest) / curvature
        if outer.is_plain:
            return reach
    jacobian = Traced(jax.jacfwd(inner), point)

    def steepness(radius: float) -> float:
        around(values, point, radius)  # derivatives do not show the branches
        return least_singular_value(around(jacobian, point, radius))

    return path(reach, steepness)
