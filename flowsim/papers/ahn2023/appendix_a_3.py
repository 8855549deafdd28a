"""ahn2023's appendix A.3: the proof of Theorem 1 for a general covariance, first for a diagonal one."""

import equinox as eqx
import jax.numpy as jnp

from flowsim.claims.claim import Comparison
from flowsim.claims.declaring import Section
from flowsim.claims.hypotheses import finite_context
from flowsim.losses import MaskedAttentionLoss
from flowsim.models import MaskedAttention
from flowsim.papers.ahn2023 import components, spaces
from flowsim.papers.ahn2023.problems import DIAGONAL, DIAGONAL_LARGE, EASY, EVERY, ISOTROPIC_INFINITE
from flowsim.papers.ahn2023.settings import diagonal, masked_layer
from flowsim.papers.ahn2023.single_layer import Task, in_context_loss, on_drawn
from flowsim.tasks import LinearRegression

PROBLEMS = (EASY, DIAGONAL, DIAGONAL_LARGE, ISOTROPIC_INFINITE)


SECTION = Section("ahn2023", MaskedAttention, setting=masked_layer, hypotheses=diagonal)
ON_PROBLEMS = SECTION.on(PROBLEMS, spaces.MASKED_DIAGONAL)
ON_MASKED_DIAGONAL = SECTION.on((EASY, DIAGONAL), spaces.MASKED_DIAGONAL)


@ON_PROBLEMS.claim("lemma-7", "Lemma 7")
@eqx.filter_jit
def lemma_7(task: Task) -> Comparison:
    r"""For $\Sigma = \operatorname{diag}(\lambda)$, $X_j = -\frac{E_{d+1,j}}{\tfrac{n+1}{n} \lambda_j + \tfrac{1}{n}
    \sum_k \lambda_k}$ is a global minimum of $f_j(X) = \mathbb{E}\bigl[(\langle C, X \rangle + w[j])^2\bigr]$

    The paper attributes its consequences to Lemma 6. The display of A at the end of step 1 lacks a denominator, in the
    paper or in its extracted text; (8) is meant.
    """
    lam, n = jnp.diagonal(task.covariance), task.context_length
    denominators = (1 + 1 / n) * lam + jnp.sum(lam) / n
    return components.stationary(task, -components.unit(task.dimension) / denominators[:, None, None])


@ON_PROBLEMS.claim("eq-20", "(20)")
@eqx.filter_jit
def eq_20(task: Task) -> Comparison:
    r"""For $\Sigma = \operatorname{diag}(\lambda)$, $\mathbb{E}[w[j] C] = \lambda_j (E_{d+1,j} + E_{j,d+1})$"""
    return components.linear_term(task, jnp.diagonal(task.covariance))


@ON_PROBLEMS.claim("eq-21", "(21)")
@eqx.filter_jit
def eq_21(task: Task) -> Comparison:
    r"""For $\Sigma = \operatorname{diag}(\lambda)$, $\mathbb{E}[\langle C, E_{d+1,j} \rangle C] = \bigl(\tfrac{n+1}{n}
    \lambda_j^2 + \tfrac{1}{n} \lambda_j \sum_k \lambda_k\bigr) (E_{d+1,j} + E_{j,d+1})$
    """
    lam, n = jnp.diagonal(task.covariance), task.context_length
    return components.quadratic_term(task, (1 + 1 / n) * lam**2 + lam * jnp.sum(lam) / n)


@ON_MASKED_DIAGONAL.claim("lemma-7.unique", "appendix A.3, step 1")
@eqx.filter_jit
def unique_component_minimum(task: Task) -> Comparison:
    """$X_j$ is the unique global minimum of $f_j$

    As for lemma-6.unique: any antisymmetric matrix may be added to X_j.
    """
    return components.no_flat_directions(task)


@ON_MASKED_DIAGONAL.corrected(unique_component_minimum, hypotheses=(diagonal, finite_context))
@eqx.filter_jit
def unique_symmetric_component_minimum(task: Task) -> Comparison:
    """At finite $n$ the global minima of $f_j$ are $X_j$ plus any antisymmetric matrix

    C is symmetric, so f_j depends only on the symmetric part of X, which is unique.
    """
    return components.antisymmetric_flat_directions(task)


@ON_PROBLEMS.claim("lemma-7.sum", "appendix A.3, step 1")
@eqx.filter_jit
def sum_of_components(task: Task) -> Comparison:
    r"""For $\Sigma = \operatorname{diag}(\lambda)$, $f(b, A) = \sum_j f_j(b, A_j)$

    The display is that of the isotropic case. The weights E[x_query[j]^2] = lambda_j are missing, as the first display
    of step 2 shows; the minimum is at the same place with any positive weights.
    """
    return components.sum_of_components(task, jnp.ones(task.dimension))


@ON_PROBLEMS.corrected(sum_of_components, "appendix A.3, step 1, with the first display of step 2")
@eqx.filter_jit
def weighted_sum_of_components(task: Task) -> Comparison:
    r"""For $\Sigma = \operatorname{diag}(\lambda)$, $f(b, A) = \sum_j \lambda_j f_j(b, A_j)$

    With the weights lambda_j, which are all 1 only for Sigma = I.
    """
    return components.sum_of_components(task, jnp.diagonal(task.covariance))


@SECTION.claim("sec-a.3.rotation", "appendix A.3, step 2", hypotheses=(), problems=EVERY, spaces=spaces.MASKED)
@eqx.filter_jit
def rotated(task: Task) -> Comparison:
    r"""With $\Sigma = U \Lambda U^\top$, $f(b, A)$ is the loss of covariance $\Lambda$ at $\begin{bmatrix} U^\top & 0
    \\ 0 & 1 \end{bmatrix} b$ and $\begin{bmatrix} U^\top & 0 \\ 0 & 1 \end{bmatrix} A U$

    Judged at drawn weights. In the labels the displays keep x where its rotation U^T x is meant.
    """
    values, U = jnp.linalg.eigh(task.covariance)
    eigenbasis = LinearRegression(jnp.diag(values), task.context_length)
    turn = jnp.eye(task.dimension + 1).at[:-1, :-1].set(U.T)

    def turned(model):
        return in_context_loss(eigenbasis, MaskedAttention(turn @ model.b, turn @ model.A @ U))

    return on_drawn(task, turned, MaskedAttentionLoss(task))
