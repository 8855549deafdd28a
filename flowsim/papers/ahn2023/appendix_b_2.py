"""ahn2023's appendix B.2: the proof of Theorem 4, on layers without B.

Gradients are those of `MultiLayerLoss`, whose matrices are A_i = -(the paper's), which changes no statement here. (22)
and (28) to (30) are judged on drawn prompts with drawn weights, in the paper's own sign of A.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim.claims.claim import Comparison, at_least, at_most, equal
from flowsim.claims.declaring import Section
from flowsim.claims.hypotheses import finite_context
from flowsim.claims.statements import joined, rounded
from flowsim.papers.ahn2023 import spaces
from flowsim.papers.ahn2023.multi_layer import Loss, cancellation, drawn_matrices, drawn_scalars, gradients
from flowsim.papers.ahn2023.multi_layer_problems import ISOTROPIC, ON_PROMPTS, STATIC
from flowsim.papers.ahn2023.prompts import (
    Drawn,
    Row,
    labelled,
    layers,
    nearest_on_the_set,
    on_prompts,
    product,
    without_B,
)
from flowsim.papers.ahn2023.settings import LAYERED, anisotropic, layers_with_inverse_weights
from flowsim.papers.ahn2023.turned_prompts import turned, turned_slopes


def _factors(drawn: Drawn, sign: float) -> Float[Array, "columns columns"]:
    """prod_l (I + sign M X_0^T A_l X_0), with 1/n absorbed in the A_l."""
    X, total = labelled(drawn)[:-1], jnp.eye(drawn.prompt.labels.size + 1)
    masked = X.at[:, -1].set(0.0)
    for A in drawn.A:
        total = total @ (jnp.eye(total.shape[0]) + sign * masked.T @ A @ X / drawn.prompt.labels.size)
    return total


SECTION = Section("ahn2023", *LAYERED, setting=layers_with_inverse_weights)
ON_ON_PROMPTS = SECTION.on(ON_PROMPTS, spaces.LAYERS, hypotheses=finite_context)
ON_STATIC = SECTION.on(STATIC, spaces.LAYERS)


@ON_ON_PROMPTS.claim("eq-22", "(22)")
@on_prompts
def eq_22(drawn: Drawn) -> tuple[Row, Row]:
    r"""$Y_{i+1} = Y_0 \prod_l (I + M X_0^\top A_l X_0)$, the query's label being given

    Judged on 64 drawn prompts with drawn weights. The 1/n is absorbed in the A_l, as in the proof.
    """
    Z = labelled(drawn)
    return Z[-1] @ _factors(drawn, 1.0), layers(without_B(drawn), Z)[-1, -1]


def _directional(replace: Callable[[Loss, Array], Array]) -> Callable[[Loss], tuple[Array, Array, Array]]:
    """The function that returns d/dt f(A + t R~) and d/dt f(A + t R) at points of S for drawn R, and the size of their
    terms; R~_i = r_i ``replace(loss, R)``.
    """

    def sides(loss: Loss) -> tuple[Array, Array, Array]:
        slopes, R = gradients(loss, drawn_scalars(loss)), drawn_matrices(loss, 3)
        r = jnp.einsum("ij,nkij->nk", loss.task.covariance, R) / loss.task.dimension
        replaced = r[:, :, None, None] * replace(loss, R)[None, None]
        size = jnp.sum(jnp.linalg.norm(slopes, axis=(2, 3)) * jnp.linalg.norm(R, axis=(2, 3)), axis=1)
        return jnp.sum(slopes * replaced, axis=(1, 2, 3)), jnp.sum(slopes * R, axis=(1, 2, 3)), size

    return sides


@ON_STATIC.claim("eq-25", "(25) with R~_i = r_i I")
def eq_25(loss: Loss) -> Comparison:
    r"""For $A \in \mathcal{S}$ and every $R$, $\frac{d}{dt} f(A + t \tilde R) \le \frac{d}{dt} f(A + t R)$ with $\tilde
    R_i = r_i I$, $r_i = \operatorname{tr}(\Sigma^{1/2} R_i \Sigma^{1/2})/d$
    """
    replaced, given, size = _directional(lambda loss, R: jnp.eye(loss.task.dimension))(loss)
    both = [at_most(sign * replaced, sign * given, size=size) for sign in (1.0, -1.0)]
    return rounded(joined(both), cancellation(loss))


@ON_STATIC.corrected(eq_25, "(25) with R~_i = r_i Sigma^-1")
def eq_25_corrected(loss: Loss) -> Comparison:
    r"""For $A \in \mathcal{S}$ and every $R$, $\frac{d}{dt} f(A + t \tilde R) = \frac{d}{dt} f(A + t R)$ with $\tilde
    R_i = r_i \Sigma^{-1}$, $r_i = \operatorname{tr}(\Sigma^{1/2} R_i \Sigma^{1/2})/d$

    With the R~_i before (27): r_i I is not in S, and with it (25) fails for R or for -R unless tr Sigma = d. (26) needs
    the equality; a large enough multiple of any descent direction satisfies the inequality alone.
    """
    replaced, given, size = _directional(lambda loss, R: jnp.linalg.inv(loss.task.covariance))(loss)
    return rounded(equal(replaced, given, size), cancellation(loss))


def _decrease(loss: Loss) -> tuple[Array, Array]:
    """d/dt f along dA_i/dt = -tr(Sigma^{1/2} grad_i Sigma^{1/2}) Sigma^-1, and sum |grad_i|_F^2, at points of S."""
    slopes, Sigma = gradients(loss, drawn_scalars(loss)), loss.task.covariance
    r = jnp.einsum("nkij,ij->nk", slopes, Sigma)
    rate = -jnp.sum(r * jnp.einsum("nkij,ij->nk", slopes, jnp.linalg.inv(Sigma)), axis=1)
    return rate, jnp.sum(slopes**2, axis=(1, 2, 3))


@ON_STATIC.claim("eq-26", "(26)")
def eq_26(loss: Loss) -> Comparison:
    r"""With $dA_i/dt = -r_i \Sigma^{-1}$, $r_i = \operatorname{tr}(\Sigma^{1/2} \nabla_i \Sigma^{1/2})$: $\frac{d}{dt}
    f \le -\sum \lVert \nabla_{A_i} f \rVert_F^2$

    True with a factor d to spare for d > 1: this flow is d times faster than the one that (25) gives.
    """
    rate, squares = _decrease(loss)
    return rounded(at_most(rate, -squares), cancellation(loss))


@ON_STATIC.corrected(eq_26)
def eq_26_corrected(loss: Loss) -> Comparison:
    r"""With $dA_i/dt = -r_i \Sigma^{-1}$, $r_i = \operatorname{tr}(\Sigma^{1/2} \nabla_i \Sigma^{1/2})/d$:
    $\frac{d}{dt} f = -\sum \lVert \nabla_{A_i} f \rVert_F^2$

    With the 1/d of the r_i of (25).
    """
    rate, squares = _decrease(loss)
    return rounded(equal(rate / loss.task.dimension, -squares, squares), cancellation(loss))


@ON_STATIC.claim("theorem-4.gradient", "proof of Theorem 4", form="corrected")
def gradient_on_the_set(loss: Loss) -> Comparison:
    r"""At points of $\mathcal{S}$ every $\nabla_{A_i} f$ is a multiple of $\Sigma$

    The proof shows this. Hence the gradients over S and over all matrices vanish together.
    """
    slopes, Sigma = gradients(loss, drawn_scalars(loss)), loss.task.covariance
    g = jnp.einsum("nkij,ij->nk", slopes, Sigma) / jnp.sum(Sigma**2)
    off = jnp.linalg.norm(slopes - g[:, :, None, None] * Sigma[None, None], axis=(2, 3)).reshape(-1)
    return rounded(equal(off, 0.0, jnp.linalg.norm(slopes, axis=(2, 3)).reshape(-1)), cancellation(loss))


@SECTION.claim(
    "theorem-4.invariant",
    "proof of Theorem 4",
    form="corrected",
    hypotheses=anisotropic,
    problems=(ISOTROPIC[0], *STATIC),
    spaces=spaces.LAYERS,
)
def leaves_the_set(loss: Loss) -> Comparison:
    r"""Plain gradient flow leaves $\mathcal{S}$: at points of $\mathcal{S}$ no $\nabla_{A_i} f$ is a multiple of
    $\Sigma^{-1}$, unless $\Sigma \propto I$

    The paper does not say this; its proof uses an S-constrained flow.
    """
    slopes, inverse = gradients(loss, drawn_scalars(loss)), jnp.linalg.inv(loss.task.covariance)
    g = jnp.einsum("nkij,ij->nk", slopes, inverse) / jnp.sum(inverse**2)
    off = jnp.linalg.norm(slopes - g[:, :, None, None] * inverse[None, None], axis=(2, 3)).reshape(-1)
    return rounded(at_least(off, 0.0, size=jnp.linalg.norm(slopes, axis=(2, 3)).reshape(-1)), cancellation(loss))


@ON_ON_PROMPTS.claim("eq-28", "proof of Theorem 4, G before (28)")
@on_prompts
def eq_28_printed(drawn: Drawn) -> tuple[Row, Row]:
    r"""$Y_{k+1} = w_\star^\top G$ with $G = X_0 \prod_l (I - M X_0^\top A_l X_0)$

    The sign differs from that of (22), (29) and (30); w*^T w* in the display before it should be w* w*^T.
    """
    Z = labelled(drawn)
    return drawn.weight @ Z[:-1] @ _factors(drawn, -1.0), layers(without_B(drawn), Z)[-1, -1]


@ON_ON_PROMPTS.corrected(eq_28_printed)
@on_prompts
def eq_28_corrected(drawn: Drawn) -> tuple[Row, Row]:
    r"""$Y_{k+1} = w_\star^\top G$ with $G = X_0 \prod_l (I + M X_0^\top A_l X_0)$

    With the sign of (22); nothing else in the proof changes.
    """
    Z = labelled(drawn)
    return drawn.weight @ Z[:-1] @ _factors(drawn, 1.0), layers(without_B(drawn), Z)[-1, -1]


@ON_ON_PROMPTS.claim("eq-29", "(29)")
@on_prompts
def eq_29(drawn: Drawn) -> tuple[Array, Array]:
    r"""For $A \in \mathcal{S}$ and orthogonal $U$, with $U_\Sigma = \Sigma^{1/2} U \Sigma^{-1/2}$, $G(U_\Sigma X_0) =
    U_\Sigma G(X_0)$

    Judged on 64 drawn prompts with drawn weights and U.
    """
    return turned(without_B(nearest_on_the_set(drawn)), product)


@ON_ON_PROMPTS.claim("eq-30", "(30)")
@on_prompts
def eq_30(drawn: Drawn) -> tuple[Array, Array]:
    r"""For $A \in \mathcal{S}$ and every $R_j$, $\frac{d}{dt} G(U_\Sigma X_0, A_j + t R_j) = U_\Sigma \frac{d}{dt}
    G(X_0, A_j + t U_\Sigma^\top R_j U_\Sigma)$

    Judged on 64 drawn prompts with drawn weights, U and R_j, for every j.
    """
    return turned_slopes(without_B(drawn), product, "A")
