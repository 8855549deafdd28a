"""gatmiry2024's section 3.6: one step with a preconditioner from the prompt itself."""

import jax.numpy as jnp
from jaxtyping import Array

from flowsim.claims.declaring import Section
from flowsim.losses import LoopedLoss
from flowsim.models import LoopedAttention
from flowsim.papers.gatmiry2024 import spaces
from flowsim.papers.gatmiry2024.lemma_settings import looped_by_matrices
from flowsim.papers.gatmiry2024.prompts import JUDGED, PROBLEMS, Drawn, conditioned, of_prompts
from flowsim.papers.gatmiry2024.setting import MODELS, over_determined

SECTION = Section(
    "gatmiry2024",
    *MODELS,
    setting=looped_by_matrices,
    hypotheses=over_determined,
    problems=PROBLEMS,
    spaces=spaces.LEMMAS,
)


@SECTION.claim(
    "sec-3.6.one-step",
    "section 3.6",
    note=JUDGED + "The transformer has one loop, and A is the inverse of the sample covariance of its prompt.",
)
@conditioned
@of_prompts(symmetric=True)
def one_step(loss: LoopedLoss, one: Drawn) -> tuple[Array, Array]:
    r"""One step with the inverse of the data covariance as preconditioner gives $w^* = (X X^\top)^{-1} X y$, given $n >
    d$
    """
    A = jnp.linalg.inv(one.X @ one.X.T / one.X.shape[1])
    return LoopedAttention(A, loops=1)(one.prompt)[None], (one.w @ one.query)[None]
