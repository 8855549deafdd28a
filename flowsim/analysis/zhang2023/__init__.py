"""zhang2023: Trained Transformers Learn Linear Models In-Context (Zhang, Frei, Bartlett)."""

import dataclasses

from flowsim.analysis.base import Claim
from flowsim.analysis.zhang2023 import claims, figure_1, new_prompt_claims, random_covariance_claims, technical_lemmas
from flowsim.models import LinearAttention

CLAIMS: tuple[Claim, ...] = tuple(
    dataclasses.replace(claim, models=(LinearAttention,))
    for claim in (
        *claims.CLAIMS,
        *new_prompt_claims.CLAIMS,
        *random_covariance_claims.CLAIMS,
        *figure_1.CLAIMS,
        *technical_lemmas.CLAIMS,
    )
)
