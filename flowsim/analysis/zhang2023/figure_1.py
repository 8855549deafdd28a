"""What Figure 1 of zhang2023 shows of linear attention and of least squares, at every length exactly."""

import jax.numpy as jnp
from jaxtyping import Array

from flowsim.analysis.base import Claim, Comparison, Relation, at_most, equal
from flowsim.analysis.zhang2023 import spaces
from flowsim.analysis.zhang2023.comparisons import one_covariance
from flowsim.analysis.zhang2023.random_covariance import independent_variances
from flowsim.covariance_laws import DiagonalLaw
from flowsim.initialization import Hypothesis, agrees, balanced_minimum, hypothesis
from flowsim.losses import LinearAttentionLoss, RandomCovarianceLoss
from flowsim.models import LinearAttention
from flowsim.prompt_risk import risk, zero_predictor_error
from flowsim.tasks import RandomCovarianceRegression
from flowsim.trajectory import Trajectory

SCALES = (1.0, 4.0, 9.0)  # c, by which the test covariances are larger
_LONGEST = 200


def normalised_risk(loss: RandomCovarianceLoss, scale: float, test_length: Array | float) -> Array:
    """Risk of the limit (4.12) on prompts of c Lambda_tau over that of predicting zero."""
    test = RandomCovarianceRegression(loss.task.law.scaled(scale), loss.task.context_length)
    return risk(balanced_minimum(loss.structure), test, test_length) / zero_predictor_error(test)


def dashed_line(loss: RandomCovarianceLoss, trajectory: Trajectory) -> Comparison:
    """The normalised risk at M = N = infinity, for every scale c, against the mean square of (4.13) minus the label,
    sum_i E[c lambda_i (1 - c lambda_i t_i)^2] / sum_i c E lambda_i with t_i = E[lambda_i^2]/E[lambda_i^3].
    """
    law = loss.task.law
    assert isinstance(law, DiagonalLaw), "the setting of the claim"
    first, second, third = law.moments()
    t = second / third
    values = [normalised_risk(loss, c, jnp.inf) for c in SCALES]
    lines = [jnp.sum(first - 2 * c * t * second + c**2 * t**2 * third) / jnp.sum(first) for c in SCALES]
    sizes = [jnp.sum(first + 2 * c * t * second + c**2 * t**2 * third) / jnp.sum(first) for c in SCALES]
    return equal(jnp.stack(values), jnp.stack(lines), jnp.stack(sizes))


def dashed_constants(loss: RandomCovarianceLoss, trajectory: Trajectory) -> dict[str, Array]:
    """The dashed line, and how far above it linear attention is at N and M = 100, by the scale c."""
    finite = RandomCovarianceLoss(RandomCovarianceRegression(loss.task.law, 100.0))
    lines = {f"dashed_c_{c:g}": normalised_risk(loss, c, jnp.inf) for c in SCALES}
    return lines | {f"at_100_c_{c:g}": normalised_risk(finite, c, 100.0) for c in SCALES}


def infinite_context(loss: RandomCovarianceLoss, start: LinearAttention) -> list[Hypothesis]:
    """The limit N -> infinity, taken at infinity."""
    return [hypothesis("N infinite", loss.task.context_length, ">=", jnp.inf)]


def isotropic(loss: LinearAttentionLoss, start: LinearAttention) -> list[Hypothesis]:
    """One variance for all directions, as in the panel."""
    return [agrees("lambda_max/lambda_min = 1", loss.eigenvalues[-1] / loss.eigenvalues[0], 1.0)]


def least_squares_below(loss: LinearAttentionLoss, trajectory: Trajectory) -> Comparison:
    """Risk of least squares, E|(I - P) w|^2_Lambda = lambda (d - M) for M < d and 0 from there on, with P projecting to
    the span of M examples, against that of the limit (4.1), at M = 1 to 200.
    """
    d = loss.task.dimension
    model = balanced_minimum(loss.structure)
    lengths = jnp.arange(1.0, _LONGEST + 1)
    unseen = loss.eigenvalues[0] * jnp.maximum(d - lengths, 0.0)
    # The risk is affine in 1/M.
    asymptotic, single = risk(model, loss.task, jnp.inf), risk(model, loss.task, 1)
    return at_most(unseen, asymptotic + (single - asymptotic) / lengths)


_PROBLEM = {"family": "exponential", "rate": 1.0, "dimension": 20}

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "zhang2023.figure-1",
        "zhang2023, Figure 1 and (4.13)",
        "Trained on Exponential(1) variances, linear attention's error at M, N -> infinity is the black dashed line",
        dashed_line,
        relation=Relation.IDENTITY,
        hypotheses=infinite_context,
        constants=dashed_constants,
        setting=independent_variances,
        along_flow=False,
        spaces=spaces.DASHED,
        problems=(
            {
                "name": "d = 20, Exponential(1), N infinite",
                "task": {"covariance_law": _PROBLEM, "context_length": "inf"},
                "init": {"kind": "zeros"},
            },
        ),
        note="The line as (4.13) has it: 1 - 4c/3 + 2c^2/3 times the error of predicting zero, above that error for "
        "c = 4 and 9. Of the curves of the figure only linear attention and least squares are judged.",
    ),
    Claim(
        "zhang2023.figure-1.least-squares",
        "zhang2023, section 4.3 and Figure 1",
        "Least squares is optimal for this task: at no M is its error above that of linear attention trained at N",
        least_squares_below,
        hypotheses=isotropic,
        setting=one_covariance,
        along_flow=False,
        spaces=spaces.PANEL,
        problems=tuple(
            {
                "name": f"d = 20, identity, N = {N}",
                "task": {"covariance": "identity", "dimension": 20, "context_length": N},
                "init": {"kind": "zeros"},
            }
            for N in (40, 70, 100)
        ),
        note="Judged for M = 1 to 200 on the panel of the fixed covariance; least squares of least norm where M < d.",
    ),
)
