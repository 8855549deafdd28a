"""One layer of linear self-attention, written out."""

from collections.abc import Iterable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from flowsim._core import checks
from flowsim.models.residuals import product, with_sample_axes
from flowsim.tasks import Prompt


def embed(prompt: Prompt) -> Float[Array, "rows columns"]:
    """The embedding E of a prompt, (d + 1, N + 1): columns (x_i, y_i) for the examples, then (x_query, 0)."""
    context = jnp.concatenate([prompt.inputs, prompt.labels[:, None]], axis=1)
    query = jnp.concatenate([prompt.query, jnp.zeros(1)])
    return jnp.concatenate([context, query[None, :]], axis=0).T


class LinearAttention(eqx.Module):
    """Single-layer linear self-attention, predicting [E + W^PV E (E^T W^KQ E)/N]_{d+1, N+1}.

    E is the embedding of a prompt with N examples. Only the last row (u12^T, u_{-1}) of W^PV and the first d
    columns (U11; u21^T) of W^KQ reach the prediction; the other entries are zero.

    **Arguments:**

    - U11: (d, d) key-query block.
    - u_minus1: scalar u_{-1}, the value weight of the label.
    - u12: (d,) value weights of the covariates, default zero.
    - u21: (d,) key weights of the label, default zero.

    **Raises:** `ValueError` naming a weight of the wrong shape or with entries that are not finite.
    """

    U11: Float[Array, "d d"]
    u_minus1: Float[Array, ""]
    u12: Float[Array, " d"]
    u21: Float[Array, " d"]

    def __init__(
        self,
        U11: ArrayLike | Iterable,
        u_minus1: ArrayLike,
        u12: ArrayLike | Iterable | None = None,
        u21: ArrayLike | Iterable | None = None,
    ):
        self.U11 = checks.square("U11", checks.as_array("U11", U11, (None, None)))
        d = self.U11.shape[1]
        self.u_minus1 = checks.as_array("u_minus1", u_minus1, ())
        self.u12 = checks.as_array("u12", np.zeros(d) if u12 is None else u12, (d,))
        self.u21 = checks.as_array("u21", np.zeros(d) if u21 is None else u21, (d,))

    def __call__(self, prompt: Prompt) -> Float[Array, ""]:
        E = embed(prompt)
        d = self.U11.shape[0]
        W_PV = jnp.zeros((d + 1, d + 1)).at[d, :d].set(self.u12).at[d, d].set(self.u_minus1)
        W_KQ = jnp.zeros((d + 1, d + 1)).at[:d, :d].set(self.U11).at[d, :d].set(self.u21)
        N = prompt.inputs.shape[0]
        # Only the query's column is computed. The whole E^T W^KQ E would take N^2 numbers.
        return (E[:, -1] + W_PV @ E @ (E.T @ (W_KQ @ E[:, -1])) / N)[-1]

    @property
    def balance(self) -> Float[Array, ""]:
        """u_{-1}^2 + |u12|^2 - |U11|_F^2 - |u21|^2, which a flow conserves.

        The reason is that the prediction is bilinear in (u_{-1}, u12) and (U11, u21).
        """
        added = self.u_minus1**2 + jnp.sum(self.u12**2)
        return added - jnp.sum(self.U11**2) - jnp.sum(self.u21**2)

    def residual(self, covariance: Float[Array, "d d ..."]) -> Float[Array, "rows d ..."]:
        """The matrix R with w^T x_query - prediction = (w^T, 1) R x_query, where R = (I - u_{-1} Lambdahat U11; 0).

        R is NaN unless u12 = u21 = 0, since otherwise the prediction is not linear in w and x_query.

        **Arguments:** covariance: (d, d, *samples) the sample covariances Lambdahat.

        **Returns:** (d + 1, d, *samples).
        """
        R = with_sample_axes(jnp.eye(self.u12.size), covariance) - product(
            covariance, with_sample_axes(self.u_minus1 * self.U11, covariance)
        )
        R = jnp.where(jnp.any(self.u12 != 0) | jnp.any(self.u21 != 0), jnp.nan, R)
        return jnp.concatenate([R, jnp.zeros_like(R[:1])])


class SpectralAttention(eqx.Module):
    """`LinearAttention` along a flow with u12 = u21 = 0, in coordinates that determine all its weights.

    In the eigenbasis of Lambda, with eigenvalues lambda_i of Lambda and gamma_i of Gamma, the entries of U11 off
    the diagonal are U_ij = U_ij(0) exp(-gamma_i lambda_i lambda_j s); see `SpectralAttentionLoss.weights`.

    **Fields:**

    - diagonal: (d,) the diagonal of U11 in the eigenbasis of Lambda.
    - u_minus1: u_{-1}.
    - clock: s = int u_{-1}^2 dt since the start.
    """

    diagonal: Float[Array, " d"]
    u_minus1: Float[Array, ""]
    clock: Float[Array, ""]
