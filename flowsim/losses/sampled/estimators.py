"""What is drawn of a prompt, and the squared error averaged exactly over the rest.

Samples run along the last axis of every array.
"""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PRNGKeyArray, PyTree

from flowsim._core.types import Matrix
from flowsim.models.residuals import beside, product
from flowsim.tasks import LinearRegression, Prompt, RandomCovarianceRegression

Samples = Float[Array, " samples"]

_NODES = 16
_PROBES = 4
_MOST_NORMALS = 128  # up to which as many normals are drawn sooner than Bartlett's chi-squares, by rejection
_AGREEMENT = 1e-9


class AbstractEstimator(eqx.Module):
    """One way to sample a population loss. ``name``: in `MonteCarloLoss`; ``prompts``: their law."""

    name: ClassVar[str]
    prompts: eqx.AbstractVar["Prompts"]

    @abc.abstractmethod
    def draw(self, key: PRNGKeyArray) -> PyTree:
        """What is drawn for one sample."""

    @abc.abstractmethod
    def squared_errors(self, model: PyTree, draws: PyTree) -> Samples:
        """E[(yhat - y_query)^2 | draw] for each of the draws, which have the samples on their last axis."""

    @abc.abstractmethod
    def applies(self, model: PyTree, key: PRNGKeyArray) -> bool:
        """Whether it is unbiased for such a model, at all of the weights that a flow from this one can reach."""


class Prompts(eqx.Module):
    """The law of the prompts, with a context length that is known while the rest is traced."""

    law: Any
    length: int | None = eqx.field(static=True)

    def __init__(self, task: Any):
        self.law = task
        self.length = int(float(task.context_length)) if hasattr(task, "context_length") else None

    @property
    def task(self) -> Any:
        """The task, with its length as a number."""
        if self.length is None:
            return self.law
        return eqx.tree_at(lambda task: task.context_length, self.law, np.asarray(float(self.length)))


class PromptEstimator(AbstractEstimator):
    """Prompts are drawn whole: right for every model and task."""

    name: ClassVar[str] = "prompts"
    prompts: Prompts

    def draw(self, key: PRNGKeyArray) -> PyTree:
        return self.prompts.task.sample(key)

    def squared_errors(self, model: PyTree, draws: PyTree) -> Samples:
        prompts, labels = draws
        return (jax.vmap(model, in_axes=-1)(prompts) - labels) ** 2

    def applies(self, model: PyTree, key: PRNGKeyArray) -> bool:
        return True


class InputEstimator(AbstractEstimator):
    """The inputs of the examples are drawn; w and x_query are averaged exactly.

    For models that are affine in w and linear in x_query, yhat = (w^T M + v^T) x_query given the inputs: then
    E[(yhat - w^T x_query)^2] = tr(C (M - I) Lambda (M - I)^T) + v^T Lambda v with C = E[w w^T].
    """

    name: ClassVar[str] = "inputs"
    prompts: Prompts

    def draw(self, key: PRNGKeyArray) -> PyTree:
        law, key = _law(self.prompts.task, key)
        z = jax.random.normal(key, (_length(self.prompts.task), self.prompts.task.dimension))
        return z @ jnp.linalg.cholesky(_covariance(self.prompts.task, law)).T, law

    def squared_errors(self, model: PyTree, draws: PyTree) -> Samples:
        inputs, law = draws
        predict = jax.vmap(lambda X: jnp.concatenate(_affine(model, X)), in_axes=-1, out_axes=-1)
        identity = jnp.eye(self.prompts.task.dimension + 1, self.prompts.task.dimension)
        return _energy(self.prompts.task, predict(inputs) - beside(identity, inputs), law)

    def applies(self, model: PyTree, key: PRNGKeyArray) -> bool:
        if not averages(self.prompts.task):
            return False
        # A model may be linear at its start alone, as one is whose weights are zero there.
        return all(_agree(*self._both(point, key)) for point in (model, _moved(model, key)))

    @eqx.filter_jit
    def _both(self, model: PyTree, key: PRNGKeyArray) -> tuple[Samples, Samples]:
        """Predictions as the model gives them and as the affine form does; compiled, as a model that takes itself to
        be symmetric refuses weights that it can see are not.
        """

        def both(key):
            prompt, _ = self.prompts.task.sample(key)
            weight = jax.random.normal(jax.random.fold_in(key, 2), prompt.query.shape)
            M, v = _affine(model, prompt.inputs)
            at = lambda w, x: model(Prompt(prompt.inputs, prompt.inputs @ w, x))
            return at(weight, prompt.query), (weight @ M + v[0]) @ prompt.query

        return jax.vmap(both)(jax.random.split(key, _PROBES))


class CovarianceEstimator(AbstractEstimator):
    """The sample covariance is drawn, by Bartlett's factors where that takes less; w and x_query are averaged exactly.

    For models with a method ``residual``: (d, d, *samples) sample covariances -> (d + 1, d, *samples), the matrix with
    w^T x_query - yhat = (w^T, 1) residual x_query.
    """

    name: ClassVar[str] = "covariances"
    prompts: Prompts

    def draw(self, key: PRNGKeyArray) -> PyTree:
        law, key = _law(self.prompts.task, key)
        root = jnp.linalg.cholesky(_covariance(self.prompts.task, law)) @ _wishart_factor(self.prompts.task, key)
        return root @ root.T, law

    def squared_errors(self, model: PyTree, draws: PyTree) -> Samples:
        covariance, law = draws
        return _energy(self.prompts.task, model.residual(covariance), law)

    def applies(self, model: PyTree, key: PRNGKeyArray) -> bool:
        return _has_residual(self.prompts, model, key)


class RadialEstimator(AbstractEstimator):
    """As `CovarianceEstimator`, with the size of the inputs averaged too, by quadrature over its law.

    With X = Z Lambda^{1/2}, |Z|_F^2 ~ chi^2_{N d} is independent of the direction Z / |Z|_F. 16 nodes are exact for
    polynomials of degree 31 in the sample covariance; they reach far into a tail that draws would never show.
    """

    name: ClassVar[str] = "radial"
    prompts: Prompts
    scales: Float[Array, " nodes"]
    weights: Float[Array, " nodes"]

    def __init__(self, prompts: Prompts):
        self.prompts = prompts
        task = prompts.task
        n = _length(task)
        halves, weights = _gamma_quadrature(n * task.dimension / 2)
        self.scales, self.weights = jnp.asarray(2 * halves / n), jnp.asarray(weights)

    def draw(self, key: PRNGKeyArray) -> PyTree:
        law, key = _law(self.prompts.task, key)
        factor = _wishart_factor(self.prompts.task, key)
        root = jnp.linalg.cholesky(_covariance(self.prompts.task, law)) @ factor / jnp.linalg.norm(factor)
        return root @ root.T, law

    def squared_errors(self, model: PyTree, draws: PyTree) -> Samples:
        direction, law = draws
        at_nodes = jax.tree.map(lambda leaf: leaf[..., None], law)
        errors = _energy(
            self.prompts.task, model.residual(direction[..., None] * self.scales[None, None, None, :]), at_nodes
        )
        return errors @ self.weights

    def applies(self, model: PyTree, key: PRNGKeyArray) -> bool:
        return _has_residual(self.prompts, model, key)


ESTIMATORS: tuple[type[AbstractEstimator], ...] = (
    PromptEstimator,
    InputEstimator,
    CovarianceEstimator,
    RadialEstimator,
)


def averages(task: Any) -> bool:
    """Whether w and x_query have the laws of training, over which errors can be averaged."""
    if isinstance(task, LinearRegression):
        return not task.shifts
    return isinstance(task, RandomCovarianceRegression)


def _length(task: Any) -> int:
    return int(float(task.context_length))


def _law(task: Any, key: PRNGKeyArray) -> tuple[Matrix | None, PRNGKeyArray]:
    """The covariance of a prompt where every prompt has its own, and the key of the rest."""
    if isinstance(task, RandomCovarianceRegression):
        law_key, key = jax.random.split(key)
        return task.law.sample(law_key), key
    return None, key


def _covariance(task: Any, law: Matrix | None) -> Matrix:
    return task.covariance if law is None else law


def _wishart_factor(task: Any, key: PRNGKeyArray) -> Float[Array, "d columns"]:
    """T with T T^T distributed as W = (1/N) sum z_i z_i^T, z_i ~ N(0, I)."""
    N, d = _length(task), task.dimension
    if d > N or N * d <= _MOST_NORMALS:
        return jax.random.normal(key, (d, N)) / jnp.sqrt(float(N))
    shaft_key, key = jax.random.split(key)
    shaft = jnp.sqrt(jax.random.chisquare(shaft_key, N - jnp.arange(d, dtype=float)))
    return (jnp.tril(jax.random.normal(key, (d, d)), -1) + jnp.diag(shaft)) / jnp.sqrt(float(N))


def _energy(
    task: Any, residual: Float[Array, "rows d ..."], law: Float[Array, "d d ..."] | None
) -> Float[Array, "..."]:
    """tr(C R Lambda R^T) + v^T Lambda v for the residuals (R; v), with C = E[w w^T]."""
    covariance = beside(task.covariance, residual) if law is None else law
    if law is None and task.weights == "inverse-covariance":
        weight_energy, R, v = beside(task.weight_energy, residual), residual[:-1], residual[-1:]
        return _form(weight_energy, R, covariance) + jnp.sum(v * product(v, covariance), axis=(0, 1))
    return jnp.sum(residual * product(residual, covariance), axis=(0, 1))


@jax.custom_jvp
def _form(
    left: Float[Array, "d d ..."], R: Float[Array, "d d ..."], right: Float[Array, "d d ..."]
) -> Float[Array, "..."]:
    """tr(C R Lambda R^T) for symmetric C and Lambda, with a derivative in R alone: 2 C R Lambda, which is there already
    where that of a product of products would be computed anew.
    """
    return jnp.sum(R * product(product(left, R), right), axis=(0, 1))


@_form.defjvp
def _form_derivative(primals: tuple, tangents: tuple) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    left, R, right = primals
    image = product(product(left, R), right)
    return jnp.sum(R * image, axis=(0, 1)), 2 * jnp.sum(image * tangents[1], axis=(0, 1))


def _affine(model: PyTree, inputs: Float[Array, "N d"]) -> tuple[Matrix, Float[Array, "1 d"]]:
    """M and v^T of a prediction (w^T M + v^T) x_query."""
    zero = jnp.zeros(inputs.shape[1])
    slope = jax.jacfwd(lambda w: jax.jacfwd(lambda x: model(Prompt(inputs, inputs @ w, x)))(zero))
    # The derivative in x_query first, so that rows are those of w after the transposition.
    return slope(zero).T, jax.jacfwd(lambda x: model(Prompt(inputs, inputs @ zero, x)))(zero)[None]


def _has_residual(prompts: Prompts, model: PyTree, key: PRNGKeyArray) -> bool:
    """Whether the model has a residual here, and it is that of its own predictions."""
    if not averages(prompts.task) or not hasattr(model, "residual"):
        return False
    return _agree(*_missed(prompts, model, jax.random.split(key, _PROBES)))


@eqx.filter_jit
def _missed(prompts: Prompts, model: PyTree, keys: Key[Array, " probes"]) -> tuple[Samples, Samples]:
    """What the model misses of a label, and what its residual says that it does."""

    def both(key):
        prompt, _ = prompts.task.sample(key)
        N, d = prompt.inputs.shape
        weight = jnp.linalg.lstsq(prompt.inputs, prompt.labels)[0]
        covariance = prompt.inputs.T @ prompt.inputs / float(N)
        # The labels tell w only where N >= d; any w with these labels is as good elsewhere.
        missed = jnp.append(weight, 1.0) @ model.residual(covariance) @ prompt.query
        return prompt.query @ weight - model(prompt), missed

    return jax.vmap(both)(keys)


def _agree(one: Samples, other: Samples) -> bool:
    return bool(jnp.all(jnp.abs(one - other) <= _AGREEMENT * jnp.max(jnp.abs(one))))


def _moved(model: PyTree, key: PRNGKeyArray) -> PyTree:
    """The model with every weight moved, whatever it was."""
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)
    leaves, structure = jax.tree.flatten(arrays)
    keys = jax.random.split(jax.random.fold_in(key, 1), len(leaves))
    moved = [leaf + 0.1 * jax.random.normal(k, leaf.shape) for leaf, k in zip(leaves, keys, strict=True)]
    return eqx.combine(jax.tree.unflatten(structure, moved), rest)


def _gamma_quadrature(shape: float) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of Gauss quadrature for the Gamma(shape, 1) law, by Golub and Welsch."""
    k = np.arange(_NODES)
    off = np.sqrt(k[1:] * (k[1:] + shape - 1))
    nodes, vectors = np.linalg.eigh(np.diag(2 * k + shape) + np.diag(off, 1) + np.diag(off, -1))
    return nodes, vectors[0] ** 2
