"""gatmiry2024's section 3.6: one step with a preconditioner from the prompt itself."""

import jax.numpy as jnp
from jaxtyping import Array

from flowsim.claims.claim import Relation
from flowsim.losses import LoopedLoss
from flowsim.models import LoopedAttention
from flowsim.papers.gatmiry2024 import spaces
from flowsim.papers.gatmiry2024.lemma_settings import looped_by_matrices
from flowsim.papers.gatmiry2024.prompts import JUDGED, PROBLEMS, Drawn, conditioned, of_prompts
from flowsim.papers.gatmiry2024.setting import MODELS, over_determined
from flowsim.papers.paper import Section

SECTION = Section("gatmiry2024", *MODELS)


@SECTION.claim(
    "sec-3.6.one-step",
    "section 3.6",
    "One step with the inverse of the data covariance as preconditioner gives w* = (X X^T)^-1 X y, given n > d",
    relation=Relation.IDENTITY,
    along_flow=False,
    setting=looped_by_matrices,
    hypotheses=over_determined,
    problems=PROBLEMS,
    spaces=spaces.LEMMAS,
    note=JUDGED + "The transformer has one loop, and A is the inverse of the sample covariance of its prompt.",
)
@conditioned
@of_prompts(symmetric=True)
def one_step(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    """The prediction of one loop with the A = ((1/n) X X^T)^-1 of its own prompt against w*^T x_q."""
    A = jnp.linalg.inv(one.X @ one.X.T / one.X.shape[1])
    return LoopedAttention(A, loops=1)(one.prompt)[None], (one.w @ one.query)[None]
