"""One layer of linear self-attention in which no token attends to the query, written out."""

from collections.abc import Iterable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from flowsim._core import checks
from flowsim.models.linear_attention import embed
from flowsim.tasks import Prompt


def attend(
    Z: Float[Array, "rows columns"], P: Float[Array, "rows rows"], Q: Float[Array, "rows rows"]
) -> Float[Array, "rows columns"]:
    """The masked attention Attn(Z) = P Z M (Z^T Q Z), where M = diag(1, .., 1, 0) leaves out the query.

    **Arguments:** Z: (d + 1, n + 1) one token in each column, the query last; P, Q: (d + 1, d + 1).
    """
    return P @ Z.at[:, -1].set(0.0) @ (Z.T @ Q @ Z)


class MaskedAttention(eqx.Module):
    """Single-layer masked linear self-attention, predicting -[Z + (1/n) P Z M (Z^T Q Z)]_{d+1, n+1}.

    Z is the embedding of a prompt with n examples, and the mask M = diag(1, .., 1, 0) leaves out the query. P = [0;
    b^T] and Q = [A 0], since the other entries do not reach the prediction.

    **Arguments:** b: (d + 1,) the last row of P; A: (d + 1, d) the first d columns of Q.

    **Raises:** `ValueError` naming a weight of the wrong shape or with entries that are not finite.
    """

    b: Float[Array, " rows"]
    A: Float[Array, "rows d"]

    def __init__(self, b: ArrayLike | Iterable, A: ArrayLike | Iterable):
        self.A = checks.as_array("A", A, (None, None))
        rows, d = self.A.shape
        if rows != d + 1:
            checks.refuse("A", "an array of shape (d + 1, d)", f"its shape is {self.A.shape}")
        self.b = checks.as_array("b", b, (rows,))

    @property
    def balance(self) -> Float[Array, ""]:
        """|b|^2 - |A|_F^2, which a flow conserves.

        The reason is that the prediction only depends on products of an entry of b and an entry of A.
        """
        return jnp.sum(self.b**2) - jnp.sum(self.A**2)

    def __call__(self, prompt: Prompt) -> Float[Array, ""]:
        Z = embed(prompt)
        rows, d = self.A.shape
        P = jnp.zeros((rows, rows)).at[d].set(self.b)
        Q = jnp.zeros((rows, rows)).at[:, :d].set(self.A)
        return -(Z + attend(Z, P, Q) / prompt.inputs.shape[0])[-1, -1]
