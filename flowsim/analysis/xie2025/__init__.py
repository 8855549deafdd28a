"""xie2025: The initialization determines whether in-context learning is gradient descent (Xie et al.).

Section 5.3 prompts large language models; it is no flow, and the weights of those models are not public.
"""

from flowsim.analysis.base import Claim, about
from flowsim.analysis.xie2025 import figure_claims, minimum_claims, model_claims, moment_claims, stationary_claims
from flowsim.models import FactoredMultiHeadAttention, LinearTransformerBlock, MultiHeadAttention

CLAIMS: tuple[Claim, ...] = about(
    (
        *moment_claims.CLAIMS,
        *stationary_claims.CLAIMS,
        *model_claims.CLAIMS,
        *minimum_claims.CLAIMS,
        *figure_claims.CLAIMS,
    ),
    MultiHeadAttention,
    FactoredMultiHeadAttention,
    LinearTransformerBlock,
)
