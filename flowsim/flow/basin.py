"""How far a gradient flow still has to go: a ball that it cannot leave, with the least curvature in it.

Where the Hessian is at least mu on a ball of radius r about a point, and |grad L| < mu r there, the flow from the point
stays in the ball: |grad L| falls at least as fast as e^{-mu t}, so that its path is at most |grad L|/mu long. Gradients
and Hessians are enclosed, so that this is proved.

A loss that is constant along x -> e^{sJ} x, J a diagonal of signs, is flat along Jx, and <x, Jx> is conserved. Near the
point x_0 every x is then e^{sJ} z with z - x_0 orthogonal to J x_0. With mu the least curvature among such z,
2 mu (L - min L) <= |grad L(z)|^2 <= e^{2|s|} |grad L(x)|^2, so that the path is at most e^{|s|} |grad L|/mu long; along
it |s| <= 2 |x - x_0|/|x_0| and |z - x_0| <= 3.2 |x - x_0|, as long as |s| is at most 1/100.

A sum of squares L = |r|^2 whose residuals have a Jacobian of full row rank on the ball, with least singular value
sigma, has |grad L| >= 2 sigma |r| there: the path from the point is at most |r|/sigma long, if that is less than the
radius.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import flint
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from flowsim._core.balls.centred import is_analytic
from flowsim._core.balls.enclosure import BITS, Traced, enclose, lower, upper
from flowsim._core.balls.operations import Balls, UndecidedError, balls
from flowsim._core.balls.squares import residuals_of

_LARGEST = 128  # weights
_ROOM = 8.0  # how many times as far as a path that does not fit the next cube reaches
_EXACT = 1e-25
_LONGEST_TURN = 0.01  # |s|
_OFF_THE_ORBIT = 3.2
_MORE = 1 + 1e-12  # than what is computed in float64 from bounds
_BESIDE = 1e-6  # of the weights
_SCALES = 1.0, 1 / 16, 16.0  # of the weights, at which it is asked what a field keeps
_AT_REST = 1e-12  # of the weights: a start that moves no further is at rest but for rounding

_SLOPES_OF_ITS_OWN = {"stop_gradient", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"}
_NEARBY, _STEP, _ALIKE = 1e-2, 2.0**-30, 1e-6  # of the weights, of a direction, of slopes

# By operations that balls do not have, or not of such arrays.
_NOT_HAD = (UndecidedError, jax.errors.JAXTypeError, np.linalg.LinAlgError, ValueError, TypeError)

Field = Callable[[PyTree], PyTree]


class Landscape(NamedTuple):
    """What is known of a gradient flow: minus its gradient; a quantity that it conserves, None where none is known; the
    loss, if its gradient is what flows; and whether the field is one formula everywhere, whatever its program looks
    like.
    """

    field: Field
    conserved: Callable[[PyTree], Array | None]
    loss: Callable[[PyTree], Array] | None = None
    is_one_formula: bool = False


def way_to_go(flow: Landscape, state: PyTree, start: PyTree) -> float:
    """A proved bound on how far the weights still move from a state of a gradient flow; infinite where none is found.

    Matrices that are symmetric at the start, and arrays that are zero, stay so where the field is so at all weights of
    this kind; the curvature is then that among these. So is it across the orbit of a scaling that the loss does not
    feel, and across the minima of a sum of squares.

    **Arguments:** start: of the flow that leads to the state.
    """
    leaves, structure = jax.tree.flatten(state)
    if sum(leaf.size for leaf in leaves) > _LARGEST or not all(np.all(np.isfinite(leaf)) for leaf in leaves):
        return math.inf
    if not descends(flow, state):
        return math.inf
    try:
        begin = [np.asarray(leaf) for leaf in jax.tree.leaves(start)]
        length = _in_a_bowl(flow, leaves, structure, begin)
        return length if math.isfinite(length) or flow.loss is None else _in_a_valley(flow.loss, state)
    except _NOT_HAD:
        return math.inf


def descends(flow: Landscape, state: PyTree) -> bool:
    """Whether the field is minus the gradient of the loss: one that has slopes of somebody's own (`stop_gradient`,
    `custom_jvp`) may not be. Its slope along random directions is compared with differences of the loss, in balls;
    where these cannot be had, it is taken for one.
    """
    if flow.loss is None or flow.is_one_formula:
        return True
    loss, (point, unravel) = flow.loss, ravel_pytree(state)
    rng, point = np.random.default_rng(0), np.asarray(point)
    size = float(np.max(np.abs(point), initial=0.0)) or 1.0
    try:
        traced = Traced(lambda x: loss(unravel(x)), point)
        if not any(eqn.primitive.name in _SLOPES_OF_ITS_OWN for eqn, _ in traced.equations):
            return True
        for beside in (0.0, _NEARBY, _NEARBY):
            here = point + beside * size * rng.standard_normal(point.shape)
            way = size * rng.standard_normal(point.shape)
            slope = enclose(lambda x: ravel_pytree(flow.field(unravel(x)))[0], here)
            with flint.ctx.workprec(BITS):
                after, before = (traced.on(balls(here) + sign * _STEP * balls(way)) for sign in (1, -1))
                found, expected = (after - before) / (2 * _STEP), -np.sum(balls(way) * slope)
                terms = float(np.sum(np.abs(way) * _largest(slope))) + float(abs(found).upper())
                if float(abs(found - expected).lower()) > _ALIKE * terms:
                    return False
    except _NOT_HAD:
        return True
    return True


def rests(flow: Landscape, state: PyTree) -> bool:
    """Whether a start whose gradient is zero in float64 stays where it is: the gradient is exactly zero, or the start
    is a minimum but for rounding. Where the gradient cannot be had in balls, it has to be that beside each array of the
    start it is not zero.
    """
    largest = lambda leaf: float(np.max(np.abs(leaf), initial=0.0))
    size = max(map(largest, jax.tree.leaves(state)))
    try:
        slopes = jax.tree.leaves(enclose(flow.field, state, open_branches=True))
    except _NOT_HAD:
        rng = np.random.default_rng(0)
        aside = lambda leaf: leaf + _BESIDE * (largest(leaf) or size or 1.0) * rng.standard_normal(leaf.shape)
        slopes = jax.tree.leaves(flow.field(jax.tree.map(aside, state)))
        return all(bool(np.any(np.asarray(slope) != 0)) for slope in slopes)
    # A ball that only holds zero has run out of digits, as float64 has.
    if all(bool(ball == 0) for slope in slopes for ball in np.ravel(slope)):
        return True
    return way_to_go(flow, state, state) <= _AT_REST * size


def stay_at_zero(field: Field, weights: PyTree, zero: PyTree, *, is_one_formula: bool) -> PyTree:
    """Which of some weights stay zero whatever the others are; none where the field cannot be had in balls, or may be
    another elsewhere.

    **Arguments:** weights, zero: of one structure, the latter truth values; is_one_formula: as in `Landscape`.
    """
    nothing = jax.tree.map(np.zeros_like, zero)
    try:
        traced = Traced(field, weights)
        if not (is_one_formula or is_analytic(traced)):
            return nothing
        rng = np.random.default_rng(0)
        size = max(float(np.max(np.abs(leaf), initial=0.0)) for leaf in jax.tree.leaves(weights)) or 1.0
        draws = jax.tree.map(lambda leaf: size * rng.standard_normal(leaf.shape), weights)
        while True:
            slopes = traced.on(jax.tree.map(lambda draw, one: np.where(one, 0.0, draw), draws, zero))
            still = jax.tree.map(lambda one, slope: one & _vanishes(slope), zero, slopes)
            if jax.tree.all(jax.tree.map(np.array_equal, zero, still)):
                return still
            zero = still
    except _NOT_HAD:
        return nothing


def _vanishes(values: Balls) -> np.ndarray:
    return np.vectorize(lambda ball: bool(ball == 0), otypes=[bool])(values)


def _in_a_bowl(flow: Landscape, leaves: list, structure, begin: list[np.ndarray]) -> float:
    # What holds everywhere is asked where nothing is special, at random weights: of a field that is one formula.
    traced = Traced(flow.field, jax.tree.unflatten(structure, leaves))
    everywhere = flow.is_one_formula or is_analytic(traced)
    kinds = [_kind(leaf) if everywhere else "any" for leaf in begin]
    size = max(float(np.max(np.abs(leaf), initial=0.0)) for leaf in leaves) or 1.0
    rng = np.random.default_rng(0)
    draws = [size * rng.standard_normal(leaf.shape) for leaf in leaves]
    # What lets something through at large weights alone hides at small ones.
    scales = (1.0,) if flow.is_one_formula else _SCALES
    while True:
        special = [_KINDS[kind](draw) for kind, draw in zip(kinds, draws, strict=True)]
        anywhere = jax.tree.unflatten(structure, special)
        found = [jax.tree.leaves(traced.on(jax.tree.map(lambda leaf, k=k: k * leaf, anywhere))) for k in scales]
        stay = [all(one) for one in zip(*(_stay(kinds, slopes, flow.is_one_formula) for slopes in found), strict=True)]
        if all(stay):
            break
        # What does not stay so may move what would.
        kinds = [kind if stays else _weaker(kind, leaf) for kind, stays, leaf in zip(kinds, stay, leaves, strict=True)]
    slopes = found[0]
    basis = scipy.linalg.block_diag(*_bases(leaves, kinds, slopes if everywhere else None))
    end, unravel = ravel_pytree(jax.tree.unflatten(structure, leaves))
    point = basis @ (basis.T @ np.asarray(end))
    aside = _MORE * _length(point - np.asarray(end))
    orbit = _orbit(flow.conserved, unravel, point, anywhere, slopes) if everywhere and basis.size else None
    basis = jnp.asarray(basis if orbit is None else _without(np.asarray(basis), orbit))

    def along(y: Float[Array, " m"]) -> Float[Array, " m"]:
        return basis.T @ ravel_pytree(flow.field(unravel(jnp.asarray(point) + basis @ y)))[0]

    nothing = np.zeros(basis.shape[1])
    if not nothing.size:
        # The field keeps all weights.
        return aside if everywhere else math.inf
    slope = enclose(along, nothing)
    steepest = _length(_largest(slope))
    if np.all(_vanishes(slope)) and aside == 0:
        return 0.0
    # Which branch is taken its derivatives do not tell.
    branches = None if everywhere else Traced(along, nothing)
    hessian = Traced(lambda y: -jax.jacfwd(along)(y), nothing)
    flattest = functools.partial(_least_curvature, hessian, branches, nothing)
    if orbit is None:
        return aside + _path(steepest, flattest)
    length = _path(_OFF_THE_ORBIT * math.exp(_LONGEST_TURN) * steepest, flattest) / _OFF_THE_ORBIT
    return aside + length if 2 * length <= _LONGEST_TURN * float(np.linalg.norm(point)) else math.inf


def _path(slope: float, flattest: Callable[[float], float]) -> float:
    """The length of a path in a cube about a point, a slope over the least curvature there; infinite where no cube is
    found that the path stays in.

    **Arguments:** slope: at the point, at most; flattest: a lower bound of the curvature on a cube, by its radius.
    """
    # As if the curvature were 1; a cube that is too wide tells nothing, and one point what to try then.
    radii = [_ROOM * slope, 0.0]
    while radii:
        radius = radii.pop(0)
        try:
            curvature = flattest(radius)
        except UndecidedError:
            continue
        # What is orthonormal, or a slope, is so to rounding.
        length = _MORE * slope / curvature if curvature > 0 else math.inf
        if length < radius or length == 0:
            return length
        if curvature > 0:
            radii.insert(0, _ROOM * length)
    return math.inf


def _in_a_valley(loss: Callable[[PyTree], Array], state: PyTree) -> float:
    """The bound for a sum of squares, whose minima may be a continuum."""
    point, unravel = ravel_pytree(state)
    point = np.asarray(point)
    residuals = residuals_of(lambda x: loss(unravel(x)), point)
    if residuals is None:
        return math.inf
    size = _length(_largest(enclose(residuals, point)))
    traced, jacobian = Traced(residuals, point), Traced(jax.jacfwd(residuals), point)
    return _path(size, functools.partial(_least_singular_value, jacobian, traced, point))


def _least_singular_value(jacobian: Traced, residuals: Traced, point: np.ndarray, radius: float) -> float:
    """A lower bound of the least singular value of the Jacobian, of as many as there are residuals, on a cube."""
    residuals.on(balls(point, radius))  # its branches are not in its derivatives
    middle, rest = _middle(jacobian.on(balls(point, radius)))
    if middle.shape[0] > middle.shape[1]:
        return 0.0
    return float(np.linalg.svd(middle, compute_uv=False)[-1] - np.linalg.norm(rest) - _rounding(middle))


def _least_curvature(hessian: Traced, branches: Traced | None, point: np.ndarray, radius: float) -> float:
    """A lower bound of the Hessian's eigenvalues on a cube about the point.

    **Arguments:** branches: what must take one branch on all of the cube.
    """
    if branches is not None:
        branches.on(balls(point, radius))
    middle, rest = _middle(hessian.on(balls(point, radius)))
    middle = (middle + middle.T) / 2
    return float(np.linalg.eigvalsh(middle)[0] - np.linalg.norm(rest) - _rounding(middle))


def _middle(matrix: Balls) -> tuple[np.ndarray, np.ndarray]:
    """The middle of a matrix of balls and what the rest is at most; by Weyl its norm bounds what it changes."""
    low, high = lower(matrix), upper(matrix)
    if not np.all(np.isfinite(high - low)):
        raise UndecidedError("a derivative is not bounded")
    return (low + high) / 2, (high - low) / 2


def _rounding(matrix: np.ndarray) -> float:
    """How well NumPy knows the eigenvalues or singular values of a matrix."""
    return 4 * max(matrix.shape) * np.finfo(float).eps * float(np.linalg.norm(matrix))


_KINDS = {
    "any": lambda x: x,
    "symmetric": lambda x: (x + np.swapaxes(x, -1, -2)) / 2,
    "zero": lambda x: x * 0,
}


def _kind(leaf: np.ndarray) -> str:
    if not np.any(leaf):
        return "zero"
    if leaf.ndim < 2 or leaf.shape[-1] != leaf.shape[-2]:
        return "any"
    return "symmetric" if np.array_equal(leaf, np.swapaxes(leaf, -1, -2)) else "any"


def _weaker(kind: str, leaf: Array | np.ndarray) -> str:
    """What an array may still be that is not of a kind: one of zeros is symmetric, too."""
    square = leaf.ndim > 1 and leaf.shape[-1] == leaf.shape[-2]
    return "symmetric" if kind == "zero" and square else "any"


def _stay(kinds: list[str], slopes: list[Balls], is_one_formula: bool) -> list[bool]:
    """Whether the weights of each array stay of their kind: exactly, where a field that nearly keeps zeros may be one
    that lets them go elsewhere.
    """
    largest = max(np.max(_largest(slope), initial=0.0) for slope in slopes)
    found = []
    for kind, slope in zip(kinds, slopes, strict=True):
        if kind == "any":
            found.append(True)
            continue
        if kind == "zero" and not is_one_formula:
            found.append(bool(np.all(_vanishes(slope))))
            continue
        with flint.ctx.workprec(BITS):
            outside = np.asarray(slope - _KINDS[kind](slope), dtype=object)
        may_be_zero = all(bool(ball.contains(0)) for ball in np.ravel(outside))
        found.append(may_be_zero and bool(np.max(_largest(outside), initial=0.0) <= _EXACT * largest))
    return found


def _bases(leaves: list, kinds: list[str], slopes: list[Balls] | None) -> list[np.ndarray]:
    """Orthonormal bases, by columns, of the weights of each array among which the flow stays: a weight that the loss
    does not read never moves, if slopes anywhere tell.
    """
    bases = [_basis(leaf.shape, kind) for leaf, kind in zip(leaves, kinds, strict=True)]
    if slopes is None:
        return bases
    moves = [~_vanishes(slope).ravel() for slope in slopes]
    return [basis[:, np.any(basis[one] != 0, axis=0)] for basis, one in zip(bases, moves, strict=True)]


def _basis(shape: tuple[int, ...], kind: str) -> np.ndarray:
    size = math.prod(shape)
    if kind != "symmetric":
        return np.eye(size) if kind == "any" else np.zeros((size, 0))
    d = shape[-1]
    columns = []
    for i, j in zip(*np.triu_indices(d), strict=True):
        matrix = np.zeros((d, d))
        matrix[i, j] = matrix[j, i] = 1.0 if i == j else np.sqrt(0.5)
        columns.append(matrix.reshape(-1))
    return np.kron(np.eye(math.prod(shape[:-2])), np.stack(columns, axis=1))


def _orbit(conserved: Callable, unravel: Callable, point: np.ndarray, anywhere: PyTree, slopes: list[Balls]):
    """J x where the loss does not feel x -> e^{sJ} x; None where no such scaling is known."""
    if conserved(anywhere) is None:
        return None
    generator = lambda state: jax.tree.leaves(jax.tree.map(lambda x: x / 2, jax.grad(conserved)(state)))
    drawn = generator(anywhere)
    if not all(np.allclose(np.abs(v), np.abs(x)) for v, x in zip(drawn, jax.tree.leaves(anywhere), strict=True)):
        return None
    with flint.ctx.workprec(BITS):
        felt = sum((np.sum(balls(v) * slope) for v, slope in zip(drawn, slopes, strict=True)), flint.arb(0))
    scale = sum(float(np.sum(np.abs(v) * _largest(slope))) for v, slope in zip(drawn, slopes, strict=True))
    if float(abs(felt).upper()) > _EXACT * scale:
        return None
    return np.concatenate([np.ravel(v) for v in generator(unravel(jnp.asarray(point)))])


def _without(basis: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """An orthonormal basis of what is orthogonal to a direction."""
    inside = basis.T @ direction
    if not inside.any():
        return basis
    return basis @ scipy.linalg.null_space(inside[None] / np.linalg.norm(inside))


def _length(values: np.ndarray) -> float:
    """The norm of numbers, whose squares may underflow."""
    size = float(np.max(np.abs(values), initial=0.0))
    return size * float(np.linalg.norm(values / size)) if 0 < size < math.inf else size


def _largest(values: Balls) -> np.ndarray:
    return np.asarray(np.maximum(np.abs(lower(values)), np.abs(upper(values))))
