"""ahn2023's section 5.2, on layers without B: distorted data, Newton's method, and Theorem 4.

Statements about single prompts are judged on drawn prompts with drawn weights, in the paper's own sign of A. Theorem 4
is judged in the sign of `MultiLayerLoss`, A_i = -(the paper's), which changes nothing in it.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from flowsim._core.types import Matrix
from flowsim.claims.claim import Comparison, at_least, equal
from flowsim.claims.declaring import Section
from flowsim.claims.hypotheses import Hypothesis, finite_context, hypothesis
from flowsim.claims.statements import rounded
from flowsim.models.linear_attention import embed
from flowsim.papers.ahn2023 import spaces
from flowsim.papers.ahn2023.multi_layer import (
    Loss,
    best_primed,
    best_scalars,
    gradients,
    hessian_on_the_space,
    landscape_constants,
)
from flowsim.papers.ahn2023.multi_layer_problems import DEEP, FREE_DEEP, ON_PROMPTS, ONE_LAYER, PAPER, PAPER_B, STATIC
from flowsim.papers.ahn2023.prompts import Drawn, layers, on_prompts, risk
from flowsim.papers.ahn2023.settings import LAYERED, layers_with_inverse_weights


def _distorted(drawn: Drawn) -> tuple[Matrix, Array, Array, Array]:
    """W with W W^T = Sigma, w-bar ~ N(0, I), x_i = W x-bar_i and y_i = <x-bar_i, w-bar>, for x-bar_i ~ N(0, I)."""
    W, latent = drawn.root @ drawn.turn, drawn.root @ drawn.weight
    hidden = drawn.prompt.inputs @ jnp.linalg.inv(drawn.root)
    return W, latent, hidden @ W.T, hidden @ latent


SECTION = Section("ahn2023", *LAYERED, setting=layers_with_inverse_weights, hypotheses=finite_context)
ON_ON_PROMPTS = SECTION.on(ON_PROMPTS, spaces.LAYERS)
ON_LAYERS = SECTION.on((*STATIC, ONE_LAYER, DEEP, FREE_DEEP), spaces.LAYERS, hypotheses=())


@ON_ON_PROMPTS.claim("sec-5.2.distorted", "section 5.2")
@on_prompts
def distorted_printed(drawn: Drawn) -> tuple[Array, Array]:
    r"""With $x = W \bar x$, $\Sigma = W W^\top$ and $w_\star = \Sigma^{-1/2} \bar w$, $y = \langle \bar x, \bar w
    \rangle$ is $\langle x, w_\star \rangle$

    True only for W = Sigma^{1/2}: x^T Sigma^{-1/2} wbar = xbar^T W^T Sigma^{-1/2} wbar. Judged at W = Sigma^{1/2} U
    with drawn orthogonal U.
    """
    _, latent, observed, labels = _distorted(drawn)
    return observed @ jnp.linalg.inv(drawn.root) @ latent, labels


@ON_ON_PROMPTS.corrected(distorted_printed)
@on_prompts
def distorted_corrected(drawn: Drawn) -> tuple[Array, Array]:
    r"""With $x = W \bar x$, $\Sigma = W W^\top$ and $w_\star = W^{-\top} \bar w$, $y = \langle \bar x, \bar w \rangle$
    is $\langle x, w_\star \rangle$

    W^{-T} wbar has the law N(0, Sigma^-1) too, which is all that Theorem 4 needs.
    """
    W, latent, observed, labels = _distorted(drawn)
    return observed @ jnp.linalg.solve(W.T, latent), labels


@ON_ON_PROMPTS.claim("sec-5.2.hessian", "section 5.2")
@on_prompts
def hessian_printed(drawn: Drawn) -> tuple[Array, Array]:
    r"""The Hessian of (10) is $X X^\top/(2n)$"""
    X, n = drawn.prompt.inputs.T, drawn.prompt.inputs.shape[0]
    return X @ X.T / (2 * n), jax.hessian(risk, argnums=1)(drawn, drawn.weight, drawn.weight)


@ON_ON_PROMPTS.corrected(hessian_printed)
@on_prompts
def hessian_corrected(drawn: Drawn) -> tuple[Array, Array]:
    r"""The Hessian of (10) is $X X^\top/n$

    Differentiating the square cancels the 1/2 of (10). Likewise E[X X^T] is n Sigma, not Sigma.
    """
    X, n = drawn.prompt.inputs.T, drawn.prompt.inputs.shape[0]
    return X @ X.T / n, jax.hessian(risk, argnums=1)(drawn, drawn.weight, drawn.weight)


def _invertible(loss: Any, start: Any) -> list[Hypothesis]:
    """X X^T is invertible, and prompts can be drawn."""
    enough = hypothesis("n >= d", loss.task.context_length, ">=", float(loss.task.dimension))
    return [enough, *finite_context(loss, start)]


@SECTION.claim("sec-5.2.newton", "section 5.2", hypotheses=_invertible, problems=(PAPER, PAPER_B), spaces=spaces.LAYERS)
@on_prompts
def newton(drawn: Drawn) -> tuple[Array, Array]:
    r"""For any fixed prompt one layer with $A_0 = -n (X X^\top)^{-1}$, Newton's method, predicts the query's label

    The text says only that A_0 is proportional to (X X^T)^-1; the factor is that of the Hessian X X^T/n.
    """
    inputs = drawn.prompt.inputs
    A = -jnp.linalg.inv(inputs.T @ inputs / inputs.shape[0])
    one = drawn._replace(A=A[None], B=jnp.zeros_like(A)[None])
    label = drawn.weight @ drawn.prompt.query
    return -layers(one, embed(drawn.prompt))[-1:, -1, -1], label[None]


@ON_LAYERS.claim("theorem-4", "Theorem 4, (24)", constants=landscape_constants)
def theorem_4(loss: Loss) -> Comparison:
    r"""$\inf$ over $\mathcal{S}$ of $\sum_i \lVert \nabla_{A_i} f \rVert_F^2$ is $0$

    Judged by the gradient over all matrices at the best a_i, which are the reciprocals of the zeros of the orthogonal
    polynomial of degree k for x times the mean spectrum. The infimum of footnote 1 is attained.
    """
    best = best_scalars(loss)
    squares = jnp.sum(gradients(loss, jnp.stack([best, jnp.zeros_like(best)])) ** 2, axis=(1, 2, 3))
    return equal(squares[:1], 0.0, squares[1:])


@ON_LAYERS.claim("theorem-4.minimum", "section 5.2", form="corrected", constants=landscape_constants)
def theorem_4_minimum(loss: Loss) -> Comparison:
    r"""$A_i \propto \Sigma^{-1}$ is ``locally optimal'': the Hessian over all matrices is positive definite at the best
    of $\mathcal{S}$

    The text says that this appears to be so; Theorem 4 does not assert it. The minimum is isolated.
    """
    values = jnp.linalg.eigvalsh(hessian_on_the_space(loss, best_primed(loss)))
    return rounded(at_least(values[:1], 0.0, size=values[-1]), values[-1] / jnp.abs(values[0]))
