"""gatmiry2024's appendix A: Theorem A.1 on each layer, Lemma A.3 and Corollary A.4 on the loss with u.

The formulas for one prompt are compared with the literal transformer on random prompts. Expectations are exact.
"""

import collections
import functools
import itertools
import math
from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim._core.types import Matrix
from flowsim.claims.claim import Comparison, equal
from flowsim.claims.statements import rounded
from flowsim.losses import LoopedLoss
from flowsim.losses.deep.residual_energy import layer_terms
from flowsim.models.linear_attention import embed
from flowsim.models.masked_attention import attend
from flowsim.moments import TracePolynomial, wishart_expectation
from flowsim.papers.gatmiry2024 import lemmas, spaces
from flowsim.papers.gatmiry2024.moments import looped_by_matrices
from flowsim.papers.gatmiry2024.setting import LOOPED, over_determined
from flowsim.tasks import LinearRegression, Prompt

Layers = Float[Array, "k d d"]
Vectors = Float[Array, "k d"]

_PROMPTS = 6
MOST_LAYERS = 3  # the most distinct layers in an exact expectation
JUDGED = "Judged on 6 random contexts, layer by layer. "
PROBLEMS = (lemmas.SHORT, lemmas.SINGLE, lemmas.DEEP, lemmas.ONE_DIMENSION, lemmas.LONG)


class DrawnLayers(eqx.Module):
    """Random contexts and random layers, in whitened coordinates. S is the population covariance.

    **Fields:**

    - root, inverse_root: S^{1/2} and S^{-1/2}.
    - contexts: in each context, n examples with covariance I.
    - A, u: A' = S^{1/2} A S^{1/2} and u' = S^{1/2} u of each of k layers.
    """

    root: Matrix
    inverse_root: Matrix
    contexts: Float[Array, "prompts n d"]
    A: Layers
    u: Vectors

    @property
    def layers(self) -> Layers:
        """A = S^{-1/2} A' S^{-1/2} of each layer."""
        return self.inverse_root @ self.A @ self.inverse_root

    @property
    def vectors(self) -> Vectors:
        """u = S^{-1/2} u' of each layer."""
        return self.u @ self.inverse_root


def drawn_layers(task: LinearRegression, layers: int) -> DrawnLayers:
    """6 random contexts of a task, and ``layers`` random layers."""
    d, n = task.dimension, int(float(task.context_length))
    values, vectors = jnp.linalg.eigh(task.covariance)
    root, inverse_root = ((vectors * part[None, :]) @ vectors.T for part in (jnp.sqrt(values), 1 / jnp.sqrt(values)))
    keys = jax.random.split(jax.random.key(0), 3)
    noise = jax.random.normal(keys[1], (layers, d, d)) / jnp.sqrt(float(d))
    return DrawnLayers(
        root,
        inverse_root,
        jax.random.normal(keys[0], (_PROMPTS, n, d)),
        0.5 * (jnp.eye(d)[None] + noise),
        jax.random.normal(keys[2], (layers, d)) / jnp.sqrt(float(d)),
    )


def blocks(A: Matrix, u: Array) -> tuple[Matrix, Matrix]:
    """The matrices P = [0 0; u^T 1] and Q = [A 0; 0 0] of a layer, both (d + 1, d + 1)."""
    d = u.size
    P = jnp.zeros((d + 1, d + 1)).at[d, :d].set(u).at[d, d].set(1.0)
    return P, jnp.zeros((d + 1, d + 1)).at[:d, :d].set(A)


def states(prompt: Prompt, A: Layers, u: Vectors) -> Float[Array, "steps rows columns"]:
    """The states Z^{(0)}, .., Z^{(k)} of the literal transformer on a prompt.

    Each of the k layers maps Z to Z - (1/n) P Z M (Z^T Q Z), with the P and Q of `blocks`. M masks the query.
    """
    found = [embed(prompt)]
    for matrix, vector in zip(A, u, strict=True):
        found.append(found[-1] - attend(found[-1], *blocks(matrix, vector)) / prompt.inputs.shape[0])
    return jnp.stack(found)


def product_and_sum(Sigma: Matrix, A: Layers, u: Vectors) -> tuple[Matrix, Float[Array, " d"]]:
    """The product prod_i (I - Sigma A_i), and the sum sum_i u_i^T Sigma A_i prod_{j > i} (I - Sigma A_j).

    In both, later layers stand further to the right.
    """
    product, total = jnp.eye(Sigma.shape[0]), jnp.zeros(Sigma.shape[0])
    for matrix, vector in zip(A, u, strict=True):
        factor = jnp.eye(Sigma.shape[0]) - Sigma @ matrix
        product, total = product @ factor, total @ factor + vector @ Sigma @ matrix
    return product, total


def with_sums(gaps: Array, sizes: Array, drawn: DrawnLayers) -> Comparison:
    """The statement that the gaps are zero, up to rounding errors relative to ``sizes``.

    The rounding errors grow with n + k d, where k is the number of layers, because the gaps contain long sums.
    """
    _, n, d = drawn.contexts.shape
    return rounded(equal(gaps.reshape(-1), 0.0, sizes.reshape(-1)), jnp.asarray(float(n + d * len(drawn.A))))


def _literal_loss(drawn: DrawnLayers, context: Array) -> Array:
    """E[(prediction - y_query)^2 | X] of the literal transformer, over w ~ N(0, S^-1) and x_query ~ N(0, S).

    X is one whitened context, multiplied by S^{1/2}. The error prediction - y_query is affine in w and linear in
    x_query. So the mean follows from the errors at basis vectors and at w = 0.
    """
    X, d = context @ drawn.root, context.shape[1]

    def error(w: Array, x: Array) -> Array:
        return w @ x + states(Prompt(X, X @ w, x), drawn.layers, drawn.vectors)[-1, -1, -1]

    weights = jnp.concatenate([jnp.zeros((1, d)), drawn.inverse_root])
    errors = jax.vmap(jax.vmap(error, (None, 0)), (0, None))(weights, drawn.root)
    return jnp.sum(errors[0] ** 2) + jnp.sum((errors[1:] - errors[:1]) ** 2)


@eqx.filter_jit
def gaps_of_loss(drawn: DrawnLayers) -> tuple[Array, Array]:
    """For each context, the loss of the literal transformer minus the formula for it, and the size of the terms.

    The formula is |S^{-1/2} prod (I - Sigma A_i) S^{1/2}|_F^2 + |sum_i u_i^T Sigma A_i prod_{j>i} (I - Sigma A_j)
    S^{1/2}|^2, where S is the population covariance and Sigma the sample covariance.
    """

    def one(context: Array) -> tuple[Array, Array]:
        X = context @ drawn.root
        product, total = product_and_sum(X.T @ X / context.shape[0], drawn.layers, drawn.vectors)
        formula = jnp.sum((drawn.inverse_root @ product @ drawn.root) ** 2) + jnp.sum((total @ drawn.root) ** 2)
        literal = _literal_loss(drawn, context)
        whitened = jnp.linalg.norm(context.T @ context) / context.shape[0]
        return literal - formula, literal + (1 + whitened) ** (2 * len(drawn.A))

    return jax.vmap(one)(drawn.contexts)


def repeated(drawn: DrawnLayers, loops: int, bias: float) -> DrawnLayers:
    """Repeat the only layer of ``drawn``, after A' is replaced by A' A'^T, and u' by ``bias`` u'.

    **Arguments:** loops: the number of layers of the result; bias: a number.
    """
    A = jnp.repeat(positive(drawn.A), loops, axis=0)
    return DrawnLayers(drawn.root, drawn.inverse_root, drawn.contexts, A, bias * jnp.repeat(drawn.u, loops, axis=0))


def positive(A: Layers) -> Layers:
    """A A^T for each matrix A. Unlike A itself, A A^T is positive definite, so that it has a root."""
    return A @ jnp.swapaxes(A, 1, 2)


def both_expectations(
    left: TracePolynomial, right: TracePolynomial, task: LinearRegression, matrices: Mapping[str, Layers]
) -> tuple[Array, Array, Array]:
    """The values of two expectations at each of k sets of matrices.

    **Arguments:** left, right: the expectations; task: gives n and d; matrices: for each letter, the k matrices
    that replace the letter.

    **Returns:** the k values of each expectation, and a bound on the size of the terms in each sum.
    """
    n = task.context_length
    first, second = (jax.vmap(lambda one, side=side: side(n, **one))(dict(matrices)) for side in (left, right))
    norms = sum(jnp.linalg.norm(rows, axis=(1, 2)) for rows in matrices.values())
    degree = max(len(words) for _, words in left.terms)
    return first, second, task.dimension * (1 + norms) ** degree


def identity(left: TracePolynomial, right: TracePolynomial, task, matrices: Mapping[str, Layers]) -> Comparison:
    """The statement that two expectations are equal at each of k sets of matrices.

    The arguments are those of `both_expectations`. The terms of both sums have both signs, so the rounding errors
    are relative to the size of the terms.
    """
    first, second, sums = both_expectations(left, right, task, matrices)
    comparison = equal(first, second, jnp.maximum(first, second))
    return eqx.tree_at(lambda c: c.scale, comparison, jnp.maximum(comparison.scale, sums))


def drawn_matrices(task: LinearRegression, count: int) -> Layers:
    """``count`` random positive definite matrices A' = S^{1/2} A S^{1/2}, followed by I."""
    drawn = positive(drawn_layers(task, count).A)
    return jnp.concatenate([drawn, jnp.eye(task.dimension)[None]])


_SIGN = (
    JUDGED
    + "A layer maps labels v^T X to v^T X - (u + v)^T Sigma A X. So the sum over u has the opposite sign. Where all u "
    "are zero the two forms are equal; the loss does not depend on the sign. "
)


@eqx.filter_jit
def _gaps_of_rows(drawn: DrawnLayers, sign: float, query: bool) -> tuple[Array, Array]:
    """How far (12) or (13) is from the labels of the literal transformer.

    Equation (13) is (12) for the column x_q, except that the literal label of the query starts at 0 instead of w^T
    x_q.

    **Arguments:** sign: what multiplies the sum over u, 1 as printed or -1; query: whether to judge (13), not (12).

    **Returns:** for each context and each t = 0, .., k, where k is the number of layers, the norm of the difference
    and the size of its terms.
    """
    part = slice(-1, None) if query else slice(None, -1)

    def one(context: Array) -> tuple[Array, Array]:
        w, x = jnp.sin(1.0 + jnp.arange(2.0 * context.shape[1])).reshape(2, -1)
        w, x, X = w @ drawn.inverse_root, x @ drawn.root, context @ drawn.root
        A, u, Sigma, columns = drawn.layers, drawn.vectors, X.T @ X / context.shape[0], jnp.vstack([X, x]).T
        gaps, sizes = [], []
        for t, row in enumerate(states(Prompt(X, X @ w, x), A, u)[:, -1]):
            product, total = product_and_sum(Sigma, A[:t], u[:t])
            gap = row.at[-1].add(w @ x) - w @ product @ columns - sign * (total @ columns)
            size = sum(jnp.linalg.norm(term) for term in (w, w @ product, total))
            gaps.append(jnp.linalg.norm(gap[part]))
            sizes.append(size * jnp.linalg.norm(columns[:, part]))
        return jnp.stack(gaps), jnp.stack(sizes)

    return jax.vmap(one)(drawn.contexts)


def _literal_rows(loss: LoopedLoss, sign: float, *, query: bool) -> Comparison:
    """The statement that the literal transformer satisfies (12), or (13) if ``query`` is true.

    ``sign`` multiplies the sum over u.
    """
    drawn = drawn_layers(loss.task, loss.loops)
    return with_sums(*_gaps_of_rows(drawn, sign, query), drawn)


SECTION = LOOPED(setting=looped_by_matrices, problems=PROBLEMS, spaces=spaces.LEMMAS)


@SECTION.claim("theorem-a.1.eq-12", "Theorem A.1, (12)", note=_SIGN)
def labels_plus(loss: LoopedLoss) -> Comparison:
    r"""$y^{(t)\top} = w^\top \prod_{i<t} (I - \Sigma A_i) X + \sum_{i<t} u_i^\top \Sigma A_i \prod_{i<j<t} (I - \Sigma
    A_j) X$
    """
    return _literal_rows(loss, 1.0, query=False)


@SECTION.corrected(labels_plus, note=_SIGN + "The proof writes X X^T = Sigma; Sigma is X X^T / n.")
def labels_minus(loss: LoopedLoss) -> Comparison:
    r"""$y^{(t)\top} = w^\top \prod_{i<t} (I - \Sigma A_i) X - \sum_{i<t} u_i^\top \Sigma A_i \prod_{i<j<t} (I - \Sigma
    A_j) X$
    """
    return _literal_rows(loss, -1.0, query=False)


@SECTION.claim("theorem-a.1.eq-13", "Theorem A.1, (13)", note=_SIGN)
def query_plus(loss: LoopedLoss) -> Comparison:
    r"""$y_q^{(t)} = y_q - w^\top \prod_{i<t} (I - \Sigma A_i) x_q - \sum_{i<t} u_i^\top \Sigma A_i \prod_{i<j<t} (I -
    \Sigma A_j) x_q$
    """
    return _literal_rows(loss, 1.0, query=True)


@SECTION.corrected(query_plus, note=_SIGN)
def query_minus(loss: LoopedLoss) -> Comparison:
    r"""$y_q^{(t)} = y_q - w^\top \prod_{i<t} (I - \Sigma A_i) x_q + \sum_{i<t} u_i^\top \Sigma A_i \prod_{i<j<t} (I -
    \Sigma A_j) x_q$
    """
    return _literal_rows(loss, -1.0, query=True)


@functools.cache
def _layers_words(layers: int, sample_roots: bool) -> TracePolynomial:
    """The polynomial E |S^{-1/2} prod_i (I - Sigma A_i) S^{1/2}|_F^2, where S is the population covariance.

    With ``sample_roots`` S is the sample covariance Sigma. Then the mean is E tr(prod_i (I - Sigma A_i) prod_i (I -
    Sigma A_{k-1-i})), with i from 0 to k - 1.
    """
    letters = "ABCDEFG"[:layers]
    if not sample_roots:
        return layer_terms(layers, True, False)
    words: dict[tuple[str, ...], int] = collections.defaultdict(int)
    factors = ["W" + letter for letter in letters + letters[::-1]]
    for kept in itertools.product((False, True), repeat=len(factors)):
        words["".join(itertools.compress(factors, kept)),] += (-1) ** sum(kept)
    return wishart_expectation(words, symmetric=letters)


@SECTION.claim("lemma-a.3", "Lemma A.3", hypotheses=over_determined)
def printed_layers_loss(loss: LoopedLoss) -> Comparison:
    r"""$\mathcal{L} = \mathbb{E} \bigl\lVert \Sigma^{-1/2} \prod (I - \Sigma A_i) \Sigma^{1/2} \bigr\rVert^2 +
    \mathbb{E} \bigl\lVert \sum_i d_i^\top \Sigma A_i \prod_{j>i} (I - \Sigma A_j) \Sigma^{1/2} \bigr\rVert^2$

    Sigma is read as the sample covariance throughout. For equal layers this is Lemma 4.1. The outer roots come from the
    laws of w and x_query, so they should be roots of the population covariance. Judged at d_i = 0 with at most 3
    symmetric layers.
    """
    task, k = loss.task, min(loss.loops, MOST_LAYERS)
    rows = positive(drawn_layers(task, 4 * k).A).reshape(k, 4, task.dimension, task.dimension)
    matrices = dict(zip("ABC", rows, strict=False))
    return identity(_layers_words(k, True), _layers_words(k, False), task, matrices)


@SECTION.corrected(
    printed_layers_loss,
    note=JUDGED + "The outer roots are those of the population covariance S; the paper prints those of the sample's.",
)
def loss_of_layers(loss: LoopedLoss) -> Comparison:
    r"""$\mathcal{L} = \mathbb{E} \bigl\lVert S^{-1/2} \prod (I - \Sigma A_i) S^{1/2} \bigr\rVert^2 + \mathbb{E}
    \bigl\lVert \sum_i u_i^\top \Sigma A_i \prod_{j>i} (I - \Sigma A_j) S^{1/2} \bigr\rVert^2$
    """
    drawn = drawn_layers(loss.task, loss.loops)
    return with_sums(*gaps_of_loss(drawn), drawn)


@functools.cache
def _bias_words(loops: int, sample_root: bool) -> TracePolynomial:
    """The polynomial E |u^T (I - (I - Sigma A)^L) S^{1/2}|^2, where S is the population covariance.

    With ``sample_root`` S is the sample covariance Sigma.
    """
    words: dict[tuple[str, ...], int] = collections.defaultdict(int)
    for i, j in itertools.product(range(1, loops + 1), repeat=2):
        word = "U" + "WA" * i + ("W" if sample_root else "") + "AW" * j
        words[word,] += math.comb(loops, i) * math.comb(loops, j) * (-1) ** (i + j)
    return wishart_expectation(words, symmetric="AU")


@SECTION.claim("corollary-a.4.u-term", "Corollary A.4")
def printed_bias_loss(loss: LoopedLoss) -> Comparison:
    r"""$\mathcal{L}(A, u) - \mathcal{L}(A, 0) = \mathbb{E} \bigl\lVert \sum_{i < L} u^\top \Sigma A (I - \Sigma
    A)^{L-1-i} \Sigma^{1/2} \bigr\rVert^2$

    Sigma is read as the sample covariance, as Lemma 4.1 defines it. The last root comes from the query, so it should be
    the root of the population covariance. Judged with at most 3 loops.
    """
    task, L = loss.task, min(loss.loops, MOST_LAYERS)
    drawn = drawn_layers(task, 4)
    matrices = {"A": positive(drawn.A), "U": drawn.u[:, :, None] * drawn.u[:, None, :]}
    return identity(_bias_words(L, True), _bias_words(L, False), task, matrices)


@SECTION.corrected(
    printed_bias_loss, note=JUDGED + "With the sample's root in place of S^{1/2}, as printed, both terms differ."
)
def loss_of_loops_with_bias(loss: LoopedLoss) -> Comparison:
    r"""$\mathcal{L}(A, u) = \mathbb{E} \lVert (I - W A')^L \rVert_F^2 + \mathbb{E} \bigl\lVert u^\top \bigl(I - (I -
    \Sigma A)^L\bigr) S^{1/2} \bigr\rVert^2$ with $S^{1/2}$ the population's
    """
    drawn = repeated(drawn_layers(loss.task, 1), loss.loops, 1.0)
    return with_sums(*gaps_of_loss(drawn), drawn)
