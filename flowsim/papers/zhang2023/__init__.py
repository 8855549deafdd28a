"""zhang2023: Trained Transformers Learn Linear Models In-Context (Zhang, Frei, Bartlett)."""

from flowsim.claims.claim import Claim, about
from flowsim.models import LinearAttention
from flowsim.papers.paper import Paper
from flowsim.papers.zhang2023 import (
    appendix_claims,
    appendix_d,
    claims,
    figure_1,
    new_prompt_claims,
    one_third,
    random_covariance_claims,
)
from flowsim.papers.zhang2023.predictions import Predictions, predictions
from flowsim.problem import Problem
from flowsim.tasks import SpectralRegression

CLAIMS: tuple[Claim, ...] = (
    about(
        (
            *claims.CLAIMS,
            *new_prompt_claims.CLAIMS,
            *random_covariance_claims.CLAIMS,
            *one_third.CLAIMS,
            *figure_1.CLAIMS,
            *appendix_claims.CLAIMS,
        ),
        LinearAttention,
    )
    + appendix_d.SECTION.claims
)


def _promises(problem: Problem) -> Predictions | None:
    return None if isinstance(problem.task, SpectralRegression) else predictions(problem.task, problem.start)


PAPER = Paper(
    id="zhang2023",
    authors="Zhang, Frei, Bartlett",
    year=2023,
    title="Trained Transformers Learn Linear Models In-Context",
    arxiv="2306.09927",
    models=(LinearAttention,),
    claims=CLAIMS,
    promises=_promises,
)
