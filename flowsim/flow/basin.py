"""How far a gradient flow still has to go: a ball that it cannot leave, with the least curvature in it.

Where the Hessian is at least mu on a ball of radius r about a point, and |grad L| < mu r there, the flow from the point
stays in the ball: |grad L| falls at least as fast as e^{-mu t}, so that its path is at most |grad L|/mu long. Gradients
and Hessians are enclosed, so that this is proved.

A loss that is constant along x -> e^{sJ} x, J a diagonal of signs, is flat along Jx, and <x, Jx> is conserved. Near the
point x_0 every x is then e^{sJ} z with z - x_0 orthogonal to J x_0. With mu the least curvature among such z,
2 mu (L - min L) <= |grad L(z)|^2 <= e^{2|s|} |grad L(x)|^2, so that the path is at most e^{|s|} |grad L|/mu long; along
it |s| <= 2 |x - x_0|/|x_0| and |z - x_0| <= 3.2 |x - x_0|, as long as |s| is at most 1/100.
"""

import math
from collections.abc import Callable

import flint
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from flowsim._core.balls.enclosure import BITS, Balls, UndecidedError, balls, enclose, lower, upper

_LARGEST = 128  # weights
_ROOM = 8.0  # how many times as far as the way in a parabola the ball reaches
_SYMMETRIC = 1e-12
_EXACT = 1e-25
_LONGEST_TURN = 0.01  # |s|
_OFF_THE_ORBIT = 3.2

Field = Callable[[PyTree], PyTree]


def way_to_go(field: Field, conserved: Callable[[PyTree], Array | None], state: PyTree) -> float:
    """A proved bound on the length of the path of a gradient flow from here on; infinite where none is found.

    Matrices that are symmetric, and arrays that are zero, stay so where the field is so at all weights of this kind;
    the curvature is then that among these. So is it across the orbit of a scaling that the loss does not feel.

    **Arguments:** field: minus the gradient; conserved: a quantity that the flow conserves, or None.
    """
    leaves, structure = jax.tree.flatten(state)
    if sum(leaf.size for leaf in leaves) > _LARGEST or not all(np.all(np.isfinite(leaf)) for leaf in leaves):
        return math.inf
    try:
        return _way_to_go(field, conserved, leaves, structure)
    except (UndecidedError, jax.errors.JAXTypeError):
        return math.inf


def _way_to_go(field: Field, conserved: Callable, leaves: list, structure) -> float:
    kinds = [_kind(np.asarray(leaf)) for leaf in leaves]
    # What holds everywhere is asked where nothing is special: at random weights.
    rng = np.random.default_rng(0)
    size = max(float(np.max(np.abs(leaf))) for leaf in leaves)
    draws = [_KINDS[kind](size * rng.standard_normal(leaf.shape)) for leaf, kind in zip(leaves, kinds, strict=True)]
    anywhere = jax.tree.unflatten(structure, draws)
    slopes = jax.tree.leaves(enclose(field, anywhere))
    basis = scipy.linalg.block_diag(*_bases(leaves, kinds, slopes))
    point, unravel = ravel_pytree(jax.tree.unflatten(structure, leaves))
    point = basis @ (basis.T @ np.asarray(point))
    orbit = _orbit(conserved, unravel, point, anywhere, slopes)
    basis = jnp.asarray(basis if orbit is None else _without(np.asarray(basis), orbit))

    def along(y: Float[Array, " m"]) -> Float[Array, " m"]:
        return basis.T @ ravel_pytree(field(unravel(jnp.asarray(point) + basis @ y)))[0]

    nothing = np.zeros(basis.shape[1])
    steepest = float(np.linalg.norm(_largest(enclose(along, nothing))))
    flattest = _least_curvature(along, nothing, 0.0)
    if not flattest > 0:
        return math.inf
    radius = _ROOM * steepest / flattest
    curvature = _least_curvature(along, nothing, radius)
    if not curvature > 0:
        return math.inf
    # The basis is orthonormal to rounding.
    length = (1 + 1e-12) * steepest / curvature
    if orbit is None:
        return length if length < radius else math.inf
    length = math.exp(_LONGEST_TURN) * length
    short = 2 * length <= _LONGEST_TURN * float(np.linalg.norm(point))
    return length if short and _OFF_THE_ORBIT * length < radius else math.inf


def _least_curvature(slope: Callable[[Array], Array], point: np.ndarray, radius: float) -> float:
    """A lower bound of the Hessian's eigenvalues on a cube about the point; the slope is downwards."""
    hessian = enclose(lambda y: -jax.jacfwd(slope)(y), balls(point, radius))
    low, high = lower(hessian), upper(hessian)
    middle, rest = (low + high) / 2, (high - low) / 2
    middle = (middle + middle.T) / 2
    # By Weyl; the eigenvalues of the middle are known to rounding.
    rounding = 4 * point.size * np.finfo(float).eps * np.linalg.norm(middle)
    return float(np.linalg.eigvalsh(middle)[0] - np.linalg.norm(rest) - rounding)


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
    twist = np.max(np.abs(leaf - np.swapaxes(leaf, -1, -2)))
    return "symmetric" if twist <= _SYMMETRIC * np.max(np.abs(leaf)) else "any"


def _bases(leaves: list, kinds: list[str], slopes: list[Balls]) -> list[np.ndarray]:
    """Orthonormal bases, by columns, of the weights of each array among which the flow stays."""
    largest = max(np.max(_largest(slope)) for slope in slopes)
    found = []
    for leaf, kind, slope in zip(leaves, kinds, slopes, strict=True):
        with flint.ctx.workprec(BITS):
            outside = np.asarray(slope - _KINDS[kind](slope), dtype=object)
        stays = np.max(_largest(outside)) <= _EXACT * largest
        found.append(_basis(leaf.shape, kind if stays else "any"))
    return found


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
    return basis @ scipy.linalg.null_space(inside[None] / np.linalg.norm(inside))


def _largest(values: Balls) -> np.ndarray:
    return np.asarray(np.maximum(np.abs(lower(values)), np.abs(upper(values))))
