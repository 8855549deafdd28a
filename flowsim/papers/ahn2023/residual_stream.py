"""Both sides of ahn2023's Theorem 5 and its proof: the gradients over all matrices of layers with B, at points of S.

S is {A_i = a_i Sigma^-1, B_i = b_i I}. The literal layers are differentiated in every entry of every matrix. What they
miss is linear in w and in the query, so that both are averaged exactly, and a polynomial of degree (3^k - 1)/2 in the
sample covariance, over which a cubature of Wishart's law is exact. Nothing here knows the loss F(a, b) on S.
"""

import functools
import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim._core.types import Scalar
from flowsim.claims.claim import Comparison, at_most, equal
from flowsim.claims.hypotheses import Hypothesis, hypothesis
from flowsim.claims.statements import joined, rounded
from flowsim.models import MultiLayerAttention
from flowsim.moments import Cubature, cubature_size, wishart_cubature
from flowsim.papers.ahn2023.multi_layer import Loss
from flowsim.papers.ahn2023.multi_layer_scalars import Points, drawn_points, lowest, scalar_slopes
from flowsim.tasks import Prompt

MOST_POINTS = 20_000
_CHUNK = 512
_CONDITIONING = 1e3  # of sums of positive terms whose factors cancel


class Slopes(NamedTuple):
    """grad_{A_i} f and grad_{B_i} f over all matrices, at some points of S."""

    A: Float[Array, "n k d d"]
    B: Float[Array, "n rest d d"]


def _size(loss: Loss) -> int:
    return cubature_size(loss.task.dimension, float(loss.task.context_length), 3**loss.layers - 1)


def within_reach(loss: Loss, start: MultiLayerAttention) -> list[Hypothesis]:
    """Layers with B, k >= 2, whose loss over all matrices a cubature of few enough points gives."""
    size = _size(loss)
    name = f"an exact cubature of at most {MOST_POINTS} sample covariances"
    layers = hypothesis("k >= 2", float(loss.layers), ">=", 2.0)
    return [layers, hypothesis(name, float(size) if size <= MOST_POINTS else math.nan, "<=", float(MOST_POINTS))]


def _sum_of_squares(model: MultiLayerAttention, root: Array, factors: Array, weights: Array) -> Scalar:
    """The weighted sum over sample covariances T T^T of what the literal layers miss, squared and averaged over w and
    the query.
    """
    d, columns = factors.shape[1:]
    inverse = jnp.linalg.inv(root)

    def one(factor: Float[Array, "d m"]) -> Scalar:
        # Tokens with the covariance root T T^T root, as the model divides by how many there are.
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
    """The cubature in parts of one size, the last filled up with points of weight zero."""
    points = cubature.weights.size
    size = min(points, _CHUNK)
    pad = -points % size
    fill = lambda values: np.concatenate([values, np.zeros((pad, *values.shape[1:]))])
    factors, weights = (jnp.asarray(fill(part).reshape(-1, size, *part.shape[1:])) for part in cubature)
    return factors, weights


def slopes(loss: Loss, points: Points) -> Slopes:
    """The gradients over all matrices at points (a, b) of S."""
    S, k = loss.task.covariance, loss.layers
    cubature = wishart_cubature(loss.task.dimension, float(loss.task.context_length), 3**k - 1)
    a, b = points[:, :k], points[:, k:]
    A = a[:, :, None, None] * jnp.linalg.inv(S)[None, None]
    B = b[:, :, None, None] * jnp.eye(S.shape[0])[None, None]
    return _slopes(loss.root, _chunks(cubature), (A, B))


def _where_known(compare):
    """The comparison where the gradients are within reach, and nothing elsewhere."""

    @functools.wraps(compare)
    def reached(loss, trajectory):
        if loss.layers < 2 or _size(loss) > MOST_POINTS:
            return equal(jnp.zeros(1), 0.0, 1.0)
        return rounded(compare(loss), jnp.asarray(_CONDITIONING))

    return reached


def _squares(found: Slopes) -> Float[Array, " n"]:
    """The sum of (14)."""
    return jnp.sum(found.A**2, axis=(1, 2, 3)) + jnp.sum(found.B**2, axis=(1, 2, 3))


@_where_known
def theorem_5(loss: Loss) -> Comparison:
    """The sum of (14) over all matrices at the best scalars, relative to that at zero weights."""
    best = lowest(loss)
    squares = _squares(slopes(loss, jnp.stack([best, jnp.zeros_like(best)])))
    return equal(squares[:1], 0.0, squares[1:])


@_where_known
def gradient_on_the_set(loss: Loss) -> Comparison:
    """grad_{A_i} f and grad_{B_i} f against (dF/da_i) Sigma/d and (dF/db_i) I/d."""
    points, d = drawn_points(loss), loss.task.dimension
    of_a, of_b = scalar_slopes(loss, points)
    found, comparisons = slopes(loss, points), []
    for matrices, slope, shape in ((found.A, of_a, loss.task.covariance), (found.B, of_b, jnp.eye(d))):
        expected = slope[:, :, None, None] * shape[None, None] / d
        off = jnp.linalg.norm(matrices - expected, axis=(2, 3)).reshape(-1)
        # At the first point the A_i are at rest, so that gradients elsewhere tell the size.
        comparisons.append(equal(off, 0.0, jnp.max(jnp.linalg.norm(matrices, axis=(2, 3)))))
    return joined(comparisons)


def _traces(loss: Loss, found: Slopes) -> tuple[Float[Array, "n k"], Float[Array, "n rest"]]:
    """tr(Sigma^{1/2} grad_{A_i} Sigma^{1/2}) and tr(Sigma^{-1/2} grad_{B_i} Sigma^{1/2})."""
    return jnp.einsum("nkij,ij->nk", found.A, loss.task.covariance), jnp.einsum("nkii->nk", found.B)


def _decrease(loss: Loss, step_of_B: Float[Array, "d d"]) -> tuple[Array, Array]:
    """d/dt f along dA_i/dt = -tr(Sigma^{1/2} grad_{A_i} Sigma^{1/2}) Sigma^-1 and dB_i/dt = -tr(grad_{B_i}) step_of_B,
    and the sum of (14).
    """
    found = slopes(loss, drawn_points(loss))
    r, s = _traces(loss, found)
    along_A = jnp.sum(r * jnp.einsum("nkij,ij->nk", found.A, jnp.linalg.inv(loss.task.covariance)), axis=1)
    along_B = jnp.sum(s * jnp.einsum("nkij,ij->nk", found.B, step_of_B), axis=1)
    return -along_A - along_B, _squares(found)


@_where_known
def eq_35(loss: Loss) -> Comparison:
    """With the printed flow, dB_i/dt = -s_i Sigma^-1."""
    rate, squares = _decrease(loss, jnp.linalg.inv(loss.task.covariance))
    return at_most(rate, -squares)


@_where_known
def eq_35_corrected(loss: Loss) -> Comparison:
    """With dB_i/dt = -s_i I and 1/d in r_i and s_i, for which the sides are equal."""
    rate, squares = _decrease(loss, jnp.eye(loss.task.dimension))
    return equal(rate / loss.task.dimension, -squares, squares)


@_where_known
def eq_35_in_the_set(loss: Loss) -> Comparison:
    """How far dB_i/dt = -s_i Sigma^-1 is from the multiples of I, relative to its size."""
    d = loss.task.dimension
    _, s = _traces(loss, slopes(loss, drawn_points(loss)))
    speed = -s.reshape(-1, 1, 1) * jnp.linalg.inv(loss.task.covariance)[None]
    off = speed - jnp.trace(speed, axis1=1, axis2=2)[:, None, None] / d * jnp.eye(d)[None]
    return equal(jnp.linalg.norm(off, axis=(1, 2)), 0.0, jnp.linalg.norm(speed, axis=(1, 2)))


class _Sides(NamedTuple):
    """d/dt f along R~_j and along R_j for drawn R_j at drawn points, by layer, and the size of their terms."""

    replaced: Float[Array, "n layers"]
    given: Float[Array, "n layers"]
    size: Float[Array, "n layers"]


def _along(found: Float[Array, "n layers d d"], left: Array, right: Array, replacement: Array, key: int) -> _Sides:
    """The derivatives along R~_j = tr(left R_j right)/d replacement and R_j, for drawn R_j."""
    d = found.shape[-1]
    drawn = jax.random.normal(jax.random.key(key), found.shape)
    trace = jnp.einsum("ij,nkjl,li->nk", left, drawn, right) / d
    given = jnp.einsum("nkij,nkij->nk", found, drawn)
    size = jnp.linalg.norm(found, axis=(2, 3)) * jnp.linalg.norm(drawn, axis=(2, 3))
    return _Sides(jnp.einsum("nkij,ij->nk", found, replacement) * trace, given, size)


def _both_along(loss: Loss, of_A: Array, of_B: Array) -> tuple[_Sides, _Sides]:
    """R~_j = r_j of_A and S~_j = s_j of_B, with r_j and s_j as after (34), at points of S that are not critical."""
    found, root = slopes(loss, drawn_points(loss)[1:]), loss.root
    inverse = jnp.linalg.inv(root)
    return _along(found.A, root, root, of_A, 11), _along(found.B, inverse, root, of_B, 12)


def _no_more(sides: _Sides) -> Comparison:
    """The inequality along the drawn directions and along their opposites."""
    both = (jnp.concatenate([side.reshape(-1), -side.reshape(-1)]) for side in (sides.replaced, sides.given))
    return at_most(*both, size=jnp.tile(sides.size.reshape(-1), 2))


def _the_same(sides: _Sides) -> Comparison:
    return equal(*(side.reshape(-1) for side in sides))


@_where_known
def eq_34(loss: Loss) -> Comparison:
    """R~_i = r_i I and S~_i = s_i I, as printed, all layers together."""
    eye = jnp.eye(loss.task.dimension)
    both = jax.tree.map(lambda a, b: jnp.sum(a, axis=1) + jnp.sum(b, axis=1), *_both_along(loss, eye, eye))
    return _no_more(both)


@_where_known
def eq_34_corrected(loss: Loss) -> Comparison:
    """R~_i = r_i Sigma^-1 and S~_i = s_i I, with which the sides are equal."""
    inverse, eye = jnp.linalg.inv(loss.task.covariance), jnp.eye(loss.task.dimension)
    both = jax.tree.map(lambda a, b: jnp.sum(a, axis=1) + jnp.sum(b, axis=1), *_both_along(loss, inverse, eye))
    return _the_same(both)


@_where_known
def eq_36(loss: Loss) -> Comparison:
    """R~_j = r_j Sigma^-1: the inequality for R_j and for -R_j, which is that the sides are equal."""
    inverse = jnp.linalg.inv(loss.task.covariance)
    return _the_same(_both_along(loss, inverse, inverse)[0])


@_where_known
def eq_37(loss: Loss) -> Comparison:
    """S~_j = s_j Sigma^-1, as printed there."""
    inverse = jnp.linalg.inv(loss.task.covariance)
    return _no_more(_both_along(loss, inverse, inverse)[1])


@_where_known
def eq_37_corrected(loss: Loss) -> Comparison:
    """S~_j = s_j I, as after (34): the inequality for S_j and for -S_j, which is that the sides are equal."""
    eye = jnp.eye(loss.task.dimension)
    return _the_same(_both_along(loss, eye, eye)[1])
