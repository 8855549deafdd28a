"""ahn2023's section 5.2, on layers without B: distorted data, Newton's method, and Theorem 4.

Statements about single prompts are judged on drawn prompts with drawn weights, in the paper's own sign of A. Theorem 4
is judged in the sign of `MultiLayerLoss`, A_i = -(the paper's), which changes nothing in it.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from flowsim._core.types import Matrix
from flowsim.claims.claim import Comparison, Relation, at_least, equal
from flowsim.claims.hypotheses import Hypothesis, finite_context, hypothesis
from flowsim.claims.statements import rounded
from flowsim.flow.trajectory import Trajectory
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
from flowsim.papers.paper import Section

SECTION = Section("ahn2023", *LAYERED)


def _distorted(drawn: Drawn) -> tuple[Matrix, Array, Array, Array]:
    """W with W W^T = Sigma, w-bar ~ N(0, I), x_i = W x-bar_i and y_i = <x-bar_i, w-bar>, for x-bar_i ~ N(0, I)."""
    W, latent = drawn.root @ drawn.turn, drawn.root @ drawn.weight
    hidden = drawn.prompt.inputs @ jnp.linalg.inv(drawn.root)
    return W, latent, hidden @ W.T, hidden @ latent


@SECTION.claim(
    "sec-5.2.distorted",
    "section 5.2",
    "With x = W xbar, Sigma = W W^T and w* = Sigma^{-1/2} wbar, y = <xbar, wbar> is <x, w*>",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=ON_PROMPTS,
    spaces=spaces.LAYERS,
    hypotheses=finite_context,
    note="True only for W = Sigma^{1/2}: x^T Sigma^{-1/2} wbar = xbar^T W^T Sigma^{-1/2} wbar. Judged at W = "
    "Sigma^{1/2} U with drawn orthogonal U.",
)
@on_prompts
def distorted_printed(drawn: Drawn) -> tuple[Array, Array]:
    """<x_i, w*> with w* = Sigma^{-1/2} w-bar, as printed, against y_i."""
    _, latent, observed, labels = _distorted(drawn)
    return observed @ jnp.linalg.inv(drawn.root) @ latent, labels


@SECTION.claim(
    "sec-5.2.distorted",
    "section 5.2",
    "With x = W xbar, Sigma = W W^T and w* = W^{-T} wbar, y = <xbar, wbar> is <x, w*>",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=ON_PROMPTS,
    spaces=spaces.LAYERS,
    form="corrected",
    hypotheses=finite_context,
    note="W^{-T} wbar has the law N(0, Sigma^-1) too, which is all that Theorem 4 needs.",
)
@on_prompts
def distorted_corrected(drawn: Drawn) -> tuple[Array, Array]:
    """<x_i, w*> with w* = W^-T w-bar against y_i."""
    W, latent, observed, labels = _distorted(drawn)
    return observed @ jnp.linalg.solve(W.T, latent), labels


@SECTION.claim(
    "sec-5.2.hessian",
    "section 5.2",
    "The Hessian of (10) is X X^T/(2n)",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=ON_PROMPTS,
    spaces=spaces.LAYERS,
    hypotheses=finite_context,
)
@on_prompts
def hessian_printed(drawn: Drawn) -> tuple[Array, Array]:
    """X X^T/(2n) against the Hessian of (10)."""
    X, n = drawn.prompt.inputs.T, drawn.prompt.inputs.shape[0]
    return X @ X.T / (2 * n), jax.hessian(risk, argnums=1)(drawn, drawn.weight, drawn.weight)


@SECTION.claim(
    "sec-5.2.hessian",
    "section 5.2",
    "The Hessian of (10) is X X^T/n",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=ON_PROMPTS,
    spaces=spaces.LAYERS,
    form="corrected",
    hypotheses=finite_context,
    note="Differentiating the square cancels the 1/2 of (10). Likewise E[X X^T] is n Sigma, not Sigma.",
)
@on_prompts
def hessian_corrected(drawn: Drawn) -> tuple[Array, Array]:
    """X X^T/n against the Hessian of (10)."""
    X, n = drawn.prompt.inputs.T, drawn.prompt.inputs.shape[0]
    return X @ X.T / n, jax.hessian(risk, argnums=1)(drawn, drawn.weight, drawn.weight)


def _invertible(loss: Any, start: Any) -> list[Hypothesis]:
    """X X^T is invertible, and prompts can be drawn."""
    enough = hypothesis("n >= d", loss.task.context_length, ">=", float(loss.task.dimension))
    return [enough, *finite_context(loss, start)]


@SECTION.claim(
    "sec-5.2.newton",
    "section 5.2",
    "For any fixed prompt one layer with A_0 = -n (X X^T)^-1, Newton's method, predicts the query's label",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=(PAPER, PAPER_B),
    spaces=spaces.LAYERS,
    hypotheses=_invertible,
    note="The text says only that A_0 is proportional to (X X^T)^-1; the factor is that of the Hessian X X^T/n.",
)
@on_prompts
def newton(drawn: Drawn) -> tuple[Array, Array]:
    """The prediction of one layer with A_0 = -n (X X^T)^-1 against the query's label."""
    inputs = drawn.prompt.inputs
    A = -jnp.linalg.inv(inputs.T @ inputs / inputs.shape[0])
    one = drawn._replace(A=A[None], B=jnp.zeros_like(A)[None])
    label = drawn.weight @ drawn.prompt.query
    return -layers(one, embed(drawn.prompt))[-1:, -1, -1], label[None]


@SECTION.claim(
    "theorem-4",
    "Theorem 4, (24)",
    "inf over S of sum_i |grad_{A_i} f|_F^2 is 0",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=(*STATIC, ONE_LAYER, DEEP, FREE_DEEP),
    spaces=spaces.LAYERS,
    constants=landscape_constants,
    note="Judged by the gradient over all matrices at the best a_i, which are the reciprocals of the zeros of the "
    "orthogonal polynomial of degree k for x times the mean spectrum. The infimum of footnote 1 is attained.",
)
def theorem_4(loss: Loss, trajectory: Trajectory) -> Comparison:
    """sum_i |grad_{A_i} f|_F^2 at the best point of S, relative to that at A = 0."""
    best = best_scalars(loss)
    squares = jnp.sum(gradients(loss, jnp.stack([best, jnp.zeros_like(best)])) ** 2, axis=(1, 2, 3))
    return equal(squares[:1], 0.0, squares[1:])


@SECTION.claim(
    "theorem-4.minimum",
    "section 5.2",
    'A_i ~ Sigma^-1 is "locally optimal": the Hessian over all matrices is positive definite at the best of S',
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=layers_with_inverse_weights,
    problems=(*STATIC, ONE_LAYER, DEEP, FREE_DEEP),
    spaces=spaces.LAYERS,
    form="corrected",
    constants=landscape_constants,
    note="The text says that this appears to be so; Theorem 4 does not assert it. The minimum is isolated.",
)
def theorem_4_minimum(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The smallest eigenvalue of the Hessian over all matrices of the space, at the best point of S, against 0."""
    values = jnp.linalg.eigvalsh(hessian_on_the_space(loss, best_primed(loss)))
    return rounded(at_least(values[:1], 0.0, size=values[-1]), values[-1] / jnp.abs(values[0]))
