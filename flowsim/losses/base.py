"""The interface of population losses, and a loss given by a function."""

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
    """How the minimum of a loss is known."""

    EXACT = "exact"
    NUMERICAL = "numerical"
    UNKNOWN = "unknown"


def unknown_minimum() -> Scalar:
    """NaN as a concrete array even while a function is traced, so that a loss made there can be used afterwards."""
    with jax.ensure_compile_time_eval():
        return jnp.asarray(jnp.nan)


class AbstractPopulationLoss(eqx.Module):
    """A population loss of a model. Minus its gradient is the vector field of the flow.

    All methods that are not abstract have defaults, which are right for an exact loss without further structure.

    **Fields:**

    - minimum: the smallest value over all weights, NaN if unknown.
    - minimum_kind: how the minimum is known.
    - derived: whether the loss holds numbers that were computed, and hence rounded, from those of the problem.
    """

    minimum: AbstractVar[Scalar]
    minimum_kind: AbstractVar[MinimumKind]
    derived: ClassVar[bool] = True

    @abc.abstractmethod
    def __call__(self, model: PyTree) -> Scalar:
        """L(model)."""

    def __repr__(self) -> str:
        task = getattr(self, "task", None)
        sizes = {"d": getattr(task, "dimension", None), "N": getattr(task, "context_length", None)}
        known = [f"{name} = {float(x):g}" for name, x in sizes.items() if checks.is_number(x)]
        return f"<{', '.join([type(self).__name__, *known])}; minimum {self.minimum_kind}>"

    @abc.abstractmethod
    def excess(self, model: PyTree) -> Scalar:
        """L(model) - min L, as accurate near the minimum as its form allows; NaN if unknown."""

    @abc.abstractmethod
    def conserved(self, model: PyTree) -> Float[Array, "..."] | None:
        """The quantities that the flow conserves exactly, a number or an array; None if none is known."""

    @abc.abstractmethod
    def least_model(self) -> PyTree | None:
        """A model of least known loss, or None if unknown."""

    @property
    def subtracts(self) -> bool:
        """Whether the excess is the loss minus its minimum, which cancels near the minimum."""
        return False

    @eqx.filter_jit
    def gradient(self, model: PyTree) -> PyTree:
        """The gradient, in the shape of the model."""
        return eqx.filter_grad(self.__call__)(model)

    def arrowhead(self, model: PyTree) -> AbstractArrowhead | None:
        """The arrowhead structure of the flow from this model, or None."""
        return None

    def reduced(self, model: PyTree) -> AbstractReducedLayer | None:
        """The flow from this model in d + 2 numbers, if the loss is only known along this flow; else None."""
        return None

    def speeds(self, model: PyTree) -> PyTree | None:
        """c of d theta/dt = -c dL/d theta, a number for each array of the model; None for the plain flow, c = 1."""
        return None

    @property
    def may_have_kinks(self) -> bool:
        """Whether the loss may have kinks, walls or pits, as one with a function of a user may."""
        return False

    def replicates(self) -> tuple["AbstractPopulationLoss", ...]:
        """Independent estimates of a loss that is known by samples; empty if the loss is exact."""
        return ()


class FunctionLoss(AbstractPopulationLoss):
    """A loss given by a function of the model, differentiated by JAX.

    **Arguments:**

    - function: model -> scalar.
    - excess: model -> scalar, the loss above its minimum without cancellation, default function minus minimum.
    - minimum: the smallest value, if it is known.
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
