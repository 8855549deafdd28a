"""ahn2023's appendix A: the proof of Theorem 1, one component f_j at a time, for isotropic data and any covariance.

Let C be the mean of z z^T over the tokens z = (x, y) of the context. The components are f_j(X) = E[(<C, X> +
w[j])^2] for (d+1, d+1) matrices X. E_{d+1,j} is the matrix with a one at (d+1, j) and zeros elsewhere.

`in_context_loss` follows the appendix, with quadratic forms in X_j = b a_j^T, where a_j is column j of A.
`MaskedAttentionLoss` computes the same loss in another way: it splits the error into parts odd and even in w.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim._core.types import Scalar, Vector
from flowsim.claims.claim import Comparison, at_most, equal
from flowsim.claims.hypotheses import finite_context
from flowsim.claims.statements import rounded
from flowsim.losses import MaskedAttentionLoss
from flowsim.models import MaskedAttention
from flowsim.models.linear_attention import embed
from flowsim.moments import token_covariance_times_form
from flowsim.papers.ahn2023 import problems, spaces
from flowsim.papers.ahn2023.settings import SINGLE_LAYER, diagonal, isotropic
from flowsim.tasks import LinearRegression, Prompt

Square = Float[Array, "rows rows"]
Task = LinearRegression
Loss = MaskedAttentionLoss

_DRAWN = 8
_PROMPTS = 16


def weight_times_token_covariance(task: Task, s: Vector) -> Square:
    """E[<w, s> C] for w ~ N(0, I), a (d+1, d+1) matrix.

    By Stein's lemma it is the mean over w of the derivative of E[C | w] along s. This derivative is affine in w, so
    its mean is its value at w = 0.
    """

    def given(w):
        tokens = jnp.concatenate([jnp.eye(task.dimension), w[None, :]])
        return tokens @ task.covariance @ tokens.T

    return jax.jvp(given, (jnp.zeros_like(s),), (s,))[1]


def form_times_token_covariance(task: Task, X: Square) -> Square:
    """E[<C, X> C], a (d+1, d+1) matrix."""
    return token_covariance_times_form(X, task.covariance, task.context_length)


def component(task: Task, X: Square, s: Vector) -> Scalar:
    """E(<C, X> + <w, s>)^2. At s = e_j it is f_j(X) of Lemmas 6 and 7."""
    linear = weight_times_token_covariance(task, s)
    return jnp.sum(X * (form_times_token_covariance(task, X) + 2 * linear)) + s @ s


def in_context_loss(task: Task, model: MaskedAttention) -> Scalar:
    """The loss f(b, A) of (15).

    It is the sum of `component` at X = b (A s)^T over the columns s of the Cholesky factor of Sigma.
    """
    columns = jnp.linalg.cholesky(task.covariance).T
    return jnp.sum(jax.vmap(lambda s: component(task, jnp.outer(model.b, model.A @ s), s))(columns))


def _drawn(d: int) -> MaskedAttention:
    """8 models with independent standard normal weights."""
    entries = jnp.asarray(np.random.default_rng(0).standard_normal((_DRAWN, d + 1, d + 1)))
    return jax.vmap(lambda one: MaskedAttention(one[0], one[:, 1:]))(entries)


def on_drawn(task: Task, left: Callable, right: Callable) -> Comparison:
    """The statement left(model) = right(model) at 8 random models, relative to right(model) > 0."""
    models = _drawn(task.dimension)
    sides = jax.vmap(left)(models), jax.vmap(right)(models)
    return of_sums(task, equal(*sides, sides[1]))


def of_sums(task: Task, comparison: Comparison) -> Comparison:
    """The comparison, with an allowance for the rounding errors of sums of (d + 1)^2 terms."""
    return rounded(comparison, jnp.asarray((task.dimension + 1.0) ** 2))


def prompts_of(task: Task) -> Prompt:
    """16 random prompts of the task, stacked."""
    return jax.vmap(lambda key: task.sample(key)[0])(jax.random.split(jax.random.key(1), _PROMPTS))


_SURELY_ZERO, _POSSIBLY_ZERO = 1e-13, 1e-10  # relative to the largest eigenvalue


def unit(d: int) -> Float[Array, "d rows rows"]:
    """The matrices E_{d+1,j}, stacked over j."""
    return jnp.zeros((d, d + 1, d + 1)).at[jnp.arange(d), d, jnp.arange(d)].set(1.0)


def _pair(d: int) -> Float[Array, "d rows rows"]:
    """The matrices E_{d+1,j} + E_{j,d+1}, stacked over j."""
    one = unit(d)
    return one + jnp.swapaxes(one, 1, 2)


def _matrices_agree(task: Task, left: Array, right: Array) -> Comparison:
    norms = lambda matrices: jnp.sqrt(jnp.sum(matrices**2, axis=(1, 2)))
    return of_sums(task, equal(norms(left - right), 0.0, norms(right)))


def _linear(task: Task) -> Float[Array, "d rows rows"]:
    """The matrices E[w_j C], stacked over j."""
    return jax.vmap(lambda s: weight_times_token_covariance(task, s))(jnp.eye(task.dimension))


def _quadratic(task: Task, X: Float[Array, "d rows rows"]) -> Float[Array, "d rows rows"]:
    """The matrices E[<C, X_j> C] with X_j = X[j], stacked over j."""
    return jax.vmap(lambda matrix: form_times_token_covariance(task, matrix))(X)


def stationary(task: Task, X: Float[Array, "d rows rows"]) -> Comparison:
    """The statement that the gradient of each f_j vanishes at X_j = X[j].

    The gradient is 2 E[<C, X_j> C] + 2 E[w_j C]. It is judged relative to its second term.
    """
    return _matrices_agree(task, -_quadratic(task, X), _linear(task))


def in_pairs(task: Task, matrices: Float[Array, "d rows rows"], factors: Vector) -> Comparison:
    """The statement that ``matrices[j]`` is factors_j (E_{d+1,j} + E_{j,d+1}), for each j."""
    return _matrices_agree(task, matrices, factors[:, None, None] * _pair(task.dimension))


def components_summed(task: Task, factors: Vector) -> Comparison:
    """The statement f(b, A) = sum_j factors_j f_j(b a_j^T) at 8 random models. a_j is column j of A."""
    terms = lambda model: jax.vmap(lambda s: component(task, jnp.outer(model.b, model.A @ s), s))(jnp.eye(factors.size))
    return on_drawn(task, lambda model: factors @ terms(model), MaskedAttentionLoss(task))


def _flat_directions(task: Task) -> tuple[Scalar, Scalar]:
    """Counts the zero eigenvalues of the quadratic form X -> E <C, X>^2.

    **Returns:** the number of eigenvalues that are zero, and the number of other eigenvalues that are so small that
    rounding leaves them undecided.
    """
    rows = task.dimension + 1
    basis = jnp.eye(rows**2).reshape(-1, rows, rows)
    form = jax.vmap(lambda X: form_times_token_covariance(task, X).reshape(-1))(basis)
    values = jnp.linalg.eigvalsh(form)
    surely, possibly = (jnp.sum(values <= ratio * values[-1]) for ratio in (_SURELY_ZERO, _POSSIBLY_ZERO))
    return surely.astype(float), (possibly - surely).astype(float)


PROBLEMS = (problems.ISOTROPIC, problems.ISOTROPIC_SHORT, problems.ISOTROPIC_LARGE, problems.ISOTROPIC_INFINITE)

SECTION = SINGLE_LAYER(hypotheses=isotropic)
ON_PROBLEMS = SECTION.on(PROBLEMS, spaces.MASKED_ISOTROPIC)
ON_FINITE = SECTION.on(PROBLEMS[:3], spaces.MASKED_ISOTROPIC, hypotheses=(), needs=finite_context)
ON_FEW = SECTION.on(PROBLEMS[:2], spaces.MASKED_ISOTROPIC)


@ON_PROBLEMS.claim("lemma-6.sum", "appendix A.2, step 1")
@eqx.filter_jit
def sum_of_components(task: Task) -> Comparison:
    r"""For $\Sigma = I$, $f(b, A) = \sum_j f_j(b, A)$"""
    return components_summed(task, jnp.ones(task.dimension))


@ON_PROBLEMS.claim("lemma-6", "Lemma 6")
@eqx.filter_jit
def lemma_6(task: Task) -> Comparison:
    r"""For $\Sigma = I$, $X_j = -\frac{E_{d+1,j}}{(n-1)/n + (d+2)/n}$ is a global minimum of $f_j(X) =
    \mathbb{E}\bigl[(\langle C, X \rangle + w[j])^2\bigr]$

    The quadratic part of f_j is E<C, X>^2, so f_j is convex, and a zero of its gradient is a global minimum. In the
    corner of C the proof prints y^T instead of y^2.
    """
    n = task.context_length
    return stationary(task, -unit(task.dimension) / ((1 - 1 / n) + (task.dimension + 2) / n))


@ON_PROBLEMS.claim("eq-17", "(16), (17)")
@eqx.filter_jit
def eq_17(task: Task) -> Comparison:
    r"""For $\Sigma = I$, $\mathbb{E}[w[j] C] = E_{d+1,j} + E_{j,d+1}$"""
    return in_pairs(task, _linear(task), jnp.ones(task.dimension))


def _inner_products(task: Task, factor: float) -> Comparison:
    """The statement <C, E_{d+1,j}> = ``factor`` sum_i <w, x_i> x_i[j] for each j, on 16 random prompts.

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
def inner_product_as_printed(task: Task) -> Comparison:
    r"""$\langle C, E_{d+1,j} \rangle = \sum_i \langle w, x_i \rangle x_i[j]$

    This display and the next ones lack the factor 1/n of C; (19) has it.
    """
    return _inner_products(task, 1.0)


@ON_FINITE.corrected(inner_product_as_printed)
def inner_product(task: Task) -> Comparison:
    r"""$\langle C, E_{d+1,j} \rangle = \tfrac{1}{n} \sum_i \langle w, x_i \rangle x_i[j]$

    The factor 1/n is that of C.
    """
    return _inner_products(task, 1 / float(task.context_length))


@ON_PROBLEMS.claim("eq-18", "(18) and the display before it")
@eqx.filter_jit
def eq_18(task: Task) -> Comparison:
    r"""For $\Sigma = I$, $\mathbb{E}\bigl[\langle w, x_i \rangle x_i[j] \langle w, x_{i'} \rangle x_{i'}[j']\bigr]$ is
    $0$ for $j \ne j'$; for $j = j'$ it is $1$ where $i \ne i'$ and $d + 2$ where $i = i'$

    Judged as E[<C, E_{d+1,j}> C] at n = 1, where i = i', and at n = inf, where only pairs with i != i' remain.
    """
    d, units = task.dimension, unit(task.dimension)

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
    d, n = task.dimension, task.context_length
    return in_pairs(task, _quadratic(task, unit(d)), jnp.full(d, (1 - 1 / n) + (d + 2) / n))


@ON_FEW.claim("lemma-6.unique", "appendix A.2, step 3")
@eqx.filter_jit
def unique_component_minimum(task: Task) -> Comparison:
    """$X_j$ is the unique global minimum of $f_j$

    C is symmetric, so only the symmetric part of X enters f_j. Any antisymmetric matrix may be added to X_j. Theorem 1
    needs no uniqueness.
    """
    flat, unsure = _flat_directions(task)
    # A whole number below 1/2 is 0; this bound leaves room on both sides.
    return at_most(flat[None], 0.5, size=1.0, promised=unsure == 0)


@ON_FEW.corrected(unique_component_minimum, hypotheses=(isotropic, finite_context))
@eqx.filter_jit
def unique_symmetric_component_minimum(task: Task) -> Comparison:
    """At finite $n$ the global minima of $f_j$ are $X_j$ plus any antisymmetric matrix

    C is symmetric, so f_j depends only on the symmetric part of X. At finite n this part is unique. At n = inf it is
    not, because C then depends on w alone.
    """
    flat, unsure = _flat_directions(task)
    antisymmetric = task.dimension * (task.dimension + 1) / 2
    return equal(flat[None], antisymmetric, antisymmetric, allowance=unsure)


PROBLEMS_A_3 = (problems.EASY, problems.DIAGONAL, problems.DIAGONAL_LARGE, problems.ISOTROPIC_INFINITE)

ON_DIAGONAL = SECTION.on(PROBLEMS_A_3, spaces.MASKED_DIAGONAL, hypotheses=diagonal)
ON_FEW_DIAGONAL = SECTION.on((problems.EASY, problems.DIAGONAL), spaces.MASKED_DIAGONAL, hypotheses=diagonal)


@ON_DIAGONAL.claim("lemma-7", "Lemma 7")
@eqx.filter_jit
def lemma_7(task: Task) -> Comparison:
    r"""For $\Sigma = \operatorname{diag}(\lambda)$, $X_j = -\frac{E_{d+1,j}}{\tfrac{n+1}{n} \lambda_j + \tfrac{1}{n}
    \sum_k \lambda_k}$ is a global minimum of $f_j(X) = \mathbb{E}\bigl[(\langle C, X \rangle + w[j])^2\bigr]$

    The paper attributes the consequences to Lemma 6. The display of A at the end of step 1 should be (8), but lacks a
    denominator, in the paper or in its extracted text.
    """
    lam, n = jnp.diagonal(task.covariance), task.context_length
    denominators = (1 + 1 / n) * lam + jnp.sum(lam) / n
    return stationary(task, -unit(task.dimension) / denominators[:, None, None])


@ON_DIAGONAL.claim("eq-20", "(20)")
@eqx.filter_jit
def eq_20(task: Task) -> Comparison:
    r"""For $\Sigma = \operatorname{diag}(\lambda)$, $\mathbb{E}[w[j] C] = \lambda_j (E_{d+1,j} + E_{j,d+1})$"""
    return in_pairs(task, _linear(task), jnp.diagonal(task.covariance))


@ON_DIAGONAL.claim("eq-21", "(21)")
@eqx.filter_jit
def eq_21(task: Task) -> Comparison:
    r"""For $\Sigma = \operatorname{diag}(\lambda)$, $\mathbb{E}[\langle C, E_{d+1,j} \rangle C] = \bigl(\tfrac{n+1}{n}
    \lambda_j^2 + \tfrac{1}{n} \lambda_j \sum_k \lambda_k\bigr) (E_{d+1,j} + E_{j,d+1})$
    """
    lam, n = jnp.diagonal(task.covariance), task.context_length
    return in_pairs(task, _quadratic(task, unit(lam.size)), (1 + 1 / n) * lam**2 + lam * jnp.sum(lam) / n)


_SYMMETRIC_PART = "C is symmetric, so f_j depends only on the symmetric part of X, which is unique."
_unique = ON_FEW_DIAGONAL.claim(
    "lemma-7.unique",
    "appendix A.3, step 1",
    note="As for lemma-6.unique: any antisymmetric matrix may be added to X_j.",
)(unique_component_minimum)
ON_FEW_DIAGONAL.corrected(_unique, hypotheses=(diagonal, finite_context), note=_SYMMETRIC_PART)(
    unique_symmetric_component_minimum
)


@ON_DIAGONAL.claim("lemma-7.sum", "appendix A.3, step 1")
@eqx.filter_jit
def sum_of_general_components(task: Task) -> Comparison:
    r"""For $\Sigma = \operatorname{diag}(\lambda)$, $f(b, A) = \sum_j f_j(b, A_j)$

    This is the display of the isotropic case. It lacks the weights E[x_query[j]^2] = lambda_j, as the first display of
    step 2 shows. Any positive weights give the same minimum point.
    """
    return components_summed(task, jnp.ones(task.dimension))


@ON_DIAGONAL.corrected(sum_of_general_components, "appendix A.3, step 1, with the first display of step 2")
@eqx.filter_jit
def weighted_sum_of_components(task: Task) -> Comparison:
    r"""For $\Sigma = \operatorname{diag}(\lambda)$, $f(b, A) = \sum_j \lambda_j f_j(b, A_j)$

    The weights lambda_j are all 1 only for Sigma = I.
    """
    return components_summed(task, jnp.diagonal(task.covariance))


@SECTION.on(problems.EVERY, spaces.MASKED).claim("sec-a.3.rotation", "appendix A.3, step 2", hypotheses=())
@eqx.filter_jit
def rotated(task: Task) -> Comparison:
    r"""With $\Sigma = U \Lambda U^\top$, $f(b, A)$ is the loss of covariance $\Lambda$ at $\begin{bmatrix} U^\top & 0
    \\ 0 & 1 \end{bmatrix} b$ and $\begin{bmatrix} U^\top & 0 \\ 0 & 1 \end{bmatrix} A U$

    Judged at random weights. The labels in the displays have x where they should have its rotation U^T x.
    """
    values, U = jnp.linalg.eigh(task.covariance)
    eigenbasis = LinearRegression(jnp.diag(values), task.context_length)
    turn = jnp.eye(task.dimension + 1).at[:-1, :-1].set(U.T)

    def turned(model):
        return in_context_loss(eigenbasis, MaskedAttention(turn @ model.b, turn @ model.A @ U))

    return on_drawn(task, turned, MaskedAttentionLoss(task))
