"""The excess of a polynomial loss, as the remainder of its Taylor series at the minimum."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from flowsim._core.types import Scalar


def taylor_terms(
    loss: Callable[[PyTree], Scalar], minimizer: PyTree, model: PyTree, degree: int
) -> Float[Array, " nodes"]:
    """Terms whose sum is the excess L(theta) - L(theta_0) of a polynomial L above a minimum theta_0.

    With D = theta - theta_0, the excess is int_0^1 (1 - s) <D, H(theta_0 + s D) D> ds, since the gradient is zero
    at theta_0. The integrand is a polynomial in s, which the quadrature integrates exactly. There is one term for
    each node of the quadrature.

    **Arguments:** loss: L; minimizer: theta_0; model: theta; degree: the degree of L in the weights.
    """
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)
    origin = eqx.filter(minimizer, eqx.is_inexact_array)
    step = jax.tree.map(jnp.subtract, arrays, origin)

    def along(s: Scalar) -> Scalar:
        return loss(eqx.combine(jax.tree.map(lambda x, dx: x + s * dx, origin, step), rest))

    nodes, weights = np.polynomial.legendre.leggauss((degree + 1) // 2)
    s = jnp.asarray((nodes + 1) / 2)
    return jnp.asarray(weights / 2) * (1 - s) * jax.vmap(jax.jacfwd(jax.jacfwd(along)))(s)
