"""ahn2023's sections 5 and 6: layers as preconditioned gradient descent, Theorems 3 to 5, and the effect of B.

S is the set of A_i = a_i Sigma^-1 and B_i = b_i I. Statements about single prompts are judged on random prompts
with random weights, in the paper's sign of A. Theorems 3 to 5 use the sign of `MultiLayerLoss`, A_i = -(the
paper's). No statement here depends on this sign.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim._core.types import Matrix
from flowsim.claims.claim import Comparison, at_least, equal
from flowsim.claims.hypotheses import Hypothesis, finite_context, hypothesis
from flowsim.claims.statements import rounded
from flowsim.models import MultiLayerAttention
from flowsim.models.linear_attention import embed
from flowsim.papers.ahn2023 import problems, prompts, spaces
from flowsim.papers.ahn2023.multi_layer import (
    Loss,
    basis,
    best_primed,
    best_scalars,
    cancellation,
    gradients,
    hessian_on_the_space,
    landscape_constants,
    many_starts,
)
from flowsim.papers.ahn2023.residual_stream import (
    NOTE,
    local_minima,
    lowest,
    minima_constants,
    norms_squared,
    on_the_set,
    slopes,
    where_known,
    within_reach,
)
from flowsim.papers.ahn2023.settings import LAYERS, several_layers, two_isotropic_layers


def _descents(drawn: prompts.Drawn, *, own: bool) -> Float[Array, "layers d"]:
    """The iterates w_1, .., w_k of w_{i+1} = w_i + A_i grad R(w_i) from w_0 = 0, with R = R_{w*} of (10).

    If ``own`` is true, R is R_{w_i} instead, as in the printed (11).
    """
    w, steps = jnp.zeros_like(drawn.weight), []
    for A in drawn.A:
        w = w + A @ jax.grad(prompts.risk, argnums=1)(drawn, w, w if own else drawn.weight)
        steps.append(w)
    return jnp.stack(steps)


def _predictions(drawn: prompts.Drawn) -> prompts.Row:
    """The predictions -y^{(n+1)} after each layer: prediction i is that of the first i layers alone."""
    cut = range(1, drawn.A.shape[0] + 1)
    return jnp.stack([MultiLayerAttention(-drawn.A[:i], symmetric=False)(drawn.prompt) for i in cut])


SECTION_5 = LAYERS().on(problems.ON_PROMPTS, spaces.LAYERS, hypotheses=finite_context)


@SECTION_5.claim("lemma-2", "Lemma 2, (64)")
@prompts.on_prompts
def lemma_2(drawn: prompts.Drawn) -> tuple[prompts.Row, prompts.Row]:
    r"""After layer $i$ the model predicts $\langle x^{(n+1)}, w_i \rangle$, with $w_0 = 0$ and $w_{i+1} = w_i + A_i
    \nabla R_{w_\star}(w_i)$

    Judged on 64 random prompts with random weights, after every layer. The paper counts A_0, .., A_k as k layers; they
    are k + 1. "(64) is equivalent to" should name (63), and w^gd := -theta_k should hold for every layer.
    """
    return _descents(drawn, own=False) @ drawn.prompt.query, _predictions(drawn)


@SECTION_5.claim("eq-11", "(11)")
@prompts.on_prompts
def eq_11(drawn: prompts.Drawn) -> tuple[prompts.Row, prompts.Row]:
    r"""Lemma 2 with $w_{k+1} = w_k + A_k \nabla R_{w_k}(w_k)$

    R_{w_k} is minimal at w_k, so the printed iteration never moves. Lemma 2 has R_{w*} instead. The misprint may be the
    paper's or that of its extracted text.
    """
    return _descents(drawn, own=True) @ drawn.prompt.query, _predictions(drawn)


def diagonals(loss: Loss) -> Float[Array, "d d d"]:
    """A basis of the diagonal matrices."""
    return jax.vmap(jnp.diag)(jnp.eye(loss.task.dimension))


def _lowest(excess: Float[Array, " n"]) -> Float[Array, " 1"]:
    return jnp.nanmin(excess)[None]


ISOTROPIC = SECTION_5.on(
    problems.ISOTROPIC_LAYERS, spaces.ISOTROPIC_LAYERS, hypotheses=two_isotropic_layers, constants=landscape_constants
)


@ISOTROPIC.claim("theorem-3", "Theorem 3")
def theorem_3(loss: Loss) -> Comparison:
    r"""For two layers and $\Sigma = I$ some diagonal $A_0$, $A_1$ minimise $f$ over symmetric matrices

    The least loss from 16 starts over symmetric pairs is compared with that from 16 starts over diagonal pairs. In the
    proof, the indices of products run sometimes from 1 to 2 and sometimes from 0 to 1.
    """
    everywhere, diagonal = (_lowest(many_starts(loss, units)) for units in (basis(loss), diagonals(loss)))
    return rounded(equal(everywhere, diagonal, loss.minimum), cancellation(loss))


@ISOTROPIC.claim("theorem-3.multiples", "Theorem 3", form="corrected")
def theorem_3_multiples(loss: Loss) -> Comparison:
    r"""For $k = 2$ and $\Sigma = I$ two different multiples of $I$, in either order, minimise $f$ over symmetric
    matrices

    This is sharper than the theorem: the step size depends on the layer but not on the coordinate. Minimisation from 16
    starts shows it; it is not proved.
    """
    return rounded(equal(_lowest(many_starts(loss, basis(loss))), 0.0, loss.minimum), cancellation(loss))


def _distorted(drawn: prompts.Drawn) -> tuple[Matrix, Array, Array, Array]:
    """The data of section 5.2 with a random W: x_i = W x-bar_i and y_i = <x-bar_i, w-bar>.

    Here W W^T = Sigma, x-bar_i ~ N(0, I) and w-bar ~ N(0, I).

    **Returns:** W; w-bar, (d,); the x_i, (n, d); the y_i, (n,).
    """
    W, latent = drawn.root @ drawn.turn, drawn.root @ drawn.weight
    hidden = drawn.prompt.inputs @ jnp.linalg.inv(drawn.root)
    return W, latent, hidden @ W.T, hidden @ latent


ON_LAYERS = SECTION_5.on(
    (*problems.STATIC, problems.ONE_LAYER, problems.DEEP, problems.FREE_DEEP),
    spaces.LAYERS,
    hypotheses=(),
    constants=landscape_constants,
)


@SECTION_5.claim("sec-5.2.distorted", "section 5.2")
@prompts.on_prompts
def distorted_printed(drawn: prompts.Drawn) -> tuple[Array, Array]:
    r"""With $x = W \bar x$, $\Sigma = W W^\top$ and $w_\star = \Sigma^{-1/2} \bar w$, $y = \langle \bar x, \bar w
    \rangle$ is $\langle x, w_\star \rangle$

    This is true only for W = Sigma^{1/2}, because <x, w*> = xbar^T W^T Sigma^{-1/2} wbar. Judged at W = Sigma^{1/2} U
    with random orthogonal U.
    """
    _, latent, observed, labels = _distorted(drawn)
    return observed @ jnp.linalg.inv(drawn.root) @ latent, labels


@SECTION_5.corrected(distorted_printed)
@prompts.on_prompts
def distorted_corrected(drawn: prompts.Drawn) -> tuple[Array, Array]:
    r"""With $x = W \bar x$, $\Sigma = W W^\top$ and $w_\star = W^{-\top} \bar w$, $y = \langle \bar x, \bar w \rangle$
    is $\langle x, w_\star \rangle$

    This w* also has the law N(0, Sigma^-1). Theorem 4 needs no more.
    """
    W, latent, observed, labels = _distorted(drawn)
    return observed @ jnp.linalg.solve(W.T, latent), labels


def _hessians(drawn: prompts.Drawn) -> tuple[Array, Array]:
    """X X^T/n, and the Hessian of (10) as JAX computes it."""
    inputs = drawn.prompt.inputs
    return inputs.T @ inputs / inputs.shape[0], jax.hessian(prompts.risk, argnums=1)(drawn, drawn.weight, drawn.weight)


@SECTION_5.claim("sec-5.2.hessian", "section 5.2")
@prompts.on_prompts
def hessian_printed(drawn: prompts.Drawn) -> tuple[Array, Array]:
    r"""The Hessian of (10) is $X X^\top/(2n)$"""
    gram, found = _hessians(drawn)
    return gram / 2, found


@SECTION_5.corrected(hessian_printed)
@prompts.on_prompts
def hessian_corrected(drawn: prompts.Drawn) -> tuple[Array, Array]:
    r"""The Hessian of (10) is $X X^\top/n$

    The second derivative of the square cancels the 1/2 of (10). Likewise E[X X^T] is n Sigma, not Sigma.
    """
    return _hessians(drawn)


def _invertible(loss: Any, start: Any) -> list[Hypothesis]:
    """The hypotheses that n >= d, so that X X^T is invertible, and that prompts can be drawn."""
    enough = hypothesis("n >= d", loss.task.context_length, ">=", float(loss.task.dimension))
    return [enough, *finite_context(loss, start)]


@SECTION_5.on((problems.PAPER, problems.PAPER_B), spaces.LAYERS).claim(
    "sec-5.2.newton", "section 5.2", hypotheses=_invertible
)
@prompts.on_prompts
def newton(drawn: prompts.Drawn) -> tuple[Array, Array]:
    r"""For any fixed prompt one layer with $A_0 = -n (X X^\top)^{-1}$, Newton's method, predicts the query's label

    The text says only that A_0 is proportional to (X X^T)^-1. The Hessian X X^T/n gives the factor.
    """
    inputs = drawn.prompt.inputs
    A = -jnp.linalg.inv(inputs.T @ inputs / inputs.shape[0])
    one = drawn._replace(A=A[None], B=jnp.zeros_like(A)[None])
    label = drawn.weight @ drawn.prompt.query
    return -prompts.layers(one, embed(drawn.prompt))[-1:, -1, -1], label[None]


@ON_LAYERS.claim("theorem-4", "Theorem 4, (24)")
def theorem_4(loss: Loss) -> Comparison:
    r"""$\inf$ over $\mathcal{S}$ of $\sum_i \lVert \nabla_{A_i} f \rVert_F^2$ is $0$

    Judged by the gradient over all matrices at the best a_i, where the infimum of footnote 1 is attained. The best a_i
    are the reciprocals of the zeros of an orthogonal polynomial of degree k. Its weight is x times the mean spectral
    density of the whitened sample covariance.
    """
    best = best_scalars(loss)
    squares = jnp.sum(gradients(loss, jnp.stack([best, jnp.zeros_like(best)])) ** 2, axis=(1, 2, 3))
    return equal(squares[:1], 0.0, squares[1:])


@ON_LAYERS.claim("theorem-4.minimum", "section 5.2", form="corrected")
def theorem_4_minimum(loss: Loss) -> Comparison:
    r"""$A_i \propto \Sigma^{-1}$ is ``locally optimal'': the Hessian over all matrices is positive definite at the best
    of $\mathcal{S}$

    So the minimum is isolated. The text says that local optimality appears to hold; Theorem 4 does not assert it.
    """
    values = jnp.linalg.eigvalsh(hessian_on_the_space(loss, best_primed(loss)))
    return rounded(at_least(values[:1], 0.0, size=values[-1]), values[-1] / jnp.abs(values[0]))


@SECTION_5.on((problems.SHORT, problems.LARGE, problems.FREE, problems.PAPER), spaces.LAYERS).claim(
    "theorem-4.global", "section 5.3", form="corrected", hypotheses=()
)
def every_start(loss: Loss) -> Comparison:
    r"""The best point of $\mathcal{S}$ is a global minimum, as it ``appears'': many starts over all matrices end at its
    loss

    Judged from 16 Gaussian starts. This is evidence, not a proof.
    """
    return rounded(equal(many_starts(loss, basis(loss)), 0.0, loss.minimum), cancellation(loss))


_BY_ALL = NOTE.format("theorem-5.all-matrices")

SECTION_6 = LAYERS()


@SECTION_6.on(problems.WITH_B, spaces.RESIDUAL_STREAM).claim(
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


@SECTION_6.on((problems.PAPER_B, problems.PAPER, problems.LARGE), spaces.SEVERAL_LAYERS).claim(
    "theorem-5.local-minima", "Theorem 5", form="corrected", hypotheses=several_layers, constants=minima_constants
)
def other_minima(loss: Loss) -> Comparison:
    r"""With $B$ the loss on $\mathcal{S}$ has local minima above the lowest

    Without B every local minimum on S is a global one. Descent can also diverge, with a_i -> 0 at a fixed a_i b_i. Such
    a layer moves the covariates but not the labels.
    """
    found, least = local_minima(loss), on_the_set(loss).minimum
    return at_least(jnp.max(jnp.where(found.proper, found.values, least))[None], least, size=least)


def _curved(drawn: prompts.Drawn, metric: Matrix) -> tuple[Array, Array]:
    """X_{i+1}, and X_i (I - |a_i b_i| M X_i^T ``metric`` X_i), stacked over the layers i.

    Both are computed at points of S with a_i < 0 < b_i. The a_i include the factor 1/n.
    """
    point, n = prompts.nearest_on_the_set(drawn), drawn.prompt.inputs.shape[0]
    d, Sigma = drawn.weight.size, drawn.root @ drawn.root
    a, b = jnp.einsum("kij,ij->k", point.A, Sigma) / d, jnp.einsum("kii->k", point.B) / d
    point = point._replace(A=-jnp.sign(a)[:, None, None] * point.A, B=jnp.sign(b)[:, None, None] * point.B)
    X = prompts.covariates(point, prompts.inputs_of(drawn))
    steps = [jnp.abs(c) * X_i @ prompts.masked(X_i).T @ metric @ X_i / n for c, X_i in zip(a * b, X, strict=False)]
    return X[1:], X[:-1] - jnp.stack(steps)


ON_CURVED = SECTION_6.on(
    (problems.PAPER_B, problems.SHORT, problems.ISOTROPIC_LAYERS[0]), spaces.LAYERS, hypotheses=finite_context
)


@ON_CURVED.claim("sec-6.1.curvature", "section 6.1, 1.")
@prompts.on_prompts
def curvature_printed(drawn: prompts.Drawn) -> tuple[Array, Array]:
    r"""On $\mathcal{S}$ with $a_i < 0 < b_i$, $X_{i+1} = X_i (I - \lvert a_i b_i \rvert M X_i^\top X_i)$, with $1/n$ in
    the $a_i$

    The text has an approximate sign, at learned weights near S. Equality holds for Sigma = I.
    """
    return _curved(drawn, jnp.eye(drawn.weight.size))


@ON_CURVED.corrected(curvature_printed)
@prompts.on_prompts
def curvature_corrected(drawn: prompts.Drawn) -> tuple[Array, Array]:
    r"""On $\mathcal{S}$ with $a_i < 0 < b_i$, $X_{i+1} = X_i (I - \lvert a_i b_i \rvert M X_i^\top \Sigma^{-1} X_i)$,
    with $1/n$ in the $a_i$

    The factor Sigma^-1 is that of A_i = a_i Sigma^-1.
    """
    return _curved(drawn, jnp.linalg.inv(drawn.root @ drawn.root))
