"""zhang2023's appendix A, the proof of Theorem 4.1: Lemmas A.1 to A.5, Corollary A.2, and steps of their proofs."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from flowsim.claims.claim import Comparison, Relation, at_least, at_most, equal
from flowsim.claims.statements import joined, of_task, rounded, stays_positive
from flowsim.flow.systems import norm_sq
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import AbstractPopulationLoss, LinearAttentionLoss
from flowsim.models import LinearAttention
from flowsim.papers.paper import Section
from flowsim.papers.zhang2023 import spaces
from flowsim.papers.zhang2023.conditions import u_lower_bound_sq
from flowsim.papers.zhang2023.literal import second_moment
from flowsim.papers.zhang2023.minima import literal_loss
from flowsim.papers.zhang2023.problems import FLOWS, SEVERAL_DIMENSIONS, STILL
from flowsim.papers.zhang2023.section_5_2 import printed_field, printed_loss
from flowsim.papers.zhang2023.setting import assumption, assumption_and_scale, one_covariance
from flowsim.tasks import LinearRegression

Loss = LinearAttentionLoss

SECTION = Section("zhang2023", LinearAttention)

_AT_ONE = "At d = 1 the two sides are equal, and nothing is judged."


@SECTION.claim(
    "eq-a.7",
    "before (A.7)",
    "E[Lambdahat^2] = (N + 1)/N Lambda^2 + tr(Lambda) Lambda/N = Gamma Lambda",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=one_covariance,
    problems=STILL,
    spaces=spaces.STILL,
    note="The expectation is computed by a cubature that is exact for it.",
)
@of_task
def mean_square_of_sample_covariance(task: LinearRegression) -> Comparison:
    """E[Lambdahat^2] by cubature against (N+1)/N Lambda^2 + tr(Lambda) Lambda/N and Gamma Lambda."""
    Lambda, N = task.covariance, task.context_length
    printed = (1 + 1 / N) * Lambda @ Lambda + jnp.trace(Lambda) / N * Lambda
    distances = [jnp.linalg.norm(second_moment(task) - each) for each in (printed, task.gamma() @ Lambda)]
    size = jnp.linalg.norm(Lambda) * jnp.trace(Lambda)
    return rounded(equal(jnp.stack(distances), 0.0, size), jnp.asarray(float(task.dimension)))


@SECTION.claim(
    "lemma-a.1",
    "Lemma A.1",
    "The flow of L is that of (A.11), and L - l is constant (it is tr(Lambda)/2)",
    relation=Relation.IDENTITY,
    along_flow=True,
    setting=one_covariance,
    hypotheses=assumption,
    problems=FLOWS,
    spaces=spaces.BALANCED,
)
def same_loss(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The gradient of (A.11) against that of the exact loss, and the difference of the losses against tr(Lambda)/2."""
    constant = jnp.trace(loss.task.covariance) / 2

    def deviation(model):
        gradient, printed = loss.gradient(model), jax.grad(lambda m: printed_loss(loss, m))(model)
        gap = jnp.sqrt(norm_sq(jax.tree.map(jnp.subtract, gradient, printed)))
        _, _, size = printed_field(loss, model)
        difference = jnp.abs(loss(model) - printed_loss(loss, model) - constant)
        return gap / jnp.maximum(size, jnp.finfo(float).tiny) + difference / (constant + jnp.abs(loss(model)))

    return equal(jax.lax.map(deviation, trajectory.models), jnp.zeros(()), jnp.ones(()))


@SECTION.claim(
    "corollary-a.2",
    "Corollary A.2",
    "min l = -tr(Lambda^2 Gamma^-1)/2 and l - min l = |Gamma^{1/2}(u Lambda^{1/2} U11 Lambda^{1/2} - "
    "Lambda Gamma^-1)|_F^2/2",
    relation=Relation.IDENTITY,
    along_flow=True,
    setting=one_covariance,
    problems=FLOWS,
    spaces=spaces.BALANCED,
    note="Judged by subtraction, along the trajectory and at u_{-1} U11 = Gamma^-1, where the minimum is attained.",
)
def minimum_and_excess(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The printed loss minus the printed minimum, and the excess of the exact loss, against the printed square; and the
    printed loss at u_{-1} U11 = Gamma^-1 against the minimum.
    """
    Lambda, Gamma = loss.task.covariance, loss.task.gamma()
    values, vectors = jnp.linalg.eigh(Lambda)
    root = (vectors * jnp.sqrt(values)[None, :]) @ vectors.T
    gamma_values, gamma_vectors = jnp.linalg.eigh(Gamma)
    gamma_root = (gamma_vectors * jnp.sqrt(gamma_values)[None, :]) @ gamma_vectors.T
    minimum = -jnp.trace(Lambda @ Lambda @ jnp.linalg.inv(Gamma)) / 2

    def sides(model):
        inner = model.u_minus1 * root @ model.U11 @ root - Lambda @ jnp.linalg.inv(Gamma)
        square = jnp.sum((gamma_root @ inner) ** 2) / 2
        return printed_loss(loss, model) - minimum, loss.excess(model), square, square - minimum

    left, excess, right, size = jax.lax.map(sides, trajectory.models)
    attained = printed_loss(loss, LinearAttention(jnp.linalg.inv(Gamma), 1.0))
    comparisons = [equal(left, right, size), equal(attained[None], minimum, -minimum), equal(excess, right, size)]
    return joined(comparisons)


@SECTION.claim(
    "lemma-a.3",
    "Lemma A.3, (A.12)",
    "u_{-1}^2 = tr(U11 U11^T) for all t",
    relation=Relation.IDENTITY,
    along_flow=True,
    setting=one_covariance,
    hypotheses=assumption,
    problems=FLOWS,
    spaces=spaces.BALANCED,
)
def stays_balanced(loss: AbstractPopulationLoss, trajectory: Trajectory) -> Comparison:
    """u_{-1}^2 against tr(U11 U11^T) along the flow, (A.12)."""
    models = trajectory.models
    size = models.u_minus1**2 + jnp.sum(models.U11**2, axis=(1, 2))
    return equal(models.u_minus1**2, jnp.sum(models.U11**2, axis=(1, 2)), jnp.max(size))


@SECTION.claim(
    "lemma-a.4",
    "Lemma A.4",
    "u_{-1} > 0 for all t",
    relation=Relation.INEQUALITY,
    along_flow=True,
    setting=one_covariance,
    hypotheses=assumption_and_scale,
    problems=FLOWS,
    spaces=spaces.BALANCED,
)
def u_positive(loss: AbstractPopulationLoss, trajectory: Trajectory) -> Comparison:
    """u_{-1} > 0 along the flow, relative to |U11|_F, which equals |u_{-1}|."""
    models = trajectory.models
    return stays_positive(models.u_minus1, jnp.sqrt(jnp.sum(models.U11**2, axis=(1, 2))))


@SECTION.claim(
    "lemma-a.4.start",
    "proof of Lemma A.4",
    "l(0) <= (sigma^2/2) |Lambda Theta|_F^2 (sqrt(d) sigma^2 |Gamma|_op - 2), which is below the saddle's 0",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=one_covariance,
    hypotheses=assumption_and_scale,
    problems=SEVERAL_DIMENSIONS,
    spaces=spaces.BALANCED,
    note=_AT_ONE,
)
def starts_below_the_saddle(loss: Loss, trajectory: Trajectory) -> Comparison:
    """l at the start by cubature against (sigma^2/2) |Lambda Theta|_F^2 (sqrt(d) sigma^2 |Gamma|_op - 2).

    At d = 1 the two are equal.
    """
    start, Lambda, d = trajectory.start, loss.task.covariance, loss.task.dimension
    value = literal_loss(loss.task, start.u_minus1 * start.U11)
    square = jnp.trace(Lambda @ Lambda @ start.U11) / start.u_minus1
    operator = jnp.linalg.eigvalsh(loss.task.gamma())[-1]
    bound = start.u_minus1**2 / 2 * square * (jnp.sqrt(float(d)) * start.u_minus1**2 * operator - 2)
    size = start.u_minus1**2 * square
    return at_most(value[None], bound[None], size=size, promised=jnp.asarray([d > 1]))


def u_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The bound of (A.14) and the least u_{-1} along the flow."""
    bound_sq = jnp.maximum(u_lower_bound_sq(loss.task, trajectory.start), 0.0)
    return {"u_lower_bound": jnp.sqrt(bound_sq), "sharp_u_lower_bound": jnp.min(trajectory.models.u_minus1)}


@SECTION.claim(
    "lemma-a.5",
    "Lemma A.5, (A.14)",
    "u_{-1}^2 >= sigma^2 |Lambda Theta|_F^2 (2 - sqrt(d) sigma^2 |Gamma|_op)/(2 sqrt(d) |Lambda|_op^2) for all t",
    relation=Relation.INEQUALITY,
    along_flow=True,
    setting=one_covariance,
    hypotheses=assumption_and_scale,
    constants=u_constants,
    problems=FLOWS,
    spaces=spaces.BALANCED,
    note="The extracted text leaves open how far the root in (A.14) extends; (A.15) squares the whole product.",
)
def u_bounded_below(loss: Loss, trajectory: Trajectory) -> Comparison:
    """u_{-1} along the flow against the lower bound (A.14), where that bound is positive."""
    bound_sq = u_lower_bound_sq(loss.task, trajectory.start)
    return at_least(trajectory.models.u_minus1, jnp.sqrt(jnp.maximum(bound_sq, 0.0)), promised=bound_sq > 0)


def _residual(loss: Loss, model: LinearAttention) -> tuple[Array, Array]:
    """|Gamma Lambda^{1/2} (u Lambda^{1/2} U11 Lambda^{1/2} - Lambda Gamma^-1) Lambda^{1/2}|_F^2, and its size."""
    Lambda, Gamma = loss.task.covariance, loss.task.gamma()
    values, vectors = jnp.linalg.eigh(Lambda)
    root = (vectors * jnp.sqrt(values)[None, :]) @ vectors.T
    grown, target = model.u_minus1 * root @ model.U11 @ root, Lambda @ jnp.linalg.inv(Gamma)
    size = jnp.sum((Gamma @ root @ grown @ root) ** 2) + jnp.sum((Lambda @ Lambda) ** 2)
    return jnp.sum((Gamma @ root @ (grown - target) @ root) ** 2), size


@SECTION.claim(
    "eq-a.15",
    "(A.15)",
    "|dl/dU11|_F^2 = u_{-1}^2 |Gamma Lambda^{1/2} (u_{-1} Lambda^{1/2} U11 Lambda^{1/2} - Lambda Gamma^-1) "
    "Lambda^{1/2}|_F^2",
    relation=Relation.IDENTITY,
    along_flow=True,
    setting=one_covariance,
    hypotheses=assumption,
    problems=FLOWS,
    spaces=spaces.BALANCED,
    note="The gradient is that of the exact loss, by automatic differentiation.",
)
def slope_of_the_matrix(loss: Loss, trajectory: Trajectory) -> Comparison:
    """|dl/dU11|_F^2 of the exact loss against the right-hand side of (A.15)."""

    def sides(model):
        square, size = _residual(loss, model)
        slope = jnp.sum(loss.gradient(model).U11 ** 2)
        return slope, model.u_minus1**2 * square, model.u_minus1**2 * size

    return equal(*jax.lax.map(sides, trajectory.models))


def _last_line(loss: Loss, trajectory: Trajectory, power: int) -> Comparison:
    """|dl/dU11|_F^2 of the exact loss against the square of (A.14), times |Lambda|_op^power, times the squared norm."""
    operator = jnp.linalg.eigvalsh(loss.task.covariance)[-1]
    bound_sq = u_lower_bound_sq(loss.task, trajectory.start) * operator**power
    slope = lambda model: jnp.sum(loss.gradient(model).U11 ** 2)
    residual = lambda model: _residual(loss, model)[0]
    slopes, residuals = (jax.lax.map(side, trajectory.models) for side in (slope, residual))
    return at_least(slopes, bound_sq * residuals, promised=(bound_sq > 0) & (trajectory.excess > 0))


@SECTION.claim(
    "eq-a.15.bound",
    "(A.15), last line",
    "|dl/dU11|_F^2 >= sigma^2/(2 sqrt(d)) |Lambda|_op^2 |Lambda Theta|_F^2 (2 - sqrt(d) sigma^2 |Gamma|_op) "
    "|Gamma Lambda^{1/2} (u_{-1} Lambda^{1/2} U11 Lambda^{1/2} - Lambda Gamma^-1) Lambda^{1/2}|_F^2",
    relation=Relation.INEQUALITY,
    along_flow=True,
    setting=one_covariance,
    hypotheses=assumption_and_scale,
    problems=FLOWS,
    spaces=spaces.BALANCED,
    note="As extracted, |Lambda|_op^2 stands in the numerator; (A.14), from which the line comes, and (5.7), to which "
    "it leads, have it in the denominator. The line fails at a large Lambda and a small start. Whether the paper or "
    "only its extracted text misplaces it cannot be told.",
)
def printed_last_line(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The last line of (A.15) with |Lambda|_op^2 as a factor."""
    return _last_line(loss, trajectory, 4)


@SECTION.claim(
    "eq-a.15.bound",
    "(A.15), last line",
    "|dl/dU11|_F^2 >= sigma^2 |Lambda Theta|_F^2 (2 - sqrt(d) sigma^2 |Gamma|_op)/(2 sqrt(d) |Lambda|_op^2) "
    "|Gamma Lambda^{1/2} (u_{-1} Lambda^{1/2} U11 Lambda^{1/2} - Lambda Gamma^-1) Lambda^{1/2}|_F^2",
    form="corrected",
    relation=Relation.INEQUALITY,
    along_flow=True,
    setting=one_covariance,
    hypotheses=assumption_and_scale,
    problems=FLOWS,
    spaces=spaces.BALANCED,
    note="With |Lambda|_op^2 in the denominator, as in (A.14). With (A.16) it gives the mu of (5.7).",
)
def last_line(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The last line of (A.15) with |Lambda|_op^2 in the denominator."""
    return _last_line(loss, trajectory, 0)


@SECTION.claim(
    "eq-a.16",
    "(A.16)",
    "l - min l <= (1/2) |Gamma Lambda^{1/2} (u_{-1} Lambda^{1/2} U11 Lambda^{1/2} - Lambda Gamma^-1) "
    "Lambda^{1/2}|_F^2 tr(Gamma^-1 Lambda^-1) tr(Lambda^-1)",
    relation=Relation.INEQUALITY,
    along_flow=True,
    setting=one_covariance,
    hypotheses=assumption,
    problems=SEVERAL_DIMENSIONS,
    spaces=spaces.BALANCED,
    note=f"The squared norm is computed from the gradient by (A.15). {_AT_ONE}",
)
def excess_by_the_slope(loss: Loss, trajectory: Trajectory) -> Comparison:
    """(A.16) with (A.15) for the square: l - min l <= (1/2) (|dl/dU11|_F^2/u^2) tr(Gamma^-1 Lambda^-1) tr(Lambda^-1).

    At d = 1 the two are equal.
    """
    lam, gam = jnp.linalg.eigvalsh(loss.task.covariance), jnp.linalg.eigvalsh(loss.task.gamma())
    factor = jnp.sum(1 / (gam * lam)) * jnp.sum(1 / lam) / 2

    def bound(model):
        return factor * jnp.sum(loss.gradient(model).U11 ** 2) / model.u_minus1**2

    promised = (trajectory.excess > 0) & (loss.task.dimension > 1)
    return at_most(trajectory.excess, jax.lax.map(bound, trajectory.models), promised=promised)
