"""The kernel that makes the steps of flows in lockstep, for any exact loss."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, PyTree

from flowsim._core.types import Scalar
from flowsim.flow.solvers.dense.radau import DenseRadau, Kept
from flowsim.flow.solvers.dense.saddles import may_creep
from flowsim.flow.solvers.lockstep import FIRST_STEP, AbstractKernel, View
from flowsim.flow.solvers.step_size import own_sizes
from flowsim.flow.systems import WITH_ENERGY, AbstractSystem, leads_away, norm_sq, pace
from flowsim.losses import AbstractPopulationLoss
from flowsim.losses.sampled.monte_carlo import MonteCarloLoss

MOST_WEIGHTS = 256  # the largest number for flows in lockstep
STEPS_PER_DECADE = 12  # the least number in a decade of time
_EPS = float(jnp.finfo(jnp.float64).eps)


def can_go_in_lockstep(loss: AbstractPopulationLoss, model: PyTree) -> bool:
    """Whether flows of a loss from models like ``model`` suit lockstep: the loss is exact and the weights are few."""
    size = sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)))
    return not isinstance(loss, MonteCarloLoss) and 0 < size <= MOST_WEIGHTS


class DenseKernel(AbstractKernel):
    """Makes steps by `DenseRadau`, with the tolerances of `gradient_flow`. The ``point`` of a `View` is a state of
    the system.

    **Fields:** system, start: the flow and its state at t = 0; rtol: the relative error of a step; sizes: the sizes
    of the weights at the start; timescale, growth: as in `AbstractKernel`.
    """

    system: AbstractSystem
    start: PyTree
    rtol: Scalar
    sizes: PyTree
    timescale: Scalar
    growth: float = 10 ** (1 / STEPS_PER_DECADE) - 1

    @staticmethod
    def of(system: AbstractSystem, start: PyTree, rtol: Scalar) -> "DenseKernel":
        """The kernel for the flow of a system from the state ``start``."""
        speed, timescale = pace(system, start)
        sizes = own_sizes(start, speed * timescale)
        return DenseKernel(system=system, start=start, rtol=rtol, sizes=sizes, timescale=timescale)

    def begin(self) -> tuple[Kept, View]:
        y = (self.start, jnp.zeros(()))
        zero = jnp.zeros(())
        kept = self._solver.init(WITH_ENERGY, zero, FIRST_STEP * self.timescale, y, self.system)
        return kept, self._view(zero, y, None, jnp.asarray(False), jnp.asarray(False))

    def step(self, kept: Kept, view: View, length: Scalar) -> tuple[Kept, View, Scalar]:
        y, t = (view.point, view.dissipated), view.t
        y, error, _, kept, _ = self._solver.step(WITH_ENERGY, t, t + length, y, self.system, kept, made_jump=False)
        weights, rates = ravel_pytree(y[0])[0], kept.curvature.eigenvalues
        at_rest = jnp.max(rates) <= 32 * _EPS * jnp.max(jnp.abs(rates))
        still = at_rest | jnp.all(jnp.abs(kept.slope) <= 8 * kept.curvature.noise(weights))
        there = rates, kept.curvature.basis, weights, kept.slope
        leaves = leads_away(*there) | may_creep(*there)
        return kept, self._view(t + length, y, view, still, leaves), error

    def anew(self, kept: Kept, t: Scalar) -> Kept:
        return kept._replace(begin=kept.begin - t)

    @property
    def _solver(self) -> DenseRadau:
        weights = sum(leaf.size for leaf in jax.tree.leaves(self.start))
        no_atol = jnp.zeros(())
        return DenseRadau(self.rtol, no_atol, self.sizes, jnp.asarray(weights), self.system.columns, weights)

    def _view(
        self,
        t: Scalar,
        y: tuple[PyTree, Scalar],
        before: View | None,
        still: Bool[Array, ""],
        leaves: Bool[Array, ""],
    ) -> View:
        state, dissipated = y
        excess, grad_norm_sq = self.system.excess(state), norm_sq(self.system.field(state))
        if before is None:
            nodes = [jnp.stack([number, number]) for number in (t, excess, grad_norm_sq)]
        else:
            ends = [(before.t, t), (before.excess, excess), (before.grad_norm_sq, grad_norm_sq)]
            nodes = [jnp.stack(both) for both in ends]
        return View(
            t=t,
            point=state,
            excess=excess,
            grad_norm_sq=grad_norm_sq,
            norm_sq=norm_sq(state),
            dissipated=dissipated,
            still=still,
            leaves=leaves,
            nodes=(nodes[0], nodes[1], nodes[2]),
        )
