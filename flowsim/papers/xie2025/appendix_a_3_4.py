"""xie2025, appendices A.3 and A.4: (26) in the limit, (27) to (29) at finite C, and the proof of Lemma 1."""

import jax.numpy as jnp
import numpy as np

from flowsim.claims.claim import Comparison, at_most, equal
from flowsim.claims.statements import rounded
from flowsim.losses import MultiHeadLoss
from flowsim.losses.one_layer.head_risk import HeadRisk
from flowsim.papers.xie2025 import appendix_a_1_2, exact, problems, prompts, setting, spaces
from flowsim.papers.xie2025.appendix_a_1_2 import (
    SHARED_WEIGHTS,
    Moment,
    Square,
    derivative,
    eq_23,
    eq_23_shared,
    outer_square,
    product_of_means,
    same_moment,
    same_second_moments,
    same_slopes,
    second_moment,
)
from flowsim.tasks import LinearRegression

SECTION = setting.HEADS(needs=setting.few_coordinates)
ON_FINITE = SECTION.on(problems.FINITE, spaces.FINITE, hypotheses=setting.finite_context)


# (26) is (23).
ON_LIMITS = SECTION.on(problems.LIMITS, spaces.LIMITS, hypotheses=setting.infinite_context)
ON_LIMITS.corrected(ON_LIMITS.claim("eq-26", "(26)", note=SHARED_WEIGHTS)(eq_23))(eq_23_shared)


def _at_length(C: float) -> Moment:
    """The function (risk, N) -> E[<G, N> G] for the task of ``risk``, but at context length C.

    At C = 1 it is the moment of one token. At C = inf it is the mean over w-hat of <M_w, N> M_w, with M_w = [I w;
    w^T |w|^2] at w = w-hat.
    """

    def moment(risk: HeadRisk, N: Square) -> Square:
        return second_moment(HeadRisk(LinearRegression(risk.task.covariance, C, prior_mean=risk.prior_mean)), N)

    return moment


def _eq_27(different: Moment) -> Moment:
    """The function (risk, N) -> right side of (27), contracted with N.

    ``different`` gives the contribution of two different tokens z and z' of a prompt, E[<z z^T, N> z' z'^T].
    """

    def moment(risk: HeadRisk, N: Square) -> Square:
        inverse_C = 1 / risk.task.context_length
        return (1 - inverse_C) * different(risk, N) + inverse_C * _at_length(1.0)(risk, N)

    return moment


_PRODUCTS_OF_MEANS, _MEAN_OF_PRODUCTS = _eq_27(product_of_means), _eq_27(_at_length(jnp.inf))


@ON_FINITE.claim("eq-27", "(27)", hypotheses=(), note=SHARED_WEIGHTS)
def eq_27(loss: MultiHeadLoss) -> Comparison:
    r"""$\mathbb{E}[G_{mn} G_{pq}] = (1 - 1/C) M_{mn} M_{pq} + \tfrac{1}{C} \mathbb{E}[z_m z_n z_p z_q]$"""
    return same_moment(loss.task, _PRODUCTS_OF_MEANS)


@ON_FINITE.corrected(eq_27, hypotheses=())
def eq_27_shared(loss: MultiHeadLoss) -> Comparison:
    r"""$\mathbb{E}[G_{mn} G_{pq}] = (1 - 1/C) \mathbb{E}_w\bigl[(M_w)_{mn} (M_w)_{pq}\bigr] + \tfrac{1}{C}
    \mathbb{E}[z_m z_n z_p z_q]$, $M_w = \begin{bmatrix} I & w \\ w^\top & \lVert w \rVert^2 \end{bmatrix}$

    The printed form has the product of the means over w-hat instead of the mean of the product.
    """
    return same_moment(loss.task, _MEAN_OF_PRODUCTS)


@ON_FINITE.claim("eq-28", "(28)", note=SHARED_WEIGHTS)
def eq_28(loss: MultiHeadLoss) -> Comparison:
    r"""$\mathbb{E}[G_{mn} G_{pq}] = M_{mn} M_{pq} + (T_{mnpq} - M_{mn} M_{pq})/C$, $T_{mnpq} = \mathbb{E}[z_m z_n z_p
    z_q]$
    """
    w, C = loss.risk.prior_mean, loss.task.context_length
    means = outer_square(appendix_a_1_2.mean_tokens(w))
    return same_second_moments(loss, means + (prompts.moments(w, 1.0).second - means) / C)


@ON_FINITE.corrected(eq_28)
def eq_28_shared(loss: MultiHeadLoss) -> Comparison:
    r"""$\mathbb{E}[G_{mn} G_{pq}] = \mathbb{E}_w\bigl[(M_w)_{mn} (M_w)_{pq}\bigr] + \Bigl(T_{mnpq} -
    \mathbb{E}_w\bigl[(M_w)_{mn} (M_w)_{pq}\bigr]\Bigr)\big/C$, $T_{mnpq} = \mathbb{E}[z_m z_n z_p z_q]$

    The printed form has the product of the means over w-hat instead of the mean of the product.
    """
    w, C = loss.risk.prior_mean, loss.task.context_length
    means, own = (prompts.moments(w, inverse_C).second for inverse_C in (0.0, 1.0))
    return same_second_moments(loss, means + (own - means) / C)


@ON_FINITE.claim("eq-29", "(29)", note=SHARED_WEIGHTS)
def eq_29(loss: MultiHeadLoss) -> Comparison:
    r"""$\nabla L_i = 2 \mathbb{E}[\langle G, M_i \rangle G] - 2 (w_{\star,i} M + N_i)$, the first by (27)"""
    return same_slopes(loss.task, lambda risk, N: derivative(risk, N, _PRODUCTS_OF_MEANS))


@ON_FINITE.corrected(eq_29)
def eq_29_shared(loss: MultiHeadLoss) -> Comparison:
    r"""$\nabla L_i = 2 \mathbb{E}[\langle G, M_i \rangle G] - 2 (w_{\star,i} M + N_i)$, the first by the corrected (27)

    This holds with the corrected (27) instead of the printed one.
    """
    return same_slopes(loss.task, lambda risk, N: derivative(risk, N, _MEAN_OF_PRODUCTS))


@ON_FINITE.claim("theorem-4.finite-context", "appendix A.3")
def residual_gradient(loss: MultiHeadLoss) -> Comparison:
    r"""at the weights of Theorem 4 $(\eta = 1)$ the gradient is of the order $1/C$

    Judged as: C |grad R| is the same at C and at 100 C, by both routes.
    """
    task, model = loss.task, setting.descent_heads(loss.risk.prior_mean, 1.0)
    sizes = []
    for factor in (1.0, 100.0):
        C = factor * task.context_length
        sizes.append(C * setting.slopes(LinearRegression(task.covariance, C, prior_mean=loss.risk.prior_mean), model))
    left, right = jnp.concatenate(sizes), jnp.tile(sizes[1][::-1], 2)
    return rounded(equal(left, right, right), 100 * jnp.asarray((task.dimension + 1.0) ** 2))


@SECTION.on((*problems.FINITE, problems.LIMIT), spaces.TASKS).claim(
    "theorem-4.finite-context.best-step", "appendix A.3", form="corrected"
)
def best_step_at_rest(loss: MultiHeadLoss) -> Comparison:
    r"""the weights (7) with $w = w_\star$, $W^P = -\eta I$ and $\eta = C/(C+d+1)$ are a stationary point of $y_q$-LSA
    at every $C$

    The printed remark has eta = 1. There the gradient vanishes only as C -> infinity.
    """
    return setting.at_rest(loss.task, setting.descent_heads(loss.risk.prior_mean, loss.risk.step_size))


_DRAWN = 8

ON_TASKS = SECTION.on(problems.TASKS, spaces.TASKS)


@ON_TASKS.claim("appendix-a.4.positive", "appendix A.4")
def positive_mean(loss: MultiHeadLoss) -> Comparison:
    r"""$(u, v)^\top M (u, v) = \lVert u + v w_\star \rVert^2 + d v^2$, so that $M$ is positive semi-definite"""
    task, w = loss.task, loss.risk.prior_mean
    d = task.dimension
    z = np.random.default_rng(4).integers(-3, 4, size=(_DRAWN, d + 1)).astype(float)
    M = exact.floats(exact.moments(task).first)
    left = jnp.einsum("km,mn,kn->k", z, M, z)
    right = jnp.sum((z[:, :d] + z[:, d:] * w[None]) ** 2, axis=1) + d * z[:, d] ** 2
    return setting.same(task, left, right, setting.label_energy(task) * jnp.sum(z**2, axis=1))


@ON_TASKS.claim("appendix-a.4.convex", "appendix A.4")
def convex_in_forms(loss: MultiHeadLoss) -> Comparison:
    """$L_i$ is convex in $M_i$

    L_i is convex because it is the mean of the square of an affine function of M_i. Judged at the midpoints of random
    pairs of matrices, for i = 1. The Hessian 2 M of the proof has the wrong shape. The correct one is 2 E[G (x) G], or
    2 M (x) M with (23).
    """
    known = exact.moments(loss.task)
    normals = np.random.default_rng(5).integers(-3, 4, size=(_DRAWN, 2, *known.first.shape))
    sides = []
    for one, other in (tuple(map(exact.rationals, pair)) for pair in normals):
        ends = (known.component(one, 0) + known.component(other, 0)) / 2
        sides.append([known.component((one + other) / 2, 0), ends])
    middle, ends = exact.floats(np.asarray(sides, dtype=object)).T
    return at_most(middle, ends)
