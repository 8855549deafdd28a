"""What a claim leaves at many points, as a search and a sweep look at it; nothing of it is a verdict.

The functions are pure JAX where the claim is, so that one compiled program serves all points of a shape.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from flowsim._core.types import Scalar
from flowsim.claims.claim import Claim, Comparison
from flowsim.claims.deciding.sides import Sides
from flowsim.flow.trajectory import Trajectory, uncertified

FLOW_ERROR, ROUNDING_ERROR = 1e-5, 1e-11  # relative, of sides that are only looked at


class Room(NamedTuple):
    """How much room a comparison leaves.

    margin: the signed room over the size of the bound, where it is least; infinite where nothing is promised, NaN where
    it could not be computed; factor: what the bound may be multiplied by, so that the statement still holds; clear:
    whether it fails by more than errors could; row, value, bound, identity: where the margin is least, both sides
    there, and whether they are equated.
    """

    margin: Scalar
    factor: Scalar
    clear: Bool[Array, ""]
    row: Int[Array, ""]
    value: Scalar
    bound: Scalar
    identity: Bool[Array, ""]


class Seen(NamedTuple):
    """The room that a claim leaves, both sides of each hypothesis, and whether it is met."""

    room: Room
    values: list[Scalar]
    bounds: list[Scalar]
    met: list[Bool[Array, ""]]


def error_of(claim: Claim) -> float:
    """How large errors of a claim's sides are taken to be, relative to them."""
    return FLOW_ERROR if claim.along_flow else ROUNDING_ERROR


def room(comparison: Comparison, error: float) -> Room:
    """The room that a comparison leaves, whose sides are known to a relative error."""
    promised, margins = comparison.promised, jnp.where(comparison.promised, comparison.margin, jnp.inf)
    known = jnp.all(jnp.isfinite(comparison.slack) | ~promised)
    clear = jnp.any(Sides.of(comparison, error * comparison.scale).fails)
    value, bound = comparison.value, comparison.bound
    # A lower bound may be multiplied by value/bound, an upper one divided by it; rounding may differ in the slack.
    lower = comparison.slack * (value - bound) >= 0
    usable = promised & (value > 0) & (bound > 0)
    ratio = jnp.where(usable, value, 1.0) / jnp.where(usable, bound, 1.0)
    factor = jnp.min(jnp.where(usable, jnp.where(lower, ratio, 1 / ratio), jnp.inf))
    least = jnp.argmin(margins)
    there = (side.ravel()[least] for side in (value, bound, comparison.identity))
    row = jnp.unravel_index(least, margins.shape)[0]
    return Room(jnp.where(known, jnp.min(margins), jnp.nan), factor, clear, row, *there)


def seen(claim: Claim, loss: Any, start: PyTree, run: Trajectory) -> Seen:
    """What a claim that speaks of a loss leaves along a flow, or at its start."""
    hypotheses = claim.hypotheses(loss, start)
    sides = [(jnp.asarray(h.value, float), jnp.asarray(h.bound, float), jnp.asarray(h.met)) for h in hypotheses]
    values, bounds, met = (list(part) for part in zip(*sides, strict=True)) if sides else ([], [], [])
    return Seen(room(claim.compare(loss, run), error_of(claim)), values, bounds, met)


def traced_start(loss: Any, start: PyTree) -> Trajectory:
    """The trajectory of the start alone, traced."""
    excess = loss.excess(start)
    gradient = eqx.filter(loss.gradient(start), eqx.is_inexact_array)
    squares = sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient)), jnp.zeros(()))
    one = lambda value: jnp.asarray(value)[None]
    models = jax.tree.map(lambda leaf: leaf[None] if eqx.is_array(leaf) else leaf, start)
    return uncertified(jnp.zeros(1), models, one(loss(start)), one(excess), one(squares), jnp.zeros(1))
