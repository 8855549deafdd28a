"""Properties of weights that a flow preserves exactly: zeros, symmetric matrices, and conserved quantities."""

import math
from collections.abc import Callable

import flint
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, PyTree

from flowsim._core.balls.centred import is_analytic
from flowsim._core.balls.enclosure import BITS, Traced
from flowsim._core.balls.operations import Balls, balls
from flowsim.flow.basin.curvature import largest, vanishes
from flowsim.flow.basin.landscape import UNSUPPORTED, Field

_EXACT = 1e-25


def stay_at_zero(field: Field, weights: PyTree, zero: PyTree, *, is_one_formula: bool) -> PyTree:
    """Which of the weights that are zero stay zero along the flow, for any values of the other weights.

    If the field cannot be computed in balls or may have another formula at other weights, all masks are false.

    **Arguments:**

    - field: minus the gradient.
    - weights: any weights, for their shapes and scale.
    - zero: masks in the form of the weights that say which of them are zero.
    - is_one_formula: as in `Landscape`.

    **Returns:** masks in the form of the weights.
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
            still = jax.tree.map(lambda one, slope: one & vanishes(slope), zero, slopes)
            if jax.tree.all(jax.tree.map(np.array_equal, zero, still)):
                return still
            zero = still
    except UNSUPPORTED:
        return nothing


KINDS = {
    "any": lambda x: x,
    "symmetric": lambda x: (x + np.swapaxes(x, -1, -2)) / 2,
    "zero": lambda x: x * 0,
}


def kind_of(leaf: np.ndarray) -> str:
    """The symmetry of an array: "zero", "symmetric" or "any", the keys of `KINDS`."""
    if not np.any(leaf):
        return "zero"
    if leaf.ndim < 2 or leaf.shape[-1] != leaf.shape[-2]:
        return "any"
    return "symmetric" if np.array_equal(leaf, np.swapaxes(leaf, -1, -2)) else "any"


def weaker(kind: str, leaf: Array | np.ndarray) -> str:
    """The next weaker symmetry after ``kind``: "symmetric" after "zero" if the array is square, else "any"."""
    square = leaf.ndim > 1 and leaf.shape[-1] == leaf.shape[-2]
    return "symmetric" if kind == "zero" and square else "any"


def preserved(kinds: list[str], slopes: list[Balls], is_one_formula: bool) -> list[bool]:
    """For each array, whether the field preserves its symmetry.

    Zeros must be preserved exactly, since a field that nearly preserves them may move them at other weights.

    **Arguments:** kinds: the symmetry of each array; slopes: the field of each array at random weights with these
    symmetries; is_one_formula: as in `Landscape`.
    """
    steepest = max(np.max(largest(slope), initial=0.0) for slope in slopes)
    found = []
    for kind, slope in zip(kinds, slopes, strict=True):
        if kind == "any":
            found.append(True)
            continue
        if kind == "zero" and not is_one_formula:
            found.append(bool(np.all(vanishes(slope))))
            continue
        with flint.ctx.workprec(BITS):
            outside = np.asarray(slope - KINDS[kind](slope), dtype=object)
        may_be_zero = all(bool(ball.contains(0)) for ball in np.ravel(outside))
        found.append(may_be_zero and bool(np.max(largest(outside), initial=0.0) <= _EXACT * steepest))
    return found


def bases(leaves: list, kinds: list[str], slopes: list[Balls] | None) -> list[np.ndarray]:
    """For each array, an orthonormal basis, in columns, of the subspace in which the flow can move it.

    **Arguments:** leaves: the arrays; kinds: their symmetries, which the flow preserves; slopes: the field at
    random weights with these symmetries, to exclude weights with zero velocity, or None.
    """
    found = [_basis(leaf.shape, kind) for leaf, kind in zip(leaves, kinds, strict=True)]
    if slopes is None:
        return found
    moves = [~vanishes(slope).ravel() for slope in slopes]
    return [basis[:, np.any(basis[one] != 0, axis=0)] for basis, one in zip(found, moves, strict=True)]


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


def orbit_of(conserved: Callable, unravel: Callable, point: np.ndarray, anywhere: PyTree, slopes: list[Balls]):
    """The vector J x at the point x, if the loss is invariant under x -> e^{sJ} x with a diagonal matrix J of
    signs; None if this is not known.

    **Arguments:** conserved: the conserved quantity <x, J x>, or a function that returns None; unravel: maps a
    vector to weights; point: x; anywhere: random weights; slopes: the field there.
    """
    if conserved(anywhere) is None:
        return None
    generator = lambda state: jax.tree.leaves(jax.tree.map(lambda x: x / 2, jax.grad(conserved)(state)))
    drawn = generator(anywhere)
    if not all(np.allclose(np.abs(v), np.abs(x)) for v, x in zip(drawn, jax.tree.leaves(anywhere), strict=True)):
        return None
    with flint.ctx.workprec(BITS):
        felt = sum((np.sum(balls(v) * slope) for v, slope in zip(drawn, slopes, strict=True)), flint.arb(0))
    scale = sum(float(np.sum(np.abs(v) * largest(slope))) for v, slope in zip(drawn, slopes, strict=True))
    if float(abs(felt).upper()) > _EXACT * scale:
        return None
    return np.concatenate([np.ravel(v) for v in generator(unravel(jnp.asarray(point)))])


def without(basis: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """An orthonormal basis, in columns, of all vectors in the span of a basis that are orthogonal to a direction."""
    inside = basis.T @ direction
    if not inside.any():
        return basis
    return basis @ scipy.linalg.null_space(inside[None] / np.linalg.norm(inside))
