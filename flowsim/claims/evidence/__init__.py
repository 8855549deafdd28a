"""The evidence for a verdict: repeated solves of a flow, and both sides of every claim on each, also in ball
arithmetic.
"""

from flowsim.claims.evidence.case import Case as Case
from flowsim.claims.evidence.evidence import Evidence as Evidence
from flowsim.claims.evidence.evidence import below_minimum as below_minimum
from flowsim.claims.evidence.moving import ROUNDING as ROUNDING
from flowsim.claims.evidence.series import padded as padded
