"""The columns that zhang2023 adds to every map: margins of its lemmas along a flow, conditions and constants."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from flowsim._core.types import Scalar
from flowsim.claims import Claim
from flowsim.flow.solvers.summary import CONVERGED
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LinearAttentionLoss, RandomCovarianceLoss
from flowsim.losses.sampled.monte_carlo import stated
from flowsim.models import LinearAttention
from flowsim.papers.zhang2023 import appendix_a, appendix_c, section_5
from flowsim.papers.zhang2023.conditions import (
    AssumptionValues,
    assumption_values,
    pl_constant,
    random_pl_constant,
    random_scale_sides,
    random_u_lower_bound_sq,
    scale_hypothesis,
    scale_value,
    u_lower_bound_sq,
)
from flowsim.tasks.covariance_laws import DiagonalLaw

_IDS = {
    "pl": ("lemma-5.4.pl", "lemma-c.8.pl"),
    "rate": ("lemma-5.4.rate", "lemma-c.8.rate"),
    "u_lower_bound": ("lemma-a.5", "lemma-c.7"),
    "u_positive": ("lemma-a.4", "lemma-c.6"),
}
_CLAIMS = (*section_5.SECTION.claims, *appendix_a.SECTION.claims, *appendix_c.CONVERGENCE.claims)
# With one covariance, and with random ones.
MAPPED: dict[str, tuple[Claim, ...]] = {
    name: tuple(claim for claim in _CLAIMS if claim.id.partition(".")[2] in ids) for name, ids in _IDS.items()
}


def columns(loss: PyTree, run: Trajectory) -> dict[str, Array]:
    """Whether the conditions are met, the constants, the guaranteed time, and the least u_{-1} along the flow.

    - condition_met, assumption_met: the scale condition, and Assumption 3.3.
    - guaranteed_time: the time at which the excess, at the guaranteed rate, is `CONVERGED` times its initial value.
      Infinite if the paper guarantees no rate.
    - mu, u_lower_bound: the rate mu of (5.7) or nu of (C.13), and the lower bound (A.14) or (C.12) on u_{-1}.
    - smallest_u: the least u_{-1} along the flow.

    If no theorem covers the model or the loss, the scale condition is not met and the constants are NaN.
    """
    start = run.start
    promised = _promised(stated(loss), start)
    condition = jnp.asarray(scale_hypothesis(promised.scale).met)
    parts = [jnp.asarray(part.met) for part in promised.assumption.hypotheses()]
    assumption = jnp.all(jnp.stack(parts))
    # Beyond the scale condition mu is negative, or positive as a product of two negative factors.
    mu = jnp.where(condition & (promised.mu > 0), promised.mu, jnp.nan)
    bound_sq = jnp.where(condition & (promised.u_lower_bound_sq > 0), promised.u_lower_bound_sq, jnp.nan)
    u = run.models.u_minus1 if isinstance(start, LinearAttention) else jnp.full_like(run.t, jnp.nan)
    return {
        "condition_met": condition,
        "assumption_met": assumption,
        "guaranteed_time": jnp.where(assumption & (mu > 0), np.log(1 / CONVERGED) / mu, jnp.inf),
        "mu": promised.mu,
        "u_lower_bound": jnp.sqrt(bound_sq),
        "smallest_u": jnp.min(u),
    }


class _Promised(NamedTuple):
    """The conditions of zhang2023 on a start, and the rate and the bound that they imply, as pure JAX.

    assumption: the quantities in Assumption 3.3; scale: a number that the scale condition, of Theorem 4.1 or
    (4.11), requires to be below 2; mu: the rate mu of (5.7), or nu of (C.13); u_lower_bound_sq: the square of the
    lower bound (A.14) or (C.12).
    """

    assumption: AssumptionValues
    scale: Scalar
    mu: Scalar
    u_lower_bound_sq: Scalar


def _promised(loss: PyTree, start: PyTree) -> _Promised:
    unknown = jnp.asarray(jnp.nan)
    known = isinstance(loss, LinearAttentionLoss | RandomCovarianceLoss)
    if not (known and isinstance(start, LinearAttention)):
        return _Promised(AssumptionValues(*[unknown] * 8), *[unknown] * 3)
    assumption = assumption_values(loss.task, start)
    if isinstance(loss, LinearAttentionLoss):
        return _Promised(
            assumption, scale_value(loss.task, start), pl_constant(loss.task, start), u_lower_bound_sq(loss.task, start)
        )
    if not isinstance(loss.task.law, DiagonalLaw):
        return _Promised(assumption, *[unknown] * 3)
    left, right = random_scale_sides(loss, start)
    return _Promised(
        assumption, 2 * left / right, random_pl_constant(loss, start), random_u_lower_bound_sq(loss, start)
    )
