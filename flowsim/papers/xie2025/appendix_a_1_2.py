"""xie2025, appendices A.1 and A.2: the proofs of Theorems 1 and 2, (17) to (25), by the moments of G.

G = (1/C) sum z z^T is the mean over the tokens z = (x, y) of the context.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from flowsim.claims.claim import Comparison
from flowsim.claims.hypotheses import finite_context as drawable
from flowsim.claims.statements import joined
from flowsim.losses import MultiHeadLoss
from flowsim.losses.one_layer.head_risk import HeadRisk
from flowsim.models import FactoredMultiHeadAttention, MultiHeadAttention
from flowsim.papers.xie2025 import exact, problems, prompts, setting, spaces
from flowsim.papers.xie2025.prompts import alike
from flowsim.tasks import LinearRegression

Square = Float[Array, "rows rows"]
Moment = Callable[[HeadRisk, Square], Square]

_DRAWN = 8

# What the paper overlooks in appendices A.2 and A.3.
SHARED_WEIGHTS = (
    "All tokens of a prompt share one w-hat. Given w-hat, the moments of different tokens multiply, but their means "
    "over w-hat do not. The paper multiplies the means, which is wrong at every C > 1 and in the limit."
)


def mean_tokens(w: Float[Array, " d"]) -> Square:
    """The mean M = [I w*; w*^T |w*|^2 + d] of z z^T by (22). ``w`` is w*."""
    upper = jnp.concatenate([jnp.eye(w.size), w[:, None]], axis=1)
    return jnp.concatenate([upper, jnp.append(w, w @ w + w.size)[None]])


def shared(w: Float[Array, " d"]) -> Float[Array, "d rows rows"]:
    """The matrices N_i = [0 e_i; e_i^T 2 w*_i] of (25), stacked over i = 1, .., d. ``w`` is w*."""
    d = w.size
    units = jnp.eye(d)
    N = jnp.zeros((d, d + 1, d + 1)).at[:, :d, d].set(units).at[:, d, :d].set(units)
    return N.at[:, d, d].set(2 * w)


def outer_square(M: Square) -> Float[Array, "rows rows rows rows"]:
    """The products M_mn M_pq of the entries of a matrix."""
    return jnp.einsum("mn,pq->mnpq", M, M)


def second_moment(risk: HeadRisk, N: Square) -> Square:
    """E[<G, N> G], computed as half the derivative in N of E <G, N>^2 in closed form."""
    return jax.grad(lambda N: risk.pairing(risk.form(N), risk.form(N)))(N) / 2


def weighted_moments(risk: HeadRisk) -> Float[Array, "d rows rows"]:
    """E[w-hat_i G], stacked over i <= d.

    It is computed as the derivative in N of E w-hat_i <G, N> = w*_i E <G, N> + 2 p_i, where p_i is entry i of the
    last column of S^T N S, with S = [I 0; w*^T 1] and a symmetric N.
    """

    def paired(N: Square) -> Float[Array, " d"]:
        form = risk.form(N)
        return risk.prior_mean * risk.mean(form) + 2 * form.p

    d = risk.task.dimension
    return jax.jacobian(paired)(jnp.zeros((d + 1, d + 1)))


def derivative(risk: HeadRisk, N: Square, moment: Moment) -> Float[Array, "d rows rows"]:
    """The gradients of L_1, .., L_d at M_i = N, stacked: 2 (E[<G, N> G] - w*_i M - N_i).

    Here L_i(N) = E(<G, N> - w-hat_i)^2, M is that of (22), and the N_i are those of (25).

    **Arguments:** moment: the function that gives E[<G, N> G].
    """
    w = risk.prior_mean
    return 2 * (moment(risk, N)[None] - w[:, None, None] * mean_tokens(w)[None] - shared(w))


def drawn(d: int) -> Float[np.ndarray, "count rows rows"]:
    """8 random symmetric matrices with integer entries."""
    numbers = np.random.default_rng(0).integers(-3, 4, size=(_DRAWN, d + 1, d + 1))
    return (numbers + np.swapaxes(numbers, 1, 2)).astype(float)


def same_entries(task: LinearRegression, left: Array, right: Array) -> Comparison:
    """The statement left = right, entry by entry, relative to the largest entry."""
    return setting.same(task, left.reshape(-1), right.reshape(-1), jnp.max(jnp.abs(right)))


def same_moment(task: LinearRegression, stated: Moment) -> Comparison:
    """The statement that the formula ``stated`` for E[<G, N> G] equals the exact moment, at 8 random N."""
    N = drawn(task.dimension)
    left = jax.vmap(lambda N: stated(HeadRisk(task), N))(jnp.asarray(N))
    return same_entries(task, left, exact.floats(exact.moments(task).paired(exact.rationals(N))))


def same_second_moments(loss: MultiHeadLoss, stated: Float[Array, "rows rows rows rows"]) -> Comparison:
    """The statement that the values ``stated`` of E[G_mn G_pq] equal the exact moments."""
    return same_entries(loss.task, stated, exact.floats(exact.moments(loss.task).second))


def same_slopes(
    task: LinearRegression, stated: Callable[[HeadRisk, Square], Float[Array, "d rows rows"]]
) -> Comparison:
    """The statement that the formula ``stated`` for grad L_i, i <= d, is the exact gradient, at 8 random N.

    JAX computes the exact gradient by differentiation of L_i, which is evaluated from exact moments.
    """
    known, N, d = exact.moments(task).rounded, jnp.asarray(drawn(task.dimension)), task.dimension
    of_all = lambda N: jnp.stack([known.component(N, i) for i in range(d)])
    return same_entries(task, jax.vmap(lambda N: stated(HeadRisk(task), N))(N), jax.vmap(jax.jacobian(of_all))(N))


SECTION = setting.HEADS(hypotheses=setting.infinite_context, needs=setting.few_coordinates)


@SECTION.on(problems.FINITE, spaces.FINITE).claim(
    "theorem-1.classes", "Theorem 1, appendix A.1", hypotheses=(), needs=drawable
)
def same_class(loss: MultiHeadLoss) -> Comparison:
    """$d + 1$ heads with $b_h = e_h$ and $a_i^h = M_i[h]$ predict as the $d + 2$ heads do that make the $M_i$"""
    d = loss.task.dimension
    more = setting.drawn_heads(d, d + 2, 11)
    M = jnp.einsum("hm,hni->imn", more.b, more.A)
    fewer = MultiHeadAttention(jnp.eye(d + 1), jnp.einsum("imn->mni", M), more.w, more.bias)
    return alike(loss.task, fewer, more)


_ZERO = 1e-10

ON_GUESSES = SECTION.on(problems.GUESSES, spaces.GUESSES, hypotheses=())
ON_TASKS = SECTION.on(problems.TASKS, spaces.TASKS, hypotheses=())
ON_LIMITS = SECTION.on(problems.LIMITS, spaces.LIMITS)


@SECTION.on((problems.EASY, problems.SHORT, problems.ONE), spaces.FEW).claim(
    "eq-17", "(17)", hypotheses=(), needs=prompts.few_prompts
)
def literal_risk(loss: MultiHeadLoss) -> Comparison:
    r"""the risk of (6) is $\mathbb{E}\bigl((1 + \langle G, M_{d+1} \rangle) y_q + \sum_i (\langle G, M_i \rangle - \hat
    w_i) x_q[i]\bigr)^2$, $M_i = \sum_h b_h (a_i^h)^\top$

    The risks by the closed form and by exact moments are compared with the mean squared error of the literal model over
    prompts. This mean is exact.
    """
    task, rows = loss.task, loss.task.dimension + 1
    rng = np.random.default_rng([3, rows])
    W_K, W_Q, W_V, W_P = rng.standard_normal((4, 2, rows, rows)) / 2
    model = FactoredMultiHeadAttention(W_K, W_Q, W_V, W_P, rng.standard_normal(rows - 1), 0.7)
    literal = prompts.mean_squared_error(task, model)
    return setting.same(task, setting.risks(task, model), literal, literal)


@ON_GUESSES.claim("eq-18", "(18)")
def separated(loss: MultiHeadLoss, start: PyTree) -> Comparison:
    r"""$R = \sum_{i \le d} \mathbb{E}(\langle G, M_i \rangle - \hat w_i)^2 + \mathbb{E}(1 + \langle G, M_{d+1}
    \rangle)^2 y_q^2$

    The cross terms of y_q with x_q vanish if y_q is independent of x_q. They do not vanish for y_q = w^T x_q, the guess
    of section 5.1.3 and of y_q-LSA.
    """
    model, task = start.reduced(), loss.task
    pairs = []
    for seed in (1, 2):
        heads = setting.drawn_heads(task.dimension, model.b.shape[0], seed)
        moved = MultiHeadAttention(heads.b, heads.A, model.w, model.bias, trainable=model.trainable)
        whole = setting.risks(task, moved)
        pairs.append(setting.same(task, jnp.sum(loss.risk.separated(moved)), whole, whole[0]))
    return joined(pairs)


ON_GUESSES.corrected(
    separated,
    hypotheses=setting.independent_guess,
    statement=f"{separated.statement}, given $y_q$ independent of $x_q$",
    note="The printed statement has no condition on y_q. It fails for a guess that is linear in x_q.",
)(separated)


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
    return same_entries(loss.task, mean_tokens(loss.risk.prior_mean), exact.floats(exact.moments(loss.task).first))


@ON_LIMITS.claim("eq-23", "(23)", note=SHARED_WEIGHTS)
def eq_23(loss: MultiHeadLoss) -> Comparison:
    r"""$\mathbb{E}[G_{mn} G_{pq}] = M_{mn} M_{pq}$ as $C \to \infty$"""
    return same_second_moments(loss, outer_square(mean_tokens(loss.risk.prior_mean)))


@ON_LIMITS.corrected(eq_23)
def eq_23_shared(loss: MultiHeadLoss) -> Comparison:
    r"""$\mathbb{E}[G_{mn} G_{pq}] = \mathbb{E}_w\bigl[(M_w)_{mn} (M_w)_{pq}\bigr]$ as $C \to \infty$, $M_w =
    \begin{bmatrix} I & w \\ w^\top & \lVert w \rVert^2 \end{bmatrix}$

    G tends to M_w at w = w-hat, which is still random. So the mean of the product is not the product of the means.
    """
    return same_second_moments(loss, prompts.moments(loss.risk.prior_mean, 0.0).second)


def product_of_means(risk: HeadRisk, N: Square) -> Square:
    """The right side of (24) as printed, <M, N> M."""
    M = mean_tokens(risk.prior_mean)
    return jnp.sum(M * N) * M


@ON_LIMITS.claim("eq-24", "(24)", note=SHARED_WEIGHTS)
def eq_24(loss: MultiHeadLoss) -> Comparison:
    r"""$\mathbb{E}[\langle G, M_i \rangle G] = \langle M, M_i \rangle M$ as $C \to \infty$, with $M = \mathbb{E} G$"""
    return same_moment(loss.task, product_of_means)


def product_with_spread(risk: HeadRisk, N: Square) -> Square:
    """The right side of the corrected (24), <M, N> M + 2 S [0 p; p^T d pi] S^T.

    Here S = [I 0; w*^T 1], and (p, pi) is the last column of S^T N S.
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

    This follows from the corrected (24) instead of the printed one.
    """
    return same_slopes(loss.task, lambda risk, N: derivative(risk, N, product_with_spread))


def _slopes_at_labels(task: LinearRegression) -> Float[Array, "routes d"]:
    """The largest entry of each grad L_i at M_i = e_{d+1} e_i^T, i <= d, by exact moments and by the closed form.

    It is relative to the largest entry of 2 E[<G, M_i> G], the first term of grad L_i.
    """
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

    The argument uses (24), which multiplies means over w-hat. Moreover, at d = 1 both ranks are 2.
    """
    return setting.counted(jnp.all(_slopes_at_labels(loss.task) < _ZERO, axis=0))


@ON_LIMITS.corrected(no_zero_slope)
def zero_slope(loss: MultiHeadLoss) -> Comparison:
    r"""$\nabla L_i = 0$ at $M_i = e_{d+1} e_i^\top$ as $C \to \infty$

    This is the opposite of the printed statement. At this M_i, <G, M_i> = w-hat_i, so L_i = 0.
    """
    return setting.same(loss.task, _slopes_at_labels(loss.task).reshape(-1), 0.0, 1.0)
