"""Exact expectations of products of two units, E phi(u . x) phi(v . x) for x ~ N(0, I).

Let p = |u|^2, q = |v|^2 and c = u . v. The expectation is, for each activation phi(z),

    erf(z / sqrt 2):   (2/pi) arcsin(c / sqrt((1 + p)(1 + q))),
    relu:              (sqrt(p q) sin theta + (pi - theta) c) / (2 pi),     cos theta = c / sqrt(p q).

**Source:** Williams (1998, Computation with infinite neural networks) and Saad and Solla (1995) for erf; Cho and
Saul (2009, Kernel methods for deep learning) for relu.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim.moments.differences import Differences, angle, product, root

Units = Float[Array, "units d"]
Others = Float[Array, "others d"]
Pairs = Float[Array, "units others"]

_NEAR = 4.0  # largest ratio of p q - c^2 at two places that counts as a small difference
_PARALLEL = 1e-8  # sin^2 theta of units that count as parallel, since it is known to 1e-16


def products(activation: str, U: Units, V: Others) -> Pairs:
    """E phi(u . x) phi(v . x) for each row u of U and each row v of V.

    **Arguments:** activation: "erf" or "relu"; U: (n, d); V: (m, d).

    **Returns:** (n, m).
    """
    c = U @ V.T
    if activation == "relu":
        return c / 2 + _bend(U, V)
    p, q = _squares(U)[:, None], _squares(V)[None, :]
    return 2 / math.pi * jnp.arctan2(c, jnp.sqrt((1 + p) * (1 + q) - c**2))


def mixed_differences(activation: str, U: Units, dU: Units, V: Others, dV: Others) -> Pairs:
    """E [phi((u + du) . x) - phi(u . x)] [phi((v + dv) . x) - phi(v . x)] for each row u of U and v of V.

    Its relative error is small for erf. For relu it is small if du and dv are much smaller than the angle between u
    and v.

    Let c = u . v, p = |u|^2 and q = |v|^2, and for erf add 1 to p and to q. Then E phi(u . x) phi(v . x) is a
    function of c, of the area s = sqrt(p q - c^2) and of the angle atan2(s, c). Their changes are computed as
    `Differences`, without cancellation. Where the changes of s^2 are not small, or s^2 is zero up to rounding, the
    four expectations are subtracted instead.

    For relu, s has a kink where u and v are parallel. There the result is du . dv/2 plus terms of the third order,
    so that its error is the rounding error of du and dv.

    **Arguments:** activation: "erf" or "relu"; U, dU: (n, d); V, dV: (m, d).

    **Returns:** (n, m).
    """
    c = Differences(U @ V.T, dU @ V.T, U @ dV.T, dU @ dV.T)
    raised = 0.0 if activation == "relu" else 1.0
    p, p_moved = _squares(U)[:, None], jnp.sum(dU * (2 * U + dU), axis=1)[:, None]
    q, q_moved = _squares(V)[None, :], jnp.sum(dV * (2 * V + dV), axis=1)[None, :]
    still = jnp.zeros_like(c.value)
    whole = product(Differences(raised + p, p_moved, still, still), Differences(raised + q, still, q_moved, still))
    square = Differences(*map(jnp.subtract, whole, product(c, c)))
    apart = square.value > _PARALLEL * whole.value
    small = jnp.ones_like(apart)
    for corner in square.corners:
        small &= (square.value < _NEAR * corner) & (corner < _NEAR * square.value)
    # By `where`, since ball arithmetic may leave open what is small at parallel units.
    near = jnp.where(apart, small, False)
    one = (1.0, 0.0, 0.0, 0.0)
    side = root(Differences(*(jnp.where(near, part, other) for part, other in zip(square, one, strict=True))))
    if activation == "relu":
        smooth = (side.mixed - product(c, angle(side, c)).mixed) / (2 * math.pi)
        return c.mixed / 2 + jnp.where(near, smooth, _at_corners(_bend, U, dU, V, dV))
    smooth = 2 / math.pi * angle(c, side).mixed
    return jnp.where(near, smooth, _at_corners(lambda U, V: products(activation, U, V), U, dU, V, dV))


def lengths(rows: Float[Array, "... d"]) -> Float[Array, "..."]:
    """The length |u| of each row u, with the derivative 0 at u = 0."""
    return _root(_squares(rows))


def _squares(rows: Float[Array, "... d"]) -> Float[Array, "..."]:
    return jnp.einsum("...d,...d->...", rows, rows)


@jax.custom_jvp
def _root(x: Float[Array, "..."]) -> Float[Array, "..."]:
    return jnp.sqrt(x)


@_root.defjvp
def _root_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (s,), (moved,) = map(_root, primals), tangents  # itself, so that second derivatives are finite at 0, too
    return s, jnp.where(s > 0, moved / jnp.where(s > 0, 2 * s, 1.0), 0.0)


def _at_corners(f: Callable[[Units, Others], Pairs], U: Units, dU: Units, V: Others, dV: Others) -> Pairs:
    return f(U + dU, V + dV) - f(U + dU, V) - (f(U, V + dV) - f(U, V))


class _Angle(NamedTuple):
    """The angles between the rows u of U and the rows v of V.

    **Fields:**

    - theta: the angle in [0, pi], (n, m); pi/2 if one of the rows is 0, and 0 if both are.
    - sine: sin theta, (n, m).
    - sizes: |u|, (n,), and |v|, (m,).
    - directions: u/|u|, (n, d), and v/|v|, (m, d), which are 0 for a row 0.
    """

    theta: Pairs
    sine: Pairs
    sizes: tuple[Float[Array, " units"], Float[Array, " others"]]
    directions: tuple[Units, Others]


def _between(U: Units, V: Others) -> _Angle:
    """The angles between the rows of U and of V, computed from chords.

    The chords |u/|u| - v/|v|| = 2 sin(theta/2) and |u/|u| + v/|v|| = 2 cos(theta/2) have all digits at theta = 0
    and at theta = pi.
    """
    sizes = lengths(U), lengths(V)
    one, other = (of / jnp.where(size > 0, size, 1.0)[:, None] for of, size in zip((U, V), sizes, strict=True))
    apart, together = lengths(one[:, None] - other[None]), lengths(one[:, None] + other[None])
    empty = sizes[0][:, None] + sizes[1][None] == 0  # two rows 0, which have no angle, also in ball arithmetic
    theta = 2 * jnp.arctan2(apart, jnp.where(empty, 1.0, together))
    return _Angle(theta, apart * together / 2, sizes, (one, other))


@jax.custom_jvp
def _bend(U: Units, V: Others) -> Pairs:
    """|u| |v| (sin theta - theta cos theta)/(2 pi) for each row u of U and v of V, at an angle theta to each other.

    This expression is of the third order in theta. Its derivative in u, (|v| sin theta u/|u| - theta v)/(2 pi), is
    given by hand, since the chain rule would bring in the factor 1/theta.
    """
    at = _between(U, V)
    size = at.sizes[0][:, None] * at.sizes[1][None]
    return (size * at.sine - at.theta * (U @ V.T)) / (2 * math.pi)


@_bend.defjvp
def _bend_jvp(primals: tuple[Units, Others], tangents: tuple[Units, Others]) -> tuple[Pairs, Pairs]:
    (U, V), (dU, dV) = primals, tangents
    at = _between(U, V)
    along = [jnp.sum(of * moved, axis=1) for of, moved in zip(at.directions, tangents, strict=True)]
    sizes = along[0][:, None] * at.sizes[1][None] + at.sizes[0][:, None] * along[1][None]
    return _bend(U, V), (at.sine * sizes - at.theta * (dU @ V.T + U @ dV.T)) / (2 * math.pi)
