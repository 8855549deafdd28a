"""Training by Adam on fresh prompts, as in experiments with transformers."""

from collections.abc import Callable
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from flowsim._core import checks
from flowsim._core.progress import progress_bar
from flowsim.tasks import LinearRegression, Prompt, RandomCovarianceRegression

_CHUNK = 100  # steps between two checks of the wall clock, after which an interrupt or the progress bar is served


Model = TypeVar("Model")


class Curriculum(eqx.Module):
    """A schedule by which prompts grow in stages, from few coordinates and few positions.

    Let (start, growth) be ``dimensions``. At training step s the covariates have start + growth * (s // every)
    nonzero coordinates, at most d. In the same way ``lengths`` gives the number of positions at which errors count,
    at most N + 1.

    **Arguments:**

    - dimensions, lengths: (start, growth) of the number of coordinates and of positions.
    - every: the number of training steps in a stage.

    **Raises:** `ValueError` naming the argument.

    **Source:** Garg et al. (2022), with dimensions (5, 1), lengths (11, 2) and every = 2000 for d = 20.
    """

    dimensions: tuple[int, int] = eqx.field(static=True)
    lengths: tuple[int, int] = eqx.field(static=True)
    every: int = eqx.field(static=True)

    def __init__(self, *, dimensions: tuple[int, int], lengths: tuple[int, int], every: int):
        for name, (start, step) in {"dimensions": dimensions, "lengths": lengths}.items():
            checks.count(f"{name}[0]", start)
            checks.count(f"{name}[1]", step)
        self.dimensions, self.lengths, self.every = dimensions, lengths, checks.count("every", every)

    def stage(self, step: Int[Array, ""]) -> tuple[Int[Array, ""], Int[Array, ""]]:
        """The numbers of coordinates and of positions at a training step, without the limits d and N + 1."""
        passed = step // self.every
        (dimension, wider), (length, longer) = self.dimensions, self.lengths
        return dimension + wider * passed, length + longer * passed


def position_loss(
    predictions: Callable[[Prompt], Float[Array, " positions"]],
    prompt: Prompt,
    label: Float[Array, ""],
    length: Int[Array, ""] | None = None,
) -> Float[Array, ""]:
    """The squared error averaged over the first ``length`` positions of a prompt.

    Errors at later positions are masked, so that shapes do not change. For a causal model this gives the same
    result as a shorter prompt.

    **Arguments:**

    - predictions: maps the prompt to (N + 1,) predictions.
    - prompt: the prompt.
    - label: the label of the query, which is the last position.
    - length: the number of positions that count, by default all N + 1.
    """
    errors = (predictions(prompt) - jnp.append(prompt.labels, label)) ** 2
    if length is None:
        return jnp.mean(errors)
    return jnp.mean(errors, where=jnp.arange(errors.size) < length)


def train(
    model: Model,
    task: LinearRegression | RandomCovarianceRegression,
    *,
    steps: int,
    batch: int = 64,
    learning_rate: float = 1e-4,
    key: PRNGKeyArray,
    curriculum: Curriculum | None = None,
    progress: bool = False,
) -> tuple[Model, Float[np.ndarray, " steps"]]:
    """Train a model by Adam on the mean squared error over prompts that are drawn anew at each step.

    If the model has a method ``predictions(prompt)``, the error is averaged over all positions of a prompt.
    Otherwise it is the error at the query.

    **Arguments:**

    - model: maps a prompt to a scalar.
    - task: the law of the prompts, with a finite context.
    - steps: the number of steps.
    - batch: the number of prompts in a step.
    - learning_rate: the learning rate of Adam.
    - key: the key of the prompts. Step s draws from ``fold_in(key, s)``, so that a run can be repeated exactly.
    - curriculum: a schedule by which prompts grow, for models with ``predictions``; None for prompts of full size.
    - progress: whether to show a progress bar.

    **Returns:** the trained model; and (steps,) the mean squared error on the prompts of each step, before the
    update of the weights. It is NaN after training has diverged.

    **Raises:** `ValueError` naming the argument.

    Papers use 500000 steps of batch 64 with the learning rate 1e-4, or 5000 steps of batch 2048 with 5e-4.
    """
    steps, batch = checks.count("steps", steps), checks.count("batch", batch)
    rate = checks.positive("learning_rate", learning_rate)
    if curriculum is not None and not hasattr(model, "predictions"):
        expected = "one with predictions(prompt), such as a Decoder, with a curriculum"
        checks.refuse("model", expected, f"it is a {type(model).__name__}")
    prompt, _ = jax.eval_shape(lambda one: task.sample(one), key)
    carry = model, optax.adam(rate).init(eqx.filter(model, eqx.is_inexact_array))
    losses = []
    with progress_bar("training", steps, unit="step", shown=progress) as bar:
        for first in range(0, steps, _CHUNK):
            count = min(_CHUNK, steps - first)
            here = jnp.asarray(first), jnp.asarray(count)
            carry, values = _advance(carry, task, curriculum, key, rate, *here, batch, prompt.labels.size)
            losses.append(np.asarray(values)[:count])
            bar.update(count)
    return carry[0], np.concatenate(losses)


@eqx.filter_jit
def _advance(carry, task, curriculum, key, rate, first, count, batch, context_length):
    """Make ``count`` training steps from number ``first`` on. ``count`` and ``first`` are traced, so that one
    program serves all chunks.

    **Returns:** the updated carry (model, moments of Adam), and the mean squared errors, padded with zeros.
    """
    # Inside a compiled program only a constant is a known length of the prompts.
    task = eqx.tree_at(lambda task: task.context_length, task, np.asarray(float(context_length)))
    optimiser = optax.adam(rate)
    start, fixed = eqx.partition(carry, eqx.is_array)

    def objective(model: PyTree, step: Int[Array, ""]) -> Float[Array, ""]:
        dimension, length = (None, None) if curriculum is None else curriculum.stage(step)
        keys = jax.random.split(jax.random.fold_in(key, step), batch)
        prompts, labels = jax.vmap(lambda one: task.sample(one, dimension))(keys)
        if hasattr(model, "predictions"):
            error = lambda prompt, label: position_loss(model.predictions, prompt, label, length)
        else:
            error = lambda prompt, label: (model(prompt) - label) ** 2
        return jnp.mean(jax.vmap(error)(prompts, labels))

    def one(index, state):
        arrays, losses = state
        model, moments = eqx.combine(arrays, fixed)
        loss, gradient = eqx.filter_value_and_grad(objective)(model, first + index)
        with jax.numpy_dtype_promotion("standard"):  # optax raises floats to integer powers
            updates, moments = optimiser.update(gradient, moments)
        after = eqx.apply_updates(model, updates), moments
        return eqx.filter(after, eqx.is_array), losses.at[index].set(loss)

    arrays, losses = jax.lax.fori_loop(0, count, one, (start, jnp.zeros(_CHUNK)))
    return eqx.combine(arrays, fixed), losses
