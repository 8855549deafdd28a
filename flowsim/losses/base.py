"""The interface of population losses, and a loss that a user gives as a function."""

import abc
import enum
from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from equinox import AbstractVar
from jaxtyping import Array, ArrayLike, Float, PyTree

from flowsim._core import checks
from flowsim._core.types import Scalar
from flowsim.losses.arrowhead import AbstractArrowhead
from flowsim.losses.reduction import AbstractReducedLayer


class MinimumKind(enum.StrEnum):
    """How the minimum of a loss is known: exactly, numerically or not at all."""

    EXACT = "exact"
    NUMERICAL = "numerical"
    UNKNOWN = "unknown"


def unknown_minimum() -> Scalar:
    """NaN, for the field ``minimum`` of a loss whose minimum is unknown.

    It is a concrete array even while JAX traces a function. So a loss that the function builds can be used outside
    it.
    """
    with jax.ensure_compile_time_eval():
        return jnp.asarray(jnp.nan)


class AbstractPopulationLoss(eqx.Module):
    """A population loss L of a model. The flow follows -grad L, unless `speeds` rescales it.

    The defaults of the methods are right for an exact loss without special structure.

    **Fields:**

    - minimum: the smallest value of L over all weights, NaN if unknown.
    - minimum_kind: how the minimum is known.
    - derived: whether the loss stores numbers that it computed, and hence rounded, from the numbers of the problem.
    """

    minimum: AbstractVar[Scalar]
    minimum_kind: AbstractVar[MinimumKind]
    derived: ClassVar[bool] = True

    @abc.abstractmethod
    def __call__(self, model: PyTree) -> Scalar:
        """The value of the loss at a model."""

    def __repr__(self) -> str:
        task = getattr(self, "task", None)
        sizes = {"d": getattr(task, "dimension", None), "N": getattr(task, "context_length", None)}
        known = [f"{name} = {float(x):g}" for name, x in sizes.items() if checks.is_number(x)]
        return f"<{', '.join([type(self).__name__, *known])}; minimum {self.minimum_kind}>"

    @abc.abstractmethod
    def excess(self, model: PyTree) -> Scalar:
        """L(model) - min L, as accurate near the minimum as the form of L allows. NaN if min L is unknown."""

    @abc.abstractmethod
    def conserved(self, model: PyTree) -> Float[Array, "..."] | None:
        """The values at a model of the quantities that the flow conserves exactly: a number or an array.

        None if no conserved quantity is known.
        """

    @abc.abstractmethod
    def least_model(self) -> PyTree | None:
        """A model with the smallest known loss, or None if no such model is known."""

    @property
    def subtracts(self) -> bool:
        """Whether `excess` subtracts the minimum from the loss, which loses digits near the minimum."""
        return False

    @eqx.filter_jit
    def gradient(self, model: PyTree) -> PyTree:
        """The gradient of the loss at a model, as a pytree with the structure of the model."""
        return eqx.filter_grad(self.__call__)(model)

    def arrowhead(self, model: PyTree) -> AbstractArrowhead | None:
        """The `AbstractArrowhead` of the flow from this model, or None if the flow does not have this structure."""
        return None

    def reduced(self, model: PyTree) -> AbstractReducedLayer | None:
        """The flow from this model in d + 2 numbers, if the loss is known only along this flow; else None."""
        return None

    def speeds(self, model: PyTree) -> PyTree | None:
        """The speeds c of the flow d theta/dt = -c dL/d theta, as a model with one number in place of each array.

        None means c = 1.
        """
        return None

    @property
    def may_have_kinks(self) -> bool:
        """Whether the loss may have kinks, jumps or narrow pits, as a loss with a user's function may."""
        return False

    def replicates(self) -> tuple["AbstractPopulationLoss", ...]:
        """Independent estimates of this loss, each from a part of the samples; empty if the loss is exact."""
        return ()


class FunctionLoss(AbstractPopulationLoss):
    """A loss that a user gives as a function of the model. JAX differentiates the function.

    **Arguments:**

    - function: model -> the loss, a scalar.
    - excess: model -> the loss minus its minimum, computed without cancellation. By default ``minimum`` is
      subtracted from the value of ``function``.
    - minimum: the smallest value of the loss, if it is known.
    """

    derived = False

    function: Callable[[PyTree], Scalar]
    excess_function: Callable[[PyTree], Scalar] | None
    minimum: Scalar
    minimum_kind: MinimumKind = eqx.field(static=True)

    def __init__(
        self,
        function: Callable[[PyTree], Scalar],
        *,
        excess: Callable[[PyTree], Scalar] | None = None,
        minimum: ArrayLike | None = None,
    ):
        checks.require_float64()
        self.function = function
        self.excess_function = excess
        self.minimum = unknown_minimum() if minimum is None else checks.as_array("minimum", minimum, ())
        self.minimum_kind = MinimumKind.UNKNOWN if minimum is None else MinimumKind.EXACT

    def __call__(self, model: PyTree) -> Scalar:
        value = jnp.asarray(self.function(model))
        if value.shape != ():
            checks.refuse("function", "scalar-valued", f"its value has shape {value.shape}")
        return value

    @property
    def may_have_kinks(self) -> bool:
        return True

    @property
    def subtracts(self) -> bool:
        return self.excess_function is None and self.minimum_kind is not MinimumKind.UNKNOWN

    def excess(self, model: PyTree) -> Scalar:
        if self.excess_function is None:
            return self(model) - self.minimum
        return self.excess_function(model)

    def conserved(self, model: PyTree) -> None:
        return None

    def least_model(self) -> None:
        return None
