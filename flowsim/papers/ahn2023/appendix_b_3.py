"""ahn2023's appendix B.3, the proof of Theorem 5: gradients over all matrices at points of S, and rotations.

On S = {A_i = a_i Sigma^-1, B_i = b_i I} the loss is F(a, b) of `ScalarLayersLoss`. Sampling errors never vanish, so
an equation on samples is judged as a bound on the difference of its sides. Equations (38) to (50) are judged on
random prompts with random weights, in the paper's sign of A. In these equations U is orthogonal, and U_Sigma =
Sigma^{1/2} U Sigma^{-1/2} transforms the covariates.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim.claims.claim import Comparison, at_most, equal
from flowsim.claims.declaring import Section
from flowsim.claims.hypotheses import Hypothesis, agrees, finite_context
from flowsim.claims.statements import joined
from flowsim.losses import MonteCarloLoss
from flowsim.models import MultiLayerAttention, ScalarLayers
from flowsim.papers.ahn2023 import problems, prompts, spaces
from flowsim.papers.ahn2023.multi_layer import Loss
from flowsim.papers.ahn2023.residual_stream import (
    NOTE,
    Slopes,
    drawn_points,
    norms_squared,
    scalar_loss,
    scalar_slopes,
    slopes,
    where_known,
    within_reach,
)
from flowsim.papers.ahn2023.settings import LAYERS, moving, sampled_layers

_BY_ALL = NOTE.format("theorem-5.all-matrices")
_BY_ALL_35 = NOTE.format("eq-35.all-matrices")

SECTION = LAYERS(hypotheses=within_reach, problems=problems.WITH_B, spaces=spaces.RESIDUAL_STREAM)


@SECTION.claim(
    "theorem-5.gradient",
    "proof of Theorem 5",
    form="corrected",
    note="(36), and (37) with S~_j = s_j I, say this in other words; F is known by "
    "quadrature over one eigenvalue. " + _BY_ALL,
)
@where_known
def gradient_on_the_set(loss: Loss) -> Comparison:
    r"""At points of $\mathcal{S}$, where $f(A, B) = F(a, b)$, $\nabla_{A_i} f = \tfrac{\partial F}{\partial a_i}
    \Sigma/d$ and $\nabla_{B_i} f = \tfrac{\partial F}{\partial b_i} I/d$
    """
    points, d = drawn_points(loss), loss.task.dimension
    of_a, of_b = scalar_slopes(loss, points)
    found, comparisons = slopes(loss, points), []
    for matrices, slope, shape in ((found.A, of_a, loss.task.covariance), (found.B, of_b, jnp.eye(d))):
        expected = slope[:, :, None, None] * shape[None, None] / d
        off = jnp.linalg.norm(matrices - expected, axis=(2, 3)).reshape(-1)
        # The gradients in the A_i vanish at the first point, so those at the other points give the size.
        comparisons.append(equal(off, 0.0, jnp.max(jnp.linalg.norm(matrices, axis=(2, 3)))))
    return joined(comparisons)


class _Sides(NamedTuple):
    """Derivatives d/dt f at n random points, along two steps of the matrix A_j or B_j of each layer.

    **Fields:**

    - replaced: the derivatives along R~_j.
    - given: the derivatives along random R_j.
    - size: |grad f|_F |R_j|_F, with the gradient in the matrix of layer j.
    """

    replaced: Float[Array, "n layers"]
    given: Float[Array, "n layers"]
    size: Float[Array, "n layers"]


def _along(found: Float[Array, "n layers d d"], left: Array, right: Array, replacement: Array, key: int) -> _Sides:
    """The derivatives along R~_j = (tr(left R_j right)/d) ``replacement`` and along R_j, for random R_j.

    **Arguments:**

    - found: the gradients in the matrix of each layer, at n points.
    - left, right, replacement: (d, d).
    - key: the seed of the R_j.
    """
    d = found.shape[-1]
    drawn = jax.random.normal(jax.random.key(key), found.shape)
    trace = jnp.einsum("ij,nkjl,li->nk", left, drawn, right) / d
    given = jnp.einsum("nkij,nkij->nk", found, drawn)
    size = jnp.linalg.norm(found, axis=(2, 3)) * jnp.linalg.norm(drawn, axis=(2, 3))
    return _Sides(jnp.einsum("nkij,ij->nk", found, replacement) * trace, given, size)


def _both_along(loss: Loss, of_A: Array, of_B: Array) -> tuple[_Sides, _Sides]:
    """The derivatives along R~_j = r_j ``of_A`` in the A_j, and along S~_j = s_j ``of_B`` in the B_j.

    The text after (34) defines r_j and s_j. The points are random points of S, none of which is critical.
    """
    found, root = slopes(loss, drawn_points(loss)[1:]), loss.root
    inverse = jnp.linalg.inv(root)
    return _along(found.A, root, root, of_A, 11), _along(found.B, inverse, root, of_B, 12)


def _together(of_A: _Sides, of_B: _Sides) -> _Sides:
    """The derivatives along steps of all A_i and B_i at once: the sums over the layers."""
    return jax.tree.map(lambda a, b: jnp.sum(a, axis=1) + jnp.sum(b, axis=1), of_A, of_B)


def _no_more(sides: _Sides) -> Comparison:
    """The statement that the derivative along R~_j is at most the derivative along R_j, for random R_j and for
    -R_j.
    """
    both = (jnp.concatenate([side.reshape(-1), -side.reshape(-1)]) for side in (sides.replaced, sides.given))
    return at_most(*both, size=jnp.tile(sides.size.reshape(-1), 2))


def _the_same(sides: _Sides) -> Comparison:
    return equal(*(side.reshape(-1) for side in sides))


@SECTION.claim(
    "eq-34",
    "(34) with R~_i = r_i I, S~_i = s_i I",
    note="At drawn (R, S). r_i I is not in S unless Sigma is a multiple of I. " + _BY_ALL,
)
@where_known
def eq_34(loss: Loss) -> Comparison:
    r"""For $(A, B) \in \mathcal{S}$ and every $(R, S)$, $\frac{d}{dt} f(A + t \tilde R, B + t \tilde S) \le
    \frac{d}{dt} f(A + t R, B + t S)$ with $\tilde R_i = r_i I$, $\tilde S_i = s_i I$, $r_i =
    \operatorname{tr}(\Sigma^{1/2} R_i \Sigma^{1/2})/d$, $s_i = \operatorname{tr}(\Sigma^{-1/2} S_i \Sigma^{1/2})/d$
    """
    eye = jnp.eye(loss.task.dimension)
    return _no_more(_together(*_both_along(loss, eye, eye)))


@SECTION.corrected(eq_34, "(34) with R~_i = r_i Sigma^-1, S~_i = s_i I", note="At drawn (R, S). " + _BY_ALL)
@where_known
def eq_34_corrected(loss: Loss) -> Comparison:
    r"""For $(A, B) \in \mathcal{S}$ and every $(R, S)$, $\frac{d}{dt} f(A + t \tilde R, B + t \tilde S) = \frac{d}{dt}
    f(A + t R, B + t S)$ with $\tilde R_i = r_i \Sigma^{-1}$, $\tilde S_i = s_i I$, and $r_i$, $s_i$ as printed
    """
    inverse, eye = jnp.linalg.inv(loss.task.covariance), jnp.eye(loss.task.dimension)
    return _the_same(_together(*_both_along(loss, inverse, eye)))


def _traces(loss: Loss | MonteCarloLoss, found: Slopes) -> tuple[Float[Array, "n k"], Float[Array, "n rest"]]:
    """tr(Sigma^{1/2} grad_{A_i} Sigma^{1/2}) and tr(Sigma^{-1/2} grad_{B_i} Sigma^{1/2}) = tr(grad_{B_i})."""
    return jnp.einsum("nkij,ij->nk", found.A, loss.task.covariance), jnp.einsum("nkii->nk", found.B)


def _decrease(loss: Loss | MonteCarloLoss, found: Slopes, step_of_B: Float[Array, "d d"]) -> tuple[Array, Array]:
    """The derivative d/dt f along a flow, and the sum of squared norms in (14). ``found`` gives the gradients.

    The flow is dA_i/dt = -tr(Sigma^{1/2} grad_{A_i} Sigma^{1/2}) Sigma^-1 and dB_i/dt = -tr(grad_{B_i}) step_of_B.
    """
    r, s = _traces(loss, found)
    along_A = jnp.sum(r * jnp.einsum("nkij,ij->nk", found.A, jnp.linalg.inv(loss.task.covariance)), axis=1)
    along_B = jnp.sum(s * jnp.einsum("nkij,ij->nk", found.B, step_of_B), axis=1)
    return -along_A - along_B, norms_squared(found)


@SECTION.claim(
    "eq-35",
    "(35)",
    note="The decrease due to B is too small by the factor tr Sigma^-1 where that is below 1. This matters where "
    "grad_A f vanishes, as at the best scalars without B; elsewhere that due to A has a factor d to spare. "
    + _BY_ALL_35,
)
@where_known
def eq_35(loss: Loss) -> Comparison:
    r"""Along $dA_i/dt = -r_i \Sigma^{-1}$, $dB_i/dt = -s_i \Sigma^{-1}$, $\frac{d}{dt} f \le -\sum \lVert \nabla_{A_i}
    f \rVert_F^2 + \lVert \nabla_{B_i} f \rVert_F^2$ at points of $\mathcal{S}$
    """
    found, inverse = slopes(loss, drawn_points(loss)), jnp.linalg.inv(loss.task.covariance)
    rate, squares = _decrease(loss, found, inverse)
    return at_most(rate, -squares)


@SECTION.corrected(eq_35, note=_BY_ALL_35)
@where_known
def eq_35_corrected(loss: Loss) -> Comparison:
    r"""Along $dA_i/dt = -r_i \Sigma^{-1}$, $dB_i/dt = -s_i I$, with $1/d$ in $r_i$ and $s_i$, $\frac{d}{dt} f = -\sum
    \lVert \nabla_{A_i} f \rVert_F^2 + \lVert \nabla_{B_i} f \rVert_F^2$
    """
    rate, squares = _decrease(loss, slopes(loss, drawn_points(loss)), jnp.eye(loss.task.dimension))
    return equal(rate / loss.task.dimension, -squares, squares)


@SECTION.claim("eq-35.constrained", "the S-constrained flow before (35)")
@where_known
def eq_35_in_the_set(loss: Loss) -> Comparison:
    r"""$dB_i/dt = -s_i \Sigma^{-1}$ keeps $B_i$ a multiple of $I$

    This flow leaves S at once unless Sigma is a multiple of I, but (35) is about points of S. It should be -s_i I.
    """
    d = loss.task.dimension
    _, s = _traces(loss, slopes(loss, drawn_points(loss)))
    speed = -s.reshape(-1, 1, 1) * jnp.linalg.inv(loss.task.covariance)[None]
    off = speed - jnp.trace(speed, axis1=1, axis2=2)[:, None, None] / d * jnp.eye(d)[None]
    return equal(jnp.linalg.norm(off, axis=(1, 2)), 0.0, jnp.linalg.norm(speed, axis=(1, 2)))


@SECTION.claim(
    "eq-36",
    "(36)",
    note="Both sides are linear in R_j, and -R_j is a direction too, so the inequality for every R_j is an equality, "
    "and judged as one, at drawn R_j. After (34) R~_i = r_i I is printed instead (see eq-34). " + _BY_ALL,
)
@where_known
def eq_36(loss: Loss) -> Comparison:
    r"""For $(A, B) \in \mathcal{S}$ and every $R_j$, $\frac{d}{dt} f(A + t \tilde R_j) \le \frac{d}{dt} f(A + t R_j)$
    with $\tilde R_j = r_j \Sigma^{-1}$
    """
    inverse = jnp.linalg.inv(loss.task.covariance)
    return _the_same(_both_along(loss, inverse, inverse)[0])


@SECTION.claim("eq-37", "(37) with S~_j = s_j Sigma^-1", note="At drawn S_j. " + _BY_ALL)
@where_known
def eq_37(loss: Loss) -> Comparison:
    r"""For $(A, B) \in \mathcal{S}$ and every $S_j$, $\frac{d}{dt} f(B + t \tilde S_j) \le \frac{d}{dt} f(B + t S_j)$
    with $\tilde S_j = s_j \Sigma^{-1}$
    """
    inverse = jnp.linalg.inv(loss.task.covariance)
    return _no_more(_both_along(loss, inverse, inverse)[1])


@SECTION.corrected(
    eq_37,
    "(37) with S~_j = s_j I",
    note="S~_j = s_j I, as after (34), is in S; s_j Sigma^-1 is not, and with it (37) fails unless tr Sigma^-1 = d. As "
    "for (36), the inequality for every S_j is an equality. " + _BY_ALL,
)
@where_known
def eq_37_corrected(loss: Loss) -> Comparison:
    r"""For $(A, B) \in \mathcal{S}$ and every $S_j$, $\frac{d}{dt} f(B + t \tilde S_j) \le \frac{d}{dt} f(B + t S_j)$
    with $\tilde S_j = s_j I$, $s_j = \operatorname{tr}(\Sigma^{-1/2} S_j \Sigma^{1/2})/d$
    """
    eye = jnp.eye(loss.task.dimension)
    return _the_same(_both_along(loss, eye, eye)[1])


_APART = 0.05  # the allowed relative difference of the sides of an equation


def _scalars(loss: MonteCarloLoss, model: MultiLayerAttention) -> ScalarLayers:
    """The a_i and b_i of the point of S nearest to a model: a_i = tr(A_i Sigma)/d and b_i = tr(B_i)/d."""
    d = float(loss.task.dimension)
    return ScalarLayers(jnp.einsum("kij,ij->k", model.A, loss.task.covariance) / d, jnp.einsum("kii->k", model.B) / d)


def at_scalars(loss: MonteCarloLoss, start: MultiLayerAttention) -> list[Hypothesis]:
    """The hypothesis that the layers start on S. The list is empty for layers without B."""
    if start.B is None:
        return []
    on_S = _scalars(loss, start).attention(loss.task.covariance)
    assert on_S.B is not None, "scalars with b_i stand for matrices B_i"
    gap = sum(jnp.sum((a - b) ** 2) for a, b in ((start.A, on_S.A), (start.B, on_S.B)))
    return [agrees("distance from S = 0", jnp.sqrt(gap), 0.0, jnp.linalg.norm(start.A))]


SECTION_ON_SAMPLES = Section(
    "ahn2023", MultiLayerAttention, setting=sampled_layers, hypotheses=at_scalars, needs=moving
)
ON_S = SECTION_ON_SAMPLES.on(problems.ON_SCALARS, spaces.ON_SCALARS)


@ON_S.claim("theorem-5.all-matrices", "proof of Theorem 5", form="corrected")
def theorem_5(loss: MonteCarloLoss, start: MultiLayerAttention) -> Comparison:
    r"""On $\mathcal{S}$, where $f(A, B) = F(a, b)$, $\nabla_{A_i} f = \tfrac{\partial F}{\partial a_i} \Sigma/d$ and
    $\nabla_{B_i} f = \tfrac{\partial F}{\partial b_i} I/d$, to $5$ per cent

    Sampled prompts give the left sides, and quadrature gives F. (36), and (37) with S~_j = s_j I, are equivalent to
    this.
    """
    d, S = loss.task.dimension, loss.task.covariance
    exact = scalar_loss(d, float(loss.task.context_length), start.A.shape[0])
    slopes, found = jax.grad(exact)(_scalars(loss, start)), loss.gradient(start)
    assert slopes.b is not None, "the loss is one with B"
    off = lambda matrices, slope, shape: jnp.linalg.norm(matrices - slope[:, None, None] * shape[None] / d, axis=(1, 2))
    size = lambda slope, shape: jnp.max(jnp.abs(slope)) * jnp.linalg.norm(shape) / d
    return joined(
        [
            at_most(off(found.A, slopes.a, S), _APART * size(slopes.a, S)),
            at_most(off(found.B, slopes.b, jnp.eye(d)), _APART * size(slopes.b, jnp.eye(d))),
        ]
    )


def _sampled_slopes(loss: MonteCarloLoss, start: MultiLayerAttention) -> Slopes:
    """The gradients of a Monte Carlo loss at the start, with a leading axis of length 1."""
    found = loss.gradient(start)
    return Slopes(found.A[None], found.B[None])


@SECTION_ON_SAMPLES.on((problems.ON_SCALARS[0], problems.ON_SCALARS[2], problems.WITHOUT_B), spaces.ON_SCALARS).claim(
    "eq-35.all-matrices", "(35)"
)
def eq_35_on_samples(loss: MonteCarloLoss, start: MultiLayerAttention) -> Comparison:
    r"""Along $dA_i/dt = -r_i \Sigma^{-1}$, $dB_i/dt = -s_i \Sigma^{-1}$, $\frac{d}{dt} f \le -\sum \lVert \nabla_{A_i}
    f \rVert_F^2 + \lVert \nabla_{B_i} f \rVert_F^2$ at points of $\mathcal{S}$

    This is eq-35, on sampled prompts at the start alone. A lowers f by d times its squared gradient, because the 1/d of
    the text above is left out. B lowers f by its squared gradient times tr Sigma^-1, which is too little where tr
    Sigma^-1 < 1. This decides where grad_A f vanishes, as in the last problem.
    """
    rate, squares = _decrease(loss, _sampled_slopes(loss, start), jnp.linalg.inv(loss.task.covariance))
    return at_most(rate, -squares)


@ON_S.corrected(eq_35_on_samples)
def eq_35_corrected_on_samples(loss: MonteCarloLoss, start: MultiLayerAttention) -> Comparison:
    r"""Along $dA_i/dt = -r_i \Sigma^{-1}$, $dB_i/dt = -s_i I$, with $1/d$ in $r_i$ and $s_i$, $\frac{d}{dt} f = -\sum
    \lVert \nabla_{A_i} f \rVert_F^2 + \lVert \nabla_{B_i} f \rVert_F^2$, to $5$ per cent

    Judged on sampled prompts, at the start alone.
    """
    rate, squares = _decrease(loss, _sampled_slopes(loss, start), jnp.eye(loss.task.dimension))
    return at_most(jnp.abs(rate / loss.task.dimension + squares), _APART * squares)


TURNS = LAYERS(hypotheses=finite_context, problems=problems.ON_PROMPTS, spaces=spaces.LAYERS)


@TURNS.claim("eq-38", "G before (38)")
@prompts.on_prompts
def eq_38_printed(drawn: prompts.Drawn) -> tuple[Array, Array]:
    r"""$Y_{k+1} = w_\star^\top G$ with $G = X_0 \prod_i (I - M X_i^\top A_i X_i)$

    (31), (44) and (45) have the opposite sign. The same slip occurs before (28).
    """
    return prompts.labels_by_product(drawn, -1.0)


@TURNS.corrected(eq_38_printed)
@prompts.on_prompts
def eq_38_corrected(drawn: prompts.Drawn) -> tuple[Array, Array]:
    r"""$Y_{k+1} = w_\star^\top G$ with $G = X_0 \prod_i (I + M X_i^\top A_i X_i)$

    The sign is that of (31).
    """
    return prompts.labels_by_product(drawn)


def _turns(function: Callable[[prompts.Drawn, prompts.Columns], Array], weights: str) -> Callable[[Loss], Comparison]:
    """Make the statement that relates ``function`` at U_Sigma X_0 to ``function`` at X_0, on random prompts.

    If ``weights`` is empty, the statement is about the values of the function: see `prompts.turned`. If ``weights``
    is "A" or "B", it is about the derivatives of the function along random steps of the A_j or B_j: see
    `prompts.turned_slopes`.
    """

    @prompts.on_prompts
    def turns(drawn: prompts.Drawn) -> tuple[Array, Array]:
        if weights:
            return prompts.turned_slopes(drawn, function, weights)
        return prompts.turned(prompts.nearest_on_the_set(drawn), function)

    return turns


_ON_S = r"For $(A, B) \in \mathcal{S}$ and orthogonal $U$, with $U_\Sigma = \Sigma^{1/2} U \Sigma^{-1/2}$, "

for _part, _source, _function, _weights, _statement, _note in (
    ("eq-39", "(39), (46)", prompts.covariates, "", r"$X_i(U_\Sigma X_0) = U_\Sigma X_i(X_0)$", "."),
    ("eq-40", "(40)", prompts.covariates, "B", r"$U_\Sigma^{-1} \frac{d}{dt} X_i(U_\Sigma X_0, B_j + t S_j) = "
     r"\frac{d}{dt} X_i(X_0, B_j + t U_\Sigma^{-1} S_j U_\Sigma)$",
     " and S_j, for all i and j. (42) lacks a factor X_j at its end."),
    ("eq-44", "(44), (46)", prompts.product, "", r"$G(U_\Sigma X_0) = U_\Sigma G(X_0)$", "."),
    ("eq-45", "(45)", prompts.product, "B", r"$U_\Sigma^{-1} \frac{d}{dt} G(U_\Sigma X_0, B_j + t S_j) = "
     r"\frac{d}{dt} G(X_0, B_j + t U_\Sigma^{-1} S_j U_\Sigma)$", " and S_j, for every j."),
    ("eq-47", "(47)", prompts.covariates, "A", r"$U_\Sigma^{-1} \frac{d}{dt} X_i(U_\Sigma X_0, A_j + t R_j) = "
     r"\frac{d}{dt} X_i(X_0, A_j + t U_\Sigma^\top R_j U_\Sigma)$", " and R_j, for all i and j."),
    ("eq-50", "(50)", prompts.product, "A", r"$U_\Sigma^{-1} \frac{d}{dt} G(U_\Sigma X_0, A_j + t R_j) = "
     r"\frac{d}{dt} G(X_0, A_j + t U_\Sigma^\top R_j U_\Sigma)$", " and R_j, for every j."),
):  # fmt: skip
    _note = f"Judged on 64 drawn prompts with drawn weights{_note}"
    TURNS.claim(_part, _source, statement=_ON_S + _statement, note=_note)(_turns(_function, _weights))
