"""xie2025, appendix A.3, finite contexts: (26) to (29), the moments of G at every C, and the gradient of Theorem 4."""

import jax.numpy as jnp

from flowsim._core.types import Scalar
from flowsim.claims.claim import Comparison, Relation, equal
from flowsim.claims.statements import rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import MultiHeadLoss
from flowsim.losses.one_layer.head_risk import HeadRisk
from flowsim.papers.paper import Section
from flowsim.papers.xie2025 import moments, problems, prompts, spaces
from flowsim.papers.xie2025.appendix_a_2 import product_of_means
from flowsim.papers.xie2025.conditions import (
    MODELS,
    all_of,
    few_coordinates,
    finite_context,
    heads_on_isotropic,
    infinite_context,
    promised_where,
)
from flowsim.papers.xie2025.landscape import at_rest
from flowsim.papers.xie2025.moments import (
    SHARED_WEIGHTS,
    Square,
    derivative,
    outer_square,
    same_moment,
    same_second_moments,
    same_slopes,
    second_moment,
)
from flowsim.papers.xie2025.setting import descent_heads, slopes
from flowsim.tasks import LinearRegression

SECTION = Section("xie2025", *MODELS)


@SECTION.claim(
    "eq-26",
    "(26)",
    "E[G_mn G_pq] = M_mn M_pq as C -> infinity",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=all_of(infinite_context, few_coordinates),
    problems=problems.LIMITS,
    spaces=spaces.LIMITS,
    note=SHARED_WEIGHTS,
)
@promised_where(few_coordinates)
def eq_26(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """M_mn M_pq against E[G_mn G_pq], as for (23)."""
    return same_second_moments(loss, outer_square(moments.mean_tokens(loss.risk.prior_mean)))


@SECTION.claim(
    "eq-26",
    "(26)",
    "E[G_mn G_pq] = E_w[(M_w)_mn (M_w)_pq] as C -> infinity, M_w = [I w; w^T |w|^2]",
    form="corrected",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=all_of(infinite_context, few_coordinates),
    problems=problems.LIMITS,
    spaces=spaces.LIMITS,
    note="G tends to M_w with w-hat still random: the mean of the product is not the product of the means.",
)
@promised_where(few_coordinates)
def eq_26_shared(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """E[(M_w)_mn (M_w)_pq] against E[G_mn G_pq], as for (23)."""
    return same_second_moments(loss, prompts.moments(loss.risk.prior_mean, 0.0).second)


def _of_context(risk: HeadRisk, C: Scalar | float) -> HeadRisk:
    """The risk at the context length C."""
    task = risk.task
    return HeadRisk(LinearRegression(task.covariance, C, prior_mean=risk.prior_mean))


def _own_token(risk: HeadRisk, N: Square) -> Square:
    """E[(z^T N z) z z^T] of one token: the second moment at context length 1."""
    return second_moment(_of_context(risk, 1.0), N)


def _shared_weights(risk: HeadRisk, N: Square) -> Square:
    """The mean over w-hat of <M_w, N> M_w: the second moment as C -> infinity."""
    return second_moment(_of_context(risk, jnp.inf), N)


def _products_of_means(risk: HeadRisk, N: Square) -> Square:
    """(27) as printed, contracted with N."""
    inverse_C = 1 / risk.task.context_length
    return (1 - inverse_C) * product_of_means(risk, N) + inverse_C * _own_token(risk, N)


@SECTION.claim(
    "eq-27",
    "(27)",
    "E[G_mn G_pq] = (1 - 1/C) M_mn M_pq + (1/C) E[z_m z_n z_p z_q]",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=few_coordinates,
    problems=problems.FINITE,
    spaces=spaces.FINITE,
    note=SHARED_WEIGHTS,
)
@promised_where(few_coordinates)
def eq_27(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(27) against E[<G, N> G]."""
    return same_moment(loss.task, _products_of_means)


def _mean_of_products(risk: HeadRisk, N: Square) -> Square:
    """(27), contracted with N, with the mean over w-hat of M_w M_w instead of the product of the means."""
    inverse_C = 1 / risk.task.context_length
    return (1 - inverse_C) * _shared_weights(risk, N) + inverse_C * _own_token(risk, N)


@SECTION.claim(
    "eq-27",
    "(27)",
    "E[G_mn G_pq] = (1 - 1/C) E_w[(M_w)_mn (M_w)_pq] + (1/C) E[z_m z_n z_p z_q], M_w = [I w; w^T |w|^2]",
    form="corrected",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=few_coordinates,
    problems=problems.FINITE,
    spaces=spaces.FINITE,
    note="The printed form has the product of the means over w-hat instead of the mean of the product.",
)
@promised_where(few_coordinates)
def eq_27_shared(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(27) with M_w M_w averaged over w-hat, against E[<G, N> G]."""
    return same_moment(loss.task, _mean_of_products)


@SECTION.claim(
    "eq-28",
    "(28)",
    "E[G_mn G_pq] = M_mn M_pq + (T_mnpq - M_mn M_pq)/C, T_mnpq = E[z_m z_n z_p z_q]",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=all_of(finite_context, few_coordinates),
    problems=problems.FINITE,
    spaces=spaces.FINITE,
    note=SHARED_WEIGHTS,
)
@promised_where(few_coordinates)
def eq_28(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """M_mn M_pq + (T_mnpq - M_mn M_pq)/C against E[G_mn G_pq]."""
    w, C = loss.risk.prior_mean, loss.task.context_length
    means = outer_square(moments.mean_tokens(w))
    return same_second_moments(loss, means + (prompts.moments(w, 1.0).second - means) / C)


@SECTION.claim(
    "eq-28",
    "(28)",
    "E[G_mn G_pq] = E_w[(M_w)_mn (M_w)_pq] + (T_mnpq - E_w[(M_w)_mn (M_w)_pq])/C, T_mnpq = E[z_m z_n z_p z_q]",
    form="corrected",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=all_of(finite_context, few_coordinates),
    problems=problems.FINITE,
    spaces=spaces.FINITE,
    note="The printed form has the product of the means over w-hat instead of the mean of the product.",
)
@promised_where(few_coordinates)
def eq_28_shared(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(28) with E[(M_w)_mn (M_w)_pq] instead of M_mn M_pq, against E[G_mn G_pq]."""
    w, C = loss.risk.prior_mean, loss.task.context_length
    means, own = (prompts.moments(w, inverse_C).second for inverse_C in (0.0, 1.0))
    return same_second_moments(loss, means + (own - means) / C)


@SECTION.claim(
    "eq-29",
    "(29)",
    "grad L_i = 2 E[<G, M_i> G] - 2 (w*_i M + N_i), the first by (27)",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=all_of(finite_context, few_coordinates),
    problems=problems.FINITE,
    spaces=spaces.FINITE,
    note=SHARED_WEIGHTS,
)
@promised_where(few_coordinates)
def eq_29(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(29), whose U_i is the contraction of (27), against the derivatives of L_1, .., L_d."""
    return same_slopes(loss.task, lambda risk, N: derivative(risk, N, _products_of_means))


@SECTION.claim(
    "eq-29",
    "(29)",
    "grad L_i = 2 E[<G, M_i> G] - 2 (w*_i M + N_i), the first by the corrected (27)",
    form="corrected",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=all_of(finite_context, few_coordinates),
    problems=problems.FINITE,
    spaces=spaces.FINITE,
    note="Holds with the corrected (27) instead of the printed one.",
)
@promised_where(few_coordinates)
def eq_29_shared(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(29) with the moments of a shared w-hat, against the derivatives of L_1, .., L_d."""
    return same_slopes(loss.task, lambda risk, N: derivative(risk, N, _mean_of_products))


@SECTION.claim(
    "theorem-4.finite-context",
    "appendix A.3",
    "at the weights of Theorem 4 (eta = 1) the gradient is of the order 1/C",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=all_of(finite_context, few_coordinates),
    problems=problems.FINITE,
    spaces=spaces.FINITE,
    note="C |grad R| is the same at C and at 100 C.",
)
@promised_where(few_coordinates)
def residual_gradient(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """C |grad R| at the unit step, at C and at 100 C, by both routes."""
    task, model = loss.task, descent_heads(loss.risk.prior_mean, 1.0)
    sizes = []
    for factor in (1.0, 100.0):
        C = factor * task.context_length
        sizes.append(C * slopes(LinearRegression(task.covariance, C, prior_mean=loss.risk.prior_mean), model))
    left, right = jnp.concatenate(sizes), jnp.tile(sizes[1][::-1], 2)
    return rounded(equal(left, right, right), 100 * jnp.asarray((task.dimension + 1.0) ** 2))


@SECTION.claim(
    "theorem-4.finite-context.best-step",
    "appendix A.3",
    "the weights (7) with w = w*, W^P = -eta I and eta = C/(C+d+1) are a stationary point of y_q-LSA at every C",
    form="corrected",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=few_coordinates,
    problems=(*problems.FINITE, problems.LIMIT),
    spaces=spaces.TASKS,
    note="The printed remark has eta = 1, where the gradient vanishes only as C -> infinity.",
)
@promised_where(few_coordinates)
def best_step_at_rest(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The gradient in W^K, W^Q, W^V, W^P and w at one step from w*, for eta = C/(C+d+1)."""
    return at_rest(loss.task, descent_heads(loss.risk.prior_mean, loss.risk.step_size))
