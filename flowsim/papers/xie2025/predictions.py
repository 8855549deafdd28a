"""Both sides of xie2025's statements that models predict alike, on drawn prompts."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim.claims.claim import Comparison
from flowsim.claims.statements import joined, rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import MultiHeadLoss
from flowsim.losses.head_risk import HeadRisk
from flowsim.models import (
    FactoredMultiHeadAttention,
    GradientDescentStep,
    LinearTransformerBlock,
    MultiHeadAttention,
)
from flowsim.papers.xie2025.setting import descent_heads, drawn_heads, same
from flowsim.tasks import LinearRegression, Prompt

Task = LinearRegression
Predictor = Callable[[Prompt], Array]

_PROMPTS = 16
_ETA = 0.7
_BIAS = 0.3


def _alike(task: Task, one: Predictor, other: Predictor) -> Comparison:
    """That two models predict the same on prompts of a task."""
    prompts = jax.vmap(lambda key: task.sample(key)[0])(jax.random.split(jax.random.key(1), _PROMPTS))
    left, right = (jax.vmap(model)(prompts) for model in (one, other))
    # Labels of the size of |w*| cancel.
    labels = 1 + jnp.max(jnp.abs(HeadRisk(task).prior_mean))
    return rounded(same(task, left, right, jnp.max(jnp.abs(right))), labels)


def _normals(*shape: int) -> Float[Array, "..."]:
    return jnp.asarray(np.random.default_rng([2, *shape]).standard_normal(shape))


def _eq_8(loss: MultiHeadLoss, factor: float | Array) -> Comparison:
    """(3) at the weights (7), W^P times a factor, against y_q - (eta/C) (w*^T X^T - y^T) X x_q: eta = 0.7 and y_q of 0,
    of a bias, and linear in x_q with a bias.
    """
    w, d = loss.risk.prior_mean, loss.task.dimension

    def comparison(guess: Array, bias: float) -> Comparison:
        def stated(prompt: Prompt) -> Array:
            X, y = prompt.inputs, prompt.labels
            return guess @ prompt.query + bias - _ETA / y.size * ((w @ X.T - y) @ X @ prompt.query)

        return _alike(loss.task, descent_heads(w, factor * _ETA, guess, bias), stated)

    return joined([comparison(jnp.zeros(d), 0.0), comparison(jnp.zeros(d), _BIAS), comparison(_normals(d), _BIAS)])


def eq_8_as_printed(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(3) at the weights (7), with W^P = -(eta/C) I, against (8)."""
    return _eq_8(loss, 1 / loss.task.context_length)


def eq_8(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(3) at the weights (7) with W^P = -eta I against (8)."""
    return _eq_8(loss, 1.0)


def eq_9(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(8) with y_q = w*^T x_q against a step down the derivative of |X w - y|^2/(2 C) at w*, taken by JAX."""
    w = loss.risk.prior_mean

    def rewritten(prompt: Prompt) -> Array:
        X, y = prompt.inputs, prompt.labels
        return w @ prompt.query - _ETA / y.size * ((w @ X.T - y) @ X @ prompt.query)

    def step(prompt: Prompt) -> Array:
        X, y = prompt.inputs, prompt.labels
        down = jax.grad(lambda w: jnp.sum((X @ w - y) ** 2) / (2 * y.size))(w)
        return (w - _ETA * down) @ prompt.query

    return joined([_alike(loss.task, rewritten, step), _alike(loss.task, GradientDescentStep(_ETA, w), step)])


def eq_10_as_printed(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(3) at the weights (7), with W^P = -(eta/C) I and y_q = w*^T x_q, against a step of gradient descent from w*."""
    w = loss.risk.prior_mean
    return _alike(loss.task, descent_heads(w, _ETA / loss.task.context_length), GradientDescentStep(_ETA, w))


def eq_10(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """(3) at the weights (7), with W^P = -eta I and y_q = w*^T x_q, against a step of gradient descent from w*."""
    w = loss.risk.prior_mean
    return _alike(loss.task, descent_heads(w, _ETA), GradientDescentStep(_ETA, w))


def block_of(head: FactoredMultiHeadAttention, *, keys_and_values: bool = False) -> LinearTransformerBlock:
    """The linear transformer block that the proof of Lemma 3 makes of one head with a guess: with W_3 = [I 0; w^T 0]
    after W^Q alone, or also after W^K and W^V, and c = 1 + |w|^2 in (31).
    """
    w = head.w
    d = w.size
    W_K, W_Q, W_V, W_P = (leaf[0] for leaf in (head.W_K, head.W_Q, head.W_V, head.W_P))
    W_3 = jnp.eye(d + 1).at[d, :d].set(w).at[d, d].set(0.0)
    W_1 = jnp.eye(d + 1).at[d, :d].set(w).at[:d, d].set(w).at[d, d].set(1 + w @ w)
    key, value = (W_K @ W_3, W_V @ W_3) if keys_and_values else (W_K, W_V)
    return LinearTransformerBlock(W_1, jnp.eye(d + 1), key, W_Q @ W_3, value, jnp.linalg.solve(W_1, W_P))


def _block(loss: MultiHeadLoss, keys_and_values: bool) -> Comparison:
    """A linear transformer block against y_q-LSA at drawn weights."""
    d = loss.task.dimension
    W_K, W_Q, W_V, W_P = _normals(4, 1, d + 1, d + 1)
    head = FactoredMultiHeadAttention(W_K, W_Q, W_V, W_P, _normals(d), trainable=True)
    return rounded(_alike(loss.task, block_of(head, keys_and_values=keys_and_values), head), jnp.asarray(1e2))


def block_as_printed(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The weights of the proof of Lemma 3."""
    return _block(loss, True)


def block(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The weights of the proof of Lemma 3 with W^K and W^V as they are."""
    return _block(loss, False)


def same_class(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """d + 1 heads with b_h = e_h and a_i^h the row h of M_i against the d + 2 drawn heads that make these M_i."""
    d = loss.task.dimension
    more = drawn_heads(d, d + 2, 11)
    M = jnp.einsum("hm,hni->imn", more.b, more.A)
    fewer = MultiHeadAttention(jnp.eye(d + 1), jnp.einsum("imn->mni", M), more.w, more.bias)
    return _alike(loss.task, fewer, more)


def determinant(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """det W_1 of (31) against c - |w|^2, at a drawn w and c = 0, 1, |w|^2 and 100."""
    w = _normals(loss.task.dimension)
    d, squares = w.size, jnp.sum(w**2)
    c = jnp.stack([jnp.zeros(()), jnp.ones(()), squares, jnp.asarray(100.0)])
    W_1 = jax.vmap(lambda c: jnp.eye(d + 1).at[d, :d].set(w).at[:d, d].set(w).at[d, d].set(c))(c)
    return same(loss.task, jnp.linalg.det(W_1), c - squares, 1 + c + squares)
