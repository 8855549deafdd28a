"""An exact loss as a function of other weights, which a map turns into a model of the loss."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from flowsim._core import checks
from flowsim._core.types import Scalar
from flowsim.losses.base import AbstractPopulationLoss, MinimumKind
from flowsim.losses.sampled.monte_carlo import MonteCarloLoss

_RELATIVE = 1e-12  # an excess at the least model below this part of the loss at zero weights is rounding


class Reparametrized(AbstractPopulationLoss):
    """The loss L(lift(theta)) for an exact loss L and a map ``lift`` from new weights theta to models of L.

    The field ``minimum`` is min L if L(lift(least_model)) = min L, and its kind is the kind of min L. If
    L(lift(least_model)) is larger, as with keys and queries of low rank, ``minimum`` is L(lift(least_model)) and
    counts as numerical. Without ``least_model``, ``minimum`` is min L and counts as numerical.

    **Arguments:**

    - loss: the exact loss L.
    - lift: theta -> a model of L, written in JAX, such as an Equinox module or a function.
    - least_model: the weights theta of least loss.
    - conserved: theta -> the values of the quantities that the flow conserves, a number or an array.

    **Raises:** `ValueError` for a sampled loss, and if the lift does not return a model of L.
    """

    loss: AbstractPopulationLoss
    lift: Callable[[PyTree], PyTree]
    least: PyTree | None
    conserves: Callable[[PyTree], Float[Array, "..."]] | None
    minimum: Scalar
    minimum_kind: MinimumKind = eqx.field(static=True)

    def __init__(
        self,
        loss: AbstractPopulationLoss,
        lift: Callable[[PyTree], PyTree],
        *,
        least_model: PyTree | None = None,
        conserved: Callable[[PyTree], Float[Array, "..."]] | None = None,
    ):
        if isinstance(loss, MonteCarloLoss):
            checks.refuse("loss", "an exact one", f"it is a {type(loss).__name__}, which is known by samples")
        self.loss, self.lift, self.least, self.conserves = loss, lift, least_model, conserved
        self.minimum, kind = loss.minimum, loss.minimum_kind
        known = kind is MinimumKind.EXACT
        if least_model is not None:
            excess = loss.excess(self._lifted(least_model))
            scale = jnp.abs(loss.minimum) + jnp.abs(loss(jax.tree.map(jnp.zeros_like, self._lifted(least_model))))
            if not checks.is_concrete(excess) or not float(excess) <= _RELATIVE * float(scale):
                self.minimum, known = loss.minimum + excess, False
        elif kind is not MinimumKind.UNKNOWN:
            known = False
        self.minimum_kind = kind if known or kind is MinimumKind.UNKNOWN else MinimumKind.NUMERICAL

    def __call__(self, model: PyTree) -> Scalar:
        return self.loss(self._lifted(model))

    def excess(self, model: PyTree) -> Scalar:
        return self.loss.excess(self._lifted(model)) - (self.minimum - self.loss.minimum)

    def gradient(self, model: PyTree) -> PyTree:
        moving, fixed = eqx.partition(model, eqx.is_inexact_array)
        lifted, pull = jax.vjp(lambda m: eqx.filter(self._lifted(eqx.combine(m, fixed)), eqx.is_inexact_array), moving)
        # The `gradient` of the loss may be more accurate than the derivative of its value.
        whole = self._lifted(model)
        slope = eqx.filter(self.loss.gradient(eqx.combine(lifted, whole)), eqx.is_inexact_array)
        return eqx.combine(pull(slope)[0], fixed)

    def least_model(self) -> PyTree | None:
        """The argument ``least_model``: the weights of least loss, or None if they were not given."""
        return self.least

    @property
    def may_have_kinks(self) -> bool:
        return True

    def conserved(self, model: PyTree) -> Float[Array, "..."] | None:
        return None if self.conserves is None else self.conserves(model)

    def replicates(self) -> tuple["Reparametrized", ...]:
        """This loss with L replaced by each replicate of L.

        The minimum of each replicate over theta is unknown. It is estimated as the minimum of the replicate of L
        plus the smaller of two numbers: the minimum of this loss minus the minimum of L, and the excess of the
        replicate of L at lift(least_model).
        """

        def of(other: AbstractPopulationLoss) -> "Reparametrized":
            above = self.minimum - self.loss.minimum
            if self.least is not None:
                above = jnp.minimum(above, other.excess(self._lifted(self.least)))
            return eqx.tree_at(lambda m: (m.loss, m.minimum), self, (other, other.minimum + above))

        return tuple(of(other) for other in self.loss.replicates())

    def _lifted(self, model: PyTree) -> PyTree:
        lifted, least = self.lift(model), self.loss.least_model()
        if least is not None and type(lifted) is not type(least):
            checks.refuse("lift", f"a map to a {type(least).__name__}", f"it returned a {type(lifted).__name__}")
        return lifted
