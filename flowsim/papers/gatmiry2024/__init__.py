"""gatmiry2024: Can Looped Transformers Learn to Implement Multi-step Gradient Descent for In-context Learning?
(Gatmiry, Saunshi, Reddi, Jegelka, Kumar).
"""

from flowsim.claims.claim import Claim, about
from flowsim.models import DiagonalLayers, LoopedAttention, ScalarLoop
from flowsim.papers.gatmiry2024 import (
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
from flowsim.papers.paper import Paper

_MODELS = (LoopedAttention, ScalarLoop, DiagonalLayers)

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
    *_MODELS,
)


PAPER = Paper(
    id="gatmiry2024",
    authors="Gatmiry, Saunshi, Reddi, Jegelka, Kumar",
    year=2024,
    title="Can Looped Transformers Learn to Implement Multi-step Gradient Descent for In-context Learning?",
    arxiv="2410.08292",
    models=_MODELS,
    claims=CLAIMS,
)
