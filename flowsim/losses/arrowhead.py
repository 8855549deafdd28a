"""The structure of a single-layer flow in the eigenbasis of its covariance: an arrowhead.

Off the arrow's shaft every entry of U obeys its own scalar equation, and all of them meet only in u:

    dU_ij/dt = -u^2 a_ij U_ij + delta_ij u b_i,        du/dt = sum_i b_i U_ii - u sum_ij a_ij U_ij^2,

so the Hessian of the loss is diagonal but for one row and one column.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim.models import LinearAttention

State = tuple[Float[Array, "d d"], Float[Array, ""]]


class Arrowhead(eqx.Module):
    """The coefficients of such a flow, and the basis in which it has them.

    curvature: (d, d) a_ij > 0; drive: (d,) b_i; basis: (d, d) orthogonal Q, whose columns are the eigenvectors.
    For one layer with a fixed covariance a_ij = gamma_i lambda_i lambda_j and b_i = lambda_i^2.

    **Source:** zhang2023 (5.4) in the eigenbasis of Lambda.
    """

    curvature: Float[Array, "d d"]
    drive: Float[Array, " d"]
    basis: Float[Array, "d d"]

    def state(self, model: LinearAttention) -> State:
        """(Q^T U11 Q, u_{-1}) of a model."""
        return self.basis.T @ model.U11 @ self.basis, model.u_minus1

    def model(self, state: State) -> LinearAttention:
        """The model, with u12 = u21 = 0, of (Q^T U11 Q, u_{-1})."""
        U, u = state
        return LinearAttention(self.basis @ U @ self.basis.T, u)

    def field(self, state: State) -> State:
        """Minus the gradient, (dU/dt, du/dt)."""
        U, u = state
        residual = self._residual(state)
        dU = -u * (self.curvature * residual)
        du = -jnp.sum(self.curvature * residual * U)
        return dU, du

    def excess(self, state: State) -> Float[Array, ""]:
        """(1/2) sum_ij a_ij (u U_ij - delta_ij b_i / a_ii)^2, the loss above its minimum."""
        return jnp.sum(self.curvature * self._residual(state) ** 2) / 2

    def _residual(self, state: State) -> Float[Array, "d d"]:
        U, u = state
        return u * U - jnp.diag(self.drive / jnp.diagonal(self.curvature))
