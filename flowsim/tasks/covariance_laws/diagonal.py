"""Diagonal covariances with independent entries, whose moments are known exactly."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray, PyTree

from flowsim._core import checks
from flowsim._core.types import Matrix, Scalar
from flowsim.tasks.covariance_laws.base import AbstractCoordinates, AbstractCovarianceLaw

_GAUSS_POINTS = 16
_BATCH = 64
_DETERMINISTIC = 1e-13  # a variance below this fraction of the second moment is rounding


class DiagonalLaw(AbstractCovarianceLaw):
    """The law of Lambda_tau = diag(lambda_1, ..., lambda_d) with independent positive lambda_i.

    **Arguments:** coordinates: one or several families of variables, which are joined in this order.

    **Raises:** `ValueError` if a moment up to the third is not finite or a mean is not positive.
    """

    coordinates: tuple[AbstractCoordinates, ...]

    def __init__(self, *coordinates: AbstractCoordinates):
        if not coordinates:
            checks.refuse("coordinates", "at least one family", "there is none")
        self.coordinates = coordinates
        moments = self.moments()
        if checks.is_concrete(moments):
            if not np.all(np.isfinite(moments)):
                checks.refuse("moments", "finite up to the third", "one is not")
            if np.any(moments[0] <= 0):
                checks.refuse("moments", "those of positive variables", f"a mean is {np.min(moments[0]):g}")

    @property
    def dimension(self) -> int:
        return self.moments().shape[1]

    def moments(self) -> Float[Array, "3 d"]:
        """E lambda_i, E lambda_i^2 and E lambda_i^3 for each i, (3, d)."""
        return jnp.concatenate([part.moments() for part in self.coordinates], axis=1)

    def sample(self, key: PRNGKeyArray) -> Matrix:
        keys = jax.random.split(key, len(self.coordinates))
        return jnp.diag(jnp.concatenate([part.sample(k) for part, k in zip(self.coordinates, keys, strict=True)]))

    def scaled(self, factor: ArrayLike) -> "DiagonalLaw":
        c = checks.positive("factor", factor)
        return DiagonalLaw(*[part.scaled(c) for part in self.coordinates])

    def expectation(self, function: Callable[[Matrix], PyTree]) -> PyTree:
        """E[f(Lambda_tau)], exact for polynomials f of degree at most three.

        Let m = E Lambda_tau, with diagonal entries m_i, and let E_i be the matrix with a single 1 in entry (i, i).
        Then

            E[f(Lambda_tau)] = f(m) + sum_i E[f(m + (lambda_i - m_i) E_i) - f(m)],

        since the mixed central moments of independent variables vanish up to order three. Each term is computed by
        the Gauss rule of two nodes that has the first three moments of lambda_i.
        """
        first, second, third = self.moments()
        variance = second - first**2
        random = variance > _DETERMINISTIC * second
        variance = jnp.where(random, variance, 0.0)
        skew = jnp.where(random, (third - 3 * first * second + 2 * first**3) / jnp.where(random, variance, 1.0), 0.0)
        reach = jnp.sqrt(skew**2 + 4 * variance)
        shifts = jnp.stack([(skew + reach) / 2, (skew - reach) / 2])
        weights = jnp.where(random[None, :], jnp.abs(shifts[::-1]) / jnp.where(random, reach, 1.0)[None, :], 0.5)
        nodes = first[None, :] + shifts.reshape(-1)[:, None] * jnp.tile(jnp.eye(first.size), (2, 1))
        at_mean = function(jnp.diag(first))
        # Differences from f(m), so that for a law without variance 2 d terms add no rounding error.
        change = lambda node: jax.tree.map(jnp.subtract, function(jnp.diag(node)), at_mean)
        changes = jax.lax.map(change, nodes, batch_size=_BATCH)
        return jax.tree.map(
            lambda value, change: value + jnp.tensordot(weights.reshape(-1), change, 1), at_mean, changes
        )

    def operator_energy(self, context_length: Scalar) -> Scalar:
        """E[|Gamma_tau|_op |Lambda_tau|_F^2], where maxima and sums run over all coordinates, is

            (1 + 1/N) E[max lambda sum lambda_j^2] + (1/N) E[sum lambda sum lambda_j^2].

        With m the largest coordinate other than lambda_j, the first expectation is the sum over j of

            E[lambda_j^2 max(lambda_j, m)] = E lambda_j^3 + int_0^inf P(m > x) E[lambda_j^2 1(lambda_j <= x)] dx.

        **Arguments:** context_length: N.
        """
        first, second, third = self.moments()
        edges = np.unique(np.concatenate([part.panels() for part in self.coordinates]))
        points, rule = np.polynomial.legendre.leggauss(_GAUSS_POINTS)
        half = np.diff(edges)[:, None] / 2
        x = jnp.asarray((edges[:-1, None] + half * (1 + points)).reshape(-1))
        weights = jnp.asarray((half * rule).reshape(-1))
        below = jnp.concatenate([part.distribution(x) for part in self.coordinates], axis=1)
        squares = jnp.concatenate([part.truncated_square(x) for part in self.coordinates], axis=1)
        # Products over all other coordinates are built from both sides, since dividing by a zero factor would fail.
        ones = jnp.ones((x.size, 1))
        before = jnp.concatenate([ones, jnp.cumprod(below, axis=1)[:, :-1]], axis=1)
        after = jnp.concatenate([jnp.cumprod(below[:, ::-1], axis=1)[:, ::-1][:, 1:], ones], axis=1)
        largest = jnp.sum(third) + jnp.sum(weights[:, None] * (1 - before * after) * squares)
        total = jnp.sum(third + second * (jnp.sum(first) - first))
        return largest + (largest + total) / context_length

    def replicates(self) -> tuple[AbstractCovarianceLaw, ...]:
        return ()
