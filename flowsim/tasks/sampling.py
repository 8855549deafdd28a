"""Sampled prompts, and mean prediction errors on sampled prompts with bootstrap bands."""

from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flowsim._core import checks
from flowsim.tasks import LinearRegression, Prompt, RandomCovarianceRegression

_BLOCK = 256  # prompts

Predictor = Callable[[Prompt], Float[Array, ""]]


def least_squares(prompt: Prompt) -> Float[Array, ""]:
    """The prediction <w, x_query> of the least-squares fit w to the context.

    If several w fit best, the shortest is taken.
    """
    weight, *_ = jnp.linalg.lstsq(prompt.inputs, prompt.labels)
    return prompt.query @ weight


def draw_prompts(
    task: LinearRegression, tasks: int, prompts: int, *, seed: int = 0
) -> tuple[Prompt, Float[Array, " n"]]:
    """Draw ``prompts`` prompts for each of ``tasks`` draws of w, with the labels of their queries.

    A prompt depends only on the seed, the number of its task and its number within the task. So a call with more
    tasks or prompts includes the prompts of a call with fewer.

    **Returns:** a batch of `Prompt`, with the prompts of all tasks on the first axis of its arrays, and the labels
    of their queries, (tasks * prompts,).

    **Raises:** `ValueError` on numbers that are below 1 or not whole, a seed of more than 64 bits, an infinite
    context and a law of lengths.
    """
    if not isinstance(task, LinearRegression):
        checks.refuse("task", "a LinearRegression", f"got {task!r:.60}")
    total = checks.count("tasks", tasks) * checks.count("prompts", prompts)
    if not isinstance(seed, int | np.integer) or not -(2**63) <= seed < 2**63:
        checks.refuse("seed", "a whole number of 64 bits", f"it is {seed!r:.60}")
    key = jax.random.key(seed)
    # By eigenvalues, since the covariance of w may be singular.
    values, vectors = jnp.linalg.eigh(task.weight_covariance)
    root = vectors * jnp.sqrt(jnp.maximum(values, 0.0))[None, :]
    if task.length_law is not None:
        checks.refuse("task", "of one context length", "it has a law of lengths")
    given = {name: getattr(task, name) for name in ("label_noise", "query_covariance") if name in task.shifts}

    def one(number: Int[Array, ""], place: Int[Array, ""]) -> tuple[Prompt, Float[Array, ""]]:
        of_task, of_prompt = jax.random.split(jax.random.fold_in(key, number))
        w = task.weight_mean + root @ jax.random.normal(of_task, (task.dimension,))
        fixed = LinearRegression(task.covariance, task.context_length, weight=w, **given)
        return fixed.sample(jax.random.fold_in(of_prompt, place))

    # Blocks of one size, so that all numbers of prompts are drawn by one compiled program.
    places = jnp.arange(-(-total // _BLOCK) * _BLOCK).reshape(-1, _BLOCK)
    blocks = [jax.vmap(one)(block // prompts, block % prompts) for block in places]
    return jax.tree.map(lambda *parts: jnp.asarray(np.concatenate(parts)[:total]), *blocks)


def squared_errors(
    predict: Predictor,
    task: LinearRegression | RandomCovarianceRegression,
    lengths: Sequence[int],
    key: PRNGKeyArray,
    covariances: int = 64,
    prompts: int = 64,
) -> Float[np.ndarray, "lengths covariances prompts"]:
    """The squared errors (yhat - y_query)^2 of a predictor on sampled prompts.

    For each of ``covariances`` draws of the covariance, ``prompts`` prompts are drawn at the task's context length.
    For a smaller length only their first examples are used, so the errors at different lengths are paired.

    **Returns:** (lengths, covariances, prompts).

    **Raises:** `ValueError` on a length that is not between 1 and the task's.
    """
    longest = int(float(task.context_length))
    for length in lengths:
        if not 1 <= length <= longest:
            checks.refuse("lengths", f"between 1 and the context length {longest}", f"they hold {length}")
    law_key, prompt_key = jax.random.split(key)
    groups = []
    for group in range(covariances):
        fixed = task
        if isinstance(task, RandomCovarianceRegression):
            fixed = LinearRegression(task.law.sample(jax.random.fold_in(law_key, group)), task.context_length)
        keys = jax.random.split(jax.random.fold_in(prompt_key, group), prompts)
        drawn, labels = jax.vmap(fixed.sample)(keys)
        groups.append([np.asarray(_errors(predict, drawn, labels, length)) for length in lengths])
    return np.stack(groups, axis=1)


@eqx.filter_jit
def _errors(predict: Predictor, prompts: Prompt, labels: Float[Array, " n"], length: int) -> Float[Array, " n"]:
    def one(prompt: Prompt, label: Float[Array, ""]) -> Float[Array, ""]:
        return (predict(Prompt(prompt.inputs[:length], prompt.labels[:length], prompt.query)) - label) ** 2

    return jax.vmap(one)(prompts, labels)


def bootstrap_interval(
    errors: Float[np.ndarray, "groups prompts"], *, level: float = 0.9, trials: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """The lower and upper end of a bootstrap interval for the mean error.

    Each trial draws whole groups with replacement, since the prompts of a group share their covariance. Papers use
    level 0.9 and 1000 trials.

    **Arguments:** errors: (groups, prompts); level: the probability of the interval; trials: how often groups are
    drawn.

    **Raises:** `ValueError` on a level that is not between 0 and 1.
    """
    if not 0 < level < 1:
        checks.refuse("level", "between 0 and 1", f"it is {level}")
    means = np.mean(errors, axis=1)
    chosen = np.random.default_rng(seed).integers(means.size, size=(trials, means.size))
    low, high = np.quantile(np.mean(means[chosen], axis=1), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def error_band(
    predict: Predictor,
    task: LinearRegression | RandomCovarianceRegression,
    lengths: Sequence[int],
    key: PRNGKeyArray,
    covariances: int = 64,
) -> Float[np.ndarray, "2 lengths"]:
    """The 90% bootstrap interval of the mean squared error at every length, from 64 prompts for each covariance.

    **Returns:** (2, lengths), the lower and the upper ends.

    **Raises:** as `squared_errors` does.
    """
    sampled = squared_errors(predict, task, lengths, key, covariances)
    return np.asarray([bootstrap_interval(errors) for errors in sampled]).T
