"""What follows from a task and a start by formula, before anything is integrated."""

import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim import _checks
from flowsim.covariance_laws import DiagonalLaw
from flowsim.initialization import (
    balanced_minimum,
    local_rate,
    pl_constant,
    random_pl_constant,
    random_scale_bound,
    random_u_lower_bound_sq,
    u_lower_bound_sq,
)
from flowsim.losses import LinearAttentionLoss, RandomCovarianceLoss
from flowsim.models import LinearAttention
from flowsim.tasks import LinearRegression, RandomCovarianceRegression

Scalar = Float[Array, ""]


@dataclasses.dataclass(frozen=True)
class Equations:
    """Where the paper has each of the predictions, and its letter for the rate."""

    scale_bound: str
    mu: str
    u_lower_bound: str
    limit: str
    rate_symbol: str


FIXED = Equations("Theorem 4.1", "(5.7)", "(A.14)", "(5.9)", "mu")
RANDOM = Equations("(4.11)", "(C.13)", "(C.12)", "(4.12)", "nu")


@dataclasses.dataclass(frozen=True)
class Predictions:
    """What zhang2023 says of a start before anything is integrated; NaN where a formula has no real value.

    mu: the rate of (5.7), or nu of (C.13) with random covariances; u_lower_bound: (A.14), (C.12); limit: (5.9),
    (4.12); local_rate: of the excess at the limit; scale_bound: sigma must be below it, Theorem 4.1, (4.11); excess: at
    the start; equations: which of these it is. The theorem on random covariances needs them diagonal: without that its
    bounds are NaN.
    """

    mu: float
    u_lower_bound: float
    limit: LinearAttention
    local_rate: float
    scale_bound: float
    excess: float
    equations: Equations

    @property
    def product(self) -> Float[Array, "d d"]:
        """u_{-1} U11 at every global minimum: Gamma^-1, or the best average of it over random covariances."""
        return self.limit.u_minus1 * self.limit.U11

    def guaranteed_time(self, epsilon: float) -> float:
        """The time after which the theorem guarantees an excess of at most epsilon: log(excess/epsilon)/mu.

        Infinite where mu is not positive. **Source:** zhang2023, proofs of Lemmas 5.4 and C.8.
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


def predictions(task: LinearRegression | RandomCovarianceRegression, start: LinearAttention) -> Predictions:
    """All that follows from a task and a start by formula."""
    if isinstance(task, LinearRegression):
        return _predicted(LinearAttentionLoss(task), start, _fixed_scalars, FIXED)
    return _predicted(RandomCovarianceLoss(task), start, _random_scalars, RANDOM)


def _predicted(
    loss: LinearAttentionLoss | RandomCovarianceLoss,
    start: LinearAttention,
    scalars: Callable[..., tuple[Scalar, Scalar, Scalar]],
    equations: Equations,
) -> Predictions:
    bound, mu, scale, rate, excess = (float(value) for value in _evaluate(scalars, loss, start))
    return Predictions(
        mu=mu,
        u_lower_bound=bound,
        limit=balanced_minimum(loss.structure),
        local_rate=rate,
        scale_bound=scale,
        excess=excess,
        equations=equations,
    )


@eqx.filter_jit
def _evaluate(scalars, loss, start):
    return *scalars(loss, start), local_rate(loss.structure), loss.excess(start)


def _fixed_scalars(loss: LinearAttentionLoss, start: LinearAttention) -> tuple[Scalar, Scalar, Scalar]:
    task = loss.task
    scale_bound = jnp.sqrt(2 / (jnp.sqrt(task.dimension) * loss.gamma_eigenvalues[-1]))
    return jnp.sqrt(u_lower_bound_sq(task, start)), pl_constant(task, start), scale_bound


def _random_scalars(loss: RandomCovarianceLoss, start: LinearAttention) -> tuple[Scalar, Scalar, Scalar]:
    if not isinstance(loss.task.law, DiagonalLaw):
        nan = jnp.asarray(jnp.nan)
        return nan, nan, nan
    bound = jnp.sqrt(random_u_lower_bound_sq(loss, start))
    return bound, random_pl_constant(loss, start), random_scale_bound(loss, start)
