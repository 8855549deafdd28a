"""The exact population loss of one linear attention layer that does not attend to the query."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import ArrayLike

from flowsim._core import checks
from flowsim._core.types import Scalar
from flowsim.losses.base import AbstractPopulationLoss, MinimumKind
from flowsim.losses.one_layer.single_layer import LinearAttentionLoss
from flowsim.models import LinearAttention, MaskedAttention
from flowsim.tasks import LinearRegression


class MaskedAttentionLoss(AbstractPopulationLoss):
    """The loss f = E (b^T C A x + <w, x>)^2 of `MaskedAttention` for the query x, exact for all (b, A).

    C is the second moment matrix of the context's tokens (x_i, y_i). f is twice the `LinearAttentionLoss` with
    (u12, u_{-1}) = -b and [U11; u21^T] = A, for a layer that does not attend to the query's token. This token only
    enters the even part of the error, which `AbstractLinearAttentionLoss` defines together with the odd part. By
    equation (8) of Ahn et al. (2023) the weights of `minimizer` are optimal: they minimise the odd part, and their
    even part is zero.

    **Arguments:** task: as for `LinearAttentionLoss`. Sigma is its covariance and n its context length.

    **Raises:** `ValueError` for another task.
    """

    unmasked: LinearAttentionLoss
    minimum_kind: MinimumKind = eqx.field(static=True)

    def __init__(self, task: LinearRegression):
        self.unmasked = LinearAttentionLoss(task)
        self.minimum_kind = MinimumKind.EXACT

    @property
    def task(self) -> LinearRegression:
        """The law of the prompts."""
        return self.unmasked.task

    @property
    def minimum(self) -> Scalar:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The minimum tr Sigma - tr(Sigma^2 Gamma^-1) = sum_i lambda_i (lambda_i + tr Sigma)/(n gamma_i)."""
        return 2 * self.unmasked.minimum

    def minimizer(self, gamma: ArrayLike = 1.0) -> MaskedAttention:
        """The global minimum b = gamma e_{d+1}, A = -[Gamma^-1; 0]/gamma for a number gamma, by equation (8) of Ahn
        et al. (2023).

        Gamma is ((n+1)/n) Sigma + (tr Sigma/n) I.

        **Raises:** `ValueError` for gamma = 0.
        """
        scale = checks.as_array("gamma", gamma, ())
        if checks.is_concrete(scale) and float(scale) == 0:
            checks.refuse("gamma", "a number other than 0", "it is 0")
        d, Q = self.task.dimension, self.unmasked.eigenvectors
        inverse = (Q / self.unmasked.gamma_eigenvalues[None, :]) @ Q.T
        return MaskedAttention(
            jnp.zeros(d + 1).at[d].set(scale), -jnp.concatenate([inverse, jnp.zeros((1, d))]) / scale
        )

    def __call__(self, model: MaskedAttention) -> Scalar:
        return self.minimum + self.excess(model)

    def excess(self, model: MaskedAttention) -> Scalar:
        layer = LinearAttention(model.A[:-1], -model.b[-1], -model.b[:-1], model.A[-1])
        odd, even = self.unmasked.parts(layer, query_token=False)
        return 2 * odd + even

    def conserved(self, model: MaskedAttention) -> Scalar:
        return model.balance

    def least_model(self) -> MaskedAttention:
        """The `minimizer` with gamma = 1."""
        return self.minimizer()
