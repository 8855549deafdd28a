"""zhang2023's appendix C, random covariances: the dynamical system, its minima, the PL inequality and the limit.

Expectations over Lambda_tau are written as in the paper and computed by `law.expectation`. The integrated flow uses
closed forms instead.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from flowsim._core.types import Matrix, Scalar
from flowsim.claims.claim import Comparison, at_least, at_most, equal
from flowsim.claims.declaring import Section
from flowsim.claims.rates import exponential_envelope
from flowsim.claims.statements import joined, polyak_lojasiewicz, sharp_constant
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import RandomCovarianceLoss
from flowsim.losses.arrowhead import balanced_minimum
from flowsim.models import LinearAttention
from flowsim.papers.zhang2023 import spaces
from flowsim.papers.zhang2023.appendix_a import stays_balanced, u_positive
from flowsim.papers.zhang2023.conditions import (
    assumption,
    assumption_and_random_scale,
    independent_variances,
    random_covariances,
    random_pl_constant,
    random_u_lower_bound_sq,
)
from flowsim.papers.zhang2023.limits import U_MINUS1, distance_to_limit, limit_of_flow
from flowsim.papers.zhang2023.problems import NO_COMMON_EIGENBASIS, RANDOM_FLOWS

Loss = RandomCovarianceLoss


def gamma_of(loss: Loss, Lambda: Array) -> Array:
    """The matrix Gamma_tau = (1 + 1/N) Lambda_tau + tr(Lambda_tau) I/N of one (d, d) covariance Lambda_tau."""
    n = 1 / loss.task.context_length
    return (1 + n) * Lambda + n * jnp.trace(Lambda) * jnp.eye(Lambda.shape[0])


def matrix_field(loss: Loss, model: LinearAttention) -> tuple[Array, Array, Array]:
    """The right-hand sides of (C.1), dU11/dt (d, d) and du_{-1}/dt, and the sum of the norms of their terms."""
    U, u = model.U11, model.u_minus1
    sandwich, square = loss.task.law.expectation(
        lambda Lambda: (gamma_of(loss, Lambda) @ Lambda @ U @ Lambda, Lambda @ Lambda)
    )
    pull, push = u * jnp.trace(sandwich @ U.T), jnp.trace(square @ U.T)
    size = u**2 * jnp.linalg.norm(sandwich) + jnp.linalg.norm(u * square) + jnp.abs(pull) + jnp.abs(push)
    return -(u**2) * sandwich + u * square, push - pull, size


def _field_gap(loss: Loss, model: LinearAttention, field: tuple[Array, Array]) -> Array:
    """The distance between a printed field (dU11/dt, du_{-1}/dt) and minus the gradient of the exact loss.

    The gradient is with respect to all weights. The printed derivatives of u12 and u21 are zero.
    """
    gradient = loss.gradient(model)
    return jnp.sqrt(
        jnp.sum((gradient.U11 + field[0]) ** 2)
        + (gradient.u_minus1 + field[1]) ** 2
        + jnp.sum(gradient.u12**2)
        + jnp.sum(gradient.u21**2)
    )


DYNAMICS = Section("zhang2023", LinearAttention, setting=random_covariances, hypotheses=assumption)


@DYNAMICS.on((*RANDOM_FLOWS, NO_COMMON_EIGENBASIS), spaces.RANDOM).claim("lemma-c.1", "Lemma C.1")
def dynamics(loss: Loss, flow: Trajectory) -> Comparison:
    r"""$dU_{11}/dt$ and $du_{-1}/dt$ are (C.1), and $u_{12} = u_{21} = 0$ for all $t$, for every law of $\Lambda$

    Compared with the gradient of the exact loss over all weights, u12 and u21 included.
    """

    def deviation(model):
        dU, du, size = matrix_field(loss, model)
        return _field_gap(loss, model, (dU, du)), size

    value, size = jax.lax.map(deviation, flow.models)
    return equal(value, jnp.zeros(()), size)


def coefficients(loss: Loss) -> tuple[Array, Array, Array]:
    """The gamma_i (d,), xi_i (d,) and zeta_ij (d, d) of (C.3), computed as printed for a diagonal Lambda_tau."""
    n = 1 / loss.task.context_length

    def of_one(Lambda):
        lam = jnp.diagonal(Lambda)
        gamma = (1 + n) * lam**3 + n * lam**2 * jnp.sum(lam)
        zeta = (1 + n) * jnp.outer(lam**2, lam) + n * jnp.outer(lam, lam) * jnp.sum(lam)
        return gamma, lam**2, zeta

    return loss.task.law.expectation(of_one)


def entry_field(loss: Loss, model: LinearAttention) -> tuple[Array, Array]:
    """The right-hand sides of (C.4), dU11/dt (d, d) entry by entry and du_{-1}/dt."""
    gamma, xi, zeta = coefficients(loss)
    U, u = model.U11, model.u_minus1
    diagonal = jnp.diagonal(U)
    off = zeta * (1 - jnp.eye(xi.size))
    dU = jnp.diag(-gamma * u**2 * diagonal + xi * u) - off * u**2 * U
    du = -jnp.sum(gamma * u * diagonal**2) - jnp.sum(off * u * U**2) + jnp.sum(xi * diagonal)
    return dU, du


@DYNAMICS.on(RANDOM_FLOWS, spaces.RANDOM).claim("corollary-c.2", "Corollary C.2", setting=independent_variances)
def entrywise_dynamics(loss: Loss, flow: Trajectory) -> Comparison:
    """With diagonal covariances, (C.1) has the entries (C.4)"""

    def deviation(model):
        dU, du, size = matrix_field(loss, model)
        entry_dU, entry_du = entry_field(loss, model)
        gap = jnp.sqrt(jnp.sum((dU - entry_dU) ** 2) + (du - entry_du) ** 2)
        return gap + _field_gap(loss, model, (entry_dU, entry_du)), size

    value, size = jax.lax.map(deviation, flow.models)
    return equal(value, jnp.zeros(()), size)


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


MINIMA = Section(
    "zhang2023", LinearAttention, setting=independent_variances, problems=RANDOM_FLOWS, spaces=spaces.RANDOM
)


@MINIMA.claim("lemma-c.3", "Lemma C.3", hypotheses=assumption)
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


@MINIMA.claim("lemma-c.4", "Lemma C.4")
def minimum_and_excess(loss: Loss, flow: Trajectory) -> Comparison:
    r"""$\min \ell = -\tfrac{1}{2} \sum \xi_i^2/\gamma_i$, and $\ell - \min \ell$ is (C.7)

    The minimum is subtracted from the loss along the flow. It is attained at weights of (C.8).
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
    """The (d, d) matrix V = u_{-1} U11 at every global minimum of (C.5), and the minimum of (C.5).

    The Hessian of (C.5) with respect to V is diagonal, so two gradients determine V.
    """
    at = lambda V: matrix_loss(loss, LinearAttention(V, 1.0))
    slope, d = jax.grad(at), loss.task.dimension
    drive = -slope(jnp.zeros((d, d)))
    V = drive / (slope(jnp.ones((d, d))) + drive)
    return V, at(V)


@MINIMA.claim("lemma-c.4.minima", "Lemma C.4, (C.8)")
def every_random_minimum(loss: Loss) -> Comparison:
    r"""$u_{-1} u_{ij} = \delta_{ij} \xi_i/\gamma_i$ at every global minimum of (C.5)

    For each u_{-1} != 0 the loss is a strictly convex quadratic function of U11. At u_{-1} = 0 it is above its minimum.
    Judged where the gradient with respect to U11 is zero, for u_{-1} of both signs from 1e-3 to 1e3.
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


CONVERGENCE = Section(
    "zhang2023", LinearAttention, setting=independent_variances, hypotheses=assumption_and_random_scale
)
ON_RANDOM_FLOWS = CONVERGENCE.on(RANDOM_FLOWS, spaces.RANDOM)

CONVERGENCE.on((*RANDOM_FLOWS, NO_COMMON_EIGENBASIS), spaces.RANDOM).claim(
    "lemma-c.5", "Lemma C.5, (C.9)", setting=random_covariances, hypotheses=assumption
)(stays_balanced)
ON_RANDOM_FLOWS.claim("lemma-c.6", "Lemma C.6, (C.11)")(u_positive)


@ON_RANDOM_FLOWS.claim("lemma-c.6.start", "proof of Lemma C.6")
def random_start_below_the_saddle(loss: Loss, start: PyTree) -> Comparison:
    r"""$\ell_{\mathrm{rdm}}(0) \le \frac{\sigma^4 \sqrt{d}}{2} \mathbb{E}[\lVert \Gamma \rVert_{\mathrm{op}} \lVert
    \Lambda \rVert_F^2] - \sigma^2 \lVert \mathbb{E}[\Lambda] \Theta \rVert_F^2$
    """
    mean = loss.task.mean_covariance
    sigma, d = start.u_minus1, loss.task.dimension
    square = jnp.trace(mean @ mean @ start.U11) / sigma
    bound = sigma**4 * jnp.sqrt(float(d)) / 2 * loss.operator_energy - sigma**2 * square
    return at_most(matrix_loss(loss, start)[None], bound[None], size=sigma**2 * square)


def proof_of_positivity(loss: Loss, start: PyTree) -> tuple[Array, Array]:
    """Both sides of the equality in the proof of Lemma C.6, with sigma = u_{-1}(0).

    They are sigma^2 E tr[Lambda_tau^2 Theta Theta^T] and sigma^2 |E[Lambda_tau] Theta|_F^2.
    """
    mean, square = loss.task.law.expectation(lambda Lambda: (Lambda, Lambda @ Lambda))
    return start.u_minus1 * jnp.trace(square @ start.U11), start.u_minus1 * jnp.trace(mean @ mean @ start.U11)


@ON_RANDOM_FLOWS.claim("lemma-c.6.proof-equality", "proof of Lemma C.6", hypotheses=assumption)
def proof_equality(loss: Loss, start: PyTree) -> Comparison:
    r"""$\mathbb{E} \operatorname{tr}[\sigma^2 \Lambda^2 \Theta \Theta^\top] = \sigma^2 \lVert \mathbb{E}[\Lambda]
    \Theta \rVert_F^2$

    The left side is sigma^2 E|Lambda Theta|_F^2, which is larger by sigma^2 tr(Var(Lambda) Theta Theta^T).
    """
    left, right = proof_of_positivity(loss, start)
    return equal(left[None], right[None], left[None])


@ON_RANDOM_FLOWS.corrected(proof_equality, hypotheses=assumption)
def proof_inequality(loss: Loss, start: PyTree) -> Comparison:
    r"""$\mathbb{E} \operatorname{tr}[\sigma^2 \Lambda^2 \Theta \Theta^\top] \ge \sigma^2 \lVert \mathbb{E}[\Lambda]
    \Theta \rVert_F^2$, by Jensen's inequality

    The proof needs only this inequality, so the lemma stands.
    """
    left, right = proof_of_positivity(loss, start)
    return at_least(left[None], right[None])


def u_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The lower bound (C.12) on u_{-1}, zero if the paper gives none, and the least u_{-1} along the flow."""
    bound_sq = jnp.maximum(random_u_lower_bound_sq(loss, trajectory.start), 0.0)
    return {"u_lower_bound": jnp.sqrt(bound_sq), "sharp_u_lower_bound": jnp.min(trajectory.models.u_minus1)}


@ON_RANDOM_FLOWS.claim("lemma-c.7", "Lemma C.7, (C.12)", constants=u_constants)
def u_bounded_below(loss: Loss, flow: Trajectory) -> Comparison:
    r"""$u_{-1}^2 \ge \frac{\sigma^2 \bigl(2 \lVert \mathbb{E}[\Lambda] \Theta \rVert_F^2 - \sqrt{d} \sigma^2
    \mathbb{E}[\lVert \Gamma \rVert_{\mathrm{op}} \lVert \Lambda \rVert_F^2]\bigr)}{2 \sqrt{d} \lVert
    \mathbb{E}[\Lambda^2] \rVert_{\mathrm{op}}}$ for all $t$
    """
    bound_sq = random_u_lower_bound_sq(loss, flow.start)
    return at_least(flow.models.u_minus1, jnp.sqrt(jnp.maximum(bound_sq, 0.0)), promised=bound_sq > 0)


def pl_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The nu of (C.13), and the largest nu for which the PL inequality (C.14) holds along the flow."""
    return {"nu": random_pl_constant(loss, trajectory.start), "sharp_nu": sharp_constant(trajectory)}


@ON_RANDOM_FLOWS.claim("lemma-c.8.pl", "Lemma C.8, (C.14)", constants=pl_constants)
def pl(loss: Loss, flow: Trajectory) -> Comparison:
    r"""$\lVert \nabla \ell \rVert^2 \ge \nu (\ell - \min \ell)$ for all $t$, with $\nu$ of (C.13)"""
    return polyak_lojasiewicz(flow, random_pl_constant(loss, flow.start))


@ON_RANDOM_FLOWS.claim("lemma-c.8.rate", "proof of Lemma C.8")
def random_rate(loss: Loss, flow: Trajectory) -> Comparison:
    r"""$\ell_{\mathrm{rdm}}(t) - \min \ell_{\mathrm{rdm}} \le e^{-\nu t} \bigl(\ell_{\mathrm{rdm}}(0) - \min
    \ell_{\mathrm{rdm}}\bigr)$, with $\nu$ of (C.13)
    """
    return exponential_envelope(flow, random_pl_constant(loss, flow.start))


def limit_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The limit of u_{-1} by (C.15) and by (C.17), and u_{-1} at the end of the flow."""
    gamma, xi, _ = coefficients(loss)
    return {
        "u_printed": jnp.sum(xi / gamma) ** 0.25,
        "u_limit": balanced_minimum(loss.structure).u_minus1,
        "u_end": trajectory.end.u_minus1,
    }


@ON_RANDOM_FLOWS.claim("lemma-c.8.limit", "Lemma C.8, (C.15)", constants=limit_constants)
def printed_limit(loss: Loss, flow: Trajectory) -> Comparison:
    r"""$u_{ij} \to \delta_{ij} \bigl(\sum \xi_i^2/\gamma_i^2\bigr)^{-1/4} \xi_i/\gamma_i$ and $u_{-1} \to \bigl(\sum
    \xi_i/\gamma_i\bigr)^{1/4}$

    The limit of u_{-1} lacks squares. The lemma's proof has them, in (C.17).
    """
    gamma, xi, _ = coefficients(loss)
    ratio = xi / gamma
    U11 = jnp.diag(ratio) / jnp.sum(ratio**2) ** 0.25
    return distance_to_limit(loss, flow, LinearAttention(U11, jnp.sum(ratio) ** 0.25))


@ON_RANDOM_FLOWS.corrected(printed_limit, constants=limit_constants)
def corrected_limit(loss: Loss, flow: Trajectory) -> Comparison:
    r"""$u_{ij} \to \delta_{ij} \bigl(\sum \xi_i^2/\gamma_i^2\bigr)^{-1/4} \xi_i/\gamma_i$ and $u_{-1} \to \bigl(\sum
    \xi_i^2/\gamma_i^2\bigr)^{1/4}$

    The squares are those of (C.17). The extracted text of (C.15) lacks them in the second limit; the PDF may differ.
    """
    gamma, xi, _ = coefficients(loss)
    u = jnp.sum((xi / gamma) ** 2) ** 0.25
    return distance_to_limit(loss, flow, LinearAttention(jnp.diag(xi / gamma) / u, u))


@ON_RANDOM_FLOWS.claim("eq-c.17", "(C.17)", constants=limit_constants)
def value_weight_limit(loss: Loss, flow: Trajectory) -> Comparison:
    r"""$u_{-1} \to \bigl(\sum \xi_i^2/\gamma_i^2\bigr)^{1/4}$"""
    gamma, xi, _ = coefficients(loss)
    expected = jnp.sum((xi / gamma) ** 2) ** 0.25
    limit, doubt = limit_of_flow(loss, flow)
    return equal(limit.u_minus1[None], expected, expected, allowance=doubt)
