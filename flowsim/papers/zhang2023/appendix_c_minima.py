"""zhang2023's appendix C.2, the loss (C.5) with random covariances and its global minima: Lemmas C.3 and C.4."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from flowsim._core.types import Matrix, Scalar
from flowsim.claims.claim import Comparison, equal
from flowsim.claims.declaring import Section
from flowsim.claims.statements import joined
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import RandomCovarianceLoss
from flowsim.models import LinearAttention
from flowsim.papers.zhang2023 import spaces
from flowsim.papers.zhang2023.appendix_c_dynamics import coefficients, entry_field, gamma_of, matrix_field
from flowsim.papers.zhang2023.minima import U_MINUS1
from flowsim.papers.zhang2023.problems import RANDOM_FLOWS
from flowsim.papers.zhang2023.setting import assumption, independent_variances

Loss = RandomCovarianceLoss


def matrix_loss(loss: Loss, model: LinearAttention) -> Array:
    """The loss by the first line of (C.5), in matrices."""
    U, u = model.U11, model.u_minus1

    def of_one(Lambda):
        quadratic = u**2 / 2 * gamma_of(loss, Lambda) @ Lambda @ U @ Lambda @ U.T
        return jnp.trace(quadratic - u * Lambda @ Lambda @ U.T)

    return loss.task.law.expectation(of_one)


def entry_loss(loss: Loss, model: LinearAttention) -> Array:
    """The loss by the second line of (C.5), entry by entry."""
    gamma, xi, zeta = coefficients(loss)
    U, u = model.U11, model.u_minus1
    diagonal = jnp.diagonal(U)
    off = jnp.sum(zeta * (1 - jnp.eye(xi.size)) * u**2 * U**2)
    return jnp.sum(gamma * u**2 * diagonal**2) / 2 + off / 2 - jnp.sum(xi * diagonal * u)


SECTION = Section(
    "zhang2023", LinearAttention, setting=independent_variances, problems=RANDOM_FLOWS, spaces=spaces.RANDOM
)


@SECTION.claim("lemma-c.3", "Lemma C.3", hypotheses=assumption)
def loss_of_the_dynamics(loss: Loss, flow: Trajectory) -> Comparison:
    """(C.4) is the gradient flow of (C.5), whose two lines agree"""

    def deviation(model):
        gradient = jax.grad(lambda m: matrix_loss(loss, m))(model)
        dU, du = entry_field(loss, model)
        _, _, size = matrix_field(loss, model)
        gap = jnp.sqrt(jnp.sum((gradient.U11 + dU) ** 2) + (gradient.u_minus1 + du) ** 2)
        first, second = matrix_loss(loss, model), entry_loss(loss, model)
        energy = jnp.sum(loss.structure.drive * loss.structure.target) + jnp.abs(second)
        return gap / jnp.where(size > 0, size, 1.0) + jnp.abs(first - second) / energy

    return equal(jax.lax.map(deviation, flow.models), jnp.zeros(()), jnp.ones(()))


@SECTION.claim("lemma-c.4", "Lemma C.4")
def minimum_and_excess(loss: Loss, flow: Trajectory) -> Comparison:
    r"""$\min \ell = -\tfrac{1}{2} \sum \xi_i^2/\gamma_i$, and $\ell - \min \ell$ is (C.7)

    Judged by subtraction, along the trajectory and at weights of (C.8), where the minimum is attained.
    """
    gamma, xi, zeta = coefficients(loss)
    minimum = -jnp.sum(xi**2 / gamma) / 2
    off = zeta * (1 - jnp.eye(xi.size))

    def sides(model):
        U, u = model.U11, model.u_minus1
        square = jnp.sum(gamma * (jnp.diagonal(U) * u - xi / gamma) ** 2) / 2 + jnp.sum(off * u**2 * U**2) / 2
        above = jnp.stack([entry_loss(loss, model) - minimum, matrix_loss(loss, model) - minimum, loss.excess(model)])
        return above, square, square - minimum

    above, right, size = jax.lax.map(sides, flow.models)
    attained = entry_loss(loss, LinearAttention(jnp.diag(xi / gamma) / 2, 2.0))
    comparisons = [equal(above[:, k], right, size) for k in range(3)]
    return joined([*comparisons, equal(attained[None], minimum, -minimum)])


def minimiser(loss: Loss) -> tuple[Matrix, Scalar]:
    """The V = u_{-1} U11 of all global minima of (C.5), (d, d), and the minimum.

    The Hessian of (C.5) in V is diagonal, so two gradients determine V.
    """
    at = lambda V: matrix_loss(loss, LinearAttention(V, 1.0))
    slope, d = jax.grad(at), loss.task.dimension
    drive = -slope(jnp.zeros((d, d)))
    V = drive / (slope(jnp.ones((d, d))) + drive)
    return V, at(V)


@SECTION.claim("lemma-c.4.minima", "Lemma C.4, (C.8)")
def every_random_minimum(loss: Loss) -> Comparison:
    r"""$u_{-1} u_{ij} = \delta_{ij} \xi_i/\gamma_i$ at every global minimum of (C.5)

    For each u_{-1} != 0 the loss is a strictly convex quadratic function of U11; at u_{-1} = 0 it is above its minimum.
    Judged where the gradient in U11 is zero, for u_{-1} of both signs from 1e-3 to 1e3.
    """
    gamma, xi, _ = coefficients(loss)
    printed, minimum = jnp.diag(xi / gamma), -jnp.sum(xi**2 / gamma) / 2
    V, _ = minimiser(loss)

    def at(u):
        model = LinearAttention(V / u, u)
        distance = jnp.linalg.norm(model.u_minus1 * model.U11 - printed)
        slope = jax.grad(lambda m: matrix_loss(loss, m))(model)
        steepness = jnp.linalg.norm(slope.U11 / u) + jnp.abs(slope.u_minus1 * u)
        return distance, matrix_loss(loss, model), entry_loss(loss, model), loss.excess(model), steepness

    distances, first, second, excesses, steepness = jax.lax.map(at, jnp.asarray(U_MINUS1))
    sides = [(distances, 0.0, jnp.linalg.norm(printed)), (first, minimum, -minimum), (second, minimum, -minimum)]
    sides += [(excesses, 0.0, -minimum), (steepness, 0.0, jnp.linalg.norm(xi) + jnp.abs(minimum))]
    return joined([equal(*each) for each in sides])
