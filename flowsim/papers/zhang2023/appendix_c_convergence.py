"""zhang2023's appendix C.3, the PL inequality and the limit with random covariances: Lemmas C.5 to C.8."""

import jax.numpy as jnp
from jaxtyping import Array

from flowsim.claims.claim import Comparison, Relation, at_least, at_most, equal
from flowsim.claims.inequalities import polyak_lojasiewicz, sharp_constant
from flowsim.claims.rates import exponential_envelope
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import RandomCovarianceLoss
from flowsim.losses.arrowhead import balanced_minimum
from flowsim.models import LinearAttention
from flowsim.papers.paper import Section
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

SECTION = Section("zhang2023", LinearAttention)

balanced = SECTION.claim(
    "lemma-c.5",
    "Lemma C.5, (C.9)",
    "u_{-1}^2 = tr(U11 U11^T) for all t",
    relation=Relation.IDENTITY,
    along_flow=True,
    setting=random_covariances,
    hypotheses=assumption,
    problems=(*RANDOM_FLOWS, NO_COMMON_EIGENBASIS),
    spaces=spaces.RANDOM,
)(stays_balanced)

positive = SECTION.claim(
    "lemma-c.6",
    "Lemma C.6, (C.11)",
    "u_{-1} > 0 for all t",
    relation=Relation.INEQUALITY,
    along_flow=True,
    setting=independent_variances,
    hypotheses=assumption_and_random_scale,
    problems=RANDOM_FLOWS,
    spaces=spaces.RANDOM,
)(u_positive)


@SECTION.claim(
    "lemma-c.6.start",
    "proof of Lemma C.6",
    "l_rdm(0) <= sigma^4 sqrt(d)/2 E[|Gamma|_op |Lambda|_F^2] - sigma^2 |E[Lambda] Theta|_F^2",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=independent_variances,
    hypotheses=assumption_and_random_scale,
    problems=RANDOM_FLOWS,
    spaces=spaces.RANDOM,
)
def random_start_below_the_saddle(loss: Loss, trajectory: Trajectory) -> Comparison:
    """l_rdm at the start against sigma^4 sqrt(d)/2 E[|Gamma|_op |Lambda|_F^2] - sigma^2 |E[Lambda] Theta|_F^2."""
    start, mean = trajectory.start, loss.task.mean_covariance
    sigma, d = start.u_minus1, loss.task.dimension
    square = jnp.trace(mean @ mean @ start.U11) / sigma
    bound = sigma**4 * jnp.sqrt(float(d)) / 2 * loss.operator_energy - sigma**2 * square
    return at_most(matrix_loss(loss, start)[None], bound[None], size=sigma**2 * square)


def proof_of_positivity(loss: Loss, trajectory: Trajectory) -> tuple[Array, Array]:
    """Both sides of the equality in the proof of Lemma C.6.

    They are sigma^2 E tr[Lambda_tau^2 Theta Theta^T] and sigma^2 |E[Lambda_tau] Theta|_F^2.
    """
    start = trajectory.start
    mean, square = loss.task.law.expectation(lambda Lambda: (Lambda, Lambda @ Lambda))
    return start.u_minus1 * jnp.trace(square @ start.U11), start.u_minus1 * jnp.trace(mean @ mean @ start.U11)


@SECTION.claim(
    "lemma-c.6.proof-equality",
    "proof of Lemma C.6",
    "E tr[sigma^2 Lambda^2 Theta Theta^T] = sigma^2 |E[Lambda] Theta|_F^2",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=independent_variances,
    hypotheses=assumption,
    problems=RANDOM_FLOWS,
    spaces=spaces.RANDOM,
    note="The left side is sigma^2 E|Lambda Theta|_F^2, which is larger by sigma^2 tr(Var(Lambda) Theta Theta^T).",
)
def proof_equality(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The equality in the proof of Lemma C.6."""
    left, right = proof_of_positivity(loss, trajectory)
    return equal(left[None], right[None], left[None])


@SECTION.claim(
    "lemma-c.6.proof-equality",
    "proof of Lemma C.6",
    "E tr[sigma^2 Lambda^2 Theta Theta^T] >= sigma^2 |E[Lambda] Theta|_F^2, by Jensen's inequality",
    form="corrected",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=independent_variances,
    hypotheses=assumption,
    problems=RANDOM_FLOWS,
    spaces=spaces.RANDOM,
    note="The proof needs only this inequality, so the lemma stands.",
)
def proof_inequality(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The inequality that the proof of Lemma C.6 needs instead of its equality."""
    left, right = proof_of_positivity(loss, trajectory)
    return at_least(left[None], right[None])


def u_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The bound of (C.12) and the least u_{-1} along the flow."""
    bound_sq = jnp.maximum(random_u_lower_bound_sq(loss, trajectory.start), 0.0)
    return {"u_lower_bound": jnp.sqrt(bound_sq), "sharp_u_lower_bound": jnp.min(trajectory.models.u_minus1)}


@SECTION.claim(
    "lemma-c.7",
    "Lemma C.7, (C.12)",
    "u_{-1}^2 >= sigma^2 (2 |E[Lambda] Theta|_F^2 - sqrt(d) sigma^2 E[|Gamma|_op |Lambda|_F^2])/(2 sqrt(d) "
    "|E[Lambda^2]|_op) for all t",
    relation=Relation.INEQUALITY,
    along_flow=True,
    setting=independent_variances,
    hypotheses=assumption_and_random_scale,
    constants=u_constants,
    problems=RANDOM_FLOWS,
    spaces=spaces.RANDOM,
)
def u_bounded_below(loss: Loss, trajectory: Trajectory) -> Comparison:
    """u_{-1} along the flow against the lower bound (C.12), where that bound is positive."""
    bound_sq = random_u_lower_bound_sq(loss, trajectory.start)
    return at_least(trajectory.models.u_minus1, jnp.sqrt(jnp.maximum(bound_sq, 0.0)), promised=bound_sq > 0)


def pl_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """nu of (C.13) and the largest nu that holds along the flow."""
    return {"nu": random_pl_constant(loss, trajectory.start), "sharp_nu": sharp_constant(trajectory)}


@SECTION.claim(
    "lemma-c.8.pl",
    "Lemma C.8, (C.14)",
    "|grad l|^2 >= nu (l - min l) for all t, with nu of (C.13)",
    relation=Relation.INEQUALITY,
    along_flow=True,
    setting=independent_variances,
    hypotheses=assumption_and_random_scale,
    constants=pl_constants,
    problems=RANDOM_FLOWS,
    spaces=spaces.RANDOM,
)
def pl(loss: Loss, trajectory: Trajectory) -> Comparison:
    """|grad l|^2 against nu (l - min l) along the flow, (C.14)."""
    return polyak_lojasiewicz(trajectory, random_pl_constant(loss, trajectory.start))


@SECTION.claim(
    "lemma-c.8.rate",
    "proof of Lemma C.8",
    "l_rdm(t) - min l_rdm <= e^{-nu t} (l_rdm(0) - min l_rdm), with nu of (C.13)",
    relation=Relation.INEQUALITY,
    along_flow=True,
    setting=independent_variances,
    hypotheses=assumption_and_random_scale,
    problems=RANDOM_FLOWS,
    spaces=spaces.RANDOM,
)
def random_rate(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The exponential bound of the proof of Lemma C.8."""
    return exponential_envelope(trajectory, random_pl_constant(loss, trajectory.start))


def limit_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The limit of u_{-1} by (C.15) and by (C.17), and u_{-1} at the end of the flow."""
    gamma, xi, _ = coefficients(loss)
    return {
        "u_printed": jnp.sum(xi / gamma) ** 0.25,
        "u_limit": balanced_minimum(loss.structure).u_minus1,
        "u_end": trajectory.end.u_minus1,
    }


@SECTION.claim(
    "lemma-c.8.limit",
    "Lemma C.8, (C.15)",
    "u_ij -> delta_ij (sum xi_i^2/gamma_i^2)^{-1/4} xi_i/gamma_i and u_{-1} -> (sum xi_i/gamma_i)^{1/4}",
    relation=Relation.IDENTITY,
    along_flow=True,
    setting=independent_variances,
    hypotheses=assumption_and_random_scale,
    constants=limit_constants,
    problems=RANDOM_FLOWS,
    spaces=spaces.RANDOM,
    note="The limit of u_{-1} lacks the squares that the lemma's own proof has in (C.17).",
)
def printed_limit(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The limit and the end of the flow against (C.15), with u_{-1} -> (sum xi_i/gamma_i)^{1/4} without squares."""
    gamma, xi, _ = coefficients(loss)
    ratio = xi / gamma
    U11 = jnp.diag(ratio) / jnp.sum(ratio**2) ** 0.25
    return distance_to_limit(loss, trajectory, LinearAttention(U11, jnp.sum(ratio) ** 0.25))


@SECTION.claim(
    "lemma-c.8.limit",
    "Lemma C.8, (C.15)",
    "u_ij -> delta_ij (sum xi_i^2/gamma_i^2)^{-1/4} xi_i/gamma_i and u_{-1} -> (sum xi_i^2/gamma_i^2)^{1/4}",
    form="corrected",
    relation=Relation.IDENTITY,
    along_flow=True,
    setting=independent_variances,
    hypotheses=assumption_and_random_scale,
    constants=limit_constants,
    problems=RANDOM_FLOWS,
    spaces=spaces.RANDOM,
    note="With the squares of (C.17). Whether the paper or only its extracted text lacks them cannot be told.",
)
def corrected_limit(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The limit and the end of the flow against (C.15) with the u_{-1} of (C.17)."""
    gamma, xi, _ = coefficients(loss)
    u = jnp.sum((xi / gamma) ** 2) ** 0.25
    return distance_to_limit(loss, trajectory, LinearAttention(jnp.diag(xi / gamma) / u, u))


@SECTION.claim(
    "eq-c.17",
    "(C.17)",
    "u_{-1} -> (sum xi_i^2/gamma_i^2)^{1/4}",
    relation=Relation.IDENTITY,
    along_flow=True,
    setting=independent_variances,
    hypotheses=assumption_and_random_scale,
    constants=limit_constants,
    problems=RANDOM_FLOWS,
    spaces=spaces.RANDOM,
)
def value_weight_limit(loss: Loss, trajectory: Trajectory) -> Comparison:
    """u_{-1} at the limit of the flow against (C.17)."""
    gamma, xi, _ = coefficients(loss)
    expected = jnp.sum((xi / gamma) ** 2) ** 0.25
    limit, doubt = limit_of_flow(loss, trajectory)
    return equal(limit.u_minus1[None], expected, expected, allowance=doubt)
