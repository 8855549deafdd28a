"""ahn2023: Transformers learn to implement preconditioned gradient descent for in-context learning (Ahn et al.)."""

from flowsim.claims.claim import Claim, about
from flowsim.models import DiagonalLayers, MaskedAttention, MultiLayerAttention, ScalarLayers
from flowsim.papers.ahn2023 import (
    appendix_a_2,
    appendix_a_3,
    multi_layer_claims,
    proof_claims,
    residual_stream_claims,
    sampled_claims,
    section_4,
    section_4_landscape,
)
from flowsim.papers.paper import Paper

_LAYERS = (MultiLayerAttention, ScalarLayers, DiagonalLayers)

CLAIMS: tuple[Claim, ...] = (
    *section_4.SECTION.claims,
    *section_4_landscape.SECTION.claims,
    *appendix_a_2.SECTION.claims,
    *appendix_a_3.SECTION.claims,
    *about((*multi_layer_claims.CLAIMS, *proof_claims.CLAIMS, *residual_stream_claims.CLAIMS), *_LAYERS),
    *about(sampled_claims.CLAIMS, MultiLayerAttention),
)


PAPER = Paper(
    id="ahn2023",
    authors="Ahn, Cheng, Daneshmand, Sra",
    year=2023,
    title="Transformers learn to implement preconditioned gradient descent for in-context learning",
    arxiv="2306.00297",
    models=(MaskedAttention, *_LAYERS),
    claims=CLAIMS,
)
