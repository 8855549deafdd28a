"""ahn2023's appendix A: the proof of Theorem 1, a component f_j at a time, for isotropic data and any covariance."""

import equinox as eqx
import jax
import jax.numpy as jnp

from flowsim.claims.claim import Comparison, equal
from flowsim.claims.hypotheses import can_be_drawn, finite_context
from flowsim.claims.statements import rounded
from flowsim.losses import MaskedAttentionLoss
from flowsim.models import MaskedAttention
from flowsim.models.linear_attention import embed
from flowsim.moments import token_covariance_times_form
from flowsim.papers.ahn2023 import single_layer, spaces
from flowsim.papers.ahn2023.problems import (
    DIAGONAL,
    DIAGONAL_LARGE,
    EASY,
    EVERY,
    ISOTROPIC,
    ISOTROPIC_INFINITE,
    ISOTROPIC_LARGE,
    ISOTROPIC_SHORT,
)
from flowsim.papers.ahn2023.settings import SINGLE_LAYER, diagonal, isotropic
from flowsim.papers.ahn2023.single_layer import Loss, Task, in_context_loss, nothing_drawn, on_drawn, prompts_of
from flowsim.tasks import LinearRegression

PROBLEMS = (ISOTROPIC, ISOTROPIC_SHORT, ISOTROPIC_LARGE, ISOTROPIC_INFINITE)

SECTION_A_2 = SINGLE_LAYER(hypotheses=isotropic)
ON_PROBLEMS = SECTION_A_2.on(PROBLEMS, spaces.MASKED_ISOTROPIC)
ON_FINITE = SECTION_A_2.on(PROBLEMS[:3], spaces.MASKED_ISOTROPIC, hypotheses=finite_context)
ON_FEW = SECTION_A_2.on(PROBLEMS[:2], spaces.MASKED_ISOTROPIC)


@ON_PROBLEMS.claim("lemma-6.sum", "appendix A.2, step 1")
@eqx.filter_jit
def sum_of_components(task: Task) -> Comparison:
    r"""For $\Sigma = I$, $f(b, A) = \sum_j f_j(b, A)$"""
    return single_layer.sum_of_components(task, jnp.ones(task.dimension))


@ON_PROBLEMS.claim("lemma-6", "Lemma 6")
@eqx.filter_jit
def lemma_6(task: Task) -> Comparison:
    r"""For $\Sigma = I$, $X_j = -\frac{E_{d+1,j}}{(n-1)/n + (d+2)/n}$ is a global minimum of $f_j(X) =
    \mathbb{E}\bigl[(\langle C, X \rangle + w[j])^2\bigr]$

    f_j is convex, since its quadratic part is E<C, X>^2, so a zero of its gradient is a global minimum. The proof
    prints y^T instead of y^2 in the corner of C.
    """
    n = task.context_length
    return single_layer.stationary(task, -single_layer.unit(task.dimension) / ((1 - 1 / n) + (task.dimension + 2) / n))


@ON_PROBLEMS.claim("eq-17", "(16), (17)")
@eqx.filter_jit
def eq_17(task: Task) -> Comparison:
    r"""For $\Sigma = I$, $\mathbb{E}[w[j] C] = E_{d+1,j} + E_{j,d+1}$"""
    return single_layer.linear_term(task, jnp.ones(task.dimension))


def _inner_products(task: Task, factor: float) -> Comparison:
    """<C, E_{d+1,j}> against ``factor`` times sum_i <w, x_i> x_i[j], on drawn prompts, for each j.

    Each side rounds at most 2 n times.
    """
    prompts = prompts_of(task)
    tokens = jax.vmap(lambda prompt: embed(prompt)[:, :-1])(prompts)
    C = tokens @ jnp.swapaxes(tokens, 1, 2) / tokens.shape[-1]
    products = prompts.labels[:, :, None] * prompts.inputs
    sizes = factor * jnp.sum(jnp.abs(products), axis=1)
    sides = C[:, -1, :-1].reshape(-1), factor * jnp.sum(products, axis=1).reshape(-1)
    return rounded(equal(*sides, sizes.reshape(-1)), jnp.asarray(float(task.context_length)))


@ON_FINITE.claim("lemma-6.inner-product", "proof of Lemma 6")
def inner_product_as_printed(loss: Loss) -> Comparison:
    r"""$\langle C, E_{d+1,j} \rangle = \sum_i \langle w, x_i \rangle x_i[j]$

    The factor 1/n of C is missing here and in the next displays; (19) has it again.
    """
    return nothing_drawn() if not can_be_drawn(loss.task) else _inner_products(loss.task, 1.0)


@ON_FINITE.corrected(inner_product_as_printed)
def inner_product(loss: Loss) -> Comparison:
    r"""$\langle C, E_{d+1,j} \rangle = \tfrac{1}{n} \sum_i \langle w, x_i \rangle x_i[j]$

    With the factor 1/n of C.
    """
    n = float(loss.task.context_length)
    return nothing_drawn() if jnp.isinf(n) else _inner_products(loss.task, 1 / n)


@ON_PROBLEMS.claim("eq-18", "(18) and the display before it")
@eqx.filter_jit
def eq_18(task: Task) -> Comparison:
    r"""For $\Sigma = I$, $\mathbb{E}\bigl[\langle w, x_i \rangle x_i[j] \langle w, x_{i'} \rangle x_{i'}[j']\bigr]$ is
    $0$ for $j \ne j'$; for $j = j'$ it is $1$ where $i \ne i'$ and $d + 2$ where $i = i'$

    Judged as E[<C, E_{d+1,j}> C] at n = 1, where i = i', and at n = inf, where only pairs i != i' remain.
    """
    d, units = task.dimension, single_layer.unit(task.dimension)

    def moments(n):
        return jax.vmap(lambda X: token_covariance_times_form(X, task.covariance, jnp.asarray(n)))(units)[:, d, :d]

    sides = jnp.stack([moments(jnp.inf), moments(1.0)]), jnp.stack([jnp.eye(d), (d + 2.0) * jnp.eye(d)])
    return equal(sides[0].reshape(-1), sides[1].reshape(-1), d + 2.0)


@ON_PROBLEMS.claim("eq-19", "(19)")
@eqx.filter_jit
def eq_19(task: Task) -> Comparison:
    r"""For $\Sigma = I$, $\mathbb{E}[\langle C, E_{d+1,j} \rangle C] = \bigl(\frac{n-1}{n} + \frac{d+2}{n}\bigr)
    (E_{d+1,j} + E_{j,d+1})$
    """
    n = task.context_length
    return single_layer.quadratic_term(task, jnp.full(task.dimension, (1 - 1 / n) + (task.dimension + 2) / n))


@ON_FEW.claim("lemma-6.unique", "appendix A.2, step 3")
@eqx.filter_jit
def unique_component_minimum(task: Task) -> Comparison:
    """$X_j$ is the unique global minimum of $f_j$

    Only the symmetric part of X enters f_j, as C is symmetric: any antisymmetric matrix may be added to X_j. Theorem 1
    needs no uniqueness.
    """
    return single_layer.no_flat_directions(task)


@ON_FEW.corrected(unique_component_minimum, hypotheses=(isotropic, finite_context))
@eqx.filter_jit
def unique_symmetric_component_minimum(task: Task) -> Comparison:
    """At finite $n$ the global minima of $f_j$ are $X_j$ plus any antisymmetric matrix

    C is symmetric, so f_j depends only on the symmetric part of X, which is unique. At n = inf, where C depends on w
    alone, even that is not.
    """
    return single_layer.antisymmetric_flat_directions(task)


PROBLEMS_A_3 = (EASY, DIAGONAL, DIAGONAL_LARGE, ISOTROPIC_INFINITE)

SECTION_A_3 = SINGLE_LAYER(hypotheses=diagonal)
ON_PROBLEMS_A_3 = SECTION_A_3.on(PROBLEMS_A_3, spaces.MASKED_DIAGONAL)
ON_FEW_A_3 = SECTION_A_3.on((EASY, DIAGONAL), spaces.MASKED_DIAGONAL)


@ON_PROBLEMS_A_3.claim("lemma-7", "Lemma 7")
@eqx.filter_jit
def lemma_7(task: Task) -> Comparison:
    r"""For $\Sigma = \operatorname{diag}(\lambda)$, $X_j = -\frac{E_{d+1,j}}{\tfrac{n+1}{n} \lambda_j + \tfrac{1}{n}
    \sum_k \lambda_k}$ is a global minimum of $f_j(X) = \mathbb{E}\bigl[(\langle C, X \rangle + w[j])^2\bigr]$

    The paper attributes its consequences to Lemma 6. The display of A at the end of step 1 lacks a denominator, in the
    paper or in its extracted text; (8) is meant.
    """
    lam, n = jnp.diagonal(task.covariance), task.context_length
    denominators = (1 + 1 / n) * lam + jnp.sum(lam) / n
    return single_layer.stationary(task, -single_layer.unit(task.dimension) / denominators[:, None, None])


@ON_PROBLEMS_A_3.claim("eq-20", "(20)")
@eqx.filter_jit
def eq_20(task: Task) -> Comparison:
    r"""For $\Sigma = \operatorname{diag}(\lambda)$, $\mathbb{E}[w[j] C] = \lambda_j (E_{d+1,j} + E_{j,d+1})$"""
    return single_layer.linear_term(task, jnp.diagonal(task.covariance))


@ON_PROBLEMS_A_3.claim("eq-21", "(21)")
@eqx.filter_jit
def eq_21(task: Task) -> Comparison:
    r"""For $\Sigma = \operatorname{diag}(\lambda)$, $\mathbb{E}[\langle C, E_{d+1,j} \rangle C] = \bigl(\tfrac{n+1}{n}
    \lambda_j^2 + \tfrac{1}{n} \lambda_j \sum_k \lambda_k\bigr) (E_{d+1,j} + E_{j,d+1})$
    """
    lam, n = jnp.diagonal(task.covariance), task.context_length
    return single_layer.quadratic_term(task, (1 + 1 / n) * lam**2 + lam * jnp.sum(lam) / n)


_SYMMETRIC_PART = "C is symmetric, so f_j depends only on the symmetric part of X, which is unique."
_unique = ON_FEW_A_3.claim(
    "lemma-7.unique",
    "appendix A.3, step 1",
    note="As for lemma-6.unique: any antisymmetric matrix may be added to X_j.",
)(unique_component_minimum)
ON_FEW_A_3.corrected(_unique, hypotheses=(diagonal, finite_context), note=_SYMMETRIC_PART)(
    unique_symmetric_component_minimum
)


@ON_PROBLEMS_A_3.claim("lemma-7.sum", "appendix A.3, step 1")
@eqx.filter_jit
def sum_of_general_components(task: Task) -> Comparison:
    r"""For $\Sigma = \operatorname{diag}(\lambda)$, $f(b, A) = \sum_j f_j(b, A_j)$

    The display is that of the isotropic case. The weights E[x_query[j]^2] = lambda_j are missing, as the first display
    of step 2 shows; the minimum is at the same place with any positive weights.
    """
    return single_layer.sum_of_components(task, jnp.ones(task.dimension))


@ON_PROBLEMS_A_3.corrected(sum_of_general_components, "appendix A.3, step 1, with the first display of step 2")
@eqx.filter_jit
def weighted_sum_of_components(task: Task) -> Comparison:
    r"""For $\Sigma = \operatorname{diag}(\lambda)$, $f(b, A) = \sum_j \lambda_j f_j(b, A_j)$

    With the weights lambda_j, which are all 1 only for Sigma = I.
    """
    return single_layer.sum_of_components(task, jnp.diagonal(task.covariance))


@SECTION_A_3.on(EVERY, spaces.MASKED).claim("sec-a.3.rotation", "appendix A.3, step 2", hypotheses=())
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
