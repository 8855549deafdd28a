"""The evidence for a verdict: repeated solves, and on each of them both sides of every claim, also in balls."""

from flowsim.claims.evidence.case import Case as Case
from flowsim.claims.evidence.evidence import Evidence as Evidence
from flowsim.claims.evidence.evidence import below_minimum as below_minimum
from flowsim.claims.evidence.moving import ROUNDING as ROUNDING
from flowsim.claims.evidence.series import padded as padded
