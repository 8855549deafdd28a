"""Starts of a flow, the conditions a theorem puts on them, and what follows from the start alone."""

import dataclasses
import operator
from collections.abc import Iterable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from flowsim import _checks
from flowsim.losses import LinearAttentionLoss
from flowsim.models import LinearAttention
from flowsim.tasks import LinearRegression

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
    matrix = _checks.as_array("theta", theta, (None, None))
    if matrix.shape[0] != matrix.shape[1]:
        _checks.fail("theta", "a square matrix", f"its shape is {matrix.shape}")
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
    """One condition of a statement, with both of its sides: ``value relation bound``."""

    name: str
    value: float
    relation: str
    bound: float
    met: bool


def hypothesis(name: str, value: Scalar | float, relation: str, bound: Scalar | float) -> Hypothesis:
    """A condition with one of the relations <, <=, >, >=, decided in float64."""
    left, right = float(value), float(bound)
    return Hypothesis(name, left, relation, right, bool(_RELATIONS[relation](left, right)))


def agrees(name: str, value: Scalar | float, bound: Scalar | float, size: Scalar | float = 1.0) -> Hypothesis:
    """A condition ``value = bound``, met to within rounding of the given size."""
    left, right = float(value), float(bound)
    return Hypothesis(name, left, "=", right, bool(abs(left - right) <= _ROUNDING * float(size)))


class AssumptionValues(NamedTuple):
    """What zhang2023's Assumption 3.3 speaks of, with sigma = u_{-1}(0) and Theta Theta^T = U11(0)/sigma.

    size: |U11(0)|_F; norm, asymmetry: Frobenius norms of Theta Theta^T and of what it differs by from its transpose;
    smallest: the smallest eigenvalue of U11(0), times the sign of sigma; theta_lambda: |Theta Lambda|_F.
    """

    sigma: Scalar | float
    size: Scalar | float
    norm: Scalar | float
    asymmetry: Scalar | float
    smallest: Scalar | float
    theta_lambda: Scalar | float
    u12: Scalar | float
    u21: Scalar | float

    def hypotheses(self) -> list[Hypothesis]:
        """The parts of the assumption."""
        return [
            hypothesis("sigma = u_minus1(0) > 0", self.sigma, ">", 0.0),
            agrees("|Theta Theta^T|_F = 1", self.norm, 1.0),
            agrees("Theta Theta^T symmetric", self.asymmetry, 0.0, self.norm),
            hypothesis("Theta Theta^T semidefinite", self.smallest, ">=", -_ROUNDING * float(self.size)),
            hypothesis("Theta Lambda != 0", self.theta_lambda, ">", 0.0),
            agrees("u12(0) = 0", self.u12, 0.0, 0.0),
            agrees("u21(0) = 0", self.u21, 0.0, 0.0),
        ]


def assumption_3_3(task: LinearRegression, start: LinearAttention) -> list[Hypothesis]:
    """The parts of zhang2023's Assumption 3.3, with sigma = u_{-1}(0) and Theta Theta^T = U11(0)/sigma."""
    return eqx.filter_jit(assumption_values)(task, start).hypotheses()


def assumption_values(task: LinearRegression, start: LinearAttention) -> AssumptionValues:
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
    loss = LinearAttentionLoss(task)
    Q, inverse = loss.eigenvectors, 1 / loss.gamma_eigenvalues
    u = jnp.sqrt(jnp.linalg.norm(inverse))
    return LinearAttention((Q * (inverse / u)[None, :]) @ Q.T, u)


def local_rate(task: LinearRegression) -> Scalar:
    """The rate r of excess ~ e^{-r t} near the limit (5.9): twice the Hessian's smallest positive eigenvalue there.

    In the eigenbasis the Hessian is u^2 a_ij off the diagonal of U11 and an arrowhead of size d + 1 on it, whose
    zero eigenvalue is the direction (U11, -u_{-1}) along the minima.
    """
    loss = LinearAttentionLoss(task)
    lam, gam = loss.eigenvalues, loss.gamma_eigenvalues
    d = task.dimension
    u_squared = jnp.linalg.norm(1 / gam)
    curvature = u_squared * jnp.outer(gam * lam, lam)
    shaft = jnp.diag(jnp.append(jnp.diagonal(curvature), jnp.sum(lam**2 / gam) / u_squared))
    shaft = shaft.at[:d, d].set(lam**2).at[d, :d].set(lam**2)
    smallest = jnp.linalg.eigvalsh(shaft)[1]
    off = jnp.min(jnp.where(jnp.eye(d, dtype=bool), jnp.inf, curvature))
    return 2 * jnp.minimum(smallest, off)


@dataclasses.dataclass(frozen=True)
class Predictions:
    """What zhang2023 says of a start before anything is integrated; NaN where a formula has no real value.

    gamma: (d, d) Gamma; mu: (5.7); u_lower_bound: (A.14); limit: (5.9); local_rate: of the excess at the limit;
    scale_bound: sigma must be below it; excess: at the start.
    """

    gamma: Float[Array, "d d"]
    mu: float
    u_lower_bound: float
    limit: LinearAttention
    local_rate: float
    scale_bound: float
    excess: float

    def guaranteed_time(self, epsilon: float) -> float:
        """The time after which the theorem guarantees an excess of at most epsilon: log(excess/epsilon)/mu.

        Infinite where mu is not positive. **Source:** zhang2023, proof of Lemma 5.4.
        """
        if not epsilon > 0:
            _checks.fail("epsilon", "positive", f"it is {epsilon}")
        if self.excess <= epsilon:
            return 0.0
        return float(np.log(self.excess / epsilon) / self.mu) if self.mu > 0 else np.inf

    def constants(self) -> dict[str, float]:
        """The scalars by name."""
        names = ("mu", "u_lower_bound", "local_rate", "scale_bound")
        return {name: getattr(self, name) for name in names}


def predictions(task: LinearRegression, start: LinearAttention) -> Predictions:
    """All that follows from a task and a start by formula."""
    loss = LinearAttentionLoss(task)
    values = eqx.filter_jit(_predicted_scalars)(task, start)
    bound, mu, rate, excess = (float(value) for value in values)
    return Predictions(
        gamma=task.gamma(),
        mu=mu,
        u_lower_bound=bound,
        limit=limit(task),
        local_rate=rate,
        scale_bound=float(jnp.sqrt(2 / (jnp.sqrt(task.dimension) * loss.gamma_eigenvalues[-1]))),
        excess=excess,
    )


def _predicted_scalars(task: LinearRegression, start: LinearAttention) -> tuple[Any, ...]:
    bound = jnp.sqrt(u_lower_bound_sq(task, start))
    return bound, pl_constant(task, start), local_rate(task), LinearAttentionLoss(task).excess(start)


def _theta_lambda_sq(task: LinearRegression, start: LinearAttention) -> Scalar:
    """|Theta Lambda|_F^2 = tr(Lambda^2 Theta Theta^T)."""
    weighted = jnp.trace(task.covariance @ task.covariance @ start.U11)
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
