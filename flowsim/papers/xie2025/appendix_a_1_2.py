"""xie2025, appendices A.1 and A.2: the proofs of Theorems 1 and 2, (17) to (25), by the moments of G."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from flowsim.claims.claim import Comparison
from flowsim.claims.declaring import Section
from flowsim.claims.statements import joined
from flowsim.losses import MultiHeadLoss
from flowsim.losses.one_layer.head_risk import HeadRisk
from flowsim.models import FactoredMultiHeadAttention, MultiHeadAttention
from flowsim.papers.xie2025 import exact, moments, problems, prompts, spaces
from flowsim.papers.xie2025.conditions import (
    MODELS,
    drawable,
    few_coordinates,
    heads_on_isotropic,
    independent_guess,
    infinite_context,
)
from flowsim.papers.xie2025.moments import (
    SHARED_WEIGHTS,
    Square,
    derivative,
    drawn,
    outer_square,
    same_entries,
    same_moment,
    same_second_moments,
    same_slopes,
    second_moment,
    weighted_moments,
)
from flowsim.papers.xie2025.prompts import alike
from flowsim.papers.xie2025.setting import counted, drawn_heads, risks, same
from flowsim.tasks import LinearRegression

SECTION_A_1 = Section(
    "xie2025", *MODELS, setting=heads_on_isotropic, needs=drawable, problems=problems.FINITE, spaces=spaces.FINITE
)


@SECTION_A_1.claim("theorem-1.classes", "Theorem 1, appendix A.1")
def same_class(loss: MultiHeadLoss) -> Comparison:
    """$d + 1$ heads with $b_h = e_h$ and $a_i^h = M_i[h]$ predict as the $d + 2$ heads do that make the $M_i$"""
    d = loss.task.dimension
    more = drawn_heads(d, d + 2, 11)
    M = jnp.einsum("hm,hni->imn", more.b, more.A)
    fewer = MultiHeadAttention(jnp.eye(d + 1), jnp.einsum("imn->mni", M), more.w, more.bias)
    return alike(loss.task, fewer, more)


Task = LinearRegression


_GUESSES = (problems.BIASED, problems.LINEAR, problems.EASY, problems.PAPER_GUESS)
_ZERO = 1e-10


SECTION_A_2 = Section(
    "xie2025", *MODELS, setting=heads_on_isotropic, hypotheses=infinite_context, needs=few_coordinates
)
ON_GUESSES = SECTION_A_2.on(_GUESSES, spaces.GUESSES, hypotheses=())
ON_TASKS = SECTION_A_2.on(problems.TASKS, spaces.TASKS, hypotheses=())
ON_LIMITS = SECTION_A_2.on(problems.LIMITS, spaces.LIMITS)


@SECTION_A_2.claim(
    "eq-17",
    "(17)",
    hypotheses=(),
    needs=prompts.few_prompts,
    problems=(problems.EASY, problems.SHORT, problems.ONE),
    spaces=spaces.FEW,
)
def literal_risk(loss: MultiHeadLoss) -> Comparison:
    r"""the risk of (6) is $\mathbb{E}\bigl((1 + \langle G, M_{d+1} \rangle) y_q + \sum_i (\langle G, M_i \rangle - \hat
    w_i) x_q[i]\bigr)^2$, $M_i = \sum_h b_h (a_i^h)^\top$

    The closed form and exact moments are judged against an exact mean over the prompts of the literal model.
    """
    task, rows = loss.task, loss.task.dimension + 1
    rng = np.random.default_rng([3, rows])
    W_K, W_Q, W_V, W_P = rng.standard_normal((4, 2, rows, rows)) / 2
    model = FactoredMultiHeadAttention(W_K, W_Q, W_V, W_P, rng.standard_normal(rows - 1), 0.7)
    literal = prompts.mean_squared_error(task, model)
    return same(task, risks(task, model), literal, literal)


@ON_GUESSES.claim("eq-18", "(18)")
def separated(loss: MultiHeadLoss, start: PyTree) -> Comparison:
    r"""$R = \sum_{i \le d} \mathbb{E}(\langle G, M_i \rangle - \hat w_i)^2 + \mathbb{E}(1 + \langle G, M_{d+1}
    \rangle)^2 y_q^2$

    The cross terms of y_q with x_q vanish only if y_q is independent of x_q. For y_q = w^T x_q, the guess of section
    5.1.3 and of y_q-LSA, they do not.
    """
    return _separated(loss, start)


def _separated(loss: MultiHeadLoss, start: PyTree) -> Comparison:
    """The sum of both parts against the whole risk, at drawn heads with the guess of the start."""
    model, task = start.reduced(), loss.task
    pairs = []
    for seed in (1, 2):
        heads = drawn_heads(task.dimension, model.b.shape[0], seed)
        moved = MultiHeadAttention(heads.b, heads.A, model.w, model.bias, trainable=model.trainable)
        whole = risks(task, moved)
        pairs.append(same(task, jnp.sum(loss.risk.separated(moved)), whole, whole[0]))
    return joined(pairs)


@ON_GUESSES.corrected(separated, hypotheses=independent_guess)
def separated_with_independent_guess(loss: MultiHeadLoss, start: PyTree) -> Comparison:
    r"""$R = \sum_{i \le d} \mathbb{E}(\langle G, M_i \rangle - \hat w_i)^2 + \mathbb{E}(1 + \langle G, M_{d+1}
    \rangle)^2 y_q^2$, given $y_q$ independent of $x_q$

    The printed statement has no condition on y_q. It fails for a guess that is linear in x_q.
    """
    return _separated(loss, start)


@ON_TASKS.claim("eq-19", "(19)")
def eq_19(loss: MultiHeadLoss) -> Comparison:
    r"""$\nabla L_i = 2 \mathbb{E}[\langle G, M_i \rangle G] - 2 \mathbb{E}[\hat w_i G]$, $i \le d$"""
    return same_slopes(loss.task, lambda risk, N: 2 * (second_moment(risk, N)[None] - weighted_moments(risk)))


@ON_TASKS.claim("eq-20", "(20)")
def eq_20(loss: MultiHeadLoss) -> Comparison:
    r"""$\nabla L_{d+1} = 2 y_q^2 \mathbb{E}\bigl[(1 + \langle G, M_{d+1} \rangle) G\bigr]$

    Here y_q is a number. If it is random but independent of x_q, its mean square replaces y_q^2.
    """
    task, y_q = loss.task, 1.7
    known, N, d = exact.moments(task).rounded, jnp.asarray(drawn(task.dimension)), task.dimension
    mean = jax.grad(lambda N: loss.risk.mean(loss.risk.form(N)))(jnp.zeros((d + 1, d + 1)))
    stated = lambda N: 2 * y_q**2 * (second_moment(loss.risk, N) + mean)
    part = lambda N: y_q**2 * ((known.paired(N) * N).sum() + 2 * (N * known.first).sum() + 1)
    return same_entries(task, jax.vmap(stated)(N), jax.vmap(jax.grad(part))(N))


@ON_TASKS.claim("eq-21", "(21)")
def eq_21(loss: MultiHeadLoss) -> Comparison:
    r"""$\mathbb{E}[\hat w_i G] = \begin{bmatrix} w_{\star,i} I & w_{\star,i} w_\star + e_i \\ (w_{\star,i} w_\star +
    e_i)^\top & w_{\star,i} (\lVert w_\star \rVert^2 + d + 2) \end{bmatrix}$
    """
    w = loss.risk.prior_mean
    d, units = w.size, jnp.eye(w.size)
    outer = w[:, None] * w[None] + units
    printed = jnp.zeros((d, d + 1, d + 1)).at[:, :d, :d].set(w[:, None, None] * units[None])
    printed = printed.at[:, :d, d].set(outer).at[:, d, :d].set(outer).at[:, d, d].set(w * (w @ w + d + 2))
    return same_entries(loss.task, printed, exact.floats(exact.moments(loss.task).mixed))


@ON_TASKS.claim("eq-22", "(22)")
def eq_22(loss: MultiHeadLoss) -> Comparison:
    r"""$M = \mathbb{E}[z z^\top] = \begin{bmatrix} I & w_\star \\ w_\star^\top & \lVert w_\star \rVert^2 + d
    \end{bmatrix}$
    """
    return same_entries(
        loss.task, moments.mean_tokens(loss.risk.prior_mean), exact.floats(exact.moments(loss.task).first)
    )


@ON_LIMITS.claim("eq-23", "(23)", note=SHARED_WEIGHTS)
def eq_23(loss: MultiHeadLoss) -> Comparison:
    r"""$\mathbb{E}[G_{mn} G_{pq}] = M_{mn} M_{pq}$ as $C \to \infty$"""
    return same_second_moments(loss, outer_square(moments.mean_tokens(loss.risk.prior_mean)))


@ON_LIMITS.corrected(eq_23)
def eq_23_shared(loss: MultiHeadLoss) -> Comparison:
    r"""$\mathbb{E}[G_{mn} G_{pq}] = \mathbb{E}_w\bigl[(M_w)_{mn} (M_w)_{pq}\bigr]$ as $C \to \infty$, $M_w =
    \begin{bmatrix} I & w \\ w^\top & \lVert w \rVert^2 \end{bmatrix}$

    G tends to M_w with w-hat still random: the mean of the product is not the product of the means.
    """
    return same_second_moments(loss, prompts.moments(loss.risk.prior_mean, 0.0).second)


def product_of_means(risk: HeadRisk, N: Square) -> Square:
    """The right side of (24) as printed, <M, N> M."""
    M = moments.mean_tokens(risk.prior_mean)
    return jnp.sum(M * N) * M


@ON_LIMITS.claim("eq-24", "(24)", note=SHARED_WEIGHTS)
def eq_24(loss: MultiHeadLoss) -> Comparison:
    r"""$\mathbb{E}[\langle G, M_i \rangle G] = \langle M, M_i \rangle M$ as $C \to \infty$, with $M = \mathbb{E} G$"""
    return same_moment(loss.task, product_of_means)


def product_with_spread(risk: HeadRisk, N: Square) -> Square:
    """The right side of the corrected (24), <M, N> M + 2 S [0 p; p^T d pi] S^T. S is [I 0; w*^T 1], and p and pi are
    the last column of S^T N S.
    """
    d = risk.task.dimension
    S = jnp.eye(d + 1).at[d, :d].set(risk.prior_mean)
    lifted = S.T @ N @ S
    p, pi = lifted[:d, d], lifted[d, d]
    spread = jnp.zeros((d + 1, d + 1)).at[:d, d].set(p).at[d, :d].set(p).at[d, d].set(d * pi)
    return product_of_means(risk, N) + 2 * S @ spread @ S.T


@ON_LIMITS.corrected(eq_24)
def eq_24_shared(loss: MultiHeadLoss) -> Comparison:
    r"""$\mathbb{E}[\langle G, N \rangle G] = \langle M, N \rangle M + 2 S \begin{bmatrix} 0 & p \\ p^\top & d \pi
    \end{bmatrix} S^\top$ as $C \to \infty$, for $N = S^{-\top} \begin{bmatrix} P & p \\ p^\top & \pi \end{bmatrix}
    S^{-1}$ and $S = \begin{bmatrix} I & 0 \\ w_\star^\top & 1 \end{bmatrix}$

    The printed product of means lacks the covariance of G over w-hat, which remains as C -> infinity.
    """
    return same_moment(loss.task, product_with_spread)


@ON_LIMITS.claim("eq-25", "(25)", note=SHARED_WEIGHTS)
def eq_25(loss: MultiHeadLoss) -> Comparison:
    r"""$\nabla L_i = (2 \langle M, M_i \rangle - 2 w_{\star,i}) M - 2 N_i$ as $C \to \infty$"""
    return same_slopes(loss.task, lambda risk, N: derivative(risk, N, product_of_means))


@ON_LIMITS.corrected(eq_25)
def eq_25_shared(loss: MultiHeadLoss) -> Comparison:
    r"""$\nabla L_i = (2 \langle M, M_i \rangle - 2 w_{\star,i}) M - 2 N_i + 4 S \begin{bmatrix} 0 & p \\ p^\top & d \pi
    \end{bmatrix} S^\top$ as $C \to \infty$, for $M_i = S^{-\top} \begin{bmatrix} P & p \\ p^\top & \pi \end{bmatrix}
    S^{-1}$ and $S = \begin{bmatrix} I & 0 \\ w_\star^\top & 1 \end{bmatrix}$

    With the corrected (24) instead of the printed one.
    """
    return same_slopes(loss.task, lambda risk, N: derivative(risk, N, product_with_spread))


def _slopes_at_labels(task: Task) -> Float[Array, "routes d"]:
    """The size of grad L_i at M_i = e_{d+1} e_i^T for each i, by both routes, relative to that of its first term."""
    known, risk, d = exact.moments(task).rounded, HeadRisk(task), task.dimension
    index = jnp.arange(d)
    N = jnp.zeros((d, d + 1, d + 1)).at[index, d, index].set(1.0)
    closed = 2 * (jax.vmap(lambda N: second_moment(risk, N))(N) - weighted_moments(risk))
    exactly = jax.vmap(jax.grad(known.component))(N, index)
    sizes = jnp.max(jnp.abs(jnp.stack([exactly, closed])), axis=(2, 3))
    return sizes / jnp.max(jnp.abs(2 * known.paired(N)), axis=(1, 2))[None]


@ON_LIMITS.claim("eq-25.nonzero", "(25), appendix A.2")
def no_zero_slope(loss: MultiHeadLoss) -> Comparison:
    r"""$\nabla L_i \ne 0$ at every $M_i$ as $C \to \infty$, as $M$ has full rank and $N_i$ a rank of at most $2$

    It rests on (24), which multiplies means over w-hat. Moreover, at d = 1 both ranks are 2.
    """
    return counted(jnp.all(_slopes_at_labels(loss.task) < _ZERO, axis=0))


@ON_LIMITS.corrected(no_zero_slope)
def zero_slope(loss: MultiHeadLoss) -> Comparison:
    r"""$\nabla L_i = 0$ at $M_i = e_{d+1} e_i^\top$ as $C \to \infty$

    The opposite of the printed statement: there <G, M_i> = w-hat_i, so that L_i = 0.
    """
    return same(loss.task, _slopes_at_labels(loss.task).reshape(-1), 0.0, 1.0)
