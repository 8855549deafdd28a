"""The error of a model given the sample covariance of a prompt, for many prompts at once.

The last axis of arrays counts the samples, so that the arithmetic on small matrices is vectorised over them.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float


def product(left: Float[Array, "i k ..."], right: Float[Array, "k j ..."]) -> Float[Array, "i j ..."]:
    """The products of matrices (i, k, *samples) and (k, j, *samples), one for each sample.

    They are computed as elementwise products and a sum, since XLA's batched product of 5 x 5 matrices takes several
    times as long on a CPU.
    """
    return jnp.sum(left[:, :, None] * right[None], axis=1)


def with_sample_axes(matrix: Float[Array, "i j"], samples: Float[Array, "..."]) -> Float[Array, "i j ..."]:
    """The matrix with axes of length 1 appended, so that it broadcasts with ``samples``, (i, j, *samples)."""
    return matrix.reshape(matrix.shape + (1,) * (samples.ndim - 2))


def layered_residual(
    A: Float[Array, "k d d"], B: Float[Array, "rest d d"] | None, covariance: Float[Array, "d d ..."]
) -> Float[Array, "d d ..."]:
    """The matrix R with w^T x_query - prediction = w^T R x_query after k layers of masked linear attention.

    After i layers the covariates are G_i x and the labels w^T H_i x. With G_0 = H_0 = I and T_i = G_i^T A_i G_i

        H_{i+1} = H_i - H_i Sigmahat T_i,     G_{i+1} = G_i - B_i G_i Sigmahat T_i,     R = H_k.

    The last layer has no B. Without any B, R = (I - Sigmahat A_0) ... (I - Sigmahat A_{k-1}).

    **Arguments:** A: (k, d, d); B: (k - 1, d, d) or None; covariance: (d, d, *samples) Sigmahat.

    **Returns:** (d, d, *samples).
    """
    layers, d, _ = A.shape
    identity = jnp.broadcast_to(with_sample_axes(jnp.eye(d), covariance), covariance.shape)
    labels = covariates = identity
    for i in range(layers):
        curvature = with_sample_axes(A[i], covariance)
        if B is not None and i:
            curvature = product(jnp.swapaxes(covariates, 0, 1), product(curvature, covariates))
        step = product(covariance, curvature)
        labels = labels - (product(labels, step) if i else step)
        if B is not None and i < layers - 1:
            moved = product(covariates, step) if i else step
            covariates = covariates - product(with_sample_axes(B[i], covariance), moved)
    return labels
