"""xie2025, section 5.2: the least risk of y_q-LSA against that of gradient descent."""

from flowsim.claims.claim import Comparison
from flowsim.claims.declaring import Section
from flowsim.losses import MultiHeadLoss
from flowsim.losses.one_layer.head_risk import HeadRisk
from flowsim.papers.xie2025 import problems, spaces
from flowsim.papers.xie2025.conditions import MODELS, few_coordinates, heads_on_isotropic
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


def _guess_closes_gap(task: Task, descent: Descent) -> Comparison:
    like = zero_heads(task.dimension, 1, True, HeadRisk(task).prior_mean)
    return same_gaps(task, like, least_with_trained_guess(task), 0.0, descent(task))


SECTION = Section(
    "xie2025", *MODELS, setting=heads_on_isotropic, needs=few_coordinates, problems=problems.TASKS, spaces=spaces.TASKS
)


@SECTION.claim(
    "sec-5.2", "section 5.2", note=ANY_STEP + " At finite C the least risk of y_q-LSA is below that of both."
)
def guess_closes_gap(loss: MultiHeadLoss) -> Comparison:
    r"""$y_q$-LSA reaches the risk of one step of gradient descent from $w_\star$, of any step size $\eta$, whatever
    $w_\star$
    """
    return _guess_closes_gap(loss.task, descent_risks)


@SECTION.corrected(guess_closes_gap)
def guess_closes_best_gap(loss: MultiHeadLoss) -> Comparison:
    r"""the least risk of $y_q$-LSA is that of one step of gradient descent from $w_\star$ with $\eta^* = C/(C+d+1)$,
    whatever $w_\star$

    True of the best step size.
    """
    return _guess_closes_gap(loss.task, best_descent_risks)
