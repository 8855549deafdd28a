"""zhang2023's section 4.1: Theorem 4.1 on where training ends, and Theorem 4.2 on the risk there on new prompts."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from flowsim._core.types import Matrix, Scalar, Vector
from flowsim.claims.claim import Comparison, at_most, equal
from flowsim.claims.declaring import Section
from flowsim.claims.hypotheses import Hypothesis, hypothesis
from flowsim.claims.statements import joined, rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LinearAttentionLoss
from flowsim.losses.prompt_risk import best_linear_error
from flowsim.models import LinearAttention
from flowsim.papers.zhang2023 import spaces
from flowsim.papers.zhang2023.conditions import assumption, assumption_and_scale, isotropic, limit, one_covariance
from flowsim.papers.zhang2023.limits import distance_to_limit, limit_is_a_minimum
from flowsim.papers.zhang2023.literal import polynomial_rule
from flowsim.papers.zhang2023.problems import ALL_LENGTHS, FINITE_LENGTHS, FLOWS, ISOTROPIC, STILL, STILL_ONE
from flowsim.papers.zhang2023.prompts import (
    DEGREE,
    DRAWN_LENGTHS,
    at_every_length,
    bounded,
    conditioning,
    drawn_prompts,
    each,
    extreme_weights,
    polynomial_routes,
    polynomials,
    predicted,
    two_routes,
)
from flowsim.papers.zhang2023.section_3 import BEYOND
from flowsim.papers.zhang2023.section_5 import limit_constants
from flowsim.tasks import LinearRegression
from flowsim.tasks.joint_law import JointLaw

SECTION = Section("zhang2023", LinearAttention, setting=one_covariance)


@SECTION.on((BEYOND, *FLOWS), spaces.BALANCED).claim(
    "corollary-4.3.convergence", "Corollary 4.3, first sentence", hypotheses=assumption, constants=limit_constants
)
def tends_to_matrices(loss: LinearAttentionLoss, flow: Trajectory) -> Comparison:
    r"""From Assumption 3.3, with no condition on $\sigma$, gradient flow converges to the $W^{PV}$ and $W^{KQ}$ of
    (4.1)

    The corollary follows from Theorem 4.1, which requires sigma^2 |Gamma|_op sqrt(d) < 2. This condition is not needed:
    see assumption-3.3.scale.
    """
    inverse = jnp.linalg.inv(loss.task.gamma())
    fourth_root = jnp.trace(inverse @ inverse) ** 0.25
    return distance_to_limit(loss, flow, LinearAttention(inverse / fourth_root, fourth_root))


@SECTION.on(FLOWS, spaces.BALANCED).claim(
    "theorem-4.1", "Theorem 4.1", hypotheses=assumption_and_scale, constants=limit_constants
)
def tends_to_global_minimum_of_matrices(loss: LinearAttentionLoss, flow: Trajectory) -> Comparison:
    r"""Under Assumption 3.3 and $\sigma^2 \lVert \Gamma \rVert_{\mathrm{op}} \sqrt{d} < 2$, $W^{PV}$ and $W^{KQ}$ tend
    to (4.1), a global minimum

    The loss at the limit is compared with its minimum, which the normal equations give. They contain E[Lambdahat^2],
    computed by cubature.
    """
    return joined([tends_to_matrices.compare(loss, flow), limit_is_a_minimum(loss, flow)])


@SECTION.on((ISOTROPIC, STILL_ONE), spaces.PANEL).claim(
    "sec-4.1.isotropic", "remark after Theorem 4.1", hypotheses=isotropic
)
@eqx.filter_jit
def isotropic_limit(task: LinearRegression) -> Comparison:
    r"""For $\Lambda = I$ the limit has $u_{-1} U_{11} = \bigl(1 + (d + 1)/N\bigr)^{-1} I$

    For Lambda = lambda I the product is 1/lambda times this.
    """
    model, d = limit(task), task.dimension
    expected = jnp.eye(d) / (1 + (d + 1) / task.context_length) / task.covariance[0, 0]
    return equal(jnp.linalg.norm(model.u_minus1 * model.U11 - expected)[None], 0.0, jnp.linalg.norm(expected))


@SECTION.on(ALL_LENGTHS, spaces.STILL + spaces.STILL_INFINITE).claim("eq-4.2", "(4.2)")
@eqx.filter_jit
def prediction(task: LinearRegression) -> Comparison:
    r"""At (4.1) the prediction is $\hat y = x_{\mathrm{query}}^\top \Gamma^{-1} \bigl(\tfrac{1}{M} \sum x_i
    x_i^\top\bigr) w$, for every prompt and $M$

    Judged on the literal model with 12 prompts for each of M = 1 and M = 7, and w of size 1e-2 to 1e2.
    """

    def formula(queries, means, inverse):
        return jnp.einsum("pd,de,pe->p", queries, inverse, means)

    return joined([predicted(task, *drawn_prompts(task, length), formula) for length in DRAWN_LENGTHS])


Task = LinearRegression


def _inverse_gamma_squared(covariance: Matrix, context_length: Scalar) -> Matrix:
    inverse = jnp.linalg.inv(LinearRegression(covariance, context_length).gamma())
    return inverse @ inverse


def _training_part(covariance: Matrix, weight: Vector, readout: Matrix) -> Scalar:
    """N^2 times the last term of (4.6), with a = weight and readout = Gamma^-2 Lambda."""
    trace, once = jnp.trace(covariance), covariance @ weight
    return (
        once @ covariance @ readout @ weight
        + 2 * trace * (once @ readout @ weight)
        + trace**2 * weight @ readout @ weight
    )


def nonlinear_risk(law: JointLaw, context_length: ArrayLike, test_length: ArrayLike) -> tuple[Scalar, Scalar, Scalar]:
    """The three terms of (4.6): the best linear error, the term in 1/M and the term in 1/N^2.

    Let a = Lambda^-1 E[xy], let Sigma be the covariance of xy, and let R = Gamma^-2 Lambda. The last two terms are

    - tr(Sigma R)/M;
    - (|a|^2_{R Lambda^2} + 2 tr(Lambda) |a|^2_{R Lambda} + tr(Lambda)^2 |a|^2_R)/N^2.

    **Arguments:** law: D, the law of (x, y); context_length: N; test_length: M.

    **Source:** zhang2023, Theorem 4.2.
    """
    Lambda, N, M = law.covariance, jnp.asarray(context_length, dtype=float), jnp.asarray(test_length, dtype=float)
    readout = _inverse_gamma_squared(Lambda, N) @ Lambda
    train = _training_part(Lambda, law.best_weight, readout)
    return best_linear_error(law), jnp.trace(law.spread @ readout) / M, train / N**2


def finite_training(loss: LinearAttentionLoss, start: LinearAttention) -> list[Hypothesis]:
    """The hypothesis that N is finite. At N = inf, Gamma = Lambda and both sides of the bounds are equal."""
    return [hypothesis("N finite, so that Gamma > Lambda", loss.task.context_length, "<", jnp.inf)]


ON_ALL_LENGTHS = SECTION.on(ALL_LENGTHS, spaces.STILL + spaces.STILL_INFINITE)
ON_FINITE_LENGTHS = SECTION.on(FINITE_LENGTHS, spaces.STILL, hypotheses=finite_training)


@ON_ALL_LENGTHS.claim("theorem-4.2", "Theorem 4.2, (4.6)")
@eqx.filter_jit
def nonlinear(task: Task) -> Comparison:
    r"""$\mathbb{E}(\hat y - y_{\mathrm{query}})^2 = \text{error of the best linear predictor} +
    \frac{\operatorname{tr}(\Sigma \Gamma^{-2} \Lambda)}{M} + \tfrac{1}{N^2} \bigl(\lVert a \rVert^2_{\Gamma^{-2}
    \Lambda^3} + 2 \operatorname{tr}(\Lambda) \lVert a \rVert^2_{\Gamma^{-2} \Lambda^2} + \operatorname{tr}(\Lambda)^2
    \lVert a \rVert^2_{\Gamma^{-2} \Lambda}\bigr)$

    Judged on linear, noisy, quadratic (E[y] != 0) and cubic labels, at M = 1, 2, 7, 50, 1e4 and infinity. The exact
    risk is compared, and up to d = 4 also the literal model's risk by cubature. E[y^2] must be finite too. The printed
    hypotheses do not imply this: y may be large where x is small.
    """
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


@SECTION.on(STILL, spaces.STILL).claim("theorem-4.2.spread", "after Theorem 4.2")
@eqx.filter_jit
def spread_of_linear_labels(task: Task) -> Comparison:
    r"""For $y = \langle w, x \rangle$ the $\Sigma$ of (4.5) is $\lVert w \rVert^2_\Lambda \Lambda + \Lambda w w^\top
    \Lambda$

    Judged by cubature, for w along the extreme eigenvectors and for a random w.
    """
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
    """Risks for labels y = <w, x> and the values of a formula, at every w of `extreme_weights` and every M.

    **Arguments:** formula: (Lambda, w, N, M) -> the terms in 1/M and in 1/N^2.

    **Returns:** flat arrays of the risks, the sums of the terms, and E y^2.
    """
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
    """The two terms of the risk for labels y = <w, x>.

    The first is (|w|^2_{Gamma^-2 Lambda^3} + tr(Gamma^-2 Lambda^2) |w|^2_Lambda)/M. The second is the last term of
    (4.6) with a = w.

    **Source:** zhang2023, display after Theorem 4.2.
    """
    N, M = jnp.asarray(context_length, dtype=float), jnp.asarray(test_length, dtype=float)
    readout = _inverse_gamma_squared(covariance, N) @ covariance
    cubed = weight @ readout @ covariance @ covariance @ weight
    test = cubed + jnp.trace(readout @ covariance) * (weight @ covariance @ weight)
    return test / M, _training_part(covariance, weight, readout) / N**2


@ON_ALL_LENGTHS.claim("theorem-4.2.noiseless", "display after Theorem 4.2, first line")
@eqx.filter_jit
def noiseless(task: Task) -> Comparison:
    r"""For $y = \langle w, x \rangle$ the risk is $\frac{\lVert w \rVert^2_{\Gamma^{-2} \Lambda^3} +
    \operatorname{tr}(\Gamma^{-2} \Lambda^2) \lVert w \rVert^2_\Lambda}{M} + \tfrac{1}{N^2} \bigl(\lVert w
    \rVert^2_{\Gamma^{-2} \Lambda^3} + 2 \operatorname{tr}(\Lambda) \lVert w \rVert^2_{\Gamma^{-2} \Lambda^2} +
    \operatorname{tr}(\Lambda)^2 \lVert w \rVert^2_{\Gamma^{-2} \Lambda}\bigr)$
    """
    value, formula, energy = _on_every_weight(task, noiseless_risk)
    size = (task.dimension + 2) * energy + formula  # a mean of predictions carries the rounding error of each
    return rounded(equal(value, formula, size), conditioning(task))


def noiseless_bound(
    covariance: Matrix, weight: Vector, context_length: ArrayLike, test_length: ArrayLike
) -> tuple[Scalar, Scalar]:
    """The two terms of the bound on the risk for labels y = <w, x>.

    They are (d+1) |w|^2_Lambda/M and (|w|^2_Lambda + 2 |w|^2 tr(Lambda) + |w|^2_{Lambda^-1} tr(Lambda)^2)/N^2.

    **Source:** zhang2023, display after Theorem 4.2.
    """
    d, trace = covariance.shape[0], jnp.trace(covariance)
    size = weight @ covariance @ weight
    inverse_size = weight @ jnp.linalg.solve(covariance, weight)
    train = size + 2 * trace * (weight @ weight) + trace**2 * inverse_size
    return (d + 1) * size / jnp.asarray(test_length, dtype=float), train / jnp.asarray(context_length, dtype=float) ** 2


@ON_FINITE_LENGTHS.claim("theorem-4.2.noiseless-bound", "display after Theorem 4.2, second line")
@eqx.filter_jit
def noiseless_bounded(task: Task) -> Comparison:
    r"""For $y = \langle w, x \rangle$ the risk is at most $\frac{(d+1) \lVert w \rVert^2_\Lambda}{M} + \frac{\lVert w
    \rVert^2_\Lambda + 2 \lVert w \rVert^2 \operatorname{tr}(\Lambda) + \lVert w \rVert^2_{\Lambda^{-1}}
    \operatorname{tr}(\Lambda)^2}{N^2}$
    """
    value, bound, energy = _on_every_weight(task, noiseless_bound)
    return bounded(value, bound, energy, conditioning(task))


def conditioned_trace(eigenvalues: Vector) -> Scalar:
    """(1 + 2d + d^2 kappa) tr(Lambda), where kappa is the condition number of Lambda.

    **Arguments:** eigenvalues: (d,) of Lambda, in ascending order.
    """
    d = eigenvalues.shape[0]
    return (1 + 2 * d + d**2 * eigenvalues[-1] / eigenvalues[0]) * jnp.sum(eigenvalues)


def averaged_bounds(covariance: Matrix, context_length: ArrayLike, test_length: ArrayLike) -> tuple[Scalar, Scalar]:
    """The two bounds on the risk averaged over w ~ N(0, I). The first is the tighter one.

    The first is (d+1) tr(Lambda)/M + (tr(Lambda) + 2d tr(Lambda) + tr(Lambda^-1) tr(Lambda)^2)/N^2. In the second,
    the term in 1/N^2 is (1 + 2d + d^2 kappa) tr(Lambda)/N^2, where kappa is the condition number of Lambda.

    **Source:** zhang2023, display before Corollary 4.3.
    """
    values = jnp.linalg.eigvalsh(covariance)
    d, trace, N = covariance.shape[0], jnp.sum(values), jnp.asarray(context_length, dtype=float)
    test = (d + 1) * trace / jnp.asarray(test_length, dtype=float)
    train = (1 + 2 * d) * trace + jnp.sum(1 / values) * trace**2
    return test + train / N**2, test + conditioned_trace(values) / N**2


@ON_FINITE_LENGTHS.claim("theorem-4.2.averaged-bound", "display before Corollary 4.3")
@eqx.filter_jit
def averaged_bounded(task: Task) -> Comparison:
    r"""Averaged over $w \sim \mathcal{N}(0, I)$ the risk is at most $\frac{(d+1) \operatorname{tr}(\Lambda)}{M} +
    \frac{\operatorname{tr}(\Lambda) + 2d \operatorname{tr}(\Lambda) + \operatorname{tr}(\Lambda^{-1})
    \operatorname{tr}(\Lambda)^2}{N^2} \le \frac{(d+1) \operatorname{tr}(\Lambda)}{M} + \frac{(1 + 2d + d^2 \kappa)
    \operatorname{tr}(\Lambda)}{N^2}$

    At kappa = 1 the two bounds are equal, and the second inequality is not judged.
    """
    found = two_routes(limit(task), task)

    def at(M):
        return found(M), *averaged_bounds(task.covariance, task.context_length, M)

    value, tight, loose = at_every_length(at)
    values = jnp.linalg.eigvalsh(task.covariance)
    anisotropic = values[-1] > (1 + 1e-9) * values[0]
    energy, amplified = jnp.sum(values), conditioning(task)
    of_bounds = rounded(at_most(tight, loose, promised=anisotropic), amplified)
    return joined([*(bounded(value, bound, energy, amplified) for bound in (tight, loose)), of_bounds])
