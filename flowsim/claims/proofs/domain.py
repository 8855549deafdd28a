"""Prepares a loss and a start for a proof: finds the directions in which weights move, and computes the loss and
the start from exact numbers. Compares a claim at given models of the loss.
"""

import dataclasses
import inspect
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import equinox as eqx
import flint
import jax
import jax.numpy as jnp
import numpy as np
from flint import arb
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from flowsim._core import checks
from flowsim._core.balls.operations import UndecidedError
from flowsim._core.types import Document
from flowsim.claims.claim import Claim, Comparison
from flowsim.claims.limits import End, ending_at
from flowsim.claims.proofs import checker
from flowsim.claims.proofs.program import program
from flowsim.claims.proofs.writer import decimals
from flowsim.flow.recording import uncertified
from flowsim.flow.trajectory import AbstractDescent
from flowsim.losses import AbstractPopulationLoss, MonteCarloLoss
from flowsim.losses.base import MinimumKind

_NEAR = 1e-9  # of the weights, to which a start that is computed exactly must agree with the start
_BITS = 128


class Domain:
    """The directions in which weights may move from a start.

    For each array of weights these are all directions, those of symmetric matrices, or none if the loss keeps the
    array fixed.

    **Arguments:** loss, start: as for `flowsim.enclose`.

    **Fields:**

    - size: the largest weight at the start, or 1 if all are zero.
    - shapes: the tree of weights, with the shapes of arrays that move, and the values of arrays that do not.
    - held: for each weight, whether it is in an array that may move but stays constant, because its gradient is
      exactly zero.
    - outside: a basis of the directions in which weights do not move; each is a list of (index of a weight, entry).
    """

    def __init__(self, loss: AbstractPopulationLoss, start: PyTree):
        self._flat, self._unravel = ravel_pytree(eqx.filter(start, eqx.is_inexact_array))
        self._rest = eqx.filter(start, eqx.is_inexact_array, inverse=True)
        self.size = float(np.max(np.abs(self._flat), initial=0.0)) or 1.0
        leaves, tree = jax.tree.flatten(self._unravel(self._flat))
        rng, self._steps = np.random.default_rng(0), [_anywhere] * len(leaves)
        noise = [np.asarray(rng.standard_normal(leaf.shape) / 8) for leaf in leaves]
        everywhere = [leaf + self.size * step for leaf, step in zip(leaves, noise, strict=True)]
        if not self._is_defined(loss, jax.tree.unflatten(tree, everywhere)):
            for k, leaf in enumerate(leaves):
                for step in (_anywhere, _symmetric, _nowhere):
                    self._steps[k] = step
                    moved = [*leaves[:k], leaf + self.size * step(noise[k]), *leaves[k + 1 :]]
                    if self._is_defined(loss, jax.tree.unflatten(tree, moved)):
                        break
        moving = [leaf + self.size * step(k) for leaf, step, k in zip(leaves, self._steps, noise, strict=True)]
        both = [self._slopes(loss, jax.tree.unflatten(tree, row)) for row in (leaves, moving)]
        self.held = np.zeros(self._flat.size, dtype=bool)
        ends = np.cumsum([leaf.size for leaf in leaves])
        for k, slopes in enumerate(zip(*both, strict=True)):
            if not np.any(slopes):
                self.held[ends[k] - leaves[k].size : ends[k]] = self._steps[k] is not _nowhere
                self._steps[k] = _nowhere
        shapes = [
            leaf if step is _nowhere else jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
            for leaf, step in zip(leaves, self._steps, strict=True)
        ]
        self.shapes = jax.tree.unflatten(tree, shapes)
        self.outside: list[list[tuple[int, int]]] = []
        for leaf, step, end in zip(leaves, self._steps, ends, strict=True):
            places = np.arange(end - leaf.size, end).reshape(leaf.shape)
            if step is _nowhere:
                self.outside += [[(int(k), 1)] for k in places.ravel()]
            if step is _symmetric and _is_square(leaf):
                rows, columns = np.triu_indices(leaf.shape[-1], 1)
                pairs = zip(places[..., rows, columns].ravel(), places[..., columns, rows].ravel(), strict=True)
                self.outside += [[(int(i), 1), (int(j), -1)] for i, j in pairs]

    def _slopes(self, loss: AbstractPopulationLoss, weights: PyTree) -> list[np.ndarray]:
        """Return the gradient at some weights, as a list with an array for each array of weights."""
        slopes = eqx.filter(loss.gradient(eqx.combine(weights, self._rest)), eqx.is_inexact_array)
        return [np.asarray(slope) for slope in jax.tree.leaves(slopes)]

    def near(self, rng: np.random.Generator, share: float) -> np.ndarray:
        """Return random weights near the start, (n,), displaced in the directions of the domain.

        **Arguments:** rng: draws the weights; share: the typical displacement, relative to the largest weight.
        """
        moved = self.size * share * rng.standard_normal(self._flat.size)
        leaves, tree = jax.tree.flatten(self._unravel(jnp.asarray(moved)))
        steps = [step(np.asarray(leaf)) for step, leaf in zip(self._steps, leaves, strict=True)]
        return np.asarray(self._flat) + np.asarray(ravel_pytree(jax.tree.unflatten(tree, steps))[0])

    def _is_defined(self, loss: AbstractPopulationLoss, weights: PyTree) -> bool:
        try:
            return bool(jnp.isfinite(loss(eqx.combine(weights, self._rest))))
        except ValueError:
            return False


def _anywhere(step: np.ndarray) -> np.ndarray:
    return step


def _symmetric(step: np.ndarray) -> np.ndarray:
    return (step + np.swapaxes(step, -1, -2)) / 2 if _is_square(step) else step


def _is_square(array: np.ndarray | jax.Array) -> bool:
    return array.ndim > 1 and array.shape[-1] == array.shape[-2]


def _nowhere(step: np.ndarray) -> np.ndarray:
    return np.zeros(step.shape)


def refuse_sampled(loss: AbstractPopulationLoss) -> None:
    """Refuse a loss that is known only through samples.

    **Raises:** `ValueError` naming the argument.
    """
    if isinstance(loss, MonteCarloLoss):
        checks.refuse("loss", "an exact loss, as nothing is proved of a sample", f"got {type(loss).__name__}")


def rebuilt(module: eqx.Module, start: PyTree) -> Any:
    """Construct a loss again from the numbers of its problem, inside a trace, so that the traced program begins at
    these numbers.

    If the constructor cannot be traced, the parts of the loss are constructed again one by one. Numbers that cannot
    be traced back to the problem, and a minimum that a search found, become NaN, which no certificate accepts.

    **Arguments:** module: the loss, or a part of it; start: the model at the start.
    """
    if not getattr(module, "derived", True) or type(module).__module__.startswith("flowsim.tasks"):
        return module
    names = inspect.signature(type(module)).parameters
    own = {name: getattr(module, name) for name in names if hasattr(module, name)}
    try:
        return _without_searches(type(module)(**(own | ({"model": start} if "model" in names else {}))))
    except (jax.errors.JAXTypeError, TypeError, ValueError):
        pass

    def part(value: Any) -> Any:
        return rebuilt(value, start) if isinstance(value, eqx.Module) else _unknown(value)

    parts = {field.name: part(getattr(module, field.name)) for field in dataclasses.fields(module)}
    again = object.__new__(type(module))
    for name, value in parts.items():
        object.__setattr__(again, name, value)
    return again


def numbers_of(loss: AbstractPopulationLoss) -> frozenset[float] | None:
    """Return the numbers in a loss's tasks, which are exact, whereas all others were computed. None if the loss
    computes no numbers.
    """
    if not loss.derived:
        return None
    is_task = lambda part: type(part).__module__.startswith("flowsim.tasks")
    tasks = filter(is_task, jax.tree.leaves(loss, is_leaf=is_task))
    leaves = jax.tree.leaves(eqx.filter(list(tasks), eqx.is_inexact_array))
    return frozenset(float(x) for leaf in leaves for x in np.ravel(leaf))


def numbers_of_problem(
    loss: AbstractPopulationLoss, start: PyTree, domain: Domain, written: Document | None = None
) -> frozenset[float]:
    """Return the numbers that are exact in the sides of a claim: those of the tasks of a loss or, if the loss computes
    no numbers, all numbers that occur in it, and the weights of the start.

    Python may have rounded any other number of a claim, such as 1/3.

    **Arguments:** written: the program of the loss, if there is one.
    """
    if (found := numbers_of(loss)) is not None:
        return found
    try:
        written = written or program(lambda weights: rebuilt(loss, start)(weights), weights=domain.shapes)
    except UndecidedError:  # of what certificates cannot express, and a claim that does not read the loss need not
        written = {"operations": []}
    texts = [text for name, _, numbers in written["operations"] if name == "number" for text in numbers]
    return frozenset(map(float, [*map(Fraction, texts), *ravel_pytree(start)[0]]))


def as_decimals(start: PyTree) -> Document:
    """Return the program of a start whose weights are the decimals in which they are written."""
    return {"operations": [["number", [], decimals(np.asarray(ravel_pytree(start)[0]))]], "result": 0}


def exactly_computed(exact_start: Callable[[], PyTree | None], start: PyTree) -> Document | None:
    """Return the program of a start that is computed from exact numbers. None if it cannot be written, or if its
    values are not those of ``start``.

    **Arguments:** exact_start: the function that computes the start; start: the start in float64.
    """
    if exact_start() is None:
        return None
    try:
        found = program(lambda: eqx.filter(exact_start(), eqx.is_inexact_array))
    except (UndecidedError, ValueError, jax.errors.JAXTypeError):
        return None
    with flint.ctx.workprec(_BITS):
        values = np.asarray([float(x) for x in map(arb, checker.Program(found)())])
    weights = np.asarray(ravel_pytree(start)[0])
    near = _NEAR * float(np.max(np.abs(weights), initial=0.0))
    return found if values.shape == weights.shape and np.all(np.abs(values - weights) <= near) else None


def _unknown(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf * jnp.nan if eqx.is_inexact_array(leaf) else leaf, tree)


def _without_searches(module: Any) -> Any:
    """Replace by NaN a minimum and minimizer that are known only from a numerical search."""
    if getattr(module, "minimum_kind", None) is not MinimumKind.NUMERICAL:
        return module
    names = [field.name for field in dataclasses.fields(module) if field.name in ("minimum", "minimizer")]
    parts = lambda module: [getattr(module, name) for name in names]
    return eqx.tree_at(parts, module, _unknown(parts(module)))


def compared(
    claim: Claim, loss: AbstractPopulationLoss, t: Float[Array, " T"], models: list[PyTree], known: PyTree = None
) -> Comparison:
    """The comparison of a claim at models along a flow, or at its start alone. If ``known`` is given, which may be
    any model whose weights are known, the last of the models counts as the exact limit of the flow.
    """
    moving, fixed = zip(*(eqx.partition(model, eqx.is_inexact_array) for model in models), strict=True)
    stacked = eqx.combine(jax.tree.map(lambda *leaves: jnp.stack(leaves), *moving), fixed[0])
    value = excess = squares = dissipated = jnp.full(len(models), jnp.nan)
    if claim.along_flow:
        value, excess, squares, dissipated = _series(loss, models)
    flow = uncertified(t, stacked, value, excess, squares, dissipated, _Velocity(loss))
    if known is not None:
        with ending_at(End(known, known, 0.0)):
            return jax.tree.map(jnp.atleast_1d, claim.compare(loss, dataclasses.replace(flow, way_to_go=0.0)))
    return jax.tree.map(jnp.atleast_1d, claim.compare(loss, flow))


class _Velocity(AbstractDescent):
    """Minus the gradient of a loss, with no bound on the remaining length of the flow."""

    loss: AbstractPopulationLoss

    def __call__(self, model: PyTree) -> PyTree:
        """The velocity of the flow at a model."""
        return jax.tree.map(jnp.negative, self.loss.gradient(model))

    def way_to_go(self, model: PyTree, start: PyTree) -> float:
        """Infinity, since no bound on the remaining length of the flow is computed."""
        return math.inf


def _series(loss: AbstractPopulationLoss, models: list[PyTree]) -> tuple[Array, Array, Array, Array]:
    """The series that a trajectory records: loss, excess, |grad L|^2 and the dissipated energy at each model."""
    known: dict[int, tuple[Array, Array, Array]] = {}  # of models, of which one may stand for many times
    for model in models:
        if id(model) not in known:
            squares = sum(jnp.sum(slope**2) for slope in jax.tree.leaves(loss.gradient(model)))
            known[id(model)] = loss(model), loss.excess(model), jnp.asarray(squares)
    value, excess, squares = map(jnp.stack, zip(*(known[id(model)] for model in models), strict=True))
    return value, excess, squares, value[0] - value
