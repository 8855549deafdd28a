"""Layers that share their eigenvectors with the covariance of the prompts, by their eigenvalues alone."""

from collections.abc import Iterable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from flowsim._core import checks
from flowsim.tasks import SpectralRegression


class DiagonalLayers(eqx.Module):
    """The matrices A_i of a deep linear transformer in the eigenbasis of the covariance, where they are diagonal.

    A flow that starts there stays there. What flows are the eigenvalues a_ij times the square root of their
    multiplicities, so that sums of squares are squared Frobenius norms and this is the flow of the matrices.

    **Arguments:** eigenvalues: (k, r) a_ij of A_i, one row in a looped model; task: whose multiplicities they share.

    **Raises:** `ValueError` naming the argument.
    """

    scaled: Float[Array, "k r"]

    def __init__(self, eigenvalues: ArrayLike | Iterable, task: SpectralRegression):
        values = checks.as_array("eigenvalues", eigenvalues, (None, task.eigenvalues.size))
        self.scaled = values * jnp.sqrt(task.multiplicities)[None, :]

    def eigenvalues(self, task: SpectralRegression) -> Float[Array, "... k r"]:
        """a_ij, behind a leading axis of times in the models of a trajectory."""
        axes = tuple(range(self.scaled.ndim - 1))
        return self.scaled / jnp.expand_dims(jnp.sqrt(task.multiplicities), axes)
