"""zhang2023: Trained Transformers Learn Linear Models In-Context (Zhang, Frei, Bartlett).

A file holds a section of the paper, or several short ones; files named by a noun hold what several sections share. The
loss is a `LinearAttentionLoss`, or a `RandomCovarianceLoss` in section 4.3, for the lines
of Figure 1 and in appendix C; its task is the one that the statement is about. Statements about every parameter, not
about a flow, are judged at the points of the trajectory. The paper's symbols are used throughout.
"""

from flowsim.claims.claim import Claim
from flowsim.losses import LinearAttentionLoss, RandomCovarianceLoss
from flowsim.losses.sampled.monte_carlo import stated
from flowsim.models import LinearAttention
from flowsim.papers.paper import Paper, Predictions
from flowsim.papers.zhang2023 import (
    appendix_a,
    appendix_c,
    appendix_d,
    prompt_lengths,
    section_3,
    section_4_1,
    section_4_2,
    section_4_3,
    section_5,
)
from flowsim.papers.zhang2023.maps import MAPPED, columns
from flowsim.papers.zhang2023.predictions import predictions
from flowsim.problem import Problem

CLAIMS: tuple[Claim, ...] = (
    *section_3.SECTION.claims,
    *section_4_1.SECTION.claims,
    *prompt_lengths.SECTION.claims,
    *section_4_2.SECTION.claims,
    *section_4_3.SECTION.claims,
    *section_4_3.FIGURE_1.claims,
    *section_5.SECTION.claims,
    *appendix_a.SECTION.claims,
    *appendix_c.DYNAMICS.claims,
    *appendix_c.MINIMA.claims,
    *appendix_c.CONVERGENCE.claims,
    *appendix_d.SECTION.claims,
)


def _predictions(problem: Problem) -> Predictions | None:
    known = isinstance(stated(problem.loss), LinearAttentionLoss | RandomCovarianceLoss)
    return predictions(problem.task, problem.start) if known else None


PAPER = Paper(
    id="zhang2023",
    authors="Zhang, Frei, Bartlett",
    year=2023,
    title="Trained Transformers Learn Linear Models In-Context",
    arxiv="2306.09927",
    models=(LinearAttention,),
    claims=CLAIMS,
    predictions=_predictions,
    mapped=MAPPED,
    columns=columns,
)
