"""The limits of flows and the global minima in zhang2023.

At u12 = u21 = 0 a loss is a strictly convex quadratic function of V = u_{-1} U11. Its minimiser V is computed from
the normal equations, without a formula of the paper. The global minima are U11 = V/u, u_{-1} = u for every u != 0.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim._core.types import Matrix, Scalar
from flowsim.claims.claim import Comparison, equal
from flowsim.claims.limits import known_limit
from flowsim.claims.statements import joined, rounded
from flowsim.flow.systems import norm_sq
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LinearAttentionLoss, RandomCovarianceLoss
from flowsim.models import LinearAttention
from flowsim.papers.zhang2023.literal import fourth_moment
from flowsim.tasks import LinearRegression

Loss = LinearAttentionLoss | RandomCovarianceLoss

# The end of a flow is compared with a limit only if the remaining path, relative to the weights, is at most this.
_SHORT = 1e-4


def limit_of_flow(loss: Loss, trajectory: Trajectory) -> tuple[LinearAttention, Float[Array, ""]]:
    """The limit of the flow, and its uncertainty: zero if the limit is proved, otherwise infinite."""
    if (known := known_limit(trajectory)) is not None:
        return known, jnp.zeros(())
    arrowhead = loss.structure
    limit, proved = arrowhead.limit(arrowhead.state(trajectory.start), jax.vmap(arrowhead.state)(trajectory.models))
    return arrowhead.model(limit), jnp.where(proved, 0.0, jnp.inf)


def distance_to_limit(loss: Loss, trajectory: Trajectory, expected: LinearAttention) -> Comparison:
    """Compares the proved limit of a flow with an expected limit.

    If the remaining path is short, the end of the flow is also compared with the expected limit.
    """
    size = jnp.sqrt(norm_sq(expected))

    def to_expected(model: LinearAttention, allowance: Array) -> Comparison:
        distance = jnp.sqrt(norm_sq(jax.tree.map(jnp.subtract, model, expected)))
        return equal(distance[None], 0.0, size, allowance=allowance)

    return joined([to_expected(*limit_of_flow(loss, trajectory)), short_way(loss, trajectory, to_expected)])


def short_way(
    loss: Loss, trajectory: Trajectory, against: Callable[[LinearAttention, Array], Comparison]
) -> Comparison:
    """A comparison at the end of a flow. It is judged only if the remaining path to the limit is short.

    **Arguments:** against: (the end, a bound on the length of the remaining path) -> the comparison.
    """
    end, arrowhead = trajectory.end, loss.structure
    to_go = arrowhead.way_to_go(arrowhead.state(end))
    short = to_go <= _SHORT * jnp.sqrt(norm_sq(end))
    comparison = against(end, jnp.where(short, to_go, 0.0))
    return eqx.tree_at(lambda c: c.promised, comparison, comparison.promised & short)


U_MINUS1 = (-1e3, -1.0, -1e-2, 1e-3, 0.3, 1.0, 30.0)  # of both signs, where minima are judged


def _whitened(task: LinearRegression) -> tuple[Matrix, Matrix]:
    """The (d, d) matrices L and K with Lambda = L L^T and E[Lambdahat^2] = L K L^T. K is computed by cubature."""
    root, N = jnp.linalg.cholesky(task.covariance), task.context_length
    return root, fourth_moment(root) / N + (1 - 1 / N) * root.T @ root


def literal_loss(task: LinearRegression, V: Matrix) -> Scalar:
    """The loss (1/2) E(yhat - y)^2 - tr(Lambda)/2 of the prediction yhat = w^T Lambdahat V x_query.

    It is (1/2) tr(B^T K B) - tr(L^T L B^T) with B = L^T V L, and with the L and K of `_whitened`.
    """
    root, moment = _whitened(task)
    B = root.T @ V @ root
    return jnp.sum(B * (moment @ B)) / 2 - jnp.sum(root.T @ root * B)


def minimiser(task: LinearRegression) -> tuple[Matrix, Scalar]:
    """The matrix V = u_{-1} U11 at every global minimum, and the minimum of `literal_loss`.

    V is L^-T K^-1 L^T with the L and K of `_whitened`.
    """
    root, moment = _whitened(task)
    B = jnp.linalg.solve(moment, root.T @ root)
    V = jax.scipy.linalg.solve_triangular(root.T, jnp.linalg.solve(moment, root.T), lower=False)
    return V, -jnp.sum(root.T @ root * B) / 2


def whitening(task: LinearRegression) -> Scalar:
    """The factor d kappa by which whitening magnifies rounding errors. kappa is the condition number of Lambda."""
    values = jnp.linalg.eigvalsh(task.covariance)
    return task.dimension * values[-1] / values[0]


def limit_is_a_minimum(loss: LinearAttentionLoss, trajectory: Trajectory) -> Comparison:
    """Compares the loss at the limit of the flow with the minimum of the loss over all weights.

    The minimum is computed at u12 = u21 = 0. Other u12 and u21 cannot lower it: they only add u12 u21^T to V, and a
    square to the loss.
    """
    limit, doubt = limit_of_flow(loss, trajectory)
    minimum = minimiser(loss.task)[1]
    value = literal_loss(loss.task, limit.u_minus1 * limit.U11)
    return rounded(equal(value[None], minimum, -minimum, allowance=doubt), whitening(loss.task))
