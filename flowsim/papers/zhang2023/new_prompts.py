"""Both sides of the statements of zhang2023's sections 4.1, 4.2 and appendix B: the limit (4.1) on new prompts.

They speak of the task alone, so that nothing flows. Statements for all w, laws, lengths or prompts are judged on those
listed here, the hardest among them: weights along the smallest eigenvector, a single example, labels without mean zero.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim._core.types import Matrix, Scalar
from flowsim.claims.claim import Comparison, at_most, equal
from flowsim.claims.hypotheses import Hypothesis, hypothesis
from flowsim.claims.statements import joined, of_task, rounded
from flowsim.losses import LinearAttentionLoss
from flowsim.losses.prompt_risk import risk, zero_predictor_error
from flowsim.models import LinearAttention
from flowsim.papers.zhang2023.conditions import limit
from flowsim.papers.zhang2023.literal import LARGEST, linear_risk, literal_risk, polynomial_rule
from flowsim.papers.zhang2023.risk_bounds import averaged_bounds, noiseless_bound, noiseless_risk, nonlinear_risk
from flowsim.tasks import LinearRegression, Prompt
from flowsim.tasks.joint_law import JointLaw

Task = LinearRegression
Route = Callable[[Scalar], Float[Array, " routes"]]

_LENGTHS = (1.0, 2.0, 7.0, 50.0, 1e4, float("inf"))
_DRAWN_LENGTHS = (1, 7)
_PROMPTS = 12
_DEGREE = 8  # of squared errors in an example with a cubic label: each factor is rounded
_SCALES = (0.1, 0.5, 0.9, 1.1, 2.0, 10.0)
_ROUNDING = float(jnp.finfo(jnp.float64).eps)


def bounded(value: Array, bound: Array, energy: Array, amplified: Scalar) -> Comparison:
    """risk <= bound. A risk holds E y^2 times the square of Lambda Gamma^-1 - I, which is known to a few epsilon."""
    doubt = bound + 2 * jnp.sqrt(bound * energy) + amplified * _ROUNDING * energy
    return eqx.tree_at(lambda c: c.scale, at_most(value, bound), amplified * doubt)


def finite_training(loss: LinearAttentionLoss, start: LinearAttention) -> list[Hypothesis]:
    """Gamma = Lambda at N = inf, where both sides of the bounds are equal."""
    return [hypothesis("N finite, so that Gamma > Lambda", loss.task.context_length, "<", jnp.inf)]


def conditioning(task: Task) -> Scalar:
    """How much products of Gamma^-2, Lambda and Sigma, and Lambda^-1 E[xy], magnify rounding: at most
    kappa(Gamma) (|Lambda| |Gamma^-1|)^2 + kappa(Lambda), a dimension.
    """
    values, gammas = jnp.linalg.eigvalsh(task.covariance), jnp.linalg.eigvalsh(task.gamma())
    amplified = gammas[-1] / gammas[0] * (values[-1] / gammas[0]) ** 2
    return task.dimension * (amplified + values[-1] / values[0])


def _limit_conditioning(covariance: Matrix) -> Scalar:
    """The same at N = M = inf: Lambda Lambda^-1 - I is of the size kappa epsilon and enters as its square, weighed by
    kappa; the best linear error is a difference that Lambda^-1 E[xy] enters.
    """
    values, d = jnp.linalg.eigvalsh(covariance), covariance.shape[0]
    kappa = values[-1] / values[0]
    return d * (1 + kappa**1.5) + d**2 * kappa**3 * _ROUNDING


def _weights(covariance: Matrix) -> Float[Array, "K d"]:
    """Along the largest and the smallest eigenvector, tiny and huge; and a random one."""
    vectors = jnp.linalg.eigh(covariance)[1]
    random = jax.random.normal(jax.random.key(0), vectors[0].shape)
    return jnp.stack([vectors[:, -1], 1e3 * vectors[:, 0], 1e-3 * vectors[:, 0], random])


def _at_infinity(covariance: Matrix, **shifts: Any) -> Task:
    return LinearRegression(covariance, jnp.inf, **shifts)


# (4.2) and the remark on orthogonal queries: the literal model on drawn prompts


def _drawn(task: Task, length: int) -> tuple[Array, Array, Array]:
    """Covariates (P, M, d), queries (P, d) and weights (P, d) with standard deviations from 1e-2 to 1e2."""
    longest = max(task.dimension, *_DRAWN_LENGTHS)
    normals = jax.random.normal(jax.random.key(0), (_PROMPTS, longest + 2, task.dimension))
    inputs = normals[:, 1:] @ jnp.linalg.cholesky(task.covariance).T
    return inputs[:, 1 : length + 1], inputs[:, 0], jnp.geomspace(1e-2, 1e2, _PROMPTS)[:, None] * normals[:, 0]


def _predicted(task: Task, inputs: Array, queries: Array, weights: Array, expected: Callable) -> Comparison:
    """The literal model (4.1) on prompts y_i = <w, x_i> against an expected prediction, (x_query, S w, Gamma^-1) ->."""
    labels = jnp.einsum("pmd,pd->pm", inputs, weights)
    model = limit(task)
    predictions = jax.vmap(lambda x, y, query: model(Prompt(x, y, query)))(inputs, labels, queries)
    inverse, gammas = jnp.linalg.inv(task.gamma()), jnp.linalg.eigvalsh(task.gamma())
    means = jnp.einsum("pmd,pm->pd", inputs, labels) / inputs.shape[1]
    terms = jnp.mean(jnp.linalg.norm(inputs, axis=2) * jnp.abs(labels), axis=1)
    size = jnp.linalg.norm(queries, axis=1) * terms / gammas[0]
    return rounded(equal(expected(queries, means, inverse), predictions, size), task.dimension * gammas[-1] / gammas[0])


@of_task
def prediction(task: Task) -> Comparison:
    """(4.2): yhat = x_query^T Gamma^-1 (1/M) sum x_i x_i^T w."""

    def formula(queries, means, inverse):
        return jnp.einsum("pd,de,pe->p", queries, inverse, means)

    return joined([_predicted(task, *_drawn(task, length), formula) for length in _DRAWN_LENGTHS])


def _nothing(queries: Array, means: Array, inverse: Matrix) -> Array:
    return jnp.zeros(queries.shape[0])


def _on_queries_orthogonal_to(task: Task, transform: Callable[[Matrix], Matrix]) -> Comparison:
    """Predictions against zero, on queries orthogonal to the images of the x_i. M < d, so that there are such."""
    d = task.dimension
    if d == 1:
        nothing = equal(jnp.zeros(1), 0.0, 1.0)
        return eqx.tree_at(lambda c: c.promised, nothing, jnp.zeros(1, dtype=bool))
    comparisons = []
    for length in sorted({1, d - 1}):
        inputs, queries, weights = _drawn(task, length)
        basis = jnp.linalg.qr(jnp.swapaxes(inputs @ transform(task.gamma()), 1, 2))[0]
        for _ in range(2):  # once more takes away what rounding left
            queries = queries - jnp.einsum("pdm,pem,pe->pd", basis, basis, queries)
        comparisons.append(_predicted(task, inputs, queries, weights, _nothing))
    return joined(comparisons)


@of_task
def orthogonal_query(task: Task) -> Comparison:
    """x_query orthogonal to span{x_i}: yhat = 0."""
    return _on_queries_orthogonal_to(task, lambda gamma: jnp.eye(gamma.shape[0]))


@of_task
def query_orthogonal_after_gamma(task: Task) -> Comparison:
    """x_query orthogonal to Gamma^-1 span{x_i}: yhat = 0."""
    return _on_queries_orthogonal_to(task, jnp.linalg.inv)


# Theorem 4.2 and its two displays


def polynomials(covariance: Matrix) -> dict[str, Array]:
    """Arguments of `JointLaw.of_polynomial`, one row for each law: linear labels, noisy ones, a square
    with E[xy] = 0, a square and a cube, along the extreme eigenvectors.
    """
    large, _, small, random = _weights(covariance)
    v, thin = (w / jnp.sqrt(w @ covariance @ w) for w in (random, small))
    return {
        "weight": jnp.stack([thin, random, 0 * v, large, random]),
        "direction": jnp.stack([v, v, v, thin, v]),
        "square": jnp.asarray([0.0, 0.0, 1.0, -2.0, 0.3]),
        "cube": jnp.asarray([0.0, 0.0, 0.0, 0.0, -0.7]),
        "label_noise": jnp.asarray([0.0, 0.5, 0.0, 0.1, 0.2]),
    }


def two_routes(model: LinearAttention, task: Task) -> Route:
    """M -> the exact risk of the package, and for d <= 4 that of the literal model by cubature beside it."""
    return _beside(model, task, lambda: linear_risk(model, task))


def _polynomial_routes(model: LinearAttention, law: JointLaw, terms: dict[str, Array]) -> Route:
    """The same for a law of polynomial labels."""

    def literal() -> Callable[[Scalar], Scalar]:
        rule = polynomial_rule(law.covariance, **terms)
        return literal_risk(model, rule, rule)

    return _beside(model, law, literal)


def _beside(model: LinearAttention, prompts: Task | JointLaw, literal: Callable[[], Callable]) -> Route:
    exact = lambda M: risk(model, prompts, M)
    if prompts.dimension > LARGEST:
        return lambda M: exact(M)[None]
    of_length = literal()
    return lambda M: jnp.stack([exact(M), of_length(M)])


def asymptotic(found: Route) -> Array:
    """Risks at M = infinity."""
    return found(jnp.asarray(jnp.inf))


def each(function: Callable[[Any], tuple[Array, ...]], rows: Any) -> tuple[Array, ...]:
    """The values of a function at every row, end to end; those of one row have one shape."""
    values = jax.lax.map(lambda row: jnp.broadcast_arrays(*function(row)), rows)
    return tuple(leaf.reshape(-1) for leaf in values)


def _at_every_length(function: Callable[[Scalar], tuple[Array, ...]]) -> tuple[Array, ...]:
    return each(function, jnp.asarray(_LENGTHS))


@of_task
def nonlinear(task: Task) -> Comparison:
    """(4.6) against the exact risk and that of the literal model."""
    N, model = task.context_length, limit(task)

    def sides(terms):
        law = JointLaw.of_polynomial(task.covariance, **terms)
        found = _polynomial_routes(model, law, terms)
        # A mean of predictions is known to the rounding of each.
        size = 2 * law.label_energy + jnp.sum(jnp.stack(nonlinear_risk(law, N, 1.0)[1:]))

        def at(M):
            return found(M), jnp.sum(jnp.stack(nonlinear_risk(law, N, M))), size

        return _at_every_length(at)

    return rounded(equal(*each(sides, polynomials(task.covariance))), _DEGREE * conditioning(task))


def _on_every_weight(task: Task, formula: Callable[..., tuple[Scalar, Scalar]]) -> tuple[Array, ...]:
    """The risks for y = <w, x>, a formula for them, and E y^2, for every w at every length."""
    Lambda, N, model = task.covariance, task.context_length, limit(task)

    def sides(w):
        found = two_routes(model, LinearRegression(Lambda, N, weight=w))

        def at(M):
            test, train = formula(Lambda, w, N, M)
            return found(M), test + train, w @ Lambda @ w

        return _at_every_length(at)

    return each(sides, _weights(Lambda))


@of_task
def noiseless(task: Task) -> Comparison:
    """The display for y = <w, x> against the exact risk."""
    value, formula, energy = _on_every_weight(task, noiseless_risk)
    size = (task.dimension + 2) * energy + formula  # a mean of predictions is known to the rounding of each
    return rounded(equal(value, formula, size), conditioning(task))


@of_task
def noiseless_bounded(task: Task) -> Comparison:
    """The bound of that display."""
    value, bound, energy = _on_every_weight(task, noiseless_bound)
    return bounded(value, bound, energy, conditioning(task))


@of_task
def averaged_bounded(task: Task) -> Comparison:
    """Risk <= first bound <= second bound, the latter where kappa > 1: at kappa = 1 the two are equal."""
    found = two_routes(limit(task), task)

    def at(M):
        return found(M), *averaged_bounds(task.covariance, task.context_length, M)

    value, tight, loose = _at_every_length(at)
    values = jnp.linalg.eigvalsh(task.covariance)
    anisotropic = values[-1] > (1 + 1e-9) * values[0]
    energy, amplified = jnp.sum(values), conditioning(task)
    of_bounds = rounded(at_most(tight, loose, promised=anisotropic), amplified)
    return joined([*(bounded(value, bound, energy, amplified) for bound in (tight, loose)), of_bounds])


# Section 4.2, at N = M = inf


@of_task
def task_shift(task: Task) -> Comparison:
    """The risk on noisy labels of any w, and on nonlinear ones, against the best linear predictor's error:
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
        return asymptotic(_polynomial_routes(model, law, terms)), best, size

    linear, nonlinear = each(of_weight, _weights(Lambda)), each(of_polynomial, polynomials(Lambda))
    return rounded(joined([equal(*linear), equal(*nonlinear)]), _DEGREE * _limit_conditioning(Lambda))


def _query_covariances(covariance: Matrix) -> Float[Array, "K d d"]:
    """Huge, all but along the smallest eigenvector alone, and random."""
    identity, small = jnp.eye(covariance.shape[0]), jnp.linalg.eigh(covariance)[1][:, 0]
    random = jax.random.normal(jax.random.key(1), covariance.shape)
    return jnp.stack([1e4 * identity, jnp.outer(small, small) + 1e-6 * identity, random @ random.T + 1e-3 * identity])


@of_task
def query_shift(task: Task) -> Comparison:
    """The risk under a query shift against zero."""
    model = limit(_at_infinity(task.covariance))

    def sides(queries):
        prompts = _at_infinity(task.covariance, query_covariance=queries)
        return asymptotic(two_routes(model, prompts)), zero_predictor_error(prompts)

    value, size = each(sides, _query_covariances(task.covariance))
    return rounded(equal(value, 0.0, size), _limit_conditioning(task.covariance))


@of_task
def covariate_shift(task: Task) -> Comparison:
    """The risk on covariates c times as large against (c^2 - 1)^2 E<w, c x>^2 = (c^2 - 1)^2 c^2 tr(Lambda)."""
    prompts = _at_infinity(task.covariance)
    model = limit(prompts)

    def sides(c):
        energy = c**2 * jnp.trace(task.covariance)
        return asymptotic(two_routes(model, prompts.scaled(c))), (c**2 - 1) ** 2 * energy, (c**2 + 1) ** 2 * energy

    return rounded(equal(*each(sides, jnp.asarray(_SCALES))), _limit_conditioning(task.covariance))


@eqx.filter_jit
def _rates(task: Task, prompts: Task) -> dict[str, Array]:
    """What is left of (risk - its limit)/E y^2 at finite lengths, times M and times N^2: both tend to constants."""
    trained, size = limit(_at_infinity(task.covariance)), zero_predictor_error(prompts)
    limit_risk = risk(trained, prompts, jnp.inf)
    test = risk(trained, prompts, 1e6) - limit_risk
    train = risk(limit(LinearRegression(task.covariance, 1e4)), prompts, jnp.inf) - limit_risk
    return {"excess_times_M": 1e6 * test / size, "excess_times_N_squared": 1e8 * train / size}


def noisy_rates(loss: LinearAttentionLoss, trajectory: Any) -> dict[str, Array]:
    """The rates in 1/M and 1/N^2 on prompts with a label noise of 1/2."""
    return _rates(loss.task, _at_infinity(loss.task.covariance, label_noise=0.5))


def query_rates(loss: LinearAttentionLoss, trajectory: Any) -> dict[str, Array]:
    """The rates in 1/M and 1/N^2 on queries along the smallest eigenvector."""
    queries = _query_covariances(loss.task.covariance)[1]
    return _rates(loss.task, _at_infinity(loss.task.covariance, query_covariance=queries))
