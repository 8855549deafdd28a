"""xie2025: The initialization determines whether in-context learning is gradient descent (Xie et al.).

Section 5.3 prompts large language models; it is no flow, and the weights of those models are not public.
"""

from flowsim.claims.claim import Claim, about
from flowsim.models import FactoredMultiHeadAttention, LinearTransformerBlock, MultiHeadAttention
from flowsim.papers.paper import Paper
from flowsim.papers.xie2025 import figure_claims, minimum_claims, model_claims, moment_claims, stationary_claims

_MODELS = (MultiHeadAttention, FactoredMultiHeadAttention, LinearTransformerBlock)

CLAIMS: tuple[Claim, ...] = about(
    (
        *moment_claims.CLAIMS,
        *stationary_claims.CLAIMS,
        *model_claims.CLAIMS,
        *minimum_claims.CLAIMS,
        *figure_claims.CLAIMS,
    ),
    *_MODELS,
)


PAPER = Paper(
    id="xie2025",
    authors="Xie, Yuan, Rossi, Hannagan",
    year=2025,
    title="The Initialization Determines Whether In-Context Learning Is Gradient Descent",
    arxiv="2512.04268",
    models=_MODELS,
    claims=CLAIMS,
)
