"""gatmiry2024's section 4: Lemmas 4.1 to 4.3 on the loss and its moments, Theorem 4.4 on what a small loss means."""

import bisect
import dataclasses
import itertools

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from flowsim.claims.claim import Comparison, at_most
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LoopedLoss
from flowsim.losses.deep.residual_energy import loop_terms, power_terms
from flowsim.moments import TracePolynomial
from flowsim.papers.gatmiry2024 import appendix_a_layers, lemmas, moments, problems, setting, spaces
from flowsim.tasks import LinearRegression


def _sides(loss: LoopedLoss) -> tuple[TracePolynomial, TracePolynomial, LinearRegression]:
    """Both sides of Lemma 4.1 as functions of n and A' = S^{1/2} A S^{1/2}, and the task.

    The sides are the printed E tr (I - A^{1/2} Sigma A^{1/2})^{2L}, and the loss at u = 0.
    """
    return power_terms(2 * loss.loops), loop_terms(loss.loops, True, False), loss.task


def _matrices(loss: LoopedLoss) -> dict[str, appendix_a_layers.Layers]:
    """Four random A' and I, in the form that `both_expectations` takes."""
    return {"A": appendix_a_layers.drawn_matrices(loss.task, 4)}


def gap_constants(loss: LoopedLoss, trajectory: Trajectory) -> dict[str, Array]:
    """The largest value of 1 - printed/loss among the random A.

    Here ``printed`` is the expression of Lemma 4.1 for the loss at u = 0.
    """
    printed, true, _ = appendix_a_layers.both_expectations(*_sides(loss), _matrices(loss))
    return {"largest_share_below": jnp.max(1 - printed / true)}


_JENSEN = "The lower half holds at every n by Jensen's inequality."
_SPECTRUM_ALONE = "Judged at A = I, 100 I, S^-1 and 2 S^-1; beta depends on the spectrum of A^{1/2} S A^{1/2} alone."

SECTION = setting.LOOPED()
ON_PROBLEMS = SECTION.on(appendix_a_layers.PROBLEMS, spaces.LEMMAS, setting=moments.looped_by_matrices)
ON_LENGTHS = SECTION.on(lemmas.LENGTHS, spaces.MOMENTS, hypotheses=setting.over_determined)
ON_LONG_LENGTHS = SECTION.on(lemmas.LONG_LENGTHS, spaces.MOMENTS, hypotheses=moments.long_for_moments(4))


@ON_PROBLEMS.claim("lemma-4.1", "Lemma 4.1", constants=gap_constants)
def printed_looped_loss(loss: LoopedLoss) -> Comparison:
    r"""$\mathcal{L}(A, 0) = \mathbb{E} \operatorname{tr} (I - A^{1/2} \Sigma A^{1/2})^{2L}$

    The loss is E |S^{-1/2} (I - Sigma A)^L S^{1/2}|_F^2, with S the population covariance. With the sample covariance
    Sigma in place of S this becomes the printed expression. The two are equal for every prompt if A is a multiple of
    S^-1. Otherwise the expression is below the loss by a share of order 1/n.
    """
    return appendix_a_layers.identity(*_sides(loss), _matrices(loss))


@ON_PROBLEMS.corrected(
    printed_looped_loss,
    note=appendix_a_layers.JUDGED
    + "The printed trace is that of (I - W A')^{2L}; the loss is that of (I - W A')^L (I - A' W)^L.",
)
def loss_of_loops(loss: LoopedLoss) -> Comparison:
    r"""$\mathbb{E}\bigl[(\text{prediction} - y_{\mathrm{query}})^2 \mid X\bigr] = \lVert (I - W A')^L \rVert_F^2$,
    whose mean is $\mathcal{L}(A, 0)$, $A' = S^{1/2} A S^{1/2}$
    """
    drawn = appendix_a_layers.repeated(appendix_a_layers.drawn_layers(loss.task, 1), loss.loops, 0.0)
    return appendix_a_layers.with_sums(*appendix_a_layers.gaps_of_loss(drawn), drawn)


@SECTION.on((lemmas.SHORT, lemmas.SINGLE, lemmas.DEEP, lemmas.LONG), spaces.LEMMAS).claim(
    "lemma-4.1.gap", "Lemma 4.1", form="corrected", setting=moments.looped_by_matrices, constants=gap_constants
)
def printed_looped_loss_below(loss: LoopedLoss) -> Comparison:
    r"""$\mathbb{E} \operatorname{tr} (I - A^{1/2} \Sigma A^{1/2})^{2L} < \mathcal{L}(A, 0)$ unless $A$ is a multiple of
    $S^{-1}$

    By Weyl's inequality, |tr M^{2L}| <= |M^L|_F^2 for every M. At L = 1 the gap is (d tr A'^2 - (tr A')^2)/n.
    """
    drawn = {"A": _matrices(loss)["A"][:-1]}
    printed, true, sums = appendix_a_layers.both_expectations(*_sides(loss), drawn)
    comparison = at_most(printed, true, promised=loss.task.dimension > 1)
    return eqx.tree_at(lambda c: c.scale, comparison, jnp.maximum(comparison.scale, sums))


def moment_constants(loss: setting.Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The constants to report: delta, and the least n at which the inequality of Lemma 4.2 is true.

    The inequality is |alpha^{(j)} - lambda_j^k| <= delta^k lambda_1^k, for all j and all k <= 2L. n is found by
    bisection.
    """
    known = moments.shape(loss)

    def met(n: int) -> bool:
        there = dataclasses.replace(known, length=n)
        largest = float(known.eigenvalues[0])
        return all(
            max(map(float, moments.moment_errors(known.eigenvalues, known.multiplicities, n, k)))
            <= there.accuracy**k * largest**k
            for k in moments.powers(known)
        )

    high = next(n for n in (2**i for i in itertools.count()) if met(n))
    least = bisect.bisect_left(range(high), True, lo=high // 2 + 1, key=met)
    return {"delta": jnp.asarray(known.accuracy), "holds_from_n": jnp.asarray(float(least))}


@ON_LENGTHS.claim("lemma-4.2", "Lemma 4.2", constants=moment_constants, note=moments.CONDITION_LOST + _JENSEN)
@moments.of_moments
def moment_controls(known: moments.Shape, power: int) -> float:
    r"""$\lvert \alpha^{(j)}_{n,d,k} - \lambda_j^k \rvert \le \delta^k \lambda_1^k$ for all $k \le 2L$ and $j$, with
    $\delta = (8Ld/\sqrt{n})^{1/(2L)}$
    """
    return known.accuracy**power


moments.given_long_contexts(moment_controls, ON_LONG_LENGTHS, _JENSEN)


@ON_LENGTHS.claim("lemma-4.3", "Lemma 4.3", note=moments.CONDITION_LOST + _SPECTRUM_ALONE)
@moments.of_residuals
def eigenvalue_approximation(known: moments.Shape, power: int) -> float:
    r"""$\lvert \beta_i^{(k)} - (1 - \lambda_i)^k \rvert \le \delta^k (\lambda_1 + 1)^k$ for all $k \le 2L$ and $i$,
    with $\delta = (8Ld/\sqrt{n})^{1/(2L)}$
    """
    return known.accuracy**power


moments.given_long_contexts(eigenvalue_approximation, ON_LONG_LENGTHS, _SPECTRUM_ALONE)


def proximity_factor(loss: setting.Loss) -> float:
    """The factor c = 4 + 16 d^{1/(2L)} of epsilon. **Source:** gatmiry2024, Theorem 4.4."""
    return 4.0 + 16.0 * setting.dimension_root(loss)


def proximity_constants(loss: setting.Loss, trajectory: Trajectory) -> dict[str, Array]:
    """The constants to report for the bound c epsilon on the distance of A from A_opt.

    They are c, the least c that is right at all points with epsilon > 4 delta, and the context length above which
    some allowed epsilon has 1 - c epsilon > 0. The loss is epsilon^{2L}/2 at each point of `setting.everywhere`.
    """
    points = setting.everywhere(loss, trajectory)
    epsilon = (2.0 * points.loss) ** (1 / (2 * setting.loops(loss)))
    known = epsilon > 4.0 * setting.delta(loss)
    ratio = points.deviation / jnp.where(known, epsilon, 1.0)
    c, L = proximity_factor(loss), setting.loops(loss)
    needed = 8.0 * L * loss.task.dimension * (4.0 * c) ** (2 * L)
    return {
        "c": jnp.asarray(c),
        "sharp_c": jnp.max(jnp.where(known, ratio, -jnp.inf)),
        "context_length_needed": jnp.asarray(float(needed) ** 2),
    }


@SECTION.on(problems.PROXIMITY, spaces.PROXIMITY).claim(
    "theorem-4.4",
    "Theorem 4.4",
    hypotheses=(setting.without_bias, setting.over_determined),
    constants=proximity_constants,
)
def proximity(loss: setting.Loss, flow: Trajectory) -> Comparison:
    r"""For $\epsilon > 4 \delta$, $\mathcal{L}(A, 0) \le \epsilon^{2L}/2$ implies $(1 - c \epsilon) A_{\mathrm{opt}}
    \preceq A \preceq (1 + c \epsilon) A_{\mathrm{opt}}$, $c = 4 + 16 d^{1/(2L)}$

    Both halves are judged, along the flow and at random A. 1 - c epsilon > 0 needs sqrt(n) > 8 L d (4c)^{2L}.
    """
    points = setting.everywhere(loss, flow)
    epsilon = jnp.maximum((2.0 * points.loss) ** (1 / (2 * setting.loops(loss))), 4.0 * setting.delta(loss))
    bound = proximity_factor(loss) * epsilon
    return setting.compared(at_most(points.deviation, bound, promised=bound > 0), points)
