"""ahn2023's appendix B.1: the proof of Theorem 3.

The matrices carry the sign of `MultiLayerLoss`, A_i = -(the paper's), which changes no statement here; on drawn prompts
they carry the paper's own sign.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from flowsim._core.types import Scalar
from flowsim.claims.claim import Comparison, at_least, at_most, equal
from flowsim.claims.declaring import Section
from flowsim.claims.hypotheses import Hypothesis, agrees, finite_context
from flowsim.claims.statements import joined, rounded
from flowsim.models import MultiLayerAttention
from flowsim.papers.ahn2023 import spaces
from flowsim.papers.ahn2023.multi_layer import Loss, cancellation, drawn_matrices, losses_at
from flowsim.papers.ahn2023.multi_layer_problems import ISOTROPIC
from flowsim.papers.ahn2023.prompts import Columns, Drawn, inputs_of, on_prompts, product, states_from, without_B
from flowsim.papers.ahn2023.settings import (
    LAYERED,
    layers_with_inverse_weights,
    two_isotropic_layers,
)


def _symmetric_layers(loss: Loss, start: MultiLayerAttention) -> list[Hypothesis]:
    """The hypotheses of Theorem 3, and symmetric A_i, because the display does not transpose them."""
    return [*two_isotropic_layers(loss, start), agrees("symmetric A_i", float(loss.symmetric), 1.0)]


def _factored(drawn: Drawn) -> tuple[Columns, Scalar]:
    """X_0 prod_i (I + M X_0^T A_i X_0), and the squared error of the literal layers for the query, averaged over w.

    The error is linear in w ~ N(0, I), so the mean of its square is the sum over the unit vectors.
    """
    point, X = without_B(drawn), inputs_of(drawn)
    error = lambda w: states_from(point._replace(weight=w), X)[-1, -1, -1]
    return product(point, X), jnp.sum(jax.vmap(error)(jnp.eye(X.shape[0])) ** 2)


SECTION = Section(
    "ahn2023",
    *LAYERED,
    setting=layers_with_inverse_weights,
    hypotheses=two_isotropic_layers,
    problems=ISOTROPIC,
    spaces=spaces.ISOTROPIC_LAYERS,
)


@SECTION.claim("theorem-3.trace", "proof of Theorem 3, first display", hypotheses=(_symmetric_layers, finite_context))
@on_prompts
def trace_of_all(drawn: Drawn) -> tuple[Array, Array]:
    r"""$f(A_0, A_1) = \mathbb{E} \operatorname{tr}\Bigl(\prod_i (I + X_0^\top A_i X_0 M)\, X_0^\top X_0 \prod_i (I + M
    X_0^\top A_i X_0)\Bigr)$

    For each of 64 drawn prompts, averaged over w. The trace sums the squared errors of all n + 1 columns; f is that of
    the query. The 1/n is absorbed in the A_i; the limits of the products are printed in three ways.
    """
    columns, expected = _factored(drawn)
    return jnp.sum(columns**2), expected


@SECTION.corrected(trace_of_all, hypotheses=(_symmetric_layers, finite_context))
@on_prompts
def trace_of_the_query(drawn: Drawn) -> tuple[Array, Array]:
    r"""$f(A_0, A_1) = \mathbb{E} \operatorname{tr}\Bigl((I - M) \prod_i (I + X_0^\top A_i X_0 M)\, X_0^\top X_0 \prod_i
    (I + M X_0^\top A_i X_0)\, (I - M)\Bigr)$

    With the I - M of Lemma 9, to which the proof refers. For each of 64 drawn prompts, averaged over w; the 1/n is
    absorbed in the A_i.
    """
    columns, expected = _factored(drawn)
    return jnp.sum(columns[:, -1] ** 2), expected


@SECTION.claim("theorem-3.rotation", "proof of Theorem 3")
def theorem_3_rotation(loss: Loss) -> Comparison:
    r"""$f(U D_0 U^\top, A_1) = f(D_0, U^\top A_1 U)$ for orthogonal $U$, and $f(D_0, A_1) = f(D_0, S A_1 S)$ for
    diagonal $D_0$ and $S = \operatorname{diag}(\pm 1, \dots, \pm 1)$

    At drawn symmetric A_0 = U D_0 U^T and A_1. The text says that X_0 U^T has the law of X_0, but their shapes do not
    fit; U^T X_0 has it.
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


@SECTION.claim("theorem-3.proof", "proof of Theorem 3")
def theorem_3_proof(loss: Loss) -> Comparison:
    r"""$f\bigl(D_0, \operatorname{diag}(A_1)\bigr) \le f(D_0, A_1)$ for diagonal $D_0$, and the same with the layers
    exchanged

    At drawn matrices.
    """
    kept = jnp.eye(loss.task.dimension)[None, None]
    matrices, comparisons = drawn_matrices(loss, 1), []
    for fixed in (0, 1):
        general = matrices.at[:, fixed].multiply(kept[0])
        values = [losses_at(loss, primed) for primed in (matrices * kept, general)]
        comparisons.append(at_most(*values))
    return rounded(joined(comparisons), cancellation(loss))


@SECTION.claim("theorem-3.convex", "proof of Theorem 3")
def theorem_3_convex(loss: Loss) -> Comparison:
    """$f$ is convex in $A_1$, and in $A_0$, the other one fixed

    Along drawn directions at drawn matrices.
    """
    matrices, directions, comparisons = drawn_matrices(loss, 1), drawn_matrices(loss, 2), []
    for moved in range(loss.layers):
        step = jnp.zeros_like(directions).at[:, moved].set(directions[:, moved])
        ahead, here, behind = (losses_at(loss, matrices + sign * step) for sign in (1.0, 0.0, -1.0))
        # f is quadratic in each matrix, so the second difference is the second derivative.
        comparisons.append(at_least(ahead - 2 * here + behind, 0.0, size=ahead + 2 * here + behind))
    return rounded(joined(comparisons), cancellation(loss))
