"""The limit of a flow, where it is proved to exist, and the end of the flow, against the limits in zhang2023."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim.claims.claim import Comparison, equal
from flowsim.claims.statements import joined
from flowsim.flow.systems import norm_sq
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LinearAttentionLoss, RandomCovarianceLoss
from flowsim.models import LinearAttention

Loss = LinearAttentionLoss | RandomCovarianceLoss

# The end of a flow is compared with a limit only where the path still to go is at most this part of the weights' norm.
_SHORT = 1e-4


def limit_of_flow(loss: Loss, trajectory: Trajectory) -> tuple[LinearAttention, Float[Array, ""]]:
    """The limit that the flow is proved to have, and the doubt about it: zero, or infinity where nothing is proved."""
    arrowhead = loss.structure
    limit, proved = arrowhead.limit(arrowhead.state(trajectory.start), jax.vmap(arrowhead.state)(trajectory.models))
    return arrowhead.model(limit), jnp.where(proved, 0.0, jnp.inf)


def distance_to_limit(loss: Loss, trajectory: Trajectory, expected: LinearAttention) -> Comparison:
    """The limit of the flow, where it is proved to exist, and the end of the flow, where the path still to go is short,
    against an expected limit.
    """
    size = jnp.sqrt(norm_sq(expected))

    def to_expected(model: LinearAttention, allowance: Array) -> Comparison:
        distance = jnp.sqrt(norm_sq(jax.tree.map(jnp.subtract, model, expected)))
        return equal(distance[None], 0.0, size, allowance=allowance)

    return joined([to_expected(*limit_of_flow(loss, trajectory)), short_way(loss, trajectory, to_expected)])


def short_way(
    loss: Loss, trajectory: Trajectory, against: Callable[[LinearAttention, Array], Comparison]
) -> Comparison:
    """A comparison of the end of the flow, which promises something only where the path still to go is short.

    **Arguments:** against: (the end, a bound on the length of the path still to go) -> the comparison.
    """
    end, arrowhead = trajectory.end, loss.structure
    to_go = arrowhead.way_to_go(arrowhead.state(end))
    short = to_go <= _SHORT * jnp.sqrt(norm_sq(end))
    comparison = against(end, jnp.where(short, to_go, 0.0))
    return eqx.tree_at(lambda c: c.promised, comparison, comparison.promised & short)
