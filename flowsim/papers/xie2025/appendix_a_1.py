"""xie2025, appendix A.1: the proof of Theorem 1, on drawn prompts."""

import jax.numpy as jnp

from flowsim.claims.claim import Comparison
from flowsim.claims.declaring import Section
from flowsim.losses import MultiHeadLoss
from flowsim.models import MultiHeadAttention
from flowsim.papers.xie2025 import problems, spaces
from flowsim.papers.xie2025.conditions import MODELS, drawable, heads_on_isotropic
from flowsim.papers.xie2025.predictions import alike
from flowsim.papers.xie2025.setting import drawn_heads

SECTION = Section(
    "xie2025", *MODELS, setting=heads_on_isotropic, needs=drawable, problems=problems.FINITE, spaces=spaces.FINITE
)


@SECTION.claim("theorem-1.classes", "Theorem 1, appendix A.1")
def same_class(loss: MultiHeadLoss) -> Comparison:
    """$d + 1$ heads with $b_h = e_h$ and $a_i^h = M_i[h]$ predict as the $d + 2$ heads do that make the $M_i$"""
    d = loss.task.dimension
    more = drawn_heads(d, d + 2, 11)
    M = jnp.einsum("hm,hni->imn", more.b, more.A)
    fewer = MultiHeadAttention(jnp.eye(d + 1), jnp.einsum("imn->mni", M), more.w, more.bias)
    return alike(loss.task, fewer, more)
