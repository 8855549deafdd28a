"""Steps of zhang2023's proofs and remarks that stand on their own: sections 4.1, 4.3 and appendices A, B, C and D."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from flowsim.claims.claim import Claim, Comparison, Relation, at_most, equal
from flowsim.claims.rates import exponential_envelope
from flowsim.claims.statements import of_task, rounded
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LinearAttentionLoss, RandomCovarianceLoss
from flowsim.losses.arrowhead import balanced_minimum
from flowsim.models import LinearAttention
from flowsim.papers.zhang2023 import spaces
from flowsim.papers.zhang2023.claims import PROBLEMS
from flowsim.papers.zhang2023.comparisons import assumption, assumption_and_scale, one_covariance, over_models
from flowsim.papers.zhang2023.conditions import limit, random_pl_constant
from flowsim.papers.zhang2023.figure_1 import isotropic
from flowsim.papers.zhang2023.literal import polynomial_rule, second_moment
from flowsim.papers.zhang2023.minima import literal_loss
from flowsim.papers.zhang2023.new_prompts import polynomials
from flowsim.papers.zhang2023.problems import ISOTROPIC, NEAR_SINGULAR, STILL_EASY, STILL_HARD, STILL_ONE
from flowsim.papers.zhang2023.random_covariance import assumption_and_scale as random_assumption_and_scale
from flowsim.papers.zhang2023.random_covariance import independent_variances, matrix_loss
from flowsim.papers.zhang2023.random_covariance_claims import PROBLEMS as RANDOM_PROBLEMS
from flowsim.tasks import LinearRegression, Prompt

_DRAWN = 12


# Sections 4.1 and 4.3


@of_task
def isotropic_limit(task: LinearRegression) -> Comparison:
    """u_{-1} U11 at (4.1) against (1 + (d + 1)/N)^{-1} I/lambda for Lambda = lambda I."""
    model, d = limit(task), task.dimension
    expected = jnp.eye(d) / (1 + (d + 1) / task.context_length) / task.covariance[0, 0]
    return equal(jnp.linalg.norm(model.u_minus1 * model.U11 - expected)[None], 0.0, jnp.linalg.norm(expected))


@of_task
def spread_of_linear_labels(task: LinearRegression) -> Comparison:
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


def random_prediction(loss: RandomCovarianceLoss, trajectory: Trajectory) -> Comparison:
    """The literal model (4.12) on prompts against x_query^T E[Lambda^2] E[Gamma Lambda^2]^-1 S w with S the mean of
    x_i x_i^T, and on examples with S = Lambda_new against the limit.
    """
    return _random_prediction(loss)


@eqx.filter_jit
def _random_prediction(loss: RandomCovarianceLoss) -> Comparison:
    n, d, model = 1 / loss.task.context_length, loss.task.dimension, balanced_minimum(loss.structure)

    def moments(Lambda):
        gamma = (1 + n) * Lambda + n * jnp.trace(Lambda) * jnp.eye(d)
        return gamma @ Lambda @ Lambda, Lambda @ Lambda

    cubic, square = loss.task.law.expectation(moments)
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


# Appendix A


@of_task
def mean_square_of_sample_covariance(task: LinearRegression) -> Comparison:
    """E[Lambdahat^2] by cubature against (N+1)/N Lambda^2 + tr(Lambda) Lambda/N, and Gamma Lambda."""
    Lambda, N = task.covariance, task.context_length
    printed = (1 + 1 / N) * Lambda @ Lambda + jnp.trace(Lambda) / N * Lambda
    distances = [jnp.linalg.norm(second_moment(task) - each) for each in (printed, task.gamma() @ Lambda)]
    size = jnp.linalg.norm(Lambda) * jnp.trace(Lambda)
    return rounded(equal(jnp.stack(distances), 0.0, size), jnp.asarray(float(task.dimension)))


def _residual(loss: LinearAttentionLoss, model: LinearAttention) -> tuple[Array, Array]:
    """|Gamma Lambda^{1/2} (u Lambda^{1/2} U11 Lambda^{1/2} - Lambda Gamma^-1) Lambda^{1/2}|_F^2, and its size."""
    Lambda, Gamma = loss.task.covariance, loss.task.gamma()
    values, vectors = jnp.linalg.eigh(Lambda)
    root = (vectors * jnp.sqrt(values)[None, :]) @ vectors.T
    grown, target = model.u_minus1 * root @ model.U11 @ root, Lambda @ jnp.linalg.inv(Gamma)
    size = jnp.sum((Gamma @ root @ grown @ root) ** 2) + jnp.sum((Lambda @ Lambda) ** 2)
    return jnp.sum((Gamma @ root @ (grown - target) @ root) ** 2), size


def slope_of_the_matrix(loss: LinearAttentionLoss, trajectory: Trajectory) -> Comparison:
    """(A.15): |dl/dU11|_F^2 of the exact loss against u^2 times the square."""

    def sides(model):
        square, size = _residual(loss, model)
        slope = jnp.sum(loss.gradient(model).U11 ** 2)
        return slope, model.u_minus1**2 * square, model.u_minus1**2 * size

    return equal(*over_models(sides, trajectory))


def excess_by_the_slope(loss: LinearAttentionLoss, trajectory: Trajectory) -> Comparison:
    """(A.16): l - min l <= (1/2) (|dl/dU11|_F^2/u^2) tr(Gamma^-1 Lambda^-1) tr(Lambda^-1), its square by (A.15).

    At d = 1 the two are equal.
    """
    lam, gam = jnp.linalg.eigvalsh(loss.task.covariance), jnp.linalg.eigvalsh(loss.task.gamma())
    factor = jnp.sum(1 / (gam * lam)) * jnp.sum(1 / lam) / 2

    def bound(model):
        return factor * jnp.sum(loss.gradient(model).U11 ** 2) / model.u_minus1**2

    promised = (trajectory.excess > 0) & (loss.task.dimension > 1)
    return at_most(trajectory.excess, over_models(bound, trajectory), promised=promised)


def starts_below_the_saddle(loss: LinearAttentionLoss, trajectory: Trajectory) -> Comparison:
    """l at the start by cubature against (sigma^2/2) |Lambda Theta|_F^2 (sqrt(d) sigma^2 |Gamma|_op - 2).

    At d = 1 the two are equal.
    """
    start, Lambda, d = trajectory.start, loss.task.covariance, loss.task.dimension
    value = literal_loss(loss.task, start.u_minus1 * start.U11)
    square = jnp.trace(Lambda @ Lambda @ start.U11) / start.u_minus1
    operator = jnp.linalg.eigvalsh(loss.task.gamma())[-1]
    bound = start.u_minus1**2 / 2 * square * (jnp.sqrt(float(d)) * start.u_minus1**2 * operator - 2)
    size = start.u_minus1**2 * square
    return at_most(value[None], bound[None], size=size, promised=jnp.asarray([d > 1]))


# Appendix C


def random_start_below_the_saddle(loss: RandomCovarianceLoss, trajectory: Trajectory) -> Comparison:
    """l_rdm at the start against sigma^4 sqrt(d)/2 E[|Gamma|_op |Lambda|_F^2] - sigma^2 |E[Lambda] Theta|_F^2."""
    start, mean = trajectory.start, loss.task.mean_covariance
    sigma, d = start.u_minus1, loss.task.dimension
    square = jnp.trace(mean @ mean @ start.U11) / sigma
    bound = sigma**4 * jnp.sqrt(float(d)) / 2 * loss.operator_energy - sigma**2 * square
    return at_most(matrix_loss(loss, start)[None], bound[None], size=sigma**2 * square)


def random_rate(loss: RandomCovarianceLoss, trajectory: Trajectory) -> Comparison:
    """The exponential bound of the proof of Lemma C.8."""
    return exponential_envelope(trajectory, random_pl_constant(loss, trajectory.start))


# Appendix D


def _derivatives(d: int) -> list[tuple[Array, Array]]:
    """Both sides of the six identities of Lemma D.1, on drawn matrices of d, d + 1 and d + 2 rows."""
    rng = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(rng.standard_normal(shape))
    vec = lambda matrix: matrix.T.reshape(-1)
    square, x, A, B = normal(d, d), normal(d), normal(d + 2, d), normal(d + 1, d + 1)
    X, C, tall, wide = normal(d, d + 1), normal(d, d + 2), normal(d, d + 1), normal(d + 1, d + 2)
    return [
        (jax.grad(lambda x: x @ square @ x)(x), (square + square.T) @ x),
        (vec(A @ X @ wide), jnp.kron(wide.T, A) @ vec(X)),
        (jnp.trace(tall.T @ X)[None], (vec(tall) @ vec(X))[None]),
        (jax.grad(lambda X: jnp.trace(X @ B @ X.T))(X), X @ B.T + X @ B),
        (jax.grad(lambda X: jnp.trace(tall @ X.T))(X), tall),
        (jax.grad(lambda X: jnp.trace(A @ X @ B @ X.T @ C))(X), A.T @ C.T @ X @ B.T + C @ A @ X @ B),
    ]


@of_task
def matrix_calculus(task: LinearRegression) -> Comparison:
    """Derivatives by automatic differentiation, and vectors stacked, against Lemma D.1."""
    pairs = _derivatives(task.dimension)
    distances = jnp.stack([jnp.linalg.norm(left - right) for left, right in pairs])
    sizes = jnp.stack([jnp.linalg.norm(right) for _, right in pairs]) * (task.dimension + 2.0)
    return equal(distances, 0.0, sizes)


def _claim(part: str, source: str, statement: str, compare, **options) -> Claim:
    return Claim(f"zhang2023.{part}", f"zhang2023, {source}", statement, compare, **options)


_STILL = {
    "along_flow": False,
    "setting": one_covariance,
    "spaces": spaces.STILL,
    "problems": (STILL_EASY, STILL_HARD, NEAR_SINGULAR, ISOTROPIC, STILL_ONE),
    "relation": Relation.IDENTITY,
}
_FLOW = {"setting": one_covariance, "spaces": spaces.BALANCED, "problems": PROBLEMS}
_RANDOM = {"setting": independent_variances, "spaces": spaces.RANDOM, "problems": RANDOM_PROBLEMS}
_SEVERAL = PROBLEMS[:3]  # dimensions
_AT_ONE = "At d = 1 the two sides are equal, and nothing is judged."

CLAIMS: tuple[Claim, ...] = (
    _claim(
        "sec-4.1.isotropic",
        "remark after Theorem 4.1",
        "For Lambda = I the limit has u_{-1} U11 = (1 + (d + 1)/N)^{-1} I",
        isotropic_limit,
        hypotheses=isotropic,
        **_STILL | {"problems": (ISOTROPIC, STILL_ONE), "spaces": spaces.PANEL},
        note="For a multiple of I it is that multiple's inverse as often.",
    ),
    _claim(
        "theorem-4.2.spread",
        "after Theorem 4.2",
        "For y = <w, x> the Sigma of (4.5) is |w|^2_Lambda Lambda + Lambda w w^T Lambda",
        spread_of_linear_labels,
        **_STILL,
        note="By cubature, for w along the extreme eigenvectors and a random one.",
    ),
    _claim(
        "eq-4.13",
        "(4.13)",
        "At (4.12) the prediction is x_query^T E[Lambda^2] E[Gamma Lambda^2]^-1 ((1/M) sum x_i x_i^T) w, which tends "
        "to that with Lambda_new in place of the mean",
        random_prediction,
        **_RANDOM | {"along_flow": False, "relation": Relation.IDENTITY},
        note="Judged on the literal model with 12 drawn prompts, and for the limit on examples whose mean is "
        "Lambda_new.",
    ),
    _claim(
        "eq-a.7",
        "before (A.7)",
        "E[Lambdahat^2] = (N + 1)/N Lambda^2 + tr(Lambda) Lambda/N = Gamma Lambda",
        mean_square_of_sample_covariance,
        **_STILL,
        note="The expectation by a cubature that is exact for it.",
    ),
    _claim(
        "eq-a.15",
        "(A.15)",
        "|dl/dU11|_F^2 = u_{-1}^2 |Gamma Lambda^{1/2} (u_{-1} Lambda^{1/2} U11 Lambda^{1/2} - Lambda Gamma^-1) "
        "Lambda^{1/2}|_F^2",
        slope_of_the_matrix,
        relation=Relation.IDENTITY,
        hypotheses=assumption,
        **_FLOW,
        note="The gradient is that of the exact loss, by automatic differentiation.",
    ),
    _claim(
        "eq-a.16",
        "(A.16)",
        "l - min l <= (1/2) |Gamma Lambda^{1/2} (u_{-1} Lambda^{1/2} U11 Lambda^{1/2} - Lambda Gamma^-1) "
        "Lambda^{1/2}|_F^2 tr(Gamma^-1 Lambda^-1) tr(Lambda^-1)",
        excess_by_the_slope,
        hypotheses=assumption,
        **_FLOW | {"problems": _SEVERAL},
        note=f"With the square by (A.15). {_AT_ONE}",
    ),
    _claim(
        "lemma-a.4.start",
        "proof of Lemma A.4",
        "l(0) <= (sigma^2/2) |Lambda Theta|_F^2 (sqrt(d) sigma^2 |Gamma|_op - 2), which is below the saddle's 0",
        starts_below_the_saddle,
        hypotheses=assumption_and_scale,
        **_FLOW | {"problems": _SEVERAL, "along_flow": False},
        note=_AT_ONE,
    ),
    _claim(
        "lemma-c.6.start",
        "proof of Lemma C.6",
        "l_rdm(0) <= sigma^4 sqrt(d)/2 E[|Gamma|_op |Lambda|_F^2] - sigma^2 |E[Lambda] Theta|_F^2",
        random_start_below_the_saddle,
        hypotheses=random_assumption_and_scale,
        **_RANDOM | {"along_flow": False},
    ),
    _claim(
        "lemma-c.8.rate",
        "proof of Lemma C.8",
        "l_rdm(t) - min l_rdm <= e^{-nu t} (l_rdm(0) - min l_rdm), with nu of (C.13)",
        random_rate,
        hypotheses=random_assumption_and_scale,
        **_RANDOM,
    ),
    _claim(
        "lemma-d.1",
        "Lemma D.1",
        "The derivatives of x^T B x, tr(X B X^T), tr(A X^T) and tr(A X B X^T C); Vec(A X B) = (B^T (x) A) Vec(X); and "
        "tr(A^T B) = Vec(A)^T Vec(B)",
        matrix_calculus,
        **_STILL,
        note="Judged on drawn matrices of d, d + 1 and d + 2 rows.",
    ),
)
