"""The settings of zhang2023's claims, and the hypotheses that several sections share."""

import jax.numpy as jnp

from flowsim.claims.hypotheses import Hypothesis, agrees, hypothesis, unmet
from flowsim.losses import AbstractPopulationLoss, LinearAttentionLoss, RandomCovarianceLoss
from flowsim.models import LinearAttention
from flowsim.papers.zhang2023.conditions import assumption_3_3, random_scale_condition, scale_condition
from flowsim.tasks.covariance_laws import DiagonalLaw

_LOOKED_AT = (1e-3, 30.0, 32)  # where a law is compared with Exponential(1)


def one_covariance(loss: AbstractPopulationLoss) -> Hypothesis | None:
    """The setting of sections 3 to 5: every prompt has the same covariance."""
    fixed = isinstance(loss, LinearAttentionLoss)
    return None if fixed else unmet("one covariance for all prompts")


def random_covariances(loss: AbstractPopulationLoss) -> Hypothesis | None:
    """The setting of Lemma C.1: every prompt has a covariance of its own, of any law."""
    drawn = isinstance(loss, RandomCovarianceLoss)
    return None if drawn else unmet("a covariance drawn anew for every prompt")


def independent_variances(loss: AbstractPopulationLoss) -> Hypothesis | None:
    """The setting of Theorem 4.5: every prompt has a diagonal covariance of its own, with independent entries."""
    diagonal = isinstance(loss, RandomCovarianceLoss) and isinstance(loss.task.law, DiagonalLaw)
    return None if diagonal else unmet("diagonal covariances, drawn anew for every prompt")


def assumption(loss: LinearAttentionLoss | RandomCovarianceLoss, start: LinearAttention) -> list[Hypothesis]:
    """Assumption 3.3."""
    return assumption_3_3(loss.task, start)


def assumption_and_scale(loss: LinearAttentionLoss, start: LinearAttention) -> list[Hypothesis]:
    """Assumption 3.3 and the scale condition of Theorem 4.1."""
    return [*assumption_3_3(loss.task, start), scale_condition(loss.task, start)]


def assumption_and_random_scale(loss: RandomCovarianceLoss, start: LinearAttention) -> list[Hypothesis]:
    """Assumption 3.3 and the scale condition (4.11), which is (C.10)."""
    return [*assumption_3_3(loss.task, start), random_scale_condition(loss, start)]


def isotropic(loss: LinearAttentionLoss, start: LinearAttention) -> list[Hypothesis]:
    """One variance for all directions, as in the panel of Figure 1."""
    return [agrees("lambda_max/lambda_min = 1", loss.eigenvalues[-1] / loss.eigenvalues[0], 1.0)]


def exponential(loss: RandomCovarianceLoss, start: LinearAttention) -> Hypothesis:
    """The variances are Exponential(1), judged by their distribution functions."""
    law = loss.task.law
    assert isinstance(law, DiagonalLaw), "the setting of the claim"
    x = jnp.geomspace(*_LOOKED_AT)
    below = jnp.concatenate([part.distribution(x) for part in law.coordinates], axis=1)
    gap = jnp.max(jnp.abs(below + jnp.expm1(-x)[:, None]))
    return agrees("Exponential(1) variances, largest difference of P(lambda <= x)", gap, 0.0)


def exponential_and_long(loss: RandomCovarianceLoss, start: LinearAttention) -> list[Hypothesis]:
    """Exponential(1) variances, and N -> infinity taken as N = infinity."""
    return [exponential(loss, start), hypothesis("N infinite", loss.task.context_length, ">=", jnp.inf)]
