"""ahn2023's layers without B: coordinates, points and matrices to evaluate them at, and minimisation.

The matrices have the sign of `MultiLayerLoss`, A_i = -(the paper's). This changes no statement here. S is the set of
A_i = a_i Sigma^-1. With A'_i = Sigma^{1/2} A_i Sigma^{1/2} as variables the loss does not depend on Sigma, and A'_i =
a_i I on S.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix
from jaxtyping import Array, Float

from flowsim._core.types import Scalar
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import MultiLayerLoss
from flowsim.models import MultiLayerAttention

Layers = Float[Array, "k d d"]
Loss = MultiLayerLoss

_DRAWN = 8
_STARTS = 16
_BFGS = optimistix.BFGS(1e-9, 1e-12)
_MAX_STEPS = 1000


def basis(loss: Loss) -> Float[Array, "directions d d"]:
    """An orthonormal basis of the matrices A' of one layer: of the symmetric matrices, or of all."""
    d = loss.task.dimension
    rows, columns = np.triu_indices(d) if loss.symmetric else np.indices((d, d)).reshape(2, -1)
    units = np.zeros((rows.size, d, d))
    units[np.arange(rows.size), rows, columns] = 1.0
    if loss.symmetric:
        units += np.swapaxes(units, 1, 2)
        units /= np.linalg.norm(units, axis=(1, 2), keepdims=True)
    return jnp.asarray(units)


def model_of(loss: Loss, primed: Layers) -> MultiLayerAttention:
    """The model whose matrices A' are ``primed``."""
    inverse = jnp.linalg.inv(loss.root)
    return eqx.tree_at(lambda model: model.A, loss.minimizer, inverse @ primed @ inverse)


def best_scalars(loss: Loss) -> Float[Array, " k"]:
    """The a_i of the best point of S."""
    return loss.energy.centres


def best_primed(loss: Loss) -> Layers:
    """The matrices A'_i = a_i I of the best scalars."""
    return best_scalars(loss)[:, None, None] * jnp.eye(loss.task.dimension)[None]


def on_the_set(loss: Loss, scalars: Float[Array, " k"]) -> MultiLayerAttention:
    """The model with A_i = a_i Sigma^-1."""
    return model_of(loss, scalars[:, None, None] * jnp.eye(loss.task.dimension)[None])


@eqx.filter_jit
def drawn_scalars(loss: Loss) -> Float[Array, "n k"]:
    """Random a_i on S, as large as the best ones but far from them. At the first point all a_i are equal."""
    drawn = jax.random.uniform(jax.random.key(0), (_DRAWN, loss.layers), minval=-0.5, maxval=1.5)
    return drawn.at[0].set(drawn[0, 0]) * jnp.max(best_scalars(loss))


@eqx.filter_jit
def drawn_matrices(loss: Loss, key: int) -> Float[Array, "n k d d"]:
    """Random matrices A' in the space of the loss."""
    units = basis(loss)
    drawn = jax.random.normal(jax.random.key(key), (_DRAWN, loss.layers, units.shape[0]))
    return jnp.max(best_scalars(loss)) * jnp.einsum("nkm,mij->nkij", drawn, units)


@eqx.filter_jit
def losses_at(loss: Loss, matrices: Float[Array, "n k d d"]) -> Float[Array, " n"]:
    """The loss at each of the n given A'."""
    return jax.lax.map(lambda primed: loss(model_of(loss, primed)), matrices)


@eqx.filter_jit
def gradients(loss: Loss, points: Float[Array, "n k"]) -> Float[Array, "n k d d"]:
    """The gradient of the loss over all matrices, at points of S."""
    return jax.lax.map(lambda a: loss.gradient(on_the_set(loss, a)).A, points)


@eqx.filter_jit
def hessian_on_the_space(loss: Loss, primed: Layers) -> Float[Array, "weights weights"]:
    """The Hessian of the loss with respect to A', over the matrices of the space."""
    units = basis(loss)
    slope = jax.grad(lambda x: loss(model_of(loss, primed + jnp.einsum("km,mij->kij", x, units))))
    size = loss.layers * units.shape[0]
    zero = jnp.zeros((loss.layers, units.shape[0]))
    along = lambda unit: jax.jvp(slope, (zero,), (unit.reshape(zero.shape),))[1].reshape(-1)
    return jax.lax.map(along, jnp.eye(size))


@eqx.filter_jit
def cancellation(loss: Loss) -> Scalar:
    """The factor by which rounding errors of the loss exceed its last digit, at the worst random point of S.

    The loss is a sum of terms larger than itself, each rounded k d times.
    """
    digits = jax.lax.map(lambda a: loss.digits(on_the_set(loss, a)), drawn_scalars(loss))
    return loss.layers * loss.task.dimension * jnp.max(10.0 ** (15.66 - digits))


@eqx.filter_jit
def minimised(
    loss: Loss, directions: Float[Array, "m d d"], starts: Float[Array, "n k m"]
) -> tuple[Float[Array, " n"], Float[Array, "n k m"]]:
    """The excess that BFGS reaches from each start, and the end points. Each A'_i is in the span of the directions."""

    def excess(coordinates: Float[Array, "k m"]) -> Scalar:
        return loss.excess(model_of(loss, jnp.einsum("km,mij->kij", coordinates, directions)))

    def one(start: Float[Array, "k m"]) -> tuple[Scalar, Array]:
        found = optimistix.minimise(lambda x, _: excess(x), _BFGS, start, max_steps=_MAX_STEPS, throw=False).value
        return excess(found), found

    return jax.vmap(one)(starts)


def many_starts(loss: Loss, directions: Float[Array, "m d d"]) -> Float[Array, " n"]:
    """The excess reached from each of many Gaussian starts."""
    starts = jax.random.normal(jax.random.key(0), (_STARTS, loss.layers, directions.shape[0]))
    return minimised(loss, directions, starts)[0]


def landscape_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The best scalars, their loss, and the extreme eigenvalues there of the Hessian with respect to A'."""
    values = jnp.linalg.eigvalsh(hessian_on_the_space(loss, best_primed(loss)))
    scalars = {f"a_{i}": value for i, value in enumerate(best_scalars(loss))}
    return scalars | {"loss": loss.minimum, "hessian_smallest": values[0], "hessian_largest": values[-1]}
