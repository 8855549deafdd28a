"""zhang2023's appendix C.3, the PL inequality and the limit with random covariances: Lemmas C.5 to C.8."""

import jax.numpy as jnp
from jaxtyping import Array, PyTree

from flowsim.claims.claim import Comparison, at_least, at_most, equal
from flowsim.claims.declaring import Section
from flowsim.claims.rates import exponential_envelope
from flowsim.claims.statements import polyak_lojasiewicz, sharp_constant
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import RandomCovarianceLoss
from flowsim.losses.arrowhead import balanced_minimum
from flowsim.models import LinearAttention
from flowsim.papers.zhang2023 import spaces
from flowsim.papers.zhang2023.appendix_a import stays_balanced, u_positive
from flowsim.papers.zhang2023.appendix_c_dynamics import coefficients
from flowsim.papers.zhang2023.appendix_c_minima import matrix_loss
from flowsim.papers.zhang2023.conditions import random_pl_constant, random_u_lower_bound_sq
from flowsim.papers.zhang2023.limits import distance_to_limit, limit_of_flow
from flowsim.papers.zhang2023.problems import NO_COMMON_EIGENBASIS, RANDOM_FLOWS
from flowsim.papers.zhang2023.setting import (
    assumption,
    assumption_and_random_scale,
    independent_variances,
    random_covariances,
)

Loss = RandomCovarianceLoss


SECTION = Section("zhang2023", LinearAttention, setting=independent_variances, hypotheses=assumption_and_random_scale)
ON_RANDOM_FLOWS = SECTION.on(RANDOM_FLOWS, spaces.RANDOM)


@SECTION.claim(
    "lemma-c.5",
    "Lemma C.5, (C.9)",
    setting=random_covariances,
    hypotheses=assumption,
    problems=(*RANDOM_FLOWS, NO_COMMON_EIGENBASIS),
    spaces=spaces.RANDOM,
)
def balanced(loss: Loss, flow: Trajectory) -> Comparison:
    r"""$u_{-1}^2 = \operatorname{tr}(U_{11} U_{11}^\top)$ for all $t$"""
    return stays_balanced.compare(loss, flow)


@ON_RANDOM_FLOWS.claim("lemma-c.6", "Lemma C.6, (C.11)")
def positive(loss: Loss, flow: Trajectory) -> Comparison:
    """$u_{-1} > 0$ for all $t$"""
    return u_positive.compare(loss, flow)


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
    """Both sides of the equality in the proof of Lemma C.6.

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
    """The bound of (C.12) and the least u_{-1} along the flow."""
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
    """nu of (C.13) and the largest nu that holds along the flow."""
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

    The limit of u_{-1} lacks the squares that the lemma's own proof has in (C.17).
    """
    gamma, xi, _ = coefficients(loss)
    ratio = xi / gamma
    U11 = jnp.diag(ratio) / jnp.sum(ratio**2) ** 0.25
    return distance_to_limit(loss, flow, LinearAttention(U11, jnp.sum(ratio) ** 0.25))


@ON_RANDOM_FLOWS.corrected(printed_limit, constants=limit_constants)
def corrected_limit(loss: Loss, flow: Trajectory) -> Comparison:
    r"""$u_{ij} \to \delta_{ij} \bigl(\sum \xi_i^2/\gamma_i^2\bigr)^{-1/4} \xi_i/\gamma_i$ and $u_{-1} \to \bigl(\sum
    \xi_i^2/\gamma_i^2\bigr)^{1/4}$

    With the squares of (C.17). Whether the paper or only its extracted text lacks them cannot be told.
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
