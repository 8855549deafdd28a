"""Drawn prompts on which gatmiry2024's statements about one prompt (sections 3.2 to 3.6) are judged."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim._core.types import Scalar
from flowsim.claims.claim import Comparison, equal
from flowsim.claims.declaring import takes_like
from flowsim.claims.statements import rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LoopedLoss
from flowsim.papers.gatmiry2024.lemma_settings import DEEP, LONG, SHORT, SINGLE
from flowsim.tasks import Prompt

Compare = Callable[[LoopedLoss, Trajectory], Comparison]

_PROMPTS = 6
JUDGED = "Judged on 6 drawn prompts. "  # in the notes
PROBLEMS = (SHORT, SINGLE, DEEP, LONG)


class Drawn(NamedTuple):
    """A prompt with its weights w, and a preconditioner A."""

    X: Float[Array, "d n"]
    w: Float[Array, " d"]
    query: Float[Array, " d"]
    A: Float[Array, "d d"]

    @property
    def prompt(self) -> Prompt:
        """The prompt as models read it."""
        return Prompt(self.X.T, self.X.T @ self.w, self.query)

    @property
    def columns(self) -> Float[Array, "d columns"]:
        """[X x_q], the inputs of the examples and of the query."""
        return jnp.concatenate([self.X, self.query[:, None]], axis=1)

    def slope(self, w: Float[Array, " d"]) -> Float[Array, " d"]:
        """The gradient of |X^T w - y|^2 at w."""
        return jax.grad(self.squares)(w)

    def squares(self, w: Float[Array, " d"]) -> Scalar:
        """The sum of squares |X^T w - y|^2. **Source:** gatmiry2024, section 3.2."""
        return jnp.sum((self.X.T @ w - self.X.T @ self.w) ** 2)


def drawn(loss: LoopedLoss, symmetric: bool) -> Drawn:
    """Draws 6 prompts of the task, stacked, each with an A whose norm is about one over the covariance's."""
    d, n = loss.task.dimension, int(float(loss.task.context_length))
    keys = jax.random.split(jax.random.key(0), 4)
    inverse_root = jnp.linalg.inv(loss.root)
    A = jax.random.normal(keys[3], (_PROMPTS, d, d)) / 4 + jnp.eye(d)[None]
    return Drawn(
        jnp.swapaxes(jax.random.normal(keys[0], (_PROMPTS, n, d)) @ loss.root, 1, 2),
        jax.random.normal(keys[1], (_PROMPTS, d)) @ inverse_root,
        jax.random.normal(keys[2], (_PROMPTS, d)) @ loss.root,
        inverse_root @ ((A + jnp.swapaxes(A, 1, 2)) / 2 if symmetric else A) @ inverse_root,
    )


def of_prompts(*, symmetric: bool):
    """Turns a function that gives both sides at one prompt into their comparison at all drawn prompts."""

    def decorate(both: Callable[[LoopedLoss, Drawn], tuple[Array, Array]]):
        @takes_like(both)
        def compare(loss: LoopedLoss) -> Comparison:
            left, right = jax.vmap(lambda one: both(loss, one))(drawn(loss, symmetric))
            left, right = left.reshape(_PROMPTS, -1), right.reshape(_PROMPTS, -1)
            size = jnp.linalg.norm(left, axis=1, keepdims=True) + jnp.linalg.norm(right, axis=1, keepdims=True)
            d, n = loss.task.dimension, float(loss.task.context_length)
            flat = equal(left.reshape(-1), right.reshape(-1), jnp.broadcast_to(size, left.shape).reshape(-1))
            return rounded(flat, jnp.asarray(n + d))

        return compare

    return decorate


def conditioned(made: Callable[[LoopedLoss], Comparison]) -> Callable[[LoopedLoss], Comparison]:
    """The comparison with rounding errors scaled by the condition numbers of the prompts' sample covariances."""

    @takes_like(made)
    def compare(loss: LoopedLoss) -> Comparison:
        comparison, X = made(loss), drawn(loss, True).X
        values = jnp.linalg.eigvalsh(X @ jnp.swapaxes(X, 1, 2))
        return rounded(comparison, jnp.max(values[:, -1] / values[:, 0]))

    return compare
