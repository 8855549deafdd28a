"""An exact population loss over finitely many prompts, for any model."""

import math
from collections.abc import Callable, Iterable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from flowsim._core import checks
from flowsim._core.types import Scalar
from flowsim.losses.base import AbstractPopulationLoss, MinimumKind, unknown_minimum

RESIDUALS = ("squared", "cross-entropy")
_ROUNDING = 1e-12
_FAR, _DOUBLINGS, _ORDERS = 200.0, 12, range(11, 1, -1)  # to rounding, as 200/2^12 is small


class FiniteLoss(AbstractPopulationLoss):
    """The loss L = sum_i p_i l(f(x_i), y_i) over finitely many prompts x_i, for any model f.

    Prompts that the model cannot tell apart may be merged: give one of them, with the sum of their probabilities.
    The error l of a prediction is

        "squared":         l = |f(x) - y|^2 / 2,
        "cross-entropy":   l = -sum_j y_j log softmax(f(x))_j = H(y) + KL(y || softmax(f(x))),

    where H is the entropy and KL the divergence, computed as a sum of positive terms. So the excess and the
    gradient have about the relative accuracy of the differences between the logits and log y, even if these are
    small.

    **Arguments:**

    - prompts: a pytree of arrays with the prompts on their first axis, such as counts, tokens, or a batch of
      `Prompt`.
    - targets: the labels y_i, (prompts, ..). For "cross-entropy" y_i is a vector of probabilities of the labels,
      (prompts, labels).
    - probabilities: (prompts,) p_i, positive with sum 1. By default all are equal.
    - residual: "squared" or "cross-entropy".
    - predict: (model, one prompt) -> the prediction, or the logits for "cross-entropy". Default ``model(prompt)``.
    - realizable: whether some weights, or a limit of weights, predict every target. The minimum is then 0 for
      "squared" and the mean entropy of the targets for "cross-entropy". Otherwise the minimum is unknown.

    **Raises:** `ValueError` naming the argument.
    """

    prompts: PyTree
    targets: Float[Array, "prompts ..."]
    probabilities: Float[Array, " prompts"]
    predict: Callable[[PyTree, PyTree], Array] | None
    minimum: Scalar
    minimum_kind: MinimumKind = eqx.field(static=True)
    residual: str = eqx.field(static=True)
    realizable: bool = eqx.field(static=True)

    def __init__(
        self,
        prompts: PyTree,
        targets: ArrayLike | Iterable,
        probabilities: ArrayLike | Iterable | None = None,
        *,
        residual: str = "squared",
        predict: Callable[[PyTree, PyTree], Array] | None = None,
        realizable: bool = False,
    ):
        if residual not in RESIDUALS:
            checks.refuse("residual", f"one of {', '.join(RESIDUALS)}", f'it is "{residual}"')
        self.residual, self.predict, self.realizable = residual, predict, realizable
        if not np.shape(targets)[:1] > (0,):  # pyright: ignore[reportCallIssue, reportArgumentType]
            checks.refuse("targets", "at least one, on the first axis", f"got {targets!r:.60}")
        if probabilities is None:
            probabilities = np.full(len(targets), 1 / len(targets))  # pyright: ignore[reportArgumentType]
        self.probabilities = checks.as_array("probabilities", probabilities, (None,))
        _check_law("probabilities", self.probabilities, "positive", lambda p: p > 0)
        count = self.probabilities.size
        axes = 2 if residual == "cross-entropy" else max(np.ndim(targets), 1)  # pyright: ignore[reportArgumentType]
        self.targets = checks.as_array("targets", targets, (count, *[None] * (axes - 1)))
        if residual == "cross-entropy":
            _check_law("targets", self.targets, "at least 0", lambda p: p >= 0)
        for shape in [np.shape(leaf) for leaf in jax.tree.leaves(prompts)] or [()]:
            if shape[:1] != (count,):
                expected = f"arrays with {count} prompts, one for each probability, on the first axis"
                checks.refuse("prompts", expected, f"the shape of one is {shape}")
        for leaf in jax.tree.leaves(prompts):
            kind = getattr(getattr(leaf, "dtype", None), "kind", "")
            if kind and kind not in "biufV":  # JAX's own types, such as those of keys, are "V"
                checks.refuse("prompts", "arrays of real numbers", f"one is {leaf!r:.60}")
            # An infinity may stand for a token that is masked.
            if kind == "f" and checks.is_concrete(leaf) and np.any(np.isnan(np.asarray(leaf))):
                checks.refuse("prompts", "numbers", "they hold NaN")
        self.prompts = jax.tree.map(jnp.asarray, prompts)
        self.minimum = self._least if realizable else unknown_minimum()
        self.minimum_kind = MinimumKind.EXACT if realizable else MinimumKind.UNKNOWN

    def __call__(self, model: PyTree) -> Scalar:
        return self._least + self._above(model)

    def excess(self, model: PyTree) -> Scalar:
        return self._above(model) if self.realizable else jnp.asarray(jnp.nan)

    @property
    def may_have_kinks(self) -> bool:
        return True

    def conserved(self, model: PyTree) -> None:
        return None

    def least_model(self) -> None:
        return None

    @property
    def _least(self) -> Scalar:
        """The loss of perfect predictions: 0, or the mean entropy of the targets for "cross-entropy"."""
        if self.residual == "squared":
            return jnp.zeros(())
        return self.probabilities @ jnp.sum(jax.scipy.special.entr(self.targets), axis=1)

    def _above(self, model: PyTree) -> Scalar:
        """The loss at a model minus the loss of perfect predictions."""
        predict = self.predict or (lambda model, prompt: model(prompt))
        predictions = jnp.asarray(jax.vmap(lambda prompt: predict(model, prompt))(self.prompts))
        if predictions.shape != self.targets.shape:
            expected, came = checks.shape_text(self.targets.shape[1:]), checks.shape_text(predictions.shape[1:])
            checks.refuse("model", f"one whose prediction has the shape {expected} of a target", f"it has {came}")
        if self.residual == "squared":
            errors = jnp.square(predictions - self.targets).reshape(self.probabilities.size, -1)
            return self.probabilities @ jnp.sum(errors, axis=1) / 2
        return self.probabilities @ jax.vmap(_divergence)(predictions, self.targets)


def _check_law(
    name: str, values: Float[Array, "... n"], sign: str, has_sign: Callable[[np.ndarray], np.ndarray]
) -> None:
    """Refuse values that are not probabilities with sum 1 along the last axis. Rounding of the sum is accepted.

    **Arguments:** name: of the argument; sign, has_sign: the sign that every value must have, in words and as a
    test.

    **Raises:** `ValueError` naming the argument. Traced values are not checked.
    """
    if not checks.is_concrete(values):
        return
    known = np.asarray(values)
    for value in known[~has_sign(known)]:
        checks.refuse(name, sign, f"they hold {value:g}")
    for total in map(math.fsum, np.atleast_2d(known)):
        if abs(total - 1) > _ROUNDING:
            checks.refuse(name, "probabilities with sum 1", f"their sum is {total:.15g}")


def _divergence(logits: Float[Array, " n"], law: Float[Array, " n"]) -> Scalar:
    """The divergence KL(law || softmax(logits)), without cancellation.

    Let c_j be logits_j - log law_j minus its mean under the law. The divergence is the logarithm of
    1 + sum_j law_j (e^c_j - 1 - c_j). A label of probability 0 contributes only law_j e^c_j, the exponential of its
    logit minus that mean.
    """
    held, top = law > 0, jnp.max(law)
    relative = logits - jnp.log(jnp.where(held, law, top) / top)
    mean = jnp.sum(law * relative) / jnp.sum(law)
    c = jnp.where(held, relative - mean, 0.0)
    scores = logits + jnp.log(top) - mean  # of law_j e^c_j
    # The divergence is at least the largest score. A shift changes nothing else than how large exponentials are.
    shift = jax.lax.stop_gradient(jnp.maximum(jnp.max(scores) - _FAR, 0.0))
    near = held & (jnp.square(c) < _FAR**2)
    far = jnp.exp(scores - shift) - law * jnp.exp(-shift) * (1 + c)
    terms = jnp.where(near, law * jnp.exp(-shift) * _beyond_line(jnp.where(near, c, 0.0)), far)
    return shift + jnp.log1p(jnp.expm1(-shift) + jnp.sum(terms))


@jax.custom_jvp
def _beyond_line(c: Float[Array, " n"]) -> Float[Array, " n"]:
    """h(c) = e^c - 1 - c for |c| < 200, without cancellation.

    A series gives h at c/2^12, and h(2x) = (e^x - 1)^2 + 2 h(x) doubles the argument twelve times. A series near 0
    with e^c - 1 - c elsewhere would need a branch, which is a kink in ball arithmetic.
    """
    x = c / 2**_DOUBLINGS
    above, series = jnp.expm1(x), jnp.zeros_like(x)
    for order in _ORDERS:
        series = series * x + 1 / math.factorial(order)
    beyond = x**2 * series
    for _ in range(_DOUBLINGS):
        above, beyond = above * (above + 2), above**2 + 2 * beyond
    return beyond


_beyond_line.defjvps(lambda slope, _, c: jnp.expm1(c) * slope)
