"""zhang2023's section 4.1, Theorem 4.2 and the displays after it: the risk of the limit (4.1) on new prompts."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from flowsim._core.types import Matrix, Scalar, Vector
from flowsim.claims.claim import Comparison, Relation, at_most, equal
from flowsim.claims.hypotheses import Hypothesis, hypothesis
from flowsim.claims.statements import joined, of_task, rounded
from flowsim.losses import LinearAttentionLoss
from flowsim.losses.prompt_risk import best_linear_error
from flowsim.models import LinearAttention
from flowsim.papers.paper import Section
from flowsim.papers.zhang2023 import spaces
from flowsim.papers.zhang2023.conditions import limit
from flowsim.papers.zhang2023.literal import polynomial_rule
from flowsim.papers.zhang2023.problems import ALL_LENGTHS, FINITE_LENGTHS, STILL
from flowsim.papers.zhang2023.prompt_lengths import conditioned_trace
from flowsim.papers.zhang2023.prompts import (
    DEGREE,
    at_every_length,
    bounded,
    conditioning,
    each,
    extreme_weights,
    polynomial_routes,
    polynomials,
    two_routes,
)
from flowsim.papers.zhang2023.setting import one_covariance
from flowsim.tasks import LinearRegression
from flowsim.tasks.joint_law import JointLaw

Task = LinearRegression

SECTION = Section("zhang2023", LinearAttention)


def _inverse_gamma_squared(covariance: Matrix, context_length: Scalar) -> Matrix:
    inverse = jnp.linalg.inv(LinearRegression(covariance, context_length).gamma())
    return inverse @ inverse


def _training_part(covariance: Matrix, weight: Vector, readout: Matrix) -> Scalar:
    """N^2 times the last term of (4.6), with readout = Gamma^-2 Lambda."""
    trace, once = jnp.trace(covariance), covariance @ weight
    return (
        once @ covariance @ readout @ weight
        + 2 * trace * (once @ readout @ weight)
        + trace**2 * weight @ readout @ weight
    )


def nonlinear_risk(law: JointLaw, context_length: ArrayLike, test_length: ArrayLike) -> tuple[Scalar, Scalar, Scalar]:
    """The three terms of (4.6): the best linear error, the term in 1/M and the term in 1/N^2.

    The last two are tr(Sigma Gamma^-2 Lambda)/M and
    (|a|^2_{Gamma^-2 Lambda^3} + 2 tr(Lambda) |a|^2_{Gamma^-2 Lambda^2} + tr(Lambda)^2 |a|^2_{Gamma^-2 Lambda})/N^2.

    **Arguments:** law: D; context_length: N; test_length: M.

    **Source:** zhang2023, Theorem 4.2.
    """
    Lambda, N, M = law.covariance, jnp.asarray(context_length, dtype=float), jnp.asarray(test_length, dtype=float)
    readout = _inverse_gamma_squared(Lambda, N) @ Lambda
    train = _training_part(Lambda, law.best_weight, readout)
    return best_linear_error(law), jnp.trace(law.spread @ readout) / M, train / N**2


@SECTION.claim(
    "theorem-4.2",
    "Theorem 4.2, (4.6)",
    "E(yhat - y_query)^2 = error of the best linear predictor + tr(Sigma Gamma^-2 Lambda)/M + (1/N^2) "
    "(|a|^2_{Gamma^-2 Lambda^3} + 2 tr(Lambda) |a|^2_{Gamma^-2 Lambda^2} + tr(Lambda)^2 |a|^2_{Gamma^-2 Lambda})",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=one_covariance,
    problems=ALL_LENGTHS,
    spaces=spaces.STILL + spaces.STILL_INFINITE,
    note="Judged against the exact risk and, up to d = 4, that of the literal model by cubature, on linear, noisy, "
    "quadratic (E[y] != 0) and cubic labels at M = 1, 2, 7, 50, 1e4 and infinity. E[y^2] must be finite too, "
    "which the printed hypotheses do not imply: y may be large where x is small.",
)
@of_task
def nonlinear(task: Task) -> Comparison:
    """(4.6) against the exact risk and that of the literal model."""
    N, model = task.context_length, limit(task)

    def sides(terms):
        law = JointLaw.of_polynomial(task.covariance, **terms)
        found = polynomial_routes(model, law, terms)
        # A mean of predictions carries the rounding error of each.
        size = 2 * law.label_energy + jnp.sum(jnp.stack(nonlinear_risk(law, N, 1.0)[1:]))

        def at(M):
            return found(M), jnp.sum(jnp.stack(nonlinear_risk(law, N, M))), size

        return at_every_length(at)

    return rounded(equal(*each(sides, polynomials(task.covariance))), DEGREE * conditioning(task))


@SECTION.claim(
    "theorem-4.2.spread",
    "after Theorem 4.2",
    "For y = <w, x> the Sigma of (4.5) is |w|^2_Lambda Lambda + Lambda w w^T Lambda",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=one_covariance,
    problems=STILL,
    spaces=spaces.STILL,
    note="Judged by cubature, for w along the extreme eigenvectors and for a random w.",
)
@of_task
def spread_of_linear_labels(task: Task) -> Comparison:
    """The covariance of xy for y = <w, x> by cubature against |w|^2_Lambda Lambda + Lambda w w^T Lambda."""
    Lambda, nothing = task.covariance, jnp.zeros(())

    def sides(w):
        rule = polynomial_rule(Lambda, w, w, nothing, nothing, nothing)
        products = rule.labels[:, None] * rule.inputs
        mean = rule.weights @ products
        found = rule.weights[None, :] * (products - mean[None, :]).T @ (products - mean[None, :])
        along = Lambda @ w
        printed = (w @ along) * Lambda + jnp.outer(along, along)
        return jnp.linalg.norm(found - printed), jnp.linalg.norm(printed)

    distances, sizes = jax.lax.map(sides, polynomials(Lambda)["weight"][jnp.asarray([0, 1, 3])])
    return rounded(equal(distances, 0.0, sizes), jnp.asarray(float(task.dimension)))


def _on_every_weight(task: Task, formula: Callable[..., tuple[Scalar, Scalar]]) -> tuple[Array, ...]:
    """The risks for y = <w, x>, a formula for them, and E y^2, for every w at every length."""
    Lambda, N, model = task.covariance, task.context_length, limit(task)

    def sides(w):
        found = two_routes(model, LinearRegression(Lambda, N, weight=w))

        def at(M):
            test, train = formula(Lambda, w, N, M)
            return found(M), test + train, w @ Lambda @ w

        return at_every_length(at)

    return each(sides, extreme_weights(Lambda))


def noiseless_risk(
    covariance: Matrix, weight: Vector, context_length: ArrayLike, test_length: ArrayLike
) -> tuple[Scalar, Scalar]:
    """Both terms of the risk for y = <w, x>: (|w|^2_{Gamma^-2 Lambda^3} + tr(Gamma^-2 Lambda^2) |w|^2_Lambda)/M, and
    the last term of (4.6) with a = w.

    **Source:** zhang2023, display after Theorem 4.2.
    """
    N, M = jnp.asarray(context_length, dtype=float), jnp.asarray(test_length, dtype=float)
    readout = _inverse_gamma_squared(covariance, N) @ covariance
    cubed = weight @ readout @ covariance @ covariance @ weight
    test = cubed + jnp.trace(readout @ covariance) * (weight @ covariance @ weight)
    return test / M, _training_part(covariance, weight, readout) / N**2


@SECTION.claim(
    "theorem-4.2.noiseless",
    "display after Theorem 4.2, first line",
    "For y = <w, x> the risk is (|w|^2_{Gamma^-2 Lambda^3} + tr(Gamma^-2 Lambda^2) |w|^2_Lambda)/M + (1/N^2) "
    "(|w|^2_{Gamma^-2 Lambda^3} + 2 tr(Lambda) |w|^2_{Gamma^-2 Lambda^2} + tr(Lambda)^2 |w|^2_{Gamma^-2 Lambda})",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=one_covariance,
    problems=ALL_LENGTHS,
    spaces=spaces.STILL + spaces.STILL_INFINITE,
)
@of_task
def noiseless(task: Task) -> Comparison:
    """The display for y = <w, x> against the exact risk."""
    value, formula, energy = _on_every_weight(task, noiseless_risk)
    size = (task.dimension + 2) * energy + formula  # a mean of predictions carries the rounding error of each
    return rounded(equal(value, formula, size), conditioning(task))


def finite_training(loss: LinearAttentionLoss, start: LinearAttention) -> list[Hypothesis]:
    """N is finite: at N = inf, Gamma = Lambda and both sides of the bounds are equal."""
    return [hypothesis("N finite, so that Gamma > Lambda", loss.task.context_length, "<", jnp.inf)]


def noiseless_bound(
    covariance: Matrix, weight: Vector, context_length: ArrayLike, test_length: ArrayLike
) -> tuple[Scalar, Scalar]:
    """Both terms of the bound for y = <w, x>.

    They are (d+1) |w|^2_Lambda/M and (|w|^2_Lambda + 2 |w|^2 tr(Lambda) + |w|^2_{Lambda^-1} tr(Lambda)^2)/N^2.

    **Source:** zhang2023, display after Theorem 4.2.
    """
    d, trace = covariance.shape[0], jnp.trace(covariance)
    size = weight @ covariance @ weight
    inverse_size = weight @ jnp.linalg.solve(covariance, weight)
    train = size + 2 * trace * (weight @ weight) + trace**2 * inverse_size
    return (d + 1) * size / jnp.asarray(test_length, dtype=float), train / jnp.asarray(context_length, dtype=float) ** 2


@SECTION.claim(
    "theorem-4.2.noiseless-bound",
    "display after Theorem 4.2, second line",
    "For y = <w, x> the risk is at most (d+1) |w|^2_Lambda/M + "
    "(|w|^2_Lambda + 2 |w|^2 tr(Lambda) + |w|^2_{Lambda^-1} tr(Lambda)^2)/N^2",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=one_covariance,
    hypotheses=finite_training,
    problems=FINITE_LENGTHS,
    spaces=spaces.STILL,
)
@of_task
def noiseless_bounded(task: Task) -> Comparison:
    """The risk for y = <w, x> against the bound of the display."""
    value, bound, energy = _on_every_weight(task, noiseless_bound)
    return bounded(value, bound, energy, conditioning(task))


def averaged_bounds(covariance: Matrix, context_length: ArrayLike, test_length: ArrayLike) -> tuple[Scalar, Scalar]:
    """Both bounds on the risk averaged over w ~ N(0, I), the tighter first.

    They are (d+1) tr(Lambda)/M + (tr(Lambda) + 2d tr(Lambda) + tr(Lambda^-1) tr(Lambda)^2)/N^2, and the same with
    (1 + 2d + d^2 kappa) tr(Lambda)/N^2 as the last term.

    **Source:** zhang2023, display before Corollary 4.3.
    """
    values = jnp.linalg.eigvalsh(covariance)
    d, trace, N = covariance.shape[0], jnp.sum(values), jnp.asarray(context_length, dtype=float)
    test = (d + 1) * trace / jnp.asarray(test_length, dtype=float)
    train = (1 + 2 * d) * trace + jnp.sum(1 / values) * trace**2
    return test + train / N**2, test + conditioned_trace(values) / N**2


@SECTION.claim(
    "theorem-4.2.averaged-bound",
    "display before Corollary 4.3",
    "Averaged over w ~ N(0, I) the risk is at most (d+1) tr(Lambda)/M + (tr(Lambda) + 2d tr(Lambda) + "
    "tr(Lambda^-1) tr(Lambda)^2)/N^2 <= (d+1) tr(Lambda)/M + (1 + 2d + d^2 kappa) tr(Lambda)/N^2",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=one_covariance,
    hypotheses=finite_training,
    problems=FINITE_LENGTHS,
    spaces=spaces.STILL,
    note="The two bounds are equal at kappa = 1, where the second inequality is left out.",
)
@of_task
def averaged_bounded(task: Task) -> Comparison:
    """Risk <= first bound <= second bound; the two bounds are compared only where kappa > 1, as they are equal at 1."""
    found = two_routes(limit(task), task)

    def at(M):
        return found(M), *averaged_bounds(task.covariance, task.context_length, M)

    value, tight, loose = at_every_length(at)
    values = jnp.linalg.eigvalsh(task.covariance)
    anisotropic = values[-1] > (1 + 1e-9) * values[0]
    energy, amplified = jnp.sum(values), conditioning(task)
    of_bounds = rounded(at_most(tight, loose, promised=anisotropic), amplified)
    return joined([*(bounded(value, bound, energy, amplified) for bound in (tight, loose)), of_bounds])
