"""A proved bound on how far a flow of layers without B still moves, at the cost of one Hessian.

In A'_i = Sigma^{1/2} A_i Sigma^{1/2} the loss is f = E |R|_F^2 with R = prod_i (I - W A'_i). Along a line in
the direction D with sum_i |D_i|_F^2 = 1, let w = |W| and q = 1 + w max_i |A'_i| in the operator norm. The terms of the
j-th derivative of R have j factors W D_i from different layers, so its Frobenius norm is at most c_j w^j q^{k-j}, c_j =
j! C(k, j) k^{-j/2}, and |R|_F is at most d^{1/2} q^k. Hence

    |f'''| <= 2 (d^{1/2} c_3 + 3 c_2 c_1) E w^3 q^{2k-3},

and w^3 q^{2k-3} <= a^{-3} tr (I + a W)^{2k} for a >= max_i |A'_i|, where E tr (I + a W)^{2k} is f itself at A'_i =
-a I. This bounds how much the Hessian changes in a ball. If it stays above mu in a ball of radius r > |grad f|/mu, then
|grad f| falls at least as fast as e^{-mu t}, the flow stays in the ball, and its path is no longer than |grad f|/mu.
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim.flow.trajectory import Trajectory
from flowsim.papers.ahn2023.multi_layer import Loss, hessian_on_the_space, model_of

_ROUNDED = 64 * float(np.finfo(np.float64).eps)  # relative to the largest gradient
_UNSURE = 1e-9  # relative to the largest curvature


def way_to_go(loss: Loss, trajectory: Trajectory) -> Float[Array, ""]:
    """A proved bound on the length of the path of A after the end of a flow; infinite where none is found."""
    end, variances = trajectory.end.A, jnp.linalg.eigvalsh(loss.task.covariance)
    primed, smallest, largest = loss.root @ end @ loss.root, variances[0], variances[-1]
    slopes = jnp.sqrt(trajectory.grad_norm_sq)
    slope = slopes[-1] + _ROUNDED * jnp.max(slopes)
    curvatures = jnp.linalg.eigvalsh(hessian_on_the_space(loss, primed))
    # A step of A is at least 1/largest and at most 1/smallest times that of A'.
    here = smallest**2 * (curvatures[0] - _UNSURE * curvatures[-1])
    radius = 2 * slope / here
    a = jnp.max(jnp.linalg.norm(primed, 2, axis=(1, 2))) + largest * radius
    least = here - smallest**2 * third_derivative(loss, a) * largest * radius
    proved = (here > 0) & (least * radius > slope)
    return jnp.minimum(trajectory.way_to_go, jnp.where(proved, slope / least, jnp.inf))


def third_derivative(loss: Loss, a: Float[Array, ""]) -> Float[Array, ""]:
    """A bound on the third derivative of the loss along lines of unit speed in A', where |A'_i| <= a."""
    k, d = loss.layers, loss.task.dimension
    c = [math.factorial(j) * math.comb(k, j) * k ** (-j / 2) for j in range(4)]
    beyond = jnp.broadcast_to(-a * jnp.eye(d)[None], (k, d, d))
    return 2 * (d**0.5 * c[3] + 3 * c[2] * c[1]) * loss(model_of(loss, beyond)) / a**3
