"""What every population loss offers, and a loss made of a user's own function."""

import abc
import enum
from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from equinox import AbstractVar
from jaxtyping import ArrayLike, PyTree

from flowsim._core import checks
from flowsim._core.types import Scalar
from flowsim.losses.arrowhead import AbstractArrowhead


class MinimumKind(enum.StrEnum):
    """How well the minimum of a loss is known."""

    EXACT = "exact"
    NUMERICAL = "numerical"
    UNKNOWN = "unknown"


class AbstractPopulationLoss(eqx.Module):
    """A population loss of a model. Minus its gradient is the vector field of the flow.

    minimum: the smallest value over all weights, NaN where unknown; minimum_kind: how well it is known.
    """

    minimum: AbstractVar[Scalar]
    minimum_kind: AbstractVar[MinimumKind]

    @abc.abstractmethod
    def __call__(self, model: PyTree) -> Scalar:
        """L(model)."""

    @abc.abstractmethod
    def excess(self, model: PyTree) -> Scalar:
        """L(model) - min L, as accurate near the minimum as its form allows; NaN where unknown."""

    @abc.abstractmethod
    def gradient(self, model: PyTree) -> PyTree:
        """The gradient, in the shape of the model."""

    @abc.abstractmethod
    def conserved(self, model: PyTree) -> Scalar | None:
        """A quantity that the flow conserves exactly, None where none is known."""

    @abc.abstractmethod
    def arrowhead(self, model: PyTree) -> AbstractArrowhead | None:
        """The arrowhead structure of the flow from this model, None where there is none."""

    @abc.abstractmethod
    def replicates(self) -> tuple["AbstractPopulationLoss", ...]:
        """Independent estimates of a loss that is known by samples only; empty where it is exact."""


class FunctionLoss(AbstractPopulationLoss):
    """A loss given by a function of the model, differentiated by JAX.

    **Arguments:** function: model -> scalar; excess: model -> scalar, the loss above its minimum without
    cancellation, default function minus minimum; minimum: the smallest value, where it is known.
    """

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

    def excess(self, model: PyTree) -> Scalar:
        if self.excess_function is None:
            return self(model) - self.minimum
        return self.excess_function(model)

    def gradient(self, model: PyTree) -> PyTree:
        return eqx.filter_grad(self.__call__)(model)

    def conserved(self, model: PyTree) -> None:
        return None

    def arrowhead(self, model: PyTree) -> None:
        return None

    def replicates(self) -> tuple[()]:
        return ()
