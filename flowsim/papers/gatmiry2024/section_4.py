"""gatmiry2024's section 4: Lemmas 4.1 to 4.3 on the loss and its moments, Theorem 4.4 on what a small loss means."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from flowsim.claims.claim import Comparison, Relation, at_most
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LoopedLoss
from flowsim.losses.deep.residual_energy import loop_terms, power_terms
from flowsim.papers.gatmiry2024 import landscape_problems as problems
from flowsim.papers.gatmiry2024 import spaces
from flowsim.papers.gatmiry2024.layers import (
    JUDGED,
    PROBLEMS,
    both_expectations,
    drawn_layers,
    drawn_matrices,
    gaps_of_loss,
    identity,
    repeated,
    with_sums,
)
from flowsim.papers.gatmiry2024.lemma_settings import (
    DEEP,
    LONG,
    SHORT,
    SINGLE,
    Shape,
    long_for_moments,
    looped_by_matrices,
    shape,
)
from flowsim.papers.gatmiry2024.moments import (
    CONDITION_KEPT,
    CONDITION_LOST,
    LENGTHS,
    LONG_LENGTHS,
    moment_errors,
    of_moments,
    of_residuals,
    powers,
)
from flowsim.papers.gatmiry2024.setting import (
    MODELS,
    Loss,
    all_of,
    compared,
    delta,
    dimension_root,
    everywhere,
    looped,
    loops,
    over_determined,
    without_bias,
)
from flowsim.papers.paper import Section

SECTION = Section("gatmiry2024", *MODELS)

PROXIMITY = (
    problems.VERY_LONG,
    problems.VERY_LONG_ANISOTROPIC,
    problems.INFINITE,
    problems.WIDE_LONG,
    problems.EASY,
)


def gap_constants(loss: LoopedLoss, trajectory: Trajectory) -> dict[str, Array]:
    """The largest share of L(A, 0) by which the printed expression falls below it, among the drawn A."""
    task, L = loss.task, loss.loops
    printed, true, _ = both_expectations(
        power_terms(2 * L), loop_terms(L, True, False), task, {"A": drawn_matrices(task, 4)}
    )
    return {"largest_share_below": jnp.max(1 - printed / true)}


@SECTION.claim(
    "lemma-4.1",
    "Lemma 4.1",
    "L(A, 0) = E tr (I - A^{1/2} Sigma A^{1/2})^{2L}",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=looped_by_matrices,
    constants=gap_constants,
    problems=PROBLEMS,
    spaces=spaces.LEMMAS,
    note="The expression is the |.|_F^2 of the loss with the sample covariance in place of the population's. They are "
    "equal for every prompt if A is a multiple of S^-1; otherwise the expression is below the loss by a share of order "
    "1/n.",
)
def printed_looped_loss(loss: LoopedLoss, trajectory: Trajectory) -> Comparison:
    """E tr (I - A^{1/2} Sigma A^{1/2})^{2L} against L(A, 0), at drawn A and at S^-1."""
    task, L = loss.task, loss.loops
    return identity(power_terms(2 * L), loop_terms(L, True, False), task, {"A": drawn_matrices(task, 4)})


@SECTION.claim(
    "lemma-4.1",
    "Lemma 4.1",
    "E[(prediction - y_query)^2 | X] = |(I - W A')^L|_F^2, whose mean is L(A, 0), A' = S^{1/2} A S^{1/2}",
    form="corrected",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=looped_by_matrices,
    problems=PROBLEMS,
    spaces=spaces.LEMMAS,
    note=JUDGED + "The printed trace is that of (I - W A')^{2L}; the loss is that of (I - W A')^L (I - A' W)^L.",
)
def loss_of_loops(loss: LoopedLoss, trajectory: Trajectory) -> Comparison:
    """The literal loss given the examples, with one symmetric A and u = 0 for all layers."""
    drawn = repeated(drawn_layers(loss.task, 1), loss.loops, 0.0)
    return with_sums(*gaps_of_loss(drawn), drawn)


@SECTION.claim(
    "lemma-4.1.gap",
    "Lemma 4.1",
    "E tr (I - A^{1/2} Sigma A^{1/2})^{2L} < L(A, 0) unless A is a multiple of S^-1",
    form="corrected",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=looped_by_matrices,
    constants=gap_constants,
    problems=(SHORT, SINGLE, DEEP, LONG),
    spaces=spaces.LEMMAS,
    note="By Weyl's inequality, |tr M^{2L}| <= |M^L|_F^2 for every M. At L = 1 the gap is (d tr A'^2 - (tr A')^2)/n.",
)
def printed_looped_loss_below(loss: LoopedLoss, trajectory: Trajectory) -> Comparison:
    """The printed expression against L(A, 0), at drawn A that are not multiples of S^-1."""
    task, L = loss.task, loss.loops
    drawn = {"A": drawn_matrices(task, 4)[:-1]}
    printed, true, sums = both_expectations(power_terms(2 * L), loop_terms(L, True, False), task, drawn)
    comparison = at_most(printed, true, promised=task.dimension > 1)
    return eqx.tree_at(lambda c: c.scale, comparison, jnp.maximum(comparison.scale, sums))


def moment_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """delta, and the least n at which |alpha^{(j)} - lambda_j^k| <= delta^k lambda_1^k for all k <= 2L, by doubling and
    bisection.
    """
    known = shape(loss)

    def met(n: int) -> bool:
        there = Shape(known.loops, known.dimension, n, known.eigenvalues, known.multiplicities)
        largest = float(known.eigenvalues[0])
        return all(
            max(map(float, moment_errors(known.eigenvalues, known.multiplicities, n, k)))
            <= there.accuracy**k * largest**k
            for k in powers(known)
        )

    high = 1
    while not met(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if met(middle) else (middle, high)
    return {"delta": jnp.asarray(known.accuracy), "holds_from_n": jnp.asarray(float(high))}


@SECTION.claim(
    "lemma-4.2",
    "Lemma 4.2",
    "|alpha^{(j)}_{n,d,k} - lambda_j^k| <= delta^k lambda_1^k for all k <= 2L and j, with delta = "
    "(8Ld/sqrt(n))^{1/(2L)}, given n >= 4 k^2 d^2",
    form="corrected",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=looped,
    hypotheses=long_for_moments(4),
    constants=moment_constants,
    problems=LONG_LENGTHS,
    spaces=spaces.MOMENTS,
    note=CONDITION_KEPT + "The lower half holds at every n by Jensen's inequality.",
)
@SECTION.claim(
    "lemma-4.2",
    "Lemma 4.2",
    "|alpha^{(j)}_{n,d,k} - lambda_j^k| <= delta^k lambda_1^k for all k <= 2L and j, with delta = "
    "(8Ld/sqrt(n))^{1/(2L)}",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=looped,
    hypotheses=over_determined,
    constants=moment_constants,
    problems=LENGTHS,
    spaces=spaces.MOMENTS,
    note=CONDITION_LOST + "The lower half holds at every n by Jensen's inequality.",
)
@of_moments
def moment_controls(known: Shape, power: int) -> float:
    """delta^k with the delta of section 3.5."""
    return known.accuracy**power


@SECTION.claim(
    "lemma-4.3",
    "Lemma 4.3",
    "|beta_i^{(k)} - (1 - lambda_i)^k| <= delta^k (lambda_1 + 1)^k for all k <= 2L and i, with delta = "
    "(8Ld/sqrt(n))^{1/(2L)}, given n >= 4 k^2 d^2",
    form="corrected",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=looped,
    hypotheses=long_for_moments(4),
    problems=LONG_LENGTHS,
    spaces=spaces.MOMENTS,
    note=CONDITION_KEPT
    + "Judged at A = I, 100 I, S^-1 and 2 S^-1; beta depends on the spectrum of A^{1/2} S A^{1/2} alone.",
)
@SECTION.claim(
    "lemma-4.3",
    "Lemma 4.3",
    "|beta_i^{(k)} - (1 - lambda_i)^k| <= delta^k (lambda_1 + 1)^k for all k <= 2L and i, with delta = "
    "(8Ld/sqrt(n))^{1/(2L)}",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=looped,
    hypotheses=over_determined,
    problems=LENGTHS,
    spaces=spaces.MOMENTS,
    note=CONDITION_LOST
    + "Judged at A = I, 100 I, S^-1 and 2 S^-1; beta depends on the spectrum of A^{1/2} S A^{1/2} alone.",
)
@of_residuals
def eigenvalue_approximation(known: Shape, power: int) -> float:
    """delta^k with the delta of section 3.5."""
    return known.accuracy**power


def proximity_factor(loss: Loss) -> float:
    """c = 4 + 16 d^{1/(2L)}. **Source:** gatmiry2024, Theorem 4.4."""
    return 4.0 + 16.0 * dimension_root(loss)


def proximity_constants(loss: Loss, trajectory: Trajectory) -> dict[str, Array]:
    """c, the sharp c at all points where epsilon > 4 delta, and the context length needed for 1 - c epsilon > 0."""
    points = everywhere(loss, trajectory)
    epsilon = (2.0 * points.loss) ** (1 / (2 * loops(loss)))
    known = epsilon > 4.0 * delta(loss)
    ratio = points.deviation / jnp.where(known, epsilon, 1.0)
    needed = 8.0 * loops(loss) * loss.task.dimension * (4.0 * proximity_factor(loss)) ** (2 * loops(loss))
    return {
        "c": jnp.asarray(proximity_factor(loss)),
        "sharp_c": jnp.max(jnp.where(known, ratio, -jnp.inf)),
        "context_length_needed": jnp.asarray(float(needed) ** 2),
    }


@SECTION.claim(
    "theorem-4.4",
    "Theorem 4.4",
    "For epsilon > 4 delta, L(A, 0) <= epsilon^{2L}/2 implies (1 - c epsilon) A_opt <= A <= (1 + c epsilon) A_opt, "
    "c = 4 + 16 d^{1/(2L)}",
    relation=Relation.INEQUALITY,
    along_flow=True,
    setting=looped,
    hypotheses=all_of(without_bias, over_determined),
    constants=proximity_constants,
    problems=PROXIMITY,
    spaces=spaces.PROXIMITY,
    note="Judges both halves, along the flow and at drawn A. 1 - c epsilon > 0 needs sqrt(n) > 8 L d (4c)^{2L}.",
)
def proximity(loss: Loss, trajectory: Trajectory) -> Comparison:
    """The distance of A from A_opt against c epsilon, for the least epsilon above 4 delta with L <= epsilon^{2L}/2."""
    points = everywhere(loss, trajectory)
    epsilon = jnp.maximum((2.0 * points.loss) ** (1 / (2 * loops(loss))), 4.0 * delta(loss))
    bound = proximity_factor(loss) * epsilon
    return compared(at_most(points.deviation, bound, promised=bound > 0), points)
