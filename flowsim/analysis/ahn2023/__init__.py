"""ahn2023: Transformers learn to implement preconditioned gradient descent for in-context learning (Ahn et al.)."""

from flowsim.analysis.ahn2023 import multi_layer_claims
from flowsim.analysis.base import Claim

CLAIMS: tuple[Claim, ...] = (*multi_layer_claims.CLAIMS,)
