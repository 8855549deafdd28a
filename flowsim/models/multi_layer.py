"""Linear transformers of several layers, with equal or different weights, written out layer by layer."""

from collections.abc import Iterable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from flowsim._core import checks
from flowsim.models.linear_attention import embed
from flowsim.models.masked_attention import attend
from flowsim.models.residuals import layered_residual, product, with_sample_axes
from flowsim.tasks import Prompt


class LoopedAttention(eqx.Module):
    """One masked linear attention layer that is applied L times.

        Z <- Z - (1/n) P Z M (Z^T Q Z),  prediction = -[Z]_{d+1, n+1} after the last step

    Z starts as the embedding of a prompt with n examples, and the mask M = diag(1, .., 1, 0) leaves out the query.
    P = [0 0; u^T 1] and Q = [A 0; 0 0]. With Sigmahat = (1/n) sum x_i x_i^T and R = (I - Sigmahat A)^L, the error
    w^T x_query - prediction is w^T R x_query - u^T (I - R) x_query. If u = 0, these are L steps of gradient descent
    preconditioned by A.

    **Arguments:**

    - A: (d, d) the preconditioner.
    - u: (d,) value weights of the covariates, default zero.
    - loops: L, a whole number of at least 1.

    **Raises:** `ValueError` naming the argument.
    """

    A: Float[Array, "d d"]
    u: Float[Array, " d"]
    loops: int = eqx.field(static=True)

    def __init__(self, A: ArrayLike | Iterable, u: ArrayLike | Iterable | None = None, *, loops: int):
        self.A = checks.square("A", checks.as_array("A", A, (None, None)))
        d = self.A.shape[0]
        self.u = checks.as_array("u", jnp.zeros(d) if u is None else u, (d,))
        self.loops = checks.count("loops", loops)

    def __call__(self, prompt: Prompt) -> Float[Array, ""]:
        Z = embed(prompt)
        d, n = self.u.shape[0], prompt.inputs.shape[0]
        P = jnp.zeros((d + 1, d + 1)).at[d, :d].set(self.u).at[d, d].set(1.0)
        Q = jnp.zeros((d + 1, d + 1)).at[:d, :d].set(self.A)
        for _ in range(self.loops):
            Z = Z - attend(Z, P, Q) / n
        return -Z[-1, -1]

    def residual(self, covariance: Float[Array, "d d ..."]) -> Float[Array, "rows d ..."]:
        """The matrix E with w^T x_query - prediction = (w^T, 1) E x_query, where E = (R; -u^T (I - R)).

        R = (I - Sigmahat A)^L for the sample covariance Sigmahat.

        **Arguments:** covariance: (d, d, *samples) sample covariances.

        **Returns:** (d + 1, d, *samples).
        """
        # One step serves all loops. `layered_residual` would compute and differentiate one for each.
        step = product(covariance, with_sample_axes(self.A, covariance))
        R = with_sample_axes(jnp.eye(self.A.shape[0]), covariance) - step
        for _ in range(1, self.loops):
            R = R - product(R, step)
        return jnp.concatenate([R, product(with_sample_axes(self.u[None], R), R) - with_sample_axes(self.u[None], R)])


class MultiLayerAttention(eqx.Module):
    """k masked linear attention layers, each with its own weights.

        Z_{i+1} = Z_i + (1/n) P_i Z_i M (Z_i^T Q_i Z_i),  prediction = -[Z_k]_{d+1, n+1}

    Z_0 is the embedding of a prompt with n examples, and the mask M = diag(1, .., 1, 0) leaves out the query. P_i =
    [B_i 0; 0 1] and Q_i = [-A_i 0; 0 0], so that covariates and labels follow

        X_{i+1} = X_i - (1/n) B_i X_i M X_i^T A_i X_i,     Y_{i+1} = Y_i - (1/n) Y_i M X_i^T A_i X_i.

    Without B the error w^T x_query - prediction is w^T (I - Sigmahat A_0) .. (I - Sigmahat A_{k-1}) x_query, where
    Sigmahat = (1/n) sum x_i x_i^T. The A_i are positive at the optimum; some papers write -A_i.

    **Arguments:**

    - A: (k, d, d) the preconditioners.
    - B: (k - 1, d, d) the matrices that change the covariates, or None for constant covariates. The last layer has
      no B, since it would not reach the prediction.
    - symmetric: whether the A_i are symmetric and stay so along a flow.

    **Raises:** `ValueError` naming the argument. With ``symmetric``, an A that is not symmetric is refused.
    """

    A: Float[Array, "k d d"]
    B: Float[Array, "rest d d"] | None
    symmetric: bool = eqx.field(static=True)

    def __init__(self, A: ArrayLike | Iterable, B: ArrayLike | Iterable | None = None, *, symmetric: bool = True):
        matrices = checks.square("A", checks.as_array("A", A, (None, None, None)))
        self.A = checks.symmetric("A", matrices) if symmetric else matrices
        k, d, _ = self.A.shape
        self.B = None if B is None else checks.as_array("B", B, (k - 1, d, d))
        self.symmetric = symmetric

    def __call__(self, prompt: Prompt) -> Float[Array, ""]:
        Z = embed(prompt)
        A, n = self._preconditioners, prompt.inputs.shape[0]
        k, d, _ = A.shape
        B = jnp.zeros((k, d, d))
        if self.B is not None:
            B = B.at[:-1].set(self.B)
        for i in range(k):
            P = jnp.zeros((d + 1, d + 1)).at[:d, :d].set(B[i]).at[d, d].set(1.0)
            Q = jnp.zeros((d + 1, d + 1)).at[:d, :d].set(-A[i])
            Z = Z + attend(Z, P, Q) / n
        return -Z[-1, -1]

    def residual(self, covariance: Float[Array, "d d ..."]) -> Float[Array, "rows d ..."]:
        """The matrix E with w^T x_query - prediction = (w^T, 1) E x_query.

        E = (R; 0) with the R of `layered_residual`.

        **Arguments:** covariance: (d, d, *samples) sample covariances.

        **Returns:** (d + 1, d, *samples).
        """
        R = layered_residual(self._preconditioners, self.B, covariance)
        return jnp.concatenate([R, jnp.zeros_like(R[:1])])

    @property
    def _preconditioners(self) -> Float[Array, "k d d"]:
        """The A_i. With ``symmetric`` they are symmetrised, so that their derivatives are symmetric."""
        return checks.symmetric("A", self.A) if self.symmetric else self.A
