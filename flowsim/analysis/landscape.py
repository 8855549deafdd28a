"""Where a flow ended: a Newton polish, the Hessian's inertia there, and whether it is the global minimum."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from flowsim.analysis.base import Comparison, at_least
from flowsim.losses import AbstractPopulationLoss
from flowsim.trajectory import Trajectory

LARGEST_HESSIAN = 700  # weights, above which it is not formed
_FLAT = 1e-9
_MAX_ITERATIONS = 60
_AT_REST = 1e-12
_ELSEWHERE = 1e-6  # of the excess at zero weights, which a flow to the global minimum may still have to lose


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
    return _polish(loss, model)[0]


def _polish(loss: AbstractPopulationLoss, model: PyTree) -> tuple[PyTree, np.ndarray, float]:
    """The polished model, with its Hessian's eigenvalues and gradient norm."""
    candidate, values, size = _newton_step(loss, model)
    for _ in range(_MAX_ITERATIONS):
        following, candidate_values, candidate_size = _newton_step(loss, candidate)
        if not float(candidate_size) < float(size):
            break
        model, values, size, candidate = candidate, candidate_values, candidate_size, following
    return model, np.asarray(values), float(size)


@eqx.filter_jit
def _newton_step(loss: AbstractPopulationLoss, model: PyTree) -> tuple[PyTree, Float[Array, " n"], Float[Array, ""]]:
    """Where the step leads, and the Hessian's eigenvalues and the gradient norm where it starts."""
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(arrays)
    rebuild = lambda x: eqx.combine(unravel(x), rest)
    gradient = lambda x: ravel_pytree(eqx.filter(loss.gradient(rebuild(x)), eqx.is_inexact_array))[0]
    slope, hessian = gradient(flat), jax.jacfwd(gradient)(flat)
    values, vectors = jnp.linalg.eigh((hessian + hessian.T) / 2)
    size = jnp.linalg.norm(slope)
    shifted = jnp.where(values >= 0, values + size, values - size)
    step = vectors @ (vectors.T @ slope / jnp.where(shifted == 0, 1.0, shifted))
    return rebuild(flat - step), values, size


def end_point(loss: AbstractPopulationLoss, trajectory: Trajectory) -> EndPoint | None:
    """Polish the end of a trajectory and read the Hessian's inertia there; None above 700 weights."""
    end = eqx.filter(trajectory.end, eqx.is_inexact_array)
    if sum(leaf.size for leaf in jax.tree.leaves(end)) > LARGEST_HESSIAN:
        return None
    model, values, size = _polish(loss, trajectory.end)
    threshold = _FLAT * np.max(np.abs(values))
    positive, negative = int(np.sum(values > threshold)), int(np.sum(values < -threshold))
    if negative and positive:
        kind = "saddle"
    elif positive:
        kind = "minimum"
    else:
        kind = "maximum" if negative else "flat"
    pairs = zip(jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)), jax.tree.leaves(end), strict=True)
    return EndPoint(
        kind,
        positive,
        negative,
        values.size - positive - negative,
        float(eqx.filter_jit(loss.excess)(model)),
        size,
        float(np.sqrt(sum(np.sum((np.asarray(a) - np.asarray(b)) ** 2) for a, b in pairs))),
        model,
    )


def hessian(loss: AbstractPopulationLoss, model: PyTree) -> Float[Array, "n n"]:
    """The loss's Hessian over all weights."""
    flat, unravel = ravel_pytree(model)
    return jax.hessian(lambda x: loss.excess(unravel(x)))(flat)


def ends_above_the_minimum(loss: AbstractPopulationLoss, trajectory: Trajectory) -> Comparison:
    """The excess at the end of the flow against what it can still lose, at most |grad|^2 over the Hessian's smallest
    eigenvalue above rounding. It speaks of flows that end at rest, with no negative eigenvalue, off the global minimum.
    """
    values = jnp.linalg.eigvalsh(hessian(loss, trajectory.end))
    rounding = _FLAT * values[-1]
    curvature = jnp.min(jnp.where(values > rounding, values, jnp.inf))
    slope_sq, excess = trajectory.grad_norm_sq, trajectory.excess
    at_rest = slope_sq[-1] <= _AT_REST * jnp.max(slope_sq)
    elsewhere = excess[-1] > _ELSEWHERE * loss.excess(jax.tree.map(jnp.zeros_like, trajectory.end))
    promised = at_rest & elsewhere & (values[0] >= -rounding)
    return at_least(excess[-1][None], slope_sq[-1] / curvature, size=excess[0], promised=promised)


def end_constants(loss: AbstractPopulationLoss, trajectory: Trajectory) -> dict[str, Array]:
    """The excess at the end of the flow and at the saddle of zero weights."""
    zero = jax.tree.map(jnp.zeros_like, trajectory.end)
    return {"excess_end": trajectory.excess[-1], "excess_at_zero": loss.excess(zero)}
