"""Both sides of ahn2023's statements on layers without B: Theorems 3 and 4, their proofs, and Lemma 8.

The matrices carry the sign of `MultiLayerLoss`, A_i = -(the paper's), which changes no statement here. S is the set of
A_i = a_i Sigma^-1. With A'_i = Sigma^{1/2} A_i Sigma^{1/2} the loss does not depend on Sigma, and on S A'_i = a_i I.
"""

import itertools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix
from jaxtyping import Array, Float

from flowsim._core.types import Scalar
from flowsim.claims.claim import Comparison, at_least, at_most, equal
from flowsim.claims.hypotheses import Hypothesis, agrees, hypothesis
from flowsim.claims.statements import joined, rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import AbstractPopulationLoss, MultiLayerLoss
from flowsim.models import MultiLayerAttention

Layers = Float[Array, "k d d"]
Loss = MultiLayerLoss

_DRAWN = 8
_STARTS = 16
_BFGS = optimistix.BFGS(1e-9, 1e-12)
_MAX_STEPS = 1000


# Settings and hypotheses


def layers_with_inverse_weights(loss: AbstractPopulationLoss) -> Hypothesis | None:
    """The setting of Theorem 4 and Lemma 8: layers of their own, and w ~ N(0, Sigma^-1)."""
    fits = isinstance(loss, MultiLayerLoss) and loss.task.weights == "inverse-covariance"
    return None if fits else agrees("layers of their own, w ~ N(0, Sigma^-1)", 0.0, 1.0)


def two_isotropic_layers(loss: Loss, start: MultiLayerAttention) -> list[Hypothesis]:
    """The hypotheses of Theorem 3, where N(0, I) and N(0, Sigma^-1) are the same law of w."""
    off = jnp.max(jnp.abs(loss.task.covariance - jnp.eye(loss.task.dimension)))
    return [agrees("k = 2", float(loss.layers), 2.0), agrees("|Sigma - I| = 0", off, 0.0)]


def several_layers(loss: Loss, start: MultiLayerAttention) -> list[Hypothesis]:
    """Layers to exchange."""
    return [hypothesis("k >= 2", float(loss.layers), ">=", 2.0)]


def anisotropic(loss: Loss, start: MultiLayerAttention) -> list[Hypothesis]:
    """Sigma is no multiple of I."""
    values = jnp.linalg.eigvalsh(loss.task.covariance)
    return [hypothesis("condition of Sigma > 1.000001", values[-1] / values[0], ">", 1 + 1e-6)]


# Coordinates


def basis(loss: Loss) -> Float[Array, "directions d d"]:
    """An orthonormal basis of the matrices A' among which a layer flows."""
    d = loss.task.dimension
    rows, columns = np.triu_indices(d) if loss.symmetric else np.indices((d, d)).reshape(2, -1)
    units = np.zeros((rows.size, d, d))
    units[np.arange(rows.size), rows, columns] = 1.0
    if loss.symmetric:
        units += np.swapaxes(units, 1, 2)
        units /= np.linalg.norm(units, axis=(1, 2), keepdims=True)
    return jnp.asarray(units)


def diagonals(loss: Loss) -> Float[Array, "d d d"]:
    """A basis of the diagonal matrices."""
    return jax.vmap(jnp.diag)(jnp.eye(loss.task.dimension))


def multiples(loss: Loss) -> Float[Array, "1 d d"]:
    """A basis of the multiples of I."""
    return jnp.eye(loss.task.dimension)[None]


def model_of(loss: Loss, primed: Layers) -> MultiLayerAttention:
    """The model with these A'."""
    inverse = jnp.linalg.inv(loss.root)
    return eqx.tree_at(lambda model: model.A, loss.minimizer, inverse @ primed @ inverse)


def best_scalars(loss: Loss) -> Float[Array, " k"]:
    """The best a_i."""
    return loss.energy.centres


def on_the_set(loss: Loss, scalars: Float[Array, " k"]) -> MultiLayerAttention:
    """A_i = a_i Sigma^-1."""
    return model_of(loss, scalars[:, None, None] * jnp.eye(loss.task.dimension)[None])


@eqx.filter_jit
def drawn_scalars(loss: Loss) -> Float[Array, "n k"]:
    """Points a of S: of the size of the best ones and far from them, one with two equal."""
    drawn = jax.random.uniform(jax.random.key(0), (_DRAWN, loss.layers), minval=-0.5, maxval=1.5)
    return drawn.at[0].set(drawn[0, 0]) * jnp.max(best_scalars(loss))


@eqx.filter_jit
def drawn_matrices(loss: Loss, key: int) -> Float[Array, "n k d d"]:
    """Matrices A' of the space of the loss."""
    units = basis(loss)
    drawn = jax.random.normal(jax.random.key(key), (_DRAWN, loss.layers, units.shape[0]))
    return jnp.max(best_scalars(loss)) * jnp.einsum("nkm,mij->nkij", drawn, units)


@eqx.filter_jit
def gradients(loss: Loss, points: Float[Array, "n k"]) -> Float[Array, "n k d d"]:
    """The gradient of the loss over all matrices, at points of S."""
    return jax.lax.map(lambda a: loss.gradient(on_the_set(loss, a)).A, points)


@eqx.filter_jit
def _cancellation(loss: Loss) -> Scalar:
    """How many times larger than the loss the terms are that sum to it, at the worst of the drawn points of S, times
    the number of roundings in one of them, d for each layer.
    """
    digits = jax.lax.map(lambda a: loss.digits(on_the_set(loss, a)), drawn_scalars(loss))
    return loss.layers * loss.task.dimension * jnp.max(10.0 ** (15.66 - digits))


# Minimisation from many starts


@eqx.filter_jit
def minimised(
    loss: Loss, directions: Float[Array, "m d d"], starts: Float[Array, "n k m"]
) -> tuple[Float[Array, " n"], Float[Array, "n k m"]]:
    """The excess that BFGS reaches over A'_i in the span of the directions, and where."""

    def excess(coordinates: Float[Array, "k m"]) -> Scalar:
        return loss.excess(model_of(loss, jnp.einsum("km,mij->kij", coordinates, directions)))

    def one(start: Float[Array, "k m"]) -> tuple[Scalar, Array]:
        found = optimistix.minimise(lambda x, _: excess(x), _BFGS, start, max_steps=_MAX_STEPS, throw=False).value
        return excess(found), found

    return jax.vmap(one)(starts)


def _many_starts(loss: Loss, directions: Float[Array, "m d d"]) -> Float[Array, " n"]:
    """The excess reached from each of many Gaussian starts."""
    starts = jax.random.normal(jax.random.key(0), (_STARTS, loss.layers, directions.shape[0]))
    return minimised(loss, directions, starts)[0]


def _lowest(excess: Float[Array, " n"]) -> Float[Array, " 1"]:
    return jnp.nanmin(excess)[None]


def theorem_3(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The lowest loss from many starts over all matrices of the space, and over diagonal ones."""
    everywhere, diagonal = (_lowest(_many_starts(loss, units)) for units in (basis(loss), diagonals(loss)))
    return rounded(equal(everywhere, diagonal, loss.minimum), _cancellation(loss))


def theorem_3_multiples(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The lowest loss from many starts over all matrices, against that of the best multiples of I."""
    return rounded(equal(_lowest(_many_starts(loss, basis(loss))), 0.0, loss.minimum), _cancellation(loss))


def every_start(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The loss that every one of many starts reaches against that of the best scalars."""
    return rounded(equal(_many_starts(loss, basis(loss)), 0.0, loss.minimum), _cancellation(loss))


def every_start_on_the_set(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The same from starts on S, over S."""
    return rounded(equal(_many_starts(loss, multiples(loss)), 0.0, loss.minimum), _cancellation(loss))


def theorem_3_proof(loss: Loss, trajectory: Trajectory) -> Comparison:
    """f(D_0, diag(A_1)) <= f(D_0, A_1) and f(diag(A_0), D_1) <= f(A_0, D_1), at drawn matrices."""
    kept = jnp.eye(loss.task.dimension)[None, None]
    matrices, comparisons = drawn_matrices(loss, 1), []
    for fixed in (0, 1):
        general = matrices.at[:, fixed].multiply(kept[0])
        values = [_values(loss, primed) for primed in (matrices * kept, general)]
        comparisons.append(at_most(*values))
    return rounded(joined(comparisons), _cancellation(loss))


@eqx.filter_jit
def _values(loss: Loss, matrices: Float[Array, "n k d d"]) -> Float[Array, " n"]:
    return jax.lax.map(lambda primed: loss(model_of(loss, primed)), matrices)


def theorem_3_convex(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The second derivative of f in one matrix along a drawn direction, the other one held, against 0."""
    matrices, directions, comparisons = drawn_matrices(loss, 1), drawn_matrices(loss, 2), []
    for moved in range(loss.layers):
        step = jnp.zeros_like(directions).at[:, moved].set(directions[:, moved])
        ahead, here, behind = (_values(loss, matrices + sign * step) for sign in (1.0, 0.0, -1.0))
        # f is quadratic in each matrix, so that the second difference is the second derivative.
        comparisons.append(at_least(ahead - 2 * here + behind, 0.0, size=ahead + 2 * here + behind))
    return rounded(joined(comparisons), _cancellation(loss))


# Theorem 4


def theorem_4(loss: Loss, trajectory: Trajectory) -> Comparison:
    """sum_i |grad_{A_i} f|_F^2 at the best point of S, relative to that at A = 0."""
    best = best_scalars(loss)
    squares = jnp.sum(gradients(loss, jnp.stack([best, jnp.zeros_like(best)])) ** 2, axis=(1, 2, 3))
    return equal(squares[:1], 0.0, squares[1:])


@eqx.filter_jit
def hessian_on_the_space(loss: Loss, primed: Layers) -> Float[Array, "weights weights"]:
    """The Hessian at A' over the matrices of the space, in the coordinates A' themselves."""
    units = basis(loss)
    slope = jax.grad(lambda x: loss(model_of(loss, primed + jnp.einsum("km,mij->kij", x, units))))
    size = loss.layers * units.shape[0]
    zero = jnp.zeros((loss.layers, units.shape[0]))
    along = lambda unit: jax.jvp(slope, (zero,), (unit.reshape(zero.shape),))[1].reshape(-1)
    return jax.lax.map(along, jnp.eye(size))


def best_primed(loss: Loss) -> Layers:
    """A'_i = a_i I of the best scalars."""
    return best_scalars(loss)[:, None, None] * jnp.eye(loss.task.dimension)[None]


def theorem_4_minimum(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The smallest eigenvalue of the Hessian over all matrices of the space, at the best point of S, against 0."""
    values = jnp.linalg.eigvalsh(hessian_on_the_space(loss, best_primed(loss)))
    return rounded(at_least(values[:1], 0.0, size=values[-1]), values[-1] / jnp.abs(values[0]))


def landscape_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The best scalars, their loss, and the extreme eigenvalues of the Hessian in A' there."""
    values = jnp.linalg.eigvalsh(hessian_on_the_space(loss, best_primed(loss)))
    scalars = {f"a_{i}": value for i, value in enumerate(best_scalars(loss))}
    return scalars | {"loss": loss.minimum, "hessian_smallest": values[0], "hessian_largest": values[-1]}


def gradient_on_the_set(loss: Loss, trajectory: Trajectory) -> Comparison:
    """grad_{A_i} f at points of S against its projection on the multiples of Sigma."""
    slopes, Sigma = gradients(loss, drawn_scalars(loss)), loss.task.covariance
    g = jnp.einsum("nkij,ij->nk", slopes, Sigma) / jnp.sum(Sigma**2)
    off = jnp.linalg.norm(slopes - g[:, :, None, None] * Sigma[None, None], axis=(2, 3)).reshape(-1)
    return rounded(equal(off, 0.0, jnp.linalg.norm(slopes, axis=(2, 3)).reshape(-1)), _cancellation(loss))


def leaves_the_set(loss: Loss, trajectory: Trajectory) -> Comparison:
    """How far the plain gradient at points of S is from S, the multiples of Sigma^-1, against 0."""
    slopes, inverse = gradients(loss, drawn_scalars(loss)), jnp.linalg.inv(loss.task.covariance)
    g = jnp.einsum("nkij,ij->nk", slopes, inverse) / jnp.sum(inverse**2)
    off = jnp.linalg.norm(slopes - g[:, :, None, None] * inverse[None, None], axis=(2, 3)).reshape(-1)
    return rounded(at_least(off, 0.0, size=jnp.linalg.norm(slopes, axis=(2, 3)).reshape(-1)), _cancellation(loss))


def _directional(replace: Callable[[Loss, Array], Array]) -> Callable[[Loss, Trajectory], tuple[Array, Array, Array]]:
    """d/dt f(A + t R~) and d/dt f(A + t R) at points of S for drawn R, and the size of their terms."""

    def sides(loss: Loss, trajectory: Trajectory) -> tuple[Array, Array, Array]:
        slopes, R = gradients(loss, drawn_scalars(loss)), drawn_matrices(loss, 3)
        r = jnp.einsum("ij,nkij->nk", loss.task.covariance, R) / loss.task.dimension
        replaced = r[:, :, None, None] * replace(loss, R)[None, None]
        size = jnp.sum(jnp.linalg.norm(slopes, axis=(2, 3)) * jnp.linalg.norm(R, axis=(2, 3)), axis=1)
        return jnp.sum(slopes * replaced, axis=(1, 2, 3)), jnp.sum(slopes * R, axis=(1, 2, 3)), size

    return sides


def eq_25(loss: Loss, trajectory: Trajectory) -> Comparison:
    """R~_i = r_i I with r_i = tr(Sigma^{1/2} R_i Sigma^{1/2})/d, as printed, along drawn R and along -R."""
    replaced, given, size = _directional(lambda loss, R: jnp.eye(loss.task.dimension))(loss, trajectory)
    both = [at_most(sign * replaced, sign * given, size=size) for sign in (1.0, -1.0)]
    return rounded(joined(both), _cancellation(loss))


def eq_25_corrected(loss: Loss, trajectory: Trajectory) -> Comparison:
    """R~_i = r_i Sigma^-1, with which the sides are equal."""
    replaced, given, size = _directional(lambda loss, R: jnp.linalg.inv(loss.task.covariance))(loss, trajectory)
    return rounded(equal(replaced, given, size), _cancellation(loss))


def _decrease(loss: Loss) -> tuple[Array, Array]:
    """d/dt f along dA_i/dt = -tr(Sigma^{1/2} grad_i Sigma^{1/2}) Sigma^-1, and sum |grad_i|_F^2, at points of S."""
    slopes, Sigma = gradients(loss, drawn_scalars(loss)), loss.task.covariance
    r = jnp.einsum("nkij,ij->nk", slopes, Sigma)
    rate = -jnp.sum(r * jnp.einsum("nkij,ij->nk", slopes, jnp.linalg.inv(Sigma)), axis=1)
    return rate, jnp.sum(slopes**2, axis=(1, 2, 3))


def eq_26(loss: Loss, trajectory: Trajectory) -> Comparison:
    """With r_i = tr(Sigma^{1/2} grad_i Sigma^{1/2}), as printed."""
    rate, squares = _decrease(loss)
    return rounded(at_most(rate, -squares), _cancellation(loss))


def eq_26_corrected(loss: Loss, trajectory: Trajectory) -> Comparison:
    """With r_i = tr(Sigma^{1/2} grad_i Sigma^{1/2})/d, for which the sides are equal."""
    rate, squares = _decrease(loss)
    return rounded(equal(rate / loss.task.dimension, -squares, squares), _cancellation(loss))


# Lemma 8


def _permuted(loss: Loss, matrices: Float[Array, "n k d d"]) -> Float[Array, "n orders"]:
    """The loss in every order of the layers, the given one first."""
    orders = itertools.permutations(range(loss.layers))
    return jnp.stack([_values(loss, matrices[:, jnp.array(order)]) for order in orders], axis=1)


def lemma_8(loss: Loss, trajectory: Trajectory) -> Comparison:
    """f at points of S in every order of the layers against the first order."""
    points = drawn_scalars(loss)[:, :, None, None] * jnp.eye(loss.task.dimension)[None, None]
    values = _permuted(loss, points)
    first, values = jnp.repeat(values[:, 0], values.shape[1]), values.reshape(-1)
    return rounded(equal(values, first, values), _cancellation(loss))


def lemma_8_general(loss: Loss, trajectory: Trajectory) -> Comparison:
    """How much f changes with the order of drawn matrices that are no multiples of Sigma^-1, against 0."""
    values = _permuted(loss, drawn_matrices(loss, 1))
    change = jnp.max(values, axis=1) - jnp.min(values, axis=1)
    return rounded(at_least(change, 0.0, size=jnp.max(values, axis=1)), jnp.max(jnp.max(values, axis=1) / change))
