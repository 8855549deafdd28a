"""Any law of full covariance matrices, represented by independent draws."""

from collections.abc import Callable, Iterable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray, PyTree

from flowsim._core import checks
from flowsim._core.types import Matrix, Scalar
from flowsim.tasks.covariance_laws.base import AbstractCovarianceLaw

_REPLICATES = 8
_BATCH = 64


class SampledLaw(AbstractCovarianceLaw):
    """Any law of full matrices, represented by independent draws. All expectations have a sampling error.

    **Arguments:**

    - draw: from a random key to a symmetric positive definite matrix, (d, d).
    - samples: the number S of draws, a multiple of 8 and at least 32. Eight disjoint groups of draws estimate the
      error.
    - seed: the seed of the draws, an integer.

    **Fields:** draw; matrices: (S, d, d) the draws.

    **Raises:** `ValueError` on another number of samples, or a draw that is not positive definite.
    """

    draw: Callable[[PRNGKeyArray], Matrix]
    matrices: Float[Array, "S d d"]

    def __init__(self, draw: Callable[[PRNGKeyArray], Matrix], samples: int, seed: int = 0):
        if samples < 4 * _REPLICATES or samples % _REPLICATES:
            expected = f"a multiple of {_REPLICATES} and at least {4 * _REPLICATES}"
            checks.refuse("samples", expected, f"it is {samples}")
        checks.require_float64()
        matrices = jax.lax.map(draw, jax.random.split(jax.random.key(seed), samples), batch_size=_BATCH)
        if matrices.ndim != 3 or matrices.shape[1] != matrices.shape[2]:
            checks.refuse("draw", "a function to (d, d) matrices", f"their shape is {matrices.shape[1:]}")
        smallest = np.linalg.eigvalsh(np.asarray(matrices))[:, 0]
        if not np.all(smallest > 0):
            worst = float(smallest[np.argmin(smallest)])
            checks.refuse("draw", "a function to positive definite matrices", f"an eigenvalue is {worst:.3g}")
        self.draw, self.matrices = draw, matrices

    @property
    def dimension(self) -> int:
        return self.matrices.shape[-1]

    def sample(self, key: PRNGKeyArray) -> Matrix:
        return self.draw(key)

    def scaled(self, factor: ArrayLike) -> "SampledLaw":
        c, draw = checks.positive("factor", factor), self.draw
        return eqx.tree_at(lambda law: (law.draw, law.matrices), self, (lambda key: c * draw(key), c * self.matrices))

    def expectation(self, function: Callable[[Matrix], PyTree]) -> PyTree:
        return jax.tree.map(
            lambda values: jnp.mean(values, axis=0), jax.lax.map(function, self.matrices, batch_size=_BATCH)
        )

    def operator_energy(self, context_length: Scalar) -> Scalar:
        spectra = jnp.linalg.eigvalsh(self.matrices)
        gamma = spectra[:, -1] + (spectra[:, -1] + jnp.sum(spectra, axis=1)) / context_length
        return jnp.mean(gamma * jnp.sum(spectra**2, axis=1))

    def replicates(self) -> tuple[AbstractCovarianceLaw, ...]:
        groups = self.matrices.reshape(_REPLICATES, -1, *self.matrices.shape[1:])
        return tuple(eqx.tree_at(lambda law: law.matrices, self, group) for group in groups)


class WishartDraw(eqx.Module):
    """A function of a random key that draws from a scaled Wishart law.

        Lambda_tau = (1/n) sum_{i <= n} z_i z_i^T  with independent z_i ~ N(0, mean)

    **Arguments:** mean: (d, d), symmetric positive definite; degrees: n >= d.

    **Raises:** `ValueError` naming the argument.
    """

    factor: Matrix
    degrees: int = eqx.field(static=True)

    def __init__(self, mean: ArrayLike | Iterable, degrees: int):
        matrix = checks.positive_definite("mean", mean)
        if degrees < matrix.shape[0]:
            checks.refuse("degrees", f"at least the dimension {matrix.shape[0]}", f"it is {degrees}")
        self.factor, self.degrees = jnp.linalg.cholesky(matrix), degrees

    def __call__(self, key: PRNGKeyArray) -> Matrix:
        z = jax.random.normal(key, (self.degrees, self.factor.shape[0])) @ self.factor.T
        return z.T @ z / self.degrees
