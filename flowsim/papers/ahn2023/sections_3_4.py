"""ahn2023's sections 3 and 4 on one layer: the loss, the weights that enter it, its minimum, and limits of flows.

Statements of sections 1 and 7 about the landscape around Theorem 1 are also here.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim._core.types import Scalar
from flowsim.claims.claim import Comparison, at_least, at_most, equal
from flowsim.claims.critical_points.end_points import end_constants, ends_above_the_minimum, hessian
from flowsim.claims.hypotheses import finite_context
from flowsim.claims.statements import joined
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import MaskedAttentionLoss
from flowsim.models import MaskedAttention
from flowsim.models.linear_attention import embed
from flowsim.models.masked_attention import attend
from flowsim.papers.ahn2023 import problems, spaces
from flowsim.papers.ahn2023.appendix_a import (
    Loss,
    Square,
    Task,
    in_context_loss,
    of_sums,
    on_drawn,
    prompts_of,
)
from flowsim.papers.ahn2023.settings import SINGLE_LAYER, isotropic, two_dimensions
from flowsim.tasks import Prompt

SECTION = SINGLE_LAYER()
ON_EVERY = SECTION.on(problems.EVERY, spaces.MASKED)


@ON_EVERY.claim("sec-3.non-convex", "section 3, (i)")
@eqx.filter_jit
def not_convex(task: Task) -> Comparison:
    """$f$ is not convex in $P$ and $Q$, even for a single layer: at the midpoint of some two points it is larger than
    the mean of its values at both

    The two points are (8), and (8) with the signs of b and A flipped. At their midpoint all weights are zero.
    """
    one, other = (MaskedAttentionLoss(task).minimizer(gamma) for gamma in (1.0, -1.0))
    halfway = in_context_loss(task, jax.tree.map(lambda x, y: (x + y) / 2, one, other))
    mean = (in_context_loss(task, one) + in_context_loss(task, other)) / 2
    return of_sums(task, at_least(halfway[None], mean[None], size=halfway[None]))


_RESCALINGS = (1e-3, 0.1, -1.0, 7.0, 1e3)

ON_MASKED = SECTION.on(
    (problems.EASY, problems.HARD, problems.DIAGONAL, problems.ONE), spaces.MASKED, needs=finite_context
)


@ON_EVERY.claim("eq-6", "section 4, (6)")
@eqx.filter_jit
def without_square(task: Task) -> Comparison:
    r"""The in-context loss (5) of one layer is $\mathbb{E}\bigl[[Z_0 + \operatorname{Attn}(Z_0)/n]_{d+1,n+1} + w^\top
    x^{(n+1)}\bigr]$

    As printed, this is the expectation of an odd function of x^(n+1), so it is zero for all weights.
    """
    d, Sigma = task.dimension, task.covariance
    mean = jnp.zeros((d + 1, d + 1)).at[:d, :d].set(Sigma).at[d, d].set(jnp.trace(Sigma))
    mean_query = jnp.zeros(d)
    return on_drawn(task, lambda model: model.b @ mean @ model.A @ mean_query, MaskedAttentionLoss(task))


@ON_EVERY.corrected(without_square, "section 4, (6) with (15)")
@eqx.filter_jit
def with_square(task: Task) -> Comparison:
    r"""The in-context loss (5) of one layer is $\mathbb{E}\bigl[(b^\top C A x^{(n+1)} + w^\top x^{(n+1)})^2\bigr]$

    (6) lacks the square; (5), (15) and appendix A.1, which repeats (6), have it. Two formulas are compared at random
    weights. One is a sum of quadratic forms in b (A s)^T. The other splits the error into parts odd and even in w.
    """
    return on_drawn(task, lambda model: in_context_loss(task, model), MaskedAttentionLoss(task))


def _reaches(task: Task, count: int) -> Comparison:
    """The statement that some entries of P and Q suffice for the prediction. Judged on 16 random prompts.

    The predictions with all of P and Q are compared with two others, for which the remaining entries are set to
    zero. The first one keeps the last row of P and the first ``count`` columns of Q. The second one keeps all rows
    of P but the first ``count``, and all columns of Q but the last.
    """
    d, prompts = task.dimension, prompts_of(task)
    P, Q = np.random.default_rng(1).standard_normal((2, d + 1, d + 1))
    row, column = np.indices((d + 1, d + 1))
    only = P * (row == d), Q * (column < count)
    without = P * (row >= count), Q * (column < d)
    full, *others = (_read_off(prompts, jnp.asarray(a), jnp.asarray(b)) for a, b in ((P, Q), only, without))
    return joined([equal(other, full, jnp.max(jnp.abs(full))) for other in others])


@eqx.filter_jit
def _read_off(prompts: Prompt, P: Square, Q: Square) -> Float[Array, " n"]:
    """The entry [Attn(Z_0)/n]_{d+1,n+1} on every prompt."""
    return jax.vmap(lambda prompt: attend(embed(prompt), P, Q)[-1, -1] / prompt.inputs.shape[0])(prompts)


@ON_MASKED.claim("sec-4.parameters", "section 4, after (6)")
def parameters_as_printed(task: Task) -> Comparison:
    """The loss depends only on the last row of $P$ and the first $n$ columns of $Q$; the first $n$ rows of $P$ and the
    last column of $Q$ do not affect it

    Judged by the predictions on 16 random prompts. For n < d the statement leaves out columns of Q that matter. For n >
    d the first n rows of P include the last row. At n = d, as in the last problem, it is right.
    """
    return _reaches(task, int(task.context_length))


@ON_MASKED.corrected(parameters_as_printed, "section 4, after (6), with (7)")
def parameters(task: Task) -> Comparison:
    """The loss depends only on the last row of $P$ and the first $d$ columns of $Q$; the first $d$ rows of $P$ and the
    last column of $Q$ do not affect it

    The count is d, not n, as in (7) and appendix A.1. Judged by the predictions on 16 random prompts.
    """
    return _reaches(task, task.dimension)


def _minimum_at(task: Task, gammas: Float[Array, " n"]) -> Comparison:
    """The statement that (8), re-scaled by each gamma, is a minimum: f is minimal and both gradients are zero.

    A gradient is judged relative to one of its terms.
    """
    loss = MaskedAttentionLoss(task)
    f = lambda model: in_context_loss(task, model)

    def sides(gamma):
        model = loss.minimizer(gamma)
        value, gradient = jax.value_and_grad(f)(model)
        part_b = jax.grad(f)(MaskedAttention(jnp.zeros_like(model.b), model.A)).b
        part_A = jax.grad(f)(MaskedAttention(model.b, jnp.zeros_like(model.A))).A
        slope_b, slope_A, size_b, size_A = (jnp.linalg.norm(x) for x in (gradient.b, gradient.A, part_b, part_A))
        sizes = jnp.stack([jnp.trace(task.covariance), size_b, size_A])
        return jnp.stack([value, slope_b, slope_A]), jnp.stack([loss.minimum, 0.0, 0.0]), sizes

    values, expected, sizes = (side.reshape(-1) for side in jax.vmap(sides)(gammas))
    return of_sums(task, equal(values, expected, sizes))


@ON_EVERY.claim("theorem-1", "Theorem 1, (8)")
@eqx.filter_jit
def minimum_at_8(task: Task) -> Comparison:
    r"""$b = e_{d+1}$, $A = -\begin{bmatrix} U \operatorname{diag}\bigl(1/(\tfrac{n+1}{n} \lambda_i + \tfrac{1}{n}
    \sum_k \lambda_k)\bigr) U^\top \\ 0 \end{bmatrix}$ is a global minimum of $f$

    The quadratic forms of appendix A give the value and the gradient. The minimum comes from the loss as a sum of two
    squares: those of the parts of the error odd and even in w.
    """
    return _minimum_at(task, jnp.ones(1))


@ON_EVERY.claim("theorem-1.rescaling", "Theorem 1")
@eqx.filter_jit
def minimum_at_rescalings(task: Task) -> Comparison:
    r"""$b \gets \gamma b$ and $A \gets A/\gamma$ turn (8) into another global minimum

    Judged at gamma = 1e-3, 0.1, -1, 7 and 1e3.
    """
    return _minimum_at(task, jnp.asarray(_RESCALINGS))


@SECTION.on(
    (problems.ISOTROPIC, problems.ISOTROPIC_SHORT, problems.ISOTROPIC_LARGE, problems.ISOTROPIC_INFINITE),
    spaces.MASKED_ISOTROPIC,
).claim("theorem-1.isotropic", "display after Theorem 1", hypotheses=isotropic)
@eqx.filter_jit
def isotropic_form(task: Task) -> Comparison:
    r"""For $\Sigma = I$ (8) is $A = -\begin{bmatrix} I \\ 0 \end{bmatrix}\big/\bigl(\frac{n-1}{n} +
    \frac{d+2}{n}\bigr)$
    """
    d, n = task.dimension, task.context_length
    printed = -jnp.eye(d + 1, d) / ((1 - 1 / n) + (d + 2) / n)
    A = MaskedAttentionLoss(task).minimizer().A
    return equal(jnp.linalg.norm(A - printed)[None], 0.0, jnp.linalg.norm(A))


_SURELY_FLAT, _POSSIBLY_FLAT = 1e-12, 1e-6  # relative to the largest eigenvalue of a Hessian with a unit diagonal
_AT_MINIMUM = 1e-12  # relative to the loss at zero weights
_AT_EQUALITY = 1e-6


def swapped(task: Task) -> MaskedAttention:
    """The stationary point b = (u_1, 0)/gamma_1^{1/2}, A = -e_{d+1} u_1^T/gamma_1^{1/2} of the loss.

    Here lambda_1 is the largest eigenvalue of Sigma, u_1 is its unit eigenvector, and gamma_1 = ((n+1)/n) lambda_1 +
    (1/n) tr Sigma. In comparison with the minimizer, b reads the covariates along u_1 instead of the label, and A reads
    the label instead of the covariates. The prediction depends on the query only along u_1.
    """
    loss = MaskedAttentionLoss(task).unmasked
    u, d = loss.eigenvectors[:, -1], task.dimension
    root = jnp.sqrt(loss.gamma_eigenvalues[-1])
    return MaskedAttention(jnp.append(u, 0.0) / root, -jnp.zeros((d + 1, d)).at[d].set(u) / root)


def _in_eigenbasis(task: Task) -> Task:
    """The task in the eigenbasis of its covariance, where Hessians are best scaled."""
    return eqx.tree_at(lambda task: task.covariance, task, jnp.diag(jnp.linalg.eigvalsh(task.covariance)))


def _inertia(loss: MaskedAttentionLoss, model: MaskedAttention) -> Float[Array, " n"]:
    """The eigenvalues of the Hessian after it is scaled to a unit diagonal.

    By Sylvester's law they have the same signs as the eigenvalues of the unscaled Hessian.
    """
    H = hessian(loss, model)
    diagonal = jnp.abs(jnp.diagonal(H))
    scale = 1 / jnp.sqrt(jnp.where(diagonal > 0, diagonal, 1.0))
    return jnp.linalg.eigvalsh(scale[:, None] * H * scale[None, :])


@SECTION.on(
    (problems.EASY, problems.HARD, problems.ISOTROPIC, problems.ISOTROPIC_PAIR, problems.INFINITE, problems.ONE),
    spaces.MASKED,
).claim("theorem-1.unique", "section 1, main contributions")
def unique_minimum(task: Task) -> Comparison:
    """The global optimum of one layer is unique, up to the re-scaling of Theorem 1

    Judged by the number of flat directions at (8), and by whether b = (u_1, 0), A = -e_{d+1} u_1^T/gamma_1 is a global
    minimum too. At d = 1 it is one, because C is symmetric. The text omits the re-scaling; this is not counted as an
    error.
    """
    return _unique_minimum(task)


@eqx.filter_jit
def _unique_minimum(task: Task) -> Comparison:
    """The statement that at most one direction at (8) is flat, and that `swapped` is not a minimum."""
    loss = MaskedAttentionLoss(_in_eigenbasis(task))
    best = loss.minimizer(jnp.linalg.norm(loss.minimizer().A) ** 0.5)
    values = _inertia(loss, best)
    flat, possibly = (jnp.sum(values <= ratio * values[-1]) for ratio in (_SURELY_FLAT, _POSSIBLY_FLAT))
    other = (loss.excess(swapped(loss.task)) <= _AT_MINIMUM * jnp.trace(task.covariance)).astype(float)
    count = at_most(flat.astype(float)[None], 1.5, size=1.0, promised=flat == possibly)
    return joined([count, at_most(other[None], 0.5, size=1.0)])


@SECTION.on(
    (problems.EASY, problems.HARD, problems.ISOTROPIC, problems.ISOTROPIC_PAIR, problems.INFINITE), spaces.MASKED
).corrected(unique_minimum, hypotheses=two_dimensions)
def unique_minimum_of_several_dimensions(task: Task) -> Comparison:
    r"""For $d \ge 2$ the global optimum of one layer is unique, up to the re-scaling of Theorem 1

    Proof: let b = (b_x, beta), and let A have the rows of A_x and then alpha^T. At a minimum V = beta A_x + b_x alpha^T
    is -Gamma^-1, which has rank d. The part of the error even in w vanishes, so beta alpha = 0. If beta were zero, V
    would have rank one. So alpha = 0, and A_x is invertible. Then b_x^T S A_x = 0 for every sample covariance S, so b_x
    = 0.
    """
    return _unique_minimum(task)


def _swapped_sides(task: Task) -> tuple[Scalar, Scalar]:
    """Both sides of the inequality that decides whether the Hessian at `swapped` is semidefinite.

    Let lambda_1 >= .. >= lambda_d be the eigenvalues of Sigma, t = tr Sigma, and gamma_1 = ((n+1)/n) lambda_1 +
    t/n. The left side is (lambda_1/gamma_1)^2 [(1 + 2/n) (t^2 + 2 tr Sigma^2) - (t + 2 lambda_1/n)^2/(1 + 2/n)],
    and the right side is n sum_{j > 1} lambda_j^2.
    """
    loss, n = MaskedAttentionLoss(task).unmasked, task.context_length
    lam, first, t = loss.eigenvalues, loss.eigenvalues[-1], jnp.trace(task.covariance)
    factor = 1 + 2 / n
    bracket = factor * (t**2 + 2 * jnp.sum(lam**2)) - (t + 2 * first / n) ** 2 / factor
    return (first / loss.gamma_eigenvalues[-1]) ** 2 * bracket, n * jnp.sum(lam[:-1] ** 2)


def swapped_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The sides of the inequality of `_swapped_sides`, named ``left`` and ``right``."""
    left, right = _swapped_sides(loss.task)
    return {"left": left, "right": right}


@SECTION.on(
    (problems.EASY, problems.HARD, problems.DOMINANT, problems.ISOTROPIC_PAIR, problems.ISOTROPIC, problems.INFINITE),
    spaces.MASKED,
).claim(
    "theorem-1.local-minimum",
    "Theorem 1 with section 7",
    form="corrected",
    hypotheses=two_dimensions,
    constants=swapped_constants,
)
@eqx.filter_jit
def swapped_minimum(task: Task) -> Comparison:
    r"""$b = (u_1, 0)$, $A = -e_{d+1} u_1^\top/\gamma_1$ is critical, $\sum_{j>1} \lambda_j^2/\gamma_j$ above the
    minimum, and its Hessian is semidefinite iff $(\lambda_1/\gamma_1)^2 \Bigl[(1 + 2/n) \bigl((\operatorname{tr}
    \Sigma)^2 + 2 \operatorname{tr} \Sigma^2\bigr) - \frac{(\operatorname{tr} \Sigma + 2 \lambda_1/n)^2}{1 + 2/n}\Bigr]
    \ge n \sum_{j>1} \lambda_j^2$

    Here lambda_1 is the largest eigenvalue, u_1 its eigenvector, and gamma_i = ((n+1)/n) lambda_i + (1/n) tr Sigma.
    Section 7 leaves open whether training can end at a stationary point other than (8). The null directions of the
    Hessian are the re-scaling and, where lambda_1 is not simple, rotations. The loss is constant along them, so the
    point is a local minimum where the inequality is strict. Where it fails, there can be other local minima
    (theorem-1.flow).
    """
    task = _in_eigenbasis(task)
    loss, model = MaskedAttentionLoss(task), swapped(task)
    lam, gam = loss.unmasked.eigenvalues, loss.unmasked.gamma_eigenvalues
    gradient = loss.gradient(model)
    slope = jnp.linalg.norm(gradient.b) + jnp.linalg.norm(gradient.A)
    size = jnp.linalg.norm(loss.gradient(MaskedAttention(model.b, jnp.zeros_like(model.A))).A)
    values = _inertia(loss, model)
    surely, possibly = (values[0] < -ratio * values[-1] for ratio in (_POSSIBLY_FLAT, _SURELY_FLAT))
    semidefinite = ~surely
    left, right = _swapped_sides(task)
    doubt = (jnp.abs(left - right) <= _AT_EQUALITY * left) | (possibly & ~surely)
    above, expected = loss.excess(model), jnp.sum(lam[:-1] ** 2 / gam[:-1])
    return joined(
        [
            of_sums(task, equal(slope[None], 0.0, size)),
            of_sums(task, equal(above[None], expected, jnp.trace(task.covariance))),
            equal(semidefinite.astype(float)[None], (left >= right).astype(float), 1.0, allowance=doubt.astype(float)),
        ]
    )


@SECTION.on(problems.ELSEWHERE, spaces.MASKED_FLOWS).claim(
    "theorem-1.flow", "Theorem 1 with section 7", form="corrected", constants=end_constants
)
def flow_ends_elsewhere(loss: MaskedAttentionLoss, flow: Trajectory) -> Comparison:
    """The gradient flow of $f(b, A)$ can end at a local minimum above the global one

    Examples show this; section 7 calls it possible. A flow that reaches the global minimum neither shows nor refutes
    it. At the end of the examples no eigenvalue of the Hessian is negative. The zero ones belong to the re-scaling and,
    for equal eigenvalues of Sigma, to rotations.
    """
    return ends_above_the_minimum(loss, flow)
