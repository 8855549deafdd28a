"""ahn2023's layers with B at points of S: the loss there and its minima, and the gradients over all matrices.

On S = {A_i = a_i Sigma^-1, B_i = b_i I} the loss is a function F(a, b), `ScalarLayersLoss`. A has the sign of
`MultiLayerAttention`. The gradients are derivatives of the loss of `MultiLayerAttention` with respect to every
entry of every matrix, and do not use F. The prediction error is linear in w and in the query, so its mean squares
over both are exact. The error is a polynomial of degree (3^k - 1)/2 in the sample covariance, so a cubature of the
Wishart law gives the exact mean of its square.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix
from jaxtyping import Array, Float

from flowsim._core.types import Scalar
from flowsim.claims.claim import Comparison, equal
from flowsim.claims.hypotheses import Hypothesis, hypothesis
from flowsim.claims.statements import rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import ScalarLayersLoss
from flowsim.models import MultiLayerAttention, ScalarLayers
from flowsim.moments import Cubature, cubature_size, wishart_cubature
from flowsim.papers.ahn2023.multi_layer import Loss, best_scalars, drawn_scalars
from flowsim.tasks import Prompt

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
    """The loss F(a, b) on S. It is cached because its construction searches for its minimum."""
    return ScalarLayersLoss(d, n, k, residual_stream=True)


def _value(F: ScalarLayersLoss, point: Point) -> Scalar:
    return F(ScalarLayers(point[: F.layers], point[F.layers :]))


def lowest(loss: Loss) -> Point:
    """The best known point of S: the scalars a_0, .., a_{k-1}, b_0, .., b_{k-2}."""
    best = on_the_set(loss).minimizer
    assert best.b is not None, "the loss is one with B"
    return jnp.concatenate([best.a, best.b])


def drawn_points(loss: Loss) -> Points:
    """5 points (a, b) of S.

    The first one is the critical point without B, where grad_A f vanishes. The others are random.
    """
    a = jnp.concatenate([best_scalars(loss)[None], drawn_scalars(loss)[:_DRAWN]])
    b = jax.random.uniform(jax.random.key(5), (a.shape[0], loss.layers - 1)).at[0].set(0.0)
    return jnp.concatenate([a, b], axis=1)


@eqx.filter_jit
def _slopes_on_the_set(F: ScalarLayersLoss, points: Points) -> Points:
    return jax.vmap(lambda point: jax.grad(_value, argnums=1)(F, point))(points)


def scalar_slopes(loss: Loss, points: Points) -> tuple[Float[Array, "n k"], Float[Array, "n rest"]]:
    """The gradients dF/da and dF/db at points of S."""
    both = _slopes_on_the_set(on_the_set(loss), points)
    return both[:, : loss.layers], both[:, loss.layers :]


class Minima(NamedTuple):
    """The points (a, b) of S at which minimisations end, sorted by loss, with the proper minima first.

    **Fields:**

    - values: the loss at each point.
    - points: the scalars a and b of each point.
    - proper: (n,) whether the gradient is zero and the Hessian positive definite.
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
    """The points of S that minimisation reaches from 64 random starts."""
    k = loss.layers
    starts = jax.random.uniform(jax.random.key(7), (_STARTS, 2 * k - 1))
    scale = jnp.concatenate([jnp.full(k, 2.0), jnp.ones(k - 1)])
    return _minima(on_the_set(loss), starts * scale[None, :])


def minima_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """Named numbers of the landscape on S.

    They are the best a_i and b_i, their loss, the least loss without B, and the number of distinct local minima
    that minimisation reaches from 64 starts.
    """
    F, found = on_the_set(loss), local_minima(loss)
    values = jnp.sort(jnp.where(found.proper, found.values, found.values[0]))
    a, b = jnp.split(lowest(loss), [loss.layers])
    named = {f"a_{i}": value for i, value in enumerate(a)} | {f"b_{i}": value for i, value in enumerate(b)}
    distinct = 1 + jnp.sum(jnp.diff(values) > 1e-6 * values[0])
    return named | {"loss": F.minimum, "loss_without_B": loss.minimum, "local_minima": distinct}


MOST_POINTS = 20_000
# A note for claims judged by a cubature. {} stands for the claim that judges their statement on sampled prompts.
NOTE = (
    "The literal layers are differentiated in all matrices, exactly by a cubature. This is feasible for d = 2 and for "
    "two layers with d = 3, n = 2; for d = 5 see {}, judged on sampled prompts."
)

_CHUNK = 512
_CONDITIONING = 1e3  # of sums of positive terms, with cancellation in their factors


class Slopes(NamedTuple):
    """The gradients grad_{A_i} f and grad_{B_i} f over all matrices, at n points of S."""

    A: Float[Array, "n k d d"]
    B: Float[Array, "n rest d d"]


def _size(loss: Loss) -> int:
    return cubature_size(loss.task.dimension, float(loss.task.context_length), 3**loss.layers - 1)


def within_reach(loss: Loss, start: MultiLayerAttention) -> list[Hypothesis]:
    """The hypotheses that k >= 2, and that an exact cubature of the loss over all matrices is small enough.

    The cubature has at most `MOST_POINTS` points.
    """
    size = _size(loss)
    name = f"an exact cubature of at most {MOST_POINTS} sample covariances"
    layers = hypothesis("k >= 2", float(loss.layers), ">=", 2.0)
    return [layers, hypothesis(name, float(size) if size <= MOST_POINTS else math.nan, "<=", float(MOST_POINTS))]


def _sum_of_squares(model: MultiLayerAttention, root: Array, factors: Array, weights: Array) -> Scalar:
    """The mean squared error of a model over w, the query, and the sample covariances of a cubature.

    **Arguments:**

    - root: Sigma^{1/2}.
    - factors, weights: (points, d, m) and (points,). A sample covariance is Sigma^{1/2} T T^T Sigma^{1/2} with T a
      factor.
    """
    d, columns = factors.shape[1:]
    inverse = jnp.linalg.inv(root)

    def one(factor: Float[Array, "d m"]) -> Scalar:
        # The model divides by the number of tokens, so their sample covariance is root T T^T root.
        inputs = (root @ factor).T * columns**0.5
        missed = lambda w, query: model(Prompt(inputs, inputs @ w, query)) - w @ query
        return jnp.sum(jax.vmap(lambda w: jax.vmap(lambda query: missed(w, query))(root))(inverse) ** 2)

    return jnp.sum(weights * jax.vmap(one)(factors))


@eqx.filter_jit
def _slopes(root: Array, chunks: tuple[Array, Array], models: tuple[Array, Array]) -> Slopes:
    value = lambda A, B, *rule: _sum_of_squares(MultiLayerAttention(A, B, symmetric=False), root, *rule)

    def one(weights: tuple[Array, Array]) -> Slopes:
        def add(total: Slopes, rule: tuple[Array, Array]) -> tuple[Slopes, None]:
            return jax.tree.map(jnp.add, total, Slopes(*jax.grad(value, argnums=(0, 1))(*weights, *rule))), None

        return jax.lax.scan(add, Slopes(*jax.tree.map(jnp.zeros_like, weights)), chunks)[0]

    return jax.lax.map(one, models)


def _chunks(cubature: Cubature) -> tuple[Array, Array]:
    """The cubature in chunks of equal size. Points of weight zero fill the last chunk."""
    points = cubature.weights.size
    size = min(points, _CHUNK)
    pad = -points % size
    fill = lambda values: np.concatenate([values, np.zeros((pad, *values.shape[1:]))])
    factors, weights = (jnp.asarray(fill(part).reshape(-1, size, *part.shape[1:])) for part in cubature)
    return factors, weights


def slopes(loss: Loss, points: Points) -> Slopes:
    """The gradients of the loss over all matrices, at points (a, b) of S."""
    S, k = loss.task.covariance, loss.layers
    cubature = wishart_cubature(loss.task.dimension, float(loss.task.context_length), 3**k - 1)
    a, b = points[:, :k], points[:, k:]
    A = a[:, :, None, None] * jnp.linalg.inv(S)[None, None]
    B = b[:, :, None, None] * jnp.eye(S.shape[0])[None, None]
    return _slopes(loss.root, _chunks(cubature), (A, B))


def where_known(compare: Callable[[Loss], Comparison]) -> Callable[[Loss], Comparison]:
    """Wraps a comparison of the gradients of `slopes`, which becomes 0 = 0 where `within_reach` does not hold.

    Elsewhere the comparison gets an allowance for the rounding errors of the cubature.
    """

    @functools.wraps(compare)
    def reached(loss):
        if loss.layers < 2 or _size(loss) > MOST_POINTS:
            return equal(jnp.zeros(1), 0.0, 1.0)
        return rounded(compare(loss), jnp.asarray(_CONDITIONING))

    return reached


def norms_squared(found: Slopes) -> Float[Array, " n"]:
    """The sum in (14), sum_i |grad_{A_i} f|_F^2 + |grad_{B_i} f|_F^2, at each point."""
    return jnp.sum(found.A**2, axis=(1, 2, 3)) + jnp.sum(found.B**2, axis=(1, 2, 3))
