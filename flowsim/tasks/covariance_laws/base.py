"""The interface of laws of a random covariance.

The population loss is cubic in Lambda_tau, so it depends on a law only through moments up to order three.
"""

import abc
from collections.abc import Callable

import equinox as eqx
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray, PyTree

from flowsim._core.types import Matrix, Scalar


class AbstractCovarianceLaw(eqx.Module):
    """A law of symmetric positive definite matrices Lambda_tau (d, d) with finite third moments."""

    @property
    @abc.abstractmethod
    def dimension(self) -> int:
        """d."""

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray) -> Matrix:
        """Draw one Lambda_tau."""

    @abc.abstractmethod
    def scaled(self, factor: ArrayLike) -> "AbstractCovarianceLaw":
        """The law of c Lambda_tau, c > 0."""

    @abc.abstractmethod
    def expectation(self, function: Callable[[Matrix], PyTree]) -> PyTree:
        """E[f(Lambda_tau)], exact for every polynomial f of degree at most three."""

    @abc.abstractmethod
    def operator_energy(self, context_length: Scalar) -> Scalar:
        """E[|Gamma_tau|_op |Lambda_tau|_F^2], NaN if the law does not determine it."""

    @abc.abstractmethod
    def replicates(self) -> tuple["AbstractCovarianceLaw", ...]:
        """Independent estimates of a law that is known from samples; empty if it is known exactly."""


class AbstractCoordinates(eqx.Module):
    """Independent positive random variables lambda_1, ..., lambda_m of one family, with parameters of shape (m,)."""

    @abc.abstractmethod
    def moments(self) -> Float[Array, "3 m"]:
        """E lambda, E lambda^2 and E lambda^3 of each variable."""

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray) -> Float[Array, " m"]:
        """Draw each variable once.

        **Raises:** `ValueError` if the law is only known by its moments.
        """

    @abc.abstractmethod
    def scaled(self, factor: Scalar) -> "AbstractCoordinates":
        """The law of c lambda."""

    @abc.abstractmethod
    def distribution(self, x: Float[Array, " n"]) -> Float[Array, "n m"]:
        """P(lambda <= x), NaN where unknown."""

    @abc.abstractmethod
    def truncated_square(self, x: Float[Array, " n"]) -> Float[Array, "n m"]:
        """E[lambda^2; lambda <= x], NaN where unknown."""

    @abc.abstractmethod
    def panels(self) -> np.ndarray:
        """Increasing points from 0. `distribution` is smooth between them and the mass beyond them is negligible."""
