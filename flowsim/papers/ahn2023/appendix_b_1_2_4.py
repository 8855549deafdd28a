"""ahn2023's appendices B.1, B.2 and B.4 on layers without B: proofs of Theorems 3 and 4, and the layers' order.

S is the set of A_i = a_i Sigma^-1. Losses and gradients are those of `MultiLayerLoss`, whose A_i are minus the
paper's. No statement here depends on this sign. Statements about single prompts use the paper's sign.
"""

import itertools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim._core.types import Matrix, Scalar
from flowsim.claims.claim import Comparison, at_least, at_most, equal
from flowsim.claims.hypotheses import Hypothesis, agrees, finite_context
from flowsim.claims.statements import joined, rounded
from flowsim.models import MultiLayerAttention
from flowsim.papers.ahn2023 import problems, prompts, spaces
from flowsim.papers.ahn2023.multi_layer import (
    Loss,
    cancellation,
    drawn_matrices,
    drawn_scalars,
    gradients,
    losses_at,
    many_starts,
)
from flowsim.papers.ahn2023.settings import LAYERS, anisotropic, several_layers, two_isotropic_layers


def _symmetric_layers(loss: Loss, start: MultiLayerAttention) -> list[Hypothesis]:
    """The hypotheses of Theorem 3, and that every A_i is symmetric.

    Without symmetry the paper's formula would need the transposes of the A_i.
    """
    return [*two_isotropic_layers(loss, start), agrees("symmetric A_i", float(loss.symmetric), 1.0)]


def _factored(drawn: prompts.Drawn) -> tuple[prompts.Columns, Scalar]:
    """The matrix X_0 prod_i (I + M X_0^T A_i X_0), and the squared error of the layers at the query.

    The squared error is averaged over w ~ N(0, I). The error is linear in w, so the mean of its square is the sum
    of its squares at the unit vectors.
    """
    point, X = prompts.without_B(drawn), prompts.inputs_of(drawn)
    error = lambda w: prompts.states_from(point._replace(weight=w), X)[-1, -1, -1]
    return prompts.product(point, X), jnp.sum(jax.vmap(error)(jnp.eye(X.shape[0])) ** 2)


SECTION_B_1_2 = LAYERS()
ISOTROPIC = SECTION_B_1_2.on(problems.ISOTROPIC_LAYERS, spaces.ISOTROPIC_LAYERS, hypotheses=two_isotropic_layers)


@ISOTROPIC.claim("theorem-3.trace", "proof of Theorem 3, first display", hypotheses=(_symmetric_layers, finite_context))
@prompts.on_prompts
def trace_of_all(drawn: prompts.Drawn) -> tuple[Array, Array]:
    r"""$f(A_0, A_1) = \mathbb{E} \operatorname{tr}\Bigl(\prod_i (I + X_0^\top A_i X_0 M)\, X_0^\top X_0 \prod_i (I + M
    X_0^\top A_i X_0)\Bigr)$

    Judged on 64 random prompts, averaged over w. The A_i include the factor 1/n. The trace sums the squared errors of
    all n + 1 columns, but f is the query's. The limits of the products are printed in three ways.
    """
    columns, expected = _factored(drawn)
    return jnp.sum(columns**2), expected


@ISOTROPIC.corrected(trace_of_all, hypotheses=(_symmetric_layers, finite_context))
@prompts.on_prompts
def trace_of_the_query(drawn: prompts.Drawn) -> tuple[Array, Array]:
    r"""$f(A_0, A_1) = \mathbb{E} \operatorname{tr}\Bigl((I - M) \prod_i (I + X_0^\top A_i X_0 M)\, X_0^\top X_0 \prod_i
    (I + M X_0^\top A_i X_0)\, (I - M)\Bigr)$

    The I - M is that of Lemma 9, to which the proof refers. Judged on 64 random prompts, averaged over w. The A_i
    include the factor 1/n.
    """
    columns, expected = _factored(drawn)
    return jnp.sum(columns[:, -1] ** 2), expected


@ISOTROPIC.claim("theorem-3.rotation", "proof of Theorem 3")
def theorem_3_rotation(loss: Loss) -> Comparison:
    r"""$f(U D_0 U^\top, A_1) = f(D_0, U^\top A_1 U)$ for orthogonal $U$, and $f(D_0, A_1) = f(D_0, S A_1 S)$ for
    diagonal $D_0$ and $S = \operatorname{diag}(\pm 1, \dots, \pm 1)$

    Judged at random symmetric A_0 = U D_0 U^T and A_1. The text says that X_0 U^T has the law of X_0. The shapes of
    this product do not fit; U^T X_0 has that law.
    """
    matrices = drawn_matrices(loss, 1)
    matrices = (matrices + jnp.swapaxes(matrices, 2, 3)) / 2
    U = jnp.linalg.eigh(matrices[:, 0])[1]
    diagonal = jnp.swapaxes(U[:, None], 2, 3) @ matrices @ U[:, None]
    signs = jnp.where(jnp.arange(loss.task.dimension) % 2 == 0, 1.0, -1.0)
    flipped = jnp.outer(signs, signs)[None, None] * diagonal
    here, there, mirrored = (losses_at(loss, A) for A in (matrices, diagonal, flipped))
    both = [equal(there, here, here), equal(mirrored, there, there)]
    return rounded(joined(both), cancellation(loss))


@ISOTROPIC.claim("theorem-3.proof", "proof of Theorem 3")
def theorem_3_proof(loss: Loss) -> Comparison:
    r"""$f\bigl(D_0, \operatorname{diag}(A_1)\bigr) \le f(D_0, A_1)$ for diagonal $D_0$, and the same with the layers
    exchanged

    Judged at random matrices.
    """
    kept = jnp.eye(loss.task.dimension)[None, None]
    matrices, comparisons = drawn_matrices(loss, 1), []
    for fixed in (0, 1):
        general = matrices.at[:, fixed].multiply(kept[0])
        values = [losses_at(loss, primed) for primed in (matrices * kept, general)]
        comparisons.append(at_most(*values))
    return rounded(joined(comparisons), cancellation(loss))


@ISOTROPIC.claim("theorem-3.convex", "proof of Theorem 3")
def theorem_3_convex(loss: Loss) -> Comparison:
    """$f$ is convex in $A_1$ at fixed $A_0$, and in $A_0$ at fixed $A_1$

    Judged along random directions at random matrices.
    """
    matrices, directions, comparisons = drawn_matrices(loss, 1), drawn_matrices(loss, 2), []
    for moved in range(loss.layers):
        step = jnp.zeros_like(directions).at[:, moved].set(directions[:, moved])
        ahead, here, behind = (losses_at(loss, matrices + sign * step) for sign in (1.0, 0.0, -1.0))
        # f is quadratic in each matrix, so the second difference is the second derivative.
        comparisons.append(at_least(ahead - 2 * here + behind, 0.0, size=ahead + 2 * here + behind))
    return rounded(joined(comparisons), cancellation(loss))


PROMPTWISE = SECTION_B_1_2.on(problems.ON_PROMPTS, spaces.LAYERS, hypotheses=finite_context)
ON_STATIC = SECTION_B_1_2.on(problems.STATIC, spaces.LAYERS)


@PROMPTWISE.claim("eq-22", "(22)")
@prompts.on_prompts
def eq_22(drawn: prompts.Drawn) -> tuple[prompts.Row, prompts.Row]:
    r"""$Y_{i+1} = Y_0 \prod_l (I + M X_0^\top A_l X_0)$, where $Y_0$ includes the query's label

    Judged on 64 random prompts with random weights. The A_l include the factor 1/n, as in the proof.
    """
    return prompts.labels_by_product(prompts.without_B(drawn))


def _directional(loss: Loss, replacement: Matrix) -> tuple[Array, Array, Array]:
    """The derivatives d/dt f(A + t R~) and d/dt f(A + t R) at random points A of S, for random R.

    Here R~_i = r_i ``replacement`` with r_i = tr(Sigma^{1/2} R_i Sigma^{1/2})/d.

    **Returns:** the derivative along R~, the derivative along R, and the size sum_i |grad_{A_i} f|_F |R_i|_F, each
    (n,).
    """
    slopes, R = gradients(loss, drawn_scalars(loss)), drawn_matrices(loss, 3)
    r = jnp.einsum("ij,nkij->nk", loss.task.covariance, R) / loss.task.dimension
    replaced = r[:, :, None, None] * replacement[None, None]
    size = jnp.sum(jnp.linalg.norm(slopes, axis=(2, 3)) * jnp.linalg.norm(R, axis=(2, 3)), axis=1)
    return jnp.sum(slopes * replaced, axis=(1, 2, 3)), jnp.sum(slopes * R, axis=(1, 2, 3)), size


@ON_STATIC.claim("eq-25", "(25) with R~_i = r_i I")
def eq_25(loss: Loss) -> Comparison:
    r"""For $A \in \mathcal{S}$ and every $R$, $\frac{d}{dt} f(A + t \tilde R) \le \frac{d}{dt} f(A + t R)$ with $\tilde
    R_i = r_i I$, $r_i = \operatorname{tr}(\Sigma^{1/2} R_i \Sigma^{1/2})/d$
    """
    replaced, given, size = _directional(loss, jnp.eye(loss.task.dimension))
    both = [at_most(sign * replaced, sign * given, size=size) for sign in (1.0, -1.0)]
    return rounded(joined(both), cancellation(loss))


@ON_STATIC.corrected(eq_25, "(25) with R~_i = r_i Sigma^-1")
def eq_25_corrected(loss: Loss) -> Comparison:
    r"""For $A \in \mathcal{S}$ and every $R$, $\frac{d}{dt} f(A + t \tilde R) = \frac{d}{dt} f(A + t R)$ with $\tilde
    R_i = r_i \Sigma^{-1}$, $r_i = \operatorname{tr}(\Sigma^{1/2} R_i \Sigma^{1/2})/d$

    These R~_i are those before (27). The r_i I of (25) are not in S, and with them (25) fails for R or for -R unless tr
    Sigma = d. (26) needs the equality: a large enough multiple of any descent direction satisfies the inequality.
    """
    replaced, given, size = _directional(loss, jnp.linalg.inv(loss.task.covariance))
    return rounded(equal(replaced, given, size), cancellation(loss))


def _decrease(loss: Loss) -> tuple[Array, Array]:
    """The derivative d/dt f along a flow, and sum_i |grad_{A_i} f|_F^2, at random points of S.

    The flow is dA_i/dt = -tr(Sigma^{1/2} grad_{A_i} f Sigma^{1/2}) Sigma^-1. Both results are (n,).
    """
    slopes, Sigma = gradients(loss, drawn_scalars(loss)), loss.task.covariance
    r = jnp.einsum("nkij,ij->nk", slopes, Sigma)
    rate = -jnp.sum(r * jnp.einsum("nkij,ij->nk", slopes, jnp.linalg.inv(Sigma)), axis=1)
    return rate, jnp.sum(slopes**2, axis=(1, 2, 3))


@ON_STATIC.claim("eq-26", "(26)")
def eq_26(loss: Loss) -> Comparison:
    r"""With $dA_i/dt = -r_i \Sigma^{-1}$, $r_i = \operatorname{tr}(\Sigma^{1/2} \nabla_i \Sigma^{1/2})$: $\frac{d}{dt}
    f \le -\sum \lVert \nabla_{A_i} f \rVert_F^2$

    For d > 1 the left side is d times the right one, because this flow is d times faster than the one that (25) gives.
    """
    rate, squares = _decrease(loss)
    return rounded(at_most(rate, -squares), cancellation(loss))


@ON_STATIC.corrected(eq_26)
def eq_26_corrected(loss: Loss) -> Comparison:
    r"""With $dA_i/dt = -r_i \Sigma^{-1}$, $r_i = \operatorname{tr}(\Sigma^{1/2} \nabla_i \Sigma^{1/2})/d$:
    $\frac{d}{dt} f = -\sum \lVert \nabla_{A_i} f \rVert_F^2$

    The factor 1/d is that of the r_i in (25).
    """
    rate, squares = _decrease(loss)
    return rounded(equal(rate / loss.task.dimension, -squares, squares), cancellation(loss))


def _from_multiples(loss: Loss, matrix: Matrix) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """The distance of each grad_{A_i} f from the multiples of ``matrix``, and |grad_{A_i} f|_F.

    Both are computed at random points of S.
    """
    slopes = gradients(loss, drawn_scalars(loss))
    g = jnp.einsum("nkij,ij->nk", slopes, matrix) / jnp.sum(matrix**2)
    gaps = slopes - g[:, :, None, None] * matrix[None, None]
    distance, size = (jnp.linalg.norm(part, axis=(2, 3)).reshape(-1) for part in (gaps, slopes))
    return distance, size


@ON_STATIC.claim("theorem-4.gradient", "proof of Theorem 4", form="corrected")
def gradient_on_the_set(loss: Loss) -> Comparison:
    r"""At points of $\mathcal{S}$ every $\nabla_{A_i} f$ is a multiple of $\Sigma$

    The proof shows this. So the gradient over all matrices vanishes wherever the gradient over S does.
    """
    distance, size = _from_multiples(loss, loss.task.covariance)
    return rounded(equal(distance, 0.0, size), cancellation(loss))


@SECTION_B_1_2.on((problems.ISOTROPIC_LAYERS[0], *problems.STATIC), spaces.LAYERS).claim(
    "theorem-4.invariant", "proof of Theorem 4", form="corrected", hypotheses=anisotropic
)
def leaves_the_set(loss: Loss) -> Comparison:
    r"""Plain gradient flow leaves $\mathcal{S}$: at points of $\mathcal{S}$ no $\nabla_{A_i} f$ is a multiple of
    $\Sigma^{-1}$, unless $\Sigma \propto I$

    The paper does not say this. Its proof uses a flow constrained to S.
    """
    distance, size = _from_multiples(loss, jnp.linalg.inv(loss.task.covariance))
    return rounded(at_least(distance, 0.0, size=size), cancellation(loss))


@PROMPTWISE.claim("eq-28", "proof of Theorem 4, G before (28)")
@prompts.on_prompts
def eq_28_printed(drawn: prompts.Drawn) -> tuple[prompts.Row, prompts.Row]:
    r"""$Y_{k+1} = w_\star^\top G$ with $G = X_0 \prod_l (I - M X_0^\top A_l X_0)$

    (22), (29) and (30) have the opposite sign. In the display before it, w*^T w* should be w* w*^T.
    """
    return prompts.labels_by_product(prompts.without_B(drawn), -1.0)


@PROMPTWISE.corrected(eq_28_printed)
@prompts.on_prompts
def eq_28_corrected(drawn: prompts.Drawn) -> tuple[prompts.Row, prompts.Row]:
    r"""$Y_{k+1} = w_\star^\top G$ with $G = X_0 \prod_l (I + M X_0^\top A_l X_0)$

    The sign is that of (22). The rest of the proof does not change.
    """
    return prompts.labels_by_product(prompts.without_B(drawn))


@PROMPTWISE.claim("eq-29", "(29)")
@prompts.on_prompts
def eq_29(drawn: prompts.Drawn) -> tuple[Array, Array]:
    r"""For $A \in \mathcal{S}$ and orthogonal $U$, with $U_\Sigma = \Sigma^{1/2} U \Sigma^{-1/2}$, $G(U_\Sigma X_0) =
    U_\Sigma G(X_0)$

    Judged on 64 random prompts with random weights and U.
    """
    return prompts.turned(prompts.without_B(prompts.nearest_on_the_set(drawn)), prompts.product)


@PROMPTWISE.claim("eq-30", "(30)")
@prompts.on_prompts
def eq_30(drawn: prompts.Drawn) -> tuple[Array, Array]:
    r"""For $A \in \mathcal{S}$ and every $R_j$, $\frac{d}{dt} G(U_\Sigma X_0, A_j + t R_j) = U_\Sigma \frac{d}{dt}
    G(X_0, A_j + t U_\Sigma^\top R_j U_\Sigma)$

    Judged on 64 random prompts with random weights, U and R_j, for every j.
    """
    return prompts.turned_slopes(prompts.without_B(drawn), prompts.product, "A")


def multiples(loss: Loss) -> Float[Array, "1 d d"]:
    """A basis of the multiples of I."""
    return jnp.eye(loss.task.dimension)[None]


def _permuted(loss: Loss, matrices: Float[Array, "n k d d"]) -> Float[Array, "n orders"]:
    """The loss at n points with the k layers in every order, (n, k!), that of ``matrices`` first."""
    orders = itertools.permutations(range(loss.layers))
    return jnp.stack([losses_at(loss, matrices[:, jnp.array(order)]) for order in orders], axis=1)


SECTION_B_4 = LAYERS()
ON_LAYERS = SECTION_B_4.on((*problems.STATIC, problems.DEEP), spaces.LAYERS)


@ON_LAYERS.claim("lemma-8", "Lemma 8")
def lemma_8(loss: Loss) -> Comparison:
    r"""On $\mathcal{S}$ the loss does not depend on the order of the layers"""
    points = drawn_scalars(loss)[:, :, None, None] * jnp.eye(loss.task.dimension)[None, None]
    values = _permuted(loss, points)
    first, values = jnp.repeat(values[:, 0], values.shape[1]), values.reshape(-1)
    return rounded(equal(values, first, values), cancellation(loss))


@SECTION_B_4.on(problems.STATIC, spaces.LAYERS).claim(
    "lemma-8.general", "Lemma 8 beyond S", form="corrected", hypotheses=several_layers
)
def lemma_8_general(loss: Loss) -> Comparison:
    r"""At random matrices outside $\mathcal{S}$ the loss does depend on the order of the layers

    This is why the lemma needs S.
    """
    values = _permuted(loss, drawn_matrices(loss, 1))
    change = jnp.max(values, axis=1) - jnp.min(values, axis=1)
    return rounded(at_least(change, 0.0, size=jnp.max(values, axis=1)), jnp.max(jnp.max(values, axis=1) / change))


@ON_LAYERS.claim("theorem-4.on-the-set", "section 7, after Lemma 8", form="corrected")
def every_start_on_the_set(loss: Loss) -> Comparison:
    r"""On $\mathcal{S}$ every start ends at the least loss: the local minima are the $k!$ orders of one choice of
    different $a_i$

    With W the whitened sample covariance, the loss on S is E tr prod_i (1 - a_i W)^2. At a critical point with
    different a_i, the polynomial prod_i (1 - a_i x) is orthogonal to x q for every polynomial q of degree below k. Only
    one choice of a_i has this property. A critical point with two equal a_i is a strict saddle: to second order, moving
    one by s and the other by -s lowers the loss by 2 s^2 E tr(W^2 P), where P is the product of the other factors and
    one of these two. Judged from 16 starts.
    """
    return rounded(equal(many_starts(loss, multiples(loss)), 0.0, loss.minimum), cancellation(loss))
