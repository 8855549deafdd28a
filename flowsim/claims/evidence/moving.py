"""Perturbed starts, weights and losses, to measure the effect of rounding, and bounds on the error of weights beyond
it.
"""

import functools
import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from flowsim._core.balls.enclosure import lower, upper
from flowsim._core.balls.operations import Balls
from flowsim.flow.solvers.dense.curvature import eigenvectors
from flowsim.flow.solvers.integration import ALWAYS_WHOLE
from flowsim.flow.systems import AbstractIsometricSystem, AbstractSystem, LossSystem, ScaledSystem
from flowsim.flow.trajectory import AbstractDescent, Trajectory
from flowsim.losses import AbstractPopulationLoss
from flowsim.losses.sampled.monte_carlo import MonteCarloLoss

ROUNDING = 4 * float(np.finfo(np.float64).eps)
NEGLIGIBLE = 1e-276  # the absolute error of a weight that no solver resolves, over all steps
_EXPLAINED = 8.0  # times the effect of rounding the weights: a larger error of the field has another cause
_FELT = 8.0  # times its rounding: a solver may take a smaller field for zero
_FLAT = 32 * float(np.finfo(np.float64).eps)  # of the largest curvature: a smaller one is rounding
_MOST_MOVED = 1e3  # times a weight: its largest perturbation
_UNTWISTED, _TWISTED = 1e-12, 1e-8  # of a matrix: its antisymmetric part is rounding, or is not
_KEPT = 1e-10  # of a field: an antisymmetric part that is rounding
_LOST = 1e150  # a distance beyond which nothing is known


def is_symmetric(leaf: np.ndarray) -> bool:
    """Whether an array holds matrices, larger than 1 x 1, that are bitwise symmetric."""
    square = leaf.ndim > 1 and leaf.shape[-1] == leaf.shape[-2] > 1
    return square and np.array_equal(leaf, np.swapaxes(leaf, -1, -2))


def moved(start: PyTree, amount: float) -> PyTree:
    """A start with each number perturbed by a different relative amount.

    Equal or opposite numbers become different, but symmetric matrices stay symmetric and zeros stay zero.
    """

    def move(place: int, leaf):
        if not eqx.is_inexact_array(leaf):
            return leaf
        values = np.asarray(leaf)
        drawn = np.random.default_rng(place).uniform(0, 2 * np.pi, (values.ndim, max(values.shape, default=0)))
        if is_symmetric(values):
            # The sum over the axes is then equal for the entries (i, j) and (j, i).
            drawn[-2] = drawn[-1]
        shares = [row[index] for row, index in zip(drawn, np.indices(values.shape), strict=True)]
        return jax.device_put(values * (1 + amount * np.cos(1.0 + place + sum(shares))))

    leaves, structure = jax.tree.flatten(start)
    return jax.tree.unflatten(structure, [move(place, leaf) for place, leaf in enumerate(leaves)])


def nudged(tree: PyTree, amount: float) -> PyTree:
    """A tree with its numbers perturbed by a relative amount with alternating signs. Symmetric matrices stay
    symmetric.
    """
    move = lambda leaf: _alternately(leaf, amount) if eqx.is_inexact_array(leaf) else leaf
    return jax.tree.map(move, tree)


def noise_of(function: Callable[[PyTree], PyTree], here: PyTree, models: PyTree) -> PyTree:
    """The change of a function by rounding of its models.

    **Arguments:** function; here: its values at the models; models.
    """
    # In one pattern the errors of the weights may cancel.
    others = (function(change(models, by)) for change in (moved, nudged) for by in (ROUNDING, -ROUNDING))
    apart = lambda x, *others: np.max([np.abs(np.asarray(other) - np.asarray(x)) for other in others], axis=0)
    return jax.tree.map(apart, here, *others)


def nudged_rows(models: PyTree, amount: float, drift: PyTree) -> PyTree:
    """As `nudged` for models with time on the first axis, with a relative perturbation that is larger in each row by
    its drift.

    **Arguments:** models; amount: as for `nudged`; drift: (T,) for each array of weights, relative to its largest
    weight.
    """
    weights, rest = eqx.partition(models, eqx.is_inexact_array)

    def move(leaf, drift):
        sizes = _largest(leaf)
        further = np.where(sizes > 0, np.minimum(drift / np.where(sizes > 0, sizes, 1.0), _MOST_MOVED), 0.0)
        return _alternately(leaf, amount + np.sign(amount) * further.reshape(-1, *[1] * (leaf.ndim - 1)))

    return eqx.combine(jax.tree.map(move, weights, drift), rest)


def _alternately(leaf: Array, amount: float | np.ndarray) -> Array:
    signs = functools.reduce(np.multiply.outer, [1.0 - 2.0 * (np.arange(length) % 2) for length in leaf.shape], 1.0)
    return jax.device_put(np.asarray(leaf) * (1 + amount * signs))


def _largest(leaf: Array) -> Float[np.ndarray, " T"]:
    """The largest size of a weight in each row of an array."""
    return np.max(np.abs(np.asarray(leaf)).reshape(leaf.shape[0], -1), axis=1, initial=0.0)


def nudged_loss(loss: AbstractPopulationLoss, amount: float) -> AbstractPopulationLoss:
    """A loss with its numbers moved, except whole ones, since lengths and dimensions are exact, and samples."""
    if isinstance(loss, MonteCarloLoss):
        return loss

    def choose(leaf, moved):
        if not eqx.is_inexact_array(leaf):
            return leaf
        values = np.asarray(leaf)
        return jax.device_put(np.where(values == np.round(values), values, np.asarray(moved)))

    return jax.tree.map(choose, loss, nudged(loss, amount))


def lost_in(
    slopes: Balls, floats: Float[np.ndarray, "T n"], lengths: Float[np.ndarray, " steps"]
) -> Float[np.ndarray, " T"]:
    """A bound on the error of the weights from a field that is rounded by more than its weights are.

    It is the difference between the field in float64 and its balls, integrated over time.

    **Arguments:**

    - slopes: (T, n) the field in balls.
    - floats: (T, n) the field in float64.
    - lengths: (T - 1,) the time from each row to the next.
    """
    low, high = lower(slopes), upper(slopes)
    middle, radius = (low + high) / 2, (high - low) / 2
    beyond = np.maximum(np.abs(floats - middle) - _EXPLAINED * radius, 0.0)
    beyond = np.linalg.norm(np.where(np.isfinite(beyond), beyond, np.inf), axis=1)
    return np.append(0.0, np.cumsum(np.maximum(beyond[:-1], beyond[1:]) * lengths))


def allowed_in(run: Trajectory) -> PyTree:
    """(T,) for each array of weights, the error that the solver's tolerance allows.

    The tolerance is relative to the larger of the weights at both ends of a step. A weight that decays within the step
    therefore has a larger relative error afterwards.
    """

    def allowed(leaf):
        sizes = _largest(leaf)
        with np.errstate(divide="ignore", invalid="ignore"):
            decays = np.where(sizes[1:] > 0, np.maximum(sizes[:-1] / sizes[1:] - 1, 0.0), 0.0)
        return run.settings.rtol * sizes * np.append(0.0, np.cumsum(decays)) + NEGLIGIBLE

    return jax.tree.map(allowed, eqx.filter(run.models, eqx.is_inexact_array))


def drift_in(
    system: AbstractSystem,
    run: Trajectory,
    lengths: Float[np.ndarray, " steps"],
    slopes: Float[np.ndarray, "T n"],
    noise: Float[np.ndarray, "T n"],
    exactly: Callable[[], Balls | None],
) -> PyTree:
    """(T,) for each array of weights, a bound on how far rounding of the field may have moved it, where that is more
    than the solver's tolerance.

    A solver follows the rounding of a field, or keeps weights constant whose field is below rounding. Over a long time
    the weights then move away from the flow. The Hessian shows in which directions the flow contracts; without it, all
    directions are taken for flat. For weights at rest in a valley, the field in balls shows that the flow does not move
    along the valley.

    **Arguments:**

    - system: the flow.
    - run: the solve.
    - lengths: (T - 1,) the time from each row to the next.
    - slopes: (T, n) its field.
    - noise: (T, n) the rounding of the field.
    - exactly: returns (T, n), the field in balls at exactly these weights, or None if that fails.
    """
    weights = eqx.filter(run.models, eqx.is_inexact_array)
    still = np.abs(slopes) <= _FELT * noise
    unknown = noise + np.where(still, np.abs(slopes), 0.0)
    unknown = np.maximum(unknown[:-1], unknown[1:])
    sizes = _per_coordinate(system, jax.tree.map(_largest, weights), weights, slopes.shape[1])
    allowed = run.settings.rtol * np.maximum(sizes[:-1], sizes[1:]) + NEGLIGIBLE
    moved = np.minimum(lengths[:, None] * unknown, _LOST)
    moved = np.where(moved > allowed, moved, 0.0)
    if isinstance(system, AbstractIsometricSystem) and slopes.shape[1] <= ALWAYS_WHOLE and np.any(moved > 0):
        exact = exactly() if isinstance(system, LossSystem) else None
        points = np.concatenate([np.reshape(leaf, (leaf.shape[0], -1)) for leaf in jax.tree.leaves(weights)], axis=1)
        for row in np.flatnonzero(np.any(moved > 0, axis=1)):
            rates, basis = map(np.asarray, _eigenvectors(system, run.row(int(row) + 1)))
            length, ends = float(lengths[row]), slice(row, row + 2)
            back = _damped(rates, np.abs(basis), length, unknown[row])
            if exact is not None:
                missed = _missed(rates, basis, length, exact[ends], points[row + 1] - points[row])
                back = np.where(np.all(still[ends], axis=0), np.minimum(back, missed), back)
            moved[row] = np.where(back > allowed[row], back, 0.0)
    drift = np.cumsum(np.concatenate([np.zeros((1, moved.shape[1])), moved]), axis=0)
    return _per_array(system, drift, weights)


def _damped(rates: np.ndarray, absolute: np.ndarray, length: float, speeds: np.ndarray) -> np.ndarray:
    """How far these speeds move the weights in a time, where the field pulls back along its eigenvectors."""
    return np.minimum(absolute @ (_felt_for(rates, length) * (absolute.T @ speeds)), _LOST)


def _missed(
    rates: np.ndarray, basis: np.ndarray, length: float, slopes: Balls, moved: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """How far a step of weights at rest ends from where their field leads, by the field at either end."""
    times, low, high = _felt_for(rates, length), lower(slopes), upper(slopes)
    led = (basis @ (times[:, None] * (basis.T @ (low + high).T / 2))).T
    # Eigenvectors are known to rounding.
    loose = (high - low) / 2 + _FLAT * np.linalg.norm(np.maximum(np.abs(low), np.abs(high)), axis=1, keepdims=True)
    off = np.abs(moved - led) + (np.abs(basis) @ (times[:, None] * (np.abs(basis).T @ loose.T))).T
    return np.nan_to_num(np.max(off, axis=0), nan=_LOST, posinf=_LOST)


def _felt_for(rates: np.ndarray, length: float) -> Float[np.ndarray, " n"]:
    """How far a unit of the field along each eigenvector leads in a time."""
    rates = np.where(np.abs(rates) > _FLAT * np.max(np.abs(rates)), rates, 0.0)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        return np.minimum(np.where(rates == 0, length, np.expm1(rates * length) / rates), _LOST)


@eqx.filter_jit
def _eigenvectors(system: AbstractSystem, model: PyTree) -> tuple[Array, Array]:
    """Of the Jacobian of the field, with its eigenvalues first."""
    point, unravel = ravel_pytree(system.encode(model))
    slope_of = lambda x: ravel_pytree(system.field(unravel(x)))[0]
    jacobian = jax.jacfwd(slope_of)(point)
    return eigenvectors(jacobian)


def _per_coordinate(system: AbstractSystem, of_arrays: PyTree, weights: PyTree, count: int) -> Float[np.ndarray, "T n"]:
    """For each coordinate of a flow the number of its array, in coordinates other than the weights the largest."""
    leaves = jax.tree.leaves(of_arrays)
    if not isinstance(system, LossSystem):
        return np.repeat(np.max(leaves, axis=0)[:, None], count, axis=1)
    counts = [math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(weights)]
    return np.concatenate([np.repeat(leaf[:, None], n, axis=1) for leaf, n in zip(leaves, counts, strict=True)], axis=1)


def _per_array(system: AbstractSystem, drift: Float[np.ndarray, "T n"], weights: PyTree) -> PyTree:
    """The largest drift in each array of weights, in other coordinates that of all weights together."""
    leaves, structure = jax.tree.flatten(weights)
    if isinstance(system, LossSystem):
        ends = np.cumsum([math.prod(leaf.shape[1:]) for leaf in leaves])[:-1]
        parts = [np.max(part, axis=1, initial=0.0) for part in np.split(drift, ends, axis=1)]
        return jax.tree.unflatten(structure, parts)
    scale = (
        max([1.0, *map(float, map(jnp.max, jax.tree.leaves(system.roots)))])
        if isinstance(system, ScaledSystem)
        else 1.0
    )
    return jax.tree.unflatten(structure, [scale * np.linalg.norm(drift, axis=1)] * len(leaves))


def twists(run: Trajectory, descent: AbstractDescent | None) -> bool:
    """Whether a matrix that is symmetric at the start loses its symmetry through rounding, since the field preserves
    it.
    """
    rows = set()
    for leaf in jax.tree.leaves(eqx.filter(run.models, eqx.is_inexact_array)):
        values = np.asarray(leaf)
        if values.ndim > 2 and is_symmetric(values[0]):
            twist, size = _antisymmetric(values)
            part = np.divide(twist, size, out=np.zeros_like(twist), where=size > 0)
            twisted = part > _TWISTED
            # A matrix that becomes symmetric again at the end has lost nothing by rounding.
            begins = (part > 0) & (part <= _UNTWISTED) & (np.cumsum(twisted) == 0)
            if np.any(begins) and np.any(twisted):
                rows.add(int(np.argmax(part)))
    return any(_keeps_symmetry(run, row, descent) for row in rows)


def _antisymmetric(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The largest entry of the antisymmetric part of matrices, and of the matrices, at each time."""
    largest = lambda values: np.abs(values).reshape(values.shape[0], -1).max(axis=1)
    return largest(values - np.swapaxes(values, -1, -2)), largest(values)


def _keeps_symmetry(run: Trajectory, row: int, descent: AbstractDescent | None) -> bool:
    """Whether the velocity in a row is symmetric up to rounding if the matrices that start symmetric are made exactly
    symmetric.
    """
    assert descent is not None
    weights, rest = eqx.partition(run.row(row), eqx.is_inexact_array)
    begins = jax.tree.map(lambda leaf: is_symmetric(np.asarray(leaf)), eqx.filter(run.start, eqx.is_inexact_array))
    middle = lambda leaf, symmetric: (leaf + jnp.swapaxes(leaf, -1, -2)) / 2 if symmetric else leaf
    velocity = descent(eqx.combine(jax.tree.map(middle, weights, begins), rest))
    slopes = jax.tree.leaves(eqx.filter(velocity, eqx.is_inexact_array))
    parts = [
        _antisymmetric(np.asarray(slope)[None])
        for slope, symmetric in zip(slopes, jax.tree.leaves(begins), strict=True)
        if symmetric
    ]
    return all(float(twist[0]) <= _KEPT * float(size[0]) for twist, size in parts)
