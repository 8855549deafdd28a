"""Where a flow ended: a Newton polish, the Hessian's inertia there, and whether it is the global minimum."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from flowsim.claims.claim import Comparison, at_least
from flowsim.flow.solvers.threads import blas_in_one_thread
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import AbstractPopulationLoss

LARGEST_HESSIAN = 700  # weights, above which it is not formed
_FLAT = 1e-9
_MAX_ITERATIONS = 60
_SETTLED = 1e-3  # of the weights, by which the last step of a method that settles goes at most
_REACHED = 1e-10  # of the excess at the start
_SUBTRACTED = 64  # eps of the loss
_ELSEWHERE = 1e-6  # of the excess at zero weights, which a flow to the global minimum may still have to lose


class Inertia(NamedTuple):
    """How many eigenvalues of a Hessian are negative, zero and positive."""

    negative: int
    zero: int
    positive: int


def signs(values: np.ndarray) -> np.ndarray:
    """-1, 0 or 1 for each eigenvalue; those within 1e-9 of the largest of them in size count as zero."""
    return np.where(np.abs(values) > _FLAT * np.max(np.abs(values)), np.sign(values), 0.0)


def inertia(values: np.ndarray) -> Inertia:
    """How many of some eigenvalues are negative, zero and positive, by their `signs`."""
    found = signs(values)
    return Inertia(*(int(np.sum(found == sign)) for sign in (-1, 0, 1)))


@dataclasses.dataclass(frozen=True)
class EndPoint:
    """The critical point that Newton's method finds from the end of a trajectory.

    kind: "none" (the method does not settle, as where the infimum is at infinity), "minimum" (the excess is zero; or no
    eigenvalue is negative, and none zero except one that belongs to a conserved quantity), "saddle", "maximum" (no
    positive eigenvalue) or "degenerate", where the Hessian does not tell; positive, negative, flat: the Hessian's
    inertia, flat within 1e-9 of its largest eigenvalue; excess, grad_norm: at the polished model; distance: of it from
    the trajectory's end; model: polished.
    """

    kind: str
    positive: int
    negative: int
    flat: int
    excess: float
    grad_norm: float
    distance: float
    model: PyTree


def _polish(loss: AbstractPopulationLoss, model: PyTree) -> tuple[PyTree, np.ndarray, float, float]:
    """The nearest critical point by Newton's method, with its Hessian's eigenvalues and gradient norm, and how far the
    last step went.
    """
    candidate, values, size = _newton(loss, model)
    step = 0.0
    for _ in range(_MAX_ITERATIONS):
        following, candidate_values, candidate_size = _newton(loss, candidate)
        if not float(candidate_size) < float(size):
            break
        step = _distance(candidate, model)
        model, values, size, candidate = candidate, candidate_values, candidate_size, following
    return model, np.asarray(values), float(size), step


def _distance(one: PyTree, other: PyTree) -> float:
    pairs = zip(*(jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)) for model in (one, other)), strict=True)
    return float(np.sqrt(sum(np.sum((np.asarray(a) - np.asarray(b)) ** 2) for a, b in pairs)))


@eqx.filter_jit
def _newton(loss: AbstractPopulationLoss, model: PyTree) -> tuple[PyTree, Float[Array, " n"], Float[Array, ""]]:
    """Where the step leads, and the Hessian's eigenvalues and the gradient norm where it starts."""
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(arrays)
    rebuild = lambda x: eqx.combine(unravel(x), rest)
    gradient = lambda x: ravel_pytree(eqx.filter(loss.gradient(rebuild(x)), eqx.is_inexact_array))[0]
    slope, values, vectors = spectrum(gradient, flat)
    return rebuild(flat - newton_step(slope, values, vectors)), values, jnp.linalg.norm(slope)


def spectrum(
    gradient: Callable[[Float[Array, " n"]], Float[Array, " n"]], flat: Float[Array, " n"]
) -> tuple[Float[Array, " n"], Float[Array, " n"], Float[Array, "n n"]]:
    """The gradient at some weights, and the Hessian's eigenvalues, the lowest first, with eigenvectors as columns."""
    hessian = jax.jacfwd(gradient)(flat)
    values, vectors = jnp.linalg.eigh((hessian + hessian.T) / 2)
    return gradient(flat), values, vectors


def newton_step(
    slope: Float[Array, " n"], values: Float[Array, " n"], vectors: Float[Array, "n n"]
) -> Float[Array, " n"]:
    """What Newton's method subtracts from the weights, by the spectrum there: (H + |g| I)^-1 g where H is semidefinite.

    The shift |g| keeps the step short along flat directions, where critical points are not isolated, and vanishes fast
    enough for the convergence to stay quadratic. In directions of negative curvature the step goes to the critical
    point too, so that a saddle is found as a saddle.
    """
    size = jnp.linalg.norm(slope)
    shifted = jnp.where(values >= 0, values + size, values - size)
    return vectors @ (vectors.T @ slope / jnp.where(shifted == 0, 1.0, shifted))


def end_point(loss: AbstractPopulationLoss, trajectory: Trajectory) -> EndPoint | None:
    """Polish the end of a trajectory and read the Hessian's inertia there; None above 700 weights."""
    end = eqx.filter(trajectory.end, eqx.is_inexact_array)
    if sum(leaf.size for leaf in jax.tree.leaves(end)) > LARGEST_HESSIAN:
        return None
    with blas_in_one_thread():
        model, values, size, step = _polish(loss, trajectory.end)
    negative, flat, positive = inertia(values)
    value, excess = (float(number) for number in _level(loss, model))
    # Along the orbit of what makes a quantity conserved the loss is constant, so that one flat direction says nothing.
    # Of several it is not known how many of their orbits are more than a point there.
    conserved = loss.conserved(model)
    symmetric = conserved is not None and jnp.ndim(conserved) == 0
    least = max(_REACHED * float(trajectory.excess[0]), _SUBTRACTED * np.finfo(float).eps * abs(value))
    nothing = jax.tree.map(jnp.zeros_like, eqx.filter(model, eqx.is_inexact_array))
    if step > _SETTLED * max(_distance(model, nothing), _distance(trajectory.start, nothing)):
        kind = "none"
    elif negative:
        kind = "saddle" if positive else "maximum"
    elif excess <= least or (positive and flat <= symmetric):
        kind = "minimum"
    else:
        kind = "degenerate"
    distance = _distance(model, trajectory.end)
    return EndPoint(kind, positive, negative, flat, excess, size, distance, model)


@eqx.filter_jit
def _level(loss: AbstractPopulationLoss, model: PyTree) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The loss and its excess."""
    return loss(model), loss.excess(model)


def hessian(loss: AbstractPopulationLoss, model: PyTree) -> Float[Array, "n n"]:
    """The loss's Hessian over all weights."""
    flat, unravel = ravel_pytree(model)
    return jax.hessian(lambda x: loss.excess(unravel(x)))(flat)


def ends_above_the_minimum(loss: AbstractPopulationLoss, trajectory: Trajectory) -> Comparison:
    """The excess at the end of the flow against zero. What it can still lose is at most |grad| at the end times the way
    still to go. It says nothing of a flow that ends at the global minimum.
    """
    end = trajectory.excess[-1:]
    elsewhere = end > _ELSEWHERE * loss.excess(jax.tree.map(jnp.zeros_like, trajectory.end))
    slope = jnp.sqrt(trajectory.grad_norm_sq[-1:])
    to_lose = jnp.where(slope > 0, slope * trajectory.way_to_go, 0.0)
    return at_least(end, 0.0, size=trajectory.excess[0], promised=elsewhere, allowance=to_lose)


def end_constants(loss: AbstractPopulationLoss, trajectory: Trajectory) -> dict[str, Array]:
    """The excess at the end of the flow and at the saddle of zero weights."""
    zero = jax.tree.map(jnp.zeros_like, trajectory.end)
    return {"excess_end": trajectory.excess[-1], "excess_at_zero": loss.excess(zero)}
