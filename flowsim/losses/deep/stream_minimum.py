"""The best scalars a_i and b_i of layers that also move the covariates, with A_i = a_i S^-1 and B_i = b_i I.

The loss E tr q_k(W)^2 of `ScalarLayersLoss` has many local minima. The search uses coordinates f_i and g_i in which
no digits cancel, even if n is large. Let t_i = x p_i^2 be the eigenvalue that an eigenvalue x of W has become at
layer i, and let t_i = tau_i (1 + r_i), where tau_i does not depend on x. With
f_i = 1 - a_i tau_i, g_i = 1 - 3 a_i b_i tau_i and tau_{i+1} = 4 tau_i / (9 (1 - g_i)),

    q_{i+1} = q_i (f_i - (1 - f_i) r_i),     r_{i+1} = v_i^2 (v_i - 3)/4,     v_i = (1 - g_i) r_i - g_i.

The derivative of t_{i+1} by t_i is zero at v_i = 0.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim._core import checks
from flowsim._core.types import Scalar
from flowsim.moments import spectral_quadrature

Point = Float[Array, " coordinates"]  # f_0 .. f_{k-1}, g_0 .. g_{k-2}
Nodes = Float[Array, " nodes"]

MOST_LAYERS = 4
_STARTS, _KEPT = 4000, 200
_FEW_STEPS, _MANY_STEPS, _NEWTON_STEPS = 40, 300, 12
_LARGEST_DAMPING = 1e14


@functools.lru_cache(maxsize=64)
def stream_minimum(
    dimension: int, context_length: int | float, layers: int
) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " rest"], float]:
    """The scalars a_i and b_i with the smallest loss that a search finds, and this loss.

    The loss is E tr q_k(W)^2; see `ScalarLayersLoss`. The search has 4000 starts, drawn with a fixed seed. A start
    places the zero of each factor of q_k, and the point where each map t_i -> t_{i+1} is flat, at random in the
    spectrum of t_i. If n is infinite, the result is the limit b_i = 1/3, a_i = (9/4)^i for i >= 0, with the loss 0.

    **Arguments:**

    - dimension: d.
    - context_length: n, a whole number of at least 1 or infinity.
    - layers: k, at most 4, since the number of minima grows fast.

    **Raises:** `ValueError` naming the argument.
    """
    d, k = checks.count("dimension", dimension), checks.count("layers", layers)
    if k > MOST_LAYERS:
        checks.refuse("layers", f"at most {MOST_LAYERS} with a residual stream", f"it is {k}")
    limit = (9 / 4) ** np.arange(k), np.full(k - 1, 1 / 3), 0.0
    if context_length == math.inf:
        spectral_quadrature(d, context_length, 0)
        return limit
    # If n < d, d - n eigenvalues are zero. The others are those of (d/n) W with n and d exchanged.
    n = int(context_length)
    offsets, weights = spectral_quadrature(min(d, n), max(d, n), 3**k - 1)
    # The centre is the mean of x under x times the spectrum. It is near all eigenvalues that carry weight.
    beyond = (min(d, n) + 1) / max(d, n)
    ratios = (offsets - beyond) / (1 + beyond)
    # At best each layer squares the spread.
    size = min(1.0, math.sqrt(np.sum(weights * ratios**2) / np.sum(weights))) ** (2**k - 1)
    if size < 1e-290:
        return limit
    nodes = jnp.asarray(ratios), jnp.asarray(np.sqrt(weights) / size)
    starts = jnp.asarray(_starts(ratios, k)).reshape(_STARTS // _KEPT, _KEPT, 2 * k - 1)
    found = [_descend(block, *nodes, _FEW_STEPS) for block in starts]
    points, losses = (jnp.concatenate(parts) for parts in zip(*found, strict=True))
    points, losses = _descend(points[jnp.argsort(losses)[:_KEPT]], *nodes, _MANY_STEPS)
    best, loss = _polish(points[jnp.argmin(losses)], *nodes)
    f, g = np.split(np.asarray(best), [k])
    taus = (1 + (d + 1) / n) * np.cumprod(np.append(1.0, 4 / (9 * (1 - g))))
    return (1 - f) / taus, (1 - g) / (3 * (1 - f[:-1])), max(d - n, 0) + float(loss) * size**2


def _starts(ratios: np.ndarray, k: int) -> np.ndarray:
    places = np.random.default_rng(0).uniform(0, ratios.size - 1, (_STARTS, 2 * k - 1))
    starts = np.empty_like(places)
    for start, place in zip(starts, places, strict=True):
        r = ratios
        for i in range(k):
            for j in (i, k + i)[: 1 + (i < k - 1)]:
                where = max(np.interp(place[j], np.arange(r.size), np.sort(r)), -0.9)
                start[j] = where / (1 + where)
            r = _moved(r, start[k + i]) if i < k - 1 else r
    return starts


def _moved(r, g):
    v = (1 - g) * r - g
    return v**2 * (v - 3) / 4


def _left(point: Point, ratios: Nodes, roots: Nodes) -> Nodes:
    """The residuals sqrt(w_j) q_k(x_j) at the quadrature nodes x_j, whose sum of squares is the loss.

    **Arguments:** point: the f_i followed by the g_i; ratios: r_0 at each node; roots: sqrt(w_j). A common factor
    of ``roots`` scales the residuals.
    """
    k = (point.shape[0] + 1) // 2
    r, q = ratios, roots
    for i in range(k):
        q = q * (point[i] - (1 - point[i]) * r)
        r = _moved(r, point[k + i]) if i < k - 1 else r
    return q


@jax.jit
def _descend(points: Float[Array, "starts coordinates"], ratios: Nodes, roots: Nodes, steps):
    """The points that ``steps`` Levenberg-Marquardt steps reach from given points, and the losses there."""

    def step(_, carry):
        point, damping, loss = carry
        q, J = _left(point, ratios, roots), jax.jacfwd(_left)(point, ratios, roots)
        size = jnp.sqrt(jnp.sum(J**2, axis=0))
        size = jnp.where(size > 0, size, 1.0)
        J = J / size[None, :]
        there = point - jnp.linalg.solve(J.T @ J + damping * jnp.eye(point.size), J.T @ q) / size
        now = jnp.sum(_left(there, ratios, roots) ** 2)
        better = now < loss
        damping = jnp.clip(jnp.where(better, damping / 3, damping * 4), 1 / _LARGEST_DAMPING, _LARGEST_DAMPING)
        return jnp.where(better, there, point), damping, jnp.where(better, now, loss)

    def one(point):
        start = point, jnp.asarray(1e-2), jnp.sum(_left(point, ratios, roots) ** 2)
        point, _, loss = jax.lax.fori_loop(0, steps, step, start)
        return point, loss

    return jax.vmap(one)(points)


@jax.jit
def _polish(point: Point, ratios: Nodes, roots: Nodes) -> tuple[Point, Scalar]:
    """The critical point that Newton's method on the gradient reaches from a point near it, and its loss."""
    loss = lambda point: jnp.sum(_left(point, ratios, roots) ** 2)

    def step(_, point):
        gradient, bend = jax.grad(loss)(point), jax.hessian(loss)(point)
        size = jnp.sqrt(jnp.abs(jnp.diagonal(bend)))
        return point - jnp.linalg.solve(bend / jnp.outer(size, size), gradient / size) / size

    point = jax.lax.fori_loop(0, _NEWTON_STEPS, step, point)
    return point, loss(point)
