"""Global minima of zhang2023's losses by normal equations, independently of the formulas of the paper.

At u12 = u21 = 0 a loss depends only on V = u_{-1} U11 and is a strictly convex quadratic function of it. Its global
minima are all (V/u, u) with u != 0 of either sign and the one V that solves the normal equations.
"""

import jax
import jax.numpy as jnp

from flowsim._core.types import Matrix, Scalar
from flowsim.claims.claim import Comparison, equal
from flowsim.claims.statements import rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LinearAttentionLoss
from flowsim.papers.zhang2023.limits import limit_of_flow
from flowsim.papers.zhang2023.literal import gaussian_sum
from flowsim.tasks import LinearRegression

U_MINUS1 = (-1e3, -1.0, -1e-2, 1e-3, 0.3, 1.0, 30.0)  # of both signs, where minima are judged


def _whitened(task: LinearRegression) -> tuple[Matrix, Matrix]:
    """L with Lambda = L L^T, and K with E[Lambdahat^2] = L K L^T, by cubature."""
    root, N = jnp.linalg.cholesky(task.covariance), task.context_length

    def terms(z, weights):
        squares = jnp.sum((z @ root.T) ** 2, axis=1)
        return (weights * squares)[None, :] * z.T @ z

    return root, gaussian_sum(terms, task.dimension) / N + (1 - 1 / N) * root.T @ root


def literal_loss(task: LinearRegression, V: Matrix) -> Scalar:
    """The loss (1/2) E(yhat - y)^2 - tr(Lambda)/2 for yhat = w^T Lambdahat V x_query.

    It is (1/2) tr(B^T K B) - tr(L^T L B^T) with B = L^T V L, and L and K of `_whitened`.
    """
    root, moment = _whitened(task)
    B = root.T @ V @ root
    return jnp.sum(B * (moment @ B)) / 2 - jnp.sum(root.T @ root * B)


def minimiser(task: LinearRegression) -> tuple[Matrix, Scalar]:
    """The V of all global minima, L^-T K^-1 L^T, and the minimum of `literal_loss`."""
    root, moment = _whitened(task)
    B = jnp.linalg.solve(moment, root.T @ root)
    V = jax.scipy.linalg.solve_triangular(root.T, jnp.linalg.solve(moment, root.T), lower=False)
    return V, -jnp.sum(root.T @ root * B) / 2


def whitening(task: LinearRegression) -> Scalar:
    """The factor by which whitening magnifies rounding errors, d kappa(Lambda)."""
    values = jnp.linalg.eigvalsh(task.covariance)
    return task.dimension * values[-1] / values[0]


def limit_is_a_minimum(loss: LinearAttentionLoss, trajectory: Trajectory) -> Comparison:
    """The loss at the limit of the flow against its minimum over all weights; u12 and u21 only add a square to it."""
    limit, doubt = limit_of_flow(loss, trajectory)
    minimum = minimiser(loss.task)[1]
    value = literal_loss(loss.task, limit.u_minus1 * limit.U11)
    return rounded(equal(value[None], minimum, -minimum, allowance=doubt), whitening(loss.task))
