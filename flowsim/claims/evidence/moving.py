"""Perturbations of starts, weights and losses, which show the effect of rounding; bounds on other errors of the
weights.
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
    """A start in which each number is perturbed by a different relative amount, of at most ``amount``.

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
    """A tree in which all numbers are perturbed by a relative amount with alternating signs. Symmetric matrices
    stay symmetric.
    """
    move = lambda leaf: _alternately(leaf, amount) if eqx.is_inexact_array(leaf) else leaf
    return jax.tree.map(move, tree)


def noise_of(function: Callable[[PyTree], PyTree], here: PyTree, models: PyTree) -> PyTree:
    """How much each entry of a function's value changes when its models are rounded differently.

    It is the largest change for four perturbations of the models by a few units in the last place.

    **Arguments:** function: models -> arrays; here: function(models); models: the models.
    """
    # In one pattern the errors of the weights may cancel.
    others = (function(change(models, by)) for change in (moved, nudged) for by in (ROUNDING, -ROUNDING))
    apart = lambda x, *others: np.max([np.abs(np.asarray(other) - np.asarray(x)) for other in others], axis=0)
    return jax.tree.map(apart, here, *others)


def nudged_rows(models: PyTree, amount: float, drift: PyTree) -> PyTree:
    """Models with time on the first axis, perturbed as by `nudged` with a relative amount that depends on the row.

    **Arguments:**

    - models: the models.
    - amount: the relative perturbation of every row.
    - drift: for each array of weights, (T,) a further perturbation, in units of the weights. It is divided by the
      largest weight of the array in the row.
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
    """The largest absolute value in each row of an array."""
    return np.max(np.abs(np.asarray(leaf)).reshape(leaf.shape[0], -1), axis=1, initial=0.0)


def nudged_loss(loss: AbstractPopulationLoss, amount: float) -> AbstractPopulationLoss:
    """A loss with its numbers perturbed as by `nudged`. A sampled loss is returned unchanged.

    Whole numbers are not perturbed, since lengths and dimensions are exact.
    """
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
    """A bound on the error of the weights from errors of the field that rounding of the weights does not explain.

    An error counts if the field in float64 is outside of its ball, with the radius multiplied by eight. By how much
    it is outside is integrated over time, from the first row to each row.

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
    """For each array of weights, (T,) the error of its weights that the solver's tolerance allows.

    The tolerance of a step is relative to the larger of the weights at its ends. A weight that decays within the
    step therefore has a larger relative error afterwards.
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
    """For each array of weights, (T,) a bound on how far rounding of the field may have moved its weights. A step
    counts only if it may have moved them by more than the solver's tolerance.

    A solver follows the rounding errors of a field, and leaves weights unchanged whose field is below rounding.
    Over a long time the weights then move away from the flow. The Hessian shows in which directions the flow
    contracts; without it, all directions are taken for flat. For weights at rest in a valley, the field in balls
    shows that the flow does not move along the valley.

    **Arguments:**

    - system: the flow.
    - run: the solve.
    - lengths: (T - 1,) the time from each row to the next.
    - slopes: (T, n) the field at the rows of the solve.
    - noise: (T, n) the rounding error of the field.
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
    """(n,) how far an error of the field can move each weight in a given time. Along each eigenvector of the
    field's Jacobian the displacement grows or decays.

    **Arguments:**

    - rates, absolute: (n,) the eigenvalues of the field's Jacobian, and (n, n) the absolute values of its
      eigenvectors.
    - length: the time.
    - speeds: (n,) bounds on the error of the field.
    """
    return np.minimum(absolute @ (_felt_for(rates, length) * (absolute.T @ speeds)), _LOST)


def _missed(
    rates: np.ndarray, basis: np.ndarray, length: float, slopes: Balls, moved: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """(n,) how far a solver's step ends from where the linearized field leads, for weights at rest.

    The result is the larger distance for the field at the two ends of the step.

    **Arguments:**

    - rates, basis: (n,) the eigenvalues of the field's Jacobian, and (n, n) its eigenvectors.
    - length: the time of the step.
    - slopes: (2, n) the field at both ends, in balls.
    - moved: (n,) how far the solver moved the weights.
    """
    times, low, high = _felt_for(rates, length), lower(slopes), upper(slopes)
    led = (basis @ (times[:, None] * (basis.T @ (low + high).T / 2))).T
    # Eigenvectors are known to rounding.
    loose = (high - low) / 2 + _FLAT * np.linalg.norm(np.maximum(np.abs(low), np.abs(high)), axis=1, keepdims=True)
    off = np.abs(moved - led) + (np.abs(basis) @ (times[:, None] * (np.abs(basis).T @ loose.T))).T
    return np.nan_to_num(np.max(off, axis=0), nan=_LOST, posinf=_LOST)


def _felt_for(rates: np.ndarray, length: float) -> Float[np.ndarray, " n"]:
    """(e^{r t} - 1)/r for each eigenvalue r: how far a unit of the field along the eigenvector leads in time t."""
    rates = np.where(np.abs(rates) > _FLAT * np.max(np.abs(rates)), rates, 0.0)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        return np.minimum(np.where(rates == 0, length, np.expm1(rates * length) / rates), _LOST)


@eqx.filter_jit
def _eigenvectors(system: AbstractSystem, model: PyTree) -> tuple[Array, Array]:
    """The (n,) eigenvalues and (n, n) eigenvectors of the Jacobian of the field at a model."""
    point, unravel = ravel_pytree(system.encode(model))
    slope_of = lambda x: ravel_pytree(system.field(unravel(x)))[0]
    jacobian = jax.jacfwd(slope_of)(point)
    return eigenvectors(jacobian)


def _per_coordinate(system: AbstractSystem, of_arrays: PyTree, weights: PyTree, count: int) -> Float[np.ndarray, "T n"]:
    """(T, n) for each coordinate of a flow, the number given for the array that contains it.

    If the coordinates are not the weights themselves, the largest number of all arrays is taken for each.

    **Arguments:** system: the flow; of_arrays: for each array, (T,) its numbers; weights: with time on the first
    axis; count: n.
    """
    leaves = jax.tree.leaves(of_arrays)
    if not isinstance(system, LossSystem):
        return np.repeat(np.max(leaves, axis=0)[:, None], count, axis=1)
    counts = [math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(weights)]
    return np.concatenate([np.repeat(leaf[:, None], n, axis=1) for leaf, n in zip(leaves, counts, strict=True)], axis=1)


def _per_array(system: AbstractSystem, drift: Float[np.ndarray, "T n"], weights: PyTree) -> PyTree:
    """For each array of weights, (T,) the largest drift of its weights.

    If the coordinates of the flow are not the weights themselves, it is a bound on the drift of all weights
    together.

    **Arguments:** system: the flow; drift: (T, n) in its coordinates; weights: with time on the first axis.
    """
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
    """Whether rounding destroys the symmetry of a matrix that is symmetric at the start, although the field
    preserves it.

    **Arguments:** run: the flow; descent: model -> velocity.
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
    """(T,) the largest entry of M - M^T, and (T,) the largest entry of M, for matrices M at each time."""
    largest = lambda values: np.abs(values).reshape(values.shape[0], -1).max(axis=1)
    return largest(values - np.swapaxes(values, -1, -2)), largest(values)


def _keeps_symmetry(run: Trajectory, row: int, descent: AbstractDescent | None) -> bool:
    """Whether the velocity at one row is symmetric up to rounding, after all matrices that are symmetric at the
    start have been made exactly symmetric in this row.
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
