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
    appendix_a_pairings,
    figures,
    flow_ends,
    out_of_distribution,
    section_3,
    section_3_7,
    section_4,
)
from flowsim.papers.gatmiry2024.setting import MODELS
from flowsim.papers.paper import Paper

CLAIMS: tuple[Claim, ...] = (
    *section_3.SECTION.claims,
    *section_3_7.SECTION_3_7.claims,
    *flow_ends.STARTS.claims,
    *section_3_7.CONVEXITY.claims,
    *section_4.SECTION.claims,
    *out_of_distribution.SECTION_4_1.claims,
    *flow_ends.SECTION_5_2.claims,
    *figures.SECTION.claims,
    *appendix_a_layers.SECTION.claims,  # Theorem A.1, Lemma A.3, Corollary A.4
    *appendix_a_pairings.SECTION.claims,  # Lemma A.2
    *appendix_a_moments.SECTION.claims,  # Lemmas A.5 to A.7
    *appendix_a_convergence.SECTION.claims,  # Theorem A.8, Lemma A.9, Theorem A.12
    *appendix_a_gradient.SECTION.claims,  # (25), (26)
    *appendix_a_dominance.SECTION.claims,  # Lemma A.10, Theorem A.11
    *out_of_distribution.SECTION_A.claims,  # Theorem A.13
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
