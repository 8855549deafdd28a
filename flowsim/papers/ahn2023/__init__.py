"""ahn2023: Transformers learn to implement preconditioned gradient descent for in-context learning (Ahn et al.)."""

from flowsim.claims.claim import Claim
from flowsim.models import MaskedAttention
from flowsim.papers.ahn2023 import (
    appendix_a_2,
    appendix_a_3,
    appendix_b_1,
    appendix_b_2,
    appendix_b_3_gradients,
    appendix_b_3_sampled,
    appendix_b_3_turns,
    appendix_b_4,
    appendix_c_1,
    appendix_c_2,
    figures_1_2,
    figures_3_4,
    figures_3_4_training,
    section_3,
    section_4,
    section_4_landscape,
    section_5,
    section_5_1,
    section_5_2,
    section_5_3,
    section_6,
    section_6_1,
)
from flowsim.papers.ahn2023.settings import LAYERED
from flowsim.papers.paper import Paper

CLAIMS: tuple[Claim, ...] = (
    *section_3.SECTION.claims,
    *section_4.SECTION.claims,
    *section_4_landscape.SECTION.claims,
    *section_5.SECTION.claims,
    *section_5_1.SECTION.claims,
    *section_5_2.SECTION.claims,
    *section_5_3.SECTION.claims,
    *figures_1_2.SECTION.claims,
    *section_6.SECTION.claims,
    *section_6_1.SECTION.claims,
    *figures_3_4.SECTION.claims,
    *figures_3_4_training.SECTION.claims,
    *appendix_a_2.SECTION.claims,
    *appendix_a_3.SECTION.claims,
    *appendix_b_1.SECTION.claims,
    *appendix_b_2.SECTION.claims,
    *appendix_b_3_gradients.SECTION.claims,
    *appendix_b_3_turns.SECTION.claims,
    *appendix_b_3_sampled.SECTION.claims,
    *appendix_b_4.SECTION.claims,
    *appendix_c_1.SECTION.claims,
    *appendix_c_2.SECTION.claims,
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
