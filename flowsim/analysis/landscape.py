"""Where a flow ended: a Newton polish, and the Hessian's inertia there."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from flowsim._systems import norm_sq
from flowsim.losses import AbstractPopulationLoss
from flowsim.trajectory import Trajectory

LARGEST_HESSIAN = 700  # weights, above which it is not formed
_FLAT = 1e-9
_MAX_ITERATIONS = 60


@dataclasses.dataclass(frozen=True)
class EndPoint:
    """The critical point that Newton's method finds from the end of a trajectory.

    kind: "minimum" (no negative eigenvalue), "saddle", "maximum" (no positive one) or "flat" (neither); positive,
    negative, flat: the Hessian's inertia, flat within 1e-9 of its largest eigenvalue; excess, grad_norm: at the
    polished model; distance: of it from the trajectory's end; model: polished.
    """

    kind: str
    positive: int
    negative: int
    flat: int
    excess: float
    grad_norm: float
    distance: float
    model: PyTree


def polish(loss: AbstractPopulationLoss, model: PyTree) -> PyTree:
    """Newton's method to the nearest critical point, (H + |g| I) step = -g where H is semidefinite.

    The shift |g| keeps the step short along flat directions, where critical points are not isolated, and vanishes fast
    enough for the convergence to stay quadratic. In directions of negative curvature the step goes to the critical
    point too, so that a saddle is found as a saddle.
    """
    size = float(jnp.sqrt(norm_sq(_gradient(loss, model))))
    for _ in range(_MAX_ITERATIONS):
        if size == 0:
            break
        candidate, candidate_size = _newton_step(loss, model)
        if not float(candidate_size) < size:
            break
        model, size = candidate, float(candidate_size)
    return model


def _gradient(loss: AbstractPopulationLoss, model: PyTree) -> PyTree:
    return eqx.filter(loss.gradient(model), eqx.is_inexact_array)


def _slope_and_hessian(loss: AbstractPopulationLoss, model: PyTree):
    """The gradient (n,), the Hessian (n, n), and the way back from (n,) to a model."""
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(arrays)
    rebuild = lambda x: eqx.combine(unravel(x), rest)
    gradient = lambda x: ravel_pytree(_gradient(loss, rebuild(x)))[0]
    hessian = jax.jacfwd(gradient)(flat)
    return flat, gradient(flat), (hessian + hessian.T) / 2, rebuild


@eqx.filter_jit
def _newton_step(loss: AbstractPopulationLoss, model: PyTree) -> tuple[PyTree, Float[Array, ""]]:
    flat, slope, hessian, rebuild = _slope_and_hessian(loss, model)
    values, vectors = jnp.linalg.eigh(hessian)
    size = jnp.linalg.norm(slope)
    shifted = jnp.where(values >= 0, values + size, values - size)
    candidate = rebuild(flat - vectors @ (vectors.T @ slope / shifted))
    return candidate, jnp.sqrt(norm_sq(_gradient(loss, candidate)))


@eqx.filter_jit
def hessian_eigenvalues(loss: AbstractPopulationLoss, model: PyTree) -> Float[Array, " n"]:
    """Every eigenvalue of the Hessian over all weights, in increasing order."""
    _, _, hessian, _ = _slope_and_hessian(loss, model)
    return jnp.linalg.eigvalsh(hessian)


def end_point(loss: AbstractPopulationLoss, trajectory: Trajectory) -> EndPoint | None:
    """Polish the end of a trajectory and read the Hessian's inertia there; None above 700 weights."""
    end = eqx.filter(trajectory.end, eqx.is_inexact_array)
    if sum(leaf.size for leaf in jax.tree.leaves(end)) > LARGEST_HESSIAN:
        return None
    model = polish(loss, trajectory.end)
    values = np.asarray(hessian_eigenvalues(loss, model))
    threshold = _FLAT * np.max(np.abs(values))
    positive, negative = int(np.sum(values > threshold)), int(np.sum(values < -threshold))
    if negative and positive:
        kind = "saddle"
    elif positive:
        kind = "minimum"
    else:
        kind = "maximum" if negative else "flat"
    moved = jax.tree.map(jnp.subtract, eqx.filter(model, eqx.is_inexact_array), end)
    slope = _gradient(loss, model)
    return EndPoint(
        kind,
        positive,
        negative,
        values.size - positive - negative,
        float(loss.excess(model)),
        float(jnp.sqrt(norm_sq(slope))),
        float(jnp.sqrt(norm_sq(moved))),
        model,
    )
