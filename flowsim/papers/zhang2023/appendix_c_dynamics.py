"""zhang2023's appendix C.1, the dynamical system with random covariances: Lemma C.1 and Corollary C.2.

In all parts of appendix C, expectations over Lambda_tau are computed as the paper writes them, by `law.expectation`,
and not by the closed forms that the flow uses.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from flowsim.claims.claim import Comparison, equal
from flowsim.claims.declaring import Section
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import RandomCovarianceLoss
from flowsim.models import LinearAttention
from flowsim.papers.zhang2023 import spaces
from flowsim.papers.zhang2023.problems import NO_COMMON_EIGENBASIS, RANDOM_FLOWS
from flowsim.papers.zhang2023.setting import assumption, independent_variances, random_covariances

Loss = RandomCovarianceLoss


def gamma_of(loss: Loss, Lambda: Array) -> Array:
    """Gamma_tau = (1 + 1/N) Lambda_tau + tr(Lambda_tau) I/N for one covariance Lambda_tau, (d, d)."""
    n = 1 / loss.task.context_length
    return (1 + n) * Lambda + n * jnp.trace(Lambda) * jnp.eye(Lambda.shape[0])


def matrix_field(loss: Loss, model: LinearAttention) -> tuple[Array, Array, Array]:
    """The right-hand sides of (C.1), and the size of their terms."""
    U, u = model.U11, model.u_minus1
    sandwich, square = loss.task.law.expectation(
        lambda Lambda: (gamma_of(loss, Lambda) @ Lambda @ U @ Lambda, Lambda @ Lambda)
    )
    pull, push = u * jnp.trace(sandwich @ U.T), jnp.trace(square @ U.T)
    size = u**2 * jnp.linalg.norm(sandwich) + jnp.linalg.norm(u * square) + jnp.abs(pull) + jnp.abs(push)
    return -(u**2) * sandwich + u * square, push - pull, size


def _field_gap(loss: Loss, model: LinearAttention, field: tuple[Array, Array]) -> Array:
    """Distance of a printed field from minus the gradient of the exact loss, u12 and u21 included."""
    gradient = loss.gradient(model)
    return jnp.sqrt(
        jnp.sum((gradient.U11 + field[0]) ** 2)
        + (gradient.u_minus1 + field[1]) ** 2
        + jnp.sum(gradient.u12**2)
        + jnp.sum(gradient.u21**2)
    )


SECTION = Section("zhang2023", LinearAttention, setting=random_covariances, hypotheses=assumption)


@SECTION.claim("lemma-c.1", "Lemma C.1", problems=(*RANDOM_FLOWS, NO_COMMON_EIGENBASIS), spaces=spaces.RANDOM)
def dynamics(loss: Loss, flow: Trajectory) -> Comparison:
    r"""$dU_{11}/dt$ and $du_{-1}/dt$ are (C.1), and $u_{12} = u_{21} = 0$ for all $t$, whatever the law of $\Lambda$

    Compared with the gradient of the exact loss over all weights, u12 and u21 included.
    """

    def deviation(model):
        dU, du, size = matrix_field(loss, model)
        return _field_gap(loss, model, (dU, du)), size

    value, size = jax.lax.map(deviation, flow.models)
    return equal(value, jnp.zeros(()), size)


def coefficients(loss: Loss) -> tuple[Array, Array, Array]:
    """gamma_i, xi_i and zeta_ij as (C.3) prints them."""
    n = 1 / loss.task.context_length

    def of_one(Lambda):
        lam = jnp.diagonal(Lambda)
        gamma = (1 + n) * lam**3 + n * lam**2 * jnp.sum(lam)
        zeta = (1 + n) * jnp.outer(lam**2, lam) + n * jnp.outer(lam, lam) * jnp.sum(lam)
        return gamma, lam**2, zeta

    return loss.task.law.expectation(of_one)


def entry_field(loss: Loss, model: LinearAttention) -> tuple[Array, Array]:
    """The right-hand sides of (C.4)."""
    gamma, xi, zeta = coefficients(loss)
    U, u = model.U11, model.u_minus1
    diagonal = jnp.diagonal(U)
    off = zeta * (1 - jnp.eye(xi.size))
    dU = jnp.diag(-gamma * u**2 * diagonal + xi * u) - off * u**2 * U
    du = -jnp.sum(gamma * u * diagonal**2) - jnp.sum(off * u * U**2) + jnp.sum(xi * diagonal)
    return dU, du


@SECTION.claim(
    "corollary-c.2", "Corollary C.2", setting=independent_variances, problems=RANDOM_FLOWS, spaces=spaces.RANDOM
)
def entrywise_dynamics(loss: Loss, flow: Trajectory) -> Comparison:
    """With diagonal covariances (C.1) is (C.4), entry by entry"""

    def deviation(model):
        dU, du, size = matrix_field(loss, model)
        entry_dU, entry_du = entry_field(loss, model)
        gap = jnp.sqrt(jnp.sum((dU - entry_dU) ** 2) + (du - entry_du) ** 2)
        return gap + _field_gap(loss, model, (entry_dU, entry_du)), size

    value, size = jax.lax.map(deviation, flow.models)
    return equal(value, jnp.zeros(()), size)
