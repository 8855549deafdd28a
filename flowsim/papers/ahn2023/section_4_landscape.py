"""The landscape around ahn2023's Theorem 1: whether its minimum is the only one, and where else a flow may end.

Sections 1 and 7 discuss this.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim._core.types import Scalar
from flowsim.claims.claim import Comparison, at_most, equal
from flowsim.claims.critical_points.end_points import end_constants, ends_above_the_minimum, hessian
from flowsim.claims.declaring import Section
from flowsim.claims.statements import joined
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import MaskedAttentionLoss
from flowsim.models import MaskedAttention
from flowsim.papers.ahn2023 import spaces
from flowsim.papers.ahn2023.problems import DOMINANT, EASY, ELSEWHERE, HARD, INFINITE, ISOTROPIC, ISOTROPIC_PAIR, ONE
from flowsim.papers.ahn2023.settings import masked_layer, two_dimensions
from flowsim.papers.ahn2023.single_layer import Loss, Task, of_sums

_SURELY_FLAT, _POSSIBLY_FLAT = 1e-12, 1e-6  # relative to the largest eigenvalue of a Hessian with a unit diagonal
_AT_MINIMUM = 1e-12  # relative to the loss at zero weights
_AT_EQUALITY = 1e-6


def swapped(task: Task) -> MaskedAttention:
    """The stationary point b = (u_1, 0)/gamma_1^{1/2}, A = -e_{d+1} u_1^T/gamma_1^{1/2}.

    Labels and covariates change places in the first eigendirection, that of the largest lambda; nothing is predicted in
    the others.
    """
    loss = MaskedAttentionLoss(task).unmasked
    u, d = loss.eigenvectors[:, -1], task.dimension
    root = jnp.sqrt(loss.gamma_eigenvalues[-1])
    return MaskedAttention(jnp.append(u, 0.0) / root, -jnp.zeros((d + 1, d)).at[d].set(u) / root)


def _in_eigenbasis(task: Task) -> Task:
    """The task in the eigenbasis of its covariance, where its Hessians are best scaled."""
    return eqx.tree_at(lambda task: task.covariance, task, jnp.diag(jnp.linalg.eigvalsh(task.covariance)))


def _inertia(loss: MaskedAttentionLoss, model: MaskedAttention) -> Float[Array, " n"]:
    """The eigenvalues of the Hessian scaled to a unit diagonal, which have the signs of its own (Sylvester)."""
    H = hessian(loss, model)
    diagonal = jnp.abs(jnp.diagonal(H))
    scale = 1 / jnp.sqrt(jnp.where(diagonal > 0, diagonal, 1.0))
    return jnp.linalg.eigvalsh(scale[:, None] * H * scale[None, :])


SECTION = Section("ahn2023", MaskedAttention, setting=masked_layer)


@SECTION.claim(
    "theorem-1.unique",
    "section 1, main contributions",
    problems=(EASY, HARD, ISOTROPIC, ISOTROPIC_PAIR, INFINITE, ONE),
    spaces=spaces.MASKED,
)
def unique_minimum(task: Task) -> Comparison:
    """The global optimum of one layer is unique, up to the re-scaling of Theorem 1

    Judged by the flat directions at (8) and by whether b = (u_1, 0), A = -e_{d+1} u_1^T/gamma_1 is a global minimum
    too. At d = 1 it is, as C is symmetric. The text omits the re-scaling; this is not counted as an error.
    """
    return _unique_minimum(task)


@eqx.filter_jit
def _unique_minimum(task: Task) -> Comparison:
    """How many directions at (8) are flat, and whether the other point is a minimum."""
    loss = MaskedAttentionLoss(_in_eigenbasis(task))
    best = loss.minimizer(jnp.linalg.norm(loss.minimizer().A) ** 0.5)
    values = _inertia(loss, best)
    flat, possibly = (jnp.sum(values <= ratio * values[-1]) for ratio in (_SURELY_FLAT, _POSSIBLY_FLAT))
    other = (loss.excess(swapped(loss.task)) <= _AT_MINIMUM * jnp.trace(task.covariance)).astype(float)
    count = at_most(flat.astype(float)[None], 1.5, size=1.0, promised=flat == possibly)
    return joined([count, at_most(other[None], 0.5, size=1.0)])


@SECTION.corrected(
    unique_minimum,
    hypotheses=two_dimensions,
    problems=(EASY, HARD, ISOTROPIC, ISOTROPIC_PAIR, INFINITE),
    spaces=spaces.MASKED,
)
def unique_minimum_of_several_dimensions(task: Task) -> Comparison:
    r"""For $d \ge 2$ the global optimum of one layer is unique, up to the re-scaling of Theorem 1

    Proof: at a minimum V = beta A_x + b_x alpha^T is -Gamma^-1, of rank d, and the part of the error even in w
    vanishes, so beta alpha = 0. If beta were zero, V would have rank one; so alpha = 0 and A_x is invertible, and b_x^T
    S A_x = 0 for every sample covariance S gives b_x = 0.
    """
    return _unique_minimum(task)


def _swapped_sides(task: Task) -> tuple[Scalar, Scalar]:
    """Both sides of the inequality that decides whether the Hessian at `swapped` is semidefinite.

    (lambda_1/gamma_1)^2 [(1 + 2/n) (t^2 + 2 tr Sigma^2) - (t + 2 lambda_1/n)^2/(1 + 2/n)] with t = tr Sigma, and
    n sum_{j > 1} lambda_j^2.
    """
    loss, n = MaskedAttentionLoss(task).unmasked, task.context_length
    lam, first, t = loss.eigenvalues, loss.eigenvalues[-1], jnp.trace(task.covariance)
    factor = 1 + 2 / n
    bracket = factor * (t**2 + 2 * jnp.sum(lam**2)) - (t + 2 * first / n) ** 2 / factor
    return (first / loss.gamma_eigenvalues[-1]) ** 2 * bracket, n * jnp.sum(lam[:-1] ** 2)


def swapped_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """Both sides of the inequality at `swapped`, by name."""
    left, right = _swapped_sides(loss.task)
    return {"left": left, "right": right}


@SECTION.claim(
    "theorem-1.local-minimum",
    "Theorem 1 with section 7",
    form="corrected",
    hypotheses=two_dimensions,
    problems=(EASY, HARD, DOMINANT, ISOTROPIC_PAIR, ISOTROPIC, INFINITE),
    spaces=spaces.MASKED,
    constants=swapped_constants,
)
@eqx.filter_jit
def swapped_minimum(task: Task) -> Comparison:
    r"""$b = (u_1, 0)$, $A = -e_{d+1} u_1^\top/\gamma_1$ is critical, $\sum_{j>1} \lambda_j^2/\gamma_j$ above the
    minimum, and its Hessian is semidefinite iff $(\lambda_1/\gamma_1)^2 \Bigl[(1 + 2/n) \bigl((\operatorname{tr}
    \Sigma)^2 + 2 \operatorname{tr} \Sigma^2\bigr) - \frac{(\operatorname{tr} \Sigma + 2 \lambda_1/n)^2}{1 + 2/n}\Bigr]
    \ge n \sum_{j>1} \lambda_j^2$

    Section 7 leaves open whether training can end at a stationary point other than (8). Here lambda_1 is the largest
    eigenvalue, u_1 its eigenvector, gamma_i = ((n+1)/n) lambda_i + (1/n) tr Sigma. The loss is constant along the
    Hessian's null directions (the re-scaling and, where lambda_1 is not simple, rotations), so the point is a local
    minimum where the inequality is strict. Where it fails, others can take its place (theorem-1.flow).
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


@SECTION.claim(
    "theorem-1.flow",
    "Theorem 1 with section 7",
    form="corrected",
    problems=ELSEWHERE,
    spaces=spaces.MASKED_FLOWS,
    constants=end_constants,
)
def flow_ends_elsewhere(loss: MaskedAttentionLoss, flow: Trajectory) -> Comparison:
    """The gradient flow of $f(b, A)$ can end at a local minimum above the global one

    Shown by examples: what section 7 calls possible does happen. A flow that reaches the global minimum says nothing
    about it. At the end of these flows no eigenvalue of the Hessian is negative; the zero ones belong to the re-scaling
    and, for equal eigenvalues of Sigma, to rotations.
    """
    return ends_above_the_minimum(loss, flow)
