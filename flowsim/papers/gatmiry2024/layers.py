"""gatmiry2024's formulas for layers: what the literal transformer does on drawn prompts, and expectations, exactly."""

import collections
import functools
import itertools
import math
from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim._core.types import Matrix
from flowsim.claims.claim import Comparison, at_most, equal
from flowsim.claims.statements import rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LoopedLoss
from flowsim.losses.deep.residual_energy import layer_terms, loop_terms, power_terms
from flowsim.models.linear_attention import embed
from flowsim.models.masked_attention import attend
from flowsim.moments import TracePolynomial, wishart_expectation
from flowsim.tasks import LinearRegression, Prompt

Layers = Float[Array, "k d d"]
Vectors = Float[Array, "k d"]

_PROMPTS = 6
_MOST_LAYERS = 3  # of their own, in expectations


class _Drawn(eqx.Module):
    """Contexts z of whitened examples, and layers A' = S^{1/2} A S^{1/2} and u' = S^{1/2} u of norms of about one."""

    root: Matrix
    inverse_root: Matrix
    contexts: Float[Array, "prompts n d"]
    A: Layers
    u: Vectors

    @property
    def layers(self) -> Layers:
        """A."""
        return self.inverse_root @ self.A @ self.inverse_root

    @property
    def vectors(self) -> Vectors:
        """u."""
        return self.u @ self.inverse_root


def _drawn(task: LinearRegression, layers: int) -> _Drawn:
    d, n = task.dimension, int(float(task.context_length))
    values, vectors = jnp.linalg.eigh(task.covariance)
    root, inverse_root = ((vectors * part[None, :]) @ vectors.T for part in (jnp.sqrt(values), 1 / jnp.sqrt(values)))
    keys = jax.random.split(jax.random.key(0), 3)
    noise = jax.random.normal(keys[1], (layers, d, d)) / jnp.sqrt(float(d))
    return _Drawn(
        root,
        inverse_root,
        jax.random.normal(keys[0], (_PROMPTS, n, d)),
        0.5 * (jnp.eye(d)[None] + noise),
        jax.random.normal(keys[2], (layers, d)) / jnp.sqrt(float(d)),
    )


def last_rows(prompt: Prompt, A: Layers, u: Vectors) -> Float[Array, "steps columns"]:
    """The last row of Z^{(0)}, .., Z^{(k)}: Z <- Z - (1/n) P Z M (Z^T Q Z) with P = [0 0; u^T 1], Q = [A 0; 0 0]."""
    (_, d, _), n = A.shape, prompt.inputs.shape[0]
    Z = embed(prompt)
    rows = [Z[-1]]
    for matrix, vector in zip(A, u, strict=True):
        P = jnp.zeros((d + 1, d + 1)).at[d, :d].set(vector).at[d, d].set(1.0)
        Q = jnp.zeros((d + 1, d + 1)).at[:d, :d].set(matrix)
        Z = Z - attend(Z, P, Q) / n
        rows.append(Z[-1])
    return jnp.stack(rows)


def _formula(Sigma: Matrix, A: Layers, u: Vectors) -> tuple[Matrix, Float[Array, " d"]]:
    """prod_i (I - Sigma A^{(i)}), left to right, and sum_i u^{(i)T} Sigma A^{(i)} prod_{j > i} (I - Sigma A^{(j)})."""
    product, total = jnp.eye(Sigma.shape[0]), jnp.zeros(Sigma.shape[0])
    for matrix, vector in zip(A, u, strict=True):
        factor = jnp.eye(Sigma.shape[0]) - Sigma @ matrix
        product, total = product @ factor, total @ factor + vector @ Sigma @ matrix
    return product, total


@eqx.filter_jit
def _recursion(drawn: _Drawn) -> dict[str, Array]:
    """For every context and t: the literal row of labels and y_q, what (12) and (13) say without the second sum, that
    sum, and the size of the terms.
    """

    def one(context: Array) -> dict[str, Array]:
        w, x = jnp.sin(1.0 + jnp.arange(2.0 * context.shape[1])).reshape(2, -1)
        w, x, X = w @ drawn.inverse_root, x @ drawn.root, context @ drawn.root
        A, u, Sigma = drawn.layers, drawn.vectors, X.T @ X / context.shape[0]
        rows, found = last_rows(Prompt(X, X @ w, x), A, u), []
        for t, literal in enumerate(rows):
            product, total = _formula(Sigma, A[:t], u[:t])
            size = sum(jnp.linalg.norm(part) for part in (w, w @ product, total))
            labels = {"labels": literal[:-1] - X @ (w @ product), "labels_sum": X @ total, "labels_size": size}
            query = {"query": -literal[-1] - (w - w @ product) @ x, "query_sum": -total @ x}
            sizes = {"labels_size": size * jnp.linalg.norm(X), "query_size": size * jnp.linalg.norm(x)}
            found.append(labels | query | sizes)
        return jax.tree.map(lambda *values: jnp.stack(values), *found)

    return jax.vmap(one)(drawn.contexts)


def _recursions(sign: float, part: str) -> Callable[[LoopedLoss, Trajectory], Comparison]:
    """The literal rows against (12) or (13) with this sign of the second sum."""

    def compare(loss: LoopedLoss, trajectory: Trajectory) -> Comparison:
        drawn = _drawn(loss.task, loss.loops)
        found = _recursion(drawn)
        gaps = found[part] - sign * found[f"{part}_sum"]
        gaps = jnp.sqrt(jnp.sum(gaps.reshape(*gaps.shape[:2], -1) ** 2, axis=2))
        return _with_sums(gaps, found[f"{part}_size"], drawn)

    return compare


def _with_sums(gaps: Array, sizes: Array, drawn: _Drawn) -> Comparison:
    """Gaps against zero; rounding grows with the sums that are taken."""
    _, n, d = drawn.contexts.shape
    return rounded(equal(gaps.reshape(-1), 0.0, sizes.reshape(-1)), jnp.asarray(float(n + d * len(drawn.A))))


def _literal_loss(drawn: _Drawn, context: Array) -> Array:
    """E[(prediction - y_query)^2] over w ~ N(0, S^-1) and x_query ~ N(0, S), given the examples, by the transformer.

    The error is affine in w and linear in x_query, so that it is known from those of a basis.
    """
    X, d = context @ drawn.root, context.shape[1]

    def error(w: Array, x: Array) -> Array:
        return w @ x + last_rows(Prompt(X, X @ w, x), drawn.layers, drawn.vectors)[-1, -1]

    weights = jnp.concatenate([jnp.zeros((1, d)), drawn.inverse_root])
    errors = jax.vmap(jax.vmap(error, (None, 0)), (0, None))(weights, drawn.root)
    return jnp.sum(errors[0] ** 2) + jnp.sum((errors[1:] - errors[:1]) ** 2)


@eqx.filter_jit
def _gaps_of_loss(drawn: _Drawn) -> tuple[Array, Array]:
    """The literal loss of each context less |S^{-1/2} prod (I - Sigma A_i) S^{1/2}|^2 + |sum_i .. S^{1/2}|^2; sizes."""
    return jax.vmap(lambda context: _gap_of_loss(drawn, context))(drawn.contexts)


def _gap_of_loss(drawn: _Drawn, context: Array) -> tuple[Array, Array]:
    X = context @ drawn.root
    product, total = _formula(X.T @ X / context.shape[0], drawn.layers, drawn.vectors)
    formula = jnp.sum((drawn.inverse_root @ product @ drawn.root) ** 2) + jnp.sum((total @ drawn.root) ** 2)
    literal = _literal_loss(drawn, context)
    whitened = jnp.linalg.norm(context.T @ context) / context.shape[0]
    return literal - formula, literal + (1 + whitened) ** (2 * len(drawn.A))


labels_plus, labels_minus = _recursions(1.0, "labels"), _recursions(-1.0, "labels")
query_plus, query_minus = _recursions(1.0, "query"), _recursions(-1.0, "query")


def loss_of_layers(loss: LoopedLoss, trajectory: Trajectory) -> Comparison:
    """The literal loss given the examples, with layers of their own that are not symmetric."""
    drawn = _drawn(loss.task, loss.loops)
    return _with_sums(*_gaps_of_loss(drawn), drawn)


def loss_of_loops(loss: LoopedLoss, trajectory: Trajectory) -> Comparison:
    """The literal loss given the examples, with one symmetric A and u = 0 for all layers."""
    drawn = _repeated(_drawn(loss.task, 1), loss.loops, 0.0)
    return _with_sums(*_gaps_of_loss(drawn), drawn)


def loss_of_loops_with_bias(loss: LoopedLoss, trajectory: Trajectory) -> Comparison:
    """The literal loss given the examples, with one symmetric A and one u for all layers."""
    drawn = _repeated(_drawn(loss.task, 1), loss.loops, 1.0)
    return _with_sums(*_gaps_of_loss(drawn), drawn)


def _repeated(drawn: _Drawn, loops: int, bias: float) -> _Drawn:
    A = jnp.repeat(_positive(drawn.A), loops, axis=0)
    return _Drawn(drawn.root, drawn.inverse_root, drawn.contexts, A, bias * jnp.repeat(drawn.u, loops, axis=0))


def _positive(A: Layers) -> Layers:
    """Positive definite matrices, as A^{1/2} asks for."""
    return A @ jnp.swapaxes(A, 1, 2)


# Expectations over the examples, exactly.


@functools.cache
def _layers_words(layers: int, sample_roots: bool) -> TracePolynomial:
    """E |S^{-1/2} prod (I - Sigma A_i) S^{1/2}|^2 with the population covariance, or with the sample's in its place,
    where it is E tr(prod (I - Sigma A_i) prod (I - Sigma A_{k-1-i})).
    """
    letters = "ABCDEFG"[:layers]
    if not sample_roots:
        return layer_terms(layers, True, False)
    words: dict[tuple[str, ...], int] = collections.defaultdict(int)
    factors = ["W" + letter for letter in letters + letters[::-1]]
    for kept in itertools.product((False, True), repeat=len(factors)):
        words["".join(itertools.compress(factors, kept)),] += (-1) ** sum(kept)
    return wishart_expectation(words, symmetric=letters)


@functools.cache
def _bias_words(loops: int, sample_root: bool) -> TracePolynomial:
    """E |u^T (I - (I - Sigma A)^L) S^{1/2}|^2 with the population covariance, or with the sample's in its place."""
    words: dict[tuple[str, ...], int] = collections.defaultdict(int)
    for i, j in itertools.product(range(1, loops + 1), repeat=2):
        word = "U" + "WA" * i + ("W" if sample_root else "") + "AW" * j
        words[word,] += math.comb(loops, i) * math.comb(loops, j) * (-1) ** (i + j)
    return wishart_expectation(words, symmetric="AU")


def _compared(
    left: TracePolynomial, right: TracePolynomial, task: LinearRegression, matrices: Mapping[str, Layers]
) -> tuple[Array, Array, Array]:
    """Both expectations at every set of matrices, one letter each, and the size of the sums that give them."""
    n = task.context_length
    first, second = (jax.vmap(lambda one, side=side: side(n, **one))(dict(matrices)) for side in (left, right))
    norms = sum(jnp.linalg.norm(rows, axis=(1, 2)) for rows in matrices.values())
    degree = max(len(words) for _, words in left.terms)
    return first, second, task.dimension * (1 + norms) ** degree


def _identity(left: TracePolynomial, right: TracePolynomial, task, matrices: Mapping[str, Layers]) -> Comparison:
    """left = right, with the rounding of sums of terms of both signs."""
    first, second, sums = _compared(left, right, task, matrices)
    comparison = equal(first, second, jnp.maximum(first, second))
    return eqx.tree_at(lambda c: c.scale, comparison, jnp.maximum(comparison.scale, sums))


def _matrices(task: LinearRegression, count: int) -> Layers:
    """Positive definite A' that are no multiples of I, and I itself at last."""
    drawn = _positive(_drawn(task, count).A)
    return jnp.concatenate([drawn, jnp.eye(task.dimension)[None]])


def printed_looped_loss(loss: LoopedLoss, trajectory: Trajectory) -> Comparison:
    """E tr (I - A^{1/2} Sigma A^{1/2})^{2L} against L(A, 0), at drawn A and at S^-1."""
    task, L = loss.task, loss.loops
    return _identity(power_terms(2 * L), loop_terms(L, True, False), task, {"A": _matrices(task, 4)})


def printed_looped_loss_below(loss: LoopedLoss, trajectory: Trajectory) -> Comparison:
    """The printed expression against L(A, 0), at drawn A that are no multiples of S^-1."""
    task, L = loss.task, loss.loops
    drawn = {"A": _matrices(task, 4)[:-1]}
    printed, true, sums = _compared(power_terms(2 * L), loop_terms(L, True, False), task, drawn)
    comparison = at_most(printed, true, promised=task.dimension > 1)
    return eqx.tree_at(lambda c: c.scale, comparison, jnp.maximum(comparison.scale, sums))


def gap_constants(loss: LoopedLoss, trajectory: Trajectory) -> dict[str, Array]:
    """The largest share of L(A, 0) by which the printed expression is below it, among the drawn A."""
    task, L = loss.task, loss.loops
    printed, true, _ = _compared(power_terms(2 * L), loop_terms(L, True, False), task, {"A": _matrices(task, 4)})
    return {"largest_share_below": jnp.max(1 - printed / true)}


def printed_layers_loss(loss: LoopedLoss, trajectory: Trajectory) -> Comparison:
    """E |Sigma^{-1/2} prod (I - Sigma A_i) Sigma^{1/2}|^2 against the loss of as many layers, at u = 0."""
    task, k = loss.task, min(loss.loops, _MOST_LAYERS)
    rows = _positive(_drawn(task, 4 * k).A).reshape(k, 4, task.dimension, task.dimension)
    matrices = dict(zip("ABC", rows, strict=False))
    return _identity(_layers_words(k, True), _layers_words(k, False), task, matrices)


def printed_bias_loss(loss: LoopedLoss, trajectory: Trajectory) -> Comparison:
    """E |sum_i u^T Sigma A (I - Sigma A)^{L-1-i} Sigma^{1/2}|^2, Sigma the sample's throughout, against the u-term."""
    task, L = loss.task, min(loss.loops, _MOST_LAYERS)
    drawn = _drawn(task, 4)
    matrices = {"A": _positive(drawn.A), "U": drawn.u[:, :, None] * drawn.u[:, None, :]}
    return _identity(_bias_words(L, True), _bias_words(L, False), task, matrices)
