"""Both sides of every statement of zhang2023's section 4.3 and appendix C, with hypotheses and constants.

Every comparison takes (loss, trajectory) with a `RandomCovarianceLoss`, whose task is the statement's. Expectations
over Lambda_tau are taken as the paper writes them, by `law.expectation`, beside the closed forms that the flow uses.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from flowsim.claims.claim import Comparison, at_least, equal
from flowsim.claims.hypotheses import Hypothesis, agrees
from flowsim.claims.inequalities import polyak_lojasiewicz, sharp_constant
from flowsim.claims.statements import joined
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import AbstractPopulationLoss, RandomCovarianceLoss
from flowsim.losses.arrowhead import balanced_minimum
from flowsim.models import LinearAttention
from flowsim.papers.zhang2023.comparisons import distance_to_limit, limit_of_flow, over_models
from flowsim.papers.zhang2023.conditions import (
    assumption_3_3,
    random_pl_constant,
    random_scale_condition,
    random_u_lower_bound_sq,
)
from flowsim.tasks.covariance_laws import DiagonalLaw

Loss = RandomCovarianceLoss


# Settings and hypotheses


def random_covariances(loss: AbstractPopulationLoss) -> Hypothesis | None:
    """The setting of Lemma C.1: every prompt has a covariance of its own, of any law."""
    drawn = isinstance(loss, RandomCovarianceLoss)
    return None if drawn else agrees("a covariance drawn anew for every prompt", 0.0, 1.0)


def independent_variances(loss: AbstractPopulationLoss) -> Hypothesis | None:
    """The setting of Theorem 4.5: these covariances are diagonal with independent entries."""
    diagonal = isinstance(loss, RandomCovarianceLoss) and isinstance(loss.task.law, DiagonalLaw)
    return None if diagonal else agrees("diagonal covariances, drawn anew for every prompt", 0.0, 1.0)


def assumption(loss: Loss, start: LinearAttention) -> list[Hypothesis]:
    """Assumption 3.3."""
    return assumption_3_3(loss.task, start)


def assumption_and_scale(loss: Loss, start: LinearAttention) -> list[Hypothesis]:
    """Assumption 3.3 and the scale condition (4.11), which is (C.10)."""
    return [*assumption_3_3(loss.task, start), random_scale_condition(loss, start)]


# Lemma C.1, Corollary C.2, Lemma C.3, Lemma C.4: the loss and its dynamics


def _gamma(loss: Loss, Lambda: Array) -> Array:
    n = 1 / loss.task.context_length
    return (1 + n) * Lambda + n * jnp.trace(Lambda) * jnp.eye(Lambda.shape[0])


def _matrix_field(loss: Loss, model: LinearAttention) -> tuple[Array, Array, Array]:
    """The right-hand sides of (C.1), and the size of their terms."""
    U, u = model.U11, model.u_minus1
    sandwich, square = loss.task.law.expectation(
        lambda Lambda: (_gamma(loss, Lambda) @ Lambda @ U @ Lambda, Lambda @ Lambda)
    )
    pull, push = u * jnp.trace(sandwich @ U.T), jnp.trace(square @ U.T)
    size = u**2 * jnp.linalg.norm(sandwich) + jnp.linalg.norm(u * square) + jnp.abs(pull) + jnp.abs(push)
    return -(u**2) * sandwich + u * square, push - pull, size


def coefficients(loss: Loss) -> tuple[Array, Array, Array]:
    """gamma_i, xi_i and zeta_ij as (C.3) prints them."""
    n = 1 / loss.task.context_length

    def of_one(Lambda):
        lam = jnp.diagonal(Lambda)
        gamma = (1 + n) * lam**3 + n * lam**2 * jnp.sum(lam)
        zeta = (1 + n) * jnp.outer(lam**2, lam) + n * jnp.outer(lam, lam) * jnp.sum(lam)
        return gamma, lam**2, zeta

    return loss.task.law.expectation(of_one)


def _entry_field(loss: Loss, model: LinearAttention) -> tuple[Array, Array]:
    """The right-hand sides of (C.4)."""
    gamma, xi, zeta = coefficients(loss)
    U, u = model.U11, model.u_minus1
    diagonal = jnp.diagonal(U)
    off = zeta * (1 - jnp.eye(xi.size))
    dU = jnp.diag(-gamma * u**2 * diagonal + xi * u) - off * u**2 * U
    du = -jnp.sum(gamma * u * diagonal**2) - jnp.sum(off * u * U**2) + jnp.sum(xi * diagonal)
    return dU, du


def matrix_loss(loss: Loss, model: LinearAttention) -> Array:
    """The first line of (C.5)."""
    U, u = model.U11, model.u_minus1

    def of_one(Lambda):
        quadratic = u**2 / 2 * _gamma(loss, Lambda) @ Lambda @ U @ Lambda @ U.T
        return jnp.trace(quadratic - u * Lambda @ Lambda @ U.T)

    return loss.task.law.expectation(of_one)


def entry_loss(loss: Loss, model: LinearAttention) -> Array:
    """The second line of (C.5)."""
    gamma, xi, zeta = coefficients(loss)
    U, u = model.U11, model.u_minus1
    diagonal = jnp.diagonal(U)
    off = jnp.sum(zeta * (1 - jnp.eye(xi.size)) * u**2 * U**2)
    return jnp.sum(gamma * u**2 * diagonal**2) / 2 + off / 2 - jnp.sum(xi * diagonal * u)


def _relative(gap: Array, size: Array) -> Array:
    return gap / jnp.where(size > 0, size, 1.0)


def _field_gap(loss: Loss, model: LinearAttention, field: tuple[Array, Array]) -> Array:
    """Distance of a printed field from minus the gradient of the exact loss, u12 and u21 included."""
    gradient = loss.gradient(model)
    return jnp.sqrt(
        jnp.sum((gradient.U11 + field[0]) ** 2)
        + (gradient.u_minus1 + field[1]) ** 2
        + jnp.sum(gradient.u12**2)
        + jnp.sum(gradient.u21**2)
    )


def dynamics(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The gradient of the exact loss over all weights against minus (C.1), and against zero for u12 and u21."""

    def deviation(model):
        dU, du, size = _matrix_field(loss, model)
        return _field_gap(loss, model, (dU, du)), size

    value, size = over_models(deviation, trajectory)
    return equal(value, jnp.zeros(()), size)


def entrywise_dynamics(loss: Loss, trajectory: Trajectory) -> Comparison:
    """(C.4) with the coefficients (C.3) against (C.1) and against the gradient of the exact loss."""

    def deviation(model):
        dU, du, size = _matrix_field(loss, model)
        entry_dU, entry_du = _entry_field(loss, model)
        gap = jnp.sqrt(jnp.sum((dU - entry_dU) ** 2) + (du - entry_du) ** 2)
        return gap + _field_gap(loss, model, (entry_dU, entry_du)), size

    value, size = over_models(deviation, trajectory)
    return equal(value, jnp.zeros(()), size)


def loss_of_the_dynamics(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The gradient of (C.5) against minus (C.4), and both lines of (C.5) against each other."""

    def deviation(model):
        gradient = jax.grad(lambda m: matrix_loss(loss, m))(model)
        dU, du = _entry_field(loss, model)
        _, _, size = _matrix_field(loss, model)
        gap = jnp.sqrt(jnp.sum((gradient.U11 + dU) ** 2) + (gradient.u_minus1 + du) ** 2)
        first, second = matrix_loss(loss, model), entry_loss(loss, model)
        energy = jnp.sum(loss.structure.drive * loss.structure.target) + jnp.abs(second)
        return _relative(gap, size) + jnp.abs(first - second) / energy

    return equal(over_models(deviation, trajectory), jnp.zeros(()), jnp.ones(()))


def minimum_and_excess(loss: Loss, trajectory: Trajectory) -> Comparison:
    """Both lines of (C.5) minus (C.6), and the loss's excess, against (C.7); weights of (C.8) attain the minimum."""
    gamma, xi, zeta = coefficients(loss)
    minimum = -jnp.sum(xi**2 / gamma) / 2
    off = zeta * (1 - jnp.eye(xi.size))

    def sides(model):
        U, u = model.U11, model.u_minus1
        square = jnp.sum(gamma * (jnp.diagonal(U) * u - xi / gamma) ** 2) / 2 + jnp.sum(off * u**2 * U**2) / 2
        above = jnp.stack([entry_loss(loss, model) - minimum, matrix_loss(loss, model) - minimum, loss.excess(model)])
        return above, square, square - minimum

    above, right, size = over_models(sides, trajectory)
    attained = entry_loss(loss, LinearAttention(jnp.diag(xi / gamma) / 2, 2.0))
    comparisons = [equal(above[:, k], right, size) for k in range(3)]
    return joined([*comparisons, equal(attained[None], minimum, -minimum)])


# Lemmas C.6 to C.8, Theorem 4.5: convergence


def proof_of_positivity(loss: Loss, trajectory: Trajectory) -> tuple[Array, Array]:
    """sigma^2 E tr[Lambda_tau^2 Theta Theta^T] and sigma^2 |E[Lambda_tau] Theta|_F^2."""
    start = trajectory.start
    mean, square = loss.task.law.expectation(lambda Lambda: (Lambda, Lambda @ Lambda))
    return start.u_minus1 * jnp.trace(square @ start.U11), start.u_minus1 * jnp.trace(mean @ mean @ start.U11)


def proof_equality(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The equality in the proof of Lemma C.6."""
    left, right = proof_of_positivity(loss, trajectory)
    return equal(left[None], right[None], left[None])


def proof_inequality(loss: Loss, trajectory: Trajectory) -> Comparison:
    """What that proof needs of it."""
    left, right = proof_of_positivity(loss, trajectory)
    return at_least(left[None], right[None])


def u_bounded_below(loss: Loss, trajectory: Trajectory) -> Comparison:
    """(C.12)."""
    bound_sq = random_u_lower_bound_sq(loss, trajectory.start)
    return at_least(trajectory.models.u_minus1, jnp.sqrt(jnp.maximum(bound_sq, 0.0)), promised=bound_sq > 0)


def u_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The bound of (C.12) and the least u_{-1} along the flow."""
    bound_sq = jnp.maximum(random_u_lower_bound_sq(loss, trajectory.start), 0.0)
    return {"u_lower_bound": jnp.sqrt(bound_sq), "sharp_u_lower_bound": jnp.min(trajectory.models.u_minus1)}


def pl(loss: Loss, trajectory: Trajectory) -> Comparison:
    """(C.14)."""
    return polyak_lojasiewicz(trajectory, random_pl_constant(loss, trajectory.start))


def pl_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """nu of (C.13) and the largest that holds along the flow."""
    return {"nu": random_pl_constant(loss, trajectory.start), "sharp_nu": sharp_constant(trajectory)}


def printed_limit(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The end of the flow against (C.15), its u_{-1} -> (sum xi_i/gamma_i)^{1/4} without squares."""
    gamma, xi, _ = coefficients(loss)
    ratio = xi / gamma
    U11 = jnp.diag(ratio) / jnp.sum(ratio**2) ** 0.25
    return distance_to_limit(loss, trajectory, LinearAttention(U11, jnp.sum(ratio) ** 0.25))


def corrected_limit(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The end of the flow against (C.15) with u_{-1} of (C.17)."""
    gamma, xi, _ = coefficients(loss)
    u = jnp.sum((xi / gamma) ** 2) ** 0.25
    return distance_to_limit(loss, trajectory, LinearAttention(jnp.diag(xi / gamma) / u, u))


def value_weight_limit(loss: Loss, trajectory: Trajectory) -> Comparison:
    """u_{-1} at the limit of the flow against (C.17)."""
    gamma, xi, _ = coefficients(loss)
    expected = jnp.sum((xi / gamma) ** 2) ** 0.25
    limit, doubt = limit_of_flow(loss, trajectory)
    return equal(limit.u_minus1[None], expected, expected, allowance=doubt)


def matrix_limit(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The end of the flow against (4.12)."""
    operator, square = loss.task.law.expectation(
        lambda Lambda: (_gamma(loss, Lambda) @ Lambda @ Lambda, Lambda @ Lambda)
    )
    product = jnp.linalg.solve(operator, square)
    u = jnp.sqrt(jnp.linalg.norm(product))
    return distance_to_limit(loss, trajectory, LinearAttention(product / u, u))


def limit_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """u_{-1} as (C.15) and as (C.17) have it, and at the end of the flow."""
    gamma, xi, _ = coefficients(loss)
    return {
        "u_printed": jnp.sum(xi / gamma) ** 0.25,
        "u_limit": balanced_minimum(loss.structure).u_minus1,
        "u_end": trajectory.end.u_minus1,
    }
