"""Linear networks of three layers, for the tests of limits."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np


class Layers(eqx.Module):
    W1: jax.Array
    W2: jax.Array
    W3: jax.Array

    @property
    def product(self):
        return self.W3 @ self.W2 @ self.W1


class Weights(eqx.Module):
    w: jax.Array


def orthogonal(d, rng):
    return np.linalg.qr(rng.standard_normal((d, d)))[0]


def layers(d, *, balanced, scale=0.3, seed=1):
    """Three layers; balanced ones have W_{k+1}^T W_{k+1} = W_k W_k^T, and the product has a positive determinant."""
    rng = np.random.default_rng(seed)
    if not balanced:
        return Layers(*(jnp.asarray(scale * np.eye(d) + 0.3 * scale * rng.standard_normal((d, d))) for _ in range(3)))
    turns = [orthogonal(d, rng) for _ in range(4)]
    turns[3][:, 0] *= np.sign(np.linalg.det(turns[3]) * np.linalg.det(turns[0]))
    sizes = scale * np.exp(0.3 * rng.standard_normal(d))
    return Layers(*(jnp.asarray(turns[k + 1] * sizes @ turns[k].T) for k in range(3)))


def target(d, seed=1):
    return np.eye(d) + np.random.default_rng(seed).standard_normal((d, d)) / (2 * np.sqrt(d))
