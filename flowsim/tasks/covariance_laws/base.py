"""The interface of laws of a random covariance Lambda_tau.

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
        """The dimension d."""

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray) -> Matrix:
        """Draw one Lambda_tau."""

    @abc.abstractmethod
    def scaled(self, factor: ArrayLike) -> "AbstractCovarianceLaw":
        """The law of c Lambda_tau for a factor c > 0."""

    @abc.abstractmethod
    def expectation(self, function: Callable[[Matrix], PyTree]) -> PyTree:
        """E[f(Lambda_tau)] for a function f of a (d, d) matrix.

        If the law is known exactly, the result is exact for all polynomials f of degree at most three.
        """

    @abc.abstractmethod
    def operator_energy(self, context_length: Scalar) -> Scalar:
        """E[|Gamma_tau|_op |Lambda_tau|_F^2] with Gamma_tau = (1 + 1/N) Lambda_tau + (tr Lambda_tau / N) I.

        NaN if the law does not determine this expectation.

        **Arguments:** context_length: N.
        """

    @abc.abstractmethod
    def replicates(self) -> tuple["AbstractCovarianceLaw", ...]:
        """Independent estimates of a law that is known from samples; empty for a law that is known exactly."""


class AbstractCoordinates(eqx.Module):
    """Independent positive variables lambda_1, ..., lambda_m of one family, with parameters of shape (m,)."""

    @abc.abstractmethod
    def moments(self) -> Float[Array, "3 m"]:
        """E lambda, E lambda^2 and E lambda^3 of each variable, (3, m)."""

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray) -> Float[Array, " m"]:
        """Draw each variable once, (m,).

        **Raises:** `ValueError` if only moments of the law are known.
        """

    @abc.abstractmethod
    def scaled(self, factor: Scalar) -> "AbstractCoordinates":
        """The law of c lambda for a factor c > 0."""

    @abc.abstractmethod
    def distribution(self, x: Float[Array, " n"]) -> Float[Array, "n m"]:
        """P(lambda <= x) at each x, (n,), for each variable, (n, m). NaN if only moments are known."""

    @abc.abstractmethod
    def truncated_square(self, x: Float[Array, " n"]) -> Float[Array, "n m"]:
        """E[lambda^2 1(lambda <= x)] at each x, (n,), for each variable, (n, m). NaN if only moments are known."""

    @abc.abstractmethod
    def panels(self) -> np.ndarray:
        """Increasing points from 0 between which `distribution` is smooth. The mass beyond them is negligible."""
