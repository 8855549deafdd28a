"""Global minima of zhang2023's losses by normal equations, beside the formulas of the paper.

At u12 = u21 = 0 a loss depends on V = u_{-1} U11 alone, and is a strictly convex quadratic form in it. Its global
minima are all (V/u, u) with u != 0 of either sign and the one V that solves the normal equations.
"""

import equinox as eqx
import jax
import jax.numpy as jnp

from flowsim._core.types import Matrix, Scalar
from flowsim.claims.claim import Comparison, equal
from flowsim.claims.statements import joined, rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LinearAttentionLoss, RandomCovarianceLoss
from flowsim.models import LinearAttention
from flowsim.papers.zhang2023.comparisons import limit_of_flow, printed_loss, tends_to_limit, tends_to_matrices
from flowsim.papers.zhang2023.literal import gaussian_sum
from flowsim.papers.zhang2023.random_covariance import coefficients, entry_loss, matrix_limit, matrix_loss
from flowsim.tasks import LinearRegression

_VALUES = (-1e3, -1.0, -1e-2, 1e-3, 0.3, 1.0, 30.0)  # of u_{-1}


def _whitened(task: LinearRegression) -> tuple[Matrix, Matrix]:
    """L with Lambda = L L^T, and K with E[Lambdahat^2] = L K L^T, by cubature."""
    root, N = jnp.linalg.cholesky(task.covariance), task.context_length

    def terms(z, weights):
        squares = jnp.sum((z @ root.T) ** 2, axis=1)
        return (weights * squares)[None, :] * z.T @ z

    return root, gaussian_sum(terms, task.dimension) / N + (1 - 1 / N) * root.T @ root


def literal_loss(task: LinearRegression, V: Matrix) -> Scalar:
    """(1/2) E(yhat - y)^2 - tr(Lambda)/2 with yhat = w^T Lambdahat V x_query: (1/2) tr(B^T K B) - tr(L^T L B^T), where
    B = L^T V L.
    """
    root, moment = _whitened(task)
    B = root.T @ V @ root
    return jnp.sum(B * (moment @ B)) / 2 - jnp.sum(root.T @ root * B)


def minimiser(task: LinearRegression) -> tuple[Matrix, Scalar]:
    """The V of every global minimum, L^-T K^-1 L^T, and the minimum of `literal_loss`."""
    root, moment = _whitened(task)
    B = jnp.linalg.solve(moment, root.T @ root)
    V = jax.scipy.linalg.solve_triangular(root.T, jnp.linalg.solve(moment, root.T), lower=False)
    return V, -jnp.sum(root.T @ root * B) / 2


def _conditioning(task: LinearRegression) -> Scalar:
    """How much the whitening magnifies rounding: d kappa(Lambda)."""
    values = jnp.linalg.eigvalsh(task.covariance)
    return task.dimension * values[-1] / values[0]


def every_minimum(loss: LinearAttentionLoss, trajectory: Trajectory) -> Comparison:
    """u_{-1} U11 against Gamma^-1, (5.5) against its minimum and the excess against zero, at global minima.

    Their u_{-1} are of both signs, from 1e-3 to 1e3.
    """
    return _every_minimum(loss)


@eqx.filter_jit
def _every_minimum(loss: LinearAttentionLoss) -> Comparison:
    task = loss.task
    V, minimum = minimiser(task)
    inverse = jnp.linalg.inv(task.gamma())

    def at(u):
        model = LinearAttention(V / u, u)
        distance = jnp.linalg.norm(model.u_minus1 * model.U11 - inverse)
        return distance, printed_loss(loss, model), loss.excess(model)

    distances, values, excesses = jax.lax.map(at, jnp.asarray(_VALUES))
    sides = [(distances, 0.0, jnp.linalg.norm(inverse)), (values, minimum, -minimum), (excesses, 0.0, -minimum)]
    return rounded(joined([equal(*each) for each in sides]), _conditioning(task))


def _limit_is_a_minimum(loss: LinearAttentionLoss, trajectory: Trajectory) -> Comparison:
    """The loss at the limit of the flow against its minimum over all weights: u12 and u21 add a square to it."""
    limit, doubt = limit_of_flow(loss, trajectory)
    minimum = minimiser(loss.task)[1]
    value = literal_loss(loss.task, limit.u_minus1 * limit.U11)
    return rounded(equal(value[None], minimum, -minimum, allowance=doubt), _conditioning(loss.task))


def tends_to_global_minimum(loss: LinearAttentionLoss, trajectory: Trajectory) -> Comparison:
    """The limit of the flow against (5.9), and its loss against the minimum."""
    return joined([tends_to_limit(loss, trajectory), _limit_is_a_minimum(loss, trajectory)])


def tends_to_global_minimum_of_matrices(loss: LinearAttentionLoss, trajectory: Trajectory) -> Comparison:
    """The limit of the flow against (4.1), and its loss against the minimum."""
    return joined([tends_to_matrices(loss, trajectory), _limit_is_a_minimum(loss, trajectory)])


# Random covariances


def _random_minimiser(loss: RandomCovarianceLoss) -> tuple[Matrix, Scalar]:
    """The V of every global minimum of (C.5), whose Hessian in V is diagonal, by its gradient; and the minimum."""
    at = lambda V: matrix_loss(loss, LinearAttention(V, 1.0))
    slope, d = jax.grad(at), loss.task.dimension
    drive = -slope(jnp.zeros((d, d)))
    V = drive / (slope(jnp.ones((d, d))) + drive)
    return V, at(V)


def every_random_minimum(loss: RandomCovarianceLoss, trajectory: Trajectory) -> Comparison:
    """u_{-1} U11 against (C.8), both lines of (C.5) against (C.6) and the excess against zero, at global minima with
    u_{-1} of both signs from 1e-3 to 1e3; and that the gradient is zero there.
    """
    gamma, xi, _ = coefficients(loss)
    printed, minimum = jnp.diag(xi / gamma), -jnp.sum(xi**2 / gamma) / 2
    V, _ = _random_minimiser(loss)

    def at(u):
        model = LinearAttention(V / u, u)
        distance = jnp.linalg.norm(model.u_minus1 * model.U11 - printed)
        slope = jax.grad(lambda m: matrix_loss(loss, m))(model)
        steepness = jnp.linalg.norm(slope.U11 / u) + jnp.abs(slope.u_minus1 * u)
        return distance, matrix_loss(loss, model), entry_loss(loss, model), loss.excess(model), steepness

    distances, first, second, excesses, steepness = jax.lax.map(at, jnp.asarray(_VALUES))
    sides = [(distances, 0.0, jnp.linalg.norm(printed)), (first, minimum, -minimum), (second, minimum, -minimum)]
    sides += [(excesses, 0.0, -minimum), (steepness, 0.0, jnp.linalg.norm(xi) + jnp.abs(minimum))]
    return joined([equal(*each) for each in sides])


def tends_to_random_global_minimum(loss: RandomCovarianceLoss, trajectory: Trajectory) -> Comparison:
    """The limit of the flow against (4.12), and its loss (C.5) against the minimum."""
    limit, doubt = limit_of_flow(loss, trajectory)
    minimum = _random_minimiser(loss)[1]
    value = matrix_loss(loss, limit)
    return joined([matrix_limit(loss, trajectory), equal(value[None], minimum, -minimum, allowance=doubt)])
