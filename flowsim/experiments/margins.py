"""Estimated margins of a claim at many points, for searches and sweeps. They are not verdicts.

The functions are pure JAX if the claim is, so that one compiled program serves all points of a shape.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from flowsim._core.types import Scalar
from flowsim.claims.claim import Claim, Comparison
from flowsim.claims.deciding.sides import Sides
from flowsim.flow.recording import uncertified
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import AbstractPopulationLoss

FLOW_ERROR, ROUNDING_ERROR = 1e-5, 1e-11  # assumed relative errors of the sides


class Room(NamedTuple):
    """The least margin of a comparison, at one of its rows.

    **Fields:**

    - margin: the least ratio of the signed slack to the size of the bound. Infinite if the statement says nothing
      about the problem, NaN if the ratio could not be computed.
    - factor: the factor by which a lower bound can be multiplied, or an upper bound divided, so that the statement
      still holds at all rows. Infinite if no row has two positive sides.
    - clear: whether the statement fails by more than the errors at some row.
    - row: the index of the time or point with the least margin.
    - value, bound: the two sides at this row.
    - identity: whether the statement is an equality at this row.
    """

    margin: Scalar
    factor: Scalar
    clear: Bool[Array, ""]
    row: Int[Array, ""]
    value: Scalar
    bound: Scalar
    identity: Bool[Array, ""]


class Seen(NamedTuple):
    """The least margin of a claim and the state of its hypotheses.

    **Fields:**

    - room: the least margin.
    - values, bounds: the two sides of each hypothesis.
    - met: whether each hypothesis is met.
    """

    room: Room
    values: list[Scalar]
    bounds: list[Scalar]
    met: list[Bool[Array, ""]]


def error_of(claim: Claim) -> float:
    """The relative error that is assumed for both sides of a claim: `FLOW_ERROR` along a flow, otherwise
    `ROUNDING_ERROR`.
    """
    return FLOW_ERROR if claim.along_flow else ROUNDING_ERROR


def room(comparison: Comparison, error: float) -> Room:
    """The least margin of a comparison.

    **Arguments:** comparison: the comparison; error: the relative error that is assumed for its sides.
    """
    comparison = jax.tree.map(jnp.atleast_1d, comparison)
    promised, margins = comparison.promised, jnp.where(comparison.promised, comparison.margin, jnp.inf)
    known = jnp.all(jnp.isfinite(comparison.slack) | ~promised)
    clear = jnp.any(Sides.of(comparison, error * comparison.scale).fails)
    value, bound = comparison.value, comparison.bound
    # A lower bound can be multiplied by value/bound, an upper one divided by it. The slack tells them apart, up to
    # rounding.
    lower = comparison.slack * (value - bound) >= 0
    usable = promised & (value > 0) & (bound > 0)
    ratio = jnp.where(usable, value, 1.0) / jnp.where(usable, bound, 1.0)
    factor = jnp.min(jnp.where(usable, jnp.where(lower, ratio, 1 / ratio), jnp.inf))
    least = jnp.argmin(margins)
    there = (side.ravel()[least] for side in (value, bound, comparison.identity))
    row = jnp.unravel_index(least, margins.shape)[0]
    return Room(jnp.where(known, jnp.min(margins), jnp.nan), factor, clear, row, *there)


def seen(claim: Claim, loss: AbstractPopulationLoss, start: PyTree, run: Trajectory) -> Seen:
    """The least margin of a claim along a flow, and the claim's hypotheses at the start.

    **Arguments:**

    - claim: a claim that covers the loss.
    - loss: the loss.
    - start: the model at t = 0.
    - run: the flow, or `traced_start` if the claim is about the start alone.
    """
    hypotheses = claim.hypotheses(loss, start)
    sides = [(jnp.asarray(h.value, float), jnp.asarray(h.bound, float), jnp.asarray(h.met)) for h in hypotheses]
    values, bounds, met = (list(part) for part in zip(*sides, strict=True)) if sides else ([], [], [])
    return Seen(room(claim.compare(loss, run), error_of(claim)), values, bounds, met)


def traced_start(loss: AbstractPopulationLoss, start: PyTree) -> Trajectory:
    """The trajectory that consists of the start alone, computed so that JAX can trace it. Every array has one row,
    t = 0.
    """
    excess = loss.excess(start)
    gradient = eqx.filter(loss.gradient(start), eqx.is_inexact_array)
    squares = sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient)), jnp.zeros(()))
    one = lambda value: jnp.asarray(value)[None]
    models = jax.tree.map(lambda leaf: leaf[None] if eqx.is_array(leaf) else leaf, start)
    return uncertified(jnp.zeros(1), models, one(loss(start)), one(excess), one(squares), jnp.zeros(1))
