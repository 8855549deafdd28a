"""zhang2023's appendix A, the proof of Theorem 4.1: Lemmas A.1 to A.5, Corollary A.2, and steps of their proofs."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from flowsim.claims.claim import Comparison, at_least, at_most, equal
from flowsim.claims.declaring import Section
from flowsim.claims.statements import joined, rounded, stays_positive
from flowsim.flow.systems import norm_sq
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LinearAttentionLoss
from flowsim.models import LinearAttention
from flowsim.papers.zhang2023 import spaces
from flowsim.papers.zhang2023.conditions import assumption, assumption_and_scale, one_covariance, u_lower_bound_sq
from flowsim.papers.zhang2023.limits import literal_loss
from flowsim.papers.zhang2023.literal import second_moment
from flowsim.papers.zhang2023.problems import FLOWS, SEVERAL_DIMENSIONS, STILL
from flowsim.papers.zhang2023.section_5 import printed_field, printed_loss
from flowsim.tasks import LinearRegression

Loss = LinearAttentionLoss

_AT_ONE = "At d = 1 the two sides are equal, and nothing is judged."

SECTION = Section("zhang2023", LinearAttention, setting=one_covariance)
ON_FLOWS = SECTION.on(FLOWS, spaces.BALANCED, hypotheses=assumption_and_scale)
ON_SEVERAL_DIMENSIONS = SECTION.on(SEVERAL_DIMENSIONS, spaces.BALANCED, hypotheses=assumption_and_scale)


@SECTION.on(STILL, spaces.STILL).claim("eq-a.7", "before (A.7)")
@eqx.filter_jit
def mean_square_of_sample_covariance(task: LinearRegression) -> Comparison:
    r"""$\mathbb{E}[\hat\Lambda^2] = \frac{N + 1}{N} \Lambda^2 + \frac{\operatorname{tr}(\Lambda) \Lambda}{N} = \Gamma
    \Lambda$

    The expectation is computed by a cubature that is exact for it.
    """
    Lambda, N = task.covariance, task.context_length
    printed = (1 + 1 / N) * Lambda @ Lambda + jnp.trace(Lambda) / N * Lambda
    distances = [jnp.linalg.norm(second_moment(task) - each) for each in (printed, task.gamma() @ Lambda)]
    size = jnp.linalg.norm(Lambda) * jnp.trace(Lambda)
    return rounded(equal(jnp.stack(distances), 0.0, size), jnp.asarray(float(task.dimension)))


@ON_FLOWS.claim("lemma-a.1", "Lemma A.1", hypotheses=assumption)
def same_loss(loss: Loss, flow: Trajectory) -> Comparison:
    r"""The flow of $L$ is that of (A.11), and $L - \ell$ is constant (it is $\operatorname{tr}(\Lambda)/2$)"""
    constant = jnp.trace(loss.task.covariance) / 2

    def deviation(model):
        gradient, printed = loss.gradient(model), jax.grad(lambda m: printed_loss(loss, m))(model)
        gap = jnp.sqrt(norm_sq(jax.tree.map(jnp.subtract, gradient, printed)))
        _, _, size = printed_field(loss, model)
        difference = jnp.abs(loss(model) - printed_loss(loss, model) - constant)
        return gap / jnp.maximum(size, jnp.finfo(float).tiny) + difference / (constant + jnp.abs(loss(model)))

    return equal(jax.lax.map(deviation, flow.models), jnp.zeros(()), jnp.ones(()))


@ON_FLOWS.claim("corollary-a.2", "Corollary A.2", hypotheses=())
def minimum_and_excess(loss: Loss, flow: Trajectory) -> Comparison:
    r"""$\min \ell = -\operatorname{tr}(\Lambda^2 \Gamma^{-1})/2$ and $\ell - \min \ell = \bigl\lVert \Gamma^{1/2}(u
    \Lambda^{1/2} U_{11} \Lambda^{1/2} - \Lambda \Gamma^{-1}) \bigr\rVert_F^2/2$

    Judged by subtraction, along the trajectory and at u_{-1} U11 = Gamma^-1, where the minimum is attained.
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

    left, excess, right, size = jax.lax.map(sides, flow.models)
    attained = printed_loss(loss, LinearAttention(jnp.linalg.inv(Gamma), 1.0))
    comparisons = [equal(left, right, size), equal(attained[None], minimum, -minimum), equal(excess, right, size)]
    return joined(comparisons)


@ON_FLOWS.claim("lemma-a.3", "Lemma A.3, (A.12)", hypotheses=assumption)
def stays_balanced(flow: Trajectory) -> Comparison:
    r"""$u_{-1}^2 = \operatorname{tr}(U_{11} U_{11}^\top)$ for all $t$"""
    models = flow.models
    size = models.u_minus1**2 + jnp.sum(models.U11**2, axis=(1, 2))
    return equal(models.u_minus1**2, jnp.sum(models.U11**2, axis=(1, 2)), jnp.max(size))


@ON_FLOWS.claim("lemma-a.4", "Lemma A.4")
def u_positive(flow: Trajectory) -> Comparison:
    """$u_{-1} > 0$ for all $t$"""
    models = flow.models
    return stays_positive(models.u_minus1, jnp.sqrt(jnp.sum(models.U11**2, axis=(1, 2))))


@ON_SEVERAL_DIMENSIONS.claim("lemma-a.4.start", "proof of Lemma A.4", note=_AT_ONE)
def starts_below_the_saddle(loss: Loss, start: PyTree) -> Comparison:
    r"""$\ell(0) \le \tfrac{\sigma^2}{2} \lVert \Lambda \Theta \rVert_F^2 \bigl(\sqrt{d} \sigma^2 \lVert \Gamma
    \rVert_{\mathrm{op}} - 2\bigr)$, which is below the saddle's $0$
    """
    Lambda, d = loss.task.covariance, loss.task.dimension
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


@ON_FLOWS.claim("lemma-a.5", "Lemma A.5, (A.14)", constants=u_constants)
def u_bounded_below(loss: Loss, flow: Trajectory) -> Comparison:
    r"""$u_{-1}^2 \ge \frac{\sigma^2 \lVert \Lambda \Theta \rVert_F^2 (2 - \sqrt{d} \sigma^2 \lVert \Gamma
    \rVert_{\mathrm{op}})}{2 \sqrt{d} \lVert \Lambda \rVert_{\mathrm{op}}^2}$ for all $t$

    The extracted text leaves open how far the root in (A.14) extends; (A.15) squares the whole product.
    """
    bound_sq = u_lower_bound_sq(loss.task, flow.start)
    return at_least(flow.models.u_minus1, jnp.sqrt(jnp.maximum(bound_sq, 0.0)), promised=bound_sq > 0)


def _residual(loss: Loss, model: LinearAttention) -> tuple[Array, Array]:
    """|Gamma Lambda^{1/2} (u Lambda^{1/2} U11 Lambda^{1/2} - Lambda Gamma^-1) Lambda^{1/2}|_F^2, and its size."""
    Lambda, Gamma = loss.task.covariance, loss.task.gamma()
    values, vectors = jnp.linalg.eigh(Lambda)
    root = (vectors * jnp.sqrt(values)[None, :]) @ vectors.T
    grown, target = model.u_minus1 * root @ model.U11 @ root, Lambda @ jnp.linalg.inv(Gamma)
    size = jnp.sum((Gamma @ root @ grown @ root) ** 2) + jnp.sum((Lambda @ Lambda) ** 2)
    return jnp.sum((Gamma @ root @ (grown - target) @ root) ** 2), size


@ON_FLOWS.claim("eq-a.15", "(A.15)", hypotheses=assumption)
def slope_of_the_matrix(loss: Loss, flow: Trajectory) -> Comparison:
    r"""$\lVert \partial \ell/\partial U_{11} \rVert_F^2 = u_{-1}^2 \bigl\lVert \Gamma \Lambda^{1/2} (u_{-1}
    \Lambda^{1/2} U_{11} \Lambda^{1/2} - \Lambda \Gamma^{-1}) \Lambda^{1/2} \bigr\rVert_F^2$

    The gradient is that of the exact loss, by automatic differentiation.
    """

    def sides(model):
        square, size = _residual(loss, model)
        slope = jnp.sum(loss.gradient(model).U11 ** 2)
        return slope, model.u_minus1**2 * square, model.u_minus1**2 * size

    return equal(*jax.lax.map(sides, flow.models))


def _last_line(loss: Loss, trajectory: Trajectory, power: int) -> Comparison:
    """|dl/dU11|_F^2 of the exact loss against the square of (A.14), times |Lambda|_op^power, times the squared norm."""
    operator = jnp.linalg.eigvalsh(loss.task.covariance)[-1]
    bound_sq = u_lower_bound_sq(loss.task, trajectory.start) * operator**power
    slope = lambda model: jnp.sum(loss.gradient(model).U11 ** 2)
    residual = lambda model: _residual(loss, model)[0]
    slopes, residuals = (jax.lax.map(side, trajectory.models) for side in (slope, residual))
    return at_least(slopes, bound_sq * residuals, promised=(bound_sq > 0) & (trajectory.excess > 0))


@ON_FLOWS.claim("eq-a.15.bound", "(A.15), last line")
def printed_last_line(loss: Loss, flow: Trajectory) -> Comparison:
    r"""$\lVert \partial \ell/\partial U_{11} \rVert_F^2 \ge \frac{\sigma^2}{2 \sqrt{d}} \lVert \Lambda
    \rVert_{\mathrm{op}}^2 \lVert \Lambda \Theta \rVert_F^2 (2 - \sqrt{d} \sigma^2 \lVert \Gamma \rVert_{\mathrm{op}})
    \bigl\lVert \Gamma \Lambda^{1/2} (u_{-1} \Lambda^{1/2} U_{11} \Lambda^{1/2} - \Lambda \Gamma^{-1}) \Lambda^{1/2}
    \bigr\rVert_F^2$

    As extracted, |Lambda|_op^2 stands in the numerator; (A.14), from which the line comes, and (5.7), to which it
    leads, have it in the denominator. The line fails at a large Lambda and a small start. Whether the paper or only its
    extracted text misplaces it is not known.
    """
    return _last_line(loss, flow, 4)


@ON_FLOWS.corrected(printed_last_line)
def last_line(loss: Loss, flow: Trajectory) -> Comparison:
    r"""$\lVert \partial \ell/\partial U_{11} \rVert_F^2 \ge \frac{\sigma^2 \lVert \Lambda \Theta \rVert_F^2 (2 -
    \sqrt{d} \sigma^2 \lVert \Gamma \rVert_{\mathrm{op}})}{2 \sqrt{d} \lVert \Lambda \rVert_{\mathrm{op}}^2} \bigl\lVert
    \Gamma \Lambda^{1/2} (u_{-1} \Lambda^{1/2} U_{11} \Lambda^{1/2} - \Lambda \Gamma^{-1}) \Lambda^{1/2}
    \bigr\rVert_F^2$

    With |Lambda|_op^2 in the denominator, as in (A.14). With (A.16) it gives the mu of (5.7).
    """
    return _last_line(loss, flow, 0)


@ON_SEVERAL_DIMENSIONS.claim(
    "eq-a.16",
    "(A.16)",
    hypotheses=assumption,
    note=f"The squared norm is computed from the gradient by (A.15). {_AT_ONE}",
)
def excess_by_the_slope(loss: Loss, flow: Trajectory) -> Comparison:
    r"""$\ell - \min \ell \le \tfrac{1}{2} \bigl\lVert \Gamma \Lambda^{1/2} (u_{-1} \Lambda^{1/2} U_{11} \Lambda^{1/2} -
    \Lambda \Gamma^{-1}) \Lambda^{1/2} \bigr\rVert_F^2 \operatorname{tr}(\Gamma^{-1} \Lambda^{-1})
    \operatorname{tr}(\Lambda^{-1})$
    """
    lam, gam = jnp.linalg.eigvalsh(loss.task.covariance), jnp.linalg.eigvalsh(loss.task.gamma())
    factor = jnp.sum(1 / (gam * lam)) * jnp.sum(1 / lam) / 2

    def bound(model):
        return factor * jnp.sum(loss.gradient(model).U11 ** 2) / model.u_minus1**2

    promised = (flow.excess > 0) & (loss.task.dimension > 1)
    return at_most(flow.excess, jax.lax.map(bound, flow.models), promised=promised)
