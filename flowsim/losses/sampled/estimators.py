"""Estimators of a population loss. They draw some parts of a prompt and average exactly over the other parts.

In arrays of draws, the last axis counts the samples.
"""

import abc
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PRNGKeyArray, PyTree

from flowsim._core.types import Matrix
from flowsim.models.residuals import product, with_sample_axes
from flowsim.moments.cubature import chi_square_rule
from flowsim.tasks import LinearRegression, Prompt, RandomCovarianceRegression

Samples = Float[Array, " samples"]
_Regression = LinearRegression | RandomCovarianceRegression

_NODES = 16
_PROBES = 4
_MOST_NORMALS = 128  # up to this many, drawing all normals is faster than Bartlett's chi-squares by rejection
_AGREEMENT = 1e-9


class AbstractEstimator(eqx.Module):
    """A method to estimate E (yhat - y_query)^2 from samples.

    **Fields:** name: the name of the method in `MonteCarloLoss`; prompts: the law of the prompts.
    """

    name: ClassVar[str]
    prompts: eqx.AbstractVar["Prompts"]

    @abc.abstractmethod
    def draw(self, key: PRNGKeyArray) -> PyTree:
        """Draw one sample, without an axis for samples."""

    @abc.abstractmethod
    def squared_errors(self, model: PyTree, draws: PyTree) -> Samples:
        """(samples,) the conditional expectation E[(yhat - y_query)^2 | draw] for each draw.

        **Arguments:** model: maps a prompt to yhat; draws: as from `draw`, with the samples on the last axis.
        """

    @abc.abstractmethod
    def applies(self, model: PyTree, key: PRNGKeyArray) -> bool:
        """Whether the estimator is unbiased for a model, at all weights that a flow from the model can reach.
        ``key`` is for random tests.
        """


class Prompts(eqx.Module):
    """The law of the prompts. Its context length is static, so that it is known when JAX traces the other arrays.

    **Fields:** law: the task; length: its context length, None if it has none.
    """

    law: PyTree
    length: int | None = eqx.field(static=True)

    def __init__(self, task: PyTree):
        self.law = task
        self.length = int(float(task.context_length)) if hasattr(task, "context_length") else None

    @property
    def task(self) -> PyTree:
        """The task, with its context length as a concrete number."""
        if self.length is None:
            return self.law
        return eqx.tree_at(lambda task: task.context_length, self.law, np.asarray(float(self.length)))


class PromptEstimator(AbstractEstimator):
    """Draws whole prompts. This is unbiased for every model and task."""

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
    """Draws the inputs of the examples, and averages the squared error exactly over w and x_query.

    It applies to models that are affine in w and linear in x_query. Given the inputs, the prediction of such a model is
    yhat = (w^T M + v^T) x_query with a matrix M and a vector v. Let C = E[w w^T], and let Lambda be the covariance
    of x_query. Then E[(yhat - w^T x_query)^2] = tr(C (M - I) Lambda (M - I)^T) + v^T Lambda v.
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
        return _energy(self.prompts.task, predict(inputs) - with_sample_axes(identity, inputs), law)

    def applies(self, model: PyTree, key: PRNGKeyArray) -> bool:
        if not averages(self.prompts.task):
            return False
        # A model may be linear only at its start, for example if its weights are zero there.
        return all(_agree(*self._both(point, key)) for point in (model, _moved(model, key)))

    @eqx.filter_jit
    def _both(self, model: PyTree, key: PRNGKeyArray) -> tuple[Samples, Samples]:
        """The predictions of the model on random prompts, and the predictions of its affine form.

        This is compiled, since a model with symmetric weights refuses other weights unless they are traced.
        """

        def both(key):
            prompt, _ = self.prompts.task.sample(key)
            weight = jax.random.normal(jax.random.fold_in(key, 2), prompt.query.shape)
            M, v = _affine(model, prompt.inputs)
            at = lambda w, x: model(Prompt(prompt.inputs, prompt.inputs @ w, x))
            return at(weight, prompt.query), (weight @ M + v[0]) @ prompt.query

        return jax.vmap(both)(jax.random.split(key, _PROBES))


class CovarianceEstimator(AbstractEstimator):
    """Draws the sample covariance of a prompt, and averages the squared error exactly over w and x_query.

    It applies to models with a method ``residual``, which maps sample covariances (d, d, *samples) to matrices R of
    shape (d + 1, d, *samples) with w^T x_query - yhat = (w^T, 1) R x_query. Sample covariances are drawn by
    Bartlett's decomposition if this is faster than drawing all inputs.
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
    """Draws the sample covariance up to its scale, and averages the squared error over the scale by quadrature.

    Let X = Z Lambda^{1/2} be the inputs, with standard normal Z. Then |Z|_F^2 has the law chi^2_{N d} and is
    independent of the direction Z / |Z|_F, which is drawn. The 16 nodes of the quadrature are exact for polynomials
    of degree 31 in the sample covariance. They reach far into a tail that random draws never reach. In all else the
    estimator works like `CovarianceEstimator`.

    **Fields:** scales, weights: (nodes,) the values of |Z|_F^2 / N at the nodes, and their weights.
    """

    name: ClassVar[str] = "radial"
    prompts: Prompts
    scales: Float[Array, " nodes"]
    weights: Float[Array, " nodes"]

    def __init__(self, prompts: Prompts):
        self.prompts = prompts
        task = prompts.task
        n = _length(task)
        squares, weights = chi_square_rule(n * task.dimension, 2 * _NODES - 1)
        self.scales, self.weights = jnp.asarray(squares / n), jnp.asarray(weights)

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


def averages(task: PyTree) -> bool:
    """Whether a task is a linear regression with empty ``shifts``, so that errors can be averaged exactly over w
    and x_query.
    """
    if isinstance(task, LinearRegression):
        return not task.shifts
    return isinstance(task, RandomCovarianceRegression)


def _length(task: _Regression) -> int:
    return int(float(task.context_length))


def _law(task: _Regression, key: PRNGKeyArray) -> tuple[Matrix | None, PRNGKeyArray]:
    """The covariance drawn for a prompt, None if it is the same for all prompts; and the key for all other draws."""
    if isinstance(task, RandomCovarianceRegression):
        law_key, key = jax.random.split(key)
        return task.law.sample(law_key), key
    return None, key


def _covariance(task: PyTree, law: Matrix | None) -> Matrix:
    return task.covariance if law is None else law


def _wishart_factor(task: _Regression, key: PRNGKeyArray) -> Float[Array, "d columns"]:
    """Draw a matrix T such that T T^T has the law of (1/N) sum_i z_i z_i^T, with N independent z_i ~ N(0, I)."""
    N, d = _length(task), task.dimension
    if d > N or N * d <= _MOST_NORMALS:
        return jax.random.normal(key, (d, N)) / jnp.sqrt(float(N))
    shaft_key, key = jax.random.split(key)
    shaft = jnp.sqrt(jax.random.chisquare(shaft_key, N - jnp.arange(d, dtype=float)))
    return (jnp.tril(jax.random.normal(key, (d, d)), -1) + jnp.diag(shaft)) / jnp.sqrt(float(N))


def _energy(
    task: PyTree, residual: Float[Array, "rows d ..."], law: Float[Array, "d d ..."] | None
) -> Float[Array, "..."]:
    """The expected squared error tr(C R Lambda R^T) + v^T Lambda v of each sample, where C = E[w w^T].

    **Arguments:** task: the law of w and x_query; residual: the matrices (R; v^T), (d + 1, d, ...); law: the
    covariances Lambda of the samples, or None for the covariance of the task.
    """
    covariance = with_sample_axes(task.covariance, residual) if law is None else law
    if law is None and task.weights == "inverse-covariance":
        weight_energy, R, v = with_sample_axes(task.weight_energy, residual), residual[:-1], residual[-1:]
        return _form(weight_energy, R, covariance) + jnp.sum(v * product(v, covariance), axis=(0, 1))
    return jnp.sum(residual * product(residual, covariance), axis=(0, 1))


@jax.custom_jvp
def _form(
    left: Float[Array, "d d ..."], R: Float[Array, "d d ..."], right: Float[Array, "d d ..."]
) -> Float[Array, "..."]:
    """The trace tr(C R Lambda R^T) of each sample for symmetric C = ``left`` and Lambda = ``right``, differentiable
    in R only.

    The derivative 2 C R Lambda reuses the product C R Lambda, which automatic differentiation would compute again.
    """
    return jnp.sum(R * product(product(left, R), right), axis=(0, 1))


@_form.defjvp
def _form_derivative(primals: tuple, tangents: tuple) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    left, R, right = primals
    image = product(product(left, R), right)
    return jnp.sum(R * image, axis=(0, 1)), 2 * jnp.sum(image * tangents[1], axis=(0, 1))


def _affine(model: PyTree, inputs: Float[Array, "N d"]) -> tuple[Matrix, Float[Array, "1 d"]]:
    """The matrix M and the row v^T of a prediction (w^T M + v^T) x_query, given the inputs of a prompt."""
    zero = jnp.zeros(inputs.shape[1])
    slope = jax.jacfwd(lambda w: jax.jacfwd(lambda x: model(Prompt(inputs, inputs @ w, x)))(zero))
    # The transposition makes w the index of the rows.
    return slope(zero).T, jax.jacfwd(lambda x: model(Prompt(inputs, inputs @ zero, x)))(zero)[None]


def _has_residual(prompts: Prompts, model: PyTree, key: PRNGKeyArray) -> bool:
    """Whether the model has a method ``residual`` that agrees with its predictions."""
    if not averages(prompts.task) or not hasattr(model, "residual"):
        return False
    return _agree(*_missed(prompts, model, jax.random.split(key, _PROBES)))


@eqx.filter_jit
def _missed(prompts: Prompts, model: PyTree, keys: Key[Array, " probes"]) -> tuple[Samples, Samples]:
    """The errors w^T x_query - yhat of the model on random prompts, computed from its predictions and from its
    method ``residual``. Here w is a least-squares solution of w^T x_i = y_i for the examples of the prompt.
    """

    def both(key):
        prompt, _ = prompts.task.sample(key)
        N, d = prompt.inputs.shape
        weight = jnp.linalg.lstsq(prompt.inputs, prompt.labels)[0]
        covariance = prompt.inputs.T @ prompt.inputs / float(N)
        # The labels determine w only if N >= d. Otherwise any w with these labels will do.
        missed = jnp.append(weight, 1.0) @ model.residual(covariance) @ prompt.query
        return prompt.query @ weight - model(prompt), missed

    return jax.vmap(both)(keys)


def _agree(one: Samples, other: Samples) -> bool:
    return bool(jnp.all(jnp.abs(one - other) <= _AGREEMENT * jnp.max(jnp.abs(one))))


def _moved(model: PyTree, key: PRNGKeyArray) -> PyTree:
    """A copy of the model with a random number added to every weight."""
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)
    leaves, structure = jax.tree.flatten(arrays)
    keys = jax.random.split(jax.random.fold_in(key, 1), len(leaves))
    moved = [leaf + 0.1 * jax.random.normal(k, leaf.shape) for leaf, k in zip(leaves, keys, strict=True)]
    return eqx.combine(jax.tree.unflatten(structure, moved), rest)
