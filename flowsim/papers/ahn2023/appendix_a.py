"""Both sides of every statement of ahn2023's appendix A, the proof of Theorem 1: one component f_j at a time."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim.claims.claim import Comparison, at_most, equal
from flowsim.claims.hypotheses import can_be_drawn
from flowsim.claims.statements import of_task, rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import MaskedAttentionLoss
from flowsim.models import MaskedAttention
from flowsim.models.linear_attention import embed
from flowsim.moments import token_covariance_times_form
from flowsim.papers.ahn2023.single_layer import (
    Loss,
    Scalar,
    Task,
    Vector,
    component,
    form_times_token_covariance,
    in_context_loss,
    nothing_drawn,
    of_sums,
    on_drawn,
    prompts_of,
    weight_times_token_covariance,
)
from flowsim.tasks import LinearRegression

_SURELY_ZERO, _POSSIBLY_ZERO = 1e-13, 1e-10  # of the largest eigenvalue


def _pair(d: int) -> Float[Array, "d rows rows"]:
    """E_{d+1,j} + E_{j,d+1} for every j."""
    one = _unit(d)
    return one + jnp.swapaxes(one, 1, 2)


def _unit(d: int) -> Float[Array, "d rows rows"]:
    """E_{d+1,j} for every j."""
    return jnp.zeros((d, d + 1, d + 1)).at[jnp.arange(d), d, jnp.arange(d)].set(1.0)


def _matrices_agree(task: Task, left: Array, right: Array) -> Comparison:
    norms = lambda matrices: jnp.sqrt(jnp.sum(matrices**2, axis=(1, 2)))
    return of_sums(task, equal(norms(left - right), 0.0, norms(right)))


def _stationary(task: Task, X: Float[Array, "d rows rows"]) -> Comparison:
    """The gradient 2 E[<C, X_j> C] + 2 E[w_j C] of every f_j at X_j against zero, of the size of its second term."""
    quadratic = jax.vmap(lambda matrix: form_times_token_covariance(task, matrix))(X)
    linear = jax.vmap(lambda s: weight_times_token_covariance(task, s))(jnp.eye(task.dimension))
    return _matrices_agree(task, -quadratic, linear)


@of_task
def lemma_6(task: Task) -> Comparison:
    """X_j = -E_{d+1,j}/((n-1)/n + (d+2)/n)."""
    n = task.context_length
    return _stationary(task, -_unit(task.dimension) / ((1 - 1 / n) + (task.dimension + 2) / n))


@of_task
def lemma_7(task: Task) -> Comparison:
    """X_j = -E_{d+1,j}/(((n+1)/n) lambda_j + (1/n) sum_k lambda_k)."""
    lam, n = jnp.diagonal(task.covariance), task.context_length
    return _stationary(task, -_unit(task.dimension) / ((1 + 1 / n) * lam + jnp.sum(lam) / n)[:, None, None])


def _flat_directions(task: Task) -> tuple[Scalar, Scalar]:
    """How many directions X have E<C, X>^2 = 0, and how many more may have."""
    rows = task.dimension + 1
    basis = jnp.eye(rows**2).reshape(-1, rows, rows)
    form = jax.vmap(lambda X: form_times_token_covariance(task, X).reshape(-1))(basis)
    values = jnp.linalg.eigvalsh(form)
    surely, possibly = (jnp.sum(values <= ratio * values[-1]) for ratio in (_SURELY_ZERO, _POSSIBLY_ZERO))
    return surely.astype(float), (possibly - surely).astype(float)


@of_task
def unique_component_minimum(task: Task) -> Comparison:
    """The number of flat directions of f_j against none."""
    flat, unsure = _flat_directions(task)
    # A whole number is 0 where it is less than 1/2, which leaves room on both sides.
    return at_most(flat[None], 0.5, size=1.0, promised=unsure == 0)


@of_task
def unique_symmetric_component_minimum(task: Task) -> Comparison:
    """The number of flat directions of f_j against that of the antisymmetric matrices, d (d+1)/2."""
    flat, unsure = _flat_directions(task)
    antisymmetric = task.dimension * (task.dimension + 1) / 2
    return equal(flat[None], antisymmetric, antisymmetric, allowance=unsure)


def _sum_of_components(task: Task, factors: Vector) -> Comparison:
    """f(b, A) against the sum of factors_j f_j(b a_j^T)."""
    terms = lambda model: jax.vmap(lambda s: component(task, jnp.outer(model.b, model.A @ s), s))(jnp.eye(factors.size))
    return on_drawn(task, lambda model: factors @ terms(model), MaskedAttentionLoss(task))


@of_task
def sum_of_components(task: Task) -> Comparison:
    """f(b, A) = sum_j f_j(b, a_j)."""
    return _sum_of_components(task, jnp.ones(task.dimension))


@of_task
def weighted_sum_of_components(task: Task) -> Comparison:
    """f(b, A) = sum_j lambda_j f_j(b, a_j)."""
    return _sum_of_components(task, jnp.diagonal(task.covariance))


def _inner_products(task: Task, factor: float) -> Comparison:
    """<C, E_{d+1,j}> against ``factor`` times sum_i <w, x_i> x_i[j], on drawn prompts, for every j.

    Each side rounds at most 2 n times.
    """
    prompts = prompts_of(task)
    tokens = jax.vmap(lambda prompt: embed(prompt)[:, :-1])(prompts)
    C = tokens @ jnp.swapaxes(tokens, 1, 2) / tokens.shape[-1]
    products = prompts.labels[:, :, None] * prompts.inputs
    sizes = factor * jnp.sum(jnp.abs(products), axis=1)
    sides = C[:, -1, :-1].reshape(-1), factor * jnp.sum(products, axis=1).reshape(-1)
    return rounded(equal(*sides, sizes.reshape(-1)), jnp.asarray(float(task.context_length)))


def inner_product_as_printed(loss: Loss, trajectory: Trajectory) -> Comparison:
    """Without 1/n."""
    return nothing_drawn() if not can_be_drawn(loss.task) else _inner_products(loss.task, 1.0)


def inner_product(loss: Loss, trajectory: Trajectory) -> Comparison:
    """With 1/n."""
    n = float(loss.task.context_length)
    return nothing_drawn() if jnp.isinf(n) else _inner_products(loss.task, 1 / n)


def _linear_term(task: Task, factors: Vector) -> Comparison:
    linear = jax.vmap(lambda s: weight_times_token_covariance(task, s))(jnp.eye(task.dimension))
    return _matrices_agree(task, linear, factors[:, None, None] * _pair(task.dimension))


def _quadratic_term(task: Task, factors: Vector) -> Comparison:
    quadratic = jax.vmap(lambda X: form_times_token_covariance(task, X))(_unit(task.dimension))
    return _matrices_agree(task, quadratic, factors[:, None, None] * _pair(task.dimension))


@of_task
def eq_17(task: Task) -> Comparison:
    """E[w_j C] against E_{d+1,j} + E_{j,d+1}."""
    return _linear_term(task, jnp.ones(task.dimension))


@of_task
def eq_18(task: Task) -> Comparison:
    """E[<w, x_i> x_i[j] <w, x_i'> x_i'[j']] for all j and j': n = 1 leaves i = i' alone, n = inf the pairs i != i'."""
    d, units = task.dimension, _unit(task.dimension)

    def moments(n):
        return jax.vmap(lambda X: token_covariance_times_form(X, task.covariance, jnp.asarray(n)))(units)[:, d, :d]

    sides = jnp.stack([moments(jnp.inf), moments(1.0)]), jnp.stack([jnp.eye(d), (d + 2.0) * jnp.eye(d)])
    return equal(sides[0].reshape(-1), sides[1].reshape(-1), d + 2.0)


@of_task
def eq_19(task: Task) -> Comparison:
    """E[<C, E_{d+1,j}> C] against ((n-1)/n + (d+2)/n) (E_{d+1,j} + E_{j,d+1})."""
    n = task.context_length
    return _quadratic_term(task, jnp.full(task.dimension, (1 - 1 / n) + (task.dimension + 2) / n))


@of_task
def eq_20(task: Task) -> Comparison:
    """E[w_j C] against lambda_j (E_{d+1,j} + E_{j,d+1})."""
    return _linear_term(task, jnp.diagonal(task.covariance))


@of_task
def eq_21(task: Task) -> Comparison:
    """E[<C, E_{d+1,j}> C] against (((n+1)/n) lambda_j^2 + (1/n) lambda_j sum_k lambda_k) (E_{d+1,j} + E_{j,d+1})."""
    lam, n = jnp.diagonal(task.covariance), task.context_length
    return _quadratic_term(task, (1 + 1 / n) * lam**2 + lam * jnp.sum(lam) / n)


@of_task
def rotated(task: Task) -> Comparison:
    """f(b, A) with Sigma = U Lambda U^T against f with Lambda at [U^T 0; 0 1] b and [U^T 0; 0 1] A U."""
    values, U = jnp.linalg.eigh(task.covariance)
    eigenbasis = LinearRegression(jnp.diag(values), task.context_length)
    turn = jnp.eye(task.dimension + 1).at[:-1, :-1].set(U.T)

    def turned(model):
        return in_context_loss(eigenbasis, MaskedAttention(turn @ model.b, turn @ model.A @ U))

    return on_drawn(task, turned, MaskedAttentionLoss(task))
