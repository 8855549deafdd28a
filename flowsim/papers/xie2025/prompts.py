"""Exact means over prompts by finite sums, and the comparison of two models on random prompts."""

import itertools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from flowsim.claims.claim import Comparison
from flowsim.claims.hypotheses import Hypothesis, hypothesis
from flowsim.claims.statements import rounded
from flowsim.losses import MultiHeadLoss
from flowsim.losses.one_layer.head_risk import HeadRisk
from flowsim.models.multi_head import AnyHeads
from flowsim.papers.xie2025.exact import Moments
from flowsim.papers.xie2025.setting import same
from flowsim.tasks import LinearRegression, Prompt

MOST_PROMPTS = 60_000


def normal_rule(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Points and weights that average every polynomial of degree 5 in n standard normal numbers exactly.

    **Returns:** points, (2 n^2 + 1, n), and weights, (2 n^2 + 1,), whose sum is 1.

    **Source:** Stroud and Secrest, Math. Comp. 17 (1963): the rule of degree 5 with fully symmetric points.
    """
    axes = np.sqrt(n + 2) * np.eye(n)
    pairs = [(np.eye(n)[i], s * np.eye(n)[j]) for i, j in itertools.combinations(range(n), 2) for s in (1, -1)]
    mixed = np.sqrt((n + 2) / 2) * np.asarray([a + b for a, b in pairs]).reshape(-1, n)
    points = np.concatenate([np.zeros((1, n)), axes, -axes, mixed, -mixed])
    weights = np.full(len(points), 1 / (n + 2) ** 2)
    weights[0], weights[1 : 2 * n + 1] = 2 / (n + 2), (4 - n) / (2 * (n + 2) ** 2)
    return points, weights


def moments(mean: Float[Array, " d"], inverse_C: Float[Array, ""] | float) -> Moments:
    """The moments of prompts in float64, computed as the mean over w-hat of the moments given w-hat.

    Given w-hat = w, the mean of a token's z z^T is M_w = [I w; w^T |w|^2], and Isserlis' theorem gives its second
    moments. JAX can trace this function.

    **Arguments:** mean: w*; inverse_C: 1/C.
    """
    noises, weights = normal_rule(mean.size)
    w = mean[None] + noises
    units = jnp.broadcast_to(jnp.eye(mean.size), (len(weights), mean.size, mean.size))
    tokens = jnp.concatenate([units, w[:, None]], axis=1)
    M = tokens @ jnp.swapaxes(tokens, 1, 2)
    shared = jnp.einsum("k,kmn,kpq->mnpq", weights, M, M)
    pairs = shared.transpose(0, 2, 1, 3) + shared.transpose(0, 3, 2, 1)
    first, mixed = jnp.einsum("k,kmn->mn", weights, M), jnp.einsum("k,ki,kmn->imn", weights, w, M)
    return Moments(mean, first, mixed, shared + inverse_C * pairs)


def few_prompts(loss: MultiHeadLoss, start: PyTree) -> list[Hypothesis]:
    """The hypothesis that `mean_squared_error` averages over at most `MOST_PROMPTS` prompts."""
    d, C = loss.task.dimension, float(loss.task.context_length)
    size = (2 * (d * C) ** 2 + 1) * (2 * d**2 + 1) * 2 * d
    return [hypothesis(f"prompts of the exact mean at most {MOST_PROMPTS}", size, "<=", float(MOST_PROMPTS))]


def mean_squared_error(task: LinearRegression, model: AnyHeads) -> Float[Array, ""]:
    """The mean of (f - y)^2 over prompts, where f is the prediction of a model, as a finite sum.

    The sum is exact because the squared error has degree 4 in the covariates of the context, degree 4 in w-hat, and
    degree 2 in the covariates of the query.
    """
    d, C = task.dimension, int(task.context_length)
    mean = np.zeros(d) if task.prior_mean is None else np.asarray(task.prior_mean)
    inputs, weights = normal_rule(d * C)
    noises, noise_weights = normal_rule(d)
    queries = np.sqrt(d) * np.concatenate([np.eye(d), -np.eye(d)])
    errors = _errors(model, *map(jnp.asarray, (inputs.reshape(-1, C, d), mean + noises, queries)))
    return jnp.asarray(weights) @ jnp.mean(errors, axis=2) @ jnp.asarray(noise_weights)


@eqx.filter_jit
def _errors(
    model: AnyHeads,
    inputs: Float[Array, "contexts C d"],
    weights: Float[Array, "weights d"],
    queries: Float[Array, "queries d"],
) -> Float[Array, "contexts weights queries"]:
    def error(X: Array, w_hat: Array, query: Array) -> Array:
        return (model(Prompt(X, X @ w_hat, query)) - w_hat @ query) ** 2

    over_queries = jax.vmap(error, (None, None, 0))
    over_weights = jax.vmap(over_queries, (None, 0, None))
    return jax.lax.map(lambda X: over_weights(X, weights, queries), inputs)


Predictor = Callable[[Prompt], Array]

_PROMPTS = 16


def alike(task: LinearRegression, one: Predictor, other: Predictor) -> Comparison:
    """The statement that two models predict the same on 16 random prompts of a task."""
    prompts = jax.vmap(lambda key: task.sample(key)[0])(jax.random.split(jax.random.key(1), _PROMPTS))
    left, right = (jax.vmap(model)(prompts) for model in (one, other))
    # Labels of the size of |w*| cancel, which magnifies rounding errors.
    labels = 1 + jnp.max(jnp.abs(HeadRisk(task).prior_mean))
    return rounded(same(task, left, right, jnp.max(jnp.abs(right))), labels)


def normals(*shape: int) -> Float[Array, "..."]:
    """Standard normal numbers of the given shape. Each call with one shape returns the same numbers."""
    return jnp.asarray(np.random.default_rng([2, *shape]).standard_normal(shape))
