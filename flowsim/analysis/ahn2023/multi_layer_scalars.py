"""Both sides of ahn2023's statements on layers with B, Theorem 5 and its proof, on the set S.

S is {A_i = a_i Sigma^-1, B_i = b_i I}. There the loss is a function F(a, b) of scalars, an expectation over the mean
spectrum of a Wishart matrix, which Gauss quadrature gives exactly. By rotation invariance the gradient over all
matrices is grad_{A_i} = (dF/da_i) Sigma/d and grad_{B_i} = (dF/db_i) I/d. A has the sign of `MultiLayerAttention`.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix
from jaxtyping import Array, Float

from flowsim.analysis.ahn2023.multi_layer import Loss, best_scalars, drawn_scalars
from flowsim.analysis.base import Comparison, at_least, at_most, equal
from flowsim.analysis.statements import rounded
from flowsim.moments import spectral_quadrature
from flowsim.trajectory import Trajectory

Scalar = Float[Array, ""]
Points = Float[Array, "n k+rest"]

_STARTS = 64
_CONDITIONING = 1e3  # of sums of positive terms whose factors cancel
_BFGS = optimistix.BFGS(1e-10, 1e-12)
_MAX_STEPS = 2000
_POLISHING = 3
_AT_REST = 1e-10


class Spectrum(NamedTuple):
    """E tr f(W) = sum_j weights_j f(points_j), for the f that k layers with scalars make."""

    points: Float[Array, " m"]
    weights: Float[Array, " m"]


def spectrum(loss: Loss) -> Spectrum:
    """The rule of that many layers, whose f has degree 3^k - 1."""
    rule = spectral_quadrature(loss.task.dimension, float(loss.task.context_length), 3**loss.layers - 1)
    return Spectrum(1 + jnp.asarray(rule.offsets), jnp.asarray(rule.weights))


def scalar_loss(rule: Spectrum, a: Float[Array, " k"], b: Float[Array, " rest"]) -> Scalar:
    """F(a, b) = E tr q_k(W)^2: t = x p^2, q <- q (1 - a_i t), p <- p (1 - a_i b_i t)."""
    p, q = jnp.ones_like(rule.points), jnp.ones_like(rule.points)
    for a_i, b_i in zip(a, jnp.append(b, 0.0), strict=True):
        t = rule.points * p**2
        p, q = p * (1 - a_i * b_i * t), q * (1 - a_i * t)
    return jnp.sum(rule.weights * q**2)


def _flat(rule: Spectrum, k: int, point: Float[Array, " n"]) -> Scalar:
    return scalar_loss(rule, point[:k], point[k:])


def drawn_points(loss: Loss) -> Points:
    """Points (a, b) of S: first the critical point without B, with which A stands still."""
    a = jnp.concatenate([best_scalars(loss)[None], drawn_scalars(loss)])
    b = jax.random.uniform(jax.random.key(5), (a.shape[0], loss.layers - 1)).at[0].set(0.0)
    return jnp.concatenate([a, b], axis=1)


@eqx.filter_jit
def _slopes(rule: Spectrum, k: int, points: Points) -> Points:
    return jax.vmap(lambda point: jax.grad(_flat, argnums=2)(rule, k, point))(points)


def slopes(loss: Loss, points: Points) -> tuple[Float[Array, "n k"], Float[Array, "n rest"]]:
    """dF/da and dF/db."""
    both = _slopes(spectrum(loss), loss.layers, points)
    return both[:, : loss.layers], both[:, loss.layers :]


def _squares(loss: Loss, points: Points) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """sum |grad_{A_i}|_F^2 and sum |grad_{B_i}|_F^2 over all matrices."""
    of_a, of_b = slopes(loss, points)
    d, Sigma = loss.task.dimension, loss.task.covariance
    return jnp.sum(of_a**2, axis=1) * jnp.sum(Sigma**2) / d**2, jnp.sum(of_b**2, axis=1) / d


class Minima(NamedTuple):
    """Local minima of F from many starts, the lowest first: their values, where they are, and whether they are at rest
    with a positive definite Hessian.
    """

    values: Float[Array, " n"]
    points: Points
    proper: Array


@eqx.filter_jit
def _minima(rule: Spectrum, k: int, starts: Points) -> Minima:
    def one(start: Array) -> tuple[Scalar, Array, Array]:
        function = lambda point, _: _flat(rule, k, point)
        point = optimistix.minimise(function, _BFGS, start, max_steps=_MAX_STEPS, throw=False).value
        slope, hessian = jax.grad(_flat, argnums=2), jax.hessian(_flat, argnums=2)
        for _ in range(_POLISHING):
            point = point - jnp.linalg.solve(hessian(rule, k, point), slope(rule, k, point))
        values = jnp.linalg.eigvalsh(hessian(rule, k, point))
        still = jnp.linalg.norm(slope(rule, k, point)) <= _AT_REST * values[-1] * jnp.linalg.norm(point)
        proper = (values[0] > _AT_REST * values[-1]) & still
        return _flat(rule, k, point), point, proper

    values, points, proper = jax.vmap(one)(starts)
    order = jnp.argsort(jnp.where(proper, values, jnp.inf))
    return Minima(values[order], points[order], proper[order])


def local_minima(loss: Loss) -> Minima:
    """What 64 drawn starts lead to."""
    k = loss.layers
    starts = jax.random.uniform(jax.random.key(7), (_STARTS, 2 * k - 1))
    scale = jnp.concatenate([jnp.full(k, 2.0), jnp.ones(k - 1)])
    return _minima(spectrum(loss), k, starts * scale[None, :])


def theorem_5(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The sum of (14) over all matrices at the lowest local minimum on S, relative to that at zero weights."""
    lowest = local_minima(loss).points[0]
    squares = sum(_squares(loss, jnp.stack([lowest, jnp.zeros_like(lowest)])))
    return rounded(equal(squares[:1], 0.0, squares[1:]), jnp.asarray(_CONDITIONING))


def other_minima(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The highest local minimum found on S against the lowest, where it is one for sure."""
    found = local_minima(loss)
    highest = jnp.max(jnp.where(found.proper, found.values, found.values[0]))
    return at_least(highest[None], found.values[0], size=found.values[0])


def minima_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The lowest local minimum on S, its loss, that without B, and how many values the starts lead to."""
    found = local_minima(loss)
    values = jnp.sort(jnp.where(found.proper, found.values, found.values[0]))
    a, b = found.points[0, : loss.layers], found.points[0, loss.layers :]
    named = {f"a_{i}": value for i, value in enumerate(a)} | {f"b_{i}": value for i, value in enumerate(b)}
    distinct = 1 + jnp.sum(jnp.diff(values) > 1e-6 * values[0])
    return named | {"loss": found.values[0], "loss_without_B": loss.minimum, "local_minima": distinct}


def _decrease(loss: Loss, step_of_B: Scalar) -> tuple[Array, Array]:
    """d/dt F along dA_i/dt = -tr(Sigma^{1/2} grad_{A_i} Sigma^{1/2}) Sigma^-1 and dB_i/dt = -tr(grad_{B_i}) C, where
    <I, C> is ``step_of_B``, and the sum of (14).
    """
    points = drawn_points(loss)
    of_a, of_b = slopes(loss, points)
    d, Sigma = loss.task.dimension, loss.task.covariance
    # tr(Sigma grad_A) = (dF/da) tr(Sigma^2)/d and <grad_A, Sigma^-1> = dF/da.
    along_a = jnp.sum(of_a**2, axis=1) * jnp.sum(Sigma**2) / d
    return -along_a - jnp.sum(of_b**2, axis=1) * step_of_B / d, sum(_squares(loss, points))


def eq_35(loss: Loss, trajectory: Trajectory) -> Comparison:
    """With the printed flow, dB_i/dt = -s_i Sigma^-1."""
    rate, squares = _decrease(loss, jnp.trace(jnp.linalg.inv(loss.task.covariance)))
    return rounded(at_most(rate, -squares), jnp.asarray(_CONDITIONING))


def eq_35_corrected(loss: Loss, trajectory: Trajectory) -> Comparison:
    """With dB_i/dt = -s_i I and 1/d in r_i and s_i, for which the sides are equal."""
    d = float(loss.task.dimension)
    rate, squares = _decrease(loss, jnp.asarray(d))
    return rounded(equal(rate / d, -squares, squares), jnp.asarray(_CONDITIONING))


def _off_multiples(matrix: Float[Array, "d d"]) -> Scalar:
    """Dist(M, I)."""
    d = matrix.shape[0]
    return jnp.linalg.norm(matrix - jnp.trace(matrix) / d * jnp.eye(d)) / jnp.linalg.norm(matrix)


def eq_35_in_the_set(loss: Loss, trajectory: Trajectory) -> Comparison:
    """How far dB_i/dt = -s_i Sigma^-1 is from the multiples of I, relative to its size."""
    distance = _off_multiples(jnp.linalg.inv(loss.task.covariance))[None]
    return rounded(equal(distance, 0.0, 1.0), jnp.linalg.cond(loss.task.covariance))


def _perturbed(loss: Loss, of_A: bool, replacement: Array) -> tuple[Array, Array, Array]:
    """The two derivatives of (36) or (37) at points of S for drawn R_j or S_j, every j, and the size of their terms."""
    of_a, of_b = slopes(loss, drawn_points(loss))
    d, slope = loss.task.dimension, of_a if of_A else of_b
    gradient = (loss.task.covariance if of_A else jnp.eye(d)) / d
    drawn = jax.random.normal(jax.random.key(11), (*slope.shape, d, d))
    trace = jnp.einsum("ij,njk,ki->n", gradient * d, drawn.reshape(-1, d, d), jnp.eye(d)) / d
    replaced = jnp.sum(gradient * replacement) * trace
    given = jnp.einsum("ij,nij->n", gradient, drawn.reshape(-1, d, d))
    slope = slope.reshape(-1)
    size = jnp.abs(slope) * jnp.linalg.norm(gradient) * jnp.linalg.norm(drawn.reshape(-1, d * d), axis=1)
    return slope * replaced, slope * given, size


def eq_36(loss: Loss, trajectory: Trajectory) -> Comparison:
    """R~_j = r_j Sigma^-1, with which the sides are equal."""
    replaced, given, size = _perturbed(loss, True, jnp.linalg.inv(loss.task.covariance))
    return rounded(equal(replaced, given, size), jnp.linalg.cond(loss.task.covariance))


def eq_37(loss: Loss, trajectory: Trajectory) -> Comparison:
    """S~_j = s_j Sigma^-1, as printed there."""
    replaced, given, size = _perturbed(loss, False, jnp.linalg.inv(loss.task.covariance))
    return at_most(replaced, given, size=size, promised=size > 0)


def eq_37_corrected(loss: Loss, trajectory: Trajectory) -> Comparison:
    """S~_j = s_j I, as after (34), with which the sides are equal."""
    return rounded(equal(*_perturbed(loss, False, jnp.eye(loss.task.dimension))), jnp.asarray(_CONDITIONING))


# Figures 3 and 4, on S


def loss_tends_to_zero(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The lowest loss found on S against 0, relative to that of predicting 0."""
    return equal(local_minima(loss).values[:1], 0.0, float(loss.task.dimension))


def increasing(loss: Loss, trajectory: Trajectory) -> Comparison:
    """a_i < a_{i+1} at the lowest local minimum on S."""
    a = local_minima(loss).points[0, : loss.layers]
    return rounded(at_least(a[1:], a[:-1]), jnp.asarray(_CONDITIONING))


def increasing_at_every_minimum(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The same at every local minimum found."""
    found = local_minima(loss)
    a = found.points[:, : loss.layers]
    promised = jnp.repeat(found.proper, loss.layers - 1)
    return rounded(at_least(a[:, 1:].reshape(-1), a[:, :-1].reshape(-1), promised=promised), jnp.asarray(_CONDITIONING))
