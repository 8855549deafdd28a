"""The reduction of an arrowhead flow to d + 2 numbers: the diagonal of U, u and the clock s = int u^2 dt.

The coefficients a_ij and b_i of the flow are those of `AbstractArrowhead`. The entries off the diagonal are
U_ij(t) = U_ij(0) exp(-a_ij s(t)). They enter the equations of the d + 2 numbers only through the sums
F_k(s) = sum_{i != j} a_ij^k U_ij(0)^2 exp(-2 a_ij s).
"""

import abc
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from equinox import AbstractVar
from jaxtyping import Array, Float, PyTree

from flowsim._core.types import Matrix, Scalar
from flowsim.losses.arrowhead import Arrowhead, State, length_to_go
from flowsim.models import LinearAttention
from flowsim.moments.decays import DecaySums

Moments = Float[Array, "moments *stages"]

BLOCK = 2**16  # entries of U that are summed at once


class Point(NamedTuple):
    """A point of a reduced flow, or several points with any leading axes.

    **Fields:** shaft: the diagonal of U; u; clock: s = int u^2 dt since the start.
    """

    shaft: Float[Array, "*stages d"]
    u: Float[Array, "*stages"]
    clock: Float[Array, "*stages"]


class Seen(NamedTuple):
    """Values at one point of a reduced flow, or at several points, which are then on the last axes.

    **Fields:** moments: the sums F_k; excess: L - min L; grad_norm_sq: |grad L|^2.
    """

    moments: Moments
    excess: Float[Array, "*stages"]
    grad_norm_sq: Float[Array, "*stages"]


class Reduction(eqx.Module):
    """The coefficients of a reduced flow, and the quantities that follow from them.

    **Fields:**

    - sums: the sums F_k as a function of the clock.
    - curvature: (d,) a_ii.
    - drive: (d,) b_i.
    - fastest: the largest a_ij.
    - slowest: the smallest a_ij.
    """

    sums: DecaySums
    curvature: Float[Array, " d"]
    drive: Float[Array, " d"]
    fastest: Scalar
    slowest: Scalar

    def look(self, points: Point, moments: Moments) -> Seen:
        """The excess (1/2) (u^2 F_1 + sum_i a_ii (u U_ii - b_i/a_ii)^2) and |grad L|^2 at points.

        **Arguments:** points: with one leading axis; moments: the sums F_k at these points.
        """
        u, shaft, g = points.u, points.shaft, self.curvature
        residual = u[:, None] * shaft - (self.drive / g)[None, :]
        pull = residual * g[None, :]
        excess = (u**2 * moments[1] + jnp.sum(pull * residual, axis=1)) / 2
        slope = -u * moments[1] - jnp.sum(pull * shaft, axis=1)
        return Seen(moments, excess, slope**2 + u**2 * jnp.sum(pull**2, axis=1) + u**4 * moments[2])

    def seen(self, point: Point) -> Seen:
        """The sums F_k, the excess and the squared gradient norm at one point."""
        one = jax.tree.map(lambda x: x[None], point)
        return jax.tree.map(lambda x: x[..., 0], self.look(one, self.sums(one.clock)))

    def field(self, point: Point) -> Point:
        """The time derivatives of the diagonal of U, of u and of the clock."""
        u, shaft, g = point.u, point.shaft, self.curvature
        moments = self.sums(point.clock[None])[:, 0]
        pull = u * (u * shaft - self.drive / g) * g
        return Point(-pull, self.drive @ shaft - u * (moments[1] + jnp.sum(g * shaft**2)), u**2)

    def bend(self, point: Point) -> Scalar:
        """The norm |d grad L/dt| along the flow, over all weights.

        Off the diagonal grad L has the entries u^2 a_ij U_ij, with the time derivatives
        (2 u u' a_ij - u^4 a_ij^2) U_ij.
        """
        now, then = jax.jvp(self.field, (point,), (self.field(point),))
        moments = self.sums(point.clock[None])[:, 0]
        turn, decay = 2 * point.u * now.u, point.u**4
        off = turn**2 * moments[2] - 2 * turn * decay * moments[3] + decay**2 * moments[4]
        return jnp.sqrt(jnp.sum(then.shaft**2) + then.u**2 + jnp.maximum(off, 0.0))

    def way_to_go(self, point: Point) -> Scalar:
        """A proved bound on the remaining length of the path; see `AbstractArrowhead.way_to_go`."""
        return length_to_go(point.u, self.seen(point).excess, self.slowest)


class AbstractReducedLayer(eqx.Module):
    """A reduced flow, with the maps from models to its points and back.

    **Fields:** reduction: the coefficients; start: the point at which the flow begins.
    """

    reduction: AbstractVar[Reduction]
    start: AbstractVar[Point]

    @abc.abstractmethod
    def point(self, model: PyTree) -> Point:
        """The point of the reduced flow that represents a model."""

    @abc.abstractmethod
    def model(self, point: Point) -> PyTree:
        """The model that a point represents."""


class ReducedArrowhead(AbstractReducedLayer):
    """The reduced flow of an `Arrowhead` from one start. The sums F_k are compressed; see `DecaySums.compressed`.

    **Fields:** arrowhead: the flow before the reduction; off: U(0) with a zero diagonal.
    """

    arrowhead: Arrowhead
    off: Matrix
    reduction: Reduction
    start: Point

    @staticmethod
    def of(arrowhead: Arrowhead, start: State) -> "ReducedArrowhead":
        """The reduced flow from a start (U, u), which must not be traced."""
        U, u = start
        a, d = np.asarray(arrowhead.curvature), arrowhead.drive.size
        off = np.array(U)
        np.fill_diagonal(off, 0.0)
        rows = max(1, BLOCK // d)
        blocks = ((a[i : i + rows].ravel(), off[i : i + rows].ravel() ** 2) for i in range(0, d, rows))
        least, largest = float(a.min()), float(a.max())
        sums = DecaySums.compressed(blocks, least, largest)
        limits = (jnp.asarray(largest), jnp.asarray(least))
        reduction = Reduction(sums, jnp.diagonal(arrowhead.curvature), arrowhead.drive, *limits)
        point = Point(jnp.diagonal(U), u, jnp.zeros(()))
        return ReducedArrowhead(arrowhead=arrowhead, off=jax.device_put(off), reduction=reduction, start=point)

    def point(self, model: LinearAttention) -> Point:
        """The point at the start of the flow. ``model`` must be the start, since the clock of other models is
        unknown. This is not checked.
        """
        return self.start

    def model(self, point: Point) -> LinearAttention:
        decayed = self.off * jnp.exp(-self.arrowhead.curvature * point.clock)
        return self.arrowhead.model((decayed + jnp.diag(point.shaft), point.u))
