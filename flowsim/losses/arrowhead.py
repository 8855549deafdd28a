"""The structure of a single-layer flow in the eigenbasis of its Hessian's large block: an arrowhead.

Off the arrow's shaft every entry of U obeys its own scalar equation, and all of them meet only in u:

    dU_ij/dt = -u^2 a_ij U_ij + delta_ij u b_i,        du/dt = sum_i b_i U_ii - u sum_ij a_ij U_ij^2,

so the Hessian of the loss is diagonal but for one row and one column.
"""

import abc

import equinox as eqx
import jax.numpy as jnp
from equinox import AbstractVar
from jaxtyping import Array, Float

from flowsim.models import LinearAttention

State = tuple[Float[Array, "n n"], Float[Array, ""]]


class AbstractArrowhead(eqx.Module):
    """The coefficients of such a flow, and coordinates, an isometry of the weights, in which it has them.

    curvature: (n, n) a_ij > 0; drive: (n,) b_i.
    """

    curvature: AbstractVar[Float[Array, "n n"]]
    drive: AbstractVar[Float[Array, " n"]]

    @abc.abstractmethod
    def coordinates(self, matrix: Float[Array, "d d"]) -> Float[Array, "n n"]:
        """U of a (d, d) matrix U11."""

    @abc.abstractmethod
    def matrix(self, coordinates: Float[Array, "n n"]) -> Float[Array, "d d"]:
        """The matrix U11 of its coordinates U."""

    def state(self, model: LinearAttention) -> State:
        """(U, u_{-1}) of a model."""
        return self.coordinates(model.U11), model.u_minus1

    def model(self, state: State) -> LinearAttention:
        """The model, with u12 = u21 = 0, of (U, u_{-1})."""
        U, u = state
        return LinearAttention(self.matrix(U), u)

    def field(self, state: State) -> State:
        """Minus the gradient, (dU/dt, du/dt)."""
        U, u = state
        residual = self._residual(state)
        dU = -u * (self.curvature * residual)
        du = -jnp.sum(self.curvature * residual * U)
        return dU, du

    @property
    def target(self) -> Float[Array, " n"]:
        """b_i / a_ii, what u U_ii is at the minima; elsewhere u U is zero there."""
        return self.drive / jnp.diagonal(self.curvature)

    def excess(self, state: State) -> Float[Array, ""]:
        """(1/2) sum_ij a_ij (u U_ij - delta_ij b_i / a_ii)^2, the loss above its minimum."""
        return jnp.sum(self.curvature * self._residual(state) ** 2) / 2

    def _residual(self, state: State) -> Float[Array, "n n"]:
        U, u = state
        return u * U - jnp.diag(self.target)


class Arrowhead(AbstractArrowhead):
    """An arrowhead in a basis of R^d: U = Q^T U11 Q.

    basis: (d, d) orthogonal Q. For one layer with a fixed covariance its columns are the eigenvectors, a_ij = gamma_i
    lambda_i lambda_j and b_i = lambda_i^2; with independent random variances Q = I, a_ij = zeta_ij and b_i = xi_i.

    **Source:** zhang2023 (5.4) in the eigenbasis of Lambda, (C.4).
    """

    curvature: Float[Array, "d d"]
    drive: Float[Array, " d"]
    basis: Float[Array, "d d"]

    def coordinates(self, matrix: Float[Array, "d d"]) -> Float[Array, "d d"]:
        return self.basis.T @ matrix @ self.basis

    def matrix(self, coordinates: Float[Array, "d d"]) -> Float[Array, "d d"]:
        return self.basis @ coordinates @ self.basis.T


class OperatorArrowhead(AbstractArrowhead):
    """An arrowhead in a basis of the matrices themselves: U is diagonal, with the d^2 coefficients of U11.

    basis: (d^2, d^2) orthogonal, its columns the eigenvectors of U11 -> E[Gamma_tau Lambda_tau U11 Lambda_tau], row by
    row. For random covariances that share no eigenbasis.

    **Source:** zhang2023 (C.1).
    """

    curvature: Float[Array, "n n"]
    drive: Float[Array, " n"]
    basis: Float[Array, "n n"]

    def coordinates(self, matrix: Float[Array, "d d"]) -> Float[Array, "n n"]:
        return jnp.diag(self.basis.T @ matrix.reshape(-1))

    def matrix(self, coordinates: Float[Array, "n n"]) -> Float[Array, "d d"]:
        d = round(self.drive.size**0.5)
        return (self.basis @ jnp.diagonal(coordinates)).reshape(d, d)
