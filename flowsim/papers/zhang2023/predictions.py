"""What zhang2023 promises for a start by formula, before anything is integrated."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim._core import checks
from flowsim._core.types import Scalar
from flowsim.claims import Hypothesis
from flowsim.losses import LinearAttentionLoss, RandomCovarianceLoss
from flowsim.losses.arrowhead import balanced_minimum, local_rate
from flowsim.models import LinearAttention
from flowsim.papers.paper import AbstractPromises
from flowsim.papers.zhang2023.conditions import (
    assumption_3_3,
    pl_constant,
    random_pl_constant,
    random_scale_bound,
    random_scale_condition,
    random_u_lower_bound_sq,
    scale_condition,
    u_lower_bound_sq,
)
from flowsim.papers.zhang2023.prompt_lengths import PromptLengths, prompt_lengths
from flowsim.tasks import LinearRegression, RandomCovarianceRegression
from flowsim.tasks.covariance_laws import DiagonalLaw


@dataclasses.dataclass(frozen=True)
class Equations:
    """Where the paper states each prediction, and its symbol for the rate."""

    scale_bound: str
    mu: str
    u_lower_bound: str
    limit: str
    rate_symbol: str


FIXED = Equations("Theorem 4.1", "(5.7)", "(A.14)", "(5.9)", "mu")
RANDOM = Equations("(4.11)", "(C.13)", "(C.12)", "(4.12)", "nu")


@dataclasses.dataclass(frozen=True)
class Predictions(AbstractPromises):
    """What zhang2023 says about a start before anything is integrated; NaN where a formula has no real value.

    conditions: Assumption 3.3 and the scale condition; coefficients: Gamma, or gamma_i, xi_i and zeta_ij of (C.3);
    mu: the rate of (5.7), or nu of (C.13) with random covariances; u_lower_bound: that of (A.14) or (C.12); limit:
    that of (5.9) or (4.12); local_rate: the rate of the excess at the limit; scale_bound: what sigma must be below, by
    Theorem 4.1 or (4.11); excess: the excess at the start; equations: which of these equations apply. The theorem on
    random covariances requires diagonal ones; without that its bounds are NaN.
    """

    paper: ClassVar[str] = "zhang2023"

    conditions: tuple[Hypothesis, ...]
    coefficients: Mapping[str, Array]
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

        Infinite where mu is not positive.

        **Raises:** `ValueError` unless epsilon is positive.

        **Source:** zhang2023, proofs of Lemmas 5.4 and C.8.
        """
        if not epsilon > 0:
            checks.refuse("epsilon", "positive", f"it is {epsilon}")
        if self.excess <= epsilon:
            return 0.0
        return float(np.log(self.excess / epsilon) / self.mu) if self.mu > 0 else np.inf

    @property
    def heading(self) -> str:
        """The name of the conditions."""
        return f"Assumption 3.3 and the scale condition, {self.equations.scale_bound}"

    def constants(self) -> dict[str, float]:
        """The rates and bounds by name."""
        names = ("mu", "u_lower_bound", "local_rate", "scale_bound")
        return {name: getattr(self, name) for name in names}

    def limits(self) -> dict[str, Array]:
        """The weights of the limit, (5.9) or (4.12), by name."""
        return {"u_minus1": self.limit.u_minus1, "U11": self.limit.U11}

    def prompt_lengths(
        self, task: LinearRegression | RandomCovarianceRegression, epsilon: float
    ) -> PromptLengths | None:
        """The lengths of Corollary 4.3 at the sufficient N; None where covariances are random."""
        return prompt_lengths(task.covariance, epsilon) if isinstance(task, LinearRegression) else None

    def facts(self) -> dict[str, Scalar | float | Array | str]:
        """What follows from the start, by a label that names the equation."""
        where = self.equations
        return {
            **self.coefficients,
            f"sigma must be below, {where.scale_bound}": self.scale_bound,
            f"{where.rate_symbol} {where.mu}": self.mu,
            f"lower bound of u_minus1 {where.u_lower_bound}": self.u_lower_bound,
            f"limit of u_minus1 {where.limit}": self.limit.u_minus1,
            f"limit of U11 {where.limit}": self.limit.U11,
            "excess at the start": self.excess,
            "local rate of the excess at the minimum": self.local_rate,
        }


def predictions(task: LinearRegression | RandomCovarianceRegression, start: LinearAttention) -> Predictions:
    """All that follows from a task and a start by formula."""
    conditions = assumption_3_3(task, start)
    if isinstance(task, LinearRegression):
        loss, scalars, equations = LinearAttentionLoss(task), _fixed_scalars, FIXED
        conditions.append(scale_condition(task, start))
        coefficients = {"gamma": task.gamma()}
    else:
        loss, scalars, equations = RandomCovarianceLoss(task), _random_scalars, RANDOM
        coefficients = {}
        if isinstance(task.law, DiagonalLaw):
            conditions.append(random_scale_condition(loss, start))
            zeta = loss.structure.curvature
            coefficients = {"gamma": jnp.diagonal(zeta), "xi": loss.structure.drive, "zeta": zeta}
    # On u12 = u21 = 0 it takes no tensor of third order.
    arrow = loss.arrowhead(start)
    bound, mu, scale, rate, excess = (float(value) for value in _evaluate(scalars, loss, start, arrow))
    return Predictions(
        conditions=tuple(conditions),
        coefficients=coefficients,
        mu=mu,
        u_lower_bound=bound,
        limit=balanced_minimum(loss.structure),
        local_rate=rate,
        scale_bound=scale,
        excess=excess,
        equations=equations,
    )


@eqx.filter_jit
def _evaluate(scalars, loss, start, arrow):
    excess = loss.excess(start) if arrow is None else arrow.excess(arrow.state(start))
    return *scalars(loss, start), local_rate(loss.structure), excess


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
