"""zhang2023's section 4.2: the limit (4.1) under shifts of the task, the query and the covariates, at N = M = inf."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim._core.types import Matrix, Scalar
from flowsim.claims.claim import Comparison, Relation, equal
from flowsim.claims.statements import joined, of_task, rounded
from flowsim.losses import LinearAttentionLoss
from flowsim.losses.prompt_risk import risk, zero_predictor_error
from flowsim.models import LinearAttention
from flowsim.papers.paper import Section
from flowsim.papers.zhang2023 import spaces
from flowsim.papers.zhang2023.conditions import limit
from flowsim.papers.zhang2023.problems import COVARIANCES, INFINITE, ISOTROPIC, STILL_EASY, STILL_HARD, STILL_ONE
from flowsim.papers.zhang2023.prompts import (
    DEGREE,
    asymptotic,
    drawn_prompts,
    each,
    extreme_weights,
    polynomial_routes,
    polynomials,
    predicted,
    two_routes,
)
from flowsim.papers.zhang2023.section_4_1_risk import nonlinear_risk
from flowsim.papers.zhang2023.setting import one_covariance
from flowsim.tasks import LinearRegression
from flowsim.tasks.joint_law import JointLaw

Task = LinearRegression

SECTION = Section("zhang2023", LinearAttention)

_SCALES = (0.1, 0.5, 0.9, 1.1, 2.0, 10.0)
_ROUNDING = float(jnp.finfo(jnp.float64).eps)
_AT_LIMIT = (
    "Judged exactly at N = M = infinity, up to d = 4 on the literal model; the constants tell how the remainder falls "
    "with M and N."
)


def _at_infinity(covariance: Matrix, **shifts: Any) -> Task:
    return LinearRegression(covariance, jnp.inf, **shifts)


def _limit_conditioning(covariance: Matrix) -> Scalar:
    """The `conditioning` at N = M = inf.

    The square of Lambda Lambda^-1 - I, which is of the size kappa epsilon, enters with a weight of kappa; the best
    linear error is a difference that contains Lambda^-1 E[xy].
    """
    values, d = jnp.linalg.eigvalsh(covariance), covariance.shape[0]
    kappa = values[-1] / values[0]
    return d * (1 + kappa**1.5) + d**2 * kappa**3 * _ROUNDING


@eqx.filter_jit
def _rates(task: Task, prompts: Task) -> dict[str, Array]:
    """(risk - its limit)/E y^2 at large lengths, times M and times N^2: both tend to constants."""
    trained, size = limit(_at_infinity(task.covariance)), zero_predictor_error(prompts)
    limit_risk = risk(trained, prompts, jnp.inf)
    test = risk(trained, prompts, 1e6) - limit_risk
    train = risk(limit(LinearRegression(task.covariance, 1e4)), prompts, jnp.inf) - limit_risk
    return {"excess_times_M": 1e6 * test / size, "excess_times_N_squared": 1e8 * train / size}


def noisy_rates(loss: LinearAttentionLoss, trajectory: Any) -> dict[str, Array]:
    """The rates in 1/M and 1/N^2 on prompts with a label noise of 1/2."""
    return _rates(loss.task, _at_infinity(loss.task.covariance, label_noise=0.5))


@SECTION.claim(
    "sec-4.2.task-shift",
    "section 4.2, task shifts",
    "For every w and label noise, and for nonlinear labels, the risk tends to the best linear predictor's",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=one_covariance,
    constants=noisy_rates,
    problems=COVARIANCES,
    spaces=spaces.STILL,
    note=f"{_AT_LIMIT} The constants are for a label noise of 1/2.",
)
@of_task
def task_shift(task: Task) -> Comparison:
    """The risk on noisy labels of any w, and on nonlinear labels, against the best linear predictor's error,
    label_noise^2 + 3 b^2 (v^T Lambda v)^2 + 6 c^2 (v^T Lambda v)^3.
    """
    Lambda = task.covariance
    model = limit(_at_infinity(Lambda))

    def of_weight(w):
        def at(noise):
            prompts = _at_infinity(Lambda, weight=w, label_noise=noise)
            return jnp.broadcast_arrays(asymptotic(two_routes(model, prompts)), noise**2, zero_predictor_error(prompts))

        return jax.lax.map(at, jnp.asarray([0.1, 10.0]))

    def of_polynomial(terms):
        law = JointLaw.of_polynomial(Lambda, **terms)
        energy = terms["direction"] @ Lambda @ terms["direction"]
        best = terms["label_noise"] ** 2 + 3 * terms["square"] ** 2 * energy**2 + 6 * terms["cube"] ** 2 * energy**3
        size = 2 * law.label_energy + nonlinear_risk(law, jnp.inf, 1.0)[1]
        return asymptotic(polynomial_routes(model, law, terms)), best, size

    linear, nonlinear = each(of_weight, extreme_weights(Lambda)), each(of_polynomial, polynomials(Lambda))
    return rounded(joined([equal(*linear), equal(*nonlinear)]), DEGREE * _limit_conditioning(Lambda))


def _query_covariances(covariance: Matrix) -> Float[Array, "K d d"]:
    """Covariances of queries: huge, almost only along the smallest eigenvector, and random."""
    identity, small = jnp.eye(covariance.shape[0]), jnp.linalg.eigh(covariance)[1][:, 0]
    random = jax.random.normal(jax.random.key(1), covariance.shape)
    return jnp.stack([1e4 * identity, jnp.outer(small, small) + 1e-6 * identity, random @ random.T + 1e-3 * identity])


def query_rates(loss: LinearAttentionLoss, trajectory: Any) -> dict[str, Array]:
    """The rates in 1/M and 1/N^2 on queries along the smallest eigenvector."""
    queries = _query_covariances(loss.task.covariance)[1]
    return _rates(loss.task, _at_infinity(loss.task.covariance, query_covariance=queries))


@SECTION.claim(
    "sec-4.2.query-shift",
    "section 4.2, query shifts, (4.8)",
    "For every law of the query that is independent of the context, yhat tends to <w, x_query>: the risk to 0",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=one_covariance,
    constants=query_rates,
    problems=COVARIANCES,
    spaces=spaces.STILL,
    note=f"{_AT_LIMIT} Judged on Gaussian queries: the risk depends only on the query's covariance.",
)
@of_task
def query_shift(task: Task) -> Comparison:
    """The risk under a query shift against zero."""
    model = limit(_at_infinity(task.covariance))

    def sides(queries):
        prompts = _at_infinity(task.covariance, query_covariance=queries)
        return asymptotic(two_routes(model, prompts)), zero_predictor_error(prompts)

    value, size = each(sides, _query_covariances(task.covariance))
    return rounded(equal(value, 0.0, size), _limit_conditioning(task.covariance))


def _nothing(queries: Array, means: Array, inverse: Matrix) -> Array:
    return jnp.zeros(queries.shape[0])


def _on_queries_orthogonal_to(task: Task, transform: Callable[[Matrix], Matrix]) -> Comparison:
    """Predictions against zero, on queries orthogonal to the transformed x_i, which exist because M < d."""
    d = task.dimension
    if d == 1:
        nothing = equal(jnp.zeros(1), 0.0, 1.0)
        return eqx.tree_at(lambda c: c.promised, nothing, jnp.zeros(1, dtype=bool))
    comparisons = []
    for length in sorted({1, d - 1}):
        inputs, queries, weights = drawn_prompts(task, length)
        basis = jnp.linalg.qr(jnp.swapaxes(inputs @ transform(task.gamma()), 1, 2))[0]
        for _ in range(2):  # the second pass removes what rounding left
            queries = queries - jnp.einsum("pdm,pem,pe->pd", basis, basis, queries)
        comparisons.append(predicted(task, inputs, queries, weights, _nothing))
    return joined(comparisons)


@SECTION.claim(
    "sec-4.2.orthogonal-query",
    "section 4.2, query shifts",
    "If the query is orthogonal to the span of the x_i, the prediction is zero",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=one_covariance,
    problems=(STILL_EASY, STILL_HARD, ISOTROPIC, STILL_ONE, INFINITE),
    spaces=spaces.STILL + spaces.STILL_INFINITE,
    note="yhat = x_query^T Gamma^-1 S w, and Gamma^-1 turns S w out of the span of the x_i unless Lambda is a "
    "multiple of the identity. The same is true of (4.7), which has Lambda in place of Gamma.",
)
@of_task
def orthogonal_query(task: Task) -> Comparison:
    """yhat against 0 where x_query is orthogonal to span{x_i}."""
    return _on_queries_orthogonal_to(task, lambda gamma: jnp.eye(gamma.shape[0]))


@SECTION.claim(
    "sec-4.2.orthogonal-query",
    "section 4.2, query shifts",
    "If the query is orthogonal to the span of the Gamma^-1 x_i, the prediction is zero",
    form="corrected",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=one_covariance,
    problems=(STILL_EASY, STILL_HARD, ISOTROPIC, STILL_ONE, INFINITE),
    spaces=spaces.STILL + spaces.STILL_INFINITE,
    note="The printed form, without Gamma^-1, is the special case where Lambda is a multiple of the identity.",
)
@of_task
def query_orthogonal_after_gamma(task: Task) -> Comparison:
    """yhat against 0 where x_query is orthogonal to Gamma^-1 span{x_i}."""
    return _on_queries_orthogonal_to(task, jnp.linalg.inv)


@SECTION.claim(
    "sec-4.2.covariate-shift",
    "section 4.2, covariate shifts",
    "For covariates c times as large yhat tends to c^2 <w, x_query>: the risk to (c^2 - 1)^2 E<w, x_query>^2, "
    "which is positive unless c = 1",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=one_covariance,
    problems=COVARIANCES,
    spaces=spaces.STILL,
    note="Judged exactly at N = M = infinity and at c = 0.1, 0.5, 0.9, 1.1, 2 and 10. The middle expression of the "
    "display lacks its factor w.",
)
@of_task
def covariate_shift(task: Task) -> Comparison:
    """The risk on covariates c times as large against (c^2 - 1)^2 E<w, c x>^2 = (c^2 - 1)^2 c^2 tr(Lambda)."""
    prompts = _at_infinity(task.covariance)
    model = limit(prompts)

    def sides(c):
        energy = c**2 * jnp.trace(task.covariance)
        return asymptotic(two_routes(model, prompts.scaled(c))), (c**2 - 1) ** 2 * energy, (c**2 + 1) ** 2 * energy

    return rounded(equal(*each(sides, jnp.asarray(_SCALES))), _limit_conditioning(task.covariance))
