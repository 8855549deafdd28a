"""The loss of ahn2023's layers with B on the set S, and its minima.

On S = {A_i = a_i Sigma^-1, B_i = b_i I} the loss is a function F(a, b), `ScalarLayersLoss`. A has the sign of
`MultiLayerAttention`.
"""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix
from jaxtyping import Array, Float

from flowsim._core.types import Scalar
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import ScalarLayersLoss
from flowsim.models import ScalarLayers
from flowsim.papers.ahn2023.multi_layer import Loss, best_scalars, drawn_scalars

Point = Float[Array, " scalars"]  # a_0 .. a_{k-1}, b_0 .. b_{k-2}
Points = Float[Array, "n scalars"]

_STARTS = 64
_DRAWN = 4
_BFGS = optimistix.BFGS(1e-10, 1e-12)
_MAX_STEPS = 2000
_POLISHING = 3
_AT_REST = 1e-10


def on_the_set(loss: Loss) -> ScalarLayersLoss:
    """The loss F(a, b) on S."""
    return scalar_loss(loss.task.dimension, float(loss.task.context_length), loss.layers)


@functools.lru_cache(maxsize=16)
def scalar_loss(d: int, n: float, k: int) -> ScalarLayersLoss:
    """The loss F(a, b) on S, cached because building it searches for its minimum."""
    return ScalarLayersLoss(d, n, k, residual_stream=True)


def _value(F: ScalarLayersLoss, point: Point) -> Scalar:
    return F(ScalarLayers(point[: F.layers], point[F.layers :]))


def lowest(loss: Loss) -> Point:
    """The best known scalars, a_0 .. a_{k-1}, b_0 .. b_{k-2}."""
    best = on_the_set(loss).minimizer
    assert best.b is not None, "the loss is one with B"
    return jnp.concatenate([best.a, best.b])


def drawn_points(loss: Loss) -> Points:
    """Points (a, b) of S; the first is the critical point without B, where grad_A f vanishes."""
    a = jnp.concatenate([best_scalars(loss)[None], drawn_scalars(loss)[:_DRAWN]])
    b = jax.random.uniform(jax.random.key(5), (a.shape[0], loss.layers - 1)).at[0].set(0.0)
    return jnp.concatenate([a, b], axis=1)


@eqx.filter_jit
def _slopes(F: ScalarLayersLoss, points: Points) -> Points:
    return jax.vmap(lambda point: jax.grad(_value, argnums=1)(F, point))(points)


def scalar_slopes(loss: Loss, points: Points) -> tuple[Float[Array, "n k"], Float[Array, "n rest"]]:
    """The gradients dF/da and dF/db at points of S."""
    both = _slopes(on_the_set(loss), points)
    return both[:, : loss.layers], both[:, loss.layers :]


class Minima(NamedTuple):
    """Where many starts on S lead: the loss, the scalars, and whether the point is surely a local minimum, with zero
    gradient and a positive definite Hessian. Local minima come first, sorted by loss.
    """

    values: Float[Array, " n"]
    points: Points
    proper: Array


@eqx.filter_jit
def _minima(F: ScalarLayersLoss, starts: Points) -> Minima:
    value = functools.partial(_value, F)
    slope, hessian = jax.grad(value), jax.hessian(value)

    def one(start: Point) -> tuple[Scalar, Point, Array]:
        function = lambda point, _: value(point)
        point = optimistix.minimise(function, _BFGS, start, max_steps=_MAX_STEPS, throw=False).value
        for _ in range(_POLISHING):
            point = point - jnp.linalg.solve(hessian(point), slope(point))
        curvatures = jnp.linalg.eigvalsh(hessian(point))
        still = jnp.linalg.norm(slope(point)) <= _AT_REST * curvatures[-1] * jnp.linalg.norm(point)
        return value(point), point, (curvatures[0] > _AT_REST * curvatures[-1]) & still

    values, points, proper = jax.vmap(one)(starts)
    order = jnp.argsort(jnp.where(proper, values, jnp.inf))
    return Minima(values[order], points[order], proper[order])


def local_minima(loss: Loss) -> Minima:
    """The points of S that minimisation reaches from 64 drawn starts."""
    k = loss.layers
    starts = jax.random.uniform(jax.random.key(7), (_STARTS, 2 * k - 1))
    scale = jnp.concatenate([jnp.full(k, 2.0), jnp.ones(k - 1)])
    return _minima(on_the_set(loss), starts * scale[None, :])


def minima_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The best scalars, their loss, the least loss without B, and how many different local minima 64 starts reach."""
    F, found = on_the_set(loss), local_minima(loss)
    values = jnp.sort(jnp.where(found.proper, found.values, found.values[0]))
    a, b = jnp.split(lowest(loss), [loss.layers])
    named = {f"a_{i}": value for i, value in enumerate(a)} | {f"b_{i}": value for i, value in enumerate(b)}
    distinct = 1 + jnp.sum(jnp.diff(values) > 1e-6 * values[0])
    return named | {"loss": F.minimum, "loss_without_B": loss.minimum, "local_minima": distinct}
