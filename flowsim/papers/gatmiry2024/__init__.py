"""gatmiry2024: Can Looped Transformers Learn to Implement Multi-step Gradient Descent for In-context Learning?
(Gatmiry, Saunshi, Reddi, Jegelka, Kumar).
"""

from flowsim.claims.claim import Claim
from flowsim.papers.gatmiry2024 import (
    appendix_a_convergence,
    appendix_a_dominance_lemma,
    appendix_a_dominance_theorem,
    appendix_a_gradient,
    appendix_a_layers,
    appendix_a_loss,
    appendix_a_moments,
    appendix_a_optimum,
    appendix_a_out_of_distribution,
    appendix_a_pairings,
    figure_1,
    figure_2,
    figure_3,
    figure_4,
    section_3_2,
    section_3_4,
    section_3_5,
    section_3_6,
    section_3_7,
    section_3_7_convexity,
    section_3_7_starts,
    section_4,
    section_4_1,
    section_5_2,
)
from flowsim.papers.gatmiry2024.setting import MODELS
from flowsim.papers.paper import Paper

CLAIMS: tuple[Claim, ...] = (
    *section_3_2.SECTION.claims,
    *section_3_4.SECTION.claims,
    *section_3_5.SECTION.claims,
    *section_3_6.SECTION.claims,
    *section_3_7.SECTION.claims,
    *section_3_7_starts.SECTION.claims,
    *section_3_7_convexity.SECTION.claims,
    *section_4.SECTION.claims,
    *section_4_1.SECTION.claims,
    *section_5_2.SECTION.claims,
    *figure_1.SECTION.claims,
    *figure_2.SECTION.claims,
    *figure_3.SECTION.claims,
    *figure_4.SECTION.claims,
    *appendix_a_layers.SECTION.claims,  # Theorem A.1
    *appendix_a_pairings.SECTION.claims,  # Lemma A.2
    *appendix_a_loss.SECTION.claims,  # Lemma A.3, Corollary A.4
    *appendix_a_moments.SECTION.claims,  # Lemmas A.5 to A.7
    *appendix_a_optimum.SECTION.claims,  # Theorem A.8, Lemma A.9
    *appendix_a_gradient.SECTION.claims,  # (25), (26)
    *appendix_a_dominance_lemma.SECTION.claims,  # Lemma A.10
    *appendix_a_dominance_theorem.SECTION.claims,  # Theorem A.11
    *appendix_a_convergence.SECTION.claims,  # Theorem A.12
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
