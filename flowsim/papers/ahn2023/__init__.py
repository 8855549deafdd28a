"""ahn2023: Transformers learn to implement preconditioned gradient descent for in-context learning (Ahn et al.)."""

from flowsim.claims.claim import Claim
from flowsim.models import MaskedAttention
from flowsim.papers.ahn2023 import (
    appendix_a,
    appendix_b_1_2,
    appendix_b_3,
    appendix_b_3_turns,
    appendix_b_4,
    appendix_c,
    figures,
    section_3,
    section_4,
    section_4_landscape,
    section_5,
    section_6,
)
from flowsim.papers.ahn2023.settings import LAYERED
from flowsim.papers.paper import Paper

CLAIMS: tuple[Claim, ...] = (
    *section_3.SECTION.claims,
    *section_4.SECTION.claims,
    *section_4_landscape.SECTION.claims,
    *section_5.SECTION_5.claims,
    *section_5.SECTION_5_1.claims,
    *section_5.SECTION_5_2.claims,
    *section_5.SECTION_5_3.claims,
    *figures.FIGURES_1_2.claims,
    *section_6.SECTION_6.claims,
    *section_6.SECTION_6_1.claims,
    *figures.FIGURES_3_4.claims,
    *figures.SECTION_TRAINING.claims,
    *appendix_a.SECTION_A_2.claims,
    *appendix_a.SECTION_A_3.claims,
    *appendix_b_1_2.SECTION_B_1.claims,
    *appendix_b_1_2.SECTION_B_2.claims,
    *appendix_b_3.SECTION.claims,
    *appendix_b_3_turns.SECTION.claims,
    *appendix_b_3.SECTION_ON_SAMPLES.claims,
    *appendix_b_4.SECTION.claims,
    *appendix_c.SECTION.claims,
)


PAPER = Paper(
    id="ahn2023",
    authors="Ahn, Cheng, Daneshmand, Sra",
    year=2023,
    title="Transformers learn to implement preconditioned gradient descent for in-context learning",
    arxiv="2306.00297",
    models=(MaskedAttention, *LAYERED),
    claims=CLAIMS,
)
