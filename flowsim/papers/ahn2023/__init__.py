"""ahn2023: Transformers learn to implement preconditioned gradient descent for in-context learning (Ahn et al.)."""

from flowsim.claims.claim import Claim
from flowsim.models import MaskedAttention
from flowsim.papers.ahn2023 import (
    appendix_a,
    appendix_b_1_2_4,
    appendix_b_3,
    appendix_c,
    figures,
    sections_3_4,
    sections_5_6,
)
from flowsim.papers.ahn2023.settings import LAYERED
from flowsim.papers.paper import Paper

CLAIMS: tuple[Claim, ...] = (
    *sections_3_4.SECTION.claims,
    *sections_5_6.SECTION_5.claims,
    *figures.FIGURES_1_2.claims,
    *sections_5_6.SECTION_6.claims,
    *figures.FIGURES_3_4.claims,
    *figures.SECTION_TRAINING.claims,
    *appendix_a.SECTION.claims,
    *appendix_b_1_2_4.SECTION_B_1_2.claims,
    *appendix_b_3.SECTION.claims,
    *appendix_b_3.TURNS.claims,
    *appendix_b_3.SECTION_ON_SAMPLES.claims,
    *appendix_b_1_2_4.SECTION_B_4.claims,
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
