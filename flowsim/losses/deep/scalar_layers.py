"""Exact population losses of deep linear transformers whose matrices are multiples of S^-1 and I, and their flows.

S is the covariance of the prompts, and W is the sample covariance of n vectors z ~ N(0, I). The losses have the
form E tr f(W) = sum_j w_j f(x_j). This Gauss quadrature over the mean spectrum of W, with nodes x_j = 1 + y_j, is
exact at any d and n. Its weights are positive, so even a loss of 1e-40 has all its digits.
"""

import abc
import math
from collections.abc import Iterable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from equinox import AbstractVar
from jaxtyping import Array, ArrayLike, Float, PyTree

from flowsim._core import checks
from flowsim._core.types import Scalar
from flowsim.losses.base import AbstractPopulationLoss, MinimumKind
from flowsim.losses.deep.scalar_minima import Split, precise_layers, precise_loop, split
from flowsim.losses.deep.stream_minimum import stream_minimum
from flowsim.losses.deep.taylor import taylor_terms
from flowsim.models import ScalarLayers, ScalarLoop
from flowsim.moments import spectral_quadrature

Nodes = Float[Array, " nodes"]


class Speeds(NamedTuple):
    """The speeds c_a and c_b of the flow da_i/dt = -c_a dL/da_i, db_i/dt = -c_b dL/db_i."""

    a: ArrayLike
    b: ArrayLike


def restricted_speeds(
    covariance: ArrayLike | Iterable, *, form: str = "corrected", residual_stream: bool = False
) -> Speeds:
    """The speeds of the constrained flow of Ahn et al. (2023) on the set A_i = a_i S^-1, B_i = b_i I.

    The paper prints dA_i/dt = -r_i S^-1 with r_i = Tr(S^{1/2} grad_{A_i} f S^{1/2}), and dB_i/dt = -s_i S^-1 with
    s_i = Tr(S^{-1/2} grad_{B_i} f S^{1/2}). On the set, the gradients are grad_{A_i} f = (df/da_i) S/d and
    grad_{B_i} f = (df/db_i) I/d. So the printed flow has c_a = tr(S^2)/d, and f falls d times as fast as equation
    (26) of the paper requires. Its B_i leave the set unless S = s I, and then c_b = 1/s.

    The corrected flow has the factor 1/d of the paper's text in r_i and s_i, and dB_i/dt = -s_i I. Its speeds are

        c_a = tr(S^2)/d^2,   c_b = 1/d.

    With these speeds equations (26) and (35) of the paper are equalities. For S = s I the corrected flow is the
    flow of the matrices themselves.

    **Arguments:**

    - covariance: (d, d) S.
    - form: "corrected" or "printed".
    - residual_stream: whether the model has matrices B_i. The "printed" form then requires S = s I.

    **Raises:** `ValueError` naming the argument.
    """
    S = checks.positive_definite("covariance", covariance)
    d, square = S.shape[0], jnp.sum(S**2)
    if form == "corrected":
        return Speeds(square / d**2, 1 / d)
    if form != "printed":
        checks.refuse("form", '"corrected" or "printed"', f"it is {form!r}")
    variance = jnp.trace(S) / d
    if residual_stream and jnp.max(jnp.abs(S - variance * jnp.eye(d))) > 1e-12 * variance:
        checks.refuse(
            "covariance", "a multiple of I, since otherwise the printed flow of the B_i leaves their set", "it is not"
        )
    return Speeds(square / d, 1 / variance)


class AbstractScalarLoss(AbstractPopulationLoss):
    """A loss E tr q(W)^2 as a function of scalars, where the polynomial q depends on the scalars.

    Its flow is the flow of the matrices that the scalars represent. By default S = I. At A_i = a_i I the gradient
    is then (dL/da_i) I/d, so dA_i/dt = -grad gives da_i/dt = -c dL/da_i with c = 1/d. The method `speeds` returns
    c. The squared gradient norm that is recorded along the flow is the squared norm of the gradient in the
    matrices. The solver integrates a_i/sqrt(c), so its absolute tolerance is for these numbers.

    **Fields:** dimension: d; context_length: n.
    """

    context_length: AbstractVar[Scalar]
    dimension: AbstractVar[int]

    def conserved(self, model: PyTree) -> None:
        return None

    @abc.abstractmethod
    def speeds(self, model: PyTree) -> PyTree:
        """The speeds c of d theta/dt = -c dL/d theta, as a model with one number in place of each array."""


class ScalarLoopLoss(AbstractScalarLoss):
    """The loss E tr (I - a W)^{2L} of `ScalarLoop`, as a function of a. It is convex and has one minimum.

    **Arguments:**

    - dimension: d.
    - context_length: n, a whole number of at least 1 or infinity.
    - loops: L.
    - speed: c of da/dt = -c dL/da, default 1/d.

    **Fields:** offsets, weights: the quadrature rule E tr f(W) = sum_j w_j f(1 + y_j); best: the optimal a.

    **Raises:** `ValueError` naming the argument.
    """

    context_length: Scalar
    offsets: Nodes
    weights: Nodes
    speed: Scalar
    minimum: Scalar
    best: Split
    dimension: int = eqx.field(static=True)
    loops: int = eqx.field(static=True)
    minimum_kind: MinimumKind = eqx.field(static=True)

    def __init__(self, dimension: int, context_length: ArrayLike, loops: int, *, speed: ArrayLike | None = None):
        self.dimension, self.loops = checks.count("dimension", dimension), checks.count("loops", loops)
        self.context_length, n = _length(context_length)
        self.offsets, self.weights = map(jnp.asarray, spectral_quadrature(dimension, n, 2 * loops))
        self.speed = checks.positive("speed", 1 / dimension if speed is None else speed)
        shortfall, value = precise_loop(dimension, n, loops)
        self.minimum = jnp.asarray(float(value), dtype=jnp.float64)
        self.best = jax.tree.map(jnp.asarray, split([shortfall]))
        self.minimum_kind = MinimumKind.EXACT

    def __call__(self, model: ScalarLoop) -> Scalar:
        return jnp.sum(self.weights * self._factor(1 - self._scalar(model)) ** (2 * self.loops))

    def excess(self, model: ScalarLoop) -> Scalar:
        """The excess D^2 int_0^1 (1 - s) L''(a_opt + s D) ds with D = a - a_opt. All its terms are positive."""
        step, s, weights = self._segment(model)
        return step**2 * jnp.sum(weights * (1 - s) * self._curvature(step, s))

    def gradient(self, model: ScalarLoop) -> ScalarLoop:
        """The gradient dL/da = D int_0^1 L''(a_opt + s D) ds with D = a - a_opt, as a model."""
        step, s, weights = self._segment(model)
        return eqx.tree_at(lambda model: model.a, model, step * jnp.sum(weights * self._curvature(step, s)))

    @property
    def minimizer(self) -> ScalarLoop:
        """The model with the smallest loss."""
        return ScalarLoop(self.best.scalars[0], loops=self.loops)

    def least_model(self) -> ScalarLoop:
        """The scalars with the smallest known loss."""
        return self.minimizer

    def speeds(self, model: ScalarLoop) -> ScalarLoop:
        return eqx.tree_at(lambda model: model.a, model, self.speed)

    def _scalar(self, model: ScalarLoop) -> Scalar:
        if model.loops != self.loops:
            checks.refuse("model", f"of {self.loops} loops", f"it has {model.loops}")
        return model.a

    def _factor(self, shortfall: Array) -> Array:
        """The factor 1 - a x = e - (1 - e) y at each node x = 1 + y, where e = 1 - a is ``shortfall``."""
        return shortfall - (1 - shortfall) * self.offsets

    def _segment(self, model: ScalarLoop) -> tuple[Scalar, Array, Array]:
        """D = a - a_opt, and the Gauss nodes s and weights on [0, 1] for integrals along a_opt + s D."""
        nodes, weights = np.polynomial.legendre.leggauss(self.loops)
        step = (self._scalar(model) - self.best.scalars[0]) - self.best.remainders[0]
        return step, jnp.asarray((nodes + 1) / 2), jnp.asarray(weights / 2)

    def _curvature(self, step: Scalar, s: Array) -> Array:
        """The second derivative L'' at the points a_opt + s D, where D is ``step``."""
        power = 2 * self.loops
        factors = jax.vmap(self._factor)(self.best.shortfalls[0] - s * step)
        return power * (power - 1) * (factors ** (power - 2) @ (self.weights * (1 + self.offsets) ** 2))


class ScalarLayersLoss(AbstractScalarLoss):
    """The loss L = E tr q_k(W)^2 of `ScalarLayers`.

    For an eigenvalue x of W, q_k is defined by q_0 = p_0 = 1 and

        q_{i+1} = q_i (1 - a_i t),     p_{i+1} = p_i (1 - a_i b_i t),     t = x p_i^2.

    Without b the minimum over the scalars is exact, and unique up to the order of the a_i. With b there are many
    local minima, and ``minimum`` is the smallest one that a search finds; see `stream_minimum`.

    **Arguments:**

    - dimension: d.
    - context_length: n, a whole number of at least 1 or infinity.
    - layers: k.
    - residual_stream: whether the models have b. This requires k <= 4.
    - speeds: of the flow, default 1/d for a and for b.

    **Fields:**

    - offsets, weights: the quadrature rule E tr f(W) = sum_j w_j f(1 + y_j).
    - speed: the speeds of a and of b.
    - minimizer: the scalars with the smallest known loss.
    - best: the optimal a without b, else None.

    **Raises:** `ValueError` naming the argument.
    """

    context_length: Scalar
    offsets: Nodes
    weights: Nodes
    speed: tuple[Scalar, Scalar]
    minimum: Scalar
    minimizer: ScalarLayers
    best: Split | None
    dimension: int = eqx.field(static=True)
    layers: int = eqx.field(static=True)
    residual_stream: bool = eqx.field(static=True)
    minimum_kind: MinimumKind = eqx.field(static=True)

    def __init__(
        self,
        dimension: int,
        context_length: ArrayLike,
        layers: int,
        residual_stream: bool = False,
        *,
        speeds: Speeds | None = None,
    ):
        d, k = checks.count("dimension", dimension), checks.count("layers", layers)
        self.context_length, n = _length(context_length)
        self.dimension, self.layers, self.residual_stream = d, k, residual_stream
        speeds = Speeds(1 / d, 1 / d) if speeds is None else speeds
        self.speed = checks.positive("speeds.a", speeds.a), checks.positive("speeds.b", speeds.b)
        if residual_stream:
            a, b, value = stream_minimum(d, n, k)
            self.best, self.minimizer, self.minimum_kind = None, ScalarLayers(a, b), MinimumKind.NUMERICAL
        else:
            shortfalls, value = precise_layers(d, n, k)
            best = split(shortfalls)
            self.best = jax.tree.map(jnp.asarray, best)
            self.minimizer, self.minimum_kind = ScalarLayers(best.scalars), MinimumKind.EXACT
        self.minimum = jnp.asarray(float(value), dtype=jnp.float64)
        degree = 3**k - 1 if residual_stream else 2 * k
        self.offsets, self.weights = map(jnp.asarray, spectral_quadrature(d, n, degree))

    def __call__(self, model: ScalarLayers) -> Scalar:
        self._check(model)
        a, b = model.a, model.b
        # t = tau + delta with the same tau for all x, so that small differences of the t keep their digits.
        q, tau, delta = jnp.ones_like(self.offsets), jnp.ones(()), self.offsets
        for i in range(self.layers):
            q = q * ((1 - a[i] * tau) - a[i] * delta)
            if b is not None and i < self.layers - 1:
                c = a[i] * b[i]
                flat = 1 - c * tau
                slope = flat * (1 - 3 * c * tau)
                delta = delta * (slope - c * delta * (2 - 3 * c * tau) + (c * delta) ** 2)
                tau = tau * flat**2
        return jnp.sum(self.weights * q**2)

    def excess(self, model: ScalarLayers) -> Scalar:
        """The loss minus its minimum.

        Without b it is E tr (q - q_opt)(W)^2, since q_opt is the projection of 0 on the polynomials q of degree k
        with q(0) = 1. With b it is the sum of `taylor_terms`. If these terms are larger than the loss, the minimum
        is subtracted from the loss instead.
        """
        self._check(model)
        if self.best is None:
            # q has degree 3^k - 1 - k in the scalars.
            parts = taylor_terms(self, self.minimizer, model, 2 * (3**self.layers - 1 - self.layers))
            value = self(model)
            return jnp.where(jnp.sum(jnp.abs(parts)) < value, jnp.sum(parts), value - self.minimum)
        # The scalars are paired by size, since their order does not matter. Near the minimum the pairs are close.
        places = jnp.argsort(jnp.argsort(model.a))
        best = jax.tree.map(lambda values: values[places], self.best)
        steps = (model.a - best.scalars) - best.remainders
        y = self.offsets
        difference, product = jnp.zeros_like(y), jnp.ones_like(y)
        for i in range(self.layers):
            difference = difference * ((1 - model.a[i]) - model.a[i] * y) - product * steps[i] * (1 + y)
            product = product * (best.shortfalls[i] - best.scalars[i] * y)
        return jnp.sum(self.weights * difference**2)

    def gradient(self, model: ScalarLayers) -> ScalarLayers:
        return jax.grad(self.__call__ if self.best is None else self.excess)(model)

    def least_model(self) -> ScalarLayers:
        """The scalars with the smallest known loss."""
        return self.minimizer

    def speeds(self, model: ScalarLayers) -> ScalarLayers:
        return jax.tree.unflatten(jax.tree.structure(model), self.speed[: len(jax.tree.leaves(model))])

    def _check(self, model: ScalarLayers) -> None:
        if model.a.shape != (self.layers,):
            checks.refuse("model.a", f"of {self.layers} layers", f"its shape is {model.a.shape}")
        if (model.b is not None) != self.residual_stream:
            came = "it is left out" if model.b is None else "it is given"
            checks.refuse("model.b", "given" if self.residual_stream else "left out", f"{came}, unlike in the loss")


def _length(context_length: ArrayLike) -> tuple[Scalar, int | float]:
    """The context length n as an array, and as a Python number for the exact moments.

    **Raises:** `ValueError` if n is traced or not a length.
    """
    length = checks.context_length("context_length", context_length)
    if not checks.is_concrete(length):
        checks.refuse("context_length", "a number that is known", "it is traced")
    n = float(length)
    return length, n if math.isinf(n) else int(n)
