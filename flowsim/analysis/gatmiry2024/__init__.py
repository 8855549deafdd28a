"""gatmiry2024: Can Looped Transformers Learn to Implement Multi-step Gradient Descent for In-context Learning?
(Gatmiry, Saunshi, Reddi, Jegelka, Kumar).
"""

from flowsim.analysis.base import Claim, about
from flowsim.analysis.gatmiry2024 import (
    algebra_claims,
    convexity,
    dominance_proof,
    figure_claims,
    first_steps,
    flow_claims,
    gradient_terms,
    landscape_claims,
    moment_claims,
    pairings,
    wishart_moments,
)
from flowsim.models import DiagonalLayers, LoopedAttention, ScalarLoop

CLAIMS: tuple[Claim, ...] = about(
    (
        *landscape_claims.CLAIMS,
        *convexity.CLAIMS,
        *gradient_terms.CLAIMS,
        *dominance_proof.CLAIMS,
        *first_steps.CLAIMS,
        *flow_claims.CLAIMS,
        *algebra_claims.CLAIMS,
        *moment_claims.CLAIMS,
        *pairings.CLAIMS,
        *wishart_moments.CLAIMS,
        *figure_claims.CLAIMS,
    ),
    LoopedAttention,
    ScalarLoop,
    DiagonalLayers,
)
