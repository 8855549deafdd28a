"""The exact population losses of deep linear transformers, looped and with layers of their own."""

import abc
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix
from equinox import AbstractVar
from jaxtyping import Array, Float, PyTree

from flowsim import _checks
from flowsim.losses.base import AbstractPopulationLoss, MinimumKind
from flowsim.losses.residual_energy import (
    BIAS,
    WEIGHT,
    ResidualEnergy,
    bias_terms,
    layer_terms,
    loop_terms,
    power_terms,
)
from flowsim.losses.scalar_minima import layer_minimum, scalar_minimum
from flowsim.models import LoopedAttention, MultiLayerAttention
from flowsim.tasks import LinearRegression

Scalar = Float[Array, ""]

MOST_LOOPS = {True: 7, False: 4}  # by whether the matrices are symmetric
MOST_LAYERS = {True: 4, False: 3}
_SYMMETRY = 1e-12
_EPSILON = float(np.finfo(np.float64).eps)


class AbstractLayersLoss(AbstractPopulationLoss):
    """E (prediction - w^T x_query)^2 = E tr(C R R^T) with R = (I - W A'_1) ... (I - W A'_k), A' = S^{1/2} A S^{1/2}.

    C = I where w ~ N(0, S^-1) and C = S where w ~ N(0, I). Exact at every n >= 1: a polynomial in traces, with terms
    that hardly cancel near its minimum.

    minimizer: the model with the smallest known loss.
    """

    task: AbstractVar[LinearRegression]
    energy: AbstractVar[ResidualEnergy]
    minimizer: AbstractVar[PyTree]

    @abc.abstractmethod
    def terms(self, model: PyTree) -> Float[Array, " terms"]:
        """What is summed to the loss, the constant left out."""

    @abc.abstractmethod
    def degree(self) -> int:
        """The degree of the loss as a polynomial in the weights."""

    def __call__(self, model: PyTree) -> Scalar:
        return self.energy.constant + jnp.sum(self.terms(model))

    def excess(self, model: PyTree) -> Scalar:
        if self.task.weights == "inverse-covariance":
            return jnp.sum(self.terms(model))
        # The minimum is not where the terms are centred.
        return _taylor_remainder(self, self.minimizer, model, self.degree())

    def conserved(self, model: PyTree) -> None:
        return None

    def arrowhead(self, model: PyTree) -> None:
        return None

    def replicates(self) -> tuple[()]:
        return ()

    def digits(self, model: PyTree) -> Scalar:
        """How many decimal digits of the loss survive the cancellation of its terms."""
        parts = jnp.append(self.terms(model), self.energy.constant)
        lost = jnp.sum(jnp.abs(parts)) / jnp.abs(jnp.sum(parts))
        return -jnp.log10(jnp.minimum(_EPSILON * lost, 1.0))


class LoopedLoss(AbstractLayersLoss):
    """The exact population loss of `LoopedAttention`, over symmetric A with u = 0, or over all (A, u).

    L(A, u) = E tr(C (I - W A')^L (I - A'^T W)^L) + E |u'^T (I - (I - W A')^L)|^2,  A' = S^{1/2} A S^{1/2}, u' = S^{1/2} u,

    with C = I for w ~ N(0, S^-1) and C = S for w ~ N(0, I). The paper prints E tr (I - A'^{1/2} W A'^{1/2})^{2L} for
    the first term, which equals it on multiples of I and is never above it: ``form="printed"``.

    **Arguments:** task: a `LinearRegression` of training; loops: L; form: "exact" or "printed"; symmetric: whether the
    loss is that of symmetric A and u = 0 alone, in which case its gradient is symmetric. At other weights it is then
    NaN, or an error where they can be seen.

    **Raises:** `ValueError` naming the argument: L beyond 7, or 4 without symmetry, has no exact form here.

    **Source:** gatmiry2024, sections 3.4 and 3.5, Lemma 4.1, Corollary A.4.
    """

    task: LinearRegression
    energy: ResidualEnergy
    bias: ResidualEnergy | None
    root: Float[Array, "d d"]
    minimizer: LoopedAttention
    minimum: Scalar
    loops: int = eqx.field(static=True)
    symmetric: bool = eqx.field(static=True)
    minimum_kind: MinimumKind = eqx.field(static=True)

    def __init__(self, task: LinearRegression, loops: int, *, form: str = "exact", symmetric: bool = True):
        _check_task(task)
        _check_depth("loops", loops, MOST_LOOPS[symmetric], symmetric)
        if form not in ("exact", "printed"):
            _checks.fail("form", '"exact" or "printed"', f"it is {form!r}")
        if form == "printed" and not (symmetric and task.weights == "inverse-covariance"):
            came = f'symmetric = {symmetric}, task.weights = "{task.weights}"'
            _checks.fail("form", '"exact" unless symmetric and with inverse-covariance weights', came)
        n, d = float(task.context_length), task.dimension
        scalar, _ = scalar_minimum(d, n, loops)
        weighted = task.weights == "isotropic"
        polynomial = power_terms(2 * loops) if form == "printed" else loop_terms(loops, symmetric, weighted)
        self.task, self.loops, self.symmetric = task, loops, symmetric
        self.energy = ResidualEnergy(polynomial, n, d, [scalar])
        self.bias = None if symmetric else ResidualEnergy(bias_terms(loops), n, d, [scalar])
        self.root, inverse_root = _roots(task.covariance)
        best = _best_layers(self.energy, task, jnp.asarray([scalar]))
        self.minimizer = LoopedAttention(inverse_root @ best[0] @ inverse_root, loops=loops)
        self.minimum = self(self.minimizer) if weighted else self.energy.constant
        self.minimum_kind = MinimumKind.NUMERICAL

    def degree(self) -> int:
        return 2 * self.loops

    def terms(self, model: LoopedAttention) -> Float[Array, " terms"]:
        A = model.A
        if self.symmetric:
            _require_symmetric("A", A)
            if _checks.is_concrete(model.u) and np.any(model.u):
                _checks.fail("u", "zero, unless the loss is made with symmetric=False", "it is not")
            A = (A + A.T) / 2
        layers = (self.root @ A @ self.root)[None]
        terms = self.energy.terms(layers, _weight(self.task))
        if self.bias is None:
            return jnp.where(jnp.any(model.u != 0), jnp.nan, terms)
        u = self.root @ model.u
        bias = self.bias.terms(layers, {BIAS: jnp.outer(u, u)})
        return jnp.concatenate([terms, bias])

    def gradient(self, model: LoopedAttention) -> LoopedAttention:
        return jax.grad(self.__call__)(model)


class MultiLayerLoss(AbstractLayersLoss):
    """The exact population loss of `MultiLayerAttention` without B, over symmetric matrices or over all.

    L(A) = E tr(C R R^T), R = (I - W A'_1) ... (I - W A'_k) with A'_i = S^{1/2} A_i S^{1/2}, C = I for w ~ N(0, S^-1) and
    C = S for w ~ N(0, I). In symmetric matrices the gradient is the symmetrised one: another flow than that in all.

    **Arguments:** task: a `LinearRegression` of training; layers: k; symmetric: whether the A_i are.

    **Raises:** `ValueError` naming the argument: k beyond 4, or 3 without symmetry, has no exact form here.

    **Source:** ahn2023 (5), (9), Lemma 9, with A_i = -(the paper's); gatmiry2024, Lemma A.3.
    """

    task: LinearRegression
    energy: ResidualEnergy
    root: Float[Array, "d d"]
    minimizer: MultiLayerAttention
    minimum: Scalar
    layers: int = eqx.field(static=True)
    symmetric: bool = eqx.field(static=True)
    minimum_kind: MinimumKind = eqx.field(static=True)

    def __init__(self, task: LinearRegression, layers: int, *, symmetric: bool = True):
        _check_task(task)
        _check_depth("layers", layers, MOST_LAYERS[symmetric], symmetric)
        n, d = float(task.context_length), task.dimension
        scalars, _ = layer_minimum(d, n, layers)
        weighted = task.weights == "isotropic"
        self.task, self.layers, self.symmetric = task, layers, symmetric
        self.energy = ResidualEnergy(layer_terms(layers, symmetric, weighted), n, d, scalars)
        self.root, inverse_root = _roots(task.covariance)
        best = _best_layers(self.energy, task, jnp.asarray(scalars))
        self.minimizer = MultiLayerAttention(inverse_root @ best @ inverse_root, symmetric=symmetric)
        self.minimum = self(self.minimizer) if weighted else self.energy.constant
        self.minimum_kind = MinimumKind.NUMERICAL

    def degree(self) -> int:
        return 2 * self.layers

    def terms(self, model: MultiLayerAttention) -> Float[Array, " terms"]:
        A = model.A
        if model.B is not None:
            came = "it has one: ScalarLayersLoss is exact on multiples of I, a Monte Carlo loss elsewhere"
            _checks.fail("B", "left out", came)
        if self.symmetric:
            _require_symmetric("A", A)
            A = (A + jnp.swapaxes(A, 1, 2)) / 2
        return self.energy.terms(self.root @ A @ self.root, _weight(self.task))

    def gradient(self, model: MultiLayerAttention) -> MultiLayerAttention:
        return jax.grad(self.__call__)(model)


def _check_task(task: LinearRegression) -> None:
    if not isinstance(task, LinearRegression):
        _checks.fail("task", "a LinearRegression: the exact form needs one fixed covariance", f"got {task!r:.60}")
    if task.shifts:
        came = f"it has a {task.shifts[0]}, which is for test prompts"
        _checks.fail("task", "one of training, without label_noise, query_covariance and weight", came)
    if not _checks.is_concrete(task.context_length):
        _checks.fail("task.context_length", "a number that is known", "it is traced")


def _check_depth(name: str, depth: int, most: int, symmetric: bool) -> None:
    if not 1 <= depth <= most:
        space = "symmetric matrices" if symmetric else "all matrices"
        expected = f"between 1 and {most}, where the loss over {space} is exact (Monte Carlo is the way beyond that)"
        _checks.fail(name, expected, f"it is {depth}")


def _require_symmetric(name: str, matrices: Float[Array, "..."]) -> None:
    if _checks.is_concrete(matrices):
        matrices = np.asarray(matrices)
        asymmetry = np.max(np.abs(matrices - np.swapaxes(matrices, -1, -2)), initial=0.0)
        if asymmetry > _SYMMETRY * np.max(np.abs(matrices), initial=0.0):
            came = f"it differs from its transpose by {asymmetry:.3g}"
            _checks.fail(name, "symmetric, unless the loss is made with symmetric=False", came)


def _weight(task: LinearRegression) -> dict[str, Float[Array, "d d"]]:
    return {WEIGHT: task.covariance} if task.weights == "isotropic" else {}


def _roots(covariance: Float[Array, "d d"]) -> tuple[Float[Array, "d d"], Float[Array, "d d"]]:
    """S^{1/2} and S^{-1/2}."""
    values, vectors = jnp.linalg.eigh(covariance)
    root = (vectors * jnp.sqrt(values)[None, :]) @ vectors.T
    return root, (vectors / jnp.sqrt(values)[None, :]) @ vectors.T


def _best_layers(energy: ResidualEnergy, task: LinearRegression, scalars: Float[Array, " k"]) -> Float[Array, "k d d"]:
    """The best A'_i that are diagonal in the eigenbasis of S; multiples of I where w ~ N(0, S^-1)."""
    d = task.dimension
    start = jnp.broadcast_to(scalars[:, None], (scalars.size, d))
    if task.weights == "inverse-covariance":
        return start[:, :, None] * jnp.eye(d)[None]
    values, vectors = jnp.linalg.eigh(task.covariance)

    def loss(layers: Float[Array, "k d"]) -> Scalar:
        return jnp.sum(energy.terms_on_diagonals(layers, jnp.ones(d), {WEIGHT: values}))

    return jnp.einsum("ij,kj,lj->kil", vectors, _minimized(loss, start), vectors)


def _minimized(loss: Callable[[Array], Scalar], start: Array) -> Array:
    """The minimum near a start, to rounding: BFGS, then Newton's method on the gradient."""
    near = optimistix.minimise(lambda x, args: loss(x), optimistix.BFGS(1e-8, 1e-10), start, max_steps=2000)
    newton = optimistix.Newton(1e-13, 1e-14)
    return optimistix.root_find(lambda x, args: jax.grad(loss)(x), newton, near.value, throw=False).value


def _taylor_remainder(loss: Callable[[PyTree], Scalar], origin: PyTree, model: PyTree, degree: int) -> Scalar:
    """L(A) - L(A_opt) = int_0^1 (1 - s) <D, H(A_opt + s D) D> ds with D = A - A_opt, as the gradient is zero at A_opt.

    The integrand is a polynomial in s, which the quadrature integrates exactly.
    """
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)
    origin = eqx.filter(origin, eqx.is_inexact_array)
    step = jax.tree.map(jnp.subtract, arrays, origin)

    def along(s: Scalar) -> Scalar:
        return loss(eqx.combine(jax.tree.map(lambda x, dx: x + s * dx, origin, step), rest))

    nodes, weights = np.polynomial.legendre.leggauss(degree // 2 + 1)
    s, weights = jnp.asarray((nodes + 1) / 2), jnp.asarray(weights / 2)
    return jnp.sum(weights * (1 - s) * jax.vmap(jax.grad(jax.grad(along)))(s))
