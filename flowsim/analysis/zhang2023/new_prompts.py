"""Both sides of the statements of zhang2023's sections 4.1, 4.2 and appendix B: the limit (4.1) on new prompts.

They speak of the task alone, so that nothing flows. Statements for all w, laws, lengths or prompts are judged on those
listed here, the hardest among them: weights along the smallest eigenvector, a single example, labels without mean zero.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowsim.analysis.base import Comparison, at_most, equal
from flowsim.initialization import Hypothesis, hypothesis, limit
from flowsim.joint_law import JointLaw
from flowsim.losses import LinearAttentionLoss
from flowsim.models import LinearAttention
from flowsim.risk import risk, zero_predictor_error
from flowsim.risk_bounds import (
    averaged_bounds,
    noiseless_bound,
    noiseless_risk,
    nonlinear_risk,
    printed_context_length,
    prompt_lengths,
    sufficient_context_length,
    sufficient_test_length,
)
from flowsim.tasks import LinearRegression, Prompt

Scalar = Float[Array, ""]
Matrix = Float[Array, "d d"]
Task = LinearRegression

_LENGTHS = (1.0, 2.0, 7.0, 50.0, 1e4, float("inf"))
_DRAWN_LENGTHS = (1, 2, 7, 50)
_PROMPTS = 12
_EPSILONS = (0.5, 0.1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-8)
_SCALES = (0.1, 0.5, 0.9, 1.1, 2.0, 10.0)
_ROUNDING = float(jnp.finfo(jnp.float64).eps)


def of_task(statement: Callable[[Any], Comparison]) -> Callable[[Any, Any], Comparison]:
    """The comparison of a statement about the task alone, compiled once a dimension."""
    compiled = eqx.filter_jit(statement)

    @functools.wraps(statement)
    def compare(loss, trajectory):
        return compiled(loss.task)

    return compare


def rounded(comparison: Comparison, conditioning: Scalar) -> Comparison:
    """The comparison with rounding errors that many times larger than its terms' own."""
    return eqx.tree_at(lambda c: c.scale, comparison, comparison.scale * conditioning)


def _bounded(value: Array, bound: Array, energy: Scalar, conditioning: Scalar) -> Comparison:
    """risk <= bound. A risk holds the square of Lambda Gamma^-1 - I, which is known to a few epsilon and no better, times
    the energy E y^2.
    """
    doubt = bound + 2 * jnp.sqrt(bound * energy) + conditioning * _ROUNDING * energy
    return eqx.tree_at(lambda c: c.scale, at_most(value, bound), conditioning * doubt)


def joined(comparisons: list[Comparison]) -> Comparison:
    """Comparisons one after the other."""
    return jax.tree.map(lambda *series: jnp.concatenate(series), *comparisons)


def finite_training(loss: LinearAttentionLoss, start: LinearAttention) -> list[Hypothesis]:
    """Gamma = Lambda at N = inf, where both sides of the bounds are equal."""
    return [hypothesis("N finite, so that Gamma > Lambda", loss.task.context_length, "<", jnp.inf)]


def _conditioning(task: Task) -> Scalar:
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


def _weights(covariance: Matrix) -> list[Array]:
    """Along the largest and the smallest eigenvector, tiny and huge; and a random one."""
    vectors = jnp.linalg.eigh(covariance)[1]
    return [
        vectors[:, -1],
        1e3 * vectors[:, 0],
        1e-3 * vectors[:, 0],
        jax.random.normal(jax.random.key(0), vectors[0].shape),
    ]


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


def _polynomials(covariance: Matrix) -> list[dict[str, Any]]:
    """Linear labels, noisy ones, a square with E[xy] = 0, a square and a cube, along the extreme eigenvectors."""
    large, _, small, random = _weights(covariance)
    v = random / jnp.sqrt(random @ covariance @ random)
    thin = small / jnp.sqrt(small @ covariance @ small)
    return [
        {"weight": thin},
        {"weight": random, "label_noise": 0.5},
        {"weight": jnp.zeros_like(v), "direction": v, "square": 1.0},
        {"weight": large, "direction": thin, "square": -2.0, "label_noise": 0.1},
        {"weight": random, "direction": v, "square": 0.3, "cube": -0.7, "label_noise": 0.2},
    ]


def _at_every_length(function: Callable[[Scalar], Array]) -> Array:
    return jax.lax.map(function, jnp.asarray(_LENGTHS))


@of_task
def nonlinear(task: Task) -> Comparison:
    """(4.6) against the exact risk."""
    N, comparisons = task.context_length, []
    for terms in _polynomials(task.covariance):
        law = JointLaw.of_polynomial(task.covariance, **terms)
        value = _at_every_length(lambda M, law=law: risk(limit(task), law, M))
        best, test, train = _at_every_length(lambda M, law=law: jnp.stack(nonlinear_risk(law, N, M))).T
        comparisons.append(equal(value, best + test + train, 2 * law.label_energy + test + train))
    return rounded(joined(comparisons), _conditioning(task))


def _fixed_weight_risks(task: Task, w: Array) -> Array:
    prompts = LinearRegression(task.covariance, task.context_length, weight=w)
    return _at_every_length(lambda M: risk(limit(task), prompts, M))


@of_task
def noiseless(task: Task) -> Comparison:
    """The display for y = <w, x> against the exact risk."""
    Lambda, N, comparisons = task.covariance, task.context_length, []
    for w in _weights(Lambda):
        test, train = _at_every_length(lambda M, w=w: jnp.stack(noiseless_risk(Lambda, w, N, M))).T
        energy = w @ Lambda @ w
        comparisons.append(equal(_fixed_weight_risks(task, w), test + train, energy + test + train))
    return rounded(joined(comparisons), _conditioning(task))


@of_task
def noiseless_bounded(task: Task) -> Comparison:
    """The bound of that display."""
    Lambda, N, comparisons = task.covariance, task.context_length, []
    for w in _weights(Lambda):
        bound = _at_every_length(lambda M, w=w: jnp.sum(jnp.stack(noiseless_bound(Lambda, w, N, M))))
        comparisons.append(_bounded(_fixed_weight_risks(task, w), bound, w @ Lambda @ w, _conditioning(task)))
    return joined(comparisons)


@of_task
def averaged_bounded(task: Task) -> Comparison:
    """Risk <= first bound <= second bound, the latter where kappa > 1: at kappa = 1 the two are equal."""
    value = _at_every_length(lambda M: risk(limit(task), task, M))
    tight, loose = _at_every_length(lambda M: jnp.stack(averaged_bounds(task.covariance, task.context_length, M))).T
    values = jnp.linalg.eigvalsh(task.covariance)
    anisotropic = values[-1] > (1 + 1e-9) * values[0]
    energy, conditioning = jnp.sum(values), _conditioning(task)
    of_bounds = rounded(at_most(tight, loose, promised=anisotropic), conditioning)
    return joined([*(_bounded(value, bound, energy, conditioning) for bound in (tight, loose)), of_bounds])


# Corollary 4.3


def _limit_risk(covariance: Matrix, context_length: Scalar, test_length: Scalar) -> Scalar:
    task = LinearRegression(covariance, context_length)
    return risk(limit(task), task, test_length)


def _whole(length: Scalar) -> Scalar:
    return jnp.maximum(jnp.ceil(length), 1.0)


def _reached(task: Task, lengths: Callable[[Scalar], list[tuple[Scalar, Scalar]]]) -> Comparison:
    """The risk at lengths (N, M) that depend on epsilon against epsilon."""

    def risks(epsilon):
        return jnp.stack([_limit_risk(task.covariance, N, M) for N, M in lengths(epsilon)])

    epsilons = jnp.asarray(_EPSILONS)
    values = jax.lax.map(risks, epsilons)
    bounds = jnp.broadcast_to(epsilons[:, None], values.shape)
    return _bounded(values.ravel(), bounds.ravel(), jnp.trace(task.covariance), _conditioning(task))


@of_task
def long_enough_in_test(task: Task) -> Comparison:
    """M = 2(d+1) tr(Lambda)/epsilon, with N that suffices, ten times as long, and without end."""
    infinite = jnp.asarray(jnp.inf)

    def lengths(epsilon):
        M = _whole(sufficient_test_length(task.covariance, epsilon))
        N = _whole(sufficient_context_length(task.covariance, epsilon))
        return [(N, M), (10 * N, M), (infinite, M)]

    return _reached(task, lengths)


def _train_length(task: Task, length: Callable[[Matrix, Scalar], Scalar]) -> Comparison:
    """That N with the corollary's M, and with M without end."""

    def lengths(epsilon):
        N = _whole(length(task.covariance, epsilon))
        return [(N, _whole(sufficient_test_length(task.covariance, epsilon))), (N, jnp.asarray(jnp.inf))]

    return _reached(task, lengths)


@of_task
def printed_length_in_training(task: Task) -> Comparison:
    """N = sqrt(2(1 + 2d + d^2 kappa) tr(Lambda) epsilon^{-1/2})."""
    return _train_length(task, printed_context_length)


@of_task
def long_enough_in_training(task: Task) -> Comparison:
    """N = sqrt(2(1 + 2d + d^2 kappa) tr(Lambda)) epsilon^{-1/2}."""
    return _train_length(task, sufficient_context_length)


def lengths_at_one_percent(loss: LinearAttentionLoss, trajectory: Any) -> dict[str, Array]:
    """The corollary's lengths for epsilon = tr(Lambda)/100, 1 % of the zero predictor's risk, and the smallest."""
    covariance = loss.task.covariance
    epsilon = jnp.trace(covariance) / 100
    found = prompt_lengths(covariance, epsilon)
    constants = {
        "test_length": found.sufficient_test_length,
        "sharp_test_length": found.test_length,
        "context_length": found.sufficient_context_length,
        "sharp_context_length": found.matching_context_length,
        "printed_context_length": printed_context_length(covariance, epsilon),
    }
    return {name: jnp.asarray(value, dtype=float) for name, value in constants.items()}


# Section 4.2, at N = M = inf


@of_task
def task_shift(task: Task) -> Comparison:
    """The risk on noisy labels of any w, and on nonlinear ones, against the best linear predictor's error:
    label_noise^2 + 3 b^2 (v^T Lambda v)^2 + 6 c^2 (v^T Lambda v)^3.
    """
    Lambda, comparisons = task.covariance, []
    model = limit(_at_infinity(Lambda))
    for w in _weights(Lambda):
        for noise in (0.1, 10.0):
            prompts = _at_infinity(Lambda, weight=w, label_noise=noise)
            size = zero_predictor_error(prompts)
            comparisons.append(equal(risk(model, prompts, jnp.inf)[None], noise**2, size))
    for terms in _polynomials(Lambda):
        law, v = JointLaw.of_polynomial(Lambda, **terms), terms.get("direction", terms["weight"])
        square, cube, noise = (terms.get(name, 0.0) for name in ("square", "cube", "label_noise"))
        energy = v @ Lambda @ v
        best = noise**2 + 3 * square**2 * energy**2 + 6 * cube**2 * energy**3
        comparisons.append(equal(risk(model, law, jnp.inf)[None], best, 2 * law.label_energy))
    return rounded(joined(comparisons), _limit_conditioning(Lambda))


def _query_covariances(covariance: Matrix) -> list[Matrix]:
    """Huge, all but along the smallest eigenvector alone, and random."""
    identity, small = jnp.eye(covariance.shape[0]), jnp.linalg.eigh(covariance)[1][:, 0]
    random = jax.random.normal(jax.random.key(1), covariance.shape)
    return [1e4 * identity, jnp.outer(small, small) + 1e-6 * identity, random @ random.T + 1e-3 * identity]


@of_task
def query_shift(task: Task) -> Comparison:
    """The risk under a query shift against zero."""
    Lambda, comparisons = task.covariance, []
    for queries in _query_covariances(Lambda):
        prompts = _at_infinity(Lambda, query_covariance=queries)
        value = risk(limit(_at_infinity(Lambda)), prompts, jnp.inf)
        comparisons.append(equal(value[None], 0.0, zero_predictor_error(prompts)))
    return rounded(joined(comparisons), _limit_conditioning(Lambda))


@of_task
def covariate_shift(task: Task) -> Comparison:
    """The risk on covariates c times as large against (c^2 - 1)^2 E<w, c x>^2 = (c^2 - 1)^2 c^2 tr(Lambda)."""
    Lambda, comparisons = task.covariance, []
    for c in _SCALES:
        value = risk(limit(_at_infinity(Lambda)), _at_infinity(Lambda).scaled(c), jnp.inf)
        energy = c**2 * jnp.trace(Lambda)
        comparisons.append(equal(value[None], (c**2 - 1) ** 2 * energy, (c**2 + 1) ** 2 * energy))
    return rounded(joined(comparisons), _limit_conditioning(Lambda))


def _rates(task: Task, prompts: Task) -> dict[str, Array]:
    """What is left of (risk - its limit)/E y^2 at finite lengths, times M and times N^2: both tend to constants."""
    limit_risk = risk(limit(_at_infinity(task.covariance)), prompts, jnp.inf)
    size = zero_predictor_error(prompts)
    long, trained = 1e6, LinearRegression(task.covariance, 1e4)
    test = risk(limit(_at_infinity(task.covariance)), prompts, long) - limit_risk
    train = risk(limit(trained), prompts, jnp.inf) - limit_risk
    return {"excess_times_M": long * test / size, "excess_times_N_squared": 1e8 * train / size}


def noisy_rates(loss: LinearAttentionLoss, trajectory: Any) -> dict[str, Array]:
    """The rates in 1/M and 1/N^2 on prompts with a label noise of 1/2."""
    return _rates(loss.task, _at_infinity(loss.task.covariance, label_noise=0.5))


def query_rates(loss: LinearAttentionLoss, trajectory: Any) -> dict[str, Array]:
    """The rates in 1/M and 1/N^2 on queries along the smallest eigenvector."""
    queries = _query_covariances(loss.task.covariance)[1]
    return _rates(loss.task, _at_infinity(loss.task.covariance, query_covariance=queries))
