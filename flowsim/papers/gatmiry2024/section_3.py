"""gatmiry2024's sections 3.2 to 3.6: gradient descent on a prompt, Proposition 3.1, delta, and preconditioners.

Equations are judged on random prompts. One side is the literal attention or JAX's gradient, and the other side is
the printed formula.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim._core.types import Scalar
from flowsim.claims.claim import Comparison, at_most, equal
from flowsim.claims.declaring import takes_like
from flowsim.claims.hypotheses import finite_context
from flowsim.claims.statements import rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LoopedLoss
from flowsim.models import LoopedAttention
from flowsim.models.linear_attention import embed
from flowsim.models.masked_attention import attend
from flowsim.papers.gatmiry2024 import lemmas, problems, spaces
from flowsim.papers.gatmiry2024.appendix_a_layers import blocks, states
from flowsim.papers.gatmiry2024.moments import looped_by_matrices, looped_with_finite_context, powers, shape
from flowsim.papers.gatmiry2024.setting import LOOPED, Loss, delta, matrices, over_determined
from flowsim.tasks import Prompt

_PROMPTS = 6
JUDGED = "Judged on 6 random prompts. "  # in the notes
PROBLEMS = (lemmas.SHORT, lemmas.SINGLE, lemmas.DEEP, lemmas.LONG)


class Drawn(NamedTuple):
    """A random prompt with its weights, and a random preconditioner.

    **Fields:** X: the inputs of the n examples as columns; w: the weights; query: x_q; A: the preconditioner.
    """

    X: Float[Array, "d n"]
    w: Float[Array, " d"]
    query: Float[Array, " d"]
    A: Float[Array, "d d"]

    @property
    def prompt(self) -> Prompt:
        """The prompt in the form that models take, with the inputs as rows."""
        return Prompt(self.X.T, self.X.T @ self.w, self.query)

    @property
    def columns(self) -> Float[Array, "d columns"]:
        """[X x_q], the inputs of the examples and of the query."""
        return jnp.concatenate([self.X, self.query[:, None]], axis=1)

    def slope(self, w: Float[Array, " d"]) -> Float[Array, " d"]:
        """The gradient of |X^T w - y|^2 at the given w, by JAX."""
        return jax.grad(self.squares)(w)

    def squares(self, w: Float[Array, " d"]) -> Scalar:
        """The sum of squares |X^T w - y|^2 at the given w. **Source:** gatmiry2024, section 3.2."""
        return jnp.sum((self.X.T @ w - self.X.T @ self.w) ** 2)


def drawn(loss: LoopedLoss, symmetric: bool) -> Drawn:
    """6 random prompts of the task, stacked, each with a random A.

    Let N be a matrix of normal numbers with standard deviation 1/4. Then Sigma*^{1/2} A Sigma*^{1/2} is I + N. With
    ``symmetric`` it is I plus the symmetric part of N.
    """
    d, n = loss.task.dimension, int(float(loss.task.context_length))
    keys = jax.random.split(jax.random.key(0), 4)
    inverse_root = jnp.linalg.inv(loss.root)
    A = jax.random.normal(keys[3], (_PROMPTS, d, d)) / 4 + jnp.eye(d)[None]
    return Drawn(
        jnp.swapaxes(jax.random.normal(keys[0], (_PROMPTS, n, d)) @ loss.root, 1, 2),
        jax.random.normal(keys[1], (_PROMPTS, d)) @ inverse_root,
        jax.random.normal(keys[2], (_PROMPTS, d)) @ loss.root,
        inverse_root @ ((A + jnp.swapaxes(A, 1, 2)) / 2 if symmetric else A) @ inverse_root,
    )


def of_prompts(*, symmetric: bool):
    """A decorator for a function that computes both sides of an equation at one prompt.

    The decorated function compares the sides at 6 random prompts. ``symmetric`` is whether the random A are
    symmetric.
    """

    def decorate(both: Callable[[LoopedLoss, Drawn], tuple[Array, Array]]):
        @takes_like(both)
        def compare(loss: LoopedLoss) -> Comparison:
            left, right = jax.vmap(lambda one: both(loss, one))(drawn(loss, symmetric))
            left, right = left.reshape(_PROMPTS, -1), right.reshape(_PROMPTS, -1)
            size = jnp.linalg.norm(left, axis=1, keepdims=True) + jnp.linalg.norm(right, axis=1, keepdims=True)
            d, n = loss.task.dimension, float(loss.task.context_length)
            flat = equal(left.reshape(-1), right.reshape(-1), jnp.broadcast_to(size, left.shape).reshape(-1))
            return rounded(flat, jnp.asarray(n + d))

        return compare

    return decorate


def conditioned(made: Callable[[LoopedLoss], Comparison]) -> Callable[[LoopedLoss], Comparison]:
    """A decorator for a function that returns a comparison. It enlarges the allowance for rounding errors.

    The allowance is multiplied by the largest condition number of X X^T among the 6 prompts.
    """

    @takes_like(made)
    def compare(loss: LoopedLoss) -> Comparison:
        comparison, X = made(loss), drawn(loss, True).X
        values = jnp.linalg.eigvalsh(X @ jnp.swapaxes(X, 1, 2))
        return rounded(comparison, jnp.max(values[:, -1] / values[:, 0]))

    return compare


SECTION = LOOPED(setting=looped_by_matrices).on(PROBLEMS, spaces.LEMMAS)
GIVEN_EXAMPLES = SECTION.on(PROBLEMS, spaces.LEMMAS, hypotheses=over_determined)
ON_LITERAL = SECTION.on((problems.RANDOM, problems.SHORT), spaces.PROMPTS, setting=matrices, needs=finite_context)


@GIVEN_EXAMPLES.claim("sec-3.2.pseudo-inverse", "section 3.2", note=JUDGED)
@conditioned
@of_prompts(symmetric=True)
def pseudo_inverse(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    r"""$w^* = (X X^\top)^{-1} X y$, given $n > d$"""
    return jnp.linalg.solve(one.X @ one.X.T, one.X @ (one.X.T @ one.w)), one.w


def _hessian(one: Drawn) -> Float[Array, "d d"]:
    """The Hessian of |X^T w - y|^2, by JAX."""
    return jax.hessian(one.squares)(one.w)


@SECTION.claim(
    "sec-3.2.hessian", "section 3.2", note=JUDGED + "A factor of two is missing, as in the gradient of Proposition 3.1."
)
@of_prompts(symmetric=True)
def printed_hessian(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    r"""The Hessian of $\lVert X^\top w - y \rVert^2$ is $X X^\top$"""
    return _hessian(one), one.X @ one.X.T


@SECTION.corrected(printed_hessian, note=JUDGED)
@of_prompts(symmetric=True)
def hessian(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    r"""The Hessian of $\lVert X^\top w - y \rVert^2$ is $2 X X^\top$"""
    return _hessian(one), 2 * one.X @ one.X.T


def _contraction(loss: LoopedLoss, step: Callable[[Array], Array]) -> tuple[Array, Array]:
    """At each random prompt, |I - s H|_2 and the condition number of H, the Hessian of |X^T w - y|^2.

    ``step`` maps the eigenvalues of H, in increasing order and one row for each prompt, to the step size s of each
    prompt.
    """
    values = jax.vmap(lambda one: jnp.linalg.eigvalsh(_hessian(one)))(drawn(loss, True))
    return jnp.max(jnp.abs(1 - step(values)[:, None] * values), axis=1), values[:, -1] / values[:, 0]


@GIVEN_EXAMPLES.claim(
    "sec-3.2.step-size",
    "section 3.2",
    note=JUDGED + "The step size is meant for a Hessian of norm one. For other norms it converges only where "
    "2 kappa > |H|_2, that is, where the least eigenvalue of the Hessian, which is of order n, is below 2.",
)
def printed_step_size(loss: LoopedLoss) -> Comparison:
    r"""Gradient descent on $\lVert X^\top w - y \rVert^2$ with step size $1/\kappa$, $\kappa$ the Hessian's condition
    number, converges
    """
    return at_most(_contraction(loss, lambda values: values[:, 0] / values[:, -1])[0], 1.0)


@GIVEN_EXAMPLES.corrected(printed_step_size, note=JUDGED)
def step_size(loss: LoopedLoss) -> Comparison:
    r"""With step size $1/\lVert H \rVert_2$ each step of it contracts by $e^{-1/\kappa}$, so that $O(\kappa)$
    steps do
    """
    norms, condition = _contraction(loss, lambda values: 1 / values[:, -1])
    return at_most(norms, jnp.exp(-1 / condition))


_FACTORS = (
    JUDGED
    + "grad l(0) is -2 X y, not X y, and the 1/n is in (3), not in (2). So the printed form is wrong in the sign, the "
    "2 and the n, for symmetric A too. "
)


def _descends(loss: LoopedLoss, one: Drawn, step: float) -> tuple[Array, Array]:
    """The prediction of the literal transformer of (2)-(5), and w_L^T x_q of gradient descent.

    The weights w_L follow from L steps of `_descent` with A^T and step size ``step``/n.
    """
    w = _descent(one, step, True, loss.loops)[-1]
    return LoopedAttention(one.A, loops=loss.loops)(one.prompt)[None], (w @ one.query)[None]


@ON_LITERAL.on((problems.RANDOM, problems.SHORT, problems.OVERSHOT), spaces.PROMPTS).claim(
    "proposition-3.1", "Proposition 3.1, (5)"
)
@of_prompts(symmetric=False)
def implements_descent(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    r"""$L$ loops with $Q = \begin{bmatrix} A & 0 \\ 0 & 0 \end{bmatrix}$, $P = \begin{bmatrix} 0 & 0 \\ 0 & 1
    \end{bmatrix}$ predict $w_L^\top x_q$ of $L$ steps of preconditioned gradient descent

    Judged on 6 random prompts, with A that are not symmetric. The preconditioner is A^T. The step size on |X^T w - y|^2
    is 1/(2n).
    """
    return _descends(loss, one, 0.5)


@ON_LITERAL.claim("proposition-3.1.step", "proof of Proposition 3.1")
@of_prompts(symmetric=False)
def implements_printed_steps(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    r"""The steps are $w_t = w_{t-1} - \tfrac{1}{n} A \nabla \lVert X^\top w - y \rVert^2$

    The proof takes X y for the gradient of |X^T w - y|^2 at zero, but the gradient is -2 X y. So the transformer's
    steps are half as long. Judged with A^T in place of A, which is the same for symmetric A.
    """
    return _descends(loss, one, 1.0)


@ON_LITERAL.corrected(implements_printed_steps)
@of_prompts(symmetric=False)
def implemented_steps(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    r"""The steps are $w_t = w_{t-1} - \tfrac{1}{2n} A^\top \nabla \lVert X^\top w - y \rVert^2$

    The step size is half the printed one. Equivalently, it is 1/n for half of |X^T w - y|^2.
    """
    return _descends(loss, one, 0.5)


def _attention(one: Drawn) -> Float[Array, "rows columns"]:
    """Attn(Z^(0); Q, P) of (2), with the P and Q of (5)."""
    return attend(embed(one.prompt), *blocks(one.A, jnp.zeros_like(one.w)))


def _descent(one: Drawn, step: float, transposed: bool, count: int) -> Float[Array, "count d"]:
    """The weights after each of ``count`` steps w <- w - (step/n) A grad |X^T w - y|^2 from w = 0.

    With ``transposed`` A^T replaces A.
    """
    A, w, found = one.A.T if transposed else one.A, jnp.zeros_like(one.w), []
    for _ in range(count):
        w = w - step / one.X.shape[1] * A @ one.slope(w)
        found.append(w)
    return jnp.stack(found)


@SECTION.claim("proposition-3.1.eq-6", "proof of Proposition 3.1, (6)", note=JUDGED)
@of_prompts(symmetric=False)
def labels_row(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    r"""The last row of $\operatorname{Attn}(Z; Q, P)$ is $y^\top X^\top A [X \; x_q]$"""
    return _attention(one)[-1], (one.X.T @ one.w) @ one.X.T @ one.A @ one.columns


@SECTION.claim("proposition-3.1.eq-7", "proof of Proposition 3.1, (7)", note=_FACTORS)
@of_prompts(symmetric=True)
def printed_slope_row(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    r"""The first $n$ entries of that row are $-\bigl(0 - \tfrac{1}{n} A \nabla \ell(0)\bigr)^\top X$, $\ell(w) = \lVert
    X^\top w - y \rVert^2$
    """
    return _attention(one)[-1, :-1], (one.A @ one.slope(jnp.zeros_like(one.w)) / one.X.shape[1]) @ one.X


@SECTION.corrected(printed_slope_row, note=_FACTORS + "A need not be symmetric here.")
@of_prompts(symmetric=False)
def slope_row(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    r"""That row is $-\tfrac{1}{2} \bigl(A^\top \nabla \ell(0)\bigr)^\top [X \; x_q]$"""
    return _attention(one)[-1], -(one.A.T @ one.slope(jnp.zeros_like(one.w)) / 2) @ one.columns


@SECTION.claim(
    "proposition-3.1.eq-8",
    "proof of Proposition 3.1, (8)",
    note=JUDGED + "Compares [X x_q] plus these rows with [X x_q].",
)
@of_prompts(symmetric=False)
def other_rows(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    r"""The first $d$ rows of $\operatorname{Attn}(Z; Q, P)$ are zero"""
    Z, added = embed(one.prompt), _attention(one)
    return Z[:-1] + added[:-1], one.columns


@SECTION.claim("proposition-3.1.first-step", "proof of Proposition 3.1", note=_FACTORS)
@of_prompts(symmetric=True)
def printed_step_row(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    r"""That row is $-w_1^\top [X \; x_q]$ with $w_1 = -\tfrac{1}{n} A \nabla \ell(0)$"""
    return _attention(one)[-1], -_descent(one, 1.0, False, 1)[0] @ one.columns


@SECTION.corrected(printed_step_row, note=JUDGED)
@of_prompts(symmetric=False)
def step_row(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    r"""That row is $n w_1^\top [X \; x_q]$ with $w_1 = -\tfrac{1}{2n} A^\top \nabla \ell(0)$"""
    return _attention(one)[-1], one.X.shape[1] * _descent(one, 0.5, True, 1)[0] @ one.columns


def _after_steps(loss: LoopedLoss, one: Drawn, step: float, transposed: bool) -> tuple[Array, Array]:
    """Both sides of (9) for t = 1, .., L: the states Z^(t) of (3), and [X x_q; (y - X^T w_t)^T, -w_t^T x_q].

    The w_t are the weights of `_descent` with ``step`` and ``transposed``.
    """
    found = states(one.prompt, jnp.stack([one.A] * loss.loops), jnp.zeros((loss.loops, one.w.size)))[1:]
    labels = jnp.concatenate([one.X.T @ one.w, jnp.zeros(1)])
    weights = _descent(one, step, transposed, loss.loops)
    expected = [jnp.concatenate([one.columns, (labels - w @ one.columns)[None]]) for w in weights]
    return found, jnp.stack(expected)


@SECTION.claim(
    "proposition-3.1.eq-9",
    "proof of Proposition 3.1, (9)",
    note=JUDGED + "The steps are twice those of the transformer, for symmetric A too.",
)
@of_prompts(symmetric=True)
def printed_layers(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    r"""$Z^{(t)} = \begin{bmatrix} X & x_q \\ (y - X^\top w_t)^\top & -w_t^\top x_q \end{bmatrix}$ for all $t \le L$,
    $w_t = w_{t-1} - \tfrac{1}{n} A \nabla \ell(w_{t-1})$
    """
    return _after_steps(loss, one, 1.0, False)


@SECTION.corrected(printed_layers, note=JUDGED + "A need not be symmetric.")
@of_prompts(symmetric=False)
def layers(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    r"""$Z^{(t)} = \begin{bmatrix} X & x_q \\ (y - X^\top w_t)^\top & -w_t^\top x_q \end{bmatrix}$ for all $t \le L$,
    $w_t = w_{t-1} - \tfrac{1}{2n} A^\top \nabla \ell(w_{t-1})$
    """
    return _after_steps(loss, one, 0.5, True)


def _deltas(loss: Loss, power: int) -> tuple[Array, Array]:
    """The delta 4kd/sqrt(n) of the remark on Theorem 3.2, and its k-th root, the delta of Lemma A.7."""
    remark = shape(loss).first_order(power)
    return jnp.asarray(remark), jnp.asarray(remark ** (1 / power))


def delta_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The delta of section 3.5, and both values of `_deltas` at k = 2L."""
    remark, lemma = _deltas(loss, powers(shape(loss))[-1])
    return {"section_3_5": delta(loss), "remark": remark, "lemma_a_7": lemma}


DELTAS = SECTION.on(
    lemmas.LENGTHS,
    spaces.MOMENTS,
    setting=looped_with_finite_context,
    hypotheses=over_determined,
    constants=delta_constants,
)


@DELTAS.claim("sec-3.5.delta", "section 3.5, remark on Theorem 3.2, Lemma A.7")
def one_delta(loss: Loss) -> Comparison:
    r"""$\delta$ is one number: $(8Ld/\sqrt{n})^{1/(2L)} = 4kd/\sqrt{n} = (4kd/\sqrt{n})^{1/k}$ for all $k \le 2L$

    The first is in section 3.5 and Theorem 3.2. The second is in the remark on the theorem and in the proof of Lemma
    A.5, which does not define its delta. The third is in Lemma A.7. Both lemmas are said to restate Lemmas 4.2 and 4.3,
    where delta is the first.
    """
    others = [other for k in powers(shape(loss)) for other in _deltas(loss, k)]
    return equal(jnp.stack(others), delta(loss), delta(loss))


@DELTAS.corrected(one_delta)
def same_delta_at_the_last_power(loss: Loss) -> Comparison:
    r"""At $k = 2L$ the $\delta$ of Lemma A.7 is that of section 3.5, and the remark's is its power $2L$

    For k < 2L and delta < 1, 4kd/sqrt(n) is below delta^k. So the bounds of Lemmas A.5 and A.7 are stricter than those
    of Lemmas 4.2 and 4.3.
    """
    last = powers(shape(loss))[-1]
    remark, lemma = _deltas(loss, last)
    return equal(jnp.stack([lemma, remark ** (1 / last)]), delta(loss), delta(loss))


@GIVEN_EXAMPLES.claim(
    "sec-3.6.one-step",
    "section 3.6",
    note=JUDGED + "The transformer has one loop, and A is the inverse of the sample covariance of its prompt.",
)
@conditioned
@of_prompts(symmetric=True)
def one_step(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    r"""One step with the inverse of the data covariance as preconditioner gives $w^* = (X X^\top)^{-1} X y$, given $n >
    d$
    """
    A = jnp.linalg.inv(one.X @ one.X.T / one.X.shape[1])
    return LoopedAttention(A, loops=1)(one.prompt)[None], (one.w @ one.query)[None]
