"""Initial weights of one `LinearAttention` layer, with u12 = u21 = 0 unless a function says otherwise.

A layer is balanced if u_{-1} = |U11|_F.
"""

import functools
from collections.abc import Iterable

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from flowsim._core import checks
from flowsim._core.types import Seed
from flowsim.models import LinearAttention


def balanced(scale: ArrayLike, theta: ArrayLike | Iterable) -> LinearAttention:
    """The balanced layer with a positive semidefinite U11 of a given direction.

        u_{-1} = sigma,  U11 = sigma Theta Theta^T,  Theta Theta^T = M M^T / |M M^T|_F

    **Arguments:** scale: sigma > 0; theta: (d, r) M, not zero.

    **Raises:** `ValueError` naming the argument.
    """
    return _start(scale, _gram(theta), normalised=True)


def balanced_indefinite(scale: ArrayLike, theta: ArrayLike | Iterable) -> LinearAttention:
    """The balanced layer with a symmetric U11 of a given direction, which may be indefinite.

        u_{-1} = sigma,  U11 = sigma S / |S|_F,  S = (M + M^T)/2

    **Arguments:** scale: sigma > 0; theta: (d, d) M, with S not zero.

    **Raises:** `ValueError` naming the argument.
    """
    matrix = checks.square("theta", checks.as_array("theta", theta, (None, None)))
    return _start(scale, (matrix + matrix.T) / 2, normalised=True)


def unbalanced(scale: ArrayLike, theta: ArrayLike | Iterable) -> LinearAttention:
    """The layer with u_{-1} = sigma and U11 = sigma M M^T, which is not normalised.

    **Arguments:** scale: sigma > 0; theta: (d, r) M, not zero.

    **Raises:** `ValueError` naming the argument.
    """
    return _start(scale, _gram(theta), normalised=False)


def zeros(dimension: int) -> LinearAttention:
    """The layer whose weights are all zero, a saddle of the loss."""
    return LinearAttention(jnp.zeros((dimension, dimension)), 0.0)


def scaled_identity(scale: ArrayLike, dimension: int) -> LinearAttention:
    """The balanced layer with u_{-1} = sigma and U11 = sigma I / sqrt(d).

    **Arguments:** scale: sigma > 0; dimension: d.

    **Raises:** `ValueError` naming the argument.
    """
    return _start(scale, jnp.eye(dimension), normalised=True)


def random(scale: ArrayLike, dimension: int, seed: Seed) -> LinearAttention:
    """A layer with independent entries sigma N(0, 1) of all weights, also of u12 and u21.

    **Arguments:** scale: sigma > 0; dimension: d; seed: an integer.

    **Raises:** `ValueError` naming the argument.
    """
    sigma = checks.positive("scale", scale)
    keys = jax.random.split(jax.random.key(seed), 4)
    shapes = ((dimension, dimension), (), (dimension,), (dimension,))
    return LinearAttention(*(sigma * jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)))


def random_theta(dimension: int, rank: int, seed: Seed) -> Float[Array, "d r"]:
    """A matrix M, (d, r), of independent standard normal entries, for the argument ``theta`` of `balanced`.

    **Arguments:** dimension: d; rank: r; seed: an integer.

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
    """Return sigma M and |M|_F for the matrix M = ``shape``. With ``normalised``, the first is sigma M/|M|_F."""
    size = jnp.linalg.norm(shape)
    return sigma * shape / (size if normalised else 1.0), size
