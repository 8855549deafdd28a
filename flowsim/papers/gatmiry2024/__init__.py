"""gatmiry2024: Can Looped Transformers Learn to Implement Multi-step Gradient Descent for In-context Learning?
(Gatmiry, Saunshi, Reddi, Jegelka, Kumar).
"""

from flowsim.claims.claim import Claim
from flowsim.papers.gatmiry2024 import (
    appendix_a_convergence,
    appendix_a_dominance,
    appendix_a_gradient,
    appendix_a_layers,
    appendix_a_moments,
    appendix_a_out_of_distribution,
    appendix_a_pairings,
    figures_1_to_4,
    section_3,
    section_3_7,
    section_3_7_starts,
    section_4,
    section_4_1,
    section_5_2,
)
from flowsim.papers.gatmiry2024.setting import MODELS
from flowsim.papers.paper import Paper

CLAIMS: tuple[Claim, ...] = (
    *section_3.SECTION_3_2.claims,
    *section_3.SECTION_3_4.claims,
    *section_3.SECTION_3_5.claims,
    *section_3.SECTION_3_6.claims,
    *section_3_7.SECTION_3_7.claims,
    *section_3_7_starts.SECTION.claims,
    *section_3_7.CONVEXITY.claims,
    *section_4.SECTION.claims,
    *section_4_1.SECTION.claims,
    *section_5_2.SECTION.claims,
    *figures_1_to_4.FIGURE_1.claims,
    *figures_1_to_4.FIGURE_2.claims,
    *figures_1_to_4.FIGURE_3.claims,
    *figures_1_to_4.FIGURE_4.claims,
    *appendix_a_layers.SECTION.claims,  # Theorem A.1, Lemma A.3, Corollary A.4
    *appendix_a_pairings.SECTION.claims,  # Lemma A.2
    *appendix_a_moments.SECTION.claims,  # Lemmas A.5 to A.7
    *appendix_a_convergence.SECTION.claims,  # Theorem A.8, Lemma A.9, Theorem A.12
    *appendix_a_gradient.SECTION.claims,  # (25), (26)
    *appendix_a_dominance.SECTION.claims,  # Lemma A.10, Theorem A.11
    *appendix_a_out_of_distribution.SECTION.claims,  # Theorem A.13
)

PAPER = Paper(
    id="gatmiry2024",
    authors="Gatmiry, Saunshi, Reddi, Jegelka, Kumar",
    year=2024,
    title="Can Looped Transformers Learn to Implement Multi-step Gradient Descent for In-context Learning?",
    arxiv="2410.08292",
    models=MODELS,
    claims=CLAIMS,
)
