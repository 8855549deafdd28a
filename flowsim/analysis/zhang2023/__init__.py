"""zhang2023: Trained Transformers Learn Linear Models In-Context (Zhang, Frei, Bartlett)."""

from flowsim.analysis.base import Claim, about
from flowsim.analysis.zhang2023 import (
    appendix_claims,
    claims,
    figure_1,
    new_prompt_claims,
    one_third,
    random_covariance_claims,
    technical_lemmas,
)
from flowsim.models import LinearAttention

CLAIMS: tuple[Claim, ...] = about(
    (
        *claims.CLAIMS,
        *new_prompt_claims.CLAIMS,
        *random_covariance_claims.CLAIMS,
        *one_third.CLAIMS,
        *figure_1.CLAIMS,
        *appendix_claims.CLAIMS,
        *technical_lemmas.CLAIMS,
    ),
    LinearAttention,
)
