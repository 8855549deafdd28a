"""The loss of ahn2023's single layer as appendix A writes it, with drawn weights and prompts to judge it on.

It is computed in two ways: `MaskedAttentionLoss` splits the error by its parity in w, and `in_context_loss` here
follows the appendix, as a quadratic form in each X_j = b a_j^T. The paper's symbols are used throughout.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim._core.types import Scalar, Vector
from flowsim.claims.claim import Comparison, equal
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
