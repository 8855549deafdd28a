"""Phase portraits in the plane of two numbers of a model: the plane, which flows end together, and conserved
conics.
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy  # `scipy.sparse` loads when it is first used
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from flowsim._core.checks import refuse
from flowsim._core.text import nearest
from flowsim._core.types import Scalar
from flowsim.flow.trajectory import weights
from flowsim.losses import AbstractPopulationLoss
from flowsim.problem import Problem

_OPTION = "--portrait"
_SAID = 8  # names in an error
_NEAR = 1e-3  # of the extent of starts and ends: closer ends look the same in a picture
_OFF = 1 / 8  # of the distance of two ends: how far the line between them may be from the bottom of a valley
_STEPS = 16  # on such a line
_LEVEL, _ROUNDING = 1e-9, 1e-13  # of the decrease of the loss, and of the loss: negligible
_POINTS, _CELLS = 8, 12  # random points of the plane, and cells of the grid that give the other weights
_EXACT = 1e-10  # of the largest singular value: zero
_DRIFT = 1e-6  # of the size of its terms: how much a conserved conic may change along a computed flow


class Coordinate(NamedTuple):
    """A number of a model, as a coordinate of the plane.

    **Fields:**

    - name: the name of a weight, such as ``b`` or ``U11[0][1]``, or of an observable.
    - of: model -> the number.
    - put: (model, number) -> the model in which this weight is the number; None for an observable.
    """

    name: str
    of: Callable[[PyTree], Scalar]
    put: Callable[[PyTree, Scalar], PyTree] | None

    def along(self, models: PyTree) -> np.ndarray:
        """The number for each of several models. The first axis of the weights in ``models`` counts the models."""
        return np.asarray(eqx.filter_vmap(self.of)(models))


class Portrait(NamedTuple):
    """The two coordinates of a plane, and the number of weights of a model."""

    x: Coordinate
    y: Coordinate
    size: int


def portrait_of(names: Sequence[str], problem: Problem) -> Portrait:
    """The plane of two weights or observables of a problem's model.

    A weight is named by its array, `w` if the model is one array, and its place on each axis: ``U11[0][1]``.

    **Raises:** `ProblemError` in one line that says which name is unknown.
    """
    if len(names) != 2 or names[0] == names[1]:
        refuse(_OPTION, "two different names X,Y", f'it is "{",".join(map(str, names))}"')
    x, y = (_coordinate(name, problem) for name in names)
    return Portrait(x, y, flat(problem.start).size)


def flat(model: PyTree) -> np.ndarray:
    """All weights of a model as one vector."""
    return np.asarray(ravel_pytree(eqx.filter(model, eqx.is_inexact_array))[0])


def _coordinate(name: str, problem: Problem) -> Coordinate:
    if observable := problem.spec.observables.get(name):
        return Coordinate(name, observable, None)
    arrays = {of or "w": leaf for of, leaf in weights(problem.start).items() if eqx.is_inexact_array(leaf)}
    array, places = re.fullmatch(r"(.*?)((?:\[\d+\])*)", name, re.DOTALL).groups()  # pyright: ignore[reportOptionalMemberAccess]
    if array not in arrays:
        known = [*arrays, *problem.spec.observables]
        more = ", .." if len(known) > _SAID else ""
        said = f"names of weights or of OBSERVABLES ({', '.join(known[:_SAID])}{more})"
        refuse(_OPTION, said, f'"{name}" is not{nearest(array, known)}')
    place, shape = tuple(map(int, re.findall(r"\d+", places))), arrays[array].shape
    if len(place) != len(shape) or any(at >= size for at, size in zip(place, shape, strict=True)):
        first, last = (array + "".join(f"[{end * (size - 1)}]" for size in shape) for end in (0, 1))
        came = f"{array} has {first} to {last}" if shape else f"{array} is a number itself"
        refuse(_OPTION, "names of single numbers", f'"{name}" is not: {came}')
    which = list(arrays).index(array)

    def of(model: PyTree) -> Scalar:
        return jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))[which][place]

    def put(model: PyTree, value: Scalar) -> PyTree:
        moving, fixed = eqx.partition(model, eqx.is_inexact_array)
        leaves, structure = jax.tree.flatten(moving)
        leaves[which] = leaves[which].at[place].set(value)
        return eqx.combine(jax.tree.unflatten(structure, leaves), fixed)

    return Coordinate(name, of, put)


def basins(problems: Sequence[Problem], ends: Sequence[np.ndarray]) -> np.ndarray:
    """Divide the ends of flows into sets of ends that belong together, as in one valley of the loss.

    Two ends are in one set if a chain of ends leads from one to the other. Neighbours in the chain are closer than
    a thousandth of the extent of all starts and ends, or the line between them is in a valley. At a point of the
    line, let h be the loss above the lower end, and g the gradient. For a parabola, the distance to the bottom of
    the valley is 2 h/|g|. The line is in a valley if this is nowhere more than an eighth of its length. On a ridge
    between two minima g is zero, so that a line over it is not in a valley.

    A valley that no end is near may join two sets, and a ridge thinner than a 16th of a line may be overlooked.

    **Arguments:**

    - problems: the problem of each flow.
    - ends: all weights at the end of each flow, as a vector.

    **Returns:** for each flow the number of the set in which it ends, counted from 0.
    """
    points = np.stack(ends)
    pairs = [np.stack([flat(problem.start), end]) for problem, end in zip(problems, points, strict=True)]
    values = [
        _values(problem.loss, problem.start, jnp.asarray(pair)) for problem, pair in zip(problems, pairs, strict=True)
    ]
    extent = float(np.linalg.norm(np.ptp(np.concatenate(pairs), axis=0)))
    drop = float(np.median([abs(float(value[0] - value[1])) for value in values]))

    def joined(i: int, j: int) -> bool:
        length = float(np.linalg.norm(points[i] - points[j]))
        if length <= _NEAR * extent:
            return True
        line = points[i] + np.linspace(0.0, 1.0, _STEPS + 1)[:, None] * (points[j] - points[i])
        return all(_in_valley(problems[k], line, length, drop) for k in {i, j})

    distances = np.linalg.norm(points[:, None] - points[None], axis=2)
    labels = np.arange(len(points))
    for i, j in _tree(distances):
        if joined(i, j):
            labels[labels == labels[j]] = labels[i]
    # Sets that no edge of the tree joins may still be joined where they are closest.
    found = np.unique(labels)
    for a, first in enumerate(found):
        for second in found[a + 1 :]:
            A, B = np.flatnonzero(labels == first), np.flatnonzero(labels == second)
            if A.size and B.size:
                i, j = np.unravel_index(np.argmin(distances[np.ix_(A, B)]), (A.size, B.size))
                if joined(int(A[i]), int(B[j])):
                    labels[B] = first
    return np.unique(labels, return_inverse=True)[1]


def _tree(distances: np.ndarray) -> list[tuple[int, int]]:
    """The edges of a tree of least length that joins all points, the shortest first."""
    # SciPy drops edges of length zero.
    lengths = np.triu(np.maximum(distances, np.finfo(float).tiny), 1)
    tree = scipy.sparse.csgraph.minimum_spanning_tree(lengths).tocoo()
    order = np.argsort(tree.data, kind="stable")
    return list(zip(tree.row[order].tolist(), tree.col[order].tolist(), strict=True))


def _in_valley(problem: Problem, line: np.ndarray, length: float, drop: float) -> bool:
    values = np.asarray(_values(problem.loss, problem.start, jnp.asarray(line)))
    slopes = np.linalg.norm(_slopes(problem.loss, problem.start, jnp.asarray(line)), axis=1)
    above = values - min(values[0], values[-1]) - _LEVEL * drop - _ROUNDING * np.max(np.abs(values))
    return bool(np.all((above <= 0) | (2 * above <= _OFF * length * slopes)))


@eqx.filter_jit
def _values(loss: AbstractPopulationLoss, like: PyTree, points: Float[Array, "n weights"]) -> Float[Array, " n"]:
    return jax.lax.map(lambda point: loss(_model(like, point)), points)


@eqx.filter_jit
def _slopes(loss: AbstractPopulationLoss, like: PyTree, points: Float[Array, "n weights"]) -> Float[Array, "n weights"]:
    gradient = lambda point: ravel_pytree(eqx.filter(loss.gradient(_model(like, point)), eqx.is_inexact_array))[0]
    return jax.lax.map(gradient, points)


def _model(like: PyTree, point: Float[Array, " weights"]) -> PyTree:
    """The model with the structure of ``like`` and the weights in a vector, in the order of `flat`."""
    arrays, fixed = eqx.partition(like, eqx.is_inexact_array)
    return eqx.combine(ravel_pytree(arrays)[1](point), fixed)


class Conic(NamedTuple):
    """A conserved function of two weights: q(x, y) = <coefficients, (x^2, y^2, x y, x, y)> is constant along flows.

    **Fields:**

    - coefficients: the five coefficients. The first that is not zero is positive.
    - drift: the largest change of q along a computed flow, relative to the largest sum of the sizes of its terms
      there.
    """

    coefficients: tuple[float, ...]
    drift: float


def kept(portrait: Portrait, problems: Sequence[Problem], paths: Sequence[np.ndarray]) -> Conic | None:
    """The function q of the form `Conic` that all flows conserve. None if no such function, or more than one, is
    found, or if a coordinate is not a weight.

    The condition <grad q, velocity> = 0 is linear in the coefficients of q. It is solved at random points of the
    plane, where all other weights have their values at a start. Since these weights may move along a flow, a
    solution must also stay constant along every computed flow.

    **Arguments:**

    - portrait: the plane.
    - problems: the problem of each flow.
    - paths: the points of each flow in the plane, (rows, 2).
    """
    if portrait.x.put is None or portrait.y.put is None:
        return None
    seen = np.concatenate(paths)
    low, high = np.min(seen, axis=0), np.max(seen, axis=0)
    wide = np.where(high > low, high - low, 1.0)
    rng, rows = np.random.default_rng(0), []
    for cell in np.unique(np.linspace(0, len(problems) - 1, _CELLS).round().astype(int)):
        points = low + wide * rng.uniform(-0.2, 1.2, (_POINTS, 2))
        speeds = np.asarray(_speeds(portrait, problems[cell].loss, problems[cell].start, jnp.asarray(points)))
        rows += [
            _terms(point, speed) for point, speed in zip(points, speeds, strict=True) if np.all(np.isfinite(speed))
        ]
    equations = np.asarray(rows).reshape(-1, 5)
    equations = equations[np.any(equations[:, 3:] != 0, axis=1)]
    if len(equations) < 5:
        return None  # nothing moves
    equations /= np.linalg.norm(equations[:, 3:], axis=1)[:, None]
    for unknowns in (slice(3, 5), slice(0, 5)):
        solution = _only_solution(equations[:, unknowns])
        if solution is not None:
            coefficients = np.zeros(5)
            coefficients[unknowns] = solution * np.sign(solution[np.flatnonzero(solution)[0]])
            drift = max(_drift(coefficients, path) for path in paths)
            return Conic(tuple((coefficients + 0.0).tolist()), drift) if drift <= _DRIFT else None
    return None


def _terms(point: np.ndarray, speed: np.ndarray) -> list[float]:
    """The time derivatives of x^2, y^2, x y, x and y at a point (x, y) with velocity (dx/dt, dy/dt)."""
    (x, y), (dx, dy) = point, speed
    return [2 * x * dx, 2 * y * dy, y * dx + x * dy, dx, dy]


def _only_solution(equations: np.ndarray) -> np.ndarray | None:
    """The solution of homogeneous linear equations, up to a factor. None if there is not exactly one.

    The factor is such that the largest term has coefficient 1. Coefficients within 1e-8 of an integer are rounded
    to it.
    """
    scales = np.max(np.abs(equations), axis=0)
    scales[scales == 0] = 1.0
    _, sizes, rows = np.linalg.svd(equations / scales)
    if not (sizes[-1] <= _EXACT * sizes[0] < sizes[-2]):
        return None
    found = rows[-1] / scales
    found = found / found[np.argmax(np.abs(found) * scales)]
    near = np.round(found)
    return np.where(np.abs(found - near) <= 1e-8, near, found)


def _drift(coefficients: np.ndarray, path: np.ndarray) -> float:
    x, y = path.T
    terms = np.stack([x**2, y**2, x * y, x, y]) * coefficients[:, None]
    q, size = np.sum(terms, axis=0), np.max(np.sum(np.abs(terms), axis=0))
    return float(np.max(np.abs(q - q[0])) / size) if size > 0 else 0.0


@eqx.filter_jit
def _speeds(portrait: Portrait, loss: AbstractPopulationLoss, like: PyTree, points: Float[Array, "n 2"]) -> Array:
    (_, x_of, put_x), (_, y_of, put_y) = portrait.x, portrait.y
    assert put_x is not None and put_y is not None, "the coordinates are weights"
    scales = loss.speeds(like)

    def one(point: Float[Array, " 2"]) -> Array:
        slope = eqx.filter(loss.gradient(put_y(put_x(like, point[0]), point[1])), eqx.is_inexact_array)
        if scales is not None:
            slope = jax.tree.map(jnp.multiply, slope, eqx.filter(scales, eqx.is_inexact_array))
        return -jnp.stack([x_of(slope), y_of(slope)])

    return jax.lax.map(one, points)
