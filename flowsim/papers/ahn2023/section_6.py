"""ahn2023's section 6, layers with B: Theorem 5, and how the B_i correct the curvature.

S is {A_i = a_i Sigma^-1, B_i = b_i I}. `residual_stream` computes the gradients over all matrices at points of S.
"""

import jax.numpy as jnp
from jaxtyping import Array

from flowsim._core.types import Matrix
from flowsim.claims.claim import Comparison, at_least, equal
from flowsim.claims.declaring import Section
from flowsim.claims.hypotheses import finite_context
from flowsim.papers.ahn2023 import spaces
from flowsim.papers.ahn2023.multi_layer import Loss
from flowsim.papers.ahn2023.problems import ISOTROPIC_LAYERS, LARGE, PAPER, PAPER_B, SHORT, WITH_B
from flowsim.papers.ahn2023.prompts import Drawn, covariates, inputs_of, masked, nearest_on_the_set, on_prompts
from flowsim.papers.ahn2023.residual_stream import NOTE, norms_squared, slopes, where_known, within_reach
from flowsim.papers.ahn2023.scalars import local_minima, lowest, minima_constants, on_the_set
from flowsim.papers.ahn2023.settings import LAYERED, layers_with_inverse_weights, several_layers

_BY_ALL = NOTE.format("theorem-5.all-matrices")


SECTION_6 = Section("ahn2023", *LAYERED, setting=layers_with_inverse_weights)


@SECTION_6.on(WITH_B, spaces.RESIDUAL_STREAM).claim(
    "theorem-5",
    "Theorem 5, (14)",
    hypotheses=within_reach,
    constants=minima_constants,
    note="Judged at the best scalars that a search finds. " + _BY_ALL,
)
@where_known
def theorem_5(loss: Loss) -> Comparison:
    r"""$\inf$ over $\mathcal{S}$ of $\sum_i \lVert \nabla_{A_i} f \rVert_F^2 + \lVert \nabla_{B_i} f
    \rVert_F^2$ is $0$
    """
    best = lowest(loss)
    squares = norms_squared(slopes(loss, jnp.stack([best, jnp.zeros_like(best)])))
    return equal(squares[:1], 0.0, squares[1:])


@SECTION_6.on((PAPER_B, PAPER, LARGE), spaces.SEVERAL_LAYERS).claim(
    "theorem-5.local-minima", "Theorem 5", form="corrected", hypotheses=several_layers, constants=minima_constants
)
def other_minima(loss: Loss) -> Comparison:
    r"""With $B$ the loss on $\mathcal{S}$ has local minima above the lowest

    Without B every local minimum on S is a global one. Descent can also run off to infinity, with a_i -> 0 at a fixed
    a_i b_i: such a layer moves the covariates but not the labels.
    """
    found, least = local_minima(loss), on_the_set(loss).minimum
    return at_least(jnp.max(jnp.where(found.proper, found.values, least))[None], least, size=least)


def _curved(drawn: Drawn, metric: Matrix) -> tuple[Array, Array]:
    """X_{i+1} against X_i (I - |a_i b_i| M X_i^T metric X_i), on S with a_i < 0 < b_i."""
    point, n = nearest_on_the_set(drawn), drawn.prompt.inputs.shape[0]
    d, Sigma = drawn.weight.size, drawn.root @ drawn.root
    a, b = jnp.einsum("kij,ij->k", point.A, Sigma) / d, jnp.einsum("kii->k", point.B) / d
    point = point._replace(A=-jnp.sign(a)[:, None, None] * point.A, B=jnp.sign(b)[:, None, None] * point.B)
    X = covariates(point, inputs_of(drawn))
    steps = [jnp.abs(c) * X_i @ masked(X_i).T @ metric @ X_i / n for c, X_i in zip(a * b, X, strict=False)]
    return X[1:], X[:-1] - jnp.stack(steps)


SECTION_6_1 = Section(
    "ahn2023",
    *LAYERED,
    setting=layers_with_inverse_weights,
    hypotheses=finite_context,
    problems=(PAPER_B, SHORT, ISOTROPIC_LAYERS[0]),
    spaces=spaces.LAYERS,
)


@SECTION_6_1.claim("sec-6.1.curvature", "section 6.1, 1.")
@on_prompts
def curvature_printed(drawn: Drawn) -> tuple[Array, Array]:
    r"""On $\mathcal{S}$ with $a_i < 0 < b_i$, $X_{i+1} = X_i (I - \lvert a_i b_i \rvert M X_i^\top X_i)$, with $1/n$ in
    the $a_i$

    The text states it with an approximate sign, at learned weights, which are near S. It holds for Sigma = I.
    """
    return _curved(drawn, jnp.eye(drawn.weight.size))


@SECTION_6_1.corrected(curvature_printed)
@on_prompts
def curvature_corrected(drawn: Drawn) -> tuple[Array, Array]:
    r"""On $\mathcal{S}$ with $a_i < 0 < b_i$, $X_{i+1} = X_i (I - \lvert a_i b_i \rvert M X_i^\top \Sigma^{-1} X_i)$,
    with $1/n$ in the $a_i$

    With the Sigma^-1 of A_i = a_i Sigma^-1.
    """
    return _curved(drawn, jnp.linalg.inv(drawn.root @ drawn.root))
