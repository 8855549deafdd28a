"""Where a flow rests on its way down: the levels that its loss stays near, and what leaves each of them."""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from flowsim._core import checks
from flowsim.claims.critical_points.end_points import LARGEST_HESSIAN, Inertia, inertia, newton_step, signs, spectrum
from flowsim.flow.solvers.clock import lengths
from flowsim.flow.systems import loss_system
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import AbstractPopulationLoss
from flowsim.losses.sampled.monte_carlo import prepared

_ROUNDING = 64  # eps of what is subtracted
_LASTING = 0.1  # of an eigenvalue, that a step of Newton's method leaves of it


@dataclasses.dataclass(frozen=True)
class Plateau:
    """A stretch of time over which a flow is slow and its loss stays near one level.

    level: the loss at its slowest point; enter, leave: times, leave infinite where the flow was not seen to leave;
    slowest: the time at which |grad L| is least, grad_norm: there. With a loss, also at that point: inertia of the
    Hessian; leaving: the directions of negative curvature, orthonormal, shaped like the model with one more axis
    in front; rates: minus their eigenvalues, fastest first. All three are None without a loss or above 700 weights.
    """

    level: float
    enter: float
    leave: float
    slowest: float
    grad_norm: float
    inertia: Inertia | None = None
    leaving: PyTree | None = None
    rates: np.ndarray | None = None

    @property
    def index(self) -> int | None:
        """How many directions leave: the number of negative eigenvalues of the Hessian."""
        return None if self.inertia is None else self.inertia.negative


def plateaus(
    trajectory: Trajectory, loss: AbstractPopulationLoss | None = None, fraction: float = 0.01
) -> tuple[Plateau, ...]:
    """The plateaus of a flow, such as the saddles that it passes from a small start, in the order of time.

    With c the fraction and g = |grad L|^2 = -dL/dt, a plateau is a local minimum of g that is at most c times the
    largest g since the plateau before it and c times the largest g until the next one. It is entered when all but c
    of the loss that is lost since the plateau before is lost, and left when c of the loss that is lost until the next
    one is. These orders and shares are the same in linear and in logarithmic time. A drop counts where more is lost
    than the solver's tolerance and rounding leave open, rtol of all that is lost and 64 eps of the loss: noise in g
    makes no plateaus.

    At the ends of the flow there is one side only. A start that is slower than c of the first maximum is on a plateau,
    which it enters at 0. A flow that ends slower than c of the last maximum ends on one, left at infinity, whether it
    is the minimum or a saddle that the flow did not see enough of. From a start that is on none the first drop counts
    from time 0; one that the flow ends in counts as far as it got, so that the time of leaving is a lower bound. A
    flow that falls for ever, as e^{-t} does, has one plateau, its last; one that is too short to slow down or speed up
    by the factor c has none; one that rests has one for all time. A valley, in which a flow slows down and does not
    speed up again, is a step of the loss in logarithmic time, and no plateau.

    **Arguments:** loss: of the flow, for the Hessians at the slowest points, which are output times. An eigenvalue
    counts as zero within 1e-9 of the largest, or where one step of Newton's method towards the critical point leaves
    less than a tenth of it: that much the gradient alone makes, along the orbits of a symmetry. Where three or more
    factors are small together the Hessian at the saddle itself is zero on them, at the slowest point it is not, and
    the signs and rates are those at that point; fraction: c, below one half.

    **Raises:** `ValueError` where the fraction is not between 0 and 1/2.
    """
    if not 0 < fraction < 0.5:
        checks.refuse("fraction", "above 0 and below 0.5", f"it is {fraction:g}")
    t, speed, lost = (np.asarray(x) for x in (trajectory.t, trajectory.grad_norm_sq, trajectory.dissipated))
    if not np.any(speed):
        return (_plateau(trajectory, loss, 0, (float(t[0]), math.inf)),)
    slow, falls_first, falls_last = _slow_points(lengths(trajectory), speed, lost, fraction)
    noise = _ROUNDING * np.finfo(float).eps * np.max(np.abs(trajectory.loss)) + trajectory.settings.rtol * lost[-1]
    slow = _apart(slow, speed, lost, noise)
    if not slow:
        return ()
    # What is lost at the two ends counts as a level where the flow falls there.
    first = [0] if falls_first and lost[slow[0]] - lost[0] > noise else []
    last = [t.size - 1] if falls_last and lost[-1] - lost[slow[-1]] > noise else []
    levels = [*first, *slow, *last]
    found = []
    for place, here in enumerate(levels):
        if here not in slow:
            continue
        enter, leave = float(t[0]), math.inf
        if place:
            target = lost[here] - fraction * (lost[here] - lost[levels[place - 1]])
            enter = _crossing(trajectory, target, lost[here], levels[place - 1])
        if place + 1 < len(levels):
            target = lost[here] + fraction * (lost[levels[place + 1]] - lost[here])
            leave = _crossing(trajectory, target, lost[here], here)
        found.append(_plateau(trajectory, loss, here, (enter, leave)))
    return tuple(found)


def _slow_points(
    times: np.ndarray, speed: np.ndarray, lost: np.ndarray, fraction: float
) -> tuple[list[int], bool, bool]:
    """The rows of the minima of the speed that are lower than the maxima between them by the fraction, and whether the
    flow falls before the first of them and after the last.
    """
    # The mean speed over a step is reached within it: a drop that is over between two output times counts too.
    steps = np.diff(lost)
    means = np.where(steps > _ROUNDING * np.finfo(float).eps * lost[1:], steps / times, speed[1:])
    values = np.empty(2 * speed.size - 1)
    values[::2], values[1::2] = speed, means
    turns = []
    low = high = 0
    slowing = None  # until the first turn is known
    for row, value in enumerate(values):
        if value < values[low]:
            low = row
        if value > values[high]:
            high = row
        if slowing is not True and value < values[high] and value <= fraction * values[high]:
            turns.append((high, False))
            slowing, low = True, row
        elif slowing is not False and value > values[low] and values[low] <= fraction * value:
            turns.append((low, True))
            slowing, high = False, row
    if slowing is None:
        return [], False, False
    turns.append((low, True) if slowing else (high, False))
    sides = [(row // 2, (row + 1) // 2) for row, is_slow in turns if is_slow]
    return [min(pair, key=lambda row: speed[row]) for pair in sides], not turns[0][1], not turns[-1][1]


def _apart(slow: list[int], speed: np.ndarray, lost: np.ndarray, noise: float) -> list[int]:
    """The slow points with more than noise lost from each to the next; of others the slower one."""
    kept: list[int] = []
    for row in slow:
        if not kept or lost[row] - lost[kept[-1]] > noise:
            kept.append(row)
        elif speed[row] < speed[kept[-1]]:
            kept[-1] = row
    return kept


def _crossing(trajectory: Trajectory, target: float, level: float, after: int) -> float:
    """The first time after a row at which so much is lost, by Hermite's cubic for t as a function of
    log|lost - level|, which is a line where the flow comes to the level, or leaves it, exponentially.
    """
    t, speed, lost = (np.asarray(x) for x in (trajectory.t, trajectory.grad_norm_sq, trajectory.dissipated))
    row = after + int(np.argmax(lost[after:] >= target))
    ends = slice(row - 1, row + 1)
    gaps = lost[ends] - level
    if not np.all(gaps) or not np.all(speed[ends]):
        return float(np.interp(target, lost[ends], t[ends]))
    place = np.log((target - level) / gaps[0]) / np.log(gaps[1] / gaps[0])
    width = np.log(gaps[1] / gaps[0])
    before, behind = width * gaps / speed[ends]
    left = (1 + 2 * place) * (1 - place) ** 2 * t[row - 1] + place * (1 - place) ** 2 * before
    right = place**2 * (3 - 2 * place) * t[row] - place**2 * (1 - place) * behind
    return float(np.clip(left + right, t[row - 1], t[row]))


def _plateau(
    trajectory: Trajectory, loss: AbstractPopulationLoss | None, row: int, times: tuple[float, float]
) -> Plateau:
    """The plateau whose slowest point is an output time, with what the loss says of it."""
    level, grad_norm = float(trajectory.loss[row]), float(np.sqrt(trajectory.grad_norm_sq[row]))
    plain = Plateau(level, *times, slowest=float(trajectory.t[row]), grad_norm=grad_norm)
    model = trajectory.row(row)
    weights = sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)))
    if loss is None or weights > LARGEST_HESSIAN:
        return plain
    values, directions = _curvature(prepared(loss, trajectory.start), model)
    values = np.asarray(values)
    leaves = np.flatnonzero(signs(values) < 0)
    leaving = jax.tree.map(lambda leaf: leaf[leaves] if eqx.is_inexact_array(leaf) else leaf, directions)
    return dataclasses.replace(plain, inertia=inertia(values), leaving=leaving, rates=-values[leaves])


@eqx.filter_jit
def _curvature(loss: AbstractPopulationLoss, model: PyTree) -> tuple[Float[Array, " n"], PyTree]:
    """The Hessian's eigenvalues, the lowest first, and its eigenvectors in the shape of the model, in the coordinates
    in which the flow is steepest descent. Eigenvalues that do not outlast a step of Newton's method are zero.
    """
    system = loss_system(loss, model)
    flat, unravel = ravel_pytree(system.encode(model))
    gradient = lambda x: -ravel_pytree(system.field(unravel(x)))[0]
    slope, values, vectors = spectrum(gradient, flat)
    nearer = flat - newton_step(slope, values, vectors)
    curvature = lambda vector: vector @ jax.jvp(gradient, (nearer,), (vector,))[1]
    lasting = jax.vmap(curvature)(vectors.T) * jnp.sign(values) >= _LASTING * jnp.abs(values)
    in_weights = lambda vector: eqx.filter(system.decode(unravel(vector)), eqx.is_inexact_array)
    directions = eqx.combine(jax.vmap(in_weights)(vectors.T), eqx.filter(model, eqx.is_inexact_array, inverse=True))
    return jnp.where(lasting, values, 0.0), directions
