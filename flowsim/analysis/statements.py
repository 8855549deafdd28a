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
    """Prompts can only be drawn at a finite context length."""
    return [hypothesis("context length finite, so that prompts can be drawn", loss.task.context_length, "<", jnp.inf)]
