"""Exact population losses of deep linear transformers, looped or with untied layers."""

import abc
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix
from equinox import AbstractVar
from jaxtyping import Array, Float, PyTree

from flowsim._core import checks
from flowsim._core.types import Scalar
from flowsim.losses.base import AbstractPopulationLoss, MinimumKind, unknown_minimum
from flowsim.losses.deep.residual_energy import (
    BIAS,
    WEIGHT,
    ResidualEnergy,
    bias_terms,
    layer_terms,
    loop_terms,
    power_terms,
)
from flowsim.losses.deep.scalar_minima import layer_minimum, scalar_minimum
from flowsim.losses.deep.taylor import taylor_terms
from flowsim.models import LoopedAttention, MultiLayerAttention
from flowsim.tasks import LinearRegression, SpectralRegression
from flowsim.tasks.regression import check_regression

MOST_LOOPS = {True: 7, False: 4}  # by whether the matrices are symmetric
MOST_LAYERS = {True: 4, False: 3}
_EPSILON = float(np.finfo(np.float64).eps)


class AbstractLayersLoss(AbstractPopulationLoss):
    """The exact loss E (prediction - w^T x_query)^2 of k layers with matrices A_i, for prompts of covariance S.

    It is E tr(C R R^T) with R = (I - W A'_1) ... (I - W A'_k) and A'_i = S^{1/2} A_i S^{1/2}, where W is the sample
    covariance of n vectors z ~ N(0, I). C = I for w ~ N(0, S^-1), and C = S for w ~ N(0, I). The loss is a
    polynomial in traces. Its terms hardly cancel near the minimum.

    **Fields:**

    - task: the law of the prompts.
    - energy: the polynomial.
    - minimizer: the model with the smallest known loss.
    """

    task: AbstractVar[LinearRegression | SpectralRegression]
    energy: AbstractVar[ResidualEnergy]
    minimizer: AbstractVar[PyTree]

    @abc.abstractmethod
    def terms(self, model: PyTree) -> Float[Array, " terms"]:
        """The terms of the polynomial at a model. The loss is their sum plus the constant."""

    @abc.abstractmethod
    def degree(self) -> int:
        """The degree of the loss as a polynomial in the weights."""

    def __call__(self, model: PyTree) -> Scalar:
        return self.energy.constant + jnp.sum(self.terms(model))

    def excess(self, model: PyTree) -> Scalar:
        if self.task.weights == "inverse-covariance":
            return jnp.sum(self.terms(model))
        # The terms are not centred at the minimum.
        return jnp.sum(taylor_terms(self, self.minimizer, model, self.degree()))

    def conserved(self, model: PyTree) -> None:
        return None

    def least_model(self) -> PyTree:
        """The model with the smallest known loss."""
        return self.minimizer

    @abc.abstractmethod
    def directions_outside(self, model: PyTree) -> int:
        """The codimension of the set to which this loss restricts the flow, in the space of all weights."""

    def digits(self, model: PyTree) -> Scalar:
        """The number of decimal digits of the loss that are right in spite of the cancellation of its terms."""
        parts = jnp.append(self.terms(model), self.energy.constant)
        lost = jnp.sum(jnp.abs(parts)) / jnp.abs(jnp.sum(parts))
        return -jnp.log10(jnp.minimum(_EPSILON * lost, 1.0))


class LoopedLoss(AbstractLayersLoss):
    """The exact population loss of `LoopedAttention`, over symmetric A with u = 0, or over all (A, u).

    With A' = S^{1/2} A S^{1/2}, u' = S^{1/2} u, and W and C as in `AbstractLayersLoss`,

        L(A, u) = E tr(C (I - W A')^L (I - A'^T W)^L) + E |u'^T (I - (I - W A')^L)|^2.

    With ``form="printed"`` the first term is E tr (I - A'^{1/2} W A'^{1/2})^{2L}, as Gatmiry et al. (2024) print
    it. It is at most the exact term, and equal to it if A' is a multiple of I.

    The minimizer is the best symmetric A. Over all A it may be a saddle. The minimum over all A is therefore NaN if
    L > 1, d > 1 and n is finite.

    **Arguments:**

    - task: a `LinearRegression` whose ``shifts`` are empty.
    - loops: L, at most 7, or 4 without ``symmetric``.
    - form: "exact" or "printed".
    - symmetric: whether the loss is restricted to symmetric A and u = 0. The gradient in A is then symmetric. Other
      weights are refused, or give NaN if they are traced.

    **Fields:** bias: the polynomial of the second term, or None if u = 0; root: S^{1/2}.

    **Raises:** `ValueError` naming the argument.
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
        check_depth("loops", loops, True, symmetric)
        self.task, self.loops, self.symmetric = task, loops, symmetric
        self.energy = residual_energy(task, loops, looped=True, symmetric=symmetric, form=form)
        centres = [scalar_minimum(task.dimension, float(task.context_length), loops)[0]]
        self.bias = None if symmetric else ResidualEnergy(bias_terms(loops), *_size(task), centres)
        self.root, best = _root_and_best(self.energy, task)
        self.minimizer = LoopedAttention(best[0], loops=loops)
        self.minimum = self(self.minimizer) if task.weights == "isotropic" else self.energy.constant
        self.minimum_kind = MinimumKind.NUMERICAL
        if not symmetric and loops > 1 and self.root.shape[0] > 1 and np.isfinite(float(task.context_length)):
            self.minimum, self.minimum_kind = unknown_minimum(), MinimumKind.UNKNOWN

    def degree(self) -> int:
        return 2 * self.loops

    def terms(self, model: LoopedAttention) -> Float[Array, " terms"]:
        if model.loops != self.loops:
            checks.refuse("loops", f"{self.loops}, as in the loss", f"it is {model.loops}")
        A = model.A
        if self.symmetric:
            A = checks.symmetric("A", A)
            if checks.is_concrete(model.u) and np.any(np.asarray(model.u)):
                checks.refuse("u", "zero, unless the loss is made with symmetric=False", "it is not")
        layers = (self.root @ A @ self.root)[None]
        terms = self.energy.terms(layers, _weight(self.task))
        if self.bias is None:
            return jnp.where(jnp.any(model.u != 0), jnp.nan, terms)
        u = self.root @ model.u
        bias = self.bias.terms(layers, {BIAS: jnp.outer(u, u)})
        return jnp.concatenate([terms, bias])

    def directions_outside(self, model: LoopedAttention) -> int:
        """The codimension of the set of symmetric A with u = 0, or zero if the loss is over all weights."""
        d = model.A.shape[-1]
        return d * (d - 1) // 2 + d if self.symmetric else 0


class MultiLayerLoss(AbstractLayersLoss):
    """The exact population loss of `MultiLayerAttention` without B, over symmetric or over all matrices A_i.

    For the formula see `AbstractLayersLoss`. Over symmetric matrices the gradient is symmetrised, so the flow
    differs from the flow over all matrices.

    **Arguments:**

    - task: a `LinearRegression` whose ``shifts`` are empty.
    - layers: k, at most 4, or 3 without ``symmetric``.
    - symmetric: whether the loss is restricted to symmetric A_i.

    **Fields:** root: S^{1/2}.

    **Raises:** `ValueError` naming the argument.
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
        check_depth("layers", layers, False, symmetric)
        self.task, self.layers, self.symmetric = task, layers, symmetric
        self.energy = residual_energy(task, layers, looped=False, symmetric=symmetric)
        self.root, best = _root_and_best(self.energy, task)
        self.minimizer = MultiLayerAttention(best, symmetric=symmetric)
        self.minimum = self(self.minimizer) if task.weights == "isotropic" else self.energy.constant
        self.minimum_kind = MinimumKind.NUMERICAL

    def degree(self) -> int:
        return 2 * self.layers

    def terms(self, model: MultiLayerAttention) -> Float[Array, " terms"]:
        if model.B is not None:
            came = "it is given: use ScalarLayersLoss for multiples of I, or else a Monte Carlo loss"
            checks.refuse("B", "left out", came)
        if model.A.shape[0] != self.layers:
            checks.refuse("layers", f"{self.layers}, as in the loss", f"there are {model.A.shape[0]}")
        A = checks.symmetric("A", model.A) if self.symmetric else model.A
        return self.energy.terms(self.root @ A @ self.root, _weight(self.task))

    def directions_outside(self, model: MultiLayerAttention) -> int:
        """The codimension of the set of symmetric A_i, or zero if the loss is over all matrices."""
        d = model.A.shape[-1]
        return model.A.size // d * (d - 1) // 2 if self.symmetric else 0


def _check_task(task: LinearRegression) -> None:
    check_regression(task)
    if not checks.is_concrete(task.context_length):
        checks.refuse("task.context_length", "a number that is known", "it is traced")


def check_depth(name: str, depth: int, looped: bool, symmetric: bool) -> None:
    """Refuse a depth for which the exact loss is not available.

    **Arguments:** name: of the argument; depth: the number of loops or layers; looped, symmetric: the kind of loss.

    **Raises:** `ValueError` naming the argument and the largest depth with an exact loss.
    """
    most = (MOST_LOOPS if looped else MOST_LAYERS)[symmetric]
    if not 1 <= checks.count(name, depth) <= most:
        space = "symmetric matrices" if symmetric else "all matrices"
        expected = f"between 1 and {most}, where the loss over {space} is exact (use a Monte Carlo loss beyond that)"
        checks.refuse(name, expected, f"it is {depth}")


def residual_energy(
    task: LinearRegression | SpectralRegression,
    depth: int,
    *,
    looped: bool,
    symmetric: bool = True,
    form: str = "exact",
) -> ResidualEnergy:
    """The polynomial E tr(C R R^T) of `AbstractLayersLoss`, expanded about the best multiples A'_i = c_i I.

    **Arguments:** task: the law of the prompts; depth: the number of loops or layers; looped: whether all A_i are
    equal; symmetric: whether the A_i are; form: "exact" or "printed", as in `LoopedLoss`.

    **Raises:** `ValueError` naming the argument.
    """
    inverse = task.weights == "inverse-covariance"
    if form not in ("exact", "printed"):
        checks.refuse("form", '"exact" or "printed"', f'it is "{form}"')
    if form == "printed" and not (looped and symmetric and inverse):
        came = f'looped = {looped}, symmetric = {symmetric}, weights = "{task.weights}"'
        checks.refuse("form", '"exact" unless looped, symmetric and with inverse-covariance weights', came)
    length, d = _size(task)
    if not looped:
        centres, _ = layer_minimum(d, length, depth)
        return ResidualEnergy(layer_terms(depth, symmetric, not inverse), length, d, list(map(float, centres)))
    centre, _ = scalar_minimum(d, length, depth)
    terms = power_terms(2 * depth) if form == "printed" else loop_terms(depth, symmetric, not inverse)
    return ResidualEnergy(terms, length, d, [centre])


def _size(task: LinearRegression | SpectralRegression) -> tuple[float, int]:
    """The context length n and the dimension d of a task."""
    return float(task.context_length), task.dimension


def _weight(task: LinearRegression) -> dict[str, Float[Array, "d d"]]:
    return {WEIGHT: task.covariance} if task.weights == "isotropic" else {}


def _root_and_best(energy: ResidualEnergy, task: LinearRegression) -> tuple[Float[Array, "d d"], Float[Array, "k d d"]]:
    """S^{1/2}, and the best A_i among the matrices that are diagonal in the eigenbasis of S."""
    values, vectors = jnp.linalg.eigh(task.covariance)
    best = best_eigenvalues(energy, values, jnp.ones_like(values), task.weights) / values[None, :]
    return (vectors * jnp.sqrt(values)[None, :]) @ vectors.T, jnp.einsum("ij,kj,lj->kil", vectors, best, vectors)


def best_eigenvalues(
    energy: ResidualEnergy, covariance: Float[Array, " r"], multiplicities: Float[Array, " r"], weights: str
) -> Float[Array, "k r"]:
    """The best eigenvalues a'_ij = lambda_j a_ij of matrices A'_i that are diagonal in the eigenbasis of S.

    If w ~ N(0, S^-1), they do not depend on j.

    **Arguments:** covariance: the eigenvalues lambda_j of S; multiplicities: of these eigenvalues; weights: the law
    of w, as in `LinearRegression`.
    """
    start = jnp.broadcast_to(energy.centres[:, None], (energy.centres.size, covariance.size))
    if weights == "inverse-covariance":
        return start

    def loss(layers: Float[Array, "k r"]) -> Scalar:
        return jnp.sum(energy.terms_on_diagonals(layers, multiplicities, {WEIGHT: covariance}))

    return _minimized(loss, start)


def _minimized(loss: Callable[[Array], Scalar], start: Array) -> Array:
    """The minimizer of a loss near a start, up to rounding, by BFGS followed by Newton's method on the gradient."""
    solver = optimistix.BFGS(1e-6, 1e-9)
    near = optimistix.minimise(lambda x, args: loss(x), solver, start, max_steps=1000, throw=False).value
    newton = optimistix.Newton(1e-13, 1e-14)
    return optimistix.root_find(lambda x, args: jax.grad(loss)(x), newton, near, throw=False).value
