"""gatmiry2024: Can Looped Transformers Learn to Implement Multi-step Gradient Descent? (Gatmiry et al.)."""

from flowsim.analysis.base import Claim
from flowsim.analysis.gatmiry2024 import algebra_claims, figure_claims, moment_claims, pairings

CLAIMS: tuple[Claim, ...] = (
    *algebra_claims.CLAIMS,
    *moment_claims.CLAIMS,
    *pairings.CLAIMS,
    *figure_claims.CLAIMS,
)
