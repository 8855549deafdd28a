"""ahn2023's appendix B.2: the proof of Theorem 4, on layers without B.

Gradients are those of `MultiLayerLoss`, whose matrices are A_i = -(the paper's), which changes no statement here. (22)
and (28) to (30) are judged on drawn prompts with drawn weights, in the paper's own sign of A.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim.claims.claim import Comparison, Relation, at_least, at_most, equal
from flowsim.claims.hypotheses import finite_context
from flowsim.claims.statements import joined, rounded
from flowsim.flow.trajectory import Trajectory
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
from flowsim.papers.paper import Section

SECTION = Section("ahn2023", *LAYERED)


def _factors(drawn: Drawn, sign: float) -> Float[Array, "columns columns"]:
    """prod_l (I + sign M X_0^T A_l X_0), with 1/n absorbed in the A_l."""
    X, total = labelled(drawn)[:-1], jnp.eye(drawn.prompt.labels.size + 1)
    masked = X.at[:, -1].set(0.0)
    for A in drawn.A:
        total = total @ (jnp.eye(total.shape[0]) + sign * masked.T @ A @ X / drawn.prompt.labels.size)
    return total


@SECTION.claim(
    "eq-22",
    "(22)",
    "Y_{i+1} = Y_0 prod_l (I + M X_0^T A_l X_0), the query's label being given",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=ON_PROMPTS,
    spaces=spaces.LAYERS,
    hypotheses=finite_context,
    note="Judged on 64 drawn prompts with drawn weights. The 1/n is absorbed in the A_l, as in the proof.",
)
@on_prompts
def eq_22(drawn: Drawn) -> tuple[Row, Row]:
    """Y_0 prod_l (I + M X_0^T A_l X_0) against the labels of the layers."""
    Z = labelled(drawn)
    return Z[-1] @ _factors(drawn, 1.0), layers(without_B(drawn), Z)[-1, -1]


def _directional(replace: Callable[[Loss, Array], Array]) -> Callable[[Loss, Trajectory], tuple[Array, Array, Array]]:
    """The function that returns d/dt f(A + t R~) and d/dt f(A + t R) at points of S for drawn R, and the size of their
    terms; R~_i = r_i ``replace(loss, R)``.
    """

    def sides(loss: Loss, trajectory: Trajectory) -> tuple[Array, Array, Array]:
        slopes, R = gradients(loss, drawn_scalars(loss)), drawn_matrices(loss, 3)
        r = jnp.einsum("ij,nkij->nk", loss.task.covariance, R) / loss.task.dimension
        replaced = r[:, :, None, None] * replace(loss, R)[None, None]
        size = jnp.sum(jnp.linalg.norm(slopes, axis=(2, 3)) * jnp.linalg.norm(R, axis=(2, 3)), axis=1)
        return jnp.sum(slopes * replaced, axis=(1, 2, 3)), jnp.sum(slopes * R, axis=(1, 2, 3)), size

    return sides


@SECTION.claim(
    "eq-25",
    "(25) with R~_i = r_i I",
    "For A in S and every R, d/dt f(A + t R~) <= d/dt f(A + t R) with R~_i = r_i I, r_i = tr(Sigma^{1/2} R_i "
    "Sigma^{1/2})/d",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=STATIC,
    spaces=spaces.LAYERS,
)
def eq_25(loss: Loss, trajectory: Trajectory) -> Comparison:
    """(25) with R~_i = r_i I, r_i = tr(Sigma^{1/2} R_i Sigma^{1/2})/d, as printed, for drawn R and for -R."""
    replaced, given, size = _directional(lambda loss, R: jnp.eye(loss.task.dimension))(loss, trajectory)
    both = [at_most(sign * replaced, sign * given, size=size) for sign in (1.0, -1.0)]
    return rounded(joined(both), cancellation(loss))


@SECTION.claim(
    "eq-25",
    "(25) with R~_i = r_i Sigma^-1",
    "For A in S and every R, d/dt f(A + t R~) = d/dt f(A + t R) with R~_i = r_i Sigma^-1, r_i = tr(Sigma^{1/2} R_i "
    "Sigma^{1/2})/d",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=STATIC,
    spaces=spaces.LAYERS,
    form="corrected",
    note="With the R~_i before (27): r_i I is not in S, and with it (25) fails for R or for -R unless tr Sigma = d. "
    "(26) needs the equality; a large enough multiple of any descent direction satisfies the inequality alone.",
)
def eq_25_corrected(loss: Loss, trajectory: Trajectory) -> Comparison:
    """(25) as an equality, with R~_i = r_i Sigma^-1, for drawn R."""
    replaced, given, size = _directional(lambda loss, R: jnp.linalg.inv(loss.task.covariance))(loss, trajectory)
    return rounded(equal(replaced, given, size), cancellation(loss))


def _decrease(loss: Loss) -> tuple[Array, Array]:
    """d/dt f along dA_i/dt = -tr(Sigma^{1/2} grad_i Sigma^{1/2}) Sigma^-1, and sum |grad_i|_F^2, at points of S."""
    slopes, Sigma = gradients(loss, drawn_scalars(loss)), loss.task.covariance
    r = jnp.einsum("nkij,ij->nk", slopes, Sigma)
    rate = -jnp.sum(r * jnp.einsum("nkij,ij->nk", slopes, jnp.linalg.inv(Sigma)), axis=1)
    return rate, jnp.sum(slopes**2, axis=(1, 2, 3))


@SECTION.claim(
    "eq-26",
    "(26)",
    "With dA_i/dt = -r_i Sigma^-1, r_i = tr(Sigma^{1/2} grad_i Sigma^{1/2}): d/dt f <= -sum |grad_{A_i} f|_F^2",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=STATIC,
    spaces=spaces.LAYERS,
    note="True with a factor d to spare for d > 1: this flow is d times faster than the one that (25) gives.",
)
def eq_26(loss: Loss, trajectory: Trajectory) -> Comparison:
    """(26) with r_i = tr(Sigma^{1/2} grad_i Sigma^{1/2}), as printed, at points of S."""
    rate, squares = _decrease(loss)
    return rounded(at_most(rate, -squares), cancellation(loss))


@SECTION.claim(
    "eq-26",
    "(26)",
    "With dA_i/dt = -r_i Sigma^-1, r_i = tr(Sigma^{1/2} grad_i Sigma^{1/2})/d: d/dt f = -sum |grad_{A_i} f|_F^2",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=STATIC,
    spaces=spaces.LAYERS,
    form="corrected",
    note="With the 1/d of the r_i of (25).",
)
def eq_26_corrected(loss: Loss, trajectory: Trajectory) -> Comparison:
    """(26) as an equality, with r_i = tr(Sigma^{1/2} grad_i Sigma^{1/2})/d, at points of S."""
    rate, squares = _decrease(loss)
    return rounded(equal(rate / loss.task.dimension, -squares, squares), cancellation(loss))


@SECTION.claim(
    "theorem-4.gradient",
    "proof of Theorem 4",
    "At points of S every grad_{A_i} f is a multiple of Sigma",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=STATIC,
    spaces=spaces.LAYERS,
    form="corrected",
    note="The proof shows this. Hence the gradients over S and over all matrices vanish together.",
)
def gradient_on_the_set(loss: Loss, trajectory: Trajectory) -> Comparison:
    """grad_{A_i} f at points of S against its projection on the multiples of Sigma."""
    slopes, Sigma = gradients(loss, drawn_scalars(loss)), loss.task.covariance
    g = jnp.einsum("nkij,ij->nk", slopes, Sigma) / jnp.sum(Sigma**2)
    off = jnp.linalg.norm(slopes - g[:, :, None, None] * Sigma[None, None], axis=(2, 3)).reshape(-1)
    return rounded(equal(off, 0.0, jnp.linalg.norm(slopes, axis=(2, 3)).reshape(-1)), cancellation(loss))


@SECTION.claim(
    "theorem-4.invariant",
    "proof of Theorem 4",
    "Plain gradient flow leaves S: at points of S no grad_{A_i} f is a multiple of Sigma^-1, unless Sigma ~ I",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=(ISOTROPIC[0], *STATIC),
    spaces=spaces.LAYERS,
    form="corrected",
    hypotheses=anisotropic,
    note="The paper does not say this; its proof uses an S-constrained flow.",
)
def leaves_the_set(loss: Loss, trajectory: Trajectory) -> Comparison:
    """How far the plain gradient at points of S is from S, the multiples of Sigma^-1, against 0."""
    slopes, inverse = gradients(loss, drawn_scalars(loss)), jnp.linalg.inv(loss.task.covariance)
    g = jnp.einsum("nkij,ij->nk", slopes, inverse) / jnp.sum(inverse**2)
    off = jnp.linalg.norm(slopes - g[:, :, None, None] * inverse[None, None], axis=(2, 3)).reshape(-1)
    return rounded(at_least(off, 0.0, size=jnp.linalg.norm(slopes, axis=(2, 3)).reshape(-1)), cancellation(loss))


@SECTION.claim(
    "eq-28",
    "proof of Theorem 4, G before (28)",
    "Y_{k+1} = w*^T G with G = X_0 prod_l (I - M X_0^T A_l X_0)",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=ON_PROMPTS,
    spaces=spaces.LAYERS,
    hypotheses=finite_context,
    note="The sign differs from that of (22), (29) and (30); w*^T w* in the display before it should be w* w*^T.",
)
@on_prompts
def eq_28_printed(drawn: Drawn) -> tuple[Row, Row]:
    """w*^T G with G = X_0 prod_l (I - M X_0^T A_l X_0), as printed, against the labels of the layers."""
    Z = labelled(drawn)
    return drawn.weight @ Z[:-1] @ _factors(drawn, -1.0), layers(without_B(drawn), Z)[-1, -1]


@SECTION.claim(
    "eq-28",
    "proof of Theorem 4, G before (28)",
    "Y_{k+1} = w*^T G with G = X_0 prod_l (I + M X_0^T A_l X_0)",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=ON_PROMPTS,
    spaces=spaces.LAYERS,
    form="corrected",
    hypotheses=finite_context,
    note="With the sign of (22); nothing else in the proof changes.",
)
@on_prompts
def eq_28_corrected(drawn: Drawn) -> tuple[Row, Row]:
    """w*^T G with G = X_0 prod_l (I + M X_0^T A_l X_0) against the labels of the layers."""
    Z = labelled(drawn)
    return drawn.weight @ Z[:-1] @ _factors(drawn, 1.0), layers(without_B(drawn), Z)[-1, -1]


@SECTION.claim(
    "eq-29",
    "(29)",
    "For A in S and orthogonal U, with U_Sigma = Sigma^{1/2} U Sigma^{-1/2}, G(U_Sigma X_0) = U_Sigma G(X_0)",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=ON_PROMPTS,
    spaces=spaces.LAYERS,
    hypotheses=finite_context,
    note="Judged on 64 drawn prompts with drawn weights and U.",
)
@on_prompts
def eq_29(drawn: Drawn) -> tuple[Array, Array]:
    """G(U_Sigma X_0) against U_Sigma G(X_0), without B."""
    return turned(without_B(nearest_on_the_set(drawn)), product)


@SECTION.claim(
    "eq-30",
    "(30)",
    "For A in S and every R_j, d/dt G(U_Sigma X_0, A_j + t R_j) = U_Sigma d/dt G(X_0, A_j + t U_Sigma^T R_j U_Sigma)",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=ON_PROMPTS,
    spaces=spaces.LAYERS,
    hypotheses=finite_context,
    note="Judged on 64 drawn prompts with drawn weights, U and R_j, for every j.",
)
@on_prompts
def eq_30(drawn: Drawn) -> tuple[Array, Array]:
    """U_Sigma^-1 d/dt G(U_Sigma X_0) along R_j against d/dt G(X_0) along U_Sigma^T R_j U_Sigma, without B."""
    return turned_slopes(without_B(drawn), product, "A")
