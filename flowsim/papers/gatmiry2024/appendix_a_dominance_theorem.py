"""gatmiry2024's appendix A: Theorem A.11 on gradient dominance, and its proof, (28)."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from flowsim._core.types import Scalar
from flowsim.claims.claim import Comparison, at_least
from flowsim.claims.declaring import Section
from flowsim.claims.hypotheses import Hypothesis, hypothesis
from flowsim.flow.trajectory import Trajectory
from flowsim.papers.gatmiry2024 import landscape_problems as problems
from flowsim.papers.gatmiry2024 import spaces
from flowsim.papers.gatmiry2024.dominance import (
    DOMINANCE,
    DOMINANCE_OF_LONG_CONTEXTS,
    HOELDER,
    PRINTED_CONSTANT,
    REFUTED,
    SMALL_COVARIANCE,
    STEPS,
    WITH_COVARIANCE,
    appendix_threshold,
    dominates,
    sharp_constants,
)
from flowsim.papers.gatmiry2024.setting import (
    MODELS,
    Loss,
    at_points,
    compared,
    delta,
    delta_power,
    dimension_root,
    dominance_factor,
    drawn,
    everywhere,
    long_context,
    looped,
    loops,
    over_determined,
    without_bias,
)

_FACTORS = (1.0 + 1e-6, 1.5, 2.0, 10.0, 100.0)  # times the least epsilon of a step


def appendix_dominance_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The constants of Theorem 3.4, with the threshold of the appendix."""
    return sharp_constants(loss, trajectory, appendix_threshold(loss))


SECTION = Section("gatmiry2024", *MODELS, setting=looped)
ON_STEPS = SECTION.on(STEPS, spaces.OPTIMUM, hypotheses=over_determined)


@SECTION.claim(
    "theorem-a.11",
    "Theorem A.11",
    hypotheses=(without_bias, over_determined),
    problems=(*DOMINANCE, problems.SMALL_COVARIANCE),
    spaces=spaces.ANY_COVARIANCE,
    constants=appendix_dominance_constants,
    note=f"{SMALL_COVARIANCE}{REFUTED} The threshold here is 4^L times that of Theorem 3.4.",
)
def appendix_dominance(loss: Loss, flow: Trajectory) -> Comparison:
    r"""$\mathcal{L}(A, 0) \ge 2 (4 \delta)^{2L}$ implies $\lVert \nabla \mathcal{L} \rVert^2 \ge
    \mathcal{L}^{(2L-1)/L}/16$
    """
    return dominates(loss, everywhere(loss, flow), PRINTED_CONSTANT, appendix_threshold(loss))


@SECTION.corrected(
    appendix_dominance,
    hypotheses=(without_bias, long_context),
    problems=(*DOMINANCE_OF_LONG_CONTEXTS, problems.ANISOTROPIC, problems.SMALL_COVARIANCE),
    spaces=spaces.ANY_COVARIANCE,
    constants=appendix_dominance_constants,
    note=WITH_COVARIANCE + HOELDER,
)
def appendix_dominance_with_dimension(loss: Loss, flow: Trajectory) -> Comparison:
    r"""For $8 L d^2/\sqrt{n} \le 2^{-2L}$, $\mathcal{L}(A, 0) \ge 2 (4 \delta)^{2L}$ implies $\lVert \nabla \mathcal{L}
    \rVert^2 \ge \lambda_d(\Sigma^*)^2 d^{-(L-1)/L} \mathcal{L}^{(2L-1)/L}/16$
    """
    constant = PRINTED_CONSTANT * dominance_factor(loss)
    return dominates(loss, everywhere(loss, flow), constant, appendix_threshold(loss))


def _restated(loss: Loss, factor: ArrayLike) -> Comparison:
    """|grad L|^2 against epsilon^{4L-2}/4 with 2 epsilon^{2L} = L(A, 0), where epsilon > 4 delta."""
    points = at_points(loss, drawn(loss))
    epsilon = (points.loss / 2) ** (1 / (2 * loops(loss)))
    bound = factor * epsilon ** (4 * loops(loss) - 2) / 4
    promised = (epsilon > 4.0 * delta(loss)) & (points.loss > 0)
    return compared(at_least(points.grad_norm_sq, bound, promised=promised), points)


@ON_STEPS.claim("theorem-a.11.eq-28", "proof of Theorem A.11, (28)")
@eqx.filter_jit
def printed_restated(loss: Loss) -> Comparison:
    r"""For $\epsilon > 4 \delta$, $\mathcal{L}(A, 0) \ge 2 \epsilon^{2L}$ implies $\lVert \nabla \mathcal{L} \rVert^2
    \ge \epsilon^{4L-2}/4$

    The proof uses Lemma A.10 without its conditions 8 delta d^{3/(4L)} <= epsilon <= 1, without Sigma* = I, and without
    the d^{-(L-1)/L} of its proof.
    """
    return _restated(loss, 1.0)


@ON_STEPS.corrected(printed_restated, hypotheses=long_context)
@eqx.filter_jit
def restated(loss: Loss) -> Comparison:
    r"""For $8 L d^2/\sqrt{n} \le 2^{-2L}$ and $\epsilon > 4 \delta$, $\mathcal{L}(A, 0) \ge 2 \epsilon^{2L}$ implies
    $\lVert \nabla \mathcal{L} \rVert^2 \ge \lambda_d(\Sigma^*)^2 d^{-(L-1)/L} \epsilon^{4L-2}/4$

    Judged at drawn A.
    """
    return _restated(loss, dominance_factor(loss))


def short_of_half(loss: Loss, start) -> list[Hypothesis]:
    """delta d^{1/(2L)} < 1/2. **Source:** gatmiry2024, Theorem A.8."""
    return [hypothesis("delta d^(1/(2L)) < 1/2", delta(loss) * dimension_root(loss), "<", 0.5)]


def _step(loss: Loss, least: Scalar) -> Comparison:
    """epsilon^{2L} over d delta^{2L} (epsilon + 2)^{2L} against 1, for epsilon from ``least`` on."""
    epsilon, power = least * jnp.asarray(_FACTORS), 2 * loops(loss)
    known = jnp.isfinite(loss.task.context_length)
    safe = jnp.where(known, delta_power(loss), 1.0)
    ratio = (epsilon / (epsilon + 2.0)) ** power / (loss.task.dimension * safe)
    return at_least(ratio, 1.0, promised=known)


@ON_STEPS.claim("theorem-a.11.step", "proof of Theorem A.11")
@eqx.filter_jit
def printed_step(loss: Loss) -> Comparison:
    r"""$\epsilon > 4 \delta$ implies $\epsilon^{2L} \ge d \delta^{2L} (\epsilon + 2)^{2L}$

    Needs delta <= d^{-1/(2L)} - 1/2, and so d < 4^L. Theorem A.11 rests on this step.
    """
    return _step(loss, 4.0 * delta(loss))


@ON_STEPS.corrected(printed_step, hypotheses=short_of_half)
@eqx.filter_jit
def step(loss: Loss) -> Comparison:
    r"""For $\delta d^{1/(2L)} < 1/2$, $\epsilon > 4 \delta d^{1/(2L)}$ implies $\epsilon^{2L} \ge d \delta^{2L}
    (\epsilon + 2)^{2L}$

    It gives a threshold on the loss that is d times that of Theorem A.11.
    """
    return _step(loss, 4.0 * delta(loss) * dimension_root(loss))
