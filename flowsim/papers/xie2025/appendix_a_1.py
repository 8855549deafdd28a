"""xie2025, appendix A.1: the proof of Theorem 1, on drawn prompts."""

import jax.numpy as jnp

from flowsim.claims.claim import Comparison, Relation
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import MultiHeadLoss
from flowsim.models import MultiHeadAttention
from flowsim.papers.paper import Section
from flowsim.papers.xie2025 import problems, spaces
from flowsim.papers.xie2025.conditions import MODELS, drawable, heads_on_isotropic, promised_where
from flowsim.papers.xie2025.predictions import alike
from flowsim.papers.xie2025.setting import drawn_heads

SECTION = Section("xie2025", *MODELS)


@SECTION.claim(
    "theorem-1.classes",
    "Theorem 1, appendix A.1",
    "d + 1 heads with b_h = e_h and a_i^h = M_i[h] predict as the d + 2 heads do that make the M_i",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=heads_on_isotropic,
    hypotheses=drawable,
    problems=problems.FINITE,
    spaces=spaces.FINITE,
)
@promised_where(drawable)
def same_class(loss: MultiHeadLoss, trajectory: Trajectory) -> Comparison:
    """d + 1 heads with b_h = e_h and a_i^h equal to row h of M_i, against the d + 2 drawn heads that make these M_i."""
    d = loss.task.dimension
    more = drawn_heads(d, d + 2, 11)
    M = jnp.einsum("hm,hni->imn", more.b, more.A)
    fewer = MultiHeadAttention(jnp.eye(d + 1), jnp.einsum("imn->mni", M), more.w, more.bias)
    return alike(loss.task, fewer, more)
