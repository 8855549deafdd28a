"""xie2025: The initialization determines whether in-context learning is gradient descent (Xie et al.).

Section 5.3 is left out: it prompts large language models, which is not a flow, and their weights are not public.
"""

from flowsim.claims.claim import Claim
from flowsim.papers.paper import Paper
from flowsim.papers.xie2025 import (
    appendix_a_1,
    appendix_a_2,
    appendix_a_3,
    appendix_a_4,
    appendix_b_2,
    appendix_b_3,
    figures,
    section_1,
    section_3,
    section_4_1,
    section_4_2,
    section_5_1,
    section_5_2,
)
from flowsim.papers.xie2025.conditions import MODELS

CLAIMS: tuple[Claim, ...] = (
    *section_1.SECTION.claims,
    *section_3.SECTION.claims,
    *section_4_1.SECTION.claims,
    *section_4_2.SECTION.claims,
    *section_5_1.SECTION.claims,
    *section_5_2.SECTION.claims,
    *figures.SECTION.claims,
    *appendix_a_1.SECTION.claims,
    *appendix_a_2.SECTION.claims,
    *appendix_a_3.SECTION.claims,
    *appendix_a_4.SECTION.claims,
    *appendix_b_2.SECTION.claims,
    *appendix_b_3.SECTION.claims,
)

PAPER = Paper(
    id="xie2025",
    authors="Xie, Yuan, Rossi, Hannagan",
    year=2025,
    title="The Initialization Determines Whether In-Context Learning Is Gradient Descent",
    arxiv="2512.04268",
    models=MODELS,
    claims=CLAIMS,
    out_of_reach=(
        "section 5.3 of xie2025 prompts large language models. That is no gradient flow of a population loss, and\n"
        "the weights of those models are not public."
    ),
)
