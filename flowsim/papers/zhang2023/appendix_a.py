"""zhang2023's appendix A, the proof of Theorem 4.1: Lemmas A.1 to A.5, Corollary A.2, and steps of their proofs."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from flowsim._core.types import Matrix
from flowsim.claims.claim import Comparison, at_least, at_most, equal
from flowsim.claims.declaring import Section
from flowsim.claims.statements import rounded, stays_positive
from flowsim.flow.systems import norm_sq
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LinearAttentionLoss
from flowsim.models import LinearAttention
from flowsim.papers.zhang2023 import spaces
from flowsim.papers.zhang2023.conditions import assumption, assumption_and_scale, one_covariance, u_lower_bound_sq
from flowsim.papers.zhang2023.limits import literal_loss
from flowsim.papers.zhang2023.literal import second_moment
from flowsim.papers.zhang2023.problems import FLOWS, SEVERAL_DIMENSIONS, STILL
from flowsim.papers.zhang2023.section_5 import matrices, printed_field, printed_loss
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
    of, constant = matrices(loss), jnp.trace(loss.task.covariance) / 2

    def deviation(model):
        (exact, gradient), (printed, slope) = (
            jax.value_and_grad(each)(model) for each in (loss, lambda model: printed_loss(of, model))
        )
        gap = jnp.sqrt(norm_sq(jax.tree.map(jnp.subtract, gradient, slope)))
        _, _, size = printed_field(of, model)
        difference = jnp.abs(exact - printed - constant)
        return gap / jnp.maximum(size, jnp.finfo(float).tiny) + difference / (constant + jnp.abs(exact))

    return equal(jax.lax.map(deviation, flow.models), jnp.zeros(()), jnp.ones(()))


@ON_FLOWS.claim("corollary-a.2", "Corollary A.2", hypotheses=())
def minimum_and_excess(loss: Loss, flow: Trajectory) -> Comparison:
    r"""$\min \ell = -\operatorname{tr}(\Lambda^2 \Gamma^{-1})/2$ and $\ell - \min \ell = \bigl\lVert \Gamma^{1/2}(u
    \Lambda^{1/2} U_{11} \Lambda^{1/2} - \Lambda \Gamma^{-1}) \bigr\rVert_F^2/2$

    Here u is u_{-1}. The minimum is subtracted from the loss along the flow, and is attained at u_{-1} U11 = Gamma^-1.
    """
    Lambda, Gamma = loss.task.covariance, loss.task.gamma()
    root, gamma_root, target = _root(Lambda), _root(Gamma), Lambda @ jnp.linalg.inv(Gamma)
    of, minimum = matrices(loss), -jnp.trace(Lambda @ Lambda @ jnp.linalg.inv(Gamma)) / 2

    def sides(model):
        inner = model.u_minus1 * (root @ model.U11 @ root) - target
        square = jnp.sum((gamma_root @ inner) ** 2) / 2
        return printed_loss(of, model) - minimum, loss.excess(model), square, square - minimum

    left, excess, right, size = jax.lax.map(sides, flow.models)
    attained = printed_loss(of, LinearAttention(jnp.linalg.inv(Gamma), 1.0))
    columns = lambda *sides: jnp.stack(jnp.broadcast_arrays(*sides), axis=1)
    return equal(columns(left, excess, attained), columns(right, right, minimum), columns(size, size, -minimum))


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
    \rVert_{\mathrm{op}} - 2\bigr)$, which is negative; the loss at the saddle is $0$
    """
    Lambda, d = loss.task.covariance, loss.task.dimension
    value = literal_loss(loss.task, start.u_minus1 * start.U11)
    square = jnp.trace(Lambda @ Lambda @ start.U11) / start.u_minus1
    operator = jnp.linalg.eigvalsh(loss.task.gamma())[-1]
    bound = start.u_minus1**2 / 2 * square * (jnp.sqrt(float(d)) * start.u_minus1**2 * operator - 2)
    size = start.u_minus1**2 * square
    return at_most(value[None], bound[None], size=size, promised=jnp.asarray([d > 1]))


def u_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The lower bound (A.14) on u_{-1}, zero if the paper gives none, and the least u_{-1} along the flow."""
    bound_sq = jnp.maximum(u_lower_bound_sq(loss.task, trajectory.start), 0.0)
    return {"u_lower_bound": jnp.sqrt(bound_sq), "sharp_u_lower_bound": jnp.min(trajectory.models.u_minus1)}


@ON_FLOWS.claim("lemma-a.5", "Lemma A.5, (A.14)", constants=u_constants)
def u_bounded_below(loss: Loss, flow: Trajectory) -> Comparison:
    r"""$u_{-1}^2 \ge \frac{\sigma^2 \lVert \Lambda \Theta \rVert_F^2 (2 - \sqrt{d} \sigma^2 \lVert \Gamma
    \rVert_{\mathrm{op}})}{2 \sqrt{d} \lVert \Lambda \rVert_{\mathrm{op}}^2}$ for all $t$

    The extracted text does not show where the root in (A.14) ends. (A.15) squares the whole product.
    """
    bound_sq = u_lower_bound_sq(loss.task, flow.start)
    return at_least(flow.models.u_minus1, jnp.sqrt(jnp.maximum(bound_sq, 0.0)), promised=bound_sq > 0)


def _root(matrix: Matrix) -> Matrix:
    values, vectors = jnp.linalg.eigh(matrix)
    return (vectors * jnp.sqrt(values)[None, :]) @ vectors.T


def _residuals(loss: Loss, flow: Trajectory) -> tuple[Array, Array]:
    """The squared residual of (A.15) at each point of a flow, and the size of its terms, (T,) each.

    With u = u_{-1}, the residual is

    |Gamma Lambda^{1/2} (u Lambda^{1/2} U11 Lambda^{1/2} - Lambda Gamma^-1) Lambda^{1/2}|_F.
    """
    Lambda, Gamma = loss.task.covariance, loss.task.gamma()
    root = _root(Lambda)
    left, target, least = Gamma @ root, Lambda @ jnp.linalg.inv(Gamma), jnp.sum((Lambda @ Lambda) ** 2)

    def sides(model):
        grown = model.u_minus1 * (root @ model.U11 @ root)
        size = jnp.sum((left @ grown @ root) ** 2) + least
        return jnp.sum((left @ (grown - target) @ root) ** 2), size

    return jax.lax.map(sides, flow.models)


def _slopes(loss: Loss, flow: Trajectory) -> Array:
    """|dl/dU11|_F^2 of the exact loss at each point of a flow, (T,).

    Claims that are compiled into one program share this computation.
    """
    return jax.lax.map(lambda model: jnp.sum(loss.gradient(model).U11 ** 2), flow.models)


@ON_FLOWS.claim("eq-a.15", "(A.15)", hypotheses=assumption)
def slope_of_the_matrix(loss: Loss, flow: Trajectory) -> Comparison:
    r"""$\lVert \partial \ell/\partial U_{11} \rVert_F^2 = u_{-1}^2 \bigl\lVert \Gamma \Lambda^{1/2} (u_{-1}
    \Lambda^{1/2} U_{11} \Lambda^{1/2} - \Lambda \Gamma^{-1}) \Lambda^{1/2} \bigr\rVert_F^2$

    The gradient is that of the exact loss, by automatic differentiation.
    """
    square, size = _residuals(loss, flow)
    u_sq = flow.models.u_minus1**2
    return equal(_slopes(loss, flow), u_sq * square, u_sq * size)


def _last_line(loss: Loss, trajectory: Trajectory, power: int) -> Comparison:
    """The last line of (A.15): |dl/dU11|_F^2 >= |Lambda|_op^power b^2 r, for the exact loss.

    Here b is the lower bound (A.14) on u_{-1}, and r is the squared residual that `_residuals` returns.
    """
    operator = jnp.linalg.eigvalsh(loss.task.covariance)[-1]
    bound_sq = u_lower_bound_sq(loss.task, trajectory.start) * operator**power
    bound = bound_sq * _residuals(loss, trajectory)[0]
    return at_least(_slopes(loss, trajectory), bound, promised=(bound_sq > 0) & (trajectory.excess > 0))


@ON_FLOWS.claim("eq-a.15.bound", "(A.15), last line")
def printed_last_line(loss: Loss, flow: Trajectory) -> Comparison:
    r"""$\lVert \partial \ell/\partial U_{11} \rVert_F^2 \ge \frac{\sigma^2}{2 \sqrt{d}} \lVert \Lambda
    \rVert_{\mathrm{op}}^2 \lVert \Lambda \Theta \rVert_F^2 (2 - \sqrt{d} \sigma^2 \lVert \Gamma \rVert_{\mathrm{op}})
    \bigl\lVert \Gamma \Lambda^{1/2} (u_{-1} \Lambda^{1/2} U_{11} \Lambda^{1/2} - \Lambda \Gamma^{-1}) \Lambda^{1/2}
    \bigr\rVert_F^2$

    The extracted text has |Lambda|_op^2 in the numerator; the PDF may differ. The line comes from (A.14) and leads to
    (5.7), and both have it in the denominator. The line fails at a large Lambda and a small start.
    """
    return _last_line(loss, flow, 4)


@ON_FLOWS.corrected(printed_last_line)
def last_line(loss: Loss, flow: Trajectory) -> Comparison:
    r"""$\lVert \partial \ell/\partial U_{11} \rVert_F^2 \ge \frac{\sigma^2 \lVert \Lambda \Theta \rVert_F^2 (2 -
    \sqrt{d} \sigma^2 \lVert \Gamma \rVert_{\mathrm{op}})}{2 \sqrt{d} \lVert \Lambda \rVert_{\mathrm{op}}^2} \bigl\lVert
    \Gamma \Lambda^{1/2} (u_{-1} \Lambda^{1/2} U_{11} \Lambda^{1/2} - \Lambda \Gamma^{-1}) \Lambda^{1/2}
    \bigr\rVert_F^2$

    |Lambda|_op^2 is in the denominator, as in (A.14). Together with (A.16) the line gives the mu of (5.7).
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
    promised = (flow.excess > 0) & (loss.task.dimension > 1)
    return at_most(flow.excess, factor * _slopes(loss, flow) / flow.models.u_minus1**2, promised=promised)
