"""gatmiry2024's appendix A: Theorem A.1 on each layer, Lemma A.3 and Corollary A.4 on the loss with u."""

import collections
import functools
import itertools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from flowsim.claims.claim import Comparison
from flowsim.claims.declaring import Section
from flowsim.losses import LoopedLoss
from flowsim.losses.deep.residual_energy import layer_terms
from flowsim.moments import TracePolynomial, wishart_expectation
from flowsim.papers.gatmiry2024 import spaces
from flowsim.papers.gatmiry2024.layers import (
    JUDGED,
    MOST_LAYERS,
    PROBLEMS,
    DrawnLayers,
    drawn_layers,
    gaps_of_loss,
    identity,
    last_rows,
    positive,
    product_and_sum,
    repeated,
    with_sums,
)
from flowsim.papers.gatmiry2024.lemma_settings import looped_by_matrices
from flowsim.papers.gatmiry2024.setting import MODELS, over_determined
from flowsim.tasks import Prompt

_SIGN = (
    JUDGED
    + "Each layer adds u^T to the row of labels before it subtracts, y <- y - (u + v)^T Sigma A X, so the sum over "
    "u enters with the opposite sign. Where all u are zero the two forms agree; the loss does not depend on the sign. "
)


@eqx.filter_jit
def _recursion(drawn: DrawnLayers) -> dict[str, Array]:
    """For each context and t: the literal row of labels and y_q minus the first terms of (12) and (13), the second sums
    of (12) and (13), and the sizes of the terms.
    """

    def one(context: Array) -> dict[str, Array]:
        w, x = jnp.sin(1.0 + jnp.arange(2.0 * context.shape[1])).reshape(2, -1)
        w, x, X = w @ drawn.inverse_root, x @ drawn.root, context @ drawn.root
        A, u, Sigma = drawn.layers, drawn.vectors, X.T @ X / context.shape[0]
        rows, found = last_rows(Prompt(X, X @ w, x), A, u), []
        for t, literal in enumerate(rows):
            product, total = product_and_sum(Sigma, A[:t], u[:t])
            size = sum(jnp.linalg.norm(part) for part in (w, w @ product, total))
            labels = {"labels": literal[:-1] - X @ (w @ product), "labels_sum": X @ total, "labels_size": size}
            query = {"query": -literal[-1] - (w - w @ product) @ x, "query_sum": -total @ x}
            sizes = {"labels_size": size * jnp.linalg.norm(X), "query_size": size * jnp.linalg.norm(x)}
            found.append(labels | query | sizes)
        return jax.tree.map(lambda *values: jnp.stack(values), *found)

    return jax.vmap(one)(drawn.contexts)


def _against(loss: LoopedLoss, sign: float, part: str) -> Comparison:
    """The literal rows against (12) or (13) with this sign of the second sum."""
    drawn = drawn_layers(loss.task, loss.loops)
    found = _recursion(drawn)
    gaps = found[part] - sign * found[f"{part}_sum"]
    gaps = jnp.sqrt(jnp.sum(gaps.reshape(*gaps.shape[:2], -1) ** 2, axis=2))
    return with_sums(gaps, found[f"{part}_size"], drawn)


SECTION = Section("gatmiry2024", *MODELS, setting=looped_by_matrices, problems=PROBLEMS, spaces=spaces.LEMMAS)


@SECTION.claim("theorem-a.1.eq-12", "Theorem A.1, (12)", note=_SIGN)
def labels_plus(loss: LoopedLoss) -> Comparison:
    r"""$y^{(t)\top} = w^\top \prod_{i<t} (I - \Sigma A_i) X + \sum_{i<t} u_i^\top \Sigma A_i \prod_{i<j<t} (I - \Sigma
    A_j) X$
    """
    return _against(loss, 1.0, "labels")


@SECTION.corrected(labels_plus, note=_SIGN + "The proof writes X X^T = Sigma; Sigma is X X^T / n.")
def labels_minus(loss: LoopedLoss) -> Comparison:
    r"""$y^{(t)\top} = w^\top \prod_{i<t} (I - \Sigma A_i) X - \sum_{i<t} u_i^\top \Sigma A_i \prod_{i<j<t} (I - \Sigma
    A_j) X$
    """
    return _against(loss, -1.0, "labels")


@SECTION.claim("theorem-a.1.eq-13", "Theorem A.1, (13)", note=_SIGN)
def query_plus(loss: LoopedLoss) -> Comparison:
    r"""$y_q^{(t)} = y_q - w^\top \prod_{i<t} (I - \Sigma A_i) x_q - \sum_{i<t} u_i^\top \Sigma A_i \prod_{i<j<t} (I -
    \Sigma A_j) x_q$
    """
    return _against(loss, 1.0, "query")


@SECTION.corrected(query_plus, note=_SIGN)
def query_minus(loss: LoopedLoss) -> Comparison:
    r"""$y_q^{(t)} = y_q - w^\top \prod_{i<t} (I - \Sigma A_i) x_q + \sum_{i<t} u_i^\top \Sigma A_i \prod_{i<j<t} (I -
    \Sigma A_j) x_q$
    """
    return _against(loss, -1.0, "query")


@functools.cache
def _layers_words(layers: int, sample_roots: bool) -> TracePolynomial:
    """E |S^{-1/2} prod (I - Sigma A_i) S^{1/2}|^2 with S the population covariance or, with ``sample_roots``, the
    sample's, where it is E tr(prod (I - Sigma A_i) prod (I - Sigma A_{k-1-i})).
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

    Sigma is read as the sample covariance throughout; Lemma 4.1 is then the case of equal layers. The outer roots come
    from the laws of w and x_query, so they belong to the population covariance. Judged at d_i = 0 with at most 3
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
    """E |u^T (I - (I - Sigma A)^L) S^{1/2}|^2 with the population's S or, with ``sample_root``, the sample's."""
    words: dict[tuple[str, ...], int] = collections.defaultdict(int)
    for i, j in itertools.product(range(1, loops + 1), repeat=2):
        word = "U" + "WA" * i + ("W" if sample_root else "") + "AW" * j
        words[word,] += math.comb(loops, i) * math.comb(loops, j) * (-1) ** (i + j)
    return wishart_expectation(words, symmetric="AU")


@SECTION.claim("corollary-a.4.u-term", "Corollary A.4")
def printed_bias_loss(loss: LoopedLoss) -> Comparison:
    r"""$\mathcal{L}(A, u) - \mathcal{L}(A, 0) = \mathbb{E} \bigl\lVert \sum_{i < L} u^\top \Sigma A (I - \Sigma
    A)^{L-1-i} \Sigma^{1/2} \bigr\rVert^2$

    Sigma is read as the sample covariance, as Lemma 4.1 defines it. The last root comes from the query, so it belongs
    to the population covariance. Judged with L at most 3.
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
