"""Estimates of the population loss of any model by an average over prompts that are drawn once."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray, PyTree

from flowsim._core import checks
from flowsim._core.types import Scalar
from flowsim.losses.base import AbstractPopulationLoss, MinimumKind, unknown_minimum
from flowsim.losses.sampled import blocks
from flowsim.losses.sampled.confidence import HEAVIEST_SHAPE, Tail, half_width, tail
from flowsim.losses.sampled.estimators import (
    ESTIMATORS,
    AbstractEstimator,
    CovarianceEstimator,
    InputEstimator,
    PromptEstimator,
    Prompts,
    RadialEstimator,
    averages,
)

METHODS = ("auto", *(kind.name for kind in ESTIMATORS))
FEWEST_REPLICATES = 4
FEWEST_SAMPLES = 32  # in a replicate
_FRESH = 2**31  # the first index of prompts that no flow has seen
_PILOT = 512
_LEVEL = 0.95
_OPTIMISM = 1.25


class Estimate(NamedTuple):
    """An estimate of the population loss at one model.

    **Fields:** value: the mean over all samples; low, high: its 95% confidence interval, from the means over
    disjoint groups of samples; tail: the tail of the squared errors.
    """

    value: float
    low: float
    high: float
    tail: Tail

    def __str__(self) -> str:
        return (
            f"{self.value:.6g} (95% interval {self.low:.6g} to {self.high:.6g}); the largest 1% of the samples carry "
            f"{self.tail.share:.0%}, Pareto shape {self.tail.shape:.2f}"
        )


class MonteCarloLoss(AbstractPopulationLoss):
    """The loss L = factor E (yhat - y_query)^2 of any Equinox module that maps a `Prompt` to a scalar yhat. The
    expectation is estimated by an average over sampled prompts.

    Sample i is drawn with ``jax.random.fold_in(key, i)``, once for each flow. Therefore a flow is the exact flow of
    the average. The losses of `replicates` average over disjoint parts of the samples. Their flows estimate the
    sampling error of any result. `distrust` detects that this estimate cannot be trusted.

    **Arguments:**

    - task: the law of the prompts, with a method ``sample(key) -> (prompt, label of the query)``.
    - samples: the number of samples, a multiple of replicates, at least 32 for each.
    - replicates: the number of disjoint parts, at least 4.
    - key: the key of the draws, by default ``jax.random.key(0)``.
    - method: the parts of a prompt that are drawn. "prompts" draws whole prompts. "inputs" draws the inputs of the
      examples and averages exactly over w and x_query, for models that are affine in w and linear in x_query.
      "covariances" draws only sample covariances, for models with a method ``residual``. "radial" also averages
      over the size of the inputs. "auto" chooses the method for which the variance of the gradient times the number
      of operations is least.
    - factor: the factor of the loss, such as 1/2.
    - exact: the exact loss of the problem, if it is known. Claims about the problem refer to it.
    - minimizer: a model of least loss, needed for the excess.
    - block: the number of samples to compute at once, by default as many as fit into the caches of a CPU or the
      memory of a GPU.
    - mesh: devices that share the samples, with one axis named "samples".

    **Raises:** `ValueError` naming the argument.
    """

    task: PyTree
    key: PRNGKeyArray
    factor: Scalar
    exact: AbstractPopulationLoss | None
    minimizer: PyTree | None
    minimum: Scalar
    minimum_kind: MinimumKind = eqx.field(static=True)
    estimator: AbstractEstimator | None
    draws: PyTree | None
    first: Array
    samples: int = eqx.field(static=True)
    groups: int = eqx.field(static=True)
    block: int | None = eqx.field(static=True)
    planned: bool = eqx.field(static=True)
    mesh: jax.sharding.Mesh | None = eqx.field(static=True)

    def __init__(
        self,
        task: PyTree,
        samples: int,
        replicates: int = 8,
        key: PRNGKeyArray | None = None,
        *,
        method: str = "auto",
        factor: ArrayLike = 1.0,
        exact: AbstractPopulationLoss | None = None,
        minimizer: PyTree | None = None,
        block: int | None = None,
        mesh: jax.sharding.Mesh | None = None,
    ):
        if method not in METHODS:
            checks.refuse(
                "method", f"one of {', '.join(METHODS)}", f'it is "{method}"{checks.nearest(method, METHODS)}'
            )
        if not np.isfinite(float(getattr(task, "context_length", 1.0))):
            checks.refuse("task.context_length", "finite, as prompts are drawn", "it is inf")
        if checks.count("replicates", replicates) < FEWEST_REPLICATES:
            checks.refuse("replicates", f"at least {FEWEST_REPLICATES}, for an interval", f"it is {replicates}")
        fewest = FEWEST_SAMPLES * replicates
        if checks.count("samples", samples) % replicates or not fewest <= samples < _FRESH:
            expected = f"a multiple of replicates = {replicates}, and between {fewest} and 2^31"
            checks.refuse("samples", expected, f"it is {samples}")
        if mesh is not None:
            blocks.check_mesh(mesh)
            if samples % (replicates * mesh.size):
                expected = f"a multiple of replicates times devices, {replicates} x {mesh.size}"
                checks.refuse("samples", expected, f"it is {samples}")
        self.task, self.samples, self.groups, self.mesh = task, samples, replicates, mesh
        self.key = jax.random.key(0) if key is None else key
        self.factor = checks.positive("factor", factor)
        self.exact, self.minimizer = exact, minimizer
        self.minimum = unknown_minimum() if exact is None else exact.minimum
        self.minimum_kind = MinimumKind.UNKNOWN if exact is None else exact.minimum_kind
        kinds = {kind.name: kind for kind in ESTIMATORS}
        self.estimator = None if method == "auto" else kinds[method](Prompts(task))
        self.draws, self.first, self.planned = None, jnp.zeros((), jnp.uint32), False
        self.block = None if block is None else checks.count("block", block)

    @property
    def method(self) -> str:
        """The name of the method by which samples are drawn, "auto" before one is chosen."""
        return "auto" if self.estimator is None else self.estimator.name

    def prepared(self, model: PyTree) -> "MonteCarloLoss":
        """The loss ready for flows from a model: the method is chosen, and the samples are drawn if they fit into
        the memory. Otherwise they are drawn again at each use.

        **Raises:** `ValueError` if the model does not map the prompts to finite scalars, if the method is biased
        for the model, if there is not enough memory, or if the method is "auto" inside a JAX transformation.
        """
        if self.planned or (self.estimator is not None and not _is_concrete(model)):
            return self
        if not _is_concrete(model):
            checks.refuse("method", 'other than "auto" inside of a transformation (see `prepared`)', 'it is "auto"')
        self._check_output(model)
        estimator = self.estimator
        if estimator is None:
            costs = self.costs(model)
            chosen = min(costs, key=lambda name: costs[name])
            estimator = next(kind(Prompts(self.task)) for kind in ESTIMATORS if kind.name == chosen)
        elif not estimator.applies(model, self._pilot_key):
            checks.refuse("method", "unbiased for the model", f'"{estimator.name}" is biased')
        loss = self._planned(estimator, model, self.block)
        loss._check_finite(model)
        return loss

    def costs(self, model: PyTree) -> dict[str, float]:
        """The cost of each method: the variance of the gradient times the number of operations, relative to the
        method for which this is least.

        Only methods that are unbiased for the model are compared. If "covariances" or "radial" is unbiased, the
        methods that draw more parts of a prompt are left out, since exact averages have less variance.
        """
        right = self._right((CovarianceEstimator, RadialEstimator), model)
        right = right or [*self._right((InputEstimator,), model), PromptEstimator(Prompts(self.task))]
        if len(right) == 1:
            return {right[0].name: 1.0}
        keys = jax.random.split(self._pilot_key, _PILOT)
        costs = {estimator.name: blocks.cost(estimator, model, keys) for estimator in right}
        least = min(costs.values()) or 1.0
        return {name: cost / least for name, cost in costs.items()}

    def __call__(self, model: PyTree) -> Scalar:
        return self.factor * self.prepared(model)._mean(_sum_of_squares, model)

    def excess(self, model: PyTree) -> Scalar:
        """The excess L(model) - L(minimizer) on the same samples, which may be negative; NaN without a minimizer."""
        if self.minimizer is None:
            return jnp.asarray(jnp.nan)
        return self.factor * self.prepared(model)._mean(_sum_of_gaps, model, self.minimizer)

    def gradient(self, model: PyTree) -> PyTree:
        slope = self.prepared(model)._mean(_sum_of_slopes, model)
        return jax.tree.map(lambda leaf: self.factor * leaf, slope)

    def conserved(self, model: PyTree) -> None:
        return None

    def least_model(self) -> PyTree | None:
        """The argument ``minimizer``, None if it was not given."""
        return self.minimizer

    def replicates(self) -> tuple["MonteCarloLoss", ...]:
        """The losses that average over disjoint parts of the samples. This loss must be `prepared`."""
        size = self.samples // self.groups
        return tuple(self._window(size * group, size) for group in range(self.groups))

    def undrawn(self) -> "MonteCarloLoss":
        """The loss without its drawn samples, its division into blocks and its devices."""
        return self._with(draws=None, block=None, planned=False, mesh=None)

    def estimate(self, model: PyTree) -> Estimate:
        """The loss at a model, with its 95% confidence interval and the tail of the squared errors."""
        loss = self.prepared(model)
        return loss._summary(loss.squared_errors(model))

    def squared_errors(self, model: PyTree) -> Float[np.ndarray, " samples"]:
        """(samples,) the contribution of each sample to the loss, the factor times its squared error."""
        loss = self.prepared(model)
        assert loss.estimator is not None, "a prepared loss has one"
        return np.asarray(blocks.each(loss.estimator, model, loss.indexed, loss.block, self.mesh) * self.factor)

    def fresh(self, model: PyTree) -> "MonteCarloLoss":
        """The loss on the same number of new samples, which no flow has been fitted to.

        The new loss uses the method "radial" if this is unbiased for the model. For a heavy tail, prompts that are
        too rare to be drawn dominate the mean, and "radial" takes them into account.
        """
        own = self.prepared(model)
        assert own.estimator is not None, "a prepared loss has one"
        fresh = own._with(first=self.first + jnp.asarray(_FRESH, jnp.uint32), draws=None)
        return fresh._planned(next(iter(self._right((RadialEstimator,), model)), own.estimator), model, None)

    def distrust(self, model: PyTree, fresh: "MonteCarloLoss | None" = None) -> str | None:
        """The reason why the confidence interval of the loss at a model cannot be trusted, or None.

        If the squared errors have a heavy tail, their mean has no reliable interval. If the weights are fitted to
        the samples, the loss is larger on new samples. So both sets of samples are tested.

        **Arguments:** model: the model; fresh: the result of `fresh`, to draw new samples once for several models.
        """
        own = self.estimate(model)
        other = (self.fresh(model) if fresh is None else fresh).estimate(model)
        for summary, prompts in ((own, "the samples"), (other, "fresh prompts")):
            if not np.isfinite(summary.value):
                return f"on {prompts} the loss is {summary.value}"
            if summary.tail.shape > HEAVIEST_SHAPE:
                return (
                    f"on {prompts} the largest 1% carry {summary.tail.share:.0%} of the loss, with a Pareto shape of "
                    f"{summary.tail.shape:.2f}: too heavy a tail for an interval"
                )
        if other.low > _OPTIMISM * own.high:
            return f"the loss is {own.value:.3g} on the samples, but {other.value:.3g} on fresh prompts"
        return None

    @property
    def indexed(self) -> blocks.Samples:
        """The samples, with their draws or, if these are not stored, the key and the first index to draw them
        again.
        """
        return blocks.Samples(self.key, self.first, self.draws, self.samples)

    def _right(self, kinds: tuple[type[AbstractEstimator], ...], model: PyTree) -> list[AbstractEstimator]:
        """The estimators of these kinds that are unbiased for the model. All kinds must average over w and x_query."""
        if not averages(self.task):
            return []
        found = [kind(Prompts(self.task)) for kind in kinds]
        return [estimator for estimator in found if estimator.applies(model, self._pilot_key)]

    @property
    def _pilot_key(self) -> PRNGKeyArray:
        return jax.random.fold_in(self.key, 2**32 - 1)

    def _mean(self, function: Callable[..., PyTree], *models: PyTree) -> PyTree:
        """The mean over all samples of a function. function(estimator, draws, *models) returns a sum over draws."""
        assert self.estimator is not None, "a prepared loss has one"
        total = blocks.total(function, self.estimator, self.indexed, self.block, self.mesh, *models)
        return jax.tree.map(lambda leaf: leaf / self.samples, total)

    def _with(self, **changes: object) -> "MonteCarloLoss":
        """The loss with some fields replaced, which need not be arguments of the constructor."""
        loss = object.__new__(MonteCarloLoss)
        for field in dataclasses.fields(self):
            object.__setattr__(loss, field.name, changes.get(field.name, getattr(self, field.name)))
        return loss

    def _window(self, start: int, samples: int) -> "MonteCarloLoss":
        """The loss that averages only over the samples of this loss with the numbers ``start`` to ``start + samples
        - 1``.
        """
        first = self.first + jnp.asarray(start, jnp.uint32)
        if self.draws is not None and self.mesh is not None:
            # A slice of the draws would lie on the wrong devices, so these samples are drawn again.
            return self._with(first=first, samples=samples, draws=None)._drawn()
        return self._with(
            first=first,
            samples=samples,
            draws=jax.tree.map(lambda leaf: leaf[..., start : start + samples], self.draws),
        )

    def _planned(self, estimator: AbstractEstimator, model: PyTree, block: int | None) -> "MonteCarloLoss":
        """The loss with a given estimator, its division into blocks, and its samples drawn if they fit into memory.

        **Arguments:** estimator; model: for the memory that it needs; block: the number of samples at once, or
        None.
        """
        plan = blocks.plan(estimator, model, self.samples, block, self.mesh)
        loss = self._with(estimator=estimator, block=plan.block, planned=True)
        return loss._drawn() if plan.kept else loss

    def _drawn(self) -> "MonteCarloLoss":
        assert self.estimator is not None, "a prepared loss has one"
        return self._with(draws=blocks.drawn(self.estimator, self.indexed, self.mesh))

    def _summary(self, errors: Float[np.ndarray, " samples"]) -> Estimate:
        means = np.mean(errors.reshape(self.groups, -1), axis=1)
        value, half = float(np.mean(means)), float(half_width(means, _LEVEL))
        return Estimate(value, value - half, value + half, tail(errors))

    def _check_output(self, model: PyTree) -> None:
        prompt, _ = jax.eval_shape(self.task.sample, self.key)
        came = jax.eval_shape(model, prompt)
        if not (isinstance(came, jax.ShapeDtypeStruct) and came.shape == () and came.dtype == jnp.float64):
            shape = getattr(came, "shape", None)
            text = f"it gives {came!r:.60}" if shape is None else f"its output has shape {shape} and type {came.dtype}"
            checks.refuse("model", "one that maps a prompt to a float64 scalar", text)

    def _check_finite(self, model: PyTree) -> None:
        errors = self.squared_errors(model)
        bad = np.flatnonzero(~np.isfinite(errors))
        if bad.size:
            index = int(self.first) + int(bad[0])
            drawn = f"sample {index}, drawn with the key jax.random.fold_in(key, {index})"
            checks.refuse("model", "finite on every drawn prompt", f"its squared error is {errors[bad[0]]} on {drawn}")


def prepared(loss: AbstractPopulationLoss, model: PyTree) -> AbstractPopulationLoss:
    """The loss ready for flows from a model: a `MonteCarloLoss` is prepared, any other loss returned unchanged."""
    return loss.prepared(model) if isinstance(loss, MonteCarloLoss) else loss


def stated(loss: AbstractPopulationLoss) -> AbstractPopulationLoss:
    """The loss that claims refer to: for a `MonteCarloLoss` its exact loss, if it has one, else the loss itself."""
    return loss if not isinstance(loss, MonteCarloLoss) or loss.exact is None else loss.exact


def _sum_of_squares(estimator: AbstractEstimator, draws: PyTree, model: PyTree) -> Scalar:
    return jnp.sum(estimator.squared_errors(model, draws))


def _sum_of_gaps(estimator: AbstractEstimator, draws: PyTree, model: PyTree, best: PyTree) -> Scalar:
    return jnp.sum(estimator.squared_errors(model, draws) - estimator.squared_errors(best, draws))


def _sum_of_slopes(estimator: AbstractEstimator, draws: PyTree, model: PyTree) -> PyTree:
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)
    return jax.grad(lambda arrays: _sum_of_squares(estimator, draws, eqx.combine(arrays, rest)))(arrays)


def _is_concrete(tree: PyTree) -> bool:
    return all(checks.is_concrete(leaf) for leaf in jax.tree.leaves(tree))
