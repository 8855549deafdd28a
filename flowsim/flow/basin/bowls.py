"""A bound on the remaining length of a flow in a bowl, a ball on which the Hessian is positive definite.

Suppose that all eigenvalues of the Hessian are at least mu on a ball of radius r around a point, and that
|grad L| < mu r at the point. Then the flow from the point stays in the ball, and |grad L| decays at least as fast
as e^{-mu t}. So the path has length at most |grad L|/mu. The bound is proved, since gradients and Hessians are
enclosed by ball arithmetic. It also holds for gradient descent with step size eta, if all eigenvalues of the
Hessian are also at most 2/eta - mu: then each step multiplies |grad L| by at most 1 - eta mu.

Some losses are constant along x -> e^{sJ} x, where J is a diagonal matrix of signs. They are flat along Jx, and the
flow conserves <x, Jx>. Near a point x_0 every x is e^{sJ} z with some z for which z - x_0 is orthogonal to J x_0.
Let mu be the least curvature of the loss restricted to these z. Then

    2 mu (L - min L) <= |grad L(z)|^2 <= e^{2|s|} |grad L(x)|^2,

so that the path has length at most e^{|s|} |grad L|/mu. While |s| is at most 1/100, |s| <= 2 |x - x_0|/|x_0| and
|z - x_0| <= 3.2 |x - x_0|.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from flowsim._core.balls.centred import is_analytic
from flowsim._core.balls.enclosure import Traced, enclose
from flowsim._core.balls.operations import balls
from flowsim.flow.basin.curvature import (
    MORE,
    around,
    largest,
    least_contraction,
    least_eigenvalue,
    length,
    path,
    vanishes,
)
from flowsim.flow.basin.kept import KINDS, bases, kind_of, orbit_of, preserved, weaker, without
from flowsim.flow.basin.landscape import Landscape

_LONGEST_TURN = 0.01  # the largest |s|
_OFF_THE_ORBIT = 3.2
_SCALES = 1.0, 1 / 16, 16.0  # factors of the weights at which the symmetries of a field are tested


def in_a_bowl(
    flow: Landscape, leaves: list, structure, begin: list[np.ndarray], step_size: float, apart: float
) -> float:
    """A bound on the length of the path to the limit; infinite if no suitable ball around its start is found.

    **Arguments:** flow; leaves, structure: the weights at which the path begins, as a flattened tree; begin: the
    leaves of the weights at t = 0; step_size, apart: as in `way_to_go`.
    """
    # An identity between analytic functions holds everywhere if it holds at random weights.
    traced = Traced(flow.field, jax.tree.unflatten(structure, leaves))
    everywhere = flow.is_one_formula or is_analytic(traced)
    kinds = [kind_of(leaf) if everywhere else "any" for leaf in begin]
    size = max(float(np.max(np.abs(leaf), initial=0.0)) for leaf in leaves) or 1.0
    rng = np.random.default_rng(0)
    draws = [size * rng.standard_normal(leaf.shape) for leaf in leaves]
    # A field with branches may preserve a symmetry at small weights only, or at large ones.
    scales = (1.0,) if flow.is_one_formula else _SCALES
    while True:
        special = [KINDS[kind](draw) for kind, draw in zip(kinds, draws, strict=True)]
        anywhere = jax.tree.unflatten(structure, special)
        found = [jax.tree.leaves(traced.on(jax.tree.map(lambda leaf, k=k: k * leaf, anywhere))) for k in scales]
        keeps = [preserved(kinds, slopes, flow.is_one_formula) for slopes in found]
        stay = [all(one) for one in zip(*keeps, strict=True)]
        if all(stay):
            break
        # An array that is not preserved may move the others.
        kinds = [kind if stays else weaker(kind, leaf) for kind, stays, leaf in zip(kinds, stay, leaves, strict=True)]
    slopes = found[0]
    basis = scipy.linalg.block_diag(*bases(leaves, kinds, slopes if everywhere else None))
    end, unravel = ravel_pytree(jax.tree.unflatten(structure, leaves))
    point = basis @ (basis.T @ np.asarray(end))
    outside = MORE * length(point - np.asarray(end))
    has_orbit = everywhere and basis.size and not step_size  # descent conserves nothing
    orbit = orbit_of(flow.conserved, unravel, point, anywhere, slopes) if has_orbit else None
    basis = jnp.asarray(basis if orbit is None else without(np.asarray(basis), orbit))

    def along(y: Float[Array, " m"]) -> Float[Array, " m"]:
        return basis.T @ ravel_pytree(flow.field(unravel(jnp.asarray(point) + basis @ y)))[0]

    nothing = np.zeros(basis.shape[1])
    if not nothing.size:
        # The field preserves all weights.
        return outside if everywhere else math.inf
    slope = enclose(along, balls(nothing, apart) if apart else nothing)
    steepest = length(largest(slope))
    if np.all(vanishes(slope)) and outside == 0:
        return 0.0
    # Derivatives do not show the branches of the program.
    branches = None if everywhere else Traced(along, nothing)
    hessian = Traced(lambda y: -jax.jacfwd(along)(y), nothing)

    def flattest(radius: float) -> float:
        if branches is not None:
            branches.on(balls(nothing, radius))
        curvature = around(hessian, nothing, radius)
        return least_contraction(curvature, step_size) if step_size else least_eigenvalue(curvature)

    if orbit is None:
        # The cube has room for the distance apart, which the slope bounds, too.
        return outside + (path(2 * steepest, flattest) / 2 if apart else path(steepest, flattest))
    way = path(_OFF_THE_ORBIT * math.exp(_LONGEST_TURN) * steepest, flattest) / _OFF_THE_ORBIT
    return outside + way if 2 * way <= _LONGEST_TURN * float(np.linalg.norm(point)) else math.inf
