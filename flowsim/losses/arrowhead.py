"""The arrowhead structure of the flow of one layer of linear attention with u12 = u21 = 0.

In a suitable basis the weights are a matrix U (the coordinates of U11) and the scalar u = u_{-1}, and the flow is

    dU_ij/dt = -u^2 a_ij U_ij + delta_ij u b_i,        du/dt = sum_i b_i U_ii - u sum_ij a_ij U_ij^2.

The entries of U are coupled only through u. So the Hessian of the loss is diagonal except for the row and the
column of u: it is an arrowhead matrix.
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
    """The coefficients of an arrowhead flow, and the isometry that maps the weights U11 to their coordinates U.

    **Fields:** curvature: (n, n) a_ij > 0; drive: (n,) b_i.
    """

    curvature: AbstractVar[Float[Array, "n n"]]
    drive: AbstractVar[Float[Array, " n"]]

    @abc.abstractmethod
    def coordinates(self, matrix: Float[Array, "d d"]) -> Float[Array, "n n"]:
        """The coordinates U of a matrix U11."""

    @abc.abstractmethod
    def matrix(self, coordinates: Float[Array, "n n"]) -> Float[Array, "d d"]:
        """The matrix U11 with coordinates U."""

    def state(self, model: LinearAttention) -> State:
        """The state (U, u) of a model: the coordinates U of U11, and u = u_{-1}."""
        return self.coordinates(model.U11), model.u_minus1

    def model(self, state: State) -> LinearAttention:
        """The model of a state (U, u), with u12 = u21 = 0."""
        U, u = state
        return LinearAttention(self.matrix(U), u)

    def field(self, state: State) -> State:
        """The time derivatives (dU/dt, du/dt) along the flow, which are minus the gradient of the loss."""
        U, u = state
        residual = self._residual(state)
        dU = -u * (self.curvature * residual)
        du = -jnp.sum(self.curvature * residual * U)
        return dU, du

    @property
    def target(self) -> Float[Array, " n"]:
        """b_i/a_ii, the values of u U_ii at every minimum. The entries of u U off the diagonal are zero there."""
        return self.drive / jnp.diagonal(self.curvature)

    def excess(self, state: State) -> Float[Array, ""]:
        """The loss minus its minimum, (1/2) sum_ij a_ij (u U_ij - delta_ij b_i/a_ii)^2."""
        return jnp.sum(self.curvature * self._residual(state) ** 2) / 2

    @property
    def saddle_excess(self) -> Float[Array, ""]:
        """The excess (1/2) sum_i b_i^2/a_ii at u = 0. All critical points that are not minima have u = 0."""
        return self.drive @ self.target / 2

    def limit(self, start: State, later: States) -> tuple[State, Bool[Array, ""]]:
        """The limit of the flow from ``start`` through the states ``later``, and whether this limit is proved.

        A flow tends to a minimum once its excess is below `saddle_excess`:

        - it is bounded, since u^2 - |U|_F^2 = c is conserved and u U is bounded;
        - all critical points except the minima have u = 0;
        - u is not zero at any point with a smaller excess, so u keeps its sign.

        The limit is proved if the excess of a later state is below `saddle_excess` by more than the solver's error.
        At the minima u U = diag(b_i/a_ii). With the conserved c this gives
        u^2 = (c + sqrt(c^2 + 4 sum_i (b_i/a_ii)^2))/2.
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
        """A proved upper bound on the remaining length of the path of the flow, infinite if no bound is known."""
        return length_to_go(state[1], self.excess(state), jnp.min(self.curvature))

    def _residual(self, state: State) -> Float[Array, "n n"]:
        U, u = state
        return u * U - jnp.diag(self.target)


def length_to_go(u: Scalar, excess: Scalar, slowest: Scalar) -> Scalar:
    """A proved upper bound on the remaining length of the path of an arrowhead flow, infinite if no bound is known.

    Let s = sqrt(2 excess/min a_ij). Since |grad L|^2 >= 2 u^2 min a_ij excess, the path is at most s/v long while
    |u| >= v. If |u| - s/v >= v now, then |u| >= v at all later times. The largest v with this property is
    (|u| + sqrt(u^2 - 4 s))/2. The function returns s/v for this v, and infinity if u^2 < 4 s.

    **Arguments:** u, excess: at the current state; slowest: min a_ij.
    """
    u, s = jnp.abs(u), jnp.sqrt(2 * excess / slowest)
    room = u**2 - 4 * s
    return jnp.where(room >= 0, 2 * s / (u + jnp.sqrt(jnp.maximum(room, 0.0))), jnp.inf)


class Arrowhead(AbstractArrowhead):
    """An arrowhead flow with the coordinates U = Q^T U11 Q in a basis of R^d.

    For one layer with a fixed covariance, the columns of Q are the eigenvectors of the covariance,
    a_ij = gamma_i lambda_i lambda_j and b_i = lambda_i^2. For random covariances with independent diagonal entries,
    Q = I, a_ij = zeta_ij and b_i = xi_i; see `random_covariance.independent`.

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
    """An arrowhead flow in a basis of the space of matrices, for random covariances without a common eigenbasis.

    U is a diagonal matrix of size n = d^2. Its diagonal holds the coefficients of U11 in this basis.

    **Fields:** basis: (d^2, d^2) orthogonal. Its columns are the eigenvectors of the map
    U11 -> E[Gamma_tau Lambda_tau U11 Lambda_tau] of matrices, which are flattened row by row.
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
    """The global minimum with u_{-1} = |U11|_F > 0.

    Let T be the value of u_{-1} U11 at every minimum: Gamma^-1 for one covariance, diag(xi_i/gamma_i) for random
    diagonal covariances. Then u_{-1} = |T|_F^{1/2} and U11 = T/u_{-1}.
    """
    u = jnp.sqrt(jnp.linalg.norm(structure.target))
    return LinearAttention(structure.matrix(jnp.diag(structure.target)) / u, u)


def local_rate(structure: AbstractArrowhead) -> Scalar:
    """The rate r at which the excess decays, like e^{-r t}, near `balanced_minimum`.

    It is twice the smallest positive eigenvalue of the Hessian at this minimum. For the entries of U off the
    diagonal the Hessian has the eigenvalues u^2 a_ij. For the diagonal and u it has an arrowhead block of size
    n + 1. The eigenvalue 0 of this block belongs to the direction (U11, -u_{-1}) along the minima.
    """
    a, b, target = structure.curvature, structure.drive, structure.target
    n = b.size
    u_squared = jnp.linalg.norm(target)
    shaft = jnp.diag(jnp.append(u_squared * jnp.diagonal(a), jnp.sum(b * target) / u_squared))
    shaft = shaft.at[:n, n].set(b).at[n, :n].set(b)
    smallest = jnp.linalg.eigvalsh(shaft)[1]
    off = jnp.min(jnp.where(jnp.eye(n, dtype=bool), jnp.inf, u_squared * a))
    return 2 * jnp.minimum(smallest, off)
