"""ahn2023's layers without B: the variables A', random points and matrices at which to evaluate, and minimisation.

The matrices are A_i = -(the paper's), as in `MultiLayerLoss`. No statement here depends on this sign. S is the set
of A_i = a_i Sigma^-1. Let A'_i = Sigma^{1/2} A_i Sigma^{1/2}. As a function of the A'_i the loss does not depend on
Sigma. On S, A'_i = a_i I.
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
    """An orthonormal basis of the space in which the A' of one layer lie.

    The space contains the symmetric matrices if ``loss.symmetric``, and all matrices otherwise.
    """
    d = loss.task.dimension
    rows, columns = np.triu_indices(d) if loss.symmetric else np.indices((d, d)).reshape(2, -1)
    units = np.zeros((rows.size, d, d))
    units[np.arange(rows.size), rows, columns] = 1.0
    if loss.symmetric:
        units += np.swapaxes(units, 1, 2)
        units /= np.linalg.norm(units, axis=(1, 2), keepdims=True)
    return jnp.asarray(units)


def model_of(loss: Loss, primed: Layers) -> MultiLayerAttention:
    """The model whose A'_i = Sigma^{1/2} A_i Sigma^{1/2} are the matrices in ``primed``."""
    inverse = jnp.linalg.inv(loss.root)
    return eqx.tree_at(lambda model: model.A, loss.minimizer, inverse @ primed @ inverse)


def best_scalars(loss: Loss) -> Float[Array, " k"]:
    """The a_i of the best point of S."""
    return loss.energy.centres


def best_primed(loss: Loss) -> Layers:
    """The matrices A'_i = a_i I at the best point of S."""
    return best_scalars(loss)[:, None, None] * jnp.eye(loss.task.dimension)[None]


def on_the_set(loss: Loss, scalars: Float[Array, " k"]) -> MultiLayerAttention:
    """The model with A_i = a_i Sigma^-1 for the a_i in ``scalars``."""
    return model_of(loss, scalars[:, None, None] * jnp.eye(loss.task.dimension)[None])


@eqx.filter_jit
def drawn_scalars(loss: Loss) -> Float[Array, "n k"]:
    """8 random points of S: scalars a_i, uniform from -0.5 to 1.5 times the largest best a_i.

    At the first point all a_i are equal.
    """
    drawn = jax.random.uniform(jax.random.key(0), (_DRAWN, loss.layers), minval=-0.5, maxval=1.5)
    return drawn.at[0].set(drawn[0, 0]) * jnp.max(best_scalars(loss))


@eqx.filter_jit
def drawn_matrices(loss: Loss, key: int) -> Float[Array, "n k d d"]:
    """8 random sets of k matrices A' in the span of `basis`. The largest best a_i sets their size."""
    units = basis(loss)
    drawn = jax.random.normal(jax.random.key(key), (_DRAWN, loss.layers, units.shape[0]))
    return jnp.max(best_scalars(loss)) * jnp.einsum("nkm,mij->nkij", drawn, units)


@eqx.filter_jit
def losses_at(loss: Loss, matrices: Float[Array, "n k d d"]) -> Float[Array, " n"]:
    """The loss at each of n points, where ``matrices`` has the k matrices A' of each point."""
    return jax.lax.map(lambda primed: loss(model_of(loss, primed)), matrices)


@eqx.filter_jit
def gradients(loss: Loss, points: Float[Array, "n k"]) -> Float[Array, "n k d d"]:
    """The gradient of the loss over all matrices A_i, at n points of S; ``points`` has their a_i."""
    return jax.lax.map(lambda a: loss.gradient(on_the_set(loss, a)).A, points)


@eqx.filter_jit
def hessian_on_the_space(loss: Loss, primed: Layers) -> Float[Array, "weights weights"]:
    """The Hessian of the loss at A' = ``primed``, in the coordinates of each A'_i in `basis`."""
    units = basis(loss)
    slope = jax.grad(lambda x: loss(model_of(loss, primed + jnp.einsum("km,mij->kij", x, units))))
    size = loss.layers * units.shape[0]
    zero = jnp.zeros((loss.layers, units.shape[0]))
    along = lambda unit: jax.jvp(slope, (zero,), (unit.reshape(zero.shape),))[1].reshape(-1)
    return jax.lax.map(along, jnp.eye(size))


@eqx.filter_jit
def cancellation(loss: Loss) -> Scalar:
    """The largest factor by which cancellation magnifies rounding errors of the loss, over `drawn_scalars`.

    The loss is a sum of terms larger than itself, each rounded k d times.
    """
    digits = jax.lax.map(lambda a: loss.digits(on_the_set(loss, a)), drawn_scalars(loss))
    return loss.layers * loss.task.dimension * jnp.max(10.0 ** (15.66 - digits))


@eqx.filter_jit
def minimised(
    loss: Loss, directions: Float[Array, "m d d"], starts: Float[Array, "n k m"]
) -> tuple[Float[Array, " n"], Float[Array, "n k m"]]:
    """Minimises the loss by BFGS from n starts, with each A'_i in the span of ``directions``.

    **Arguments:**

    - directions: m matrices.
    - starts: the coordinates of each A'_i in ``directions``.

    **Returns:** the excess loss at the end of each search, and the coordinates there.
    """

    def excess(coordinates: Float[Array, "k m"]) -> Scalar:
        return loss.excess(model_of(loss, jnp.einsum("km,mij->kij", coordinates, directions)))

    def one(start: Float[Array, "k m"]) -> tuple[Scalar, Array]:
        found = optimistix.minimise(lambda x, _: excess(x), _BFGS, start, max_steps=_MAX_STEPS, throw=False).value
        return excess(found), found

    return jax.vmap(one)(starts)


def many_starts(loss: Loss, directions: Float[Array, "m d d"]) -> Float[Array, " n"]:
    """The excess loss that BFGS reaches from each of 16 Gaussian starts, with the A'_i in the span of
    ``directions``.
    """
    starts = jax.random.normal(jax.random.key(0), (_STARTS, loss.layers, directions.shape[0]))
    return minimised(loss, directions, starts)[0]


def landscape_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """Named numbers of the best point of S: the a_i, the loss, and extreme eigenvalues of the Hessian.

    The Hessian is taken with respect to A'.
    """
    values = jnp.linalg.eigvalsh(hessian_on_the_space(loss, best_primed(loss)))
    scalars = {f"a_{i}": value for i, value in enumerate(best_scalars(loss))}
    return scalars | {"loss": loss.minimum, "hessian_smallest": values[0], "hessian_largest": values[-1]}
