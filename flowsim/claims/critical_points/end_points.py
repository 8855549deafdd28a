"""The critical point at which a flow ends: found by Newton's method, and classified by the Hessian there."""

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

LARGEST_HESSIAN = 700  # weights; no Hessian of more is formed
_FLAT = 1e-9
_MAX_ITERATIONS = 60
_SETTLED = 1e-3  # the last Newton step of a sequence that converges is at most this fraction of the weights
_REACHED = 1e-10  # of the excess at the start: below it the minimum counts as reached
_SUBTRACTED = 64  # units of rounding of the loss: the error of an excess that is a difference
_ABOVE = 1e-6  # of the excess at zero weights: a flow to the global minimum may end this far above it


class Inertia(NamedTuple):
    """The numbers of negative, zero and positive eigenvalues of a Hessian."""

    negative: int
    zero: int
    positive: int


def signs(values: np.ndarray) -> np.ndarray:
    """The sign of each eigenvalue: -1, 0 or 1. It is 0 if the size of the eigenvalue is at most 1e-9 of the
    largest.
    """
    return np.where(np.abs(values) > _FLAT * np.max(np.abs(values)), np.sign(values), 0.0)


def inertia(values: np.ndarray) -> Inertia:
    """The numbers of negative, zero and positive values among eigenvalues. `signs` decides which count as zero."""
    found = signs(values)
    return Inertia(*(int(np.sum(found == sign)) for sign in (-1, 0, 1)))


@dataclasses.dataclass(frozen=True)
class EndPoint:
    """The critical point that Newton's method finds from the end of a trajectory.

    **Fields:**

    - kind: "none" if Newton's method does not converge, for example when the infimum is at infinity; "saddle" if
      the Hessian has negative and positive eigenvalues; "maximum" if it has negative and no positive ones;
      "minimum" if it has no negative ones and either the excess is zero, or some eigenvalue is positive and none is
      zero except one that belongs to a conserved quantity; "degenerate" if the Hessian does not decide.
    - positive, negative, flat: the numbers of positive, negative and zero eigenvalues of the Hessian. An eigenvalue
      counts as zero if its size is at most 1e-9 of the largest.
    - excess, grad_norm: the excess loss and |grad L| at the critical point.
    - distance: the distance of the critical point from the end of the trajectory.
    - model: the critical point.
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
    """Newton's method from a model, for as long as the gradient norm decreases.

    **Returns:** the critical point, the (n,) eigenvalues of the Hessian there, the gradient norm there, and the
    length of the last step.
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
    """The model after one Newton step, and the (n,) Hessian eigenvalues and the gradient norm before the step."""
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(arrays)
    rebuild = lambda x: eqx.combine(unravel(x), rest)
    gradient = lambda x: ravel_pytree(eqx.filter(loss.gradient(rebuild(x)), eqx.is_inexact_array))[0]
    slope, values, vectors = spectrum(gradient, flat)
    return rebuild(flat - newton_step(slope, values, vectors)), values, jnp.linalg.norm(slope)


def spectrum(
    gradient: Callable[[Float[Array, " n"]], Float[Array, " n"]], flat: Float[Array, " n"]
) -> tuple[Float[Array, " n"], Float[Array, " n"], Float[Array, "n n"]]:
    """The gradient at given weights, the eigenvalues of the Hessian (lowest first), and its eigenvectors (as
    columns).

    **Arguments:**

    - gradient: weights -> gradient, both (n,).
    - flat: (n,) the weights.
    """
    hessian = jax.jacfwd(gradient)(flat)
    values, vectors = jnp.linalg.eigh((hessian + hessian.T) / 2)
    return gradient(flat), values, vectors


def newton_step(
    slope: Float[Array, " n"], values: Float[Array, " n"], vectors: Float[Array, "n n"]
) -> Float[Array, " n"]:
    """The step that Newton's method subtracts from the weights: (H + |g| I)^-1 g for a positive semidefinite
    Hessian H.

    In general each eigenvalue h of H is replaced by h + |g| if h >= 0 and by h - |g| if h < 0. The shift |g| keeps
    the step short along flat directions, where critical points are not isolated, and vanishes fast enough for
    quadratic convergence. Along negative curvature the step also leads to the critical point, so that a saddle is
    found as a saddle.

    **Arguments:**

    - slope: (n,) g, the gradient.
    - values: (n,) the eigenvalues of H.
    - vectors: (n, n) the eigenvectors of H as columns.
    """
    size = jnp.linalg.norm(slope)
    shifted = jnp.where(values >= 0, values + size, values - size)
    return vectors @ (vectors.T @ slope / jnp.where(shifted == 0, 1.0, shifted))


def end_point(loss: AbstractPopulationLoss, trajectory: Trajectory) -> EndPoint | None:
    """The critical point near the end of a trajectory, and its kind; None for a model of more than 700 weights."""
    end = eqx.filter(trajectory.end, eqx.is_inexact_array)
    if sum(leaf.size for leaf in jax.tree.leaves(end)) > LARGEST_HESSIAN:
        return None
    with blas_in_one_thread():
        model, values, size, step = _polish(loss, trajectory.end)
    negative, flat, positive = inertia(values)
    value, excess = (float(number) for number in _level(loss, model))
    # The loss is constant along the orbit of the symmetry behind a conserved quantity, so that one flat direction is
    # expected. Of several conserved quantities, some orbits may be single points there.
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
    return loss(model), loss.excess(model)


def hessian(loss: AbstractPopulationLoss, model: PyTree) -> Float[Array, "n n"]:
    """The (n, n) Hessian of the loss at a model, with respect to all n weights as one vector."""
    flat, unravel = ravel_pytree(model)
    return jax.hessian(lambda x: loss.excess(unravel(x)))(flat)


def ends_above_the_minimum(loss: AbstractPopulationLoss, trajectory: Trajectory) -> Comparison:
    """The statement that a flow ends above the global minimum: the excess at its end is positive.

    The comparison makes no statement if the excess at the end is at most 1e-6 of the excess at zero weights. The
    allowance is how much the loss can still decrease: at most |grad L| s, where |grad L| is the gradient norm at
    the end and s bounds the remaining length of the path.
    """
    end = trajectory.excess[-1:]
    above = end > _ABOVE * loss.excess(jax.tree.map(jnp.zeros_like, trajectory.end))
    slope = jnp.sqrt(trajectory.grad_norm_sq[-1:])
    to_lose = jnp.where(slope > 0, slope * trajectory.way_to_go, 0.0)
    return at_least(end, 0.0, size=trajectory.excess[0], promised=above, allowance=to_lose)


def end_constants(loss: AbstractPopulationLoss, trajectory: Trajectory) -> dict[str, Array]:
    """The excess at the end of the flow (``excess_end``), and at the saddle where all weights are zero
    (``excess_at_zero``).
    """
    zero = jax.tree.map(jnp.zeros_like, trajectory.end)
    return {"excess_end": trajectory.excess[-1], "excess_at_zero": loss.excess(zero)}
