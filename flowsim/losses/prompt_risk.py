"""The exact risk of `LinearAttention` on test prompts of any length, from any law."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from flowsim._core import checks
from flowsim._core.types import Matrix, Scalar
from flowsim.losses import LinearAttentionLoss, RandomCovarianceLoss
from flowsim.models import LinearAttention
from flowsim.tasks import LinearRegression, RandomCovarianceRegression
from flowsim.tasks.joint_law import JointLaw

Task = LinearRegression | RandomCovarianceRegression | JointLaw


def risk(model: LinearAttention, task: Task, test_length: ArrayLike) -> Scalar:
    """The exact risk E (yhat - y_query)^2 of a model on prompts with M examples, without a factor 1/2.

    If the prompts follow a training law (fixed or random covariance, isotropic w, no label noise, no query
    covariance), any weights are allowed. For other laws u12 = u21 = 0 is required. With V = u_{-1} U11 the
    prediction is then yhat = ((1/M) sum y_i x_i)^T V x_query, and the risk is the error of the best linear
    predictor plus a sum of squares.

    **Arguments:**

    - model: the weights.
    - task: the law of the test prompts. Its ``context_length`` is not used.
    - test_length: M, a whole number of at least 1, or infinity.

    **Raises:** `ValueError` if M is not a length, if the model has another dimension, or if u12 or u21 is not zero
    while the prompts have label noise, a query covariance, another law of w or a `JointLaw`. If u12 and u21 are
    traced, they raise no error and the risk is NaN.
    """
    check_model(model, task)
    return risk_function(task, test_length)(model)


def risk_standard_error(model: LinearAttention, law: JointLaw, test_length: ArrayLike) -> Scalar:
    """The standard error of `risk` if the moments of the law are sample means; zero for a law without samples.

    It is computed by the delta method: the risk is a smooth function of the means of x x^T, xy, y^2 x x^T and y^2.

    **Arguments:** model, test_length: as in `risk`; law: a `JointLaw`.

    **Raises:** the errors of `risk`.
    """
    check_model(model, law)
    M = checks.context_length("test_length", test_length)
    if law.samples is None:
        return jnp.zeros(())
    inputs, labels = law.samples
    V = model.u_minus1 * model.U11

    def of_means(covariance, cross, square, energy):
        spread = square - jnp.outer(cross, cross)
        best = energy - cross @ jnp.linalg.solve(covariance, cross)
        return best + _joint_excess(V, covariance, cross, spread, M)

    square = law.spread + jnp.outer(law.cross, law.cross)
    slopes = jax.grad(of_means, argnums=(0, 1, 2, 3))(law.covariance, law.cross, square, law.label_energy)

    def influence(x, y):
        return x @ slopes[0] @ x + y * (slopes[1] @ x) + y**2 * (x @ slopes[2] @ x) + y**2 * slopes[3]

    return jnp.std(jax.vmap(influence)(inputs, labels)) / jnp.sqrt(float(labels.shape[0]))


def best_linear_error(task: Task) -> Scalar:
    """The error of the best linear predictor of the query's label, min_a E (<a, x_query> - y_query)^2.

    In tasks with a random w the vector a may depend on w.
    """
    if isinstance(task, RandomCovarianceRegression):
        return jnp.zeros(())
    if isinstance(task, JointLaw):
        return jnp.maximum(task.label_energy - task.cross @ task.best_weight, 0.0)
    return _noise_energy(task)


def zero_predictor_error(task: Task) -> Scalar:
    """The risk E y_query^2 of the prediction 0."""
    if isinstance(task, RandomCovarianceRegression):
        return jnp.trace(task.mean_covariance)
    if isinstance(task, JointLaw):
        return task.label_energy
    return jnp.trace(task.weight_energy @ _query_covariance(task)) + _noise_energy(task)


def risk_function(task: Task, test_length: ArrayLike) -> Callable[[LinearAttention], Scalar]:
    """The function model -> `risk` for a fixed task and length. What does not depend on the model is computed once.

    The function does not check the model. If the law requires u12 = u21 = 0, it returns NaN for other weights.
    """
    M = checks.context_length("test_length", test_length)
    if isinstance(task, RandomCovarianceRegression):
        random = RandomCovarianceLoss(RandomCovarianceRegression(task.law, M))
        return lambda model: 2 * random(model)
    if isinstance(task, LinearRegression) and _as_in_training(task):
        fixed = LinearAttentionLoss(LinearRegression(task.covariance, M))
        return lambda model: 2 * fixed(model)

    def reduced(model: LinearAttention) -> Scalar:
        V = model.u_minus1 * model.U11
        if isinstance(task, JointLaw):
            value = best_linear_error(task) + _joint_excess(V, task.covariance, task.cross, task.spread, M)
        else:
            value = _regression_risk(V, task, M)
        outside = jnp.any(model.u12 != 0) | jnp.any(model.u21 != 0)
        return jnp.where(outside, jnp.nan, value)

    return reduced


def _regression_risk(V: Matrix, task: LinearRegression, M: Scalar) -> Scalar:
    """The risk of V = u_{-1} U11 on regression prompts with M examples,

        noise^2 + E_w |(Lambda V - I)^T w|^2_{Lambda_query} + E_w tr(Sigma V Lambda_query V^T)/M,

    where |v|^2_A = v^T A v and Sigma is the covariance of xy given w.
    """
    Lambda, weights, noise = task.covariance, task.weight_energy, _noise_energy(task)
    miss = Lambda @ V - jnp.eye(task.dimension)
    readout = V @ _query_covariance(task) @ V.T
    bias = jnp.trace(weights @ miss @ _query_covariance(task) @ miss.T)
    spread = (jnp.trace(weights @ Lambda) + noise) * Lambda + Lambda @ weights @ Lambda
    return noise + bias + jnp.trace(spread @ readout) / M


def _joint_excess(V: Matrix, covariance: Matrix, cross: Array, spread: Matrix, M: Scalar) -> Scalar:
    """The risk of V = u_{-1} U11 under a `JointLaw`, minus the error of the best linear predictor.

    Let a = Lambda^-1 E[xy] be that predictor, and |v|^2_A = v^T A v. The difference is
    |V^T E[xy] - a|^2_Lambda + tr(Sigma V Lambda V^T)/M.

    **Arguments:** covariance: Lambda; cross: E[xy]; spread: Sigma, the covariance of xy; M: the number of examples.
    """
    miss = V.T @ cross - jnp.linalg.solve(covariance, cross)
    return miss @ covariance @ miss + jnp.trace(spread @ V @ covariance @ V.T) / M


def _as_in_training(task: LinearRegression) -> bool:
    """Whether the prompts follow a training law. The exact loss is then known for all weights of a model."""
    return not task.shifts and task.weights == "isotropic"


def _query_covariance(task: LinearRegression) -> Matrix:
    return task.covariance if task.query_covariance is None else task.query_covariance


def _noise_energy(task: LinearRegression) -> Scalar:
    return jnp.zeros(()) if task.label_noise is None else task.label_noise**2


def check_model(model: LinearAttention, task: Task) -> None:
    """Refuse a model of another dimension, or with u12 or u21 not zero where `risk` requires zero.

    The weights may have a leading axis of times. Traced weights are not checked for zero.

    **Raises:** `ValueError` naming the argument.
    """
    d = model.U11.shape[-1]
    if d != task.dimension:
        checks.refuse("model", f"of the task's dimension {task.dimension}", f"it is of dimension {d}")
    if isinstance(task, RandomCovarianceRegression) or isinstance(task, LinearRegression) and _as_in_training(task):
        return
    for name in ("u12", "u21"):
        weight = getattr(model, name)
        if checks.is_concrete(weight) and np.any(np.asarray(weight)):
            checks.refuse(name, "zero on prompts that are not as in training", "it is not")
