"""Networks with two layers and no biases."""

from collections.abc import Iterable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from flowsim._core import checks

ACTIVATIONS = ("erf", "relu")


class TwoLayerNetwork(eqx.Module):
    """The network f(x) = sum_i a_i phi(w_i . x), without biases.

    **Arguments:**

    - a: (units,) the second layer.
    - W: (units, d) the first layer, with a row w_i for each unit.
    - activation: "erf" for phi(z) = erf(z / sqrt 2), or "relu" for phi(z) = max(z, 0).

    **Raises:** `ValueError` naming the argument.
    """

    a: Float[Array, " units"]
    W: Float[Array, "units d"]
    activation: str = eqx.field(static=True)

    def __init__(self, a: ArrayLike | Iterable, W: ArrayLike | Iterable, activation: str):
        if activation not in ACTIVATIONS:
            checks.refuse("activation", f"one of {', '.join(ACTIVATIONS)}", f'it is "{activation}"')
        self.a = checks.as_array("a", a, (None,))
        if self.a.size == 0:
            checks.refuse("a", "of at least one unit", "it is empty")
        self.W = checks.as_array("W", W, (self.a.size, None))
        if self.W.size == 0:
            checks.refuse("W", "of at least one coordinate", f"its shape is {self.W.shape}")
        self.activation = activation

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        z = self.W @ x
        return self.a @ (jax.scipy.special.erf(z / jnp.sqrt(2.0)) if self.activation == "erf" else jax.nn.relu(z))
