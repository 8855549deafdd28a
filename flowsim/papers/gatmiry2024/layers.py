"""gatmiry2024's layers: the literal transformer on drawn prompts, and exact expectations."""

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim._core.types import Matrix
from flowsim.claims.claim import Comparison, equal
from flowsim.claims.statements import rounded
from flowsim.models.linear_attention import embed
from flowsim.models.masked_attention import attend
from flowsim.moments import TracePolynomial
from flowsim.papers.gatmiry2024.lemma_settings import DEEP, LONG, ONE_DIMENSION, SHORT, SINGLE
from flowsim.tasks import LinearRegression, Prompt

Layers = Float[Array, "k d d"]
Vectors = Float[Array, "k d"]

_PROMPTS = 6
MOST_LAYERS = 3  # distinct layers in an exact expectation
JUDGED = "Judged on 6 drawn contexts, layer by layer. "
PROBLEMS = (SHORT, SINGLE, DEEP, ONE_DIMENSION, LONG)


class DrawnLayers(eqx.Module):
    """Contexts z of whitened examples, and layers A' = S^{1/2} A S^{1/2} and u' = S^{1/2} u of norm about one."""

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
    """Draws 6 contexts of the task and the given number of layers."""
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


def last_rows(prompt: Prompt, A: Layers, u: Vectors) -> Float[Array, "steps columns"]:
    """The last rows of Z^{(0)}, .., Z^{(k)}: Z <- Z - (1/n) P Z M (Z^T Q Z) with P = [0 0; u^T 1], Q = [A 0; 0 0]."""
    (_, d, _), n = A.shape, prompt.inputs.shape[0]
    Z = embed(prompt)
    rows = [Z[-1]]
    for matrix, vector in zip(A, u, strict=True):
        P = jnp.zeros((d + 1, d + 1)).at[d, :d].set(vector).at[d, d].set(1.0)
        Q = jnp.zeros((d + 1, d + 1)).at[:d, :d].set(matrix)
        Z = Z - attend(Z, P, Q) / n
        rows.append(Z[-1])
    return jnp.stack(rows)


def product_and_sum(Sigma: Matrix, A: Layers, u: Vectors) -> tuple[Matrix, Float[Array, " d"]]:
    """prod_i (I - Sigma A^{(i)}), left to right, and sum_i u^{(i)T} Sigma A^{(i)} prod_{j > i} (I - Sigma A^{(j)})."""
    product, total = jnp.eye(Sigma.shape[0]), jnp.zeros(Sigma.shape[0])
    for matrix, vector in zip(A, u, strict=True):
        factor = jnp.eye(Sigma.shape[0]) - Sigma @ matrix
        product, total = product @ factor, total @ factor + vector @ Sigma @ matrix
    return product, total


def with_sums(gaps: Array, sizes: Array, drawn: DrawnLayers) -> Comparison:
    """Compares gaps with zero, with rounding that grows with the lengths of the sums behind them."""
    _, n, d = drawn.contexts.shape
    return rounded(equal(gaps.reshape(-1), 0.0, sizes.reshape(-1)), jnp.asarray(float(n + d * len(drawn.A))))


def _literal_loss(drawn: DrawnLayers, context: Array) -> Array:
    """E[(prediction - y_query)^2] over w ~ N(0, S^-1) and x_query ~ N(0, S), given the examples, by the transformer.

    The error is affine in w and linear in x_query, so its values on bases determine it.
    """
    X, d = context @ drawn.root, context.shape[1]

    def error(w: Array, x: Array) -> Array:
        return w @ x + last_rows(Prompt(X, X @ w, x), drawn.layers, drawn.vectors)[-1, -1]

    weights = jnp.concatenate([jnp.zeros((1, d)), drawn.inverse_root])
    errors = jax.vmap(jax.vmap(error, (None, 0)), (0, None))(weights, drawn.root)
    return jnp.sum(errors[0] ** 2) + jnp.sum((errors[1:] - errors[:1]) ** 2)


@eqx.filter_jit
def gaps_of_loss(drawn: DrawnLayers) -> tuple[Array, Array]:
    """The literal loss of each context minus the formula for it, and the sizes of the terms.

    The formula is |S^{-1/2} prod (I - Sigma A_i) S^{1/2}|^2 + |sum_i .. S^{1/2}|^2.
    """
    return jax.vmap(lambda context: _gap_of_loss(drawn, context))(drawn.contexts)


def _gap_of_loss(drawn: DrawnLayers, context: Array) -> tuple[Array, Array]:
    X = context @ drawn.root
    product, total = product_and_sum(X.T @ X / context.shape[0], drawn.layers, drawn.vectors)
    formula = jnp.sum((drawn.inverse_root @ product @ drawn.root) ** 2) + jnp.sum((total @ drawn.root) ** 2)
    literal = _literal_loss(drawn, context)
    whitened = jnp.linalg.norm(context.T @ context) / context.shape[0]
    return literal - formula, literal + (1 + whitened) ** (2 * len(drawn.A))


def repeated(drawn: DrawnLayers, loops: int, bias: float) -> DrawnLayers:
    """The drawn layer repeated ``loops`` times, with A made positive and u multiplied by ``bias``."""
    A = jnp.repeat(positive(drawn.A), loops, axis=0)
    return DrawnLayers(drawn.root, drawn.inverse_root, drawn.contexts, A, bias * jnp.repeat(drawn.u, loops, axis=0))


def positive(A: Layers) -> Layers:
    """A A^T for each A, positive definite as A^{1/2} requires."""
    return A @ jnp.swapaxes(A, 1, 2)


def both_expectations(
    left: TracePolynomial, right: TracePolynomial, task: LinearRegression, matrices: Mapping[str, Layers]
) -> tuple[Array, Array, Array]:
    """Both expectations at each of k sets of matrices, keyed by letter, and the sizes of the sums behind them."""
    n = task.context_length
    first, second = (jax.vmap(lambda one, side=side: side(n, **one))(dict(matrices)) for side in (left, right))
    norms = sum(jnp.linalg.norm(rows, axis=(1, 2)) for rows in matrices.values())
    degree = max(len(words) for _, words in left.terms)
    return first, second, task.dimension * (1 + norms) ** degree


def identity(left: TracePolynomial, right: TracePolynomial, task, matrices: Mapping[str, Layers]) -> Comparison:
    """The statement left = right, with the rounding of sums whose terms have both signs."""
    first, second, sums = both_expectations(left, right, task, matrices)
    comparison = equal(first, second, jnp.maximum(first, second))
    return eqx.tree_at(lambda c: c.scale, comparison, jnp.maximum(comparison.scale, sums))


def drawn_matrices(task: LinearRegression, count: int) -> Layers:
    """Draws ``count`` positive definite A' that are not multiples of I, and appends I itself."""
    drawn = positive(drawn_layers(task, count).A)
    return jnp.concatenate([drawn, jnp.eye(task.dimension)[None]])
