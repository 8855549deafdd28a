"""Random starts of deep and masked linear transformers and of softmax attention.

Those of one linear attention layer are in `initialization`. A looped model takes one matrix,
``LoopedAttention(symmetric(0.1, 3, seed=0), loops=2)``, a model of k layers as many,
``MultiLayerAttention(symmetric(0.1, 3, seed=0, layers=3))``. Every matrix has a key of its own: the first ones of a
deeper model are those of a shallow one.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from flowsim import _checks
from flowsim.models import MaskedAttention, SoftmaxAttention

Seed = int | Int[Array, ""]


def gaussian(scale: ArrayLike, dimension: int, seed: Seed, layers: int | None = None) -> Float[Array, "*layers d d"]:
    """G with independent entries scale N(0, 1).

    **Arguments:** scale: the standard deviation, positive; dimension: d; layers: k, for (k, d, d) instead of (d, d).

    **Raises:** `ValueError` naming the argument.

    **Source:** ahn2023, sections 5.3 and 6.1.
    """
    size, d = _checks.positive("scale", scale), _checks.count("dimension", dimension)
    count = 1 if layers is None else _checks.count("layers", layers)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), jnp.arange(count))
    drawn = size * jax.vmap(lambda key: jax.random.normal(key, (d, d)))(keys)
    return drawn[0] if layers is None else drawn


def symmetric(scale: ArrayLike, dimension: int, seed: Seed, layers: int | None = None) -> Float[Array, "*layers d d"]:
    """(G + G^T)/2 with the G of `gaussian`, whose arguments and errors these are."""
    drawn = gaussian(scale, dimension, seed, layers)
    return (drawn + jnp.swapaxes(drawn, -1, -2)) / 2


def diagonal(scale: ArrayLike, dimension: int, seed: Seed, layers: int | None = None) -> Float[Array, "*layers d d"]:
    """The diagonal of the G of `gaussian`, whose arguments and errors these are; zero elsewhere."""
    drawn = gaussian(scale, dimension, seed, layers)
    return drawn * jnp.broadcast_to(jnp.eye(dimension), drawn.shape)


def masked(scale: ArrayLike, dimension: int, seed: Seed) -> MaskedAttention:
    """Every entry of b and A of a masked layer scale N(0, 1), one key a weight.

    **Raises:** `ValueError` naming the argument.
    """
    size, d = _checks.positive("scale", scale), _checks.count("dimension", dimension)
    keys = jax.random.split(jax.random.key(seed))
    return MaskedAttention(size * jax.random.normal(keys[0], (d + 1,)), size * jax.random.normal(keys[1], (d + 1, d)))


def softmax(scale: ArrayLike, dimension: int, seed: Seed, layers: int = 1) -> SoftmaxAttention:
    """Every entry of W^PV and W^KQ scale N(0, 1), W^PV before W^KQ in each layer.

    **Raises:** `ValueError` naming the argument.
    """
    d, k = _checks.count("dimension", dimension), _checks.count("layers", layers)
    drawn = gaussian(scale, d + 1, seed, 2 * k)
    return SoftmaxAttention(drawn[::2], drawn[1::2])
