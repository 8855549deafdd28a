"""zhang2025: Training dynamics of in-context learning in linear attention (Zhang, Singh, Latham, Saxe).

Equation numbers are those of the proceedings (PMLR 267); the main text has no numbered theorems. Two parts of the paper
have no claims here. In-weight learning, where part of the prompts share one fixed w, is a flow of a sum of losses
(`LinearRegression(weight=..)`), and the paper states no formula for it. The runs with softmax and on finitely many
sequences are not flows of a population loss.
"""

from flowsim.claims.claim import Claim
from flowsim.models import MergedHeads, SeparateHeads
from flowsim.papers.paper import Paper
from flowsim.papers.zhang2025 import section_3, section_4

CLAIMS: tuple[Claim, ...] = (*section_3.SECTION.claims, *section_4.SECTION.claims, *section_4.LENGTHS.claims)

PAPER = Paper(
    id="zhang2025",
    authors="Zhang, Singh, Latham, Saxe",
    year=2025,
    title="Training Dynamics of In-Context Learning in Linear Attention",
    arxiv="2501.16265",
    models=(MergedHeads, SeparateHeads),
    claims=CLAIMS,
)
