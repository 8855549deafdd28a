"""A bound on the remaining length of a gradient flow, from a ball that it cannot leave.

If the Hessian is at least mu on a ball of radius r around a point, and |grad L| < mu r there, the flow from this point
stays in the ball. |grad L| decays at least as fast as e^{-mu t}, so that the path has length at most |grad L|/mu.
Gradients and Hessians are enclosed in balls, so that the bound is proved.

If a loss is constant along x -> e^{sJ} x, with J a diagonal of signs, it is flat along Jx, and <x, Jx> is conserved.
Near the point x_0 every x is then e^{sJ} z with z - x_0 orthogonal to J x_0. If mu is the least curvature among such z,
2 mu (L - min L) <= |grad L(z)|^2 <= e^{2|s|} |grad L(x)|^2, so that the path has length at most e^{|s|} |grad L|/mu.
Along it |s| <= 2 |x - x_0|/|x_0| and |z - x_0| <= 3.2 |x - x_0|, as long as |s| is at most 1/100.

If a sum of squares L = |r|^2 has residuals whose Jacobian has full row rank on a ball, with least singular value sigma,
then |grad L| >= 2 sigma |r| there. The path from the point has length at most |r|/sigma, if that is less than the
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

from flowsim._core.balls.centred import is_analytic, middle_and_rest
from flowsim._core.balls.enclosure import BITS, Traced, enclose, lower, upper
from flowsim._core.balls.operations import Balls, UndecidedError, balls
from flowsim._core.balls.squares import residuals_of

_LARGEST = 128  # weights
_ROOM = 8.0  # the next cube has this many times the length of a path that leaves the present one
_EXACT = 1e-25
_LONGEST_TURN = 0.01  # the largest |s|
_OFF_THE_ORBIT = 3.2
_MORE = 1 + 1e-12  # a factor for the rounding of bounds computed in float64
_OFFSET = 1e-6  # of the weights: the distance of nearby points
_SCALES = 1.0, 1 / 16, 16.0  # factors of the weights at which the symmetries of a field are tested
_AT_REST = 1e-12  # of the weights: a start that moves less is at rest up to rounding

_CUSTOM_DERIVATIVES = {"stop_gradient", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"}
_NEARBY, _STEP = 1e-2, 2.0**-30  # of the weights: nearby points; of a direction: steps of differences
_AGREES = 1e-6  # of its terms: the error of a derivative

# Errors for operations that balls do not support.
_UNSUPPORTED = (UndecidedError, jax.errors.JAXTypeError, np.linalg.LinAlgError, ValueError, TypeError)

Field = Callable[[PyTree], PyTree]


class Landscape(NamedTuple):
    """A gradient flow, as the bounds in this module need it.

    **Fields:**

    - field: minus the gradient.
    - conserved: the conserved quantity, or a function that returns None.
    - loss: the loss, if its gradient is what flows.
    - is_one_formula: whether the field is one formula everywhere, even if its program has branches.
    """

    field: Field
    conserved: Callable[[PyTree], Array | None]
    loss: Callable[[PyTree], Array] | None = None
    is_one_formula: bool = False


def way_to_go(flow: Landscape, state: PyTree, start: PyTree, step_size: float = 0.0, apart: float = 0.0) -> float:
    """A proved bound on the length of the path from a state to the limit of a gradient flow; infinite if no bound is
    found.

    The curvature is taken in the smallest set of weights that provably contains the flow: symmetric matrices and zero
    arrays stay so if the field preserves them at all such weights. A symmetry of the loss, or a continuum of minima of
    a sum of squares, is allowed for.

    **Arguments:**

    - flow: the flow.
    - state: the weights at which the path begins.
    - start: the weights at t = 0.
    - step_size: that of gradient descent in place of the flow: its steps contract where they are less than 2/curvature.
    - apart: for a path that begins within this distance of the state.
    """
    leaves, structure = jax.tree.flatten(state)
    if sum(leaf.size for leaf in leaves) > _LARGEST or not all(np.all(np.isfinite(leaf)) for leaf in leaves):
        return math.inf
    if not descends(flow, state):
        return math.inf
    try:
        begin = [np.asarray(leaf) for leaf in jax.tree.leaves(start)]
        length = _in_a_bowl(flow, leaves, structure, begin, step_size, apart)
        if math.isfinite(length) or flow.loss is None or step_size:
            return length
        return _in_a_valley(flow.loss, state)
    except _UNSUPPORTED:
        return math.inf


def descends(flow: Landscape, state: PyTree) -> bool:
    """Whether the field is minus the gradient of the loss. With `stop_gradient` or `custom_jvp` it may not be.

    Derivatives of the loss along random directions are compared with differences of the loss in balls. If balls fail,
    the answer is yes.

    **Arguments:** flow; state: the weights near which both are compared.
    """
    if flow.loss is None or flow.is_one_formula:
        return True
    loss, (point, unravel) = flow.loss, ravel_pytree(state)
    rng, point = np.random.default_rng(0), np.asarray(point)
    size = float(np.max(np.abs(point), initial=0.0)) or 1.0
    try:
        traced = Traced(lambda x: loss(unravel(x)), point)
        if not any(eqn.primitive.name in _CUSTOM_DERIVATIVES for eqn, _ in traced.equations):
            return True
        for offset in (0.0, _NEARBY, _NEARBY):
            here = point + offset * size * rng.standard_normal(point.shape)
            direction = size * rng.standard_normal(point.shape)
            slope = enclose(lambda x: ravel_pytree(flow.field(unravel(x)))[0], here)
            with flint.ctx.workprec(BITS):
                after, before = (traced.on(balls(here) + sign * _STEP * balls(direction)) for sign in (1, -1))
                found, expected = (after - before) / (2 * _STEP), -np.sum(balls(direction) * slope)
                terms = float(np.sum(np.abs(direction) * _largest(slope))) + float(abs(found).upper())
                if float(abs(found - expected).lower()) > _AGREES * terms:
                    return False
    except _UNSUPPORTED:
        return True
    return True


def rests(flow: Landscape, state: PyTree) -> bool:
    """Whether a start with zero gradient in float64 is a critical point: its gradient is exactly zero, or it is a
    minimum up to rounding. If balls fail, every array must have a nonzero gradient at nearby weights, as it has if the
    zero is not an underflow.
    """
    largest = lambda leaf: float(np.max(np.abs(leaf), initial=0.0))
    size = max(map(largest, jax.tree.leaves(state)))
    try:
        slopes = jax.tree.leaves(enclose(flow.field, state, open_branches=True))
    except _UNSUPPORTED:
        rng = np.random.default_rng(0)
        outside = lambda leaf: leaf + _OFFSET * (largest(leaf) or size or 1.0) * rng.standard_normal(leaf.shape)
        slopes = jax.tree.leaves(flow.field(jax.tree.map(outside, state)))
        return all(bool(np.any(np.asarray(slope) != 0)) for slope in slopes)
    # A ball that contains zero and other numbers has lost its digits, as float64 has.
    if all(bool(ball == 0) for slope in slopes for ball in np.ravel(slope)):
        return True
    return way_to_go(flow, state, state) <= _AT_REST * size


def stay_at_zero(field: Field, weights: PyTree, zero: PyTree, *, is_one_formula: bool) -> PyTree:
    """Which weights stay zero for any values of the others. False for all if balls fail, or if the field may be another
    formula elsewhere.

    **Arguments:**

    - field: the field.
    - weights: a point.
    - zero: in the shape of the weights, which of them are zero.
    - is_one_formula: as in `Landscape`.
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
    except _UNSUPPORTED:
        return nothing


def _vanishes(values: Balls) -> np.ndarray:
    return np.vectorize(lambda ball: bool(ball == 0), otypes=[bool])(values)


def _in_a_bowl(flow: Landscape, leaves: list, structure, begin: list, step_size: float, apart: float) -> float:
    # An identity between analytic functions holds everywhere if it holds at random weights.
    traced = Traced(flow.field, jax.tree.unflatten(structure, leaves))
    everywhere = flow.is_one_formula or is_analytic(traced)
    kinds = [_kind(leaf) if everywhere else "any" for leaf in begin]
    size = max(float(np.max(np.abs(leaf), initial=0.0)) for leaf in leaves) or 1.0
    rng = np.random.default_rng(0)
    draws = [size * rng.standard_normal(leaf.shape) for leaf in leaves]
    # A field with branches may preserve a symmetry at small weights only, or at large ones.
    scales = (1.0,) if flow.is_one_formula else _SCALES
    while True:
        special = [_KINDS[kind](draw) for kind, draw in zip(kinds, draws, strict=True)]
        anywhere = jax.tree.unflatten(structure, special)
        found = [jax.tree.leaves(traced.on(jax.tree.map(lambda leaf, k=k: k * leaf, anywhere))) for k in scales]
        stay = [all(one) for one in zip(*(_stay(kinds, slopes, flow.is_one_formula) for slopes in found), strict=True)]
        if all(stay):
            break
        # An array that is not preserved may move the others.
        kinds = [kind if stays else _weaker(kind, leaf) for kind, stays, leaf in zip(kinds, stay, leaves, strict=True)]
    slopes = found[0]
    basis = scipy.linalg.block_diag(*_bases(leaves, kinds, slopes if everywhere else None))
    end, unravel = ravel_pytree(jax.tree.unflatten(structure, leaves))
    point = basis @ (basis.T @ np.asarray(end))
    outside = _MORE * _length(point - np.asarray(end))
    has_orbit = everywhere and basis.size and not step_size  # descent conserves nothing
    orbit = _orbit(flow.conserved, unravel, point, anywhere, slopes) if has_orbit else None
    basis = jnp.asarray(basis if orbit is None else _without(np.asarray(basis), orbit))

    def along(y: Float[Array, " m"]) -> Float[Array, " m"]:
        return basis.T @ ravel_pytree(flow.field(unravel(jnp.asarray(point) + basis @ y)))[0]

    nothing = np.zeros(basis.shape[1])
    if not nothing.size:
        # The field preserves all weights.
        return outside if everywhere else math.inf
    slope = enclose(along, balls(nothing, apart) if apart else nothing)
    steepest = _length(_largest(slope))
    if np.all(_vanishes(slope)) and outside == 0:
        return 0.0
    # Derivatives do not show the branches of the program.
    branches = None if everywhere else Traced(along, nothing)
    hessian = Traced(lambda y: -jax.jacfwd(along)(y), nothing)
    flattest = functools.partial(_least_curvature, hessian, branches, nothing, step_size)
    if orbit is None:
        # The cube has room for the distance apart, which the slope bounds, too.
        return outside + (_path(2 * steepest, flattest) / 2 if apart else _path(steepest, flattest))
    length = _path(_OFF_THE_ORBIT * math.exp(_LONGEST_TURN) * steepest, flattest) / _OFF_THE_ORBIT
    return outside + length if 2 * length <= _LONGEST_TURN * float(np.linalg.norm(point)) else math.inf


def _path(slope: float, flattest: Callable[[float], float]) -> float:
    """The length of a path that stays in some cube around a point, slope/curvature; infinite if no such cube is found.

    **Arguments:**

    - slope: a bound on |grad L| at the point.
    - flattest: the radius of a cube -> a lower bound on the curvature in it.
    """
    # The first radius assumes the curvature 1. If that cube is too large, the curvature at the point suggests the next.
    radii = [_ROOM * slope, 0.0]
    while radii:
        radius = radii.pop(0)
        try:
            curvature = flattest(radius)
        except UndecidedError:
            continue
        # Orthonormal bases and slopes have rounding errors.
        length = _MORE * slope / curvature if curvature > 0 else math.inf
        if length < radius or length == 0:
            return length
        if curvature > 0:
            radii.insert(0, _ROOM * length)
    return math.inf


def _in_a_valley(loss: Callable[[PyTree], Array], state: PyTree) -> float:
    """The bound for a sum of squares, whose minima may form a continuum."""
    point, unravel = ravel_pytree(state)
    point = np.asarray(point)
    residuals = residuals_of(lambda x: loss(unravel(x)), point)
    if residuals is None:
        return math.inf
    size = _length(_largest(enclose(residuals, point)))
    traced, jacobian = Traced(residuals, point), Traced(jax.jacfwd(residuals), point)
    return _path(size, functools.partial(_least_singular_value, jacobian, traced, point))


def _least_singular_value(jacobian: Traced, residuals: Traced, point: np.ndarray, radius: float) -> float:
    """A lower bound on the least singular value of the Jacobian of the residuals, on a cube."""
    residuals.on(balls(point, radius))  # derivatives do not show the branches
    middle, rest = middle_and_rest(jacobian.on(balls(point, radius)))
    if middle.shape[0] > middle.shape[1]:
        return 0.0
    return float(np.linalg.svd(middle, compute_uv=False)[-1] - np.linalg.norm(rest) - _rounding(middle))


def _least_curvature(
    hessian: Traced, branches: Traced | None, point: np.ndarray, step_size: float, radius: float
) -> float:
    """A lower bound on the Hessian's eigenvalues on a cube around the point. Programs with ``branches`` must take the
    same ones in the whole cube. With a step size the gradient decays by 1 - step_size * curvature in a step at least.
    """
    if branches is not None:
        branches.on(balls(point, radius))
    middle, rest = middle_and_rest(hessian.on(balls(point, radius)))
    middle = (middle + middle.T) / 2
    found, error = np.linalg.eigvalsh(middle), np.linalg.norm(rest) + _rounding(middle)
    stable = 2 / step_size - found[-1] if step_size else math.inf
    return float(min(found[0], stable) - error)


def _rounding(matrix: np.ndarray) -> float:
    """The rounding error of eigenvalues or singular values computed by NumPy."""
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
    """The next weaker symmetry of an array: a zero array is also symmetric."""
    square = leaf.ndim > 1 and leaf.shape[-1] == leaf.shape[-2]
    return "symmetric" if kind == "zero" and square else "any"


def _stay(kinds: list[str], slopes: list[Balls], is_one_formula: bool) -> list[bool]:
    """Whether the field preserves the symmetry of each array. Zeros must be preserved exactly, since a field that
    nearly preserves them may move them at other weights.
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
    """Orthonormal bases, in columns, of the set of each array to which the flow is confined. A weight with zero
    gradient at generic weights never moves.
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
    """J x if the loss is invariant under x -> e^{sJ} x; None if no such symmetry is known."""
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
    """An orthonormal basis of the complement of a direction."""
    inside = basis.T @ direction
    if not inside.any():
        return basis
    return basis @ scipy.linalg.null_space(inside[None] / np.linalg.norm(inside))


def _length(values: np.ndarray) -> float:
    """The norm of a vector whose squares may underflow."""
    size = float(np.max(np.abs(values), initial=0.0))
    return size * float(np.linalg.norm(values / size)) if 0 < size < math.inf else size


def _largest(values: Balls) -> np.ndarray:
    return np.asarray(np.maximum(np.abs(lower(values)), np.abs(upper(values))))
