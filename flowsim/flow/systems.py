"""Systems: gradient flows in the coordinates in which they are integrated, with the quantities recorded along them."""

import abc
import math
from typing import NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from flowsim._core.types import Scalar
from flowsim.flow import basin
from flowsim.flow.trajectory import AbstractDescent
from flowsim.losses import AbstractPopulationLoss
from flowsim.losses.arrowhead import AbstractArrowhead, Arrowhead, State
from flowsim.losses.closed_form import is_closed_form
from flowsim.losses.reduction import AbstractReducedLayer, Point, ReducedArrowhead
from flowsim.losses.sampled.blocks import COLUMNS
from flowsim.losses.sampled.monte_carlo import MonteCarloLoss

_EPS = float(jnp.finfo(jnp.float64).eps)
_COLUMNS = 256
_FEW = 256  # weights
_REDUCED_FROM = 64  # dimensions
_EXPONENTS = 1000  # of two, at which neither a power nor its inverse overflows
_EXPLAINED = 32.0  # times the rate at which weights change: the curvature that this change explains


class Record(NamedTuple):
    """The quantities recorded at one output time, or at several with time on the first axis. ``conserved`` is NaN
    if no conserved quantity is known; ``norm_sq`` is the squared norm of the weights.
    """

    state: PyTree
    loss: Scalar
    excess: Scalar
    grad_norm_sq: Scalar
    conserved: Float[Array, "..."]
    norm_sq: Scalar


def norm_sq(tree: PyTree) -> Scalar:
    """The sum of squares over all arrays of a tree."""
    return sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)), jnp.zeros(()))


def norm(tree: PyTree) -> Scalar:
    """The root of the sum of squares over all arrays of a tree, without underflow or overflow of the squares."""
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf), initial=0.0) for leaf in jax.tree.leaves(tree)]))
    # The result depends on the scale by rounding only.
    scale = jax.lax.stop_gradient(jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1.0))
    return jnp.where(jnp.isfinite(largest), scale, largest) * jnp.sqrt(norm_sq(jax.tree.map(lambda x: x / scale, tree)))


class AbstractSystem(eqx.Module):
    """A gradient flow in some coordinates of the weights. A state holds the coordinates of a model."""

    @abc.abstractmethod
    def encode(self, model: PyTree) -> PyTree:
        """The state of a model, its coordinates."""

    @abc.abstractmethod
    def decode(self, state: PyTree) -> PyTree:
        """The model at a state."""

    @abc.abstractmethod
    def field(self, state: PyTree) -> PyTree:
        """The velocity d state/dt, which is minus the gradient in isometric coordinates."""

    @abc.abstractmethod
    def speed(self, state: PyTree) -> Scalar:
        """The gradient norm |grad L|, in the scaled coordinates for a `ScaledSystem`."""

    @abc.abstractmethod
    def rate(self, state: PyTree) -> Scalar:
        """The rate |H g|/|g| at which the gradient g changes along the flow."""

    @abc.abstractmethod
    def entries(self, state: PyTree) -> int:
        """The number of weights of a model."""

    @abc.abstractmethod
    def excess(self, state: PyTree) -> Scalar:
        """The excess loss L - min L, NaN if the minimum is unknown."""

    @abc.abstractmethod
    def record(self, state: PyTree) -> Record:
        """The record of a state at an output time."""

    @abc.abstractmethod
    def landscape(self) -> basin.Landscape | None:
        """The flow in the form that the bounds of `basin` need, or None if the loss is sampled."""

    @abc.abstractmethod
    def way_to_go(self, state: PyTree, start: PyTree) -> float:
        """A proved bound on the length of the flow from a state to its limit; see `basin.way_to_go`."""

    @property
    def columns(self) -> int:
        """The number of columns of the Hessian to compute at once. Each takes as much memory as the field."""
        # The field of a sampled loss fills a memory that one evaluation fits.
        return COLUMNS if self.landscape() is None else _COLUMNS

    def descends(self, state: PyTree) -> bool:
        """Whether the field is minus the gradient of the loss; see `basin.descends`."""
        landscape = self.landscape()
        return landscape is None or basin.descends(landscape, state)

    def rests(self, state: PyTree) -> bool:
        """Whether a start with zero gradient in float64 is a critical point; see `basin.rests`."""
        landscape = self.landscape()
        return landscape is None or basin.rests(landscape, state)


class AbstractIsometricSystem(AbstractSystem):
    """A gradient flow in coordinates in which the field is minus the gradient."""

    def speed(self, state: PyTree) -> Scalar:
        return norm(self.field(state))

    def rate(self, state: PyTree) -> Scalar:
        field, speed = self.field(state), self.speed(state)
        # H g may be below the least number where g is not. A power of two scales both without rounding.
        scale = jnp.ldexp(1.0, -jnp.clip(jnp.frexp(speed)[1], -_EXPONENTS, _EXPONENTS))
        along = jax.tree.map(lambda x: scale * x, field)
        return norm(jax.jvp(self.field, (state,), (along,))[1]) / (scale * speed)

    def entries(self, state: PyTree) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(state))


class Descent(AbstractDescent):
    """The velocity d theta/dt of a model along the flow of a system."""

    system: AbstractSystem

    def __call__(self, model: PyTree) -> PyTree:
        weights = lambda state: eqx.filter(self.system.decode(state), eqx.is_inexact_array)
        state = self.system.encode(model)
        return jax.jvp(weights, (state,), (self.system.field(state),))[1]

    def way_to_go(self, model: PyTree, start: PyTree) -> float:
        return self.system.way_to_go(self.system.encode(model), self.system.encode(start))


def _with_energy(t, y, system: AbstractSystem):
    slope = system.field(y[0])
    return slope, norm_sq(jax.tree.map(jnp.ravel, slope))  # of rows, which a CPU sums up much faster


WITH_ENERGY = diffrax.ODETerm(_with_energy)
"""What a solver integrates: d state/dt = -grad L together with d energy/dt = |grad L|^2."""


class ArrowheadSystem(AbstractIsometricSystem):
    """The flow of an `AbstractArrowhead` in its weights (U, u), where the field is elementwise except for one sum."""

    arrowhead: AbstractArrowhead
    minimum: Scalar

    def encode(self, model: PyTree) -> State:
        return self.arrowhead.state(model)

    def decode(self, state: State) -> PyTree:
        return self.arrowhead.model(state)

    def field(self, state: State) -> State:
        return self.arrowhead.field(state)

    def excess(self, state: State) -> Scalar:
        return self.arrowhead.excess(state)

    def record(self, state: State) -> Record:
        U, u = state
        excess = self.arrowhead.excess(state)
        squares = jnp.sum(U**2)
        return Record(state, self.minimum + excess, excess, norm_sq(self.field(state)), u**2 - squares, u**2 + squares)

    def landscape(self) -> basin.Landscape:
        return basin.Landscape(self.field, lambda state: None, is_one_formula=True)

    def way_to_go(self, state: State, start: State) -> float:
        return float(_way_of_arrowhead(self.arrowhead, state))


@eqx.filter_jit
def _way_of_arrowhead(arrowhead: AbstractArrowhead, state: State) -> Scalar:
    return arrowhead.way_to_go(state)


class ReducedSystem(AbstractSystem):
    """The flow of an arrowhead in the diagonal of U, u and the clock s = int u^2 dt. A step costs O(d).

    These coordinates are not an isometry of the weights: the norm of the field is not the norm of the gradient.
    """

    layer: AbstractReducedLayer
    minimum: Scalar
    weights: int = eqx.field(static=True)

    def encode(self, model: PyTree) -> Point:
        return self.layer.point(model)

    def decode(self, state: Point) -> PyTree:
        return self.layer.model(state)

    def field(self, state: Point) -> Point:
        return self.layer.reduction.field(state)

    def speed(self, state: Point) -> Scalar:
        slope, moments = self.field(state), self.layer.reduction.sums(state.clock[None])[:, 0]
        return norm((slope.shaft, slope.u, state.u**2 * jnp.sqrt(jnp.maximum(moments[2], 0.0))))

    def rate(self, state: Point) -> Scalar:
        return self.layer.reduction.bend(state) / self.speed(state)

    def entries(self, state: Point) -> int:
        return self.weights

    def excess(self, state: Point) -> Scalar:
        return self.layer.reduction.seen(state).excess

    def record(self, state: Point) -> Record:
        seen = self.layer.reduction.seen(state)
        squares, excess = jnp.sum(state.shaft**2) + seen.moments[0], seen.excess
        u_squared = state.u**2
        return Record(state, self.minimum + excess, excess, seen.grad_norm_sq, u_squared - squares, u_squared + squares)

    def landscape(self) -> basin.Landscape:
        return basin.Landscape(self.field, lambda state: None, is_one_formula=True)

    def way_to_go(self, state: Point, start: Point) -> float:
        return float(self.layer.reduction.way_to_go(state))


class LossSystem(AbstractIsometricSystem):
    """The flow of any loss in the arrays of a model, by the gradient of the loss."""

    loss: AbstractPopulationLoss
    fixed: PyTree

    def encode(self, model: PyTree) -> PyTree:
        return eqx.filter(model, eqx.is_inexact_array)

    def decode(self, state: PyTree) -> PyTree:
        return eqx.combine(state, self.fixed)

    def field(self, state: PyTree) -> PyTree:
        return _descent(self.loss, self.decode(state))

    def excess(self, state: PyTree) -> Scalar:
        return self.loss.excess(self.decode(state))

    def record(self, state: PyTree) -> Record:
        model = self.decode(state)
        conserved = self.loss.conserved(model)
        return Record(
            state,
            self.loss(model),
            self.loss.excess(model),
            norm_sq(self.field(state)),
            jnp.asarray(jnp.nan) if conserved is None else conserved,
            norm_sq(state),
        )

    def landscape(self) -> basin.Landscape | None:
        if isinstance(self.loss, MonteCarloLoss):
            return None
        # Other losses may flow in symmetric matrices only, or have a formula for their gradient.
        is_its_own = type(self.loss).gradient is AbstractPopulationLoss.gradient
        loss = (lambda state: self.loss(self.decode(state))) if is_its_own else None
        return basin.Landscape(self.field, self._conserved_sum, loss, is_closed_form(self.loss))

    def way_to_go(self, state: PyTree, start: PyTree) -> float:
        landscape = self.landscape()
        return math.inf if landscape is None else basin.way_to_go(landscape, state, start)

    def _conserved_sum(self, state: PyTree) -> Scalar | None:
        conserved = self.loss.conserved(self.decode(state))
        return None if conserved is None else jnp.sum(conserved)


# A step evaluates the field in several places, and a compiled function is traced once for all of them.
@eqx.filter_jit
def _descent(loss: AbstractPopulationLoss, model: PyTree) -> PyTree:
    return jax.tree.map(jnp.negative, eqx.filter(loss.gradient(model), eqx.is_inexact_array))


class ScaledSystem(AbstractIsometricSystem):
    """The flow d theta/dt = -c grad L, with a number c for each array. It is a gradient flow in theta / sqrt(c)."""

    plain: LossSystem
    roots: PyTree

    def encode(self, model: PyTree) -> PyTree:
        return jax.tree.map(jnp.divide, self.plain.encode(model), self.roots)

    def decode(self, state: PyTree) -> PyTree:
        return self.plain.decode(self._weights(state))

    def field(self, state: PyTree) -> PyTree:
        return jax.tree.map(jnp.multiply, self.plain.field(self._weights(state)), self.roots)

    def excess(self, state: PyTree) -> Scalar:
        return self.plain.excess(self._weights(state))

    def record(self, state: PyTree) -> Record:
        record = self.plain.record(self._weights(state))
        return record._replace(state=state, grad_norm_sq=norm_sq(self.field(state)), norm_sq=norm_sq(state))

    def landscape(self) -> basin.Landscape | None:
        if (plain := self.plain.landscape()) is None:
            return None
        loss = plain.loss
        of_state = None if loss is None else (lambda state: loss(self._weights(state)))
        return basin.Landscape(self.field, lambda state: None, of_state, plain.is_one_formula)

    def way_to_go(self, state: PyTree, start: PyTree) -> float:
        landscape = self.landscape()
        largest = max(float(jnp.max(root)) for root in jax.tree.leaves(self.roots))
        return math.inf if landscape is None else largest * basin.way_to_go(landscape, state, start)

    def _weights(self, state: PyTree) -> PyTree:
        return jax.tree.map(jnp.multiply, state, self.roots)


def loss_system(loss: AbstractPopulationLoss, model: PyTree) -> LossSystem | ScaledSystem:
    """The flow of a loss in the arrays of the model, without use of an arrowhead or another structure."""
    plain = LossSystem(loss, eqx.filter(model, eqx.is_inexact_array, inverse=True))
    speeds = loss.speeds(model)
    return plain if speeds is None else ScaledSystem(plain, jax.tree.map(jnp.sqrt, plain.encode(speeds)))


def system_of(loss: AbstractPopulationLoss, model: PyTree, solver: str) -> tuple[AbstractSystem, str]:
    """The system and the name of the solver for a flow from a model. ``solver`` is as for `gradient_flow`."""
    reduced = loss.reduced(model)
    if reduced is not None:
        return ReducedSystem(reduced, loss.minimum, _count(model)), "arrowhead"
    arrowhead = loss.arrowhead(model) if solver == "auto" else None
    if arrowhead is not None:
        return ArrowheadSystem(arrowhead, loss.minimum), "arrowhead"
    if solver == "auto":
        # For few weights a Hessian is cheap, unless the field is a sum over samples. Otherwise it pays to measure which
        # solver needs less work.
        solver = "implicit" if _count(model) <= _FEW and not isinstance(loss, MonteCarloLoss) else "in-turns"
    return loss_system(loss, model), solver


def reduced_where_large(system: AbstractSystem, model: PyTree) -> AbstractSystem:
    """The reduction of an arrowhead flow with many weights; any other flow unchanged."""
    if not isinstance(system, ArrowheadSystem) or not isinstance(system.arrowhead, Arrowhead):
        return system
    if system.arrowhead.drive.size < _REDUCED_FROM:
        return system
    state = system.encode(model)
    return ReducedSystem(ReducedArrowhead.of(system.arrowhead, state), system.minimum, system.entries(state))


def _count(model: PyTree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)))


def pace(system: AbstractSystem, state: PyTree) -> tuple[Scalar, Scalar]:
    """The gradient norm |g| at a state, and the time |g|/|H g| in which g changes there; 1/|g| if H g = 0."""
    speed, rate = system.speed(state), system.rate(state)
    return speed, 1 / jnp.where(rate > 0, rate, speed)


def leads_away(rates: Array, basis: Array, weights: Array, slope: Array) -> Bool[Array, ""]:
    """Whether a flow with a small gradient is near a saddle that it will leave: the Jacobian has an eigenvalue
    above its rounding and far above the relative rate of change of the weights. Weights that stay zero do not
    count.

    **Arguments:** rates, basis: (k,) eigenvalues and (n, k) eigenvectors of the Jacobian; weights, slope: (n,)
    each, the weights and the field there.
    """
    rounding = 32 * _EPS * jnp.max(jnp.abs(rates))
    # On the way into a valley of minima the curvature across it decreases with the gradient.
    explained = _EXPLAINED * jnp.max(jnp.abs(slope)) / jnp.max(jnp.abs(weights))
    moves = jnp.where((weights != 0) | (slope != 0), 1.0, 0.0) @ basis**2
    return jnp.any((rates > rounding) & (rates > explained) & (moves > _EPS))


def is_rounding(system: AbstractSystem, state: PyTree) -> Bool[Array, ""]:
    """Whether the whole field consists of rounding, by the test of `rounded`."""
    return jnp.all(jnp.stack([jnp.all(leaf) for leaf in jax.tree.leaves(rounded(system, state))]))


def rounded(system: AbstractSystem, state: PyTree) -> PyTree:
    """Whether each entry of the field is rounding: at most 8 times its change by rounding of the weights."""
    # In one batch, so that the field is compiled once.
    nudges = 1 + jnp.asarray([0.0, 4 * _EPS, -4 * _EPS])
    slopes = jax.vmap(lambda nudge: system.field(jax.tree.map(lambda x: x * nudge, state)))(nudges)

    def still(slopes):
        return jnp.abs(slopes[0]) <= 8 * jnp.max(jnp.abs(slopes[1:] - slopes[:1]), axis=0)

    return jax.tree.map(still, slopes)
