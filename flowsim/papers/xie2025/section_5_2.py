"""xie2025, section 5.2: the least risk of y_q-LSA against that of gradient descent."""

from flowsim.claims.claim import Comparison, Relation
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import MultiHeadLoss
from flowsim.losses.one_layer.head_risk import HeadRisk
from flowsim.papers.paper import Section
from flowsim.papers.xie2025 import problems, spaces
from flowsim.papers.xie2025.conditions import MODELS, few_coordinates, heads_on_isotropic, promised_where
from flowsim.papers.xie2025.minima import (
    ANY_STEP,
    Descent,
    best_descent_risks,
    descent_risks,
    least_with_trained_guess,
    same_gaps,
)
from flowsim.papers.xie2025.setting import zero_heads
from flowsim.tasks import LinearRegression

Task = LinearRegression

SECTION = Section("xie2025", *MODELS)


def _guess_closes_gap(task: Task, descent: Descent) -> Comparison:
    like = zero_heads(task.dimension, 1, True, HeadRisk(task).prior_mean)
    return same_gaps(task, like, least_with_trained_guess(task), 0.0, descent(task))


@SECTION.claim(
    "sec-5.2",
    "section 5.2",
    "y_q-LSA reaches the risk of one step of gradient descent from w*, of any step size eta, whatever w*",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=few_coordinates,
    problems=problems.TASKS,
    spaces=spaces.TASKS,
    note=ANY_STEP + " At finite C the least risk of y_q-LSA is below that of both.",
)
@promised_where(few_coordinates)
def guess_closes_gap(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The least risk of one head with a trained guess against that of one step from w*, for eta = 0.5 and 1."""
    return _guess_closes_gap(loss.task, descent_risks)


@SECTION.claim(
    "sec-5.2",
    "section 5.2",
    "the least risk of y_q-LSA is that of one step of gradient descent from w* with eta* = C/(C+d+1), whatever w*",
    form="corrected",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=few_coordinates,
    problems=problems.TASKS,
    spaces=spaces.TASKS,
    note="True of the best step size.",
)
@promised_where(few_coordinates)
def guess_closes_best_gap(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """The least risk of one head with a trained guess against that of one step from w* with eta* = C/(C+d+1)."""
    return _guess_closes_gap(loss.task, best_descent_risks)
