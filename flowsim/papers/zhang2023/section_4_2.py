"""zhang2023's section 4.2: the limit (4.1) under shifts of the task, the query and the covariates, at N = M = inf."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim._core.types import Matrix, Scalar
from flowsim.claims.claim import Comparison, equal
from flowsim.claims.declaring import Section
from flowsim.claims.statements import joined, rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LinearAttentionLoss
from flowsim.losses.prompt_risk import risk, zero_predictor_error
from flowsim.models import LinearAttention
from flowsim.papers.zhang2023 import spaces
from flowsim.papers.zhang2023.conditions import limit, one_covariance
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
from flowsim.papers.zhang2023.section_4_1 import nonlinear_risk
from flowsim.tasks import LinearRegression
from flowsim.tasks.joint_law import JointLaw

Task = LinearRegression

_SCALES = (0.1, 0.5, 0.9, 1.1, 2.0, 10.0)
_ROUNDING = float(jnp.finfo(jnp.float64).eps)
_AT_LIMIT = (
    "Judged exactly at N = M = infinity, up to d = 4 on the literal model; the constants tell how the remainder falls "
    "with M and N."
)


def _at_infinity(covariance: Matrix, **shifts: Any) -> Task:
    return LinearRegression(covariance, jnp.inf, **shifts)


def _limit_conditioning(covariance: Matrix) -> Scalar:
    """The factor by which rounding errors grow at N = M = inf. `conditioning` gives the factor at finite lengths.

    The rounding error of Lambda Lambda^-1 - I is kappa epsilon, and the risk weights its square by kappa. The best
    linear error is a difference that contains Lambda^-1 E[xy].
    """
    values, d = jnp.linalg.eigvalsh(covariance), covariance.shape[0]
    kappa = values[-1] / values[0]
    return d * (1 + kappa**1.5) + d**2 * kappa**3 * _ROUNDING


@eqx.filter_jit
def _rates(task: Task, prompts: Task) -> dict[str, Array]:
    """The constants c_M and c_N of risk ~ limit + E y^2 (c_M/M + c_N/N^2), estimated at M = 1e6 and at N = 1e4.

    **Arguments:** task: gives the covariance in training; prompts: the prompts of the test.
    """
    trained, size = limit(_at_infinity(task.covariance)), zero_predictor_error(prompts)
    limit_risk = risk(trained, prompts, jnp.inf)
    test = risk(trained, prompts, 1e6) - limit_risk
    train = risk(limit(LinearRegression(task.covariance, 1e4)), prompts, jnp.inf) - limit_risk
    return {"excess_times_M": 1e6 * test / size, "excess_times_N_squared": 1e8 * train / size}


def noisy_rates(loss: LinearAttentionLoss, trajectory: Trajectory) -> dict[str, Array]:
    """The constants of `_rates` on prompts with a label noise of 1/2."""
    return _rates(loss.task, _at_infinity(loss.task.covariance, label_noise=0.5))


SECTION = Section("zhang2023", LinearAttention, setting=one_covariance)
ON_COVARIANCES = SECTION.on(COVARIANCES, spaces.STILL)
ON_STILL_INFINITE = SECTION.on(
    (STILL_EASY, STILL_HARD, ISOTROPIC, STILL_ONE, INFINITE), spaces.STILL + spaces.STILL_INFINITE
)


@ON_COVARIANCES.claim(
    "sec-4.2.task-shift",
    "section 4.2, task shifts",
    constants=noisy_rates,
    note=f"{_AT_LIMIT} The constants are for a label noise of 1/2.",
)
@eqx.filter_jit
def task_shift(task: Task) -> Comparison:
    """For every $w$ and label noise, and for nonlinear labels, the risk tends to that of the best linear predictor"""
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
    """Three covariances of queries: a huge one, one almost only along the smallest eigenvector, and a random one."""
    identity, small = jnp.eye(covariance.shape[0]), jnp.linalg.eigh(covariance)[1][:, 0]
    random = jax.random.normal(jax.random.key(1), covariance.shape)
    return jnp.stack([1e4 * identity, jnp.outer(small, small) + 1e-6 * identity, random @ random.T + 1e-3 * identity])


def query_rates(loss: LinearAttentionLoss, trajectory: Trajectory) -> dict[str, Array]:
    """The constants of `_rates` on prompts whose queries are along the smallest eigenvector."""
    queries = _query_covariances(loss.task.covariance)[1]
    return _rates(loss.task, _at_infinity(loss.task.covariance, query_covariance=queries))


@ON_COVARIANCES.claim(
    "sec-4.2.query-shift",
    "section 4.2, query shifts, (4.8)",
    constants=query_rates,
    note=f"{_AT_LIMIT} Judged on Gaussian queries: the risk depends only on the query's covariance.",
)
@eqx.filter_jit
def query_shift(task: Task) -> Comparison:
    r"""For every law of the query that is independent of the context, $\hat y$ tends to $\langle w, x_{\mathrm{query}}
    \rangle$ and the risk to $0$
    """
    model = limit(_at_infinity(task.covariance))

    def sides(queries):
        prompts = _at_infinity(task.covariance, query_covariance=queries)
        return asymptotic(two_routes(model, prompts)), zero_predictor_error(prompts)

    value, size = each(sides, _query_covariances(task.covariance))
    return rounded(equal(value, 0.0, size), _limit_conditioning(task.covariance))


def _nothing(queries: Array, means: Array, inverse: Matrix) -> Array:
    return jnp.zeros(queries.shape[0])


def _on_queries_orthogonal_to(task: Task, transform: Callable[[Matrix], Matrix]) -> Comparison:
    """Compares predictions with zero, on queries orthogonal to transformed covariates x_i.

    The prompts have M < d examples, so that such queries exist. At d = 1 no statement is made.

    **Arguments:** transform: Gamma -> the (d, d) matrix that is applied to each x_i.
    """
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


@ON_STILL_INFINITE.claim("sec-4.2.orthogonal-query", "section 4.2, query shifts")
@eqx.filter_jit
def orthogonal_query(task: Task) -> Comparison:
    """If the query is orthogonal to the span of the $x_i$, the prediction is zero

    The prediction is x_query^T Gamma^-1 S w with S = (1/M) sum x_i x_i^T. S w lies in the span of the x_i, but Gamma^-1
    S w need not, unless Lambda is a multiple of the identity. The same is true of (4.7), which has Lambda in place of
    Gamma.
    """
    return _on_queries_orthogonal_to(task, lambda gamma: jnp.eye(gamma.shape[0]))


@ON_STILL_INFINITE.corrected(orthogonal_query)
@eqx.filter_jit
def query_orthogonal_after_gamma(task: Task) -> Comparison:
    r"""If the query is orthogonal to the span of the $\Gamma^{-1} x_i$, the prediction is zero

    Where Lambda is a multiple of the identity, this is the printed form.
    """
    return _on_queries_orthogonal_to(task, jnp.linalg.inv)


@ON_COVARIANCES.claim("sec-4.2.covariate-shift", "section 4.2, covariate shifts")
@eqx.filter_jit
def covariate_shift(task: Task) -> Comparison:
    r"""For covariates $c$ times as large, $\hat y$ tends to $c^2 \langle w, x_{\mathrm{query}} \rangle$ and the risk to
    $(c^2 - 1)^2 \mathbb{E}\langle w, x_{\mathrm{query}} \rangle^2$, which is positive unless $c = 1$

    Judged exactly at N = M = infinity and at c = 0.1, 0.5, 0.9, 1.1, 2 and 10. The middle expression of the display
    lacks its factor w.
    """
    prompts = _at_infinity(task.covariance)
    model = limit(prompts)

    def sides(c):
        energy = c**2 * jnp.trace(task.covariance)
        return asymptotic(two_routes(model, prompts.scaled(c))), (c**2 - 1) ** 2 * energy, (c**2 + 1) ** 2 * energy

    return rounded(equal(*each(sides, jnp.asarray(_SCALES))), _limit_conditioning(task.covariance))
