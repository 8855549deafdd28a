"""zhang2023's section 4.3, prompts with random covariances: Theorem 4.5, (4.13) and its mean, and Figure 1.

The covariance Lambda_new of a prompt is random, and its query x is drawn from N(0, Lambda_new). So the query
carries information about Lambda_new, and the mean given the query contains E[Lambda_new | x], not E[Lambda_new]. Of
the curves of Figure 1, those of linear attention and least squares are judged, at their exact values.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim.claims.claim import Comparison, at_most, equal
from flowsim.claims.declaring import Section
from flowsim.claims.statements import joined
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LinearAttentionLoss, RandomCovarianceLoss
from flowsim.losses.arrowhead import balanced_minimum
from flowsim.losses.prompt_risk import risk, zero_predictor_error
from flowsim.models import LinearAttention
from flowsim.papers.zhang2023 import spaces
from flowsim.papers.zhang2023.appendix_c import gamma_of, limit_constants, matrix_loss, minimiser
from flowsim.papers.zhang2023.conditions import (
    assumption,
    assumption_and_random_scale,
    exponential_and_long,
    independent_variances,
    isotropic,
    one_covariance,
)
from flowsim.papers.zhang2023.limits import distance_to_limit, limit_of_flow, short_way
from flowsim.papers.zhang2023.literal import linear_risk
from flowsim.papers.zhang2023.problems import DASHED, EXPONENTIAL, PANEL, RANDOM_BEYOND, RANDOM_FLOWS
from flowsim.tasks import LinearRegression, Prompt, RandomCovarianceRegression
from flowsim.tasks.covariance_laws import DiagonalLaw, Gamma
from flowsim.tasks.sampling import least_squares

_NODES = 801
_FAR = 7.0


def variances_given(law: DiagonalLaw, query: Float[Array, " d"]) -> Float[Array, " d"]:
    """E[lambda_i | x_i] with x_i ~ N(0, lambda_i) given lambda_i, for Gamma laws; NaN for others.

    For a law with shape k and rate r, the density of s = log lambda given x is proportional to exp((k - 1/2) s - r e^s
    - x^2 e^{-s}/2). It falls doubly exponentially on both sides, so the trapezoidal rule is exact to rounding. The
    entries of the query must not be zero.
    """
    if not all(isinstance(part, Gamma) for part in law.coordinates):
        return jnp.full(query.shape, jnp.nan)
    shape = jnp.concatenate([part.shape for part in law.coordinates if isinstance(part, Gamma)])
    rate = jnp.concatenate([part.rate for part in law.coordinates if isinstance(part, Gamma)])
    # At the ends x^2/lambda and rate lambda exceed 1000, where a factor below e^-500 remains.
    low, high = jnp.log(query**2) - _FAR, jnp.log1p(shape) - jnp.log(rate) + _FAR
    s = low[None, :] + jnp.linspace(0.0, 1.0, _NODES)[:, None] * (high - low)[None, :]
    exponent = (shape - 0.5)[None, :] * s - rate[None, :] * jnp.exp(s) - (query**2)[None, :] * jnp.exp(-s) / 2
    density = jnp.exp(exponent - jnp.max(exponent, axis=0)[None, :])
    return jnp.sum(density * jnp.exp(s), axis=0) / jnp.sum(density, axis=0)


def mean_prediction(
    model: LinearAttention, law: DiagonalLaw, query: Float[Array, " d"], weight: Float[Array, " d"]
) -> Float[Array, ""]:
    """E[yhat | x_query, w] of the literal model with u12 = u21 = 0, for any number of examples.

    The prediction is a mean over examples of a linear function of x_i x_i^T. So each example may be replaced by one of
    the equally likely points sqrt(d E[lambda_i | x_query]) e_i, which have the same second moments given the query.
    """
    examples = jnp.diag(jnp.sqrt(query.size * variances_given(law, query)))
    return jnp.mean(jax.vmap(lambda x: model(Prompt(x[None], (x @ weight)[None], query)))(examples))


Loss = RandomCovarianceLoss

_DRAWN = 12
_QUERIES = (0.1, 1.0, 3.0)

SECTION = Section("zhang2023", LinearAttention, setting=independent_variances)
ON_RANDOM_FLOWS = SECTION.on(RANDOM_FLOWS, spaces.RANDOM, hypotheses=assumption_and_random_scale)
ON_EXPONENTIAL = SECTION.on((EXPONENTIAL,), spaces.EXPONENTIAL, hypotheses=exponential_and_long)


@SECTION.on((RANDOM_BEYOND, *RANDOM_FLOWS), spaces.RANDOM).claim(
    "theorem-4.5.scale",
    "Theorem 4.5 without its condition (4.11)",
    form="corrected",
    hypotheses=assumption,
    constants=limit_constants,
)
def matrix_limit(loss: Loss, flow: Trajectory) -> Comparison:
    r"""From Assumption 3.3 and $\mathbb{E}[\Lambda] \Theta \ne 0$ alone, at any $\sigma > 0$, $W^{PV}$ and $W^{KQ}$
    tend to (4.12)

    So the condition (4.11) on sigma is sufficient but not necessary. As with one covariance, u_{-1} stays positive and
    the diagonal of U11 nonnegative for every sigma. The first problem violates (4.11).
    """
    operator, square = loss.task.law.expectation(
        lambda Lambda: (gamma_of(loss, Lambda) @ Lambda @ Lambda, Lambda @ Lambda)
    )
    product = jnp.linalg.solve(operator, square)
    u = jnp.sqrt(jnp.linalg.norm(product))
    return distance_to_limit(loss, flow, LinearAttention(product / u, u))


@ON_RANDOM_FLOWS.claim("theorem-4.5", "Theorem 4.5", constants=limit_constants)
def tends_to_random_global_minimum(loss: Loss, flow: Trajectory) -> Comparison:
    r"""Under Assumption 3.3, $\mathbb{E}[\Lambda] \Theta \ne 0$ and (4.11), $W^{PV}$ and $W^{KQ}$ tend to (4.12), a
    global minimum
    """
    limit, doubt = limit_of_flow(loss, flow)
    minimum = minimiser(loss)[1]
    value = matrix_loss(loss, limit)
    return joined([matrix_limit.compare(loss, flow), equal(value[None], minimum, -minimum, allowance=doubt)])


@eqx.filter_jit
def _random_prediction(loss: Loss) -> Comparison:
    d, model = loss.task.dimension, balanced_minimum(loss.structure)
    cubic, square = loss.task.law.expectation(
        lambda Lambda: (gamma_of(loss, Lambda) @ Lambda @ Lambda, Lambda @ Lambda)
    )
    printed = square @ jnp.linalg.inv(cubic)

    def sides(key):
        normals = jax.random.normal(key, (d + 5, d))
        query, w = normals[0], normals[1]
        variances = jnp.exp(normals[2])
        drawn, exact = normals[3:] * jnp.sqrt(variances)[None, :], jnp.sqrt(d * variances)[:, None] * jnp.eye(d)
        terms = []
        for inputs in (drawn, exact):
            mean = inputs.T @ inputs / inputs.shape[0]
            terms.append((model(Prompt(inputs, inputs @ w, query)), query @ printed @ mean @ w))
        limits = query @ printed @ (variances * w)
        found, formula = (jnp.stack(column) for column in zip(*terms, strict=True))
        size = jnp.linalg.norm(query) * jnp.linalg.norm(printed) * jnp.linalg.norm(w) * jnp.sum(drawn**2 + 1.0)
        return jnp.append(found, found[1]), jnp.append(formula, limits), jnp.full(3, size)

    values = jax.lax.map(sides, jax.random.split(jax.random.key(0), _DRAWN))
    return equal(*(leaf.reshape(-1) for leaf in values))


@ON_RANDOM_FLOWS.claim("eq-4.13", "(4.13)", hypotheses=())
def random_prediction(loss: Loss) -> Comparison:
    r"""At (4.12) the prediction is $x_{\mathrm{query}}^\top \mathbb{E}[\Lambda^2] \mathbb{E}[\Gamma \Lambda^2]^{-1}
    \bigl(\tfrac{1}{M} \sum x_i x_i^\top\bigr) w$, which tends to the same expression with $\Lambda_{\mathrm{new}}$ in
    place of the mean over examples

    Judged on the literal model with 12 random prompts. For the limit, the examples have (1/M) sum x_i x_i^T =
    Lambda_new.
    """
    return _random_prediction(loss)


def _cases(d: int) -> tuple[Float[Array, "K d"], Float[Array, "K d"]]:
    """Queries (K, d) and a weight w for each, (K, d).

    In all queries but the last the coordinates are equal. In the last they have different sizes and signs.
    """
    signs = jnp.where(jnp.arange(d) % 2 == 0, 1.0, -1.0)
    sizes = jnp.asarray(_QUERIES)
    mixed = sizes[jnp.arange(d) % sizes.size] * signs
    queries = jnp.concatenate([sizes[:, None] * jnp.ones((1, d)), mixed[None]])
    weights = jnp.concatenate([jnp.ones((sizes.size, d)), jnp.linspace(1.0, 2.0, d)[None]])
    return queries, weights


def _on_average(loss: Loss, trajectory: Trajectory, factors: Callable[[Array], Array]) -> Comparison:
    """Compares E[yhat | x_query, w] with sum_i f(x_i) w_i x_i, at the limit of the flow and at its end.

    Here x = x_query, and ``factors`` is f. With T = u_{-1} U11 the mean is w^T E[Lambda | x] T x. If the remaining
    path has length r, T changes by at most r (|u_{-1}| + |U11|_F) + r^2.
    """
    law = loss.task.law
    assert isinstance(law, DiagonalLaw), "the setting of the claim"
    queries, weights = _cases(loss.task.dimension)

    def against(model: LinearAttention, doubt: Array) -> Comparison:
        def sides(case):
            query, weight = case
            reach = jnp.linalg.norm(variances_given(law, query) * weight) * jnp.linalg.norm(query)
            found = mean_prediction(model, law, query, weight)
            return found, jnp.sum(factors(query) * query * weight), jnp.sum(jnp.abs(query * weight)), reach

        value, expected, size, reach = jax.lax.map(sides, (queries, weights))
        turn = doubt * (jnp.abs(model.u_minus1) + jnp.linalg.norm(model.U11)) + doubt**2
        return equal(value, expected, size, allowance=jnp.where(doubt > 0, reach * turn, 0.0))

    return joined([against(*limit_of_flow(loss, trajectory)), short_way(loss, trajectory, against)])


def factors_at_the_end(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """Three kinds of factors between predictions and labels at the end of the flow.

    - factor_at_0.1, factor_at_1, factor_at_3: E[yhat | x_query, w]/<w, x_query> for a query with all coordinates
      equal to the number in the name, and w = (1, .., 1).
    - factor_of_a_foreign_query: this ratio with E[Lambda] in place of E[Lambda | x_query].
    - factor_over_queries: E[yhat y_query]/E[y_query^2].
    """
    law, d = loss.task.law, loss.task.dimension
    assert isinstance(law, DiagonalLaw), "the setting of the claim"
    end, ones = trajectory.end, jnp.ones(d)
    T = jnp.diagonal(end.u_minus1 * end.U11)
    first, second, _ = law.moments()
    sizes = {f"factor_at_{size:g}": mean_prediction(end, law, size * ones, ones) / (size * d) for size in _QUERIES}
    return sizes | {
        "factor_of_a_foreign_query": jnp.mean(T * first),
        "factor_over_queries": jnp.sum(T * second) / jnp.sum(first),
    }


@ON_EXPONENTIAL.claim("sec-4.3.one-third", "section 4.3, after (4.13)", constants=factors_at_the_end)
def one_third(loss: Loss, flow: Trajectory) -> Comparison:
    r"""With variances $\operatorname{Exponential}(1)$ and $M, N \to \infty$, $\mathbb{E}[\hat y \mid
    x_{\mathrm{query}}, w] \to \langle w, x_{\mathrm{query}} \rangle/3$

    The query is drawn from N(0, Lambda_new), so E[Lambda_new | x_query] is not E[Lambda_new]. For a query that is
    independent of Lambda_new, the factor 1/3 is right. Judged at N = infinity; the mean does not depend on M.
    """
    return _on_average(loss, flow, lambda query: jnp.full(query.shape, 1 / 3))


@ON_EXPONENTIAL.corrected(one_third, constants=factors_at_the_end)
def by_the_query(loss: Loss, flow: Trajectory) -> Comparison:
    r"""With variances $\operatorname{Exponential}(1)$ and $M, N \to \infty$, $\mathbb{E}[\hat y \mid
    x_{\mathrm{query}}, w] \to \sum_i \frac{\lvert x_i \rvert/\sqrt 2 + 1/2}{3} w_i x_i$ with $x = x_{\mathrm{query}}$

    Here E[lambda | x] = |x|/sqrt 2 + 1/2 replaces the paper's E[lambda] = 1. The factor is .19, .40 and .87 at |x| =
    .1, 1 and 3. Its mean over queries, which figure-1 uses, is 2/3. The paper's conclusion stands.
    """
    return _on_average(loss, flow, lambda query: (jnp.abs(query) / jnp.sqrt(2.0) + 0.5) / 3)


SCALES = (1.0, 4.0, 9.0)  # c: test covariances are c times those of training
_LONGEST = 200
_LAGUERRE = 3  # nodes: exact to degree 5 in a variance, in which a risk is cubic


def normalised_risk(loss: RandomCovarianceLoss, scale: float, test_length: Array | float) -> Array:
    """The risk of the limit (4.12) on prompts with covariance c Lambda_tau, divided by the risk of predicting zero.

    **Arguments:** scale: c; test_length: M.
    """
    test = RandomCovarianceRegression(loss.task.law.scaled(scale), loss.task.context_length)
    return risk(balanced_minimum(loss.structure), test, test_length) / zero_predictor_error(test)


@eqx.filter_jit
def literal_lines(loss: RandomCovarianceLoss) -> Array:
    """The normalised risk at M = infinity for every c in `SCALES`, from predictions of the literal model alone.

    Given the variances, a cubature takes the mean over examples, queries and weights. Gauss-Laguerre rules then
    take the mean over the variances. The risk at M = infinity and the error of predicting zero are both sums over
    coordinates. For d >= 2 each is computed on every pair of neighbouring coordinates, and the results are added.
    Every coordinate is in two pairs, so both sums are doubled and their ratio is right.
    """
    d, model = loss.task.dimension, balanced_minimum(loss.structure)
    width = min(d, 2)
    nodes, masses = (
        jnp.stack(jnp.meshgrid(*[jnp.asarray(part)] * width, indexing="ij"), axis=-1).reshape(-1, width)
        for part in np.polynomial.laguerre.laggauss(_LAGUERRE)
    )
    weights, scales = jnp.prod(masses, axis=1), jnp.asarray(SCALES)
    variances = (scales[:, None, None] * nodes[None]).reshape(-1, width)

    def of_window(first: Array) -> tuple[Array, Array]:
        chosen = (first + jnp.arange(width)) % d
        part = LinearAttention(model.U11[chosen][:, chosen], model.u_minus1)
        nothing = LinearAttention(jnp.zeros((width, width)), 0.0)

        def given(variance: Array) -> tuple[Array, Array]:
            task = LinearRegression(jnp.diag(variance), 1.0)
            return linear_risk(part, task)(jnp.asarray(jnp.inf)), linear_risk(nothing, task)(jnp.asarray(jnp.inf))

        risks, errors = jax.lax.map(given, variances)
        return risks.reshape(scales.size, -1) @ weights, errors.reshape(scales.size, -1) @ weights

    risks, errors = jax.lax.map(of_window, jnp.arange(d))
    return jnp.sum(risks, axis=0) / jnp.sum(errors, axis=0)


def dashed_constants(loss: RandomCovarianceLoss, trajectory: Trajectory) -> dict[str, Array]:
    """The normalised risk of linear attention, for each scale c, at M = infinity and at N = M = 100.

    The first is the dashed line of Figure 1.
    """
    finite = RandomCovarianceLoss(RandomCovarianceRegression(loss.task.law, 100.0))
    lines = {f"dashed_c_{c:g}": normalised_risk(loss, c, jnp.inf) for c in SCALES}
    return lines | {f"at_100_c_{c:g}": normalised_risk(finite, c, 100.0) for c in SCALES}


FIGURE_1 = Section("zhang2023", LinearAttention, setting=independent_variances)


@FIGURE_1.on(DASHED, spaces.DASHED).claim(
    "figure-1", "Figure 1 and (4.13)", hypotheses=exponential_and_long, constants=dashed_constants
)
def dashed_line(loss: RandomCovarianceLoss) -> Comparison:
    r"""Trained on $\operatorname{Exponential}(1)$ variances, linear attention's error at $M, N \to \infty$ is the black
    dashed line

    By (4.13) the line is 1 - 4c/3 + 2c^2/3 times the error of predicting zero. For c = 4 and 9 it is above that error.
    Judged on predictions of the literal model by cubature. Of the figure's curves, only those of linear attention and
    least squares are judged.
    """
    c = jnp.asarray(SCALES)
    lines, sizes = 1 - 4 * c / 3 + 2 * c**2 / 3, 1 + 4 * c / 3 + 2 * c**2 / 3
    exact = jnp.stack([normalised_risk(loss, scale, jnp.inf) for scale in SCALES])
    return joined([equal(literal_lines(loss), lines, sizes), equal(exact, lines, sizes)])


@eqx.filter_jit
def _unseen(dimension: int) -> Array:
    """E|w - w_M|^2 for w ~ N(0, I), at M = 1, .., d: (d,).

    Here w_M is the least-squares estimate of w from M random examples without noise. The mean is d - M for every
    draw of the examples.
    """
    inputs, identity = jax.random.normal(jax.random.key(0), (dimension, dimension)), jnp.eye(dimension)

    def of_length(length: Array) -> Array:
        kept = jnp.where((jnp.arange(dimension) < length)[:, None], inputs, 0.0)

        def predicted(w: Array, query: Array) -> Array:
            return least_squares(Prompt(kept, kept @ w, query))

        found = jax.vmap(jax.vmap(predicted, (None, 0)), (0, None))(identity, identity)
        return jnp.sum((found - identity) ** 2)

    return jax.lax.map(of_length, jnp.arange(dimension) + 1)


@FIGURE_1.on(PANEL, spaces.PANEL).claim(
    "figure-1.least-squares", "section 4.3 and Figure 1", setting=one_covariance, hypotheses=isotropic
)
def least_squares_below(loss: LinearAttentionLoss) -> Comparison:
    """Least squares is optimal for this task: at no $M$ is its error above that of linear attention trained at $N$

    Judged for M = 1 to 200 and one covariance for all prompts, a multiple of I. Where M < d, least squares is the
    solution of least norm. It is computed on random examples, and its error is the same for every draw.
    """
    d = loss.task.dimension
    model = balanced_minimum(loss.structure)
    lengths = jnp.arange(1.0, _LONGEST + 1)
    found = loss.eigenvalues[0] * _unseen(d)[jnp.minimum(jnp.arange(_LONGEST), d - 1)]
    # The risk is affine in 1/M.
    asymptotic, single = risk(model, loss.task, jnp.inf), risk(model, loss.task, 1)
    return at_most(found, asymptotic + (single - asymptotic) / lengths)
