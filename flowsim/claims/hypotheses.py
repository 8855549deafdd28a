"""Hypotheses: the conditions of a statement, with their two sides."""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from flowsim._core import checks
from flowsim._core.types import Scalar

LONGEST_DRAWN = 100_000
MOST_DRAWN = 2**22  # numbers in one prompt; statements draw up to 64 prompts, hence 2 GiB
ROUNDING = 1e-12

_RELATIONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """One condition of a statement: ``value relation bound``. In a transformation of JAX its numbers are traced.

    **Fields:**

    - name: the condition in words.
    - value, bound: its two sides, NaN if unknown.
    - relation: "<", "<=", ">", ">=" or "=".
    - met: whether the condition is satisfied.
    """

    name: str
    value: float | Scalar
    relation: str
    bound: float | Scalar
    met: bool | Bool[Array, ""]

    @property
    def unknown(self) -> bool:
        """Whether a side of the condition is unknown."""
        return math.isnan(self.value) or math.isnan(self.bound)


Conditions = Callable[..., list[Hypothesis]]


@functools.cache
def all_of(*conditions: Conditions) -> Conditions:
    """Combine several conditions into one function (loss, start) -> the hypotheses of all of them, in order.

    The same conditions give the same function object, so that hypotheses that claims share are evaluated once.
    """
    return lambda loss, start: [found for of in conditions for found in of(loss, start)]


def hypothesis(name: str, value: Scalar | float, relation: str, bound: Scalar | float) -> Hypothesis:
    """The condition ``value relation bound`` with one of the relations <, <=, >, >=, decided in float64."""
    if not (checks.is_concrete(value) and checks.is_concrete(bound)):
        return Hypothesis(name, value, relation, bound, _RELATIONS[relation](value, bound))
    left, right = float(value), float(bound)
    return Hypothesis(name, left, relation, right, bool(_RELATIONS[relation](left, right)))


def agrees(name: str, value: Scalar | float, bound: Scalar | float, size: Scalar | float = 1.0) -> Hypothesis:
    """The condition ``value = bound``, met if |value - bound| <= 1e-12 size."""
    if not all(map(checks.is_concrete, (value, bound, size))):
        return Hypothesis(name, value, "=", bound, jnp.abs(value - bound) <= ROUNDING * size)
    left, right = float(value), float(bound)
    return Hypothesis(name, left, "=", right, bool(abs(left - right) <= ROUNDING * float(size)))


def unmet(name: str) -> Hypothesis:
    """A condition that a loss or a model does not meet because of its class. Its sides are placeholders."""
    return Hypothesis(name, 0.0, "=", 1.0, False)


def finite_context(loss: Any, start: PyTree) -> list[Hypothesis]:
    """The condition that the context of the task is at most `longest_drawn`, so that prompts can be drawn."""
    longest = longest_drawn(loss.task)
    name = f"context length at most {longest}, so that prompts can be drawn"
    return [hypothesis(name, loss.task.context_length, "<=", float(longest))]


def can_be_drawn(task: Any) -> bool:
    """Whether the context of a task is at most `longest_drawn`, the condition of `finite_context`."""
    return float(task.context_length) <= longest_drawn(task)


def longest_drawn(task: Any) -> int:
    """The largest context length at which statements draw prompts, for the dimension d of the task.

    It is min(100,000, 2^22/(d + 1)), rounded down, so that a prompt has at most about 2^22 numbers.
    """
    return min(LONGEST_DRAWN, MOST_DRAWN // (task.dimension + 1))
