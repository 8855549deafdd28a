"""zhang2023: Trained Transformers Learn Linear Models In-Context (Zhang, Frei, Bartlett)."""

from flowsim.analysis.base import Claim
from flowsim.analysis.zhang2023 import claims, figure_1, new_prompt_claims, random_covariance_claims, technical_lemmas

CLAIMS: tuple[Claim, ...] = (
    *claims.CLAIMS,
    *new_prompt_claims.CLAIMS,
    *random_covariance_claims.CLAIMS,
    *figure_1.CLAIMS,
    *technical_lemmas.CLAIMS,
)
