"""Starts of a flow, the conditions a theorem puts on them, and what follows from the start alone."""

import dataclasses
import math
import operator
from collections.abc import Iterable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from flowsim import _checks
from flowsim.losses import LinearAttentionLoss, RandomCovarianceLoss
from flowsim.losses.arrowhead import AbstractArrowhead
from flowsim.models import LinearAttention
from flowsim.tasks import LinearRegression, RandomCovarianceRegression

Scalar = Float[Array, ""]
Seed = int | Int[Array, ""]

_RELATIONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_ROUNDING = 1e-12


def balanced(scale: ArrayLike, theta: ArrayLike | Iterable) -> LinearAttention:
    """u_{-1} = sigma, U11 = sigma Theta Theta^T with Theta Theta^T = M M^T / |M M^T|_F.

    **Arguments:** scale: sigma > 0; theta: (d, r) M, not zero.

    **Raises:** `ValueError` naming the argument.

    **Source:** zhang2023, Assumption 3.3 and the remark after it.
    """
    return _start(scale, _gram(theta), normalised=True)


def balanced_indefinite(scale: ArrayLike, theta: ArrayLike | Iterable) -> LinearAttention:
    """Balanced, |U11|_F = u_{-1} = sigma, but U11 = sigma sym(M)/|sym(M)|_F need not be semidefinite; M (d, d)."""
    matrix = _checks.square("theta", _checks.as_array("theta", theta, (None, None)))
    return _start(scale, (matrix + matrix.T) / 2, normalised=True)


def unbalanced(scale: ArrayLike, theta: ArrayLike | Iterable) -> LinearAttention:
    """u_{-1} = sigma, U11 = sigma M M^T, not normalised: what Assumption 3.3 leaves out; M (d, r)."""
    return _start(scale, _gram(theta), normalised=False)


def zeros(dimension: int) -> LinearAttention:
    """Every weight zero: the saddle itself."""
    return LinearAttention(jnp.zeros((dimension, dimension)), 0.0)


def scaled_identity(scale: ArrayLike, dimension: int) -> LinearAttention:
    """Balanced with Theta Theta^T = I / sqrt(d)."""
    return _start(scale, jnp.eye(dimension), normalised=True)


def random(scale: ArrayLike, dimension: int, seed: Seed) -> LinearAttention:
    """Every entry of every weight sigma N(0, 1), u12 and u21 included; one key a weight."""
    sigma = _checks.positive("scale", scale)
    keys = jax.random.split(jax.random.key(seed), 4)
    shapes = ((dimension, dimension), (), (dimension,), (dimension,))
    return LinearAttention(*(sigma * jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)))


def random_theta(dimension: int, rank: int, seed: Seed) -> Float[Array, "d r"]:
    """M with independent standard normal entries.

    **Raises:** `ValueError` unless 1 <= rank <= dimension.
    """
    if not 1 <= rank <= dimension:
        _checks.fail("rank", f"between 1 and the dimension {dimension}", f"it is {rank}")
    return jax.random.normal(jax.random.key(seed), (dimension, rank))


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """One condition of a statement, with both of its sides: ``value relation bound``; traced in a transformation."""

    name: str
    value: float | Scalar
    relation: str
    bound: float | Scalar
    met: bool | Bool[Array, ""]

    @property
    def unknown(self) -> bool:
        """Whether a side is not known."""
        return math.isnan(self.value) or math.isnan(self.bound)


def hypothesis(name: str, value: Scalar | float, relation: str, bound: Scalar | float) -> Hypothesis:
    """A condition with one of the relations <, <=, >, >=, decided in float64."""
    if not (_checks.is_concrete(value) and _checks.is_concrete(bound)):
        return Hypothesis(name, value, relation, bound, _RELATIONS[relation](value, bound))
    left, right = float(value), float(bound)
    return Hypothesis(name, left, relation, right, bool(_RELATIONS[relation](left, right)))


def agrees(name: str, value: Scalar | float, bound: Scalar | float, size: Scalar | float = 1.0) -> Hypothesis:
    """A condition ``value = bound``, met to within rounding of the given size."""
    if not all(map(_checks.is_concrete, (value, bound, size))):
        return Hypothesis(name, value, "=", bound, jnp.abs(value - bound) <= _ROUNDING * size)
    left, right = float(value), float(bound)
    return Hypothesis(name, left, "=", right, bool(abs(left - right) <= _ROUNDING * float(size)))


class AssumptionValues(NamedTuple):
    """What zhang2023's Assumption 3.3 speaks of, with sigma = u_{-1}(0) and Theta Theta^T = U11(0)/sigma.

    size: |U11(0)|_F; norm, asymmetry: Frobenius norms of Theta Theta^T and of what it differs by from its transpose;
    smallest: the smallest eigenvalue of U11(0), times the sign of sigma; theta_lambda: |Theta Lambda|_F, where random
    covariances enter by their mean, as in Theorem 4.5.
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
        """The parts of the assumption; mean: whether the covariances are random."""
        theta_lambda = "Theta E[Lambda]" if mean else "Theta Lambda"
        return [
            hypothesis("sigma = u_minus1(0) > 0", self.sigma, ">", 0.0),
            agrees("|Theta Theta^T|_F = 1", self.norm, 1.0),
            agrees("Theta Theta^T symmetric", self.asymmetry, 0.0, self.norm),
            hypothesis("Theta Theta^T semidefinite", self.smallest, ">=", -_ROUNDING * self.size),
            hypothesis(f"{theta_lambda} != 0", self.theta_lambda, ">", 0.0),
            agrees("u12(0) = 0", self.u12, 0.0, 0.0),
            agrees("u21(0) = 0", self.u21, 0.0, 0.0),
        ]


def assumption_3_3(task: LinearRegression | RandomCovarianceRegression, start: LinearAttention) -> list[Hypothesis]:
    """The parts of zhang2023's Assumption 3.3, with sigma = u_{-1}(0) and Theta Theta^T = U11(0)/sigma."""
    values = eqx.filter_jit(assumption_values)(task, start)
    return values.hypotheses(mean=isinstance(task, RandomCovarianceRegression))


def assumption_values(task: LinearRegression | RandomCovarianceRegression, start: LinearAttention) -> AssumptionValues:
    """The two sides of the assumption's parts, as pure JAX."""
    sigma, U = start.u_minus1, start.U11
    shape = U / jnp.where(sigma == 0, 1.0, sigma)
    smallest = jnp.linalg.eigvalsh((U + U.T) / 2)[0] * jnp.sign(sigma)
    theta_lambda = jnp.sqrt(jnp.maximum(_theta_lambda_sq(task, start), 0.0))
    size, norm, asymmetry = (jnp.linalg.norm(x) for x in (U, shape, shape - shape.T))
    u12, u21 = jnp.linalg.norm(start.u12), jnp.linalg.norm(start.u21)
    return AssumptionValues(sigma, size, norm, asymmetry, smallest, theta_lambda, u12, u21)


def scale_condition(task: LinearRegression, start: LinearAttention) -> Hypothesis:
    """sigma^2 |Gamma|_op sqrt(d) < 2. **Source:** zhang2023, Theorem 4.1."""
    return scale_hypothesis(eqx.filter_jit(scale_value)(task, start))


def scale_hypothesis(value: Scalar | float) -> Hypothesis:
    """The condition of `scale_condition`, from the value of its left side."""
    return hypothesis("sigma^2 |Gamma|_op sqrt(d) < 2", value, "<", 2.0)


def scale_value(task: LinearRegression, start: LinearAttention) -> Scalar:
    """sigma^2 |Gamma|_op sqrt(d)."""
    return start.u_minus1**2 * LinearAttentionLoss(task).gamma_eigenvalues[-1] * jnp.sqrt(task.dimension)


def pl_constant(task: LinearRegression, start: LinearAttention) -> Scalar:
    """mu = sigma^2 |Lambda Theta|_F^2 (2 - sqrt(d) sigma^2 |Gamma|_op) / (sqrt(d) |Lambda|_op^2 tr(Gamma^-1 Lambda^-1)
    tr(Lambda^-1)), positive under the scale condition. **Source:** zhang2023 (5.7).
    """
    loss = LinearAttentionLoss(task)
    lam, gam = loss.eigenvalues, loss.gamma_eigenvalues
    return 2 * u_lower_bound_sq(task, start) / (jnp.sum(1 / (gam * lam)) * jnp.sum(1 / lam))


def u_lower_bound_sq(task: LinearRegression, start: LinearAttention) -> Scalar:
    """sigma^2 |Lambda Theta|_F^2 (2 - sqrt(d) sigma^2 |Gamma|_op) / (2 sqrt(d) |Lambda|_op^2), the square of the
    bound on u_{-1}(t). **Source:** zhang2023 (A.14), whose root spans the whole product, as (A.15) shows.
    """
    lam = LinearAttentionLoss(task).eigenvalues
    margin = 2 - scale_value(task, start)
    return start.u_minus1**2 * _theta_lambda_sq(task, start) * margin / (2 * jnp.sqrt(task.dimension) * lam[-1] ** 2)


def limit(task: LinearRegression) -> LinearAttention:
    """u_{-1} = |Gamma^-1|_F^{1/2}, U11 = |Gamma^-1|_F^{-1/2} Gamma^-1. **Source:** zhang2023 (5.9)."""
    return balanced_minimum(LinearAttentionLoss(task).structure)


def balanced_minimum(structure: AbstractArrowhead) -> LinearAttention:
    """The global minimum with u_{-1} = |U11|_F: u_{-1} = |T|_F^{1/2}, U11 = T/u_{-1} with the best T = u_{-1} U11.

    T = Gamma^-1 with one covariance, diag(xi_i/gamma_i) with random diagonal ones. **Source:** zhang2023 (5.9), (4.12).
    """
    u = jnp.sqrt(jnp.linalg.norm(structure.target))
    return LinearAttention(structure.matrix(jnp.diag(structure.target)) / u, u)


def local_rate(structure: AbstractArrowhead) -> Scalar:
    """The rate r of excess ~ e^{-r t} near `balanced_minimum`: twice the Hessian's smallest positive eigenvalue there.

    The Hessian is u^2 a_ij off the diagonal of U and an arrowhead of size n + 1 on it, whose zero eigenvalue is the
    direction (U11, -u_{-1}) along the minima.
    """
    a, b, target = structure.curvature, structure.drive, structure.target
    n = b.size
    u_squared = jnp.linalg.norm(target)
    shaft = jnp.diag(jnp.append(u_squared * jnp.diagonal(a), jnp.sum(b * target) / u_squared))
    shaft = shaft.at[:n, n].set(b).at[n, :n].set(b)
    smallest = jnp.linalg.eigvalsh(shaft)[1]
    off = jnp.min(jnp.where(jnp.eye(n, dtype=bool), jnp.inf, u_squared * a))
    return 2 * jnp.minimum(smallest, off)


def random_scale_condition(loss: RandomCovarianceLoss, start: LinearAttention) -> Hypothesis:
    """sigma^2 sqrt(d) E[|Gamma_tau|_op |Lambda_tau|_F^2] < 2 |E[Lambda_tau] Theta|_F^2.

    **Source:** zhang2023 (4.11), (C.10).
    """
    left, right = eqx.filter_jit(random_scale_sides)(loss, start)
    return hypothesis("sigma^2 sqrt(d) E[|Gamma|_op |Lambda|_F^2] < 2 |E[Lambda] Theta|_F^2", left, "<", right)


def random_scale_bound(loss: RandomCovarianceLoss, start: LinearAttention) -> Scalar:
    """What sigma must be below, sqrt(2 |E[Lambda_tau] Theta|_F^2 / (sqrt(d) E[|Gamma_tau|_op |Lambda_tau|_F^2]))."""
    return jnp.sqrt(2 * _theta_lambda_sq(loss.task, start) / (jnp.sqrt(loss.task.dimension) * loss.operator_energy))


def random_u_lower_bound_sq(loss: RandomCovarianceLoss, start: LinearAttention) -> Scalar:
    """sigma^2 (2 |E[Lambda_tau] Theta|_F^2 - sqrt(d) sigma^2 E[|Gamma_tau|_op |Lambda_tau|_F^2]) / (2 sqrt(d)
    |E[Lambda_tau^2]|_op), the square of the bound on u_{-1}(t). **Source:** zhang2023 (C.12).
    """
    left, right = random_scale_sides(loss, start)
    return start.u_minus1**2 * (right - left) / (2 * jnp.sqrt(loss.task.dimension) * jnp.max(loss.structure.drive))


def random_pl_constant(loss: RandomCovarianceLoss, start: LinearAttention) -> Scalar:
    """nu = eta times the square of (C.12), eta = min(gamma_i, zeta_ij). **Source:** zhang2023, Lemma C.8 (C.13)."""
    return jnp.min(loss.structure.curvature) * random_u_lower_bound_sq(loss, start)


def random_scale_sides(loss: RandomCovarianceLoss, start: LinearAttention) -> tuple[Scalar, Scalar]:
    """Both sides of (4.11), times sqrt(d) E[|Gamma_tau|_op |Lambda_tau|_F^2]."""
    left = start.u_minus1**2 * jnp.sqrt(loss.task.dimension) * loss.operator_energy
    return left, 2 * _theta_lambda_sq(loss.task, start)


def _theta_lambda_sq(task: LinearRegression | RandomCovarianceRegression, start: LinearAttention) -> Scalar:
    """|Theta Lambda|_F^2 = tr(Lambda^2 Theta Theta^T) with the mean covariance Lambda."""
    mean = task.mean_covariance
    weighted = jnp.trace(mean @ mean @ start.U11)
    return weighted / jnp.where(start.u_minus1 == 0, 1.0, start.u_minus1)


def _gram(theta: ArrayLike | Iterable) -> Float[Array, "d d"]:
    matrix = _checks.as_array("theta", theta, (None, None))
    # Scaled first, so that M M^T neither overflows nor vanishes.
    size = jnp.max(jnp.abs(matrix), initial=0.0)
    return (matrix / jnp.where(size > 0, size, 1.0)) @ matrix.T * size


def _start(scale: ArrayLike, shape: Float[Array, "d d"], *, normalised: bool) -> LinearAttention:
    sigma = _checks.positive("scale", scale)
    size = jnp.linalg.norm(shape)
    if _checks.is_concrete(size) and size == 0:
        _checks.fail("theta", "not zero", "it is")
    return LinearAttention(sigma * shape / (size if normalised else 1.0), sigma)
