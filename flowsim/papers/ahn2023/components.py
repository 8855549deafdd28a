"""The components f_j(X) = E[(<C, X> + w[j])^2] of ahn2023's appendix A: their gradients, their minima and their sum."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim._core.types import Scalar, Vector
from flowsim.claims.claim import Comparison, at_most, equal
from flowsim.losses import MaskedAttentionLoss
from flowsim.papers.ahn2023.single_layer import (
    Task,
    component,
    form_times_token_covariance,
    of_sums,
    on_drawn,
    weight_times_token_covariance,
)

_SURELY_ZERO, _POSSIBLY_ZERO = 1e-13, 1e-10  # relative to the largest eigenvalue


def unit(d: int) -> Float[Array, "d rows rows"]:
    """The matrices E_{d+1,j}, stacked over j."""
    return jnp.zeros((d, d + 1, d + 1)).at[jnp.arange(d), d, jnp.arange(d)].set(1.0)


def _pair(d: int) -> Float[Array, "d rows rows"]:
    """The matrices E_{d+1,j} + E_{j,d+1}, stacked over j."""
    one = unit(d)
    return one + jnp.swapaxes(one, 1, 2)


def _matrices_agree(task: Task, left: Array, right: Array) -> Comparison:
    norms = lambda matrices: jnp.sqrt(jnp.sum(matrices**2, axis=(1, 2)))
    return of_sums(task, equal(norms(left - right), 0.0, norms(right)))


def stationary(task: Task, X: Float[Array, "d rows rows"]) -> Comparison:
    """The gradient of each f_j at X_j, 2 E[<C, X_j> C] + 2 E[w_j C], against zero, relative to its second term."""
    quadratic = jax.vmap(lambda matrix: form_times_token_covariance(task, matrix))(X)
    linear = jax.vmap(lambda s: weight_times_token_covariance(task, s))(jnp.eye(task.dimension))
    return _matrices_agree(task, -quadratic, linear)


def linear_term(task: Task, factors: Vector) -> Comparison:
    """E[w_j C] for each j against factors_j (E_{d+1,j} + E_{j,d+1})."""
    linear = jax.vmap(lambda s: weight_times_token_covariance(task, s))(jnp.eye(task.dimension))
    return _matrices_agree(task, linear, factors[:, None, None] * _pair(task.dimension))


def quadratic_term(task: Task, factors: Vector) -> Comparison:
    """E[<C, E_{d+1,j}> C] for each j against factors_j (E_{d+1,j} + E_{j,d+1})."""
    quadratic = jax.vmap(lambda X: form_times_token_covariance(task, X))(unit(task.dimension))
    return _matrices_agree(task, quadratic, factors[:, None, None] * _pair(task.dimension))


def sum_of_components(task: Task, factors: Vector) -> Comparison:
    """f(b, A) against sum_j factors_j f_j(b a_j^T), at drawn weights."""
    terms = lambda model: jax.vmap(lambda s: component(task, jnp.outer(model.b, model.A @ s), s))(jnp.eye(factors.size))
    return on_drawn(task, lambda model: factors @ terms(model), MaskedAttentionLoss(task))


def _flat_directions(task: Task) -> tuple[Scalar, Scalar]:
    """The number of directions X with E<C, X>^2 = 0, and the number where rounding leaves it open."""
    rows = task.dimension + 1
    basis = jnp.eye(rows**2).reshape(-1, rows, rows)
    form = jax.vmap(lambda X: form_times_token_covariance(task, X).reshape(-1))(basis)
    values = jnp.linalg.eigvalsh(form)
    surely, possibly = (jnp.sum(values <= ratio * values[-1]) for ratio in (_SURELY_ZERO, _POSSIBLY_ZERO))
    return surely.astype(float), (possibly - surely).astype(float)


def no_flat_directions(task: Task) -> Comparison:
    """The number of flat directions of f_j against zero."""
    flat, unsure = _flat_directions(task)
    # A whole number below 1/2 is 0; this bound leaves room on both sides.
    return at_most(flat[None], 0.5, size=1.0, promised=unsure == 0)


def antisymmetric_flat_directions(task: Task) -> Comparison:
    """The number of flat directions of f_j against that of the antisymmetric matrices, d (d+1)/2."""
    flat, unsure = _flat_directions(task)
    antisymmetric = task.dimension * (task.dimension + 1) / 2
    return equal(flat[None], antisymmetric, antisymmetric, allowance=unsure)
