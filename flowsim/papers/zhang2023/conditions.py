"""The settings of zhang2023's claims, the paper's conditions on a start, and the constants that follow from a start."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from flowsim._core import checks
from flowsim._core.types import Scalar
from flowsim.claims.hypotheses import ROUNDING, Hypothesis, agrees, hypothesis, unmet
from flowsim.losses import AbstractPopulationLoss, LinearAttentionLoss, RandomCovarianceLoss
from flowsim.losses.arrowhead import balanced_minimum
from flowsim.models import LinearAttention
from flowsim.tasks import LinearRegression, RandomCovarianceRegression
from flowsim.tasks.covariance_laws import DiagonalLaw


class AssumptionValues(NamedTuple):
    """The quantities in zhang2023's Assumption 3.3, with sigma = u_{-1}(0) and Theta Theta^T = U11(0)/sigma.

    size: |U11(0)|_F; norm: |Theta Theta^T|_F; asymmetry: |Theta Theta^T - (Theta Theta^T)^T|_F; smallest: the
    smallest eigenvalue of the symmetric part of U11(0), times the sign of sigma; theta_lambda: |Theta Lambda|_F, or
    |Theta E[Lambda]|_F for random covariances, as in Theorem 4.5; u12, u21: the norms of u12(0) and u21(0).
    """

    sigma: Scalar | float
    size: Scalar | float
    norm: Scalar | float
    asymmetry: Scalar | float
    smallest: Scalar | float
    theta_lambda: Scalar | float
    u12: Scalar | float
    u21: Scalar | float

    def hypotheses(self, mean: bool = False) -> list[Hypothesis]:
        """The parts of the assumption as hypotheses.

        **Arguments:** mean: whether covariances are random, so that the name of a part has E[Lambda] for Lambda.
        """
        theta_lambda = "Theta E[Lambda]" if mean else "Theta Lambda"
        return [
            hypothesis("sigma = u_minus1(0) > 0", self.sigma, ">", 0.0),
            agrees("|Theta Theta^T|_F = 1", self.norm, 1.0),
            agrees("Theta Theta^T symmetric", self.asymmetry, 0.0, self.norm),
            hypothesis("Theta Theta^T semidefinite", self.smallest, ">=", -ROUNDING * self.size),
            hypothesis(f"{theta_lambda} != 0", self.theta_lambda, ">", 0.0),
            agrees("u12(0) = 0", self.u12, 0.0, 0.0),
            agrees("u21(0) = 0", self.u21, 0.0, 0.0),
        ]


def assumption_3_3(task: LinearRegression | RandomCovarianceRegression, start: LinearAttention) -> list[Hypothesis]:
    """The parts of zhang2023's Assumption 3.3, with sigma = u_{-1}(0) and Theta Theta^T = U11(0)/sigma."""
    values = eqx.filter_jit(assumption_values)(task, start)
    if checks.is_concrete(values.size):
        values = jax.tree.map(float, values)  # comparing numbers compiles no program
    return values.hypotheses(mean=isinstance(task, RandomCovarianceRegression))


def assumption_values(task: LinearRegression | RandomCovarianceRegression, start: LinearAttention) -> AssumptionValues:
    """The quantities in Assumption 3.3, as pure JAX."""
    sigma, U = start.u_minus1, start.U11
    shape = U / jnp.where(sigma == 0, 1.0, sigma)
    smallest = jnp.linalg.eigvalsh((U + U.T) / 2)[0] * jnp.sign(sigma)
    theta_lambda = jnp.sqrt(jnp.maximum(_theta_lambda_sq(task, start), 0.0))
    size, norm, asymmetry = (jnp.linalg.norm(x) for x in (U, shape, shape - shape.T))
    u12, u21 = jnp.linalg.norm(start.u12), jnp.linalg.norm(start.u21)
    return AssumptionValues(sigma, size, norm, asymmetry, smallest, theta_lambda, u12, u21)


def scale_condition(task: LinearRegression, start: LinearAttention) -> Hypothesis:
    """The scale condition sigma^2 |Gamma|_op sqrt(d) < 2. **Source:** zhang2023, Theorem 4.1."""
    return scale_hypothesis(eqx.filter_jit(scale_value)(task, start))


def scale_hypothesis(value: Scalar | float) -> Hypothesis:
    """The condition sigma^2 |Gamma|_op sqrt(d) < 2, given the value of its left side."""
    return hypothesis("sigma^2 |Gamma|_op sqrt(d) < 2", value, "<", 2.0)


def scale_value(task: LinearRegression, start: LinearAttention) -> Scalar:
    """The left side of the scale condition, sigma^2 |Gamma|_op sqrt(d)."""
    return start.u_minus1**2 * LinearAttentionLoss(task).gamma_eigenvalues[-1] * jnp.sqrt(task.dimension)


def pl_constant(task: LinearRegression, start: LinearAttention) -> Scalar:
    """The constant mu of the PL inequality, positive under the scale condition.

    mu = sigma^2 |Lambda Theta|_F^2 (2 - sqrt(d) sigma^2 |Gamma|_op) / (sqrt(d) |Lambda|_op^2 tr(Gamma^-1 Lambda^-1)
    tr(Lambda^-1)). **Source:** zhang2023 (5.7).
    """
    loss = LinearAttentionLoss(task)
    lam, gam = loss.eigenvalues, loss.gamma_eigenvalues
    return 2 * u_lower_bound_sq(task, start) / (jnp.sum(1 / (gam * lam)) * jnp.sum(1 / lam))


def u_lower_bound_sq(task: LinearRegression, start: LinearAttention) -> Scalar:
    """The square of the lower bound on u_{-1}(t).

    It is sigma^2 |Lambda Theta|_F^2 (2 - sqrt(d) sigma^2 |Gamma|_op) / (2 sqrt(d) |Lambda|_op^2).

    **Source:** zhang2023 (A.14). Its root is over the whole product, as (A.15) shows.
    """
    lam = LinearAttentionLoss(task).eigenvalues
    margin = 2 - scale_value(task, start)
    return start.u_minus1**2 * _theta_lambda_sq(task, start) * margin / (2 * jnp.sqrt(task.dimension) * lam[-1] ** 2)


def limit(task: LinearRegression) -> LinearAttention:
    """The limit of the flow: u_{-1} = |Gamma^-1|_F^{1/2} and U11 = |Gamma^-1|_F^{-1/2} Gamma^-1.

    **Source:** zhang2023 (5.9).
    """
    return balanced_minimum(LinearAttentionLoss(task).structure)


def random_scale_condition(loss: RandomCovarianceLoss, start: LinearAttention) -> Hypothesis:
    """The scale condition sigma^2 sqrt(d) E[|Gamma_tau|_op |Lambda_tau|_F^2] < 2 |E[Lambda_tau] Theta|_F^2.

    **Source:** zhang2023 (4.11), (C.10).
    """
    left, right = eqx.filter_jit(random_scale_sides)(loss, start)
    return hypothesis("sigma^2 sqrt(d) E[|Gamma|_op |Lambda|_F^2] < 2 |E[Lambda] Theta|_F^2", left, "<", right)


def random_scale_bound(loss: RandomCovarianceLoss, start: LinearAttention) -> Scalar:
    """The bound (4.11) on sigma, sqrt(2 |E[Lambda_tau] Theta|_F^2 / (sqrt(d) E[|Gamma_tau|_op |Lambda_tau|_F^2]))."""
    return jnp.sqrt(2 * _theta_lambda_sq(loss.task, start) / (jnp.sqrt(loss.task.dimension) * loss.operator_energy))


def random_u_lower_bound_sq(loss: RandomCovarianceLoss, start: LinearAttention) -> Scalar:
    """The square of the lower bound on u_{-1}(t) for random covariances.

    It is sigma^2 (2 |E[Lambda_tau] Theta|_F^2 - sqrt(d) sigma^2 E[|Gamma_tau|_op |Lambda_tau|_F^2]) / (2 sqrt(d)
    |E[Lambda_tau^2]|_op). **Source:** zhang2023 (C.12).
    """
    left, right = random_scale_sides(loss, start)
    return start.u_minus1**2 * (right - left) / (2 * jnp.sqrt(loss.task.dimension) * jnp.max(loss.structure.drive))


def random_pl_constant(loss: RandomCovarianceLoss, start: LinearAttention) -> Scalar:
    """The constant nu of the PL inequality for random covariances.

    nu is eta = min(gamma_i, zeta_ij) times the square of the lower bound on u_{-1}(t), `random_u_lower_bound_sq`.

    **Source:** zhang2023, Lemma C.8 (C.13).
    """
    return jnp.min(loss.structure.curvature) * random_u_lower_bound_sq(loss, start)


def random_scale_sides(loss: RandomCovarianceLoss, start: LinearAttention) -> tuple[Scalar, Scalar]:
    """The left and the right side of the condition in `random_scale_condition`."""
    left = start.u_minus1**2 * jnp.sqrt(loss.task.dimension) * loss.operator_energy
    return left, 2 * _theta_lambda_sq(loss.task, start)


def _theta_lambda_sq(task: LinearRegression | RandomCovarianceRegression, start: LinearAttention) -> Scalar:
    """|Theta Lambda|_F^2 = tr(Lambda^2 Theta Theta^T), where Lambda is the mean covariance."""
    mean = task.mean_covariance
    weighted = jnp.trace(mean @ mean @ start.U11)
    return weighted / jnp.where(start.u_minus1 == 0, 1.0, start.u_minus1)


_LOOKED_AT = (1e-3, 30.0, 32)  # where a law is compared with Exponential(1)


def one_covariance(loss: AbstractPopulationLoss) -> Hypothesis | None:
    """None if every prompt has the same covariance, as in all parts of the paper but section 4.3 and appendix C.

    Otherwise the unmet hypothesis.
    """
    fixed = isinstance(loss, LinearAttentionLoss)
    return None if fixed else unmet("one covariance for all prompts")


def random_covariances(loss: AbstractPopulationLoss) -> Hypothesis | None:
    """None if every prompt has a random covariance of any law, as in Lemma C.1.

    Otherwise the unmet hypothesis.
    """
    drawn = isinstance(loss, RandomCovarianceLoss)
    return None if drawn else unmet("a covariance drawn anew for every prompt")


def independent_variances(loss: AbstractPopulationLoss) -> Hypothesis | None:
    """None if every prompt has a random diagonal covariance with independent entries, as in Theorem 4.5.

    Otherwise the unmet hypothesis.
    """
    diagonal = isinstance(loss, RandomCovarianceLoss) and isinstance(loss.task.law, DiagonalLaw)
    return None if diagonal else unmet("diagonal covariances, drawn anew for every prompt")


def assumption(loss: LinearAttentionLoss | RandomCovarianceLoss, start: LinearAttention) -> list[Hypothesis]:
    """The parts of Assumption 3.3 as hypotheses."""
    return assumption_3_3(loss.task, start)


def assumption_and_scale(loss: LinearAttentionLoss, start: LinearAttention) -> list[Hypothesis]:
    """Assumption 3.3 and the scale condition of Theorem 4.1."""
    return [*assumption_3_3(loss.task, start), scale_condition(loss.task, start)]


def assumption_and_random_scale(loss: RandomCovarianceLoss, start: LinearAttention) -> list[Hypothesis]:
    """Assumption 3.3 and the scale condition (4.11), which is (C.10)."""
    return [*assumption_3_3(loss.task, start), random_scale_condition(loss, start)]


def isotropic(loss: LinearAttentionLoss, start: LinearAttention) -> list[Hypothesis]:
    """The hypothesis that the variance is the same in all directions, as in Figure 1."""
    return [agrees("lambda_max/lambda_min = 1", loss.eigenvalues[-1] / loss.eigenvalues[0], 1.0)]


def exponential_and_long(loss: RandomCovarianceLoss, start: LinearAttention) -> list[Hypothesis]:
    """The hypotheses that variances are Exponential(1), and that N is infinite.

    The distribution function of each variance is compared with 1 - e^{-x} at 32 points.
    """
    law = loss.task.law
    assert isinstance(law, DiagonalLaw), "the setting of the claim"
    x = jnp.geomspace(*_LOOKED_AT)
    below = jnp.concatenate([part.distribution(x) for part in law.coordinates], axis=1)
    gap = jnp.max(jnp.abs(below + jnp.expm1(-x)[:, None]))
    known = agrees("Exponential(1) variances, largest difference of P(lambda <= x)", gap, 0.0)
    return [known, hypothesis("N infinite", loss.task.context_length, ">=", jnp.inf)]
