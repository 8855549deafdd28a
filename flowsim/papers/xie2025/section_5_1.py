"""xie2025, section 5.1, multi-head LSA: the least risk by heads, by the prior mean and by the initial guess."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim.claims.claim import Comparison, Relation, at_least
from flowsim.claims.statements import joined
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import MultiHeadLoss
from flowsim.papers.paper import Section
from flowsim.papers.xie2025 import problems, spaces
from flowsim.papers.xie2025.conditions import (
    MODELS,
    all_of,
    few_coordinates,
    finite_context,
    heads_on_isotropic,
    prior_mean,
    promised_where,
)
from flowsim.papers.xie2025.minima import (
    ANY_STEP,
    BEST_STEP,
    SAME,
    Descent,
    best_descent_risks,
    descent_risks,
    least,
    optimum_constants,
    same_gaps,
)
from flowsim.papers.xie2025.setting import counted, reached, zero_heads
from flowsim.tasks import LinearRegression

Task = LinearRegression

SECTION = Section("xie2025", *MODELS)

_BEST_STEP_HOLDS = " With the step size of least risk the statement holds: best-step."
_SCALES = (0.0, 0.5, 1.0, 2.0, 10.0)


# Section 5.1.1, varying numbers of heads


def _risks_by_heads(task: Task) -> tuple[Float[Array, " H"], bool]:
    """The least risks of 1, .., d + 1 heads, and whether one disagrees with its weights or the normal equations."""
    d, bound = task.dimension, least(task)
    found = jnp.stack([reached(task, zero_heads(d, H))[1] for H in range(1, d + 2)])
    off = jnp.any(jnp.abs(found - found[:, -1:]) > SAME * found)
    return found[:, -1], bool(off | jnp.any(jnp.abs(found[-2:, -1] - bound) > SAME * bound))


@SECTION.claim(
    "sec-5.1.heads",
    "section 5.1.1",
    "the least risk decreases with every head up to d + 1",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=all_of(prior_mean, few_coordinates),
    problems=(problems.EASY, problems.SHORT, problems.LARGE_MEAN, problems.ONE),
    spaces=spaces.FINITE,
    note="It decreases up to d heads only: head d + 1 does not lower it.",
)
@promised_where(few_coordinates)
def more_heads_help(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """For how many H = 1, .., d the least risk of H + 1 heads is not below that of H."""
    risks, wrong = _risks_by_heads(loss.task)
    return counted(risks[1:] >= (1 - SAME) * risks[:-1], unknown=wrong)


@SECTION.claim(
    "sec-5.1.heads",
    "section 5.1.1",
    "at finite C the least risk decreases with every head up to d, and not from d to d + 1",
    form="corrected",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=all_of(prior_mean, finite_context, few_coordinates),
    problems=(problems.EASY, problems.SHORT, problems.ONE),
    spaces=spaces.FINITE,
    note="The risk saturates at d heads, and not at d + 1 as printed.",
)
@promised_where(few_coordinates)
def more_heads_help_up_to_d(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """For how many H = 1, .., d - 1 the least risk of H + 1 heads is not below that of H, plus one if d + 1 heads are
    below d.
    """
    risks, wrong = _risks_by_heads(loss.task)
    return counted(risks[1:-1] >= (1 - SAME) * risks[:-2], risks[-1] < (1 - SAME) * risks[-2], unknown=wrong)


@SECTION.claim(
    "sec-5.1.heads.lower-bound",
    "section 5.1.1",
    "the risk of one step of gradient descent from w*, of any step size eta, is strictly below that of multi-head LSA "
    "with y_q = 0, for w* != 0",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=all_of(prior_mean, few_coordinates),
    problems=problems.FINITE,
    spaces=spaces.FINITE,
    constants=optimum_constants,
    note=ANY_STEP
    + " At eta = 1 gradient descent has the risk d (d+1)/C, which heads beat at small |w*|."
    + _BEST_STEP_HOLDS,
)
@promised_where(few_coordinates)
def any_descent_is_better(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The least risk of any number of heads above that of one step from w*, for eta = 0.5 and 1."""
    return at_least(least(loss.task)[None], descent_risks(loss.task))


@SECTION.claim(
    "sec-5.1.heads.lower-bound.best-step",
    "section 5.1.1",
    "at finite C the risk of one step of gradient descent from w* with eta* = C/(C+d+1) is strictly below that of "
    "multi-head LSA with y_q = 0, for w* != 0",
    relation=Relation.INEQUALITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=all_of(prior_mean, finite_context, few_coordinates),
    problems=problems.FINITE,
    spaces=spaces.FINITE,
    constants=optimum_constants,
    note=BEST_STEP + " The gap is 2 |w*|^2/(d C + 2), which vanishes as C -> infinity.",
)
@promised_where(few_coordinates)
def best_descent_is_better(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The least risk of any number of heads above that of one step from w* with eta* = C/(C+d+1)."""
    return at_least(least(loss.task)[None], best_descent_risks(loss.task))


# Section 5.1.2, the effect of the prior mean


def _gap_of_prior_mean(loss: MultiHeadLoss, descent: Descent) -> Comparison:
    task, risk, d = loss.task, loss.risk, loss.task.dimension
    pairs = []
    for c in _SCALES:
        moved = LinearRegression(task.covariance, task.context_length, prior_mean=c * risk.prior_mean)
        expected = c**2 * jnp.sum(risk.prior_mean**2) * risk.gap
        pairs.append(same_gaps(moved, zero_heads(d, d + 1), least(moved), expected, descent(moved)))
    return joined(pairs)


@SECTION.claim(
    "sec-5.1.prior-mean",
    "section 5.1.2",
    "the least risk of d + 1 heads with y_q = 0 is above that of one step of gradient descent from w*, of any step "
    "size eta, by a multiple of |w*|^2",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=few_coordinates,
    problems=problems.TASKS,
    spaces=spaces.TASKS,
    constants=optimum_constants,
    note=ANY_STEP
    + " At eta = 1 the two differ even at w* = 0. The text has d + 1 heads or more, Table 1 has 1."
    + _BEST_STEP_HOLDS,
)
@promised_where(few_coordinates)
def gap_of_prior_mean(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The gap at c w* against 2 c^2 |w*|^2/(d C + 2), c = 0, 0.5, 1, 2 and 10, for eta = 0.5 and 1."""
    return _gap_of_prior_mean(loss, descent_risks)


@SECTION.claim(
    "sec-5.1.prior-mean.best-step",
    "section 5.1.2",
    "the least risk of d + 1 heads with y_q = 0 is above that of one step of gradient descent from w* with "
    "eta* = C/(C+d+1) by 2 |w*|^2/(d C + 2)",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=few_coordinates,
    problems=problems.TASKS,
    spaces=spaces.TASKS,
    constants=optimum_constants,
    note=BEST_STEP + " Judged at c w* for c from 0 to 10.",
)
@promised_where(few_coordinates)
def best_gap_of_prior_mean(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The gap at c w* against 2 c^2 |w*|^2/(d C + 2), c = 0, 0.5, 1, 2 and 10, for eta* = C/(C+d+1)."""
    return _gap_of_prior_mean(loss, best_descent_risks)


# Section 5.1.3, the effect of y_q


def _gap_of_guess(loss: MultiHeadLoss, descent: Descent) -> Comparison:
    d = loss.task.dimension
    task = LinearRegression(loss.task.covariance, loss.task.context_length)
    pairs = []
    for c in _SCALES:
        for w, bias in ((c * np.ones(d), 0.0), (np.zeros(d), c)):
            expected = (float(w @ w) + bias**2) * loss.risk.gap
            like = zero_heads(d, d + 1, False, w, bias)
            pairs.append(same_gaps(task, like, least(task, w, bias), expected, descent(task)))
    return joined(pairs)


@SECTION.claim(
    "sec-5.1.initial-guess",
    "section 5.1.3",
    "at w* = 0 the least risk of d + 1 heads exceeds that of one step of gradient descent from w*, of any step size "
    "eta, by multiples of |y_q_guess|^2, y_q_bias^2",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=few_coordinates,
    problems=problems.TASKS,
    spaces=spaces.TASKS,
    constants=optimum_constants,
    note=ANY_STEP
    + " At eta = 1 the two differ even without a guess. The text has d + 1 heads, Table 1 has 1."
    + _BEST_STEP_HOLDS,
)
@promised_where(few_coordinates)
def gap_of_guess(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The gap at a guess c (1, .., 1)^T x_q against 2 c^2 d/(d C + 2), and at a bias c against 2 c^2/(d C + 2).

    w* = 0, c = 0, 0.5, 1, 2 and 10, and eta = 0.5 and 1.
    """
    return _gap_of_guess(loss, descent_risks)


@SECTION.claim(
    "sec-5.1.initial-guess.best-step",
    "section 5.1.3",
    "at w* = 0 the least risk of d + 1 heads exceeds that of one step of gradient descent from w* with "
    "eta* = C/(C+d+1) by (|y_q_guess|^2 + y_q_bias^2) 2/(d C + 2)",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=few_coordinates,
    problems=problems.TASKS,
    spaces=spaces.TASKS,
    constants=optimum_constants,
    note=BEST_STEP + " A guess and a bias are judged separately.",
)
@promised_where(few_coordinates)
def best_gap_of_guess(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """`gap_of_guess` for eta* = C/(C+d+1)."""
    return _gap_of_guess(loss, best_descent_risks)
