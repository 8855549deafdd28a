"""Starts of one linear attention layer."""

import functools
from collections.abc import Iterable

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from flowsim._core import checks
from flowsim._core.types import Seed
from flowsim.models import LinearAttention


def balanced(scale: ArrayLike, theta: ArrayLike | Iterable) -> LinearAttention:
    """u_{-1} = sigma, U11 = sigma Theta Theta^T with Theta Theta^T = M M^T / |M M^T|_F.

    **Arguments:** scale: sigma > 0; theta: (d, r) M, not zero.

    **Raises:** `ValueError` naming the argument.
    """
    return _start(scale, _gram(theta), normalised=True)


def balanced_indefinite(scale: ArrayLike, theta: ArrayLike | Iterable) -> LinearAttention:
    """Balanced, |U11|_F = u_{-1} = sigma, with U11 = sigma sym(M)/|sym(M)|_F, which may be indefinite; M is (d, d)."""
    matrix = checks.square("theta", checks.as_array("theta", theta, (None, None)))
    return _start(scale, (matrix + matrix.T) / 2, normalised=True)


def unbalanced(scale: ArrayLike, theta: ArrayLike | Iterable) -> LinearAttention:
    """u_{-1} = sigma, U11 = sigma M M^T, not normalised; M is (d, r)."""
    return _start(scale, _gram(theta), normalised=False)


def zeros(dimension: int) -> LinearAttention:
    """All weights zero, a saddle of the loss."""
    return LinearAttention(jnp.zeros((dimension, dimension)), 0.0)


def scaled_identity(scale: ArrayLike, dimension: int) -> LinearAttention:
    """Balanced with Theta Theta^T = I / sqrt(d)."""
    return _start(scale, jnp.eye(dimension), normalised=True)


def random(scale: ArrayLike, dimension: int, seed: Seed) -> LinearAttention:
    """All weights, u12 and u21 too, with independent entries sigma N(0, 1)."""
    sigma = checks.positive("scale", scale)
    keys = jax.random.split(jax.random.key(seed), 4)
    shapes = ((dimension, dimension), (), (dimension,), (dimension,))
    return LinearAttention(*(sigma * jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)))


def random_theta(dimension: int, rank: int, seed: Seed) -> Float[Array, "d r"]:
    """M with independent standard normal entries.

    **Raises:** `ValueError` unless 1 <= rank <= dimension.
    """
    if not 1 <= rank <= dimension:
        checks.refuse("rank", f"between 1 and the dimension {dimension}", f"it is {rank}")
    return jax.random.normal(jax.random.key(seed), (dimension, rank))


def _gram(theta: ArrayLike | Iterable) -> Float[Array, "d d"]:
    return _product(checks.as_array("theta", theta, (None, None)))


@jax.jit
def _product(matrix: Float[Array, "d r"]) -> Float[Array, "d d"]:
    # M is scaled first, so that M M^T neither overflows nor underflows.
    size = jnp.max(jnp.abs(matrix), initial=0.0)
    return (matrix / jnp.where(size > 0, size, 1.0)) @ matrix.T * size


def _start(scale: ArrayLike, shape: Float[Array, "d d"], *, normalised: bool) -> LinearAttention:
    sigma = checks.positive("scale", scale)
    U11, size = _scaled(sigma, shape, normalised)
    if checks.is_concrete(size) and float(size) == 0:
        checks.refuse("theta", "not zero", "it is")
    return LinearAttention(U11, sigma)


@functools.partial(jax.jit, static_argnames="normalised")
def _scaled(
    sigma: Float[Array, ""], shape: Float[Array, "d d"], normalised: bool
) -> tuple[Float[Array, "d d"], Float[Array, ""]]:
    """sigma times the matrix, divided by its norm if ``normalised``, and its norm."""
    size = jnp.linalg.norm(shape)
    return sigma * shape / (size if normalised else 1.0), size
