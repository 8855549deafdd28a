"""gatmiry2024: Can Looped Transformers Learn to Implement Multi-step Gradient Descent for In-context Learning?
(Gatmiry, Saunshi, Reddi, Jegelka, Kumar).
"""

from flowsim.analysis.base import Claim
from flowsim.analysis.gatmiry2024 import flow_claims, landscape_claims

CLAIMS: tuple[Claim, ...] = (*landscape_claims.CLAIMS, *flow_claims.CLAIMS)
