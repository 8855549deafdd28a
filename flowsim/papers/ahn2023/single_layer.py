"""The loss of ahn2023's single layer as appendix A writes it, and its components f_j(X) = E[(<C, X> + w[j])^2].

`MaskedAttentionLoss` splits the error by its parity in w; `in_context_loss` here follows the appendix, as a quadratic
form in each X_j = b a_j^T.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim._core.types import Scalar, Vector
from flowsim.claims.claim import Comparison, at_most, equal
from flowsim.claims.statements import rounded
from flowsim.losses import MaskedAttentionLoss
from flowsim.models import MaskedAttention
from flowsim.moments import token_covariance_times_form
from flowsim.tasks import LinearRegression, Prompt

Square = Float[Array, "rows rows"]
Task = LinearRegression
Loss = MaskedAttentionLoss

_DRAWN = 8
_PROMPTS = 16


def weight_times_token_covariance(task: Task, s: Vector) -> Square:
    """E[<w, s> C]: by Stein's lemma the derivative of E[C | w] along s, which is affine in w, taken at E[w] = 0."""

    def given(w):
        tokens = jnp.concatenate([jnp.eye(task.dimension), w[None, :]])
        return tokens @ task.covariance @ tokens.T

    return jax.jvp(given, (jnp.zeros_like(s),), (s,))[1]


def form_times_token_covariance(task: Task, X: Square) -> Square:
    """E[<C, X> C]."""
    return token_covariance_times_form(X, task.covariance, task.context_length)


def component(task: Task, X: Square, s: Vector) -> Scalar:
    """E(<C, X> + <w, s>)^2, which is f_j(X) of Lemmas 6 and 7 at s = e_j."""
    linear = weight_times_token_covariance(task, s)
    return jnp.sum(X * (form_times_token_covariance(task, X) + 2 * linear)) + s @ s


def in_context_loss(task: Task, model: MaskedAttention) -> Scalar:
    """The loss f(b, A) of (15): the sum of `component` at X = b (A s)^T over the columns s of a root of Sigma."""
    columns = jnp.linalg.cholesky(task.covariance).T
    return jnp.sum(jax.vmap(lambda s: component(task, jnp.outer(model.b, model.A @ s), s))(columns))


def _drawn(d: int) -> MaskedAttention:
    """8 models with independent standard normal weights."""
    entries = jnp.asarray(np.random.default_rng(0).standard_normal((_DRAWN, d + 1, d + 1)))
    return jax.vmap(lambda one: MaskedAttention(one[0], one[:, 1:]))(entries)


def on_drawn(task: Task, left: Callable, right: Callable) -> Comparison:
    """The statement left(model) = right(model) > 0 at drawn weights."""
    models = _drawn(task.dimension)
    sides = jax.vmap(left)(models), jax.vmap(right)(models)
    return of_sums(task, equal(*sides, sides[1]))


def of_sums(task: Task, comparison: Comparison) -> Comparison:
    """The comparison, with room for the rounding errors of sums of (d + 1)^2 terms."""
    return rounded(comparison, jnp.asarray((task.dimension + 1.0) ** 2))


def prompts_of(task: Task) -> Prompt:
    """16 drawn prompts of the task, stacked along a leading axis."""
    return jax.vmap(lambda key: task.sample(key)[0])(jax.random.split(jax.random.key(1), _PROMPTS))


def nothing_drawn() -> Comparison:
    """The comparison 0 = 0, for tasks whose prompts cannot be drawn."""
    return equal(jnp.zeros(1), 0.0, 1.0)


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
