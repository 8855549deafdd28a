"""Random initial weights of deep, masked and multi-head linear transformers and of softmax attention.

A looped model takes one matrix, ``LoopedAttention(symmetric(0.1, 3, seed=0), loops=2)``. A model of k layers takes
k matrices, ``MultiLayerAttention(symmetric(0.1, 3, seed=0, layers=3))``. Each matrix is drawn with its own key, so
the first matrices of a deeper model equal the matrices of a shallower one.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from flowsim._core import checks
from flowsim._core.types import Seed
from flowsim.models import (
    FactoredMultiHeadAttention,
    LinearTransformerBlock,
    MaskedAttention,
    MultiHeadAttention,
    SoftmaxAttention,
)
from flowsim.models.heads import Heads, with_weights


def gaussian(scale: ArrayLike, dimension: int, seed: Seed, layers: int | None = None) -> Float[Array, "*layers d d"]:
    """A random matrix G with independent entries scale N(0, 1), or a stack of k such matrices.

    **Arguments:**

    - scale: the standard deviation, positive.
    - dimension: d.
    - seed: an integer.
    - layers: k, for a result of shape (k, d, d) instead of (d, d).

    **Raises:** `ValueError` naming the argument.
    """
    size, d = checks.positive("scale", scale), checks.count("dimension", dimension)
    count = 1 if layers is None else checks.count("layers", layers)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), jnp.arange(count))
    drawn = size * jax.vmap(lambda key: jax.random.normal(key, (d, d)))(keys)
    return drawn[0] if layers is None else drawn


def symmetric(scale: ArrayLike, dimension: int, seed: Seed, layers: int | None = None) -> Float[Array, "*layers d d"]:
    """(G + G^T)/2 with the random matrix G of `gaussian`.

    **Arguments**, **Raises:** those of `gaussian`.
    """
    drawn = gaussian(scale, dimension, seed, layers)
    return (drawn + jnp.swapaxes(drawn, -1, -2)) / 2


def diagonal(scale: ArrayLike, dimension: int, seed: Seed, layers: int | None = None) -> Float[Array, "*layers d d"]:
    """The random matrix G of `gaussian`, with zeros off the diagonal.

    **Arguments**, **Raises:** those of `gaussian`.
    """
    drawn = gaussian(scale, dimension, seed, layers)
    return drawn * jnp.broadcast_to(jnp.eye(dimension), drawn.shape)


def masked(scale: ArrayLike, dimension: int, seed: Seed) -> MaskedAttention:
    """A `MaskedAttention` with independent entries scale N(0, 1) of b and A.

    **Raises:** `ValueError` naming the argument.
    """
    size, d = checks.positive("scale", scale), checks.count("dimension", dimension)
    keys = jax.random.split(jax.random.key(seed))
    return MaskedAttention(size * jax.random.normal(keys[0], (d + 1,)), size * jax.random.normal(keys[1], (d + 1, d)))


def softmax(scale: ArrayLike, dimension: int, seed: Seed, layers: int = 1) -> SoftmaxAttention:
    """A `SoftmaxAttention` with independent entries scale N(0, 1) of W^PV and W^KQ.

    **Raises:** `ValueError` naming the argument.
    """
    d, k = checks.count("dimension", dimension), checks.count("layers", layers)
    drawn = gaussian(scale, d + 1, seed, 2 * k)
    return SoftmaxAttention(drawn[::2], drawn[1::2])


def heads(scale: ArrayLike, like: MultiHeadAttention, seed: Seed) -> MultiHeadAttention:
    """A `MultiHeadAttention` with independent entries scale N(0, 1) of b and A, and of w if it is trainable.

    **Arguments:** like: gives the shapes, the bias and whether w is trainable. If it is not, ``like`` also gives w.

    **Raises:** `ValueError` naming the argument.
    """
    size, keys = checks.positive("scale", scale), jax.random.split(jax.random.key(seed), 3)
    b, A = (size * jax.random.normal(key, x.shape) for key, x in zip(keys[:2], (like.b, like.A), strict=True))
    return MultiHeadAttention(b, A, _guess(size, like, keys[2]), like.bias, trainable=like.trainable)


def balanced_heads(scale: ArrayLike, like: MultiHeadAttention, seed: Seed) -> MultiHeadAttention:
    """The result of `heads`, with b and A of each head rescaled to |b_h| = |A_h|_F = scale.

    The conserved quantities |b_h|^2 - |A_h|_F^2 are then zero.

    **Raises:** `ValueError` naming the argument.
    """
    drawn = heads(scale, like, seed)
    b = scale * drawn.b / jnp.linalg.norm(drawn.b, axis=1, keepdims=True)
    A = scale * drawn.A / jnp.linalg.norm(drawn.A, axis=(1, 2), keepdims=True)
    return MultiHeadAttention(b, A, drawn.w, drawn.bias, trainable=drawn.trainable)


def factored_heads(scale: ArrayLike, like: MultiHeadAttention, seed: Seed) -> FactoredMultiHeadAttention:
    """A `FactoredMultiHeadAttention` with independent entries scale N(0, 1) of W^K, W^Q, W^V and W^P.

    The shapes, w and the bias follow from ``like`` as in `heads`.

    **Raises:** `ValueError` naming the argument.
    """
    size, keys = checks.positive("scale", scale), jax.random.split(jax.random.key(seed), 5)
    W_K, W_Q, W_V, W_P = (size * jax.random.normal(key, like.A.shape) for key in keys[:4])
    w = _guess(size, like, keys[4])
    return FactoredMultiHeadAttention(W_K, W_Q, W_V, W_P, w, like.bias, trainable=like.trainable)


def linear_heads(scale: ArrayLike, like: Heads, seed: Seed, scales: Mapping[str, ArrayLike] | None = None) -> Heads:
    """`MergedHeads`, `SeparateHeads` or `TokenHeads` whose weights have independent entries scale N(0, 1).

    **Arguments:**

    - scale: the standard deviation of all arrays that ``scales`` does not name, positive.
    - like: heads that give the type and the shapes, the bias, and w if it is not trainable.
    - seed: an integer.
    - scales: standard deviations of single arrays, by name.

    **Raises:** `ValueError` naming the argument.
    """
    others = {} if scales is None else dict(scales)
    for name in others:
        if name not in like.weights:
            checks.refuse(f"scales.{name}", f"left out: the weights are {', '.join(like.weights)}", "it is given")
    sizes = {
        name: checks.positive(f"scales.{name}" if name in others else "scale", others.get(name, scale))
        for name in like.weights
    }
    keys = jax.random.split(jax.random.key(seed), len(sizes))
    drawn = zip(keys, like.weights.items(), strict=True)
    return with_weights(like, {name: sizes[name] * jax.random.normal(key, x.shape) for key, (name, x) in drawn})


def linear_block(scale: ArrayLike, dimension: int, seed: Seed) -> LinearTransformerBlock:
    """A `LinearTransformerBlock` of width d + 1 whose matrices have independent entries scale N(0, 1).

    **Raises:** `ValueError` naming the argument.
    """
    rows = checks.count("dimension", dimension) + 1
    names = ("W_1", "W_2", "W_K", "W_Q", "W_V", "W_P")
    return LinearTransformerBlock(**dict(zip(names, gaussian(scale, rows, seed, 6), strict=True)))


def _guess(size: Array, like: MultiHeadAttention, key: PRNGKeyArray) -> Float[Array, " d"]:
    return size * jax.random.normal(key, like.w.shape) if like.trainable else like.w
