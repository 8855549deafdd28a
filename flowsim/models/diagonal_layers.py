"""Layers whose matrices share the eigenvectors of the prompts' covariance, given by their eigenvalues."""

from collections.abc import Iterable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from flowsim._core import checks
from flowsim.tasks import SpectralRegression


class DiagonalLayers(eqx.Module):
    """The matrices A_i of a deep linear transformer in the eigenbasis of the covariance, where they are diagonal.

    A flow that starts with diagonal matrices keeps them diagonal. The weights, ``scaled``, are the eigenvalues a_ij
    times the square roots of their multiplicities. Sums of their squares are then squared Frobenius norms, so the
    flow of these weights is the flow of the matrices.

    **Arguments:** eigenvalues: (k, r) the eigenvalues a_ij of A_i, with k = 1 in a looped model; task: gives the
    multiplicities, (r,).

    **Raises:** `ValueError` naming the argument.
    """

    scaled: Float[Array, "k r"]

    def __init__(self, eigenvalues: ArrayLike | Iterable, task: SpectralRegression):
        values = checks.as_array("eigenvalues", eigenvalues, (None, task.eigenvalues.size))
        self.scaled = values * jnp.sqrt(task.multiplicities)[None, :]

    def eigenvalues(self, task: SpectralRegression) -> Float[Array, "... k r"]:
        """The eigenvalues a_ij, (k, r). For the models of a trajectory, an axis of times comes first.

        **Arguments:** task: gives the multiplicities.
        """
        axes = tuple(range(self.scaled.ndim - 1))
        return self.scaled / jnp.expand_dims(jnp.sqrt(task.multiplicities), axes)
