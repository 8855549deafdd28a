"""Statements about a task alone, several statements at once, and a condition that many share."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from flowsim.analysis.base import Comparison
from flowsim.initialization import Hypothesis, hypothesis

LONGEST_DRAWN = 100_000
MOST_DRAWN = 2**22  # numbers of one prompt, of which statements draw up to 64: 2 GiB


def of_task(statement: Callable[[Any], Comparison]) -> Callable[[Any, Any], Comparison]:
    """The comparison of a statement about the task alone, compiled once a dimension."""
    compiled = eqx.filter_jit(statement)

    @functools.wraps(statement)
    def compare(loss, trajectory):
        return compiled(loss.task)

    return compare


def rounded(comparison: Comparison, conditioning: Float[Array, ""]) -> Comparison:
    """The comparison with rounding errors that many times larger than its terms' own."""
    return eqx.tree_at(lambda c: c.scale, comparison, comparison.scale * conditioning)


def joined(comparisons: list[Comparison]) -> Comparison:
    """Comparisons one after the other."""
    return jax.tree.map(lambda *series: jnp.concatenate(series), *comparisons)


def finite_context(loss: Any, start: PyTree) -> list[Hypothesis]:
    """Prompts that are judged one by one must fit into memory."""
    longest = longest_drawn(loss.task)
    name = f"context length at most {longest}, so that prompts can be drawn"
    return [hypothesis(name, loss.task.context_length, "<=", float(longest))]


def can_be_drawn(task: Any) -> bool:
    """Whether `finite_context` is met."""
    return float(task.context_length) <= longest_drawn(task)


def longest_drawn(task: Any) -> int:
    """The longest context that statements draw prompts of, in the dimension of a task."""
    return min(LONGEST_DRAWN, MOST_DRAWN // (task.dimension + 1))
