"""The structure of a single-layer flow in the eigenbasis of its Hessian's large block: an arrowhead.

Every entry of U obeys its own scalar equation and is coupled to the others only through u:

    dU_ij/dt = -u^2 a_ij U_ij + delta_ij u b_i,        du/dt = sum_i b_i U_ii - u sum_ij a_ij U_ij^2.

The Hessian of the loss is diagonal except for one row and one column.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from equinox import AbstractVar
from jaxtyping import Array, Bool, Float

from flowsim._core.types import Scalar
from flowsim.models import LinearAttention

State = tuple[Float[Array, "n n"], Float[Array, ""]]
States = tuple[Float[Array, "T n n"], Float[Array, " T"]]

CLEARLY = 1 - 1e-6  # an excess below this part of the saddle's is below it in spite of the solver's error


class AbstractArrowhead(eqx.Module):
    """The coefficients of a flow with an arrowhead, and the isometry from the weights U11 to its coordinates U.

    **Fields:** curvature: (n, n) a_ij > 0; drive: (n,) b_i.
    """

    curvature: AbstractVar[Float[Array, "n n"]]
    drive: AbstractVar[Float[Array, " n"]]

    @abc.abstractmethod
    def coordinates(self, matrix: Float[Array, "d d"]) -> Float[Array, "n n"]:
        """The coordinates U of a matrix U11, (d, d)."""

    @abc.abstractmethod
    def matrix(self, coordinates: Float[Array, "n n"]) -> Float[Array, "d d"]:
        """The matrix U11 with coordinates U."""

    def state(self, model: LinearAttention) -> State:
        """(U, u_{-1}) of a model."""
        return self.coordinates(model.U11), model.u_minus1

    def model(self, state: State) -> LinearAttention:
        """The model of (U, u_{-1}), with u12 = u21 = 0."""
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
        """b_i / a_ii, the value of u U_ii at the minima. The other entries of u U are zero there."""
        return self.drive / jnp.diagonal(self.curvature)

    def excess(self, state: State) -> Float[Array, ""]:
        """(1/2) sum_ij a_ij (u U_ij - delta_ij b_i / a_ii)^2, the loss above its minimum."""
        return jnp.sum(self.curvature * self._residual(state) ** 2) / 2

    @property
    def saddle_excess(self) -> Float[Array, ""]:
        """(1/2) sum_i b_i^2/a_ii, the excess if u = 0, hence at every critical point that is not a minimum."""
        return self.drive @ self.target / 2

    def limit(self, start: State, later: States) -> tuple[State, Bool[Array, ""]]:
        """The limit of the flow from ``start`` through the states ``later``, and whether this limit is proved.

        A flow whose excess is below the saddle's tends to a minimum:

        - it is bounded, since u^2 - |U|_F^2 = c is conserved and u U is bounded;
        - all critical points except the minima have u = 0;
        - u is never zero below the saddle, so it keeps its sign.

        At the minima u U = diag(b_i/a_ii), and with c this gives u^2 = (c + sqrt(c^2 + 4 |b/a|^2))/2.
        """
        U, u = start
        conserved = u**2 - jnp.sum(U**2)
        squares = 4 * jnp.sum(self.target**2)
        root = jnp.sqrt(conserved**2 + squares)
        # Of two equal forms, the one that does not cancel.
        u_sq = jnp.where(conserved > 0, conserved + root, squares / (root - conserved)) / 2
        below = jax.vmap(self.excess)(later) < CLEARLY * self.saddle_excess
        u_end = jnp.where(jnp.any(below & (later[1] > 0)), 1.0, -1.0) * jnp.sqrt(u_sq)
        return (jnp.diag(self.target) / u_end, u_end), jnp.any(below)

    def way_to_go(self, state: State) -> Float[Array, ""]:
        """A proved bound on the remaining length of the path of the flow, infinite if no bound is known."""
        return length_to_go(state[1], self.excess(state), jnp.min(self.curvature))

    def _residual(self, state: State) -> Float[Array, "n n"]:
        U, u = state
        return u * U - jnp.diag(self.target)


def length_to_go(u: Scalar, excess: Scalar, slowest: Scalar) -> Scalar:
    """A proved bound on the remaining length of the path of an arrowhead flow, infinite if no bound is known.

    |grad|^2 >= 2 p excess with p = u^2 min a_ij. With s = sqrt(2 excess/min a_ij) the path is at most s/v long while
    |u| >= v. If |u| - s/v >= v, then |u| >= v forever. The largest such v is (|u| + sqrt(u^2 - 4 s))/2.

    **Arguments:** u, excess: of the present state; slowest: min a_ij.
    """
    u, s = jnp.abs(u), jnp.sqrt(2 * excess / slowest)
    room = u**2 - 4 * s
    return jnp.where(room >= 0, 2 * s / (u + jnp.sqrt(jnp.maximum(room, 0.0))), jnp.inf)


class Arrowhead(AbstractArrowhead):
    """An arrowhead in a basis of R^d: U = Q^T U11 Q.

    For one layer with a fixed covariance the columns of Q are its eigenvectors, a_ij = gamma_i lambda_i lambda_j and
    b_i = lambda_i^2. For independent random variances Q = I, a_ij = zeta_ij and b_i = xi_i.

    **Fields:** basis: (d, d) orthogonal Q.
    """

    curvature: Float[Array, "d d"]
    drive: Float[Array, " d"]
    basis: Float[Array, "d d"]

    def coordinates(self, matrix: Float[Array, "d d"]) -> Float[Array, "d d"]:
        return self.basis.T @ matrix @ self.basis

    def matrix(self, coordinates: Float[Array, "d d"]) -> Float[Array, "d d"]:
        return self.basis @ coordinates @ self.basis.T


class OperatorArrowhead(AbstractArrowhead):
    """An arrowhead in a basis of the space of matrices, for random covariances without a common eigenbasis.

    U is diagonal and holds the d^2 coefficients of U11.

    **Fields:** basis: (d^2, d^2) orthogonal. Its columns are the eigenvectors of U11 -> E[Gamma_tau Lambda_tau U11
    Lambda_tau], with matrices flattened by rows.
    """

    curvature: Float[Array, "n n"]
    drive: Float[Array, " n"]
    basis: Float[Array, "n n"]

    def coordinates(self, matrix: Float[Array, "d d"]) -> Float[Array, "n n"]:
        return jnp.diag(self.basis.T @ matrix.reshape(-1))

    def matrix(self, coordinates: Float[Array, "n n"]) -> Float[Array, "d d"]:
        d = round(self.drive.size**0.5)
        return (self.basis @ jnp.diagonal(coordinates)).reshape(d, d)


@eqx.filter_jit
def balanced_minimum(structure: AbstractArrowhead) -> LinearAttention:
    """The global minimum with u_{-1} = |U11|_F: u_{-1} = |T|_F^{1/2} and U11 = T/u_{-1}, with the best T = u_{-1} U11.

    T = Gamma^-1 for one covariance and diag(xi_i/gamma_i) for random diagonal covariances.
    """
    u = jnp.sqrt(jnp.linalg.norm(structure.target))
    return LinearAttention(structure.matrix(jnp.diag(structure.target)) / u, u)


def local_rate(structure: AbstractArrowhead) -> Scalar:
    """The rate r of excess ~ e^{-r t} near `balanced_minimum`: twice the Hessian's smallest positive eigenvalue there.

    The Hessian is u^2 a_ij for the entries off the diagonal of U, and an arrowhead of size n + 1 for the diagonal and
    u. The zero eigenvalue of the arrowhead belongs to the direction (U11, -u_{-1}) along the minima.
    """
    a, b, target = structure.curvature, structure.drive, structure.target
    n = b.size
    u_squared = jnp.linalg.norm(target)
    shaft = jnp.diag(jnp.append(u_squared * jnp.diagonal(a), jnp.sum(b * target) / u_squared))
    shaft = shaft.at[:n, n].set(b).at[n, :n].set(b)
    smallest = jnp.linalg.eigvalsh(shaft)[1]
    off = jnp.min(jnp.where(jnp.eye(n, dtype=bool), jnp.inf, u_squared * a))
    return 2 * jnp.minimum(smallest, off)
