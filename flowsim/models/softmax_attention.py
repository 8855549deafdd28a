"""Layers of softmax self-attention with merged matrices W^PV and W^KQ, as in `LinearAttention`."""

import math
from collections.abc import Iterable

import equinox as eqx
import jax
from jaxtyping import Array, ArrayLike, Float

from flowsim._core import checks
from flowsim.models.linear_attention import embed
from flowsim.tasks import Prompt


class SoftmaxAttention(eqx.Module):
    """k layers of softmax self-attention.

        E <- E + W^PV E softmax(E^T W^KQ E / rho),  prediction = [E]_{d+1, N+1} after the last layer

    E starts as the embedding of a prompt with N examples, (d+1, N+1). The softmax acts on columns: column j holds
    the attention of token j and adds up to one. Nothing is masked. The query attends to itself too, with a label of
    0, so uniform attention gives the examples a total weight of N/(N + 1). In all layers but the last the examples
    attend to the query.

    As z -> 0, softmax(z) = (1 + z - mean z)/(N + 1) to first order. For small W^KQ the attention is therefore the
    mean of the values plus linear attention on centred tokens.

    **Arguments:**

    - W_PV: (k, d+1, d+1) projections times values, one matrix for each layer.
    - W_KQ: (k, d+1, d+1) keys times queries.
    - rho: a positive number that divides the scores. The default is sqrt(d + 1), as in scaled dot-product attention
      with keys and queries of width d + 1. Another value only rescales W^KQ, and with it the time of a flow.

    **Raises:** `ValueError` naming the argument.
    """

    W_PV: Float[Array, "k rows rows"]
    W_KQ: Float[Array, "k rows rows"]
    rho: float = eqx.field(static=True)

    def __init__(self, W_PV: ArrayLike | Iterable, W_KQ: ArrayLike | Iterable, *, rho: float | None = None):
        self.W_PV = checks.square("W_PV", checks.as_array("W_PV", W_PV, (None, None, None)))
        if self.W_PV.shape[-1] < 2:
            checks.refuse("W_PV", "of shape (k, d+1, d+1) with d at least 1", f"its shape is {self.W_PV.shape}")
        self.W_KQ = checks.as_array("W_KQ", W_KQ, self.W_PV.shape)
        self.rho = math.sqrt(self.W_PV.shape[-1]) if rho is None else float(checks.positive("rho", rho))

    def __call__(self, prompt: Prompt) -> Float[Array, ""]:
        E = embed(prompt)
        for W_PV, W_KQ in zip(self.W_PV, self.W_KQ, strict=True):
            E = E + W_PV @ E @ jax.nn.softmax(E.T @ W_KQ @ E / self.rho, axis=0)
        return E[-1, -1]
