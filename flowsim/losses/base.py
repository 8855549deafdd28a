"""What every population loss offers, and a loss made of a user's own function."""

import abc
import enum
from collections.abc import Callable
from typing import Any, ClassVar

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
    """How well the minimum of a loss is known."""

    EXACT = "exact"
    NUMERICAL = "numerical"
    UNKNOWN = "unknown"


class AbstractPopulationLoss(eqx.Module):
    """A population loss of a model. Minus its gradient is the vector field of the flow.

    A loss gives `__call__`, `excess` and its minimum; all else has a default, which is that of an exact loss of which
    nothing further is known. minimum: the smallest value over all weights, NaN where unknown; minimum_kind: how well
    it is known; sampled: whether the loss is known by drawn prompts only; derived: whether its numbers were computed,
    and so are rounded, or are those that the loss is meant to have.
    """

    minimum: AbstractVar[Scalar]
    minimum_kind: AbstractVar[MinimumKind]
    sampled: ClassVar[bool] = False
    derived: ClassVar[bool] = True

    @abc.abstractmethod
    def __call__(self, model: PyTree) -> Scalar:
        """L(model)."""

    @abc.abstractmethod
    def excess(self, model: PyTree) -> Scalar:
        """L(model) - min L, as accurate near the minimum as its form allows; NaN where unknown."""

    @property
    def subtracts(self) -> bool:
        """Whether the excess is the loss minus its minimum, which cancels near the minimum."""
        return False

    def gradient(self, model: PyTree) -> PyTree:
        """The gradient, in the shape of the model."""
        return eqx.filter_grad(self.__call__)(model)

    def conserved(self, model: PyTree) -> Float[Array, "..."] | None:
        """What the flow conserves exactly, one number or an array of them, None where nothing is known."""
        return None

    def arrowhead(self, model: PyTree) -> AbstractArrowhead | None:
        """The arrowhead structure of the flow from this model, None if it has none."""
        return None

    def reduced(self, model: PyTree) -> AbstractReducedLayer | None:
        """The flow from this model in d + 2 numbers, where the loss is known along it alone; None elsewhere."""
        return None

    def speeds(self, model: PyTree) -> PyTree | None:
        """c of d theta/dt = -c dL/d theta, a number for each array of the model; None where c = 1, the plain flow."""
        return None

    def least_model(self) -> PyTree | None:
        """A model of least known loss, None where none is known."""
        return None

    def directions_outside(self, model: PyTree) -> int:
        """How many directions of the weights leave the set to which the flow of this loss is restricted."""
        return 0

    def facts(self, model: PyTree) -> dict[str, str]:
        """What a report says of this loss beside a flow that ends at a model, label and text."""
        return {}

    def replicates(self) -> tuple["AbstractPopulationLoss", ...]:
        """Independent estimates of a loss that is known by samples; empty where it is exact."""
        return ()

    def stated(self) -> "AbstractPopulationLoss":
        """The loss that statements read: of a sampled one the exact loss of the same problem, where it is known."""
        return self

    def prepared(self, model: PyTree) -> "AbstractPopulationLoss":
        """The loss ready for flows from a model: its prompts drawn, where it is known by prompts."""
        return self

    def undrawn(self) -> "AbstractPopulationLoss":
        """What the loss is of, without what changes its arithmetic by rounding alone: devices, blocks of samples."""
        return self

    def devices(self) -> jax.sharding.Mesh | None:
        """The devices that share the arithmetic, where there are several."""
        return None

    def fresh(self, model: PyTree) -> "AbstractPopulationLoss":
        """The loss by as many prompts that no flow has seen."""
        return self

    def distrust(self, model: PyTree, fresh: Any = None) -> str | None:
        """Why the value at a model cannot be trusted to be that of the population, None where it can."""
        return None


class FunctionLoss(AbstractPopulationLoss):
    """A loss given by a function of the model, differentiated by JAX.

    **Arguments:** function: model -> scalar; excess: model -> scalar, the loss above its minimum without
    cancellation, default function minus minimum; minimum: the smallest value, where it is known.
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
        self.minimum = jnp.asarray(jnp.nan) if minimum is None else checks.as_array("minimum", minimum, ())
        self.minimum_kind = MinimumKind.UNKNOWN if minimum is None else MinimumKind.EXACT

    def __call__(self, model: PyTree) -> Scalar:
        value = jnp.asarray(self.function(model))
        if value.shape != ():
            checks.refuse("function", "scalar-valued", f"its value has shape {value.shape}")
        return value

    @property
    def subtracts(self) -> bool:
        return self.excess_function is None and self.minimum_kind is not MinimumKind.UNKNOWN

    def excess(self, model: PyTree) -> Scalar:
        if self.excess_function is None:
            return self(model) - self.minimum
        return self.excess_function(model)
