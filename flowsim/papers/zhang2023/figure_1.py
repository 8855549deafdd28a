"""What Figure 1 of zhang2023 shows for linear attention and least squares, computed exactly at every length."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from flowsim.claims.claim import Comparison, at_most, equal
from flowsim.claims.declaring import Section
from flowsim.claims.statements import joined
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LinearAttentionLoss, RandomCovarianceLoss
from flowsim.losses.arrowhead import balanced_minimum
from flowsim.losses.prompt_risk import risk, zero_predictor_error
from flowsim.models import LinearAttention
from flowsim.papers.zhang2023 import spaces
from flowsim.papers.zhang2023.literal import linear_risk
from flowsim.papers.zhang2023.setting import exponential_and_long, independent_variances, isotropic, one_covariance
from flowsim.tasks import LinearRegression, Prompt, RandomCovarianceRegression
from flowsim.tasks.sampling import least_squares

SCALES = (1.0, 4.0, 9.0)  # c: test covariances are c times those of training
_LONGEST = 200
_LAGUERRE = 3  # nodes: exact to degree 5 in a variance, in which a risk is cubic


def normalised_risk(loss: RandomCovarianceLoss, scale: float, test_length: Array | float) -> Array:
    """The risk of the limit (4.12) on prompts with covariance c Lambda_tau, over the risk of predicting zero."""
    test = RandomCovarianceRegression(loss.task.law.scaled(scale), loss.task.context_length)
    return risk(balanced_minimum(loss.structure), test, test_length) / zero_predictor_error(test)


@eqx.filter_jit
def literal_lines(loss: RandomCovarianceLoss) -> Array:
    """The normalised risk at M = infinity for every scale, from predictions of the literal model alone.

    The mean over examples, queries and weights given the variances is by cubature, the mean over the variances by
    Gauss-Laguerre rules. The risk at M = infinity and the error of predicting zero are sums over coordinates. Both are
    summed over pairs of neighbouring coordinates, in which each coordinate appears twice.
    """
    d, model = loss.task.dimension, balanced_minimum(loss.structure)
    width = min(d, 2)
    nodes, masses = (
        jnp.stack(jnp.meshgrid(*[jnp.asarray(part)] * width, indexing="ij"), axis=-1).reshape(-1, width)
        for part in np.polynomial.laguerre.laggauss(_LAGUERRE)
    )
    weights, scales = jnp.prod(masses, axis=1), jnp.asarray(SCALES)
    variances = (scales[:, None, None] * nodes[None]).reshape(-1, width)

    def of_window(first: Array) -> tuple[Array, Array]:
        chosen = (first + jnp.arange(width)) % d
        part = LinearAttention(model.U11[chosen][:, chosen], model.u_minus1)
        nothing = LinearAttention(jnp.zeros((width, width)), 0.0)

        def given(variance: Array) -> tuple[Array, Array]:
            task = LinearRegression(jnp.diag(variance), 1.0)
            return linear_risk(part, task)(jnp.asarray(jnp.inf)), linear_risk(nothing, task)(jnp.asarray(jnp.inf))

        risks, errors = jax.lax.map(given, variances)
        return risks.reshape(scales.size, -1) @ weights, errors.reshape(scales.size, -1) @ weights

    risks, errors = jax.lax.map(of_window, jnp.arange(d))
    return jnp.sum(risks, axis=0) / jnp.sum(errors, axis=0)


def dashed_constants(loss: RandomCovarianceLoss, trajectory: Trajectory) -> dict[str, Array]:
    """The dashed line, and the normalised risk of linear attention at N = M = 100, for each scale c."""
    finite = RandomCovarianceLoss(RandomCovarianceRegression(loss.task.law, 100.0))
    lines = {f"dashed_c_{c:g}": normalised_risk(loss, c, jnp.inf) for c in SCALES}
    return lines | {f"at_100_c_{c:g}": normalised_risk(finite, c, 100.0) for c in SCALES}


SECTION = Section("zhang2023", LinearAttention, setting=independent_variances)


@SECTION.on(
    (
        {
            "name": "d = 20, Exponential(1), N infinite",
            "task": {
                "covariance_law": {"family": "exponential", "rate": 1.0, "dimension": 20},
                "context_length": "inf",
            },
            "init": {"kind": "zeros"},
        },
    ),
    spaces.DASHED,
).claim("figure-1", "Figure 1 and (4.13)", hypotheses=exponential_and_long, constants=dashed_constants)
def dashed_line(loss: RandomCovarianceLoss) -> Comparison:
    r"""Trained on $\operatorname{Exponential}(1)$ variances, linear attention's error at $M, N \to \infty$ is the black
    dashed line

    By (4.13) the line is 1 - 4c/3 + 2c^2/3 times the error of predicting zero, which is above that error for c = 4 and
    9. Judged on predictions of the literal model by cubature. Of the curves in the figure, only those of linear
    attention and least squares are judged.
    """
    c = jnp.asarray(SCALES)
    lines, sizes = 1 - 4 * c / 3 + 2 * c**2 / 3, 1 + 4 * c / 3 + 2 * c**2 / 3
    exact = jnp.stack([normalised_risk(loss, scale, jnp.inf) for scale in SCALES])
    return joined([equal(literal_lines(loss), lines, sizes), equal(exact, lines, sizes)])


@eqx.filter_jit
def _unseen(dimension: int) -> Array:
    """E|w - w_M|^2 for w ~ N(0, I) and the w_M that least squares finds on M = 1, .., d drawn examples: (d,).

    For the identity covariance it is d - M for every draw.
    """
    inputs, identity = jax.random.normal(jax.random.key(0), (dimension, dimension)), jnp.eye(dimension)

    def of_length(length: Array) -> Array:
        kept = jnp.where((jnp.arange(dimension) < length)[:, None], inputs, 0.0)

        def predicted(w: Array, query: Array) -> Array:
            return least_squares(Prompt(kept, kept @ w, query))

        found = jax.vmap(jax.vmap(predicted, (None, 0)), (0, None))(identity, identity)
        return jnp.sum((found - identity) ** 2)

    return jax.lax.map(of_length, jnp.arange(dimension) + 1)


@SECTION.on(
    tuple(
        {
            "name": f"d = 20, identity, N = {N}",
            "task": {"covariance": "identity", "dimension": 20, "context_length": N},
            "init": {"kind": "zeros"},
        }
        for N in (40, 70, 100)
    ),
    spaces.PANEL,
).claim("figure-1.least-squares", "section 4.3 and Figure 1", setting=one_covariance, hypotheses=isotropic)
def least_squares_below(loss: LinearAttentionLoss) -> Comparison:
    """Least squares is optimal for this task: at no $M$ is its error above that of linear attention trained at $N$

    Judged for M = 1 to 200 on the panel with a fixed covariance. Where M < d, least squares is the solution of least
    norm, computed on drawn examples, on which its error does not depend.
    """
    d = loss.task.dimension
    model = balanced_minimum(loss.structure)
    lengths = jnp.arange(1.0, _LONGEST + 1)
    found = loss.eigenvalues[0] * _unseen(d)[jnp.minimum(jnp.arange(_LONGEST), d - 1)]
    # The risk is affine in 1/M.
    asymptotic, single = risk(model, loss.task, jnp.inf), risk(model, loss.task, 1)
    return at_most(found, asymptotic + (single - asymptotic) / lengths)
