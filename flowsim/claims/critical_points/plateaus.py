"""The plateaus of a flow: levels near which its loss stays for a while, and the directions in which the flow leaves
them.
"""

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

_ROUNDING = 64  # units of rounding of the terms of a difference
_LASTING = 0.1  # an eigenvalue counts as zero if one Newton step leaves less than this fraction of it


@dataclasses.dataclass(frozen=True)
class Plateau:
    """A stretch of time in which a flow is slow and its loss stays near one level.

    **Fields:**

    - level: the loss at the slowest point, where |grad L| is least.
    - enter, leave: the times of entering and leaving; ``leave`` is infinite if the run ends first.
    - slowest: the time of the slowest point.
    - grad_norm: |grad L| at the slowest point.
    - inertia: the numbers of negative, zero and positive eigenvalues of the Hessian at the slowest point.
    - leaving: the directions of negative curvature at the slowest point, orthonormal, in the shape of the model
      with one more axis in front, of the length of ``rates``.
    - rates: minus the eigenvalues that belong to these directions, fastest first.

    ``inertia``, ``leaving`` and ``rates`` are None if no loss was given, or for more than 700 weights.
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
        """The number of negative eigenvalues of the Hessian at the slowest point; None if it was not computed."""
        return None if self.inertia is None else self.inertia.negative


def plateaus(
    trajectory: Trajectory, loss: AbstractPopulationLoss | None = None, fraction: float = 0.01
) -> tuple[Plateau, ...]:
    """The plateaus of a flow, such as the saddles that it passes from a small start, in the order of time.

    Let c be the fraction and g = |grad L|^2 = -dL/dt. A plateau is a local minimum of g that is at most c times the
    largest g since the plateau before, and at most c times the largest g until the next plateau. The flow enters it
    when a fraction 1 - c of the drop of the loss since the plateau before has happened, and leaves it when a
    fraction c of the drop to the next plateau has happened. These fractions do not depend on whether time is linear
    or logarithmic. A drop counts if it exceeds the solver's tolerance (rtol times the whole drop) plus rounding (64
    eps of the loss), so that noise in g makes no plateaus.

    The first and the last plateau have a drop on one side only. A start at which g is below c times its first
    maximum is on a plateau, entered at 0. A flow that ends with g below c times its last maximum ends on a plateau,
    left at infinity: a minimum, or a saddle that the run did not leave. If the start is not on a plateau, the first
    drop counts from time 0. If the run ends during a drop, the drop counts as far as it got, and the time of
    leaving is a lower bound.

    A flow that decays steadily, such as e^{-t}, has one plateau, its last. A run too short for g to change by the
    factor c has none. A flow at rest has one for all time. In a valley a flow slows down and does not speed up
    again, so that a valley is not a plateau.

    **Arguments:**

    - trajectory: the flow.
    - loss: the loss of the flow, needed for the Hessians at the slowest points, which are output times. An
      eigenvalue counts as zero if it is within 1e-9 of the largest, or if less than a tenth of it remains after one
      Newton step towards the critical point: a nonzero gradient alone makes such curvature along the orbits of a
      symmetry. Where three or more factors are small together, the Hessian vanishes on them at the saddle but not
      at the slowest point; the signs and rates are those at the slowest point.
    - fraction: c, below one half.

    **Raises:** `ValueError` if the fraction is not between 0 and 1/2.
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
    # The losses at the start and the end of the run bound a drop if the flow falls there.
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
    """The rows at which |grad L|^2 is least between two maxima and at most ``fraction`` times both.

    **Arguments:**

    - times: (T - 1,) the time from each row to the next.
    - speed: (T,) |grad L|^2.
    - lost: (T,) by how much the loss has fallen since the start.
    - fraction: the factor c of `plateaus`.

    **Returns:** the rows, whether the loss falls before the first row, and whether it falls after the last.
    """
    # The mean speed over a step is taken within it, so that a drop between two output times counts too.
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
    """The slow points between which the loss falls by more than ``noise``. Of two points with a smaller drop
    between them, only the one with the smaller |grad L|^2 is returned.
    """
    kept: list[int] = []
    for row in slow:
        if not kept or lost[row] - lost[kept[-1]] > noise:
            kept.append(row)
        elif speed[row] < speed[kept[-1]]:
            kept[-1] = row
    return kept


def _crossing(trajectory: Trajectory, target: float, level: float, after: int) -> float:
    """The first time after row ``after`` at which the loss has fallen by ``target`` since the start.

    It is interpolated by Hermite's cubic for t as a function of log|lost - level|, where ``lost`` is the fall of
    the loss since the start. This function is linear where the flow approaches or leaves the level exponentially.
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
    """The plateau with this row as its slowest point, and ``times`` = (enter, leave)."""
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
    """The Hessian's eigenvalues, lowest first, and its eigenvectors in the shape of the model with one more axis in
    front.

    The Hessian is taken in the coordinates in which the flow is steepest descent. Eigenvalues that one Newton step
    removes are set to zero.
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
