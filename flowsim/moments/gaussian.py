"""Exact expectations of polynomials of low degree in Gaussian vectors and sample covariances.

Throughout x ~ N(0, Lambda) and S = (1/N) sum_{i <= N} x_i x_i^T, where N may be infinite. The formulas follow from
Isserlis' theorem.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim._core.types import Matrix, Scalar


def sample_covariance_sandwich(middle: Matrix, covariance: Matrix, length: Scalar) -> Matrix:
    """The expectation of S M S for a fixed matrix M, (d, d).

        E[S M S] = Lambda M Lambda + (Lambda M^T Lambda + tr(M Lambda) Lambda)/N

    **Arguments:** middle: M; covariance: Lambda; length: N.
    """
    pairs = covariance @ middle.T @ covariance + jnp.trace(middle @ covariance) * covariance
    return covariance @ middle @ covariance + pairs / length


def token_covariance_times_form(
    form: Float[Array, "rows rows"], covariance: Matrix, length: Scalar
) -> Float[Array, "rows rows"]:
    """E[<C, X> C] for the sample covariance C of tokens and a fixed matrix X, (d + 1, d + 1).

    C = (1/N) sum_{i <= N} z_i z_i^T has the tokens z_i = (x_i, <w, x_i>) with w ~ N(0, I). Given w, the expectation
    is <M, X> M + 2 M X M / N with M = E[z z^T | w], where X is replaced by its symmetric part. The entries of this
    conditional expectation are polynomials of degree four in w. Their mean over w is returned.

    **Arguments:** form: X; covariance: Lambda; length: N.
    """
    Lambda, X = covariance, _symmetric(form)
    P, q, s = X[:-1, :-1], X[:-1, -1], X[-1, -1]
    trace, square = jnp.trace(Lambda), Lambda @ Lambda
    label_energy_squared = trace**2 + 2 * jnp.trace(square)
    of_inputs = jnp.trace(P @ Lambda)
    means = _bordered((of_inputs + s * trace) * Lambda, 2 * square @ q, of_inputs * trace + s * label_energy_squared)
    pairs = _bordered(
        Lambda @ P @ Lambda + s * square,
        trace * Lambda @ q + square @ q,
        jnp.trace(P @ square) + s * label_energy_squared,
    )
    return means + 2 * pairs / length


def _bordered(block: Matrix, border: Float[Array, " d"], corner: Scalar) -> Float[Array, "rows rows"]:
    return jnp.block([[block, border[:, None]], [border[None, :], corner[None, None]]])


def _symmetric(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    return (matrix + matrix.T) / 2
