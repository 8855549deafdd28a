"""zhang2025's appendix on contexts of varying length."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from flowsim.claims.claim import Comparison, equal
from flowsim.claims.declaring import Section
from flowsim.claims.statements import joined
from flowsim.losses import AttentionLoss
from flowsim.models import MergedHeads, SeparateHeads
from flowsim.papers.zhang2025 import problems, spaces
from flowsim.papers.zhang2025.setting import learned, level, squared_error, varying_lengths

SECTION = Section(
    "zhang2025", MergedHeads, SeparateHeads, setting=varying_lengths, problems=problems.LENGTHS, spaces=spaces.LENGTHS
)


@SECTION.claim("appendix.lengths", "appendix on varying context lengths")
@eqx.filter_jit
def lengths(loss: AttentionLoss, start: PyTree) -> Comparison:
    r"""With contexts of varying length the fixed points and their losses are those of one length $N$ with $1/N =
    \mathbb{E}[1/N]$

    Judged by the mean over the lengths of losses by moments, and by its gradient, where all eigenvectors are learned;
    and by the least loss, where as many of the largest are learned as the heads can learn.
    """
    task, law = loss.task, loss.task.length_law
    assert law is not None, "the setting of the claim"

    def mean(readout):
        return law.probabilities @ jax.vmap(lambda N: squared_error(task.covariance, N, readout))(law.lengths)

    best = learned(task, jnp.ones(task.dimension))
    value, slope = jax.value_and_grad(mean)(best)
    square = jnp.linalg.norm(task.covariance @ task.covariance)
    reached = (jnp.arange(task.dimension) < start.rank).astype(float)
    found = jnp.stack([value, 2 * loss.minimum])
    expected = jnp.stack([level(task, chosen) for chosen in (jnp.ones(task.dimension), reached)])
    return joined(
        [equal(found, expected, jnp.trace(task.covariance)), equal(jnp.linalg.norm(slope)[None], 0.0, square)]
    )
