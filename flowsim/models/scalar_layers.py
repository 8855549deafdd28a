"""Deep linear transformers whose matrices are multiples of S^-1 and I, where S is the covariance of the prompts."""

from collections.abc import Iterable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from flowsim._core import checks
from flowsim.models.multi_layer import LoopedAttention, MultiLayerAttention
from flowsim.tasks import Prompt


class ScalarLayers(eqx.Module):
    """`MultiLayerAttention` with A_i = a_i S^-1 and B_i = b_i I, where S is the covariance of the prompts.

    Called on a prompt, it predicts with S = I, so that A_i = a_i I. Multiply the covariates of prompts of another
    covariance S by S^{-1/2} first.

    **Arguments:** a: (k,) positive at the optimum; b: (k - 1,), or None for constant covariates.

    **Raises:** `ValueError` naming the argument.
    """

    a: Float[Array, " k"]
    b: Float[Array, " rest"] | None

    def __init__(self, a: ArrayLike | Iterable, b: ArrayLike | Iterable | None = None):
        self.a = checks.as_array("a", a, (None,))
        if self.a.shape == (0,):
            checks.refuse("a", "of at least one layer", "it is empty")
        self.b = None if b is None else checks.as_array("b", b, (self.a.shape[0] - 1,))

    def attention(self, covariance: ArrayLike | Iterable) -> MultiLayerAttention:
        """The `MultiLayerAttention` with A_i = a_i S^-1 and B_i = b_i I.

        **Arguments:** covariance: (d, d) S.

        **Raises:** `ValueError` if S is not positive definite.
        """
        S = checks.positive_definite("covariance", covariance)
        B = None if self.b is None else self.b[:, None, None] * jnp.eye(S.shape[0])[None]
        return MultiLayerAttention(self.a[:, None, None] * _inverse(S)[None], B)

    def __call__(self, prompt: Prompt) -> Float[Array, ""]:
        return self.attention(jnp.eye(prompt.query.shape[0]))(prompt)


class ScalarLoop(eqx.Module):
    """`LoopedAttention` with A = a S^-1 and u = 0, where S is the covariance of the prompts.

    Called on a prompt, it predicts with S = I, so that A = a I. Multiply the covariates of prompts of another
    covariance S by S^{-1/2} first.

    **Arguments:** a: scalar, positive at the optimum; loops: L.

    **Raises:** `ValueError` naming the argument.
    """

    a: Float[Array, ""]
    loops: int = eqx.field(static=True)

    def __init__(self, a: ArrayLike, *, loops: int):
        self.a = checks.as_array("a", a, ())
        self.loops = checks.count("loops", loops)

    def attention(self, covariance: ArrayLike | Iterable) -> LoopedAttention:
        """The `LoopedAttention` with A = a S^-1 and u = 0.

        **Arguments:** covariance: (d, d) S.

        **Raises:** `ValueError` if S is not positive definite.
        """
        return LoopedAttention(self.a * _inverse(checks.positive_definite("covariance", covariance)), loops=self.loops)

    def __call__(self, prompt: Prompt) -> Float[Array, ""]:
        return self.attention(jnp.eye(prompt.query.shape[0]))(prompt)


def _inverse(matrix: Float[Array, "d d"]) -> Float[Array, "d d"]:
    inverse = jnp.linalg.inv(matrix)
    return (inverse + inverse.T) / 2
