"""ahn2023's section 6.1: how the B_i correct the curvature.

Everything is judged on drawn prompts with drawn weights, in the paper's own sign of A. The literal attention layers
compute the labels. Figures 3 and 4 are in `figures_3_4` and `figures_3_4_training`.
"""

import jax.numpy as jnp
from jaxtyping import Array

from flowsim._core.types import Matrix
from flowsim.claims.declaring import Section
from flowsim.claims.hypotheses import finite_context
from flowsim.papers.ahn2023 import spaces
from flowsim.papers.ahn2023.multi_layer_problems import ISOTROPIC, PAPER_B, SHORT
from flowsim.papers.ahn2023.prompts import Drawn, covariates, inputs_of, masked, nearest_on_the_set, on_prompts
from flowsim.papers.ahn2023.settings import LAYERED, layers_with_inverse_weights


def _curved(drawn: Drawn, metric: Matrix) -> tuple[Array, Array]:
    """X_{i+1} against X_i (I - |a_i b_i| M X_i^T metric X_i), on S with a_i < 0 < b_i."""
    point, n = nearest_on_the_set(drawn), drawn.prompt.inputs.shape[0]
    d, Sigma = drawn.weight.size, drawn.root @ drawn.root
    a, b = jnp.einsum("kij,ij->k", point.A, Sigma) / d, jnp.einsum("kii->k", point.B) / d
    point = point._replace(A=-jnp.sign(a)[:, None, None] * point.A, B=jnp.sign(b)[:, None, None] * point.B)
    X = covariates(point, inputs_of(drawn))
    steps = [jnp.abs(c) * X_i @ masked(X_i).T @ metric @ X_i / n for c, X_i in zip(a * b, X, strict=False)]
    return X[1:], X[:-1] - jnp.stack(steps)


SECTION = Section(
    "ahn2023",
    *LAYERED,
    setting=layers_with_inverse_weights,
    hypotheses=finite_context,
    problems=(PAPER_B, SHORT, ISOTROPIC[0]),
    spaces=spaces.LAYERS,
)


@SECTION.claim("sec-6.1.curvature", "section 6.1, 1.")
@on_prompts
def curvature_printed(drawn: Drawn) -> tuple[Array, Array]:
    r"""On $\mathcal{S}$ with $a_i < 0 < b_i$, $X_{i+1} = X_i (I - \lvert a_i b_i \rvert M X_i^\top X_i)$, with $1/n$ in
    the $a_i$

    The text states it with an approximate sign, at learned weights, which are near S. It holds for Sigma = I.
    """
    return _curved(drawn, jnp.eye(drawn.weight.size))


@SECTION.corrected(curvature_printed)
@on_prompts
def curvature_corrected(drawn: Drawn) -> tuple[Array, Array]:
    r"""On $\mathcal{S}$ with $a_i < 0 < b_i$, $X_{i+1} = X_i (I - \lvert a_i b_i \rvert M X_i^\top \Sigma^{-1} X_i)$,
    with $1/n$ in the $a_i$

    With the Sigma^-1 of A_i = a_i Sigma^-1.
    """
    return _curved(drawn, jnp.linalg.inv(drawn.root @ drawn.root))
