"""Claims about a flow, and verdicts on them."""

from flowsim.claims.claim import Claim as Claim
from flowsim.claims.claim import Comparison as Comparison
from flowsim.claims.claim import at_least as at_least
from flowsim.claims.claim import at_most as at_most
from flowsim.claims.claim import equal as equal
from flowsim.claims.claim import find_claims as find_claims
from flowsim.claims.critical_points.end_points import EndPoint as EndPoint
from flowsim.claims.critical_points.end_points import end_point as end_point
from flowsim.claims.critical_points.plateaus import Plateau as Plateau
from flowsim.claims.critical_points.plateaus import plateaus as plateaus
from flowsim.claims.deciding.bands import confidence_band as confidence_band
from flowsim.claims.deciding.judging import check as check
from flowsim.claims.deciding.judging import judge as judge
from flowsim.claims.deciding.judging import judge_on as judge_on
from flowsim.claims.deciding.verdict import Judgement as Judgement
from flowsim.claims.deciding.verdict import Verdict as Verdict
from flowsim.claims.deciding.verdict import Verdicts as Verdicts
from flowsim.claims.deciding.verdict import citation as citation
from flowsim.claims.evidence import Evidence as Evidence
from flowsim.claims.hypotheses import Hypothesis as Hypothesis
from flowsim.claims.limits import least_norm as least_norm
from flowsim.claims.limits import limit as limit
from flowsim.claims.rates import RateFit as RateFit
from flowsim.claims.rates import fit_rate as fit_rate
