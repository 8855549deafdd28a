"""zhang2023: Trained Transformers Learn Linear Models In-Context (Zhang, Frei, Bartlett).

Most files hold one section of the paper, or several short ones. Files named by a noun hold what several sections share.
Claims with one covariance are about a `LinearAttentionLoss`; those with random covariances, in section 4.3 and appendix
C, are about a `RandomCovarianceLoss`. A statement about every parameter is judged at the points of a flow. The symbols
are the paper's.
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
