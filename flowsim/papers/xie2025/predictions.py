"""Comparisons of what two models predict, on drawn prompts of xie2025."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim.claims.claim import Comparison
from flowsim.claims.statements import rounded
from flowsim.losses.one_layer.head_risk import HeadRisk
from flowsim.papers.xie2025.setting import same
from flowsim.tasks import LinearRegression, Prompt

Task = LinearRegression
Predictor = Callable[[Prompt], Array]

_PROMPTS = 16


def alike(task: Task, one: Predictor, other: Predictor) -> Comparison:
    """The statement that two models predict the same on drawn prompts of a task."""
    prompts = jax.vmap(lambda key: task.sample(key)[0])(jax.random.split(jax.random.key(1), _PROMPTS))
    left, right = (jax.vmap(model)(prompts) for model in (one, other))
    # Labels of the size of |w*| cancel, which magnifies rounding errors.
    labels = 1 + jnp.max(jnp.abs(HeadRisk(task).prior_mean))
    return rounded(same(task, left, right, jnp.max(jnp.abs(right))), labels)


def normals(*shape: int) -> Float[Array, "..."]:
    """Standard normal numbers, the same ones on each call with the same shape."""
    return jnp.asarray(np.random.default_rng([2, *shape]).standard_normal(shape))
