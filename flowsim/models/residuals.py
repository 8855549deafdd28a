"""Products of many small matrices at once, for what a model leaves of a prompt given its sample covariance.

Samples run along the last axis, so that the arithmetic of small matrices runs along them.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float


def product(left: Float[Array, "i k ..."], right: Float[Array, "k j ..."]) -> Float[Array, "i j ..."]:
    """The products of matrices (i, k, *samples) and (k, j, *samples).

    A sum of elementwise products: XLA's batched product of 5 x 5 matrices takes several times as long on a CPU.
    """
    return jnp.sum(left[:, :, None] * right[None], axis=1)


def beside(matrix: Float[Array, "i j"], samples: Float[Array, "..."]) -> Float[Array, "i j ..."]:
    """A matrix with as many axes as matrices of samples."""
    return matrix.reshape(matrix.shape + (1,) * (samples.ndim - 2))


def layered_residual(
    A: Float[Array, "k d d"], B: Float[Array, "rest d d"] | None, covariance: Float[Array, "d d ..."]
) -> Float[Array, "d d ..."]:
    """R with w^T x_query - prediction = w^T R x_query after k layers of masked linear attention.

    Covariates stand at G_i x and labels at w^T H_i x, from G_0 = H_0 = I on, and with T_i = G_i^T A_i G_i

        H_{i+1} = H_i - H_i Sigmahat T_i,     G_{i+1} = G_i - B_i G_i Sigmahat T_i,     R = H_k,

    where the last B does not count; without B, R = (I - Sigmahat A_0) ... (I - Sigmahat A_{k-1}).
    """
    layers, d, _ = A.shape
    identity = jnp.broadcast_to(beside(jnp.eye(d), covariance), covariance.shape)
    labels = covariates = identity
    for i in range(layers):
        curvature = beside(A[i], covariance)
        if B is not None and i:
            curvature = product(jnp.swapaxes(covariates, 0, 1), product(curvature, covariates))
        step = product(covariance, curvature)
        labels = labels - (product(labels, step) if i else step)
        if B is not None and i < layers - 1:
            moved = product(covariates, step) if i else step
            covariates = covariates - product(beside(B[i], covariance), moved)
    return labels
