"""xie2025: The initialization determines whether in-context learning is gradient descent (Xie et al.).

Section 5.3 is left out: it prompts large language models, which is not a flow, and their weights are not public.
"""

from flowsim.claims.claim import Claim
from flowsim.papers.paper import Paper
from flowsim.papers.xie2025 import appendix_a_1_2, appendix_a_3_4, appendix_b, section_4, section_5, sections_1_3
from flowsim.papers.xie2025.setting import MODELS

CLAIMS: tuple[Claim, ...] = (
    *sections_1_3.SECTION.claims,
    *section_4.SECTION.claims,
    *section_5.SECTION.claims,
    *section_5.FIGURES.claims,
    *appendix_a_1_2.SECTION.claims,
    *appendix_a_3_4.SECTION.claims,
    *appendix_b.SECTION.claims,
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
        "section 5.3 of xie2025 prompts large language models. This is not a gradient flow of a population loss, and\n"
        "the weights of those models are not public."
    ),
)
