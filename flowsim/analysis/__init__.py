"""Claims about a flow, and verdicts on them: one file a paper, and what they share."""

from flowsim.analysis.ahn2023 import CLAIMS as _AHN2023
from flowsim.analysis.bands import confidence_band as confidence_band
from flowsim.analysis.base import Claim as Claim
from flowsim.analysis.base import Comparison as Comparison
from flowsim.analysis.base import Judgement as Judgement
from flowsim.analysis.base import Relation as Relation
from flowsim.analysis.base import Verdict as Verdict
from flowsim.analysis.base import at_least as at_least
from flowsim.analysis.base import at_most as at_most
from flowsim.analysis.base import equal as equal
from flowsim.analysis.base import find_claims as find_claims
from flowsim.analysis.evidence import Evidence as Evidence
from flowsim.analysis.gatmiry2024 import CLAIMS as _GATMIRY2024
from flowsim.analysis.judging import check as check
from flowsim.analysis.judging import judge as judge
from flowsim.analysis.judging import judge_on as judge_on
from flowsim.analysis.landscape import EndPoint as EndPoint
from flowsim.analysis.landscape import end_point as end_point
from flowsim.analysis.rates import RateFit as RateFit
from flowsim.analysis.rates import fit_rate as fit_rate
from flowsim.analysis.xie2025 import CLAIMS as _XIE2025
from flowsim.analysis.zhang2023 import CLAIMS as _ZHANG2023

ALL_CLAIMS: tuple[Claim, ...] = (*_ZHANG2023, *_AHN2023, *_GATMIRY2024, *_XIE2025)
