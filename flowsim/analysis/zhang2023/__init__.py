"""zhang2023: Trained Transformers Learn Linear Models In-Context (Zhang, Frei, Bartlett)."""

from flowsim.analysis.base import Claim
from flowsim.analysis.zhang2023.claims import CLAIMS as _FIXED_COVARIANCE
from flowsim.analysis.zhang2023.random_covariance_claims import CLAIMS as _RANDOM_COVARIANCE

CLAIMS: tuple[Claim, ...] = _FIXED_COVARIANCE + _RANDOM_COVARIANCE
